"""What a worker that has nothing to do hears of: runs that are settled as they are, and what others
leave behind. Its own timers are minutes away."""

import asyncio
from typing import Any

import pytest

from onceflow import Flow, Pipeline, Stage, Transient, Work
from tests.engine.kit import Database, audited, ok, until, until_state, working

QUIET_SECONDS = 0.3  # after it the worker has no reason of its own to look


async def gate(work: Work) -> int:
    return len([item async for item in work.finished_items()])


def with_gate(*stages: Stage) -> Pipeline:
    return Pipeline("gated", *(stages or (Stage("one", ok),)), after_all=Stage("all", gate))


async def opened(flow: Flow, run: str) -> None:
    async def question() -> bool:
        return (await flow.run(run)).finished_at is not None

    await until(flow, question, 30)


async def test_a_run_of_what_is_done_already_is_settled_as_it_is(database: Database) -> None:
    """Also if somebody else adds it."""
    pipeline = with_gate()
    async with working(database.flow(pipeline)) as worker, database.flow(pipeline) as other:
        await opened(worker, (await worker.add(pipeline, ["a"])).run)
        for flow in (worker, other):
            await asyncio.sleep(QUIET_SECONDS)
            await opened(worker, (await flow.add(pipeline, ["a"])).run)
            await opened(worker, (await flow.add(pipeline, [])).run)
        await audited(worker)


async def test_a_run_that_is_sealed_when_all_is_done_is_settled(database: Database) -> None:
    pipeline = with_gate()
    async with working(database.flow(pipeline)) as flow:
        run = (await flow.add(pipeline, ["a"], seal=False)).run
        await until_state(flow, pipeline, "a", pipeline.done)
        await asyncio.sleep(QUIET_SECONDS)

        await flow.seal(pipeline, run)

        await opened(flow, run)
        await audited(flow)


async def test_what_is_done_again_for_a_new_run_is_found(database: Database) -> None:
    pipeline = with_gate(Stage("one", ok), Stage("spread", ok, spreads=True))
    async with working(database.flow(pipeline)) as worker, database.flow(pipeline) as other:
        await opened(worker, (await worker.add(pipeline, ["a"])).run)
        for flow in (worker, other):
            await asyncio.sleep(QUIET_SECONDS)
            await opened(worker, (await flow.add(pipeline, ["a"])).run)
        await audited(worker)


async def test_a_retry_is_taken_over_from_a_worker_that_leaves(database: Database) -> None:
    async def fails_once(work: Work) -> str:
        if work.attempt == 1:
            raise Transient("not yet")
        return "x"

    def table() -> Pipeline:
        return Pipeline("news", Stage("one", fails_once), backoff_seconds=1.0)

    pipeline = table()
    async with working(database.flow(pipeline)) as stays:
        async with working(database.flow(table())) as leaves:

            async def is_waiting() -> bool:
                return (await stays.items(pipeline))[0].phase == "waiting"

            await leaves.add(pipeline, ["a"])
            await until(stays, is_waiting)
        await until_state(stays, pipeline, "a", pipeline.done)
        await audited(stays)


class Panic(BaseException):
    pass


async def panics(work: Work) -> None:
    raise Panic("out of a library")


def panics_in_a_thread(work: Work) -> None:
    raise Panic("out of a library")


@pytest.mark.parametrize(
    ("handler", "options"),
    [(panics, {}), (panics_in_a_thread, {}), (panics_in_a_thread, {"cpu": True})],
    ids=["async", "thread", "process"],
)
async def test_a_panic_fails_the_attempt_that_it_ends(
    database: Database, handler: Any, options: dict[str, Any]
) -> None:
    pipeline = Pipeline("news", Stage("one", handler, **options), attempts=1)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        await flow.drain()

        [item] = await flow.items(pipeline)
        assert item.error is not None
        assert "Panic: out of a library" in item.error
        await audited(flow)
