"""Figures: how the newest attempts ended, who works, and what they say about themselves."""

import json
import subprocess
import sys

import pytest

from onceflow import Pipeline, Settings, Stage, Transient, Work
from onceflow.engine.figures import figures_of, parts, stage_figures, totals, workers
from onceflow.engine.neighbours import machine
from onceflow.store.base import Worker
from tests.engine.kit import Database, one_stage, until, working


def row(
    kind: str, item: int = 1, *, fence: int = 1, attempt: int = 1, ms: int | None = None
) -> dict[str, object]:
    return {"pipeline": "p", "stage": "s", "kind": kind, "item": item, "fence": fence,
            "attempt": attempt, "ms": ms, "at": 1_000_000}  # fmt: skip


def test_times_and_rates_of_a_stage() -> None:
    rows = [row("stage_finished", item, ms=item * 100) for item in range(1, 22)]
    rows += [row("retried"), row("retried"), row("failed", 90, attempt=3), row("reclaimed")]

    [(name, found)] = figures_of(rows, 1_120_000).items()

    assert name == "p/s"
    assert (found["p50_seconds"], found["p95_seconds"]) == (1.1, 2.0)
    assert (found["finished"], found["failed"], found["retried"]) == (21, 1, 2)
    assert found["reclaimed"] == 1
    assert found["per_minute"] == 10.5, "21 in two minutes"
    assert found["success_rate"] == 21 / 22
    assert found["failure_rate"] == 1 / 22
    assert (found["retries_per_item"], found["retries_max"]) == (round(2 / 22, 3), 2)


def test_an_attempt_with_several_events_finished_once() -> None:
    [found] = figures_of([row("stage_finished", ms=10), row("its-own", ms=10)], 1_000_000).values()

    assert (found["finished"], found["p50_seconds"], found["p95_seconds"]) == (1, 0.01, 0.01)


async def test_figures_come_from_the_end_of_the_history(database: Database) -> None:
    async def twice(work: Work) -> None:
        if work.attempt == 1:
            raise Transient("again")

    pipeline = one_stage(twice)
    async with database.flow(pipeline) as flow:
        assert await stage_figures(flow.store) == {}
        await flow.add(pipeline, ["a", "b"])
        await flow.drain()

        found = (await stage_figures(flow.store))["solo/work"]
        assert (found["finished"], found["retried"], found["retries_per_item"]) == (2, 2, 1)
        assert await stage_figures(flow.store, most=0) == {}, "only as far back as it is asked to"


@pytest.fixture
def gone() -> int:
    """The number of a process that is there no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


async def test_a_killed_worker_of_this_machine_is_shown_as_ended_and_not_counted(
    database: Database, gone: int
) -> None:
    pipeline = one_stage(processors=4)
    async with database.flow(pipeline) as reader:
        report = json.dumps({"queues": {"solo/work": 7}, "pools": {"solo/work": {"idle": 4}}})
        await reader.store.beat(Worker("killed", machine(), gone), report)
        await reader.store.beat(Worker("elsewhere", "other.test", 1), report)

        found = {one["id"]: one for one in await workers(reader)}

        assert {id: one["ended"] for id, one in found.items()} == {
            "killed": True,
            "elsewhere": False,
        }
        total = totals(found.values())
        assert total["queues"] == {"solo/work": 7}
        assert total["processors"] == {"solo/work": {"idle": 4, "busy": 0, "error": 0}}


async def test_the_parts_of_the_background_system_are_there_by_name(database: Database) -> None:
    pipeline = Pipeline(
        "analyze",
        Stage("website-analysis", Work, assign_max=3),
        Stage("prompt-forming", Work, assign_max=3),
        backoff_seconds=30.0,
    )
    async with working(database.flow(pipeline, settings=Settings())) as flow:
        known = await until(flow, lambda: workers(flow))
        found = parts(flow.settings, flow.pipelines.values(), totals(known))

    first, second = "analyze/website-analysis", "analyze/prompt-forming"
    scheduler, coordinator = found["JobScheduler"], found["JobCoordinator"]
    assert (scheduler["scan_seconds"], scheduler["cleanup_seconds"]) == (60, 300)
    assert scheduler["batch"] == {first: 10, second: 10}
    assert scheduler["stuck_seconds"][first] == 300
    assert scheduler["attempts_max"][first] == 3
    assert (scheduler["claimed"], scheduler["contested"]) == (0, 0)
    assert found["JobQueue"]["queue_max"] == 1000
    assert found["JobQueue"]["items"] == {first: 0, second: 0}
    assert (coordinator["assign_seconds"], coordinator["health_seconds"]) == (5, 30)
    assert (coordinator["order"], coordinator["assign_max"][first]) == ([first, second], 3)
    assert found["ProcessorPool"]["states"][first] == {"idle": 10, "busy": 0, "error": 0}
    assert found["ProcessorPool"]["deadline_seconds"][first] == 300
