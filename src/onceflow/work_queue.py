"""Articles claimed, loaded and linked by a loop of your own, beside the engine's workers.

    with WorkQueueManager("onceflow.db") as queue:
        queue.initialize_seeds(["Graph theory"])
        while batch := queue.claim_work(batch_size=10):
            for article in batch:
                ...

Its methods are plain calls, and each is one transaction with the guards that workers have: whoever
lost an article to somebody else is told so (`False`) and changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from onceflow.core.errors import OnceflowError, Permanent, PipelineError, UnknownItem
from onceflow.core.item import Lease, Phase
from onceflow.core.pipeline import Pipeline, Stage
from onceflow.core.transition import Done, Failed, Outcome, Released, canonical_key, decide
from onceflow.engine.exchange import first_number
from onceflow.engine.flow import Flow, new_run_id, new_worker
from onceflow.engine.settings import Settings
from onceflow.store.base import Claim, Exchanged, Finish, Store, Target

T = TypeVar("T")
STALE_MAX = 10_000
LOOK_SECONDS = 0.1


class WorkQueueManager:
    """The work queue of `expand`, or of another pipeline with a stage that loads and one that
    spreads, for a program's own loop.

    A claim is kept by signs of life: each call is one for everything this manager holds. After
    `lease_seconds` of the pipeline (300) without any, others take its articles over.
    """

    def __init__(
        self,
        database: str | os.PathLike[str] | Store = "onceflow.db",
        pipeline: Pipeline | None = None,
        *,
        settings: Settings | None = None,
    ) -> None:
        if pipeline is None:
            from onceflow.pipelines.expand import Expand

            pipeline = Expand().pipeline()
        if pipeline.spreads is None or len(pipeline.stages) != 2:
            raise PipelineError(
                f"pipeline {pipeline.name!r} is not one of two stages of which the last spreads; "
                "a WorkQueueManager needs such a one, like expand"
            )
        self.pipeline = pipeline
        self._load: Stage = pipeline.first
        self._link: Stage = pipeline.last
        self._held: dict[str, Lease] = {}
        self._worker = new_worker()
        self._number = first_number(self._worker.id)
        self._turn = 0
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="onceflow-work-queue", daemon=True
        )
        self._thread.start()
        self._flow = Flow(database, [pipeline], settings or Settings())
        self._closed = False
        try:
            self._call(self._flow.__aenter__())
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> WorkQueueManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what is still held, without costing it an attempt, and end."""
        if self._closed:
            return
        try:
            self._call(self._leave())
        finally:
            self._end()

    # --- the transitions ---

    def initialize_seeds(
        self,
        seed_titles: Iterable[str],
        *,
        max_depth: int | None = None,
        max_articles: int | None = None,
    ) -> int:
        """Nothing -> `discovered`, at depth 0; how many were not known before."""
        added = self._call(
            self._flow.add(
                self.pipeline, list(seed_titles), run=new_run_id(), max_depth=max_depth,
                max_items=max_articles,
            )
        )  # fmt: skip
        return added.new

    def claim_work(
        self, batch_size: int = 10, timeout_seconds: float = 300.0, *, wait_seconds: float = 0.0
    ) -> list[dict[str, Any]]:
        """`discovered` -> `claimed`, by depth, then age: `title` and `expansion_depth` of each.

        First, claims without a sign of life for `timeout_seconds` are taken back. What this manager
        was still to link is left to whoever comes next. With `wait_seconds` an empty answer comes
        only after so long, or when nothing is left to come: articles may be backing off, or others
        may be about to find some.
        """
        end = time.monotonic() + wait_seconds
        while True:
            batch = self._call(self._claim(batch_size, timeout_seconds))
            if batch or time.monotonic() >= end or not self._call(self._more_may_come()):
                return batch
            time.sleep(LOOK_SECONDS)

    def update_heartbeat(self, article_title: str) -> bool:
        """A sign of life; False if somebody else has the article now."""
        return self._call(self._beat(self._key(article_title)))

    def advance_state(
        self, article_title: str, state: str, article: Mapping[str, Any] | None = None
    ) -> bool:
        """`claimed` -> `loaded`, `loaded` -> `processed`; False if somebody else has the article.

        With `article` (what was loaded: see docs/expand.md) any worker follows the `links` in it;
        without, this manager still holds it, for `discover_links`.
        """
        if state == self._link.ready:
            body = None if article is None else dict(article)
            outcome: Outcome = Done(body)
            return self._finish(article_title, self._load, outcome, hold=article is None)
        if state == self.pipeline.done:
            return self._call(self._discover(self._key(article_title), []))
        if state == self._load.ready:
            return self._finish(article_title, self._load, Released("given back"))
        if state == self.pipeline.failed:
            return self.mark_failed(article_title, "given up", permanent=True)
        states = (self._load.ready, self._link.ready, self.pipeline.done, self.pipeline.failed)
        raise OnceflowError(f"{state!r} is no state to advance to; there are {', '.join(states)}")

    def mark_failed(
        self, article_title: str, error: object, *, permanent: bool = False
    ) -> bool:  # fmt: skip
        """`claimed` -> `discovered` (after a pause), or `failed` when its attempts are used up or
        it is `permanent`; False if somebody else has the article."""
        failed = Failed(str(error), "failed", permanent=permanent)
        key = self._key(article_title)
        stage = self._link if self._stage_of(key) == self._link.name else self._load
        return self._finish(article_title, stage, failed)

    def discover_links(
        self, source_title: str, links: Iterable[str], depth: int | None = None
    ) -> bool:
        """`loaded` -> `processed`, and a new article for each link that is not known: one deeper
        than the source is, which the database knows best (`depth` is taken for the example's
        sake). False if somebody else has done it or is at it."""
        return self._call(self._discover(self._key(source_title), list(links)))

    def reclaim_stale(self, timeout_seconds: float = 300.0) -> int:
        """`claimed` without a sign of life for so long -> `discovered`; how many."""
        return self._call(self._reclaim(timeout_seconds))

    # --- the state queries ---

    def state_distribution(self) -> list[dict[str, Any]]:
        """How many articles are in each state, and how deep they are on average."""
        counts, depths = self._call(self._counts())
        rows = [
            {"state": state, "count": count, "avg_depth": depths[state] / count}
            for state, count in counts.items()
        ]
        return sorted(rows, key=lambda row: (-row["count"], row["state"]))

    def queue_size(self) -> int:
        """How many articles are `discovered`."""
        return self._call(self._counts())[0].get(self._load.ready, 0)

    def progress(self) -> dict[str, Any]:
        """How many articles are loaded, of how many."""
        counts, _ = self._call(self._counts())
        total = sum(counts.values())
        loaded = counts.get(self._link.ready, 0) + counts.get(self.pipeline.done, 0)
        percent = 100.0 * loaded / total if total else 0.0
        return {"loaded_count": loaded, "total": total, "percent_complete": percent}

    def stale_claims(self, timeout_seconds: float = 300.0) -> list[dict[str, Any]]:
        """The claims without a sign of life for so long, the oldest first."""
        return [
            {"title": row["key"], "claimed_at": row["claimed_at"], "expansion_depth": row["depth"]}
            for row in self._call(self._silent(timeout_seconds))
        ]

    # --- how ---

    async def _claim(self, count: int, timeout_seconds: float) -> list[dict[str, Any]]:
        await self._give_back(self._link)
        await self._reclaim(timeout_seconds)
        self._turn += 1
        wish = Claim(self.pipeline.name, self._load.name, "", count, self._turn)
        answer = await self._exchange([], [wish])
        leases = await self._one_alone(answer.claimed[0].leases)
        self._held.update({lease.key: lease for lease in leases})
        return [
            {
                "title": lease.key,
                "expansion_depth": lease.depth,
                "retry_count": lease.attempt - 1,
                "claimed_at": lease.claimed_at,
            }
            for lease in leases
        ]

    async def _one_alone(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Of articles beside which too many loops died, one is given out at a time, and nothing
        else with it."""
        alone = next((lease for lease in leases if lease.alone), None)
        if alone is None:
            return leases
        others = [lease for lease in leases if lease is not alone]
        why = Released(f"{alone.key} is tried alone")
        finishes = [Finish(one, decide(self.pipeline, one, why)) for one in others]
        await self._exchange(finishes, [], [alone])
        return [alone]

    async def _exchange(
        self, finishes: list[Finish], claims: list[Claim], begins: Sequence[Lease] = ()
    ) -> Exchanged:
        self._number += 1
        return await self._flow.store.exchange(
            self._worker.id, self._number, finishes, claims, begins
        )

    async def _more_may_come(self) -> bool:
        counts = await self._flow.store.read("counts", pipeline=self.pipeline.name)
        return any(row["phase"] in (Phase.WAITING, Phase.READY, Phase.ACTIVE) for row in counts)

    async def _beat(self, key: str) -> bool:
        """Everything that is held is held on to: a batch is worked on one by one."""
        store = self._flow.store
        await store.beat(self._worker)
        for held, lease in list(self._held.items()):
            if not await store.renew(lease):
                self._held.pop(held, None)
        return key in self._held

    def _finish(
        self, title: str, stage: Stage, outcome: Outcome, *, hold: bool = False
    ) -> bool:  # fmt: skip
        key = self._key(title)
        lease = self._held.get(key)
        if lease is None or lease.stage != stage.name:
            return False
        return self._call(self._commit(key, lease, outcome, hold=hold))

    async def _commit(self, key: str, lease: Lease, outcome: Outcome, *, hold: bool) -> bool:
        store = self._flow.store
        await store.beat(self._worker)
        finish = Finish(lease, decide(self.pipeline, lease, outcome), claim_next=hold)
        answer = await self._exchange([finish], [])
        self._held.pop(key, None)
        if answer.continued:
            self._held[key] = answer.continued[0]
        if answer.kept[0]:
            await store.sweep([lease.run])
        return bool(answer.kept[0])

    async def _discover(self, key: str, links: list[str]) -> bool:
        lease = self._held.get(key)
        if lease is None or lease.stage != self._link.name:
            lease = await self._named(key)
        if lease is None:
            return False
        children = [one for link in links if (one := self._possible(link)) is not None]
        result = {"links": len(children), "followed": len(children), "depth": lease.depth}
        return await self._commit(key, lease, Done(result, children=children), hold=False)

    async def _named(self, key: str) -> Lease | None:
        """The lease to link an article that is loaded, if nobody else has it."""
        try:
            item = await self._flow.item(self.pipeline, key)
        except UnknownItem:
            return None
        wish = Claim(self.pipeline.name, self._link.name, self._load.name, 1, item=item.id)
        await self._flow.store.beat(self._worker)
        answer = await self._exchange([], [wish])
        leases = answer.claimed[0].leases
        return leases[0] if leases else None

    async def _reclaim(self, timeout_seconds: float) -> int:
        store = self._flow.store
        await store.beat(self._worker)
        reclaimed = (await store.sweep()).reclaimed
        if timeout_seconds >= self.pipeline.lease_seconds:
            return reclaimed
        targets: list[Target] = []
        for row in await self._silent(timeout_seconds):
            [item] = await store.read("item", id=row["id"])
            if item["phase"] == Phase.ACTIVE and item["worker"] == row["worker"]:
                targets.append(Target(item["id"], item["version"]))
        why = f"no sign of life for {timeout_seconds:g} s"
        return reclaimed + len(await store.act("release", targets, why=why) if targets else ())

    async def _silent(self, timeout_seconds: float) -> list[Any]:
        """Claims whose holders gave no sign of life for so long."""
        read = self._flow.store.read
        cutoff = (await read("now"))[0]["now"] - int(timeout_seconds * 1000)
        beats = {row["id"]: row["beat_at"] for row in await read("workers")}
        rows = await read(
            "claims", pipeline=self.pipeline.name, stage=self._load.name, before=cutoff,
            most=STALE_MAX,
        )  # fmt: skip
        return [row for row in rows if beats.get(row["worker"], 0) < cutoff]

    async def _counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Articles by state, and the sum of their depths."""
        counts: dict[str, int] = {}
        depths: dict[str, int] = {}
        rows = await self._flow.store.read("counts_by_depth", pipeline=self.pipeline.name)
        for row in rows:
            state = self.pipeline.state(row["stage"], row["phase"])
            counts[state] = counts.get(state, 0) + row["items"]
            depths[state] = depths.get(state, 0) + row["items"] * row["depth"]
        return counts, depths

    async def _give_back(self, *stages: Stage) -> None:
        names = [stage.name for stage in stages]
        leases = {key: one for key, one in self._held.items() if one.stage in names}
        if leases:
            finishes = [
                Finish(lease, decide(self.pipeline, lease, Released("not finished")))
                for lease in leases.values()
            ]
            await self._exchange(finishes, [])
        for key in leases:
            self._held.pop(key, None)

    async def _leave(self) -> None:
        try:
            await self._give_back(self._load, self._link)
            await self._flow.store.leave(self._worker.id)
        finally:
            await self._flow.__aexit__(None, None, None)

    def _stage_of(self, key: str) -> str | None:
        return self._held[key].stage if key in self._held else None

    def _possible(self, link: str) -> str | None:
        """Its key; None for what can be none: an odd link keeps no article from the others."""
        with suppress(Permanent):
            return self._key(link)
        return None

    def _key(self, title: str) -> str:
        return canonical_key(self.pipeline, title)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise OnceflowError("this WorkQueueManager is closed; make another one")
        with self._lock:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
