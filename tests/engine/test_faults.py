"""Handlers that misbehave, each in its way: the item is named, the rest unharmed, nothing lost."""

import asyncio
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from onceflow import (
    Halt,
    Pipeline,
    PipelineError,
    Seed,
    Settings,
    Stage,
    StoreUnavailable,
    Work,
)
from onceflow.core.errors import UnknownItem
from onceflow.engine.attempt import Processes, Way, is_async, way_of
from tests.engine import handlers
from tests.engine.kit import (
    QUICK,
    Database,
    audited,
    kinds,
    ok,
    one_stage,
    only,
    until,
    until_state,
    working,
)

BESIDE = [f"beside-{at}" for at in range(10)]
"""Ordinary items that run beside the bad one."""


async def endures(
    database: Database, handler: Any, settings: Settings = QUICK, **rules: Any
) -> Any:
    """One bad item among ten good ones: what became of the bad one, the others all completed."""

    async def sorted_out(work: Work) -> Any:
        return await handler(work) if work.key == "bad" else "fine"

    pipeline = one_stage(sorted_out, **rules)
    async with database.flow(pipeline, settings=settings) as flow:
        await flow.add(pipeline, [*BESIDE[:5], "bad", *BESIDE[5:]])
        await flow.drain()
        for key in BESIDE:
            item = await flow.item(pipeline, key)
            assert (item.state, item.attempt) == ("completed", 1)
        await audited(flow)
        return await flow.item(pipeline, "bad")


async def test_a_handler_that_raises_is_tried_three_times_and_its_words_are_kept(
    database: Database,
) -> None:
    async def raises(work: Work) -> None:
        raise RuntimeError(f"broken at attempt {work.attempt}")

    bad = await endures(database, raises)

    assert (bad.state, bad.attempt, bad.error_code) == ("failed", 3, "unexpected")
    assert bad.error == "RuntimeError: broken at attempt 3"


async def test_a_handler_that_finds_no_database_is_not_at_fault(database: Database) -> None:
    asked = []

    async def asks(work: Work) -> str:
        asked.append(work.attempt)
        if len(asked) < 5:
            raise StoreUnavailable("the other database cannot be reached")
        return "there"

    bad = await endures(database, asks)

    assert (bad.state, bad.attempt, asked) == ("completed", 1, [1] * 5)


async def test_a_stage_that_was_put_between_two_others_is_not_begun_without_its_input(
    database: Database,
) -> None:
    before = Pipeline("essays", Stage("read", ok), Stage("write", ok))
    after = Pipeline("essays", Stage("read", ok), Stage("judge", ok), Stage("write", ok))
    async with database.flow(before) as flow:
        await flow.pause(before, "write")
        await flow.add(before, ["a"])
        await flow.drain()
        assert (await only(flow, before)).stage == "write"
    async with database.flow(after) as flow:
        await flow.resume(after, "write")
        await flow.drain()
        item = await only(flow, after)
        assert (item.state, item.error_code, item.attempt) == ("failed", "no_input", 1)
        assert item.error is not None
        assert "onceflow retry a --from-stage judge" in item.error

        await flow.retry(after, from_stage="judge")
        await flow.drain()
        assert (await only(flow, after)).state == "completed"
        await audited(flow)


async def test_what_was_done_before_is_done_again_also_without_a_new_stages_input(
    database: Database,
) -> None:
    """A known item that joins another run does its last stage again, if that spreads."""
    first, last = Stage("read", ok), Stage("link", ok, spreads=True)
    async with database.flow(Pipeline("essays", first, last)) as flow:
        await flow.add("essays", ["a"])
        await flow.drain()
    async with database.flow(Pipeline("essays", first, Stage("judge", ok), last)) as flow:
        await flow.add("essays", ["a"])
        await flow.drain()
        assert (await flow.item("essays", "a")).state == "completed"
        await audited(flow)


async def test_items_in_a_stage_that_is_gone_are_named_and_hold_up_no_end_and_can_be_cancelled(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    before = Pipeline("essays", Stage("read", ok), Stage("judge", ok), Stage("write", ok))
    after = Pipeline("essays", Stage("read", ok), Stage("write", ok))
    async with database.flow(before) as flow:
        await flow.pause(before, "judge")
        await flow.add(before, ["a"])
        await flow.drain()
        await flow.resume(before, "judge")
    async with database.flow(after) as flow, database.flow() as operator:

        async def asked() -> bool:
            why = await operator.why("essays", "a")
            return "no worker that lives has stage 'judge'" in why

        await flow.add(after, ["b"])
        await flow.drain()
        assert caplog.text.count("items wait in stage 'judge', which pipeline 'essays'") == 1
        assert (await flow.item(after, "b")).state == "completed"
        assert "pipeline 'essays' has no stage 'judge' here" in await flow.why(after, "a")
        flow.start()
        assert await until(flow, asked)
        await flow.stop()
        assert await flow.cancel(after, keys=["a"]) == 1
        assert (await flow.item(after, "a")).phase == "cancelled"
        with pytest.raises(PipelineError, match=r"ended at stage .judge., .*--from-stage"):
            await flow.retry(after, keys=["a"])
        assert await flow.retry(after, keys=["a"], from_stage="read") == 1
        await flow.drain()
        assert (await flow.item(after, "a")).state == "completed"
        await audited(flow)


async def test_a_halt_while_the_database_is_away_is_nobodys_fault(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def halts(work: Work) -> str:
        if not away:
            away.append(work.attempt)
            raise Halt("nothing is left to pay with")
        return "done"

    away: list[int] = []
    pipeline = one_stage(halts, attempts=1)
    async with database.flow(pipeline) as flow:
        real = flow.store.read

        async def read(name: str, **parameters: Any) -> Any:
            if name == "left":
                raise StoreUnavailable("the database is away")
            return await real(name, **parameters)

        monkeypatch.setattr(flow.store, "read", read)
        await flow.add(pipeline, ["a"], max_tokens=5)
        await flow.drain()
        item = await flow.item(pipeline, "a")
        assert (item.state, item.attempt) == ("completed", 1)
        await audited(flow)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_cost": math.nan}, "max_cost is nan"),
        ({"max_cost": -0.5}, "max_cost is -0.5"),
        ({"max_cost": math.inf}, "max_cost is inf"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_items": -1}, "max_items is -1"),
        ({"max_items": 1.5}, "max_items is 1.5"),
        ({"max_depth": "2"}, "max_depth is '2'"),
        ({"run": "\ud800"}, "cannot name a run"),
        ({"run": ""}, "cannot name a run"),
    ],
)
async def test_what_a_run_cannot_be_held_to_is_refused(
    database: Database, options: dict[str, Any], named: str
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        with pytest.raises(PipelineError, match=named):
            await flow.add(pipeline, ["a"], **options)
        assert await flow.items(pipeline) == []


@pytest.mark.parametrize("name", ["", "a\x00", "\ud800", 5])
async def test_a_part_without_a_clean_name_fails_its_item_for_good(
    database: Database, name: Any
) -> None:
    async def keeps(work: Work) -> None:
        await work.keep(name, 1)

    bad = await endures(database, keeps)

    assert (bad.state, bad.attempt, bad.error_code) == ("failed", 1, "bad_part")


@pytest.mark.parametrize("key", ["\udcff", "a\x00b"])
async def test_a_key_that_no_database_has_is_unknown(database: Database, key: str) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        for where in (pipeline, None):
            with pytest.raises(UnknownItem):
                await flow.item(where, key)


async def test_a_worker_that_was_forgotten_goes_on_with_its_next_heartbeat(
    database: Database,
) -> None:
    pipeline = one_stage(lease_seconds=30, heartbeat_seconds=0.05)
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["first"])
        await until_state(flow, pipeline, "first", "completed")
        [worker] = await flow.store.read("workers")
        await flow.store.leave(worker["id"])

        await flow.add(pipeline, ["next"])
        await until_state(flow, pipeline, "next", "completed")

        async def known() -> bool:
            return [row["id"] for row in await flow.store.read("workers")] == [worker["id"]]

        assert await until(flow, known)
        await audited(flow)


async def test_a_handler_that_hangs_is_cut_off_at_its_deadline(database: Database) -> None:
    async def hangs(work: Work) -> None:
        await asyncio.Event().wait()

    quick = Settings(poll_seconds=0.05, health_seconds=0.05, durability="normal")
    bad = await endures(database, hangs, quick, deadline_seconds=0.1, attempts=2)

    assert (bad.state, bad.attempt, bad.error_code) == ("failed", 2, "deadline")
    assert bad.error == (
        "the attempt took longer than its 0.1 s; raise deadline_seconds or make the handler quicker"
    )


async def test_a_handler_that_swallows_its_cancellation_cannot_commit_afterwards(
    database: Database,
) -> None:
    async def stubborn(work: Work) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I do not care"
        return "never"

    quick = Settings(poll_seconds=0.05, health_seconds=0.05, durability="normal")
    bad = await endures(database, stubborn, quick, deadline_seconds=0.1, attempts=2)

    assert (bad.state, bad.error_code) == ("failed", "deadline")


async def test_a_handler_that_raises_a_cancellation_itself_has_failed(database: Database) -> None:
    async def cancels(work: Work) -> None:
        raise asyncio.CancelledError

    bad = await endures(database, cancels)

    assert (bad.state, bad.attempt, bad.error_code) == ("failed", 3, "cancelled")
    assert bad.error == "the handler was cancelled from within"


async def test_a_handler_that_raises_system_exit_does_not_end_the_worker(
    database: Database,
) -> None:
    async def exits(work: Work) -> None:
        raise SystemExit(3)

    bad = await endures(database, exits)

    assert (bad.state, bad.error) == ("failed", "SystemExit: 3")


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), asyncio.CancelledError()])
async def test_the_same_in_a_thread(database: Database, error: BaseException) -> None:
    def raises(work: Work) -> None:
        raise error

    pipeline = one_stage(raises, attempts=1)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        await flow.drain()
        assert (await only(flow, pipeline)).state == "failed"
        await audited(flow)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), float("nan"), lambda: 0])
async def test_a_result_that_is_not_json_fails_for_good_and_names_the_item(
    database: Database, value: Any
) -> None:
    async def returns(work: Work) -> Any:
        return value

    bad = await endures(database, returns)

    assert (bad.state, bad.attempt, bad.error_code) == ("failed", 1, "not_json")
    assert bad.error.startswith("bad: stage 'work' returned something that is not JSON")


async def test_a_result_of_50_mb_fails_for_good_and_says_how_much_is_allowed(
    database: Database,
) -> None:
    async def returns(work: Work) -> str:
        return "x" * 50_000_000

    bad = await endures(database, returns)

    assert (bad.state, bad.error_code) == ("failed", "result_too_large")
    assert "returned 50,000,002 bytes; at most 16,777,216 are stored" in bad.error


async def test_F06_a_handler_that_blocks_the_loop_past_two_leases_is_kept_alive_or_refused(
    database: Database,
) -> None:
    """The heartbeat has a thread of its own: the block costs time, never a second commit."""
    blocked, go = threading.Event(), threading.Event()
    pipeline = one_stage(_blocker(blocked, go), lease_seconds=1.5, heartbeat_seconds=0.3)
    rival = one_stage(lease_seconds=1.5, heartbeat_seconds=0.3)
    rivals_answers: list[int] = []

    def other_worker() -> None:
        """Another process's worker, in a thread with a loop of its own."""

        async def run() -> None:
            blocked.wait(60)
            async with working(
                database.flow(rival, settings=Settings(poll_seconds=0.05, cleanup_seconds=0.05))
            ) as flow:
                rivals_answers.append(await _beats(flow, 10))
                go.set()

        asyncio.run(run())

    thread = threading.Thread(target=other_worker)
    async with working(database.flow(pipeline)) as flow:
        thread.start()  # before the loop is blocked
        await flow.add(pipeline, ["a"])
        await until_state(flow, pipeline, "a", "completed")
        await asyncio.to_thread(thread.join)
        item = await only(flow, pipeline)
        assert rivals_answers == [10], "the heart went on beating for more than two leases"
        assert (await kinds(flow, item.id)).count("stage_finished") == 1
        await flow.stop()
        await audited(flow)


def _blocker(blocked: threading.Event, go: threading.Event) -> Any:
    async def block(work: Work) -> str:
        blocked.set()
        go.wait(60)  # on the loop: that is the fault
        return "done"

    return block


async def _beats(flow: Any, wanted: int) -> int:
    """Wait for so many different heartbeats of the other workers."""
    seen: set[tuple[str, int]] = set()

    async def question() -> bool:
        for row in await flow.store.read("workers"):
            if row["id"] != flow._manager.worker.id:
                seen.add((row["id"], row["beat_at"]))
        return len(seen) >= wanted

    await until(flow, question)
    return len(seen)


async def test_a_handler_that_forks_stays_one_worker(database: Database) -> None:
    """The child comes back out of the handler: it must not go on as a second worker."""
    children: list[int] = []
    parent = os.getpid()

    async def forks(work: Work) -> str:
        pid = os.fork()
        if pid:
            children.append(pid)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            return f"the child ended with {os.waitstatus_to_exitcode(status)}"
        return "from the child"

    pipeline = one_stage(forks)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        await flow.drain()
        assert os.getpid() == parent
        item = await only(flow, pipeline)
        assert await flow.result(item.id, "work") == "the child ended with 0"
        assert len(children) == 1
        assert await kinds(flow, item.id) == ["added", "claimed", "stage_finished"]
        await audited(flow)


# --- cpu=True ---


@pytest.fixture
def note(tmp_path: Path) -> Path:
    """Where a handler in another process says who it is."""
    return tmp_path / "pid"


def written(note: Path) -> int | None:
    return int(note.read_text() or 0) if note.exists() else None


def cpu(handler: Any, **rules: Any) -> Pipeline:
    return one_stage(handler, cpu=True, **rules)


ONE_CORE = Settings(cpu_processes=1, poll_seconds=0.05, health_seconds=0.05, durability="normal")


async def test_a_cpu_handler_runs_in_a_process_of_its_own(database: Database) -> None:
    pipeline = cpu(handlers.square)
    async with database.flow(pipeline, settings=ONE_CORE) as flow:
        seeds = [Seed(f"k{at}", {"number": at, "pid": os.getpid()}) for at in range(5)]
        await flow.add(pipeline, seeds)
        await flow.drain()
        results = [
            await flow.result((await flow.item(pipeline, f"k{at}")).id, "work") for at in range(5)
        ]
        assert results == [0, 1, 4, 9, 16]
        await audited(flow)


async def test_F18_a_cpu_handler_that_ends_its_process_costs_an_attempt_and_nothing_else(
    database: Database,
) -> None:
    pipeline = cpu(handlers.die)
    async with database.flow(pipeline, settings=ONE_CORE) as flow:
        await flow.add(pipeline, [Seed("always", 99), Seed("once", 2), Seed("never", 0)])
        await flow.drain()
        items = {item.key: item for item in await flow.items()}
        assert (items["never"].state, items["never"].attempt) == ("completed", 1)
        assert (items["once"].state, items["once"].attempt) == ("completed", 2)
        assert (items["always"].state, items["always"].attempt) == ("failed", 3)
        assert "the process of the handler ended by itself (exit code 137)" in (
            items["always"].error or ""
        )
        await audited(flow)


async def test_a_cpu_handler_that_streams_is_told_that_it_cannot(database: Database) -> None:
    pipeline = cpu(handlers.stream)
    async with database.flow(pipeline, settings=ONE_CORE) as flow:
        await flow.add(pipeline, ["a"])
        await flow.drain()
        item = await flow.item(pipeline, "a")
        assert (item.state, item.attempt, item.error_code) == ("failed", 1, "no_engine")
        assert "work.emit needs the engine" in (item.error or "")


async def test_a_cpu_handler_past_its_deadline_is_killed_and_its_process_is_gone(
    database: Database, note: Path
) -> None:
    pipeline = cpu(handlers.hang, attempts=1, deadline_seconds=3)
    async with working(database.flow(pipeline, settings=ONE_CORE)) as flow:
        await flow.add(pipeline, [Seed("a", str(note))])

        async def pid() -> int | None:
            return written(note)

        process = os.pidfd_open(await until(flow, pid))
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(process, gone.set)
        try:
            async with asyncio.timeout(60):
                await gone.wait()
        finally:
            asyncio.get_running_loop().remove_reader(process)
            os.close(process)
        item = await until_state(flow, pipeline, "a", "failed")
        assert item.error_code == "deadline"
        await flow.stop()
        await audited(flow)


async def test_cpu_attempts_do_not_use_up_their_deadlines_waiting_for_a_process(
    database: Database,
) -> None:
    """Ten items of 0.1 s on one process take a second; each has far less than that."""
    pipeline = cpu(handlers.spin, deadline_seconds=30, attempts=1)
    async with working(database.flow(pipeline, settings=ONE_CORE)) as flow:
        await flow.add(pipeline, [f"k{at}" for at in range(10)])
        manager = flow._manager
        assert manager is not None
        [plan] = manager._scheduler.plans.values()
        assert len(plan.pool.processors) == 1, "one attempt at a time, as there is one process"

        async def done() -> bool:
            return (await flow.counts()).get("completed") == 10

        await until(flow, done, 60)


@pytest.mark.parametrize(
    ("handler", "code"),
    [(handlers.fail, "unexpected"), (handlers.large, "result_too_large"), (lambda work: 1, None)],
    ids=["raises", "50 MB", "cannot be sent"],
)
async def test_a_cpu_handler_that_cannot_be_used_fails_its_item(
    database: Database, handler: Any, code: str | None
) -> None:
    pipeline = cpu(handler, attempts=1)
    async with database.flow(pipeline, settings=ONE_CORE) as flow:
        await flow.add(pipeline, ["a"])
        await flow.drain()
        item = await only(flow, pipeline)
        assert item.state == "failed"
        assert code in (None, item.error_code)


async def test_processes_that_were_never_needed_are_never_started() -> None:
    processes = Processes(1)
    processes.close()
    assert processes._pool is None


def test_where_a_handler_runs_is_seen_from_what_it_is() -> None:
    class Plain:
        def __call__(self, work: Work) -> int:
            return 1

    class Async:
        async def __call__(self, work: Work) -> int:
            return 1

    assert way_of(Stage("a", ok)) is Way.LOOP
    assert way_of(Stage("a", Async())) is Way.LOOP
    assert way_of(Stage("a", Plain())) is Way.THREAD
    assert way_of(Stage("a", handlers.square)) is Way.THREAD
    assert way_of(Stage("a", handlers.square, cpu=True)) is Way.PROCESS
    assert is_async(Async().__call__)
