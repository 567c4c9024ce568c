"""A store on a fake clock with short words for what the conformance suite does with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self

from onceflow.core.item import Added, Lease, Phase, Seed
from onceflow.core.pipeline import Pipeline, Stage
from onceflow.core.transition import Done, Outcome, decide
from onceflow.store.base import (
    Add,
    Claim,
    Claimed,
    Command,
    Exchanged,
    Finish,
    Row,
    Store,
    Target,
    Worker,
)
from onceflow.testing.clock import FakeClock

MakeStore = Callable[[FakeClock], Store]
"""A new store object, not open yet, on the one database that the test has."""

AUDITS = ("i1", "i2", "i5", "i6", "i7", "i8", "i10", "i12")
FOREVER_MS = 10**15


def handler(work: object) -> None:
    """What the suite's stages do: nothing, since it plays the worker itself."""


def pipeline(*stages: str | Stage, name: str = "news", **rules: Any) -> Pipeline:
    """A pipeline of stages that are named only, or given whole."""
    table = [Stage(each, handler) if isinstance(each, str) else each for each in stages]
    return Pipeline(name, *table, **rules)


NEWS = pipeline("scrape", "summarize")
DIGEST = pipeline("scrape", name="digest", after_all=handler)


@contextmanager
def refused(kind: type[BaseException], *words: str) -> Iterator[None]:
    """The body raises that error, and its message has these words."""
    try:
        yield
    except kind as error:
        said = str(error)
    else:
        raise AssertionError(f"nothing raised {kind.__name__}")
    missing = [word for word in words if word not in said]
    assert not missing, f"{said!r} does not say {missing}"


class Rig:
    """Open it around a test. At its end every invariant is checked on what the test stored."""

    def __init__(self, make_store: MakeStore, *pipelines: Pipeline, audit: bool = True) -> None:
        self.clock = FakeClock()
        self.pipelines = {each.name: each for each in pipelines or (NEWS,)}
        self.store = make_store(self.clock)
        self._make_store = make_store
        self._stores = [self.store]
        self._audit = audit
        self._numbers = count(1)

    async def __aenter__(self) -> Self:
        await self.store.open(self.pipelines.values())
        await self.beat("w")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._audit:
                assert await self.audit() == []
        finally:
            for store in self._stores:
                await store.close()

    async def another(self) -> Store:
        """One more store object on the same database, as another process would have."""
        store = self._make_store(self.clock)
        self._stores.append(store)
        await store.open(self.pipelines.values())
        return store

    @property
    def pipeline(self) -> Pipeline:
        """The first pipeline."""
        return next(iter(self.pipelines.values()))

    # --- writes ---

    def number(self) -> int:
        """The number of an exchange: each is used once."""
        return next(self._numbers)

    async def exchange(
        self,
        finishes: Sequence[Finish] = (),
        claims: Sequence[Claim] = (),
        begins: Sequence[Lease] = (),
        *,
        worker: str = "w",
        store: Store | None = None,
    ) -> Exchanged:
        return await (store or self.store).exchange(worker, self.number(), finishes, claims, begins)

    async def add(
        self,
        seeds: Iterable[str | Seed],
        run: str = "run-1",
        *,
        of: Pipeline | None = None,
        store: Store | None = None,
        **options: Any,
    ) -> Added:
        items = [Seed(seed) if isinstance(seed, str) else seed for seed in seeds]
        request = Add(of or self.pipeline, run, items, **options)
        return (await (store or self.store).add(request)).added

    async def add_and_claim(
        self, request: Add, claim: Claim, worker: str = "w"
    ) -> tuple[Added, Claimed]:
        """Add, and what the claim that goes along with it gave."""
        added, [claimed] = await self.store.add(request, worker, self.number(), [claim])
        return added, claimed

    def wish(
        self,
        stage: str,
        count: int = 10,
        *,
        of: Pipeline | None = None,
        turn: int = 0,
        lane: str = "",
        item: int | None = None,
        prefetch: bool = False,
        run: str = "",
    ) -> Claim:
        whose = of or self.pipeline
        names = [each.name for each in whose.stages]
        before = ""
        if stage in names and names.index(stage):
            before = names[names.index(stage) - 1]
        return Claim(whose.name, stage, before, count, turn, lane, item, prefetch, run)

    async def claim(
        self,
        stage: str,
        count: int = 10,
        *,
        worker: str = "w",
        store: Store | None = None,
        **options: Any,
    ) -> Claimed:
        wish = self.wish(stage, count, **options)
        return (await self.exchange([], [wish], worker=worker, store=store)).claimed[0]

    async def lease(self, stage: str, **options: Any) -> Lease:
        """The one lease that a claim of one gives."""
        [lease] = (await self.claim(stage, 1, **options)).leases
        return lease

    def finishing(self, lease: Lease, outcome: Outcome | None = None) -> Finish:
        done = Done({"of": lease.key}) if outcome is None else outcome
        return Finish(lease, decide(self.pipelines[lease.pipeline], lease, done))

    async def finish(
        self,
        leases: Lease | Sequence[Lease],
        outcome: Outcome | None = None,
        *,
        worker: str = "w",
        store: Store | None = None,
    ) -> list[bool]:
        every = [leases] if isinstance(leases, Lease) else leases
        finishes = [self.finishing(lease, outcome) for lease in every]
        reply = await self.exchange(finishes, worker=worker, store=store)
        return [bool(kept) for kept in reply.kept]

    async def go_on(
        self, leases: Sequence[Lease], outcome: Outcome | None = None, *, worker: str = "w"
    ) -> Exchanged:
        """Finish leases and ask for their next stages along with that."""
        finishes = [self.finishing(lease, outcome)._replace(claim_next=True) for lease in leases]
        return await self.exchange(finishes, worker=worker)

    async def work_off(self, *stages: str, of: Pipeline | None = None) -> None:
        """Claim and finish these stages until nothing of them is ready."""
        for stage in stages:
            while leases := (await self.claim(stage, 100, of=of)).leases:
                assert all(await self.finish(leases))

    async def work_off_held(self, worker: str = "w") -> None:
        """Finish every lease that the database says a worker has."""
        items = [item for item, _, _ in await self.store.held(worker)]
        for lease in await self.store.leases(worker, items):
            assert await self.finish(lease, worker=worker) == [True]

    async def beat(self, worker: str, store: Store | None = None) -> None:
        await (store or self.store).beat(Worker(worker, "host.test", 7))

    async def act(self, command: Command, *keys: str, stage: str = "", why: str = "") -> list[int]:
        targets = [
            Target(row["id"], row["version"]) for key in keys for row in [await self.item(key)]
        ]
        return await self.store.act(command, targets, stage, why)

    # --- reads ---

    async def item(self, key: str, of: Pipeline | None = None) -> Row:
        name = (of or self.pipeline).name
        [row] = await self.store.read("item_by_key", pipeline=name, key=key)
        return row

    async def place(self, key: str, of: Pipeline | None = None) -> tuple[str, str]:
        row = await self.item(key, of)
        return row["stage"], row["phase"]

    async def run(self, run: str = "run-1") -> Row:
        [row] = await self.store.read("run", id=run)
        return row

    async def history(self, key: str, of: Pipeline | None = None) -> list[Row]:
        row = await self.item(key, of)
        return await self.store.read("history", item=row["id"], after=0, most=1000)

    async def kinds(self, key: str, of: Pipeline | None = None) -> list[str]:
        return [row["kind"] for row in await self.history(key, of)]

    async def events(self, **wanted: Any) -> list[Row]:
        """The whole history, page by page."""
        found: list[Row] = []
        async for row in self.pages("events", "seq", **{"item": None, "run": None, "kinds": None,
                                                        "pipeline": None, **wanted}):  # fmt: skip
            found.append(row)
        return found

    async def pages(self, query: str, key: str, most: int = 7, **wanted: Any) -> AsyncIterator[Row]:
        after = 0
        while page := await self.store.read(query, after=after, most=most, **wanted):
            assert len(page) <= most
            for row in page:
                yield row
            after = page[-1][key]

    async def items(self, query: str = "items", **wanted: Any) -> list[Row]:
        every = {"pipeline": None, "stage": None, "places": None, "phases": None,
                 "error_code": None, **wanted}  # fmt: skip
        return [row async for row in self.pages(query, "id", **every)]

    async def phases(self) -> dict[str, int]:
        """How many items there are in each phase."""
        counts: dict[str, int] = {}
        for row in await self.store.read("counts", pipeline=None):
            counts[row["phase"]] = counts.get(row["phase"], 0) + row["items"]
        return counts

    async def audit(self, grace_ms: int = FOREVER_MS) -> list[tuple[str, str | None, str]]:
        """Every violation: the invariant, the key of its item, what is wrong."""
        found: list[tuple[str, str | None, str]] = []
        for name in AUDITS:
            parameters = {"grace_ms": grace_ms} if name == "i8" else {}
            for row in await self.store.read(f"audit_{name}", **parameters):
                found.append((name.upper(), row["key"], row["detail"]))
        return found


__all__ = ["DIGEST", "NEWS", "MakeStore", "Phase", "Rig", "handler", "pipeline", "refused"]
