"""Where a flow meets its users' world: other loops, operators' limits, odd exceptions, its end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from onceflow import Flow, OnceflowError, Pipeline, Settings, Stage, Work
from onceflow.core.item import Added
from tests.engine.kit import (
    Database,
    audited,
    one_stage,
    until,
    until_state,
    working,
)

NO_SCAN = Settings(
    poll_seconds=0.05, scan_seconds=3600, cleanup_seconds=3600, health_seconds=3600,
    durability="normal", grace_seconds=5,
)  # fmt: skip
"""Only wake-ups make anything happen: what waits for a timer is not done within a test."""


async def raises(work: Work) -> None:
    raise GeneratorExit("on the loop")


async def awaits(work: Work) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(GeneratorExit("awaited"))
    await future


def raises_in_a_thread(work: Work) -> None:
    raise GeneratorExit("in a thread")


@pytest.mark.parametrize("handler", [raises, awaits, raises_in_a_thread])
async def test_a_handler_that_raises_generator_exit_fails_like_with_any_other(
    database: Database, handler: Any
) -> None:
    pipeline = Pipeline("odd", Stage("work", handler), attempts=1)
    async with working(database.flow(pipeline, settings=NO_SCAN)) as flow:
        await flow.add(pipeline, ["a"])
        item = await until_state(flow, pipeline, "a", "failed")
        assert item.error is not None
        assert item.error.startswith("GeneratorExit")
        await flow.stop()
        await audited(flow)


WAYS_TO_WORK: list[Callable[[Flow], Coroutine[Any, Any, None]]] = [Flow.drain, Flow.work]


@pytest.mark.parametrize("way", WAYS_TO_WORK)
async def test_a_closed_flow_refuses_to_work_instead_of_waiting_for_ever(
    database: Database, way: Callable[[Flow], Coroutine[Any, Any, None]]
) -> None:
    flow = database.flow(one_stage())
    async with flow:
        pass
    async with asyncio.timeout(30):
        with pytest.raises(OnceflowError, match="closed"):
            await way(flow)


async def test_a_def_handler_may_add_in_a_loop_of_its_own(database: Database) -> None:
    answers: list[Added] = []

    def parent(work: Work) -> str:
        if work.key == "parent":
            answers.append(asyncio.run(flow.add("solo", ["child", "parent"])))
        return "done"

    pipeline = one_stage(parent, attempts=1)
    async with working(database.flow(pipeline, settings=NO_SCAN)) as flow:
        await flow.add(pipeline, ["parent"])
        await until_state(flow, pipeline, "parent", "completed")
        await until_state(flow, pipeline, "child", "completed")
        assert [(added.new, added.known) for added in answers] == [(1, 1)]
        await flow.stop()
        await audited(flow)


async def test_an_operators_limit_on_a_stage_without_one_stops_nothing(database: Database) -> None:
    """Each place that is freed wakes the stage: nobody waits for a timer."""
    now = most = 0

    async def counted(work: Work) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    pipeline = one_stage(counted)
    async with database.flow(pipeline, settings=NO_SCAN) as flow:
        await flow.limit(pipeline, "work", 2)
        flow.start()
        await flow.add(pipeline, [f"k{at}" for at in range(30)])

        async def done() -> bool:
            return await flow.counts(pipeline) == {"completed": 30}

        await until(flow, done, seconds_max=30)
        assert most == 2
        await flow.stop()
        await audited(flow)


@pytest.mark.parametrize("command", ["release", "cancel"])
async def test_a_handler_whose_lease_an_operator_took_ends_before_others_begin_in_its_place(
    database: Database, command: str
) -> None:
    now = most = 0
    began = asyncio.Event()

    async def hang(work: Work) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 6:
            began.set()
        try:
            await asyncio.Event().wait()
        finally:
            now -= 1

    pipeline = one_stage(hang, limit=6)
    async with (
        database.flow(pipeline, settings=NO_SCAN) as flow,
        database.flow(pipeline, settings=NO_SCAN) as operator,
    ):
        flow.start()
        await flow.add(pipeline, [f"k{at:02}" for at in range(12)])
        await began.wait()
        began.clear()
        active = [item.key for item in await operator.items(pipeline, phase="active")]
        assert await getattr(operator, command)(pipeline, keys=active) == 6
        async with asyncio.timeout(30):
            await began.wait()
        assert most == 6, "the limit held for handlers, too"
        await flow.stop(0)
        await audited(flow)
