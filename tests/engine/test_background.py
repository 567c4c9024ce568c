"""The background system as the architecture papers have it: the queue's four refusals, the
processors' three states, stuck jobs, the third failure, priority, throttle, and two schedulers on
one database. Every behaviour on both stores; the exact intervals are in `test_timers.py`."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from onceflow import Done, Flow, Pipeline, Settings, Stage, Transient, Work
from onceflow.core.transition import decide
from onceflow.store.base import Claim, Finish, Worker
from onceflow.testing.clock import FakeClock
from tests.engine.kit import (
    NUMBERS,
    QUICK,
    Database,
    audited,
    claim_as,
    kinds,
    ok,
    only,
    until,
    until_state,
    working,
)

STAGES = ("website-analysis", "prompt-forming", "model-analysis")


def jobs(handler: Any = ok, **rules: Any) -> Pipeline:
    """The three stages of a website's analysis."""
    of_stage = {name: rules.pop(name) for name in list(rules) if name in Stage.__dataclass_fields__}
    rules.setdefault("backoff_seconds", 0.0)
    return Pipeline("jobs", *(Stage(name, handler, **of_stage) for name in STAGES), **rules)


class Held:
    """A handler that says when it began and goes on when it is let go."""

    def __init__(self) -> None:
        self.began: list[tuple[str, str, int]] = []
        self.go = asyncio.Event()

    async def __call__(self, work: Work) -> str:
        self.began.append((work.key, work.stage, work.attempt))
        await self.go.wait()
        return work.key


def refused(flow: Flow) -> dict[str, int]:
    health = flow.health()
    assert health is not None
    return health.refused


async def seen(flow: Flow, check: Any) -> None:
    async def question() -> bool:
        return bool(check())

    await until(flow, question)


async def moved_to(flow: Flow, pipeline: Pipeline, key: str, stage: str) -> None:
    """Bring an item to the beginning of a stage, as a worker that the test plays."""
    worker = Worker(f"puppet-{key}", "elsewhere.test", 4242)
    await flow.store.beat(worker)
    item = (await flow.item(pipeline, key)).id
    for at, name in enumerate(STAGES[: STAGES.index(stage)]):
        claim = Claim(pipeline.name, name, STAGES[at - 1] if at else "", 1, item=item)
        [lease] = (
            (await flow.store.exchange(worker.id, next(NUMBERS), [], [claim])).claimed[0].leases
        )
        change = decide(pipeline, lease, Done(None))
        await flow.store.exchange(worker.id, next(NUMBERS), [Finish(lease, change)], [])
    await flow.store.leave(worker.id)


# --- JobQueue: the four refusals ---


async def test_a_job_that_is_being_processed_here_is_refused_and_its_new_lease_takes_over(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody told this process that the lease was taken away: it finds out by claiming it again."""
    held = Held()
    pipeline = jobs(held)
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["a"])
        await seen(flow, lambda: held.began)
        assert flow._manager is not None
        monkeypatch.setattr(flow._manager._exchange, "look_soon", lambda now: None)
        await flow.release(pipeline, keys=["a"])
        await seen(flow, lambda: refused(flow) == {"being processed": 1})
        held.go.set()
        await until_state(flow, pipeline, "a", "completed")
        await flow.stop()
        assert (await kinds(flow)).count("stage_finished") == 3
        await audited(flow)


async def test_a_job_that_is_queued_already_is_refused(database: Database) -> None:
    held = Held()
    pipeline = jobs(held, processors=1, prefetch=10)
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["first", "second"])
        await seen(flow, lambda: held.began)
        await flow.release(pipeline, keys=["second"])
        await seen(flow, lambda: refused(flow) == {"already queued": 1})
        held.go.set()
        await until_state(flow, pipeline, "second", "completed")
        await flow.stop()
        assert {key for key, _, attempt in held.began if attempt != 1} == set()
        await audited(flow)


async def test_a_job_that_is_queued_in_another_phase_is_refused(database: Database) -> None:
    held = Held()
    pipeline = jobs(held, processors=1, prefetch=10)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["first", "second"])
        for key in ("first", "second"):
            await moved_to(flow, pipeline, key, "prompt-forming")
        flow.start()
        await seen(flow, lambda: held.began)
        await flow.cancel(pipeline, keys=["second"])
        await flow.retry(pipeline, keys=["second"], from_stage="website-analysis")
        await seen(flow, lambda: refused(flow) == {"queued in another stage": 1})
        held.go.set()
        await until_state(flow, pipeline, "second", "completed")
        await flow.stop()
        assert [stage for key, stage, _ in held.began if key == "second"] == list(STAGES)
        await audited(flow)


async def test_a_full_queue_refuses_and_the_job_is_given_back_without_costing_a_try(
    database: Database,
) -> None:
    held = Held()
    pipeline = jobs(held, processors=1, prefetch=10)
    settings = Settings(poll_seconds=0.05, queue_max=1, durability="normal")
    async with working(database.flow(pipeline, settings=settings)) as flow:
        await flow.add(pipeline, ["busy", "queued", "third"])
        await seen(flow, lambda: flow.health().queues["jobs/website-analysis"] == 1)  # type: ignore[union-attr]
        third = (await flow.item(pipeline, "third")).id
        claim = Claim("jobs", "website-analysis", "", 1, item=third)
        assert flow.worker_id is not None
        await flow.store.exchange(flow.worker_id, next(NUMBERS), [], [claim])  # its answer is lost
        assert flow._manager is not None
        flow._manager._care.check_at = float("-inf")
        flow._manager.wake()
        await seen(flow, lambda: refused(flow) == {"queue full": 1})

        async def given_back() -> bool:
            item = await flow.item(pipeline, "third")
            return (item.phase, item.attempt) == ("ready", 0)

        await until(flow, given_back)
        held.go.set()
        await until_state(flow, pipeline, "third", "completed")
        await flow.stop()
        await audited(flow)


# --- JobScheduler: lock only what is still there; stuck jobs ---


async def test_a_job_is_locked_only_if_its_status_and_step_are_unchanged(
    database: Database,
) -> None:
    pipeline = jobs()
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        item = (await only(flow, pipeline)).id

        async def lock(stage: str, worker: str) -> int:
            await flow.store.beat(Worker(worker, "elsewhere.test", 1))
            claim = Claim("jobs", stage, "", 1, item=item)
            return len(
                (await flow.store.exchange(worker, next(NUMBERS), [], [claim])).claimed[0].leases
            )

        assert await lock("prompt-forming", "one") == 0, "it is at another step"
        assert await lock("website-analysis", "one") == 1
        assert await lock("website-analysis", "two") == 0, "it is in progress"
        assert (await only(flow, pipeline)).phase == "active"


async def test_a_job_stuck_for_five_minutes_is_released_with_one_more_try_counted(
    database: Database, clock: FakeClock
) -> None:
    pipeline = jobs()
    async with database.flow(pipeline, clock=clock) as flow:
        await flow.add(pipeline, ["a"])
        await claim_as(flow.store, pipeline)
        clock.advance(seconds=299)
        assert (await flow.store.sweep()).reclaimed == 0
        clock.advance(seconds=2)
        assert (await flow.store.sweep()).reclaimed == 1
        item = await only(flow, pipeline)
        assert (item.phase, item.attempt) == ("ready", 1)
        await flow.drain()
        claims = [e.attempt async for e in flow.events(kinds=["claimed"])]
        assert claims == [1, 2, 1, 1], "the second try of the first phase, then the other phases"
        assert await flow.counts() == {"completed": 1}
        await audited(flow)


async def test_the_third_failure_is_the_last_and_the_pauses_before_it_double(
    database: Database, clock: FakeClock
) -> None:
    async def away(work: Work) -> None:
        raise Transient("the site answered 503")

    pipeline = jobs(away, backoff_seconds=30.0)
    async with working(database.flow(pipeline, clock=clock)) as flow:
        await flow.add(pipeline, ["a"])
        pauses: list[int] = []
        for attempt in (1, 2):

            async def backs_off(attempt: int = attempt) -> Any:
                item = await only(flow, pipeline)
                return item if (item.phase, item.attempt) == ("waiting", attempt) else None

            item = await until(flow, backs_off)
            pauses.append(item.due_at - clock())
            clock.advance(ms=pauses[-1] - 1)
            assert (await flow.store.sweep()).promoted == 0
            clock.advance(ms=1)
            assert (await flow.store.sweep()).promoted == 1
            flow._told()
        failed = await until_state(flow, pipeline, "a", "failed")
        await flow.stop()
        assert (failed.attempt, failed.error) == (3, "the site answered 503")
        assert 15_000 < pauses[0] <= 30_000 < pauses[1] <= 60_000, "jitter takes half at the most"
        assert (await kinds(flow)).count("claimed") == 3
        await audited(flow)


# --- JobCoordinator: priority and throttle ---


async def test_website_analysis_goes_before_prompt_forming_before_model_analysis(
    database: Database,
) -> None:
    held = Held()
    pipeline = jobs(held)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["third", "second", "first"])
        await moved_to(flow, pipeline, "third", "model-analysis")
        await moved_to(flow, pipeline, "second", "prompt-forming")
        flow.start()
        await seen(flow, lambda: len(held.began) == 3)
        assert [stage for _, stage, _ in held.began] == list(STAGES)
        held.go.set()
        await until_state(flow, pipeline, "first", "completed")


async def test_a_cycle_assigns_three_jobs_of_each_phase_at_the_most(database: Database) -> None:
    held = Held()
    pipeline = jobs(held, assign_max=3)
    settings = Settings(cycle_seconds=60, poll_seconds=0.05, durability="normal")
    async with database.flow(pipeline, settings=settings) as flow:
        keys = [f"k{at}" for at in range(20)]
        await flow.add(pipeline, keys)
        for key in keys[:10]:
            await moved_to(flow, pipeline, key, "prompt-forming")
        flow.start()
        await seen(flow, lambda: len(held.began) == 6)
        health = flow.health()
        assert health is not None
        assert health.queues == {
            "jobs/website-analysis": 7, "jobs/prompt-forming": 7, "jobs/model-analysis": 0
        }  # fmt: skip
        assert Counter(stage for _, stage, _ in held.began) == {
            "website-analysis": 3,
            "prompt-forming": 3,
        }
        await flow.stop(0)


# --- ProcessorPool: idle, busy, error ---


async def test_a_hanging_processor_is_in_error_its_job_finished_by_another_and_it_comes_back(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "onceflow")

    async def hang_once(work: Work) -> str:
        if work.attempt == 1 and work.stage == "website-analysis":
            await asyncio.Event().wait()
        return work.key

    pipeline = jobs(hang_once, processors=2, deadline_seconds=0.5)
    settings = Settings(poll_seconds=0.05, health_seconds=3600, durability="normal")
    async with working(database.flow(pipeline, settings=settings)) as flow:
        await flow.add(pipeline, ["a"])
        item = await until_state(flow, pipeline, "a", "completed")

        def first_pool() -> list[str]:
            health = flow.health()
            assert health is not None
            return [
                f"{one.get('name', one.get('count'))} {one['state']}"
                for one in health.processors
                if one["stage"] == "website-analysis"
            ]

        assert first_pool() == ["website-analysis-processor-1 error", "1 idle"]
        [retried] = [e async for e in flow.events(item=item.id, kinds=["retried"])]
        assert (retried.stage, retried.data["code"]) == ("website-analysis", "deadline")

        assert flow._manager is not None
        flow._manager._care.check_at = float("-inf")
        flow._manager.wake()
        await seen(flow, lambda: first_pool() == ["2 idle"])
        await flow.stop()
        await audited(flow)

    states = [r.getMessage() for r in caplog.records if "website-analysis-processor" in r.message]
    assert states == [
        "website-analysis-processor-1 is busy",
        "website-analysis-processor-1 is error",
        "website-analysis-processor-2 is busy",
        "website-analysis-processor-2 is idle",
        "website-analysis-processor-1 is idle",
    ]


# --- two schedulers, one database ---


@pytest.fixture
async def third(postgres_url: str) -> AsyncIterator[Any]:
    """A third scheduler, which locks a few jobs and does not commit until the test says so."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    connection.terminate()


async def test_two_schedulers_scan_the_same_1000_jobs_and_each_is_locked_and_processed_once(
    postgres_url: str, third: Any
) -> None:
    """The losing UPDATE is in the metrics: whoever finds a job first in line that somebody else
    is locking counts it as contested, and takes the next one."""
    processed: Counter[str] = Counter()

    async def note(work: Work) -> None:
        processed[work.key] += 1

    pipeline = Pipeline("solo", Stage("website-analysis", note))
    database = Database("postgres", postgres_url)
    one, two = database.flow(pipeline, settings=QUICK), database.flow(pipeline, settings=QUICK)
    async with one, two:
        await one.add(pipeline, [f"https://{at}.test/" for at in range(1000)])
        losing = third.transaction()
        await losing.start()
        await third.execute(
            "UPDATE onceflow.item SET updated_at = updated_at WHERE id IN "
            "(SELECT id FROM onceflow.item ORDER BY id LIMIT 5)"
        )
        one.start()
        two.start()
        flows = (one, two)

        def tally(flow: Flow, name: str) -> int:
            health = flow.health()
            assert health is not None
            return health.tally[name]

        await seen(one, lambda: all(tally(flow, "contested") >= 5 for flow in flows))
        await losing.rollback()
        for flow in flows:
            flow._told()

        async def over() -> bool:
            return await one.counts() == {"completed": 1000}

        await until(one, over, seconds_max=60)
        assert sum(tally(flow, "claimed") for flow in flows) == 1000
        for flow in flows:
            await flow.stop()
        assert len(processed) == 1000
        assert set(processed.values()) == {1}
        assert (await kinds(one)).count("claimed") == 1000
        await audited(one)
