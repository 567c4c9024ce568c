"""The front door: open a database with pipelines, add items, work, watch, operate."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from onceflow.core.errors import OnceflowError, Permanent, PipelineError, UnknownItem
from onceflow.core.item import (
    SETTLED,
    Added,
    Event,
    Filter,
    Item,
    Json,
    Phase,
    Run,
    Seed,
    Violation,
)
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import COST_MAX, canonical_key, clean, decode, is_name
from onceflow.engine.audit import audit
from onceflow.engine.bus import Bus, Live
from onceflow.engine.health import Health
from onceflow.engine.heart import Heart, ThreadHeart
from onceflow.engine.listing import PAGE, known_states, to_event, to_item, to_run
from onceflow.engine.manager import Manager
from onceflow.engine.neighbours import machine
from onceflow.engine.settings import Settings
from onceflow.engine.trigger import Triggered, trigger
from onceflow.engine.why import why
from onceflow.store import open_store
from onceflow.store.base import Add, Row, Store, Target, Worker

log = logging.getLogger("onceflow")

ADD_CHUNK = 5000
"""Items one transaction accepts; more are added in several, into the same run."""

HELD_SECONDS_MAX = 30.0
"""How long the end of a run waits for events that somebody's open transaction holds up."""

OPEN = (Phase.WAITING, Phase.READY, Phase.ACTIVE)
MEANT = {"retry": (Phase.FAILED,), "cancel": OPEN, "release": (Phase.ACTIVE,)}
"""The phases that an operator's command means, if neither keys nor a state say which items."""


@dataclass(frozen=True, slots=True)
class Acted:
    """What an operator's command did, or would do in a dry run."""

    matched: int = 0
    """Items that were named, or that the filter matched."""
    fitting: int = 0
    """Of those, how many were in a phase the command is for."""
    changed: int = 0
    """Of those, how many it changed. The others' state changed meanwhile; 0 in a dry run."""
    for_good: int = 0
    """Matched, but failed for good and therefore left alone."""


def open(
    database: str | os.PathLike[str] | Store = "onceflow.db",
    *pipelines: Pipeline,
    settings: Settings | None = None,
    heart: Callable[..., Heart] = ThreadHeart,
) -> Flow:
    """A flow over a database file or a `postgresql://` address. Use it with `async with`."""
    return Flow(database, pipelines, settings or Settings(), heart)


def new_run_id() -> str:
    """Sortable by time, made up by the caller: adding again after a lost reply is harmless."""
    return f"{time.time_ns() // 1_000_000:011x}{os.urandom(4).hex()}"


def new_worker() -> Worker:
    """This process start. Never a name: two processes with one name would undo each other."""
    return Worker(secrets.token_hex(8), machine(), os.getpid())


class Flow:
    """Pipelines on a database."""

    def __init__(
        self,
        database: str | os.PathLike[str] | Store,
        pipelines: Iterable[Pipeline],
        settings: Settings,
        heart: Callable[..., Heart] = ThreadHeart,
        worker: Callable[[], Worker] = new_worker,
    ) -> None:
        self.pipelines: dict[str, Pipeline] = {}
        for pipeline in pipelines:
            if pipeline.name in self.pipelines:
                raise PipelineError(f"pipeline {pipeline.name!r} is given twice; rename one")
            self.pipelines[pipeline.name] = pipeline
        self.settings = settings
        self.bus = Bus()
        self.store: Store = (
            open_store(os.fspath(database), durability=settings.durability)
            if isinstance(database, str | os.PathLike)
            else database
        )
        self._heart = heart
        self._new_worker = worker
        self._manager: Manager | None = None
        self._working: asyncio.Task[None] | None = None
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._open = False
        self._loop: asyncio.AbstractEventLoop
        """The loop it was opened in, where it works."""
        self.last_health: Health | None = None
        """The report with which the last work of this flow ended."""

    async def __aenter__(self) -> Flow:
        await self.store.open(self.pipelines.values())
        self._loop = asyncio.get_running_loop()
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.stop()
        finally:  # also when the work ends with an error
            self._open = False
            await self.store.close()

    # --- adding ---

    async def add(
        self,
        pipeline: Pipeline | str,
        items: Iterable[str | Seed],
        *,
        run: str | None = None,
        seal: bool = True,
        max_items: int | None = None,
        max_depth: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        refresh: bool = False,
    ) -> Added:
        """Accept items into a run. A known key joins with the work and the result it has, so
        adding again is harmless. `seal=False` keeps the run open for more; `refresh` opens a new
        generation of known items that are settled."""
        chosen = self.pipeline(pipeline)
        ceilings = {"max_items": max_items, "max_depth": max_depth, "max_tokens": max_tokens}
        _check(run, ceilings, max_cost)
        if isinstance(items, str):
            raise TypeError(f"add takes a list of items; for one of them write [{items!r}]")
        run = run or new_run_id()
        seeds = [_seed(chosen, item) for item in items]
        new = known = over = 0
        if refresh:  # before they join: that alone would have some do their last stage again
            before = await self._known_before(chosen, seeds, run)
            await self.retry(chosen, keys=before, from_stage=chosen.first.name)
        chunks = [seeds[at : at + ADD_CHUNK] for at in range(0, len(seeds), ADD_CHUNK)] or [[]]
        for at, chunk in enumerate(chunks, start=1):
            last = at == len(chunks)
            request = Add(
                chosen, run, chunk, seal and last, max_items, max_depth, max_tokens, max_cost
            )
            added = await self._add(request)
            new, known = new + added.new, known + added.known
            over += added.over_budget
        return Added(run, new, known, over)

    async def _known_before(self, pipeline: Pipeline, seeds: Sequence[Seed], run: str) -> list[int]:
        """Of items that are to be added to a run: those that an earlier one has brought in."""
        ids: list[int] = []
        for seed in seeds:
            with suppress(UnknownItem):
                row = await self._row(pipeline, seed.key)
                ids += [row["id"]] if row["run"] != run else []
        return ids

    async def seal(self, pipeline: Pipeline | str, run: str) -> None:
        """No more items are coming from outside: the run's gate may open."""
        await self._add(Add(self.pipeline(pipeline), run, (), seal=True))

    async def _add(self, request: Add) -> Added:
        if self._manager is None or request.pipeline.name not in self.pipelines:
            return (await self.store.add(request)).added
        asked = self._manager.add(request)
        if asyncio.get_running_loop() is self._loop:
            return await asked
        # A plain `def` handler runs in a thread, and may have a loop of its own there.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._loop))

    # --- working ---

    async def drain(self) -> None:
        """Work until nothing is left to do, here or in other processes."""
        await self._begin(until_idle=True)

    async def work(self) -> None:
        """Work until `stop`."""
        await self._begin(until_idle=False)

    def start(self) -> asyncio.Task[None]:
        """Work in the background until `stop` or the end of `async with`."""
        if self._working is None:
            self._working = self._begin(until_idle=False)
        return self._working

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Stop working: finish what can be within the grace time, release the rest uncounted."""
        self.stop_soon(grace_seconds)
        if self._working is not None:
            working, self._working = self._working, None
            await working
        await self._at_rest.wait()  # whoever began it

    def stop_soon(self, grace_seconds: float | None = None) -> None:
        """Ask for a stop and go on; a second, shorter one wins."""
        if self._manager is not None:
            self._manager.stop(grace_seconds)

    async def run_until_idle(self) -> AsyncIterator[Event]:
        """Work until nothing is left to do, and give each event as it is committed."""
        seen = (await self.store.read("last_event"))[0]["seq"]
        working = self._begin(until_idle=True)
        subscription = self.bus.subscribe()
        working.add_done_callback(lambda _: subscription.poke())
        newest = until = 0.0
        try:
            while True:
                if working.done() and not until:  # what is committed by now is given
                    newest = (await self.store.read("newest_event"))[0]["seq"]
                    until = time.monotonic() + HELD_SECONDS_MAX
                async for event in self.events(after=seen):
                    seen = event.seq
                    yield event
                if until and (seen >= newest or time.monotonic() > until):
                    break
                await subscription.wait(self.settings.poll_seconds)
            await working
        finally:
            self.bus.unsubscribe(subscription)
            if not working.done():
                self.stop_soon()
                with suppress(OnceflowError):
                    await working

    def _begin(self, *, until_idle: bool) -> asyncio.Task[None]:
        """Set a manager to work; it can be stopped from now on."""
        if not self._open:
            raise OnceflowError("this flow is closed; use it inside `async with onceflow.open(…)`")
        if self._manager is not None:
            raise OnceflowError("this flow is working already; open another one to work twice")
        manager = self._manager = Manager(
            self.store, self.pipelines.values(), self.settings, self._new_worker(), self.bus,
            self._heart,
        )  # fmt: skip
        self.store.watch(self._told)
        self._at_rest.clear()
        working = asyncio.create_task(manager.run(until_idle=until_idle))
        working.add_done_callback(self._ended)
        return working

    def _ended(self, _working: asyncio.Task[None]) -> None:
        self.last_health = self.health()
        self._manager = None
        self._at_rest.set()

    def _told(self) -> None:
        if self._manager is not None:
            self._manager.wake()
        self.bus.poke()

    @property
    def worker_id(self) -> str | None:
        """The id of this process's worker; None while it is not working."""
        return None if self._manager is None else self._manager.worker.id

    def health(self) -> Health | None:
        """The state of this process's processors and queues; None while it is not working."""
        return None if self._manager is None else self._manager.health()

    async def trigger(
        self, pipeline: Pipeline | str, key: str, stage: str, *, wait_seconds: float = 30.0
    ) -> Triggered:
        """Have one item's stage done: performed now, skipped because it was done before, joined
        because somebody is at it, or not yet because there is nothing to work on."""
        chosen = self.pipeline(pipeline)
        return await trigger(self, self._manager, chosen, key, chosen.stage(stage), wait_seconds)

    # --- reading ---

    def pipeline(self, pipeline: Pipeline | str) -> Pipeline:
        """A pipeline of this flow, by name or as given."""
        if isinstance(pipeline, Pipeline):
            return pipeline
        try:
            return self.pipelines[pipeline]
        except KeyError:
            names = ", ".join(self.pipelines) or "none"
            raise PipelineError(
                f"there is no pipeline {pipeline!r} here; there is {names}"
            ) from None

    async def items(
        self,
        pipeline: Pipeline | str | None = None,
        *,
        state: str | None = None,
        stage: str | None = None,
        phase: str | None = None,
        run: str | None = None,
        error_code: str | None = None,
        after: int = 0,
        limit: int = 1000,
    ) -> list[Item]:
        """A page of items in the order of their ids; the next one begins `after` the last id."""
        chosen = Filter(
            pipeline=_name(pipeline),
            run=run,
            places=await self._places(_name(pipeline), state),
            stage=stage,
            phases=None if phase is None else [phase],
            error_code=error_code,
        )
        page = await self._page(chosen, after, limit)
        states = await known_states(self.store, *page)
        return [to_item(row, states) for row in page]

    async def item(self, pipeline: Pipeline | str | None, key: str | int) -> Item:
        """One item by its key (or another key of it), or by its id."""
        row = await self._row(pipeline, key)
        return to_item(row, await known_states(self.store, row))

    async def results(self, item: int) -> list[dict[str, Any]]:
        """Every result of an item, oldest first."""
        return [
            {**row, "body": decode(bytes(row["body"]))}
            for row in await self.store.read("results", item=item)
        ]

    async def result(self, item: int, stage: str) -> Json:
        """The newest result of an item's stage, None if there is none."""
        rows = await self.store.read("result", item=item, stage=stage)
        return decode(bytes(rows[0]["body"])) if rows else None

    async def partial(self, item: int) -> tuple[int, str] | None:
        """The text that an item's attempt has streamed so far, with its epoch."""
        rows = await self.store.read("partial", item=item)
        return (rows[0]["fence"], rows[0]["text"]) if rows else None

    async def counts(
        self, pipeline: Pipeline | str | None = None, *, run: str | None = None
    ) -> dict[str, int]:
        """How many items are in each state. They add up to the total."""
        states = await known_states(self.store)
        counts: dict[str, int] = {}
        for row in await self._counts(pipeline, run):
            state = states.get(row["pipeline"], {}).get(row["stage"], {}).get(row["phase"])
            name = state or f"{row['stage']}/{row['phase']}"
            counts[name] = counts.get(name, 0) + row["items"]
        return counts

    async def _counts(self, pipeline: Pipeline | str | None, run: str | None) -> list[Any]:
        if run is not None:
            return await self.store.read("counts_of_run", run=run)
        return await self.store.read("counts", pipeline=_name(pipeline))

    async def runs(
        self, pipeline: Pipeline | str | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[Run]:
        """A page of runs, the newest first."""
        rows = await self.store.read("runs", pipeline=_name(pipeline), before=before, most=limit)
        return [to_run(row) for row in rows]

    async def run(self, run: str) -> Run:
        rows = await self.store.read("run", id=run)
        if not rows:
            raise UnknownItem(f"there is no run {run!r} in {self.store.url}")
        return to_run(rows[0])

    async def events(
        self,
        *,
        after: int = 0,
        pipeline: Pipeline | str | None = None,
        item: int | None = None,
        run: str | None = None,
        kinds: Sequence[str] | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Event]:
        """The stored history after a `seq`, in the order of the commits; with `follow` for ever."""
        states = await known_states(self.store)
        subscription = self.bus.subscribe() if follow else None
        if follow:
            self.store.watch(self._told)
        wanted = None if kinds is None else f" {' '.join(kinds)} "
        looked = after == 0
        try:
            while True:
                page = await self.store.read(
                    "events", after=after, pipeline=_name(pipeline), item=item, run=run,
                    kinds=wanted, most=PAGE,
                )  # fmt: skip
                if any(row["pipeline"] not in states for row in page):
                    states = await known_states(self.store)
                for row in page:
                    after = row["seq"]
                    yield to_event(row, states)
                if page:
                    continue
                if not looked:
                    looked, after = True, await self._known_cursor(after)
                if subscription is None:
                    return
                await subscription.wait(self.settings.poll_seconds)
        finally:
            if subscription is not None:
                self.bus.unsubscribe(subscription)

    async def _known_cursor(self, after: int) -> int:
        """Where to read on: a cursor that this database has never given is ahead of its history."""
        # One item's events may be ahead of what is shown of all, and a number may come to nothing.
        newest: int = max(
            [(await self.store.read(name))[0]["seq"] for name in ("newest_event", "last_event")]
        )
        if after > newest:
            log.warning(
                "event %d is newer than any in %s, which ends at %d: its last history was lost "
                "(an older copy was put back?); reading goes on from there",
                after, self.store.url, newest,
            )  # fmt: skip
        return min(after, newest)

    async def live(self) -> AsyncIterator[Live]:
        """Text as handlers in this process stream it: first a `snapshot` of what each attempt under
        way has streamed so far, then the deltas, which go on from there."""
        subscription = self.bus.subscribe()
        begun = [] if self._manager is None else self._manager.streaming()
        try:
            for live in begun:
                yield live
            while True:
                for live in subscription.take():
                    yield live
                await subscription.wait(3600)
        finally:
            self.bus.unsubscribe(subscription)

    async def why(self, pipeline: Pipeline | str | None, key: str | int) -> str:
        """In one line: why an item does not move, and when it will."""
        row = await self._row(pipeline, key)
        mine = self.pipelines.get(row["pipeline"])
        stage = (
            next((one for one in mine.stages if one.name == row["stage"]), None) if mine else None
        )
        attempts = mine.attempts_of(stage) if mine and stage else None
        if mine and not mine.has(row["stage"]) and row["phase"] in OPEN:
            return (
                f"{row['stage']}-{row['phase']}: pipeline {mine.name!r} has no stage "
                f"{row['stage']!r} here; run the program that has it, put it back, or cancel it"
            )
        return await why(self.store, row, await known_states(self.store, row), attempts)

    async def audit(self, *, grace_seconds: float = 10.0) -> list[Violation]:
        """Check the invariants on the stored history; what is broken, and by which item."""
        return await audit(self.store, grace_seconds)

    # --- operating ---

    async def retry(
        self,
        pipeline: Pipeline | str | None = None,
        *,
        state: str | None = None,
        keys: Sequence[str | int] | None = None,
        run: str | None = None,
        error_code: str | None = None,
        from_stage: str = "",
        dry_run: bool = False,
        permanent: bool = True,
    ) -> int:
        """Open a new generation of settled items, from the stage where they failed or from an
        earlier one; what backs off is ready at once. Results of earlier stages are kept and used.
        `permanent=False` leaves those alone that failed for good."""
        acted = await self.act(
            "retry", pipeline, state=state, keys=keys, run=run, error_code=error_code,
            from_stage=from_stage, permanent=permanent, dry_run=dry_run,
        )  # fmt: skip
        return acted.fitting if dry_run else acted.changed

    async def cancel(
        self,
        pipeline: Pipeline | str | None = None,
        *,
        state: str | None = None,
        keys: Sequence[str | int] | None = None,
        run: str | None = None,
        why: str = "",
        dry_run: bool = False,
    ) -> int:
        """Take items out of the pipeline. A worker that has one loses its lease."""
        acted = await self.act(
            "cancel", pipeline, state=state, keys=keys, run=run, why=why, dry_run=dry_run
        )
        return acted.fitting if dry_run else acted.changed

    async def release(
        self,
        pipeline: Pipeline | str | None = None,
        *,
        keys: Sequence[str | int] | None = None,
        run: str | None = None,
        why: str = "",
        dry_run: bool = False,
    ) -> int:
        """Take leases away from whoever has them; it costs the items no attempt."""
        acted = await self.act("release", pipeline, keys=keys, run=run, why=why, dry_run=dry_run)
        return acted.fitting if dry_run else acted.changed

    async def pause(self, pipeline: Pipeline | str, stage: str, why: str = "") -> None:
        """Claim nothing of a stage, anywhere, until it is resumed."""
        await self.store.tune(_name(pipeline) or "", stage, paused=True, why=why)

    async def resume(self, pipeline: Pipeline | str, stage: str, why: str = "") -> None:
        await self.store.tune(_name(pipeline) or "", stage, paused=False, why=why)
        self._told()

    async def limit(self, pipeline: Pipeline | str, stage: str, limit: int | None) -> None:
        """Set a stage's global limit; None goes back to the one its program declares."""
        if limit is not None and limit < 1:
            raise PipelineError(f"stage {stage!r}: limit is {limit}; it must be at least 1")
        await self.store.tune(_name(pipeline) or "", stage, limit=limit or 0)
        self._told()

    async def prune(self, *, older_than_seconds: float) -> int:
        """Forget the history of items settled longer ago, and results replaced since."""
        now = (await self.store.read("now"))[0]["now"]
        before = now - int(older_than_seconds * 1000)
        pruned = 0
        while count := await self.store.prune(before):
            pruned += count
        return pruned

    async def act(
        self,
        command: Literal["retry", "cancel", "release"],
        pipeline: Pipeline | str | None = None,
        *,
        state: str | None = None,
        stage: str | None = None,
        keys: Sequence[str | int] | None = None,
        run: str | None = None,
        error_code: str | None = None,
        from_stage: str = "",
        why: str = "",
        permanent: bool = True,
        dry_run: bool = False,
    ) -> Acted:
        """An operator's command on everything a filter matches, page by page. Each item is guarded
        by the version that was seen: one that changed meanwhile is left alone."""
        chosen = Filter(
            pipeline=_name(pipeline),
            ids=None if keys is None else await self._ids(pipeline, keys),
            run=run,
            places=await self._places(_name(pipeline), state),
            stage=stage,
            phases=None if keys is not None or state is not None else MEANT[command],
            error_code=error_code,
        )
        if from_stage and (known := self.pipelines.get(chosen.pipeline or "")) is not None:
            known.stage(from_stage)  # refused if there is none
        matched = fitting = changed = for_good = after = 0
        while page := await self._page(chosen, after, PAGE):
            after = page[-1]["id"]
            matched += len(page)
            fits = [row for row in page if _fits(command, row, from_stage)]
            if command == "retry" and not from_stage:
                fits = [row for row in fits if self._has_stage(row, named=keys is not None)]
            if from_stage:
                fits = [row for row in fits if await self._was_at(row, from_stage)]
            if not permanent:
                fit = len(fits)
                fits = [row for row in fits if not await self._failed_for_good(row)]
                for_good += fit - len(fits)
            fitting += len(fits)
            if fits and not dry_run:
                targets = [
                    Target(row["id"], row["version"], self._lane(row, from_stage)) for row in fits
                ]
                changed += len(await self.store.act(command, targets, from_stage, why))
        if changed and command == "cancel":  # they may have been the last that kept a gate shut
            await self.store.sweep([] if run is None else [run])
        if changed:
            self._told()
        return Acted(matched, fitting, changed, for_good)

    def _has_stage(self, row: Row, *, named: bool) -> bool:
        """Whether the stage where an item ended is still in its pipeline, as far as that is known
        here; a PipelineError if somebody named the item."""
        pipeline = self.pipelines.get(row["pipeline"])
        there = pipeline is None or pipeline.has(row["stage"])
        if not there and named and pipeline is not None:
            names = ", ".join(stage.name for stage in pipeline.stages)
            raise PipelineError(
                f"{row['key']}: it ended at stage {row['stage']!r}, which pipeline "
                f"{pipeline.name!r} does not have here; retry it from another one (--from-stage): "
                f"{names}"
            )
        return there

    async def _was_at(self, row: Row, stage: str) -> bool:
        """Whether an item came as far as a stage: nothing can begin where it has never been, and
        what a gate added goes through no other stage than the gate's."""
        pipeline = self.pipelines.get(row["pipeline"])
        if pipeline is not None and pipeline.has(row["stage"]):
            return pipeline.leads(stage, row["stage"])
        return bool(
            stage == row["stage"] or await self.store.read("result", item=row["id"], stage=stage)
        )

    async def _failed_for_good(self, row: Row) -> bool:
        """Whether a handler said that it will never work, in the item's last event."""
        if row["phase"] != Phase.FAILED:
            return False
        last = await self.store.read("history", item=row["id"], after=row["version"] - 1, most=1)
        return bool(last and last[0]["data"] and json.loads(last[0]["data"]).get("permanent"))

    def _lane(self, row: Mapping[str, Any], stage: str) -> str:
        pipeline, name = self.pipelines.get(row["pipeline"]), stage or row["stage"]
        if pipeline is not None and pipeline.has(name):
            return pipeline.lane_of(pipeline.stage(name), row["key"])
        # Not known here. Whoever works on it puts what is in no lane into its own.
        return str(row["lane"]) if name == row["stage"] else ""

    async def _ids(self, pipeline: Pipeline | str | None, keys: Sequence[str | int]) -> list[int]:
        return sorted({(await self._row(pipeline, key))["id"] for key in keys})

    async def _page(self, chosen: Filter, after: int, limit: int) -> list[Any]:
        if chosen.ids is not None:
            ids = [item for item in chosen.ids if item > after][:limit]
            rows = [row for item in ids for row in await self.store.read("item", id=item)]
            return [row for row in rows if chosen.phases is None or row["phase"] in chosen.phases]
        parameters = {
            "after": after,
            "most": limit,
            "pipeline": chosen.pipeline,
            "stage": chosen.stage,
            "places": _spaced(f"{stage}/{phase}" for stage, phase in chosen.places)
            if chosen.places is not None
            else None,
            "phases": None if chosen.phases is None else _spaced(chosen.phases),
            "error_code": chosen.error_code,
        }
        if chosen.run is not None:
            return await self.store.read("items_of_run", run=chosen.run, **parameters)
        return await self.store.read("items", **parameters)

    async def _places(
        self, pipeline: str | None, state: str | None
    ) -> list[tuple[str, str]] | None:
        """The (stage, phase) pairs that a public state name stands for."""
        if state is None:
            return None
        states = await known_states(self.store)
        places = {
            (stage, phase)
            for name, stages in states.items()
            if pipeline in (None, name)
            for stage, phases in stages.items()
            for phase, known in phases.items()
            if known == state
        }
        if not places:
            names = sorted({s for t in states.values() for p in t.values() for s in p.values()})
            raise UnknownItem(f"there is no state {state!r}; there are {', '.join(names)}")
        return sorted(places)

    async def _row(self, pipeline: Pipeline | str | None, key: str | int) -> Any:
        name = _name(pipeline)
        rows: list[Any] = []
        if isinstance(key, int):
            rows = await self.store.read("item", id=key)
        elif clean(key) != key:
            pass  # no database has such a key
        elif name is None:
            rows = await self.store.read("items_by_key", key=key)
        else:
            known = self.pipelines.get(name)
            spelled = key
            if known is not None and not key.startswith("gate:"):
                with suppress(Permanent):
                    spelled = canonical_key(known, key)
            rows = await self.store.read("item_by_key", pipeline=name, key=spelled)
        if not rows:
            raise UnknownItem(f"there is no item {key!r} in {name or self.store.url}")
        if len(rows) > 1:
            names = ", ".join(row["pipeline"] for row in rows)
            raise UnknownItem(f"{key!r} is an item of several pipelines ({names}); say which")
        return rows[0]


def _check(run: Any, ceilings: Mapping[str, Any], max_cost: Any) -> None:
    """Refuse what no database could hold a run to."""
    if run is not None and not is_name(run):
        raise PipelineError(f"{run!r} cannot name a run; give a clean, non-empty text")
    for name, most in ceilings.items():
        if most is not None and (not isinstance(most, int) or most < 0):
            raise PipelineError(f"{name} is {most!r}; give a whole number from 0 on, or None")
    numeric = isinstance(max_cost, int | float) and 0 <= max_cost <= COST_MAX  # NaN is not
    if max_cost is not None and not numeric:
        raise PipelineError(f"max_cost is {max_cost!r}; give a number from 0 on, or None")


def _seed(pipeline: Pipeline, item: str | Seed) -> Seed:
    seed = item if isinstance(item, Seed) else Seed(item)
    key = canonical_key(pipeline, seed.key)
    return seed if key == seed.key else Seed(key, seed.data, seed.priority, seed.depth)


def _name(pipeline: Pipeline | str | None) -> str | None:
    return pipeline.name if isinstance(pipeline, Pipeline) else pipeline


def _fits(command: str, row: Row, from_stage: str) -> bool:
    """Whether an item is in a phase that the command is for."""
    phase = row["phase"]
    if command == "retry":
        backing_off = phase == Phase.WAITING and row["due_at"] is not None and not from_stage
        return phase in SETTLED or backing_off
    return phase in (OPEN if command == "cancel" else (Phase.ACTIVE,))


def _spaced(words: Iterable[str]) -> str:
    return f" {' '.join(words)} "
