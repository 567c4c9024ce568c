"""What simulations found, each as the smallest story that shows it."""

import asyncio
from pathlib import Path

import apsw

from onceflow import Flow, Lane, Pipeline, Settings, Stage, Work
from onceflow.core.item import Lease
from onceflow.store.sqlite import SqliteStore, create
from tests.sim.kit import alone


def test_a_stop_waits_out_its_grace_time_without_spinning_while_a_lane_is_shut() -> None:
    async def slow(work: Work) -> None:
        await asyncio.sleep(2)

    lane = Lane(lambda key: "one", limit=5, spacing_seconds=0.5)
    pipeline = Pipeline("slow", Stage("work", slow, lane=lane))

    async def body(flow: Flow) -> dict[str, int]:
        working = flow.start()
        await flow.add(pipeline, ["a", "b", "c"])
        await asyncio.sleep(0.1)
        flow.stop_soon(5)
        await working
        return await flow.counts(pipeline)

    assert alone(pipeline, body) == {"completed": 1, "work-ready": 2}


def test_an_item_that_was_taken_away_and_claimed_again_has_one_attempt_at_a_time_here() -> None:
    under_way: list[int] = []
    most = 0

    async def stubborn(work: Work) -> int:
        nonlocal most
        under_way.append(work.attempt)
        most = max(most, len(under_way))
        try:
            await asyncio.sleep(10)
        finally:
            under_way.pop()
        return 1

    pipeline = Pipeline("stubborn", Stage("work", stubborn))

    async def body(flow: Flow) -> list[str]:
        working = flow.start()
        await flow.add(pipeline, ["a"])
        for _ in range(3):
            await asyncio.sleep(1)
            assert await flow.release(pipeline) == 1
        await asyncio.sleep(20)
        flow.stop_soon()
        await working
        return [event.kind async for event in flow.events()]

    kinds = alone(pipeline, body)

    assert most == 1
    assert kinds == [
        "added", "claimed", "released", "claimed", "released", "claimed", "released", "claimed",
        "stage_finished", "run_finished",
    ]  # fmt: skip


def test_a_statement_is_not_prepared_again_for_every_new_value(tmp_path: Path) -> None:
    create(tmp_path / "flow.db")
    connection = SqliteStore(tmp_path / "flow.db")._connect()

    assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
    connection.close()


def test_a_short_queue_is_not_overrun_by_a_stage_with_a_limit() -> None:
    async def slow(work: Work) -> None:
        await asyncio.sleep(1)

    pipeline = Pipeline("short", Stage("work", slow, limit=4, processors=4))

    async def body(flow: Flow) -> list[str]:
        await flow.add(pipeline, ["a", "b", "c", "d"])
        await flow.drain()
        return [event.kind async for event in flow.events()]

    assert "released" not in alone(pipeline, body, Settings(queue_max=1))


def test_text_in_progress_is_not_stored_any_more_when_the_attempt_has_ended() -> None:
    async def tell(work: Work) -> str:
        work.emit("summary_partial", text="all of it")
        return "all of it"

    pipeline = Pipeline("quick", Stage("work", tell))

    async def body(flow: Flow) -> int:
        renewed = 0
        renew = flow.store.renew

        async def counted(lease: Lease, text: str | None = None) -> bool:
            nonlocal renewed
            renewed += 1
            return await renew(lease, text)

        flow.store.renew = counted  # type: ignore[method-assign]
        await flow.add(pipeline, ["a", "b", "c"])
        await flow.drain()
        return renewed

    assert alone(pipeline, body) == 0
