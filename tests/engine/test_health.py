"""Everything the engine does can be seen: processors, queues, refusals, transitions, heartbeats."""

import asyncio
import json
import logging
from typing import Any

import pytest

from onceflow import Settings, StoreUnavailable, Work
from onceflow.engine.heart import LoopHeart, ThreadHeart
from onceflow.store.base import Worker
from tests.engine.kit import (
    Database,
    one_stage,
    until,
    until_state,
    virtual_flow,
    virtually,
    working,
)

FIELDS = ("pipeline", "key", "item", "run", "stage", "phase", "state", "fence", "attempt", "kind")


async def test_a_report_names_every_busy_processor_and_counts_the_idle_ones(
    database: Database,
) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def hold(work: Work) -> None:
        began.set()
        await go.wait()

    pipeline = one_stage(hold, processors=3)
    async with working(database.flow(pipeline)) as flow:
        assert flow.health() is not None
        await flow.add(pipeline, ["a"])
        await began.wait()
        health = flow.health()
        assert health is not None
        busy, idle = health.processors
        assert busy.pop("seconds") >= 0
        assert busy == {
            "name": "work-processor-1", "pipeline": "solo", "stage": "work", "state": "busy",
            "key": "a", "error": None,
        }  # fmt: skip
        assert idle == {"pipeline": "solo", "stage": "work", "state": "idle", "count": 2}
        assert (health.healthy, health.problems, health.refused) == (True, [], {})
        assert health.queues == {"solo/work": 0}
        assert health.pools == {"solo/work": {"idle": 2, "busy": 1, "error": 0}}
        assert health.silent_seconds >= 0
        assert json.loads(health.as_json())["tally"]["claimed"] == 1
        go.set()
        await until_state(flow, pipeline, "a", "completed")
        await flow.stop()
        assert flow.health() is None, "it does not work any more"


async def test_every_process_keeps_its_last_report_where_others_can_read_it(
    database: Database,
) -> None:
    pipeline = one_stage(lease_seconds=3, heartbeat_seconds=0.5)
    async with working(database.flow(pipeline)) as flow, database.flow(pipeline) as reader:
        await flow.add(pipeline, ["a"])

        async def reported() -> Any:
            rows = await reader.store.read("workers")
            reports = [json.loads(row["report"]) for row in rows]
            return [report for report in reports if report["tally"]["finished"] == 1]

        [report] = await until(reader, reported)
        assert report["healthy"] is True


async def test_every_transition_is_one_log_line_with_the_fields_of_its_event(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "onceflow")
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["a"])
        await flow.drain()
        [event] = [e async for e in flow.events(kinds=["stage_finished"])]

    [line] = [record for record in caplog.records if hasattr(record, "kind")]
    said = {name: getattr(line, name) for name in FIELDS}
    assert said == {name: getattr(event, name) for name in FIELDS}
    assert said["run"] == added.run
    assert line.seconds >= 0
    assert line.getMessage() == "solo a stage_finished: completed"
    processors = [r.getMessage() for r in caplog.records if "processor-1" in r.getMessage()]
    assert processors == ["work-processor-1 is busy", "work-processor-1 is idle"]


def test_a_health_check_is_logged_and_a_bad_one_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "onceflow")

    async def main() -> None:
        async def hang(work: Work) -> None:
            await asyncio.Event().wait()

        settings = Settings(health_seconds=10)
        pipeline = one_stage(hang, deadline_seconds=15, attempts=1, processors=2)
        async with virtual_flow(":memory:", pipeline, settings=settings) as flow:
            flow.start()
            await asyncio.sleep(11)
            await flow.add(pipeline, ["a"])
            await asyncio.sleep(30)

    virtually(main)
    said = [(r.levelname, r.getMessage()) for r in caplog.records if "health" in r.getMessage()]
    assert said[0] == (
        "INFO", "health: ok; processors 2 idle, 0 busy, 0 error; queues empty; checks 1"
    )  # fmt: skip
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warned[0].startswith("a: the attempt took longer than its 15 s; raise deadline_seconds")


# --- hearts ---


def known_again() -> None:
    raise AssertionError("nobody forgot this worker")


class Beats:
    """A store that has heartbeats and nothing else."""

    def __init__(self) -> None:
        self.reports: list[str | None] = []
        self.fail: BaseException | None = None
        self.hang = False
        self.beaten = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def beat(self, worker: Worker, report: str | None = None) -> bool:
        self._loop.call_soon_threadsafe(self.beaten.set)
        if self.hang:
            await asyncio.Event().wait()
        if self.fail is not None:
            raise self.fail
        self.reports.append(report)
        return False

    def for_thread(self) -> "Beats":
        return self


async def next_beats(store: Beats, count: int) -> None:
    async with asyncio.timeout(60):
        for _ in range(count):
            store.beaten.clear()
            await store.beaten.wait()


@pytest.mark.parametrize("kind", [ThreadHeart, LoopHeart])
async def test_a_heart_beats_before_anything_else_and_then_again_and_again(kind: Any) -> None:
    store = Beats()
    heart = kind(store, Worker("w", "h", 1), 0.02, lambda: "fine", known_again)
    await heart.start()
    assert store.reports == ["fine"]
    await next_beats(store, 3)
    await heart.stop()
    assert len(store.reports) >= 3


@pytest.mark.parametrize("kind", [ThreadHeart, LoopHeart])
async def test_a_heart_goes_on_when_a_beat_fails_and_knows_how_long_it_was_silent(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = Beats()
    heart = kind(store, Worker("w", "h", 1), 0.02, lambda: "fine", known_again)
    await heart.start()
    store.fail = StoreUnavailable("away")
    await next_beats(store, 2)
    before = heart.silent_seconds()
    await next_beats(store, 3)
    assert heart.silent_seconds() > before > 0
    assert "the heartbeat was not written: away" in caplog.text
    store.fail = None
    written = len(store.reports)
    await next_beats(store, 3)
    assert len(store.reports) > written
    await heart.stop()


async def test_a_heart_outlives_a_surprise(caplog: pytest.LogCaptureFixture) -> None:
    store = Beats()
    heart = ThreadHeart(store, Worker("w", "h", 1), 0.02, lambda: "fine", known_again)  # type: ignore[arg-type]
    await heart.start()
    store.fail = ZeroDivisionError("a bug")
    await next_beats(store, 3)
    store.fail = None
    written = len(store.reports)
    await next_beats(store, 3)
    assert len(store.reports) > written
    await heart.stop()
    assert "the heartbeat was not written: a bug" in caplog.text


async def test_a_beat_that_gets_no_answer_is_given_up_before_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Beats()
    heart = ThreadHeart(store, Worker("w", "h", 1), 0.02, lambda: "fine", known_again)  # type: ignore[arg-type]
    await heart.start()
    store.hang = True
    await next_beats(store, 3)
    assert "the heartbeat got no answer in time" in caplog.text
    await heart.stop()


async def test_a_heart_that_never_began_can_be_stopped() -> None:
    for kind in (ThreadHeart, LoopHeart):
        heart = kind(Beats(), Worker("w", "h", 1), 1.0, lambda: "", known_again)  # type: ignore[arg-type]
        await heart.stop()
