"""An attempt begins when its claim is committed; nothing of it counts before that is durable."""

import asyncio
from typing import Any

import pytest

from onceflow import Flow, Pipeline, StoreUnavailable, Work
from onceflow.core.item import Added
from onceflow.store.base import Accepted, Add, Claim, Early
from tests.engine.kit import (
    Database,
    audited,
    kinds,
    one_stage,
    only,
    only_adds_claim,
    until_state,
    working,
)


class Disk:
    """What the next add of a flow waits for after its attempts have begun."""

    def __init__(self, flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = flow.store.add
        self._flow = flow
        self._patch = monkeypatch
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.error: Exception | None = None
        monkeypatch.setattr(flow.store, "add", self._add)

    async def add(self, pipeline: Pipeline) -> asyncio.Task[Added]:
        """Add `a`, up to where its attempt has begun and the disk is waited for."""
        async with only_adds_claim(self._flow):
            adding = asyncio.create_task(self._flow.add(pipeline, ["a"]))
            await self.asked.wait()
        return adding

    async def _add(self, add: Add, worker: str, claims: list[Claim], early: Early) -> Accepted:
        self._patch.setattr(self._flow.store, "add", self._real)
        accepted = await self._real(add, worker, claims)
        early(accepted)
        self.asked.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return accepted


async def test_an_attempt_begins_before_its_claim_is_durable_but_is_not_committed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []

    async def handler(work: Work) -> dict[str, Any]:
        began.append(work.key)
        return {}

    pipeline = one_stage(handler)
    async with working(database.flow(pipeline)) as flow:
        disk = Disk(flow, monkeypatch)
        adding = await disk.add(pipeline)
        await flow.add(pipeline, ["b"])
        await until_state(flow, pipeline, "b", "completed")

        assert "a" in began
        assert not adding.done()
        assert await kinds(flow, (await flow.item(pipeline, "a")).id) == ["added", "claimed"]

        disk.go.set()
        assert (await adding).new == 1
        await until_state(flow, pipeline, "a", "completed")
        await flow.stop()
        await audited(flow)
    assert began == ["a", "b"]


async def test_a_stop_waits_for_what_has_begun_to_be_durable(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = one_stage()
    async with working(database.flow(pipeline)) as flow:
        disk = Disk(flow, monkeypatch)
        adding = await disk.add(pipeline)
        stopping = asyncio.create_task(flow.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        disk.go.set()
        await asyncio.gather(adding, stopping)
        item = await only(flow, pipeline)
        assert await kinds(flow, item.id) == ["added", "claimed", "stage_finished"]
        await audited(flow)


async def test_an_attempt_that_was_given_back_before_its_claim_was_confirmed_is_not_made_twice(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began under that lease. If the lease is there after all, it is given back then."""
    fences: list[int] = []
    begun = asyncio.Event()

    async def handler(work: Work) -> None:
        assert work._lease is not None
        fences.append(work._lease.fence)
        begun.set()
        if work._lease.fence == 1:
            await asyncio.Event().wait()

    pipeline = one_stage(handler)
    async with working(database.flow(pipeline)) as flow:
        disk = Disk(flow, monkeypatch)
        disk.error = StoreUnavailable("the disk did not confirm the last write")
        adding = await disk.add(pipeline)
        await begun.wait()
        assert flow._manager is not None
        flow._manager._give_back_working("no heartbeat could be written")
        disk.go.set()
        with pytest.raises(StoreUnavailable, match="did not confirm"):
            await adding
        item = await until_state(flow, pipeline, "a", "completed")
        await flow.stop()
        assert fences == [1, 2]
        assert item.attempt == 1
        assert await kinds(flow, item.id) == [
            "added", "claimed", "released", "claimed", "stage_finished",
        ]  # fmt: skip
        await audited(flow)


@pytest.mark.parametrize("moment", ["begun", "over", "queued"])
async def test_an_attempt_whose_claim_is_not_confirmed_counts_and_is_made_again(
    database: Database, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It did happen, so that the next one is the second; the first one's outcome is dropped."""
    attempts: list[int] = []
    begun, cancelled, hold = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(work: Work) -> dict[str, Any]:
        if work.key == "busy":
            await hold.wait()
        elif work.key == "a":
            attempts.append(work.attempt)
            begun.set()
            if moment == "begun" and work.attempt == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
        return {"attempt": work.attempt}

    pipeline = one_stage(handler, processors=1)
    async with working(database.flow(pipeline)) as flow:
        if moment == "queued":
            await flow.add(pipeline, ["busy"])
        disk = Disk(flow, monkeypatch)
        disk.error = StoreUnavailable("the disk did not confirm the last write")
        adding = await disk.add(pipeline)
        if moment != "queued":
            await begun.wait()
        disk.go.set()
        with pytest.raises(StoreUnavailable, match="did not confirm"):
            await adding
        if moment == "begun":
            await cancelled.wait()
        hold.set()
        item = await until_state(flow, pipeline, "a", "completed")
        await flow.stop()
        assert attempts[-1] == item.attempt
        assert len(attempts) == len(set(attempts)), "one attempt was made twice"
        if moment != "queued":
            assert attempts == [1, 2]
            assert "retried" in await kinds(flow, item.id)
        await audited(flow)


async def test_a_lease_that_is_gone_after_the_next_write_is_not_adopted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the add was lost, and what is read then may still be forgotten."""
    began: list[str] = []

    async def handler(work: Work) -> dict[str, Any]:
        began.append(work.key)
        return {}

    pipeline = one_stage(handler)
    async with working(database.flow(pipeline)) as flow, database.flow(pipeline) as other:
        await flow.add(pipeline, ["before"])
        await until_state(flow, pipeline, "before", "completed")
        add, renew = flow.store.add, flow.store.renew
        asked = asyncio.Event()

        async def lost(request: Add, worker: str, claims: list[Claim], early: Early) -> Any:
            monkeypatch.setattr(flow.store, "add", add)
            await add(request, worker, claims)
            raise StoreUnavailable("the reply was lost")

        async def too_late(*args: Any, **named: Any) -> bool:
            await other.cancel(pipeline, keys=["a"])
            asked.set()
            return await renew(*args, **named)

        monkeypatch.setattr(flow.store, "add", lost)
        monkeypatch.setattr(flow.store, "renew", too_late)
        async with only_adds_claim(flow):
            with pytest.raises(StoreUnavailable):
                await flow.add(pipeline, ["a"])
        async with asyncio.timeout(30):
            await asked.wait()
        await flow.add(pipeline, ["after"])
        await until_state(flow, pipeline, "after", "completed")
        await flow.stop()
        assert began == ["before", "after"]
        await audited(flow)
