"""The database goes away, is cut off, is locked or full; the clock is set. Nothing is lost."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import onceflow
from onceflow import Pipeline, Seed, Settings, Stage, StoreUnavailable, Work
from tests.engine.kit import (
    QUICK,
    Database,
    audited,
    claim_as,
    kinds,
    ok,
    one_stage,
    only,
    until,
    until_state,
    working,
)
from tests.engine.proxy import Proxy
from tests.support import postgres

DURABLE = Settings(poll_seconds=0.05, patience_seconds=0.05, durability="full")
"""A server that is killed forgets no commit that it acknowledged."""


def three_stages(handler: Any) -> Pipeline:
    return Pipeline("three", Stage("a", handler, limit=8), Stage("b", handler), Stage("c", handler))


async def test_F08_postgresql_restarted_in_the_middle_loses_nothing(
    own_server: postgres.Server,
) -> None:
    done = 0
    restart_at = {40: asyncio.Event(), 120: asyncio.Event()}

    async def count(work: Work) -> str:
        nonlocal done
        done += 1
        if done in restart_at:
            restart_at[done].set()
        return work.stage

    async def restarts() -> None:
        for event in restart_at.values():
            await event.wait()
            await asyncio.to_thread(own_server.restart, "immediate")

    pipeline = three_stages(count)
    async with onceflow.open(own_server.url, pipeline, settings=DURABLE) as flow:
        await flow.add(pipeline, [f"k{at}" for at in range(100)])
        await asyncio.gather(flow.drain(), restarts())
        assert await flow.counts() == {"completed": 100}
        assert {item.attempt for item in await flow.items()} == {1}
        await audited(flow)


async def test_F09_a_commit_whose_answer_is_lost_is_found_out_and_counted_once(
    postgres_url: str,
) -> None:
    pipeline = three_stages(ok)
    async with (
        Proxy(postgres_url) as proxy,
        onceflow.open(proxy.url, pipeline, settings=QUICK) as flow,
    ):
        await flow.add(pipeline, [f"k{at}" for at in range(50)])
        proxy.drop_replies = 8
        await flow.drain()
        assert proxy.dropped == 8
        assert await flow.counts() == {"completed": 50}
        assert {item.attempt for item in await flow.items()} == {1}
        counted = await kinds(flow)
        assert counted.count("stage_finished") == 150
        assert counted.count("claimed") - counted.count("released") == 150
        await audited(flow)


async def test_F09_an_add_whose_answer_is_lost_can_be_asked_again(postgres_url: str) -> None:
    pipeline = one_stage()
    async with (
        Proxy(postgres_url) as proxy,
        onceflow.open(proxy.url, pipeline, settings=QUICK) as flow,
    ):
        await flow.add(pipeline, ["a"])  # a known key takes a transaction with a COMMIT to lose
        proxy.drop_replies = 1
        with pytest.raises(StoreUnavailable, match="whether the last write was stored is not"):
            await flow.add(pipeline, ["a", "b"], run="mine")
        again = await flow.add(pipeline, ["a", "b"], run="mine")
        assert (again.new, again.known) == (0, 2)
        await flow.drain()
        assert await flow.counts() == {"completed": 2}
        await audited(flow)


@pytest.mark.parametrize("busy", [False, True], ids=["idle loop", "loop waits for an answer"])
async def test_F10_a_worker_in_a_black_hole_refuses_itself_and_another_takes_over(
    postgres_url: str, busy: bool
) -> None:
    began, ended, last = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hang(work: Work) -> str:
        if work.key == "last":
            await last.wait()
            return "it ends in the hole"
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    rules: dict[str, Any] = {
        "lease_seconds": 4,
        "heartbeat_seconds": 1,
        "limit": 9,
        "processors": 2,
    }
    cut, free = one_stage(hang, **rules), one_stage(ok, **rules)
    eager = Settings(poll_seconds=0.05, cleanup_seconds=0.1, grace_seconds=0)
    async with (
        Proxy(postgres_url) as proxy,
        onceflow.open(proxy.url, cut, settings=QUICK) as lost,
    ):
        lost.start()
        await lost.add(cut, ["first", "last"] if busy else ["first"])
        await began.wait()
        proxy.thawed.clear()
        last.set()
        async with asyncio.timeout(60):
            await ended.wait()  # by itself: nobody told it
        async with working(onceflow.open(postgres_url, free, settings=eager)) as other:
            item = await until_state(other, free, "first", "completed")
            # Two ran when their worker fell silent: nobody knows whose fault it was.
            assert item.attempt == (1 if busy else 2)
            assert (await kinds(other, item.id)).count("reclaimed") == 1
            proxy.thawed.set()
            await lost.stop()
            assert (await kinds(other, item.id)).count("stage_finished") == 1
            await until_state(other, free, "first", "completed")
            await other.stop()
            await audited(other)


async def test_an_unreachable_server_is_said_at_once_and_without_the_password(
    own_server: postgres.Server,
) -> None:
    own_server.halt()
    try:
        with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
            async with onceflow.open(own_server.url, one_stage()):
                pass
        assert own_server._password not in str(refused.value)
    finally:
        own_server.resume()


# --- the clock ---


async def test_F13_a_stepped_wall_clock_reclaims_nothing_early_and_freezes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0.0
    wall, wall_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: wall() + step)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + int(step * 1e9))
    pipeline = one_stage()
    async with database.flow(pipeline) as flow, database.flow(pipeline) as other:
        await flow.add(pipeline, ["held"])
        [lease] = await claim_as(flow.store, pipeline)
        for step in (3600.0, -3600.0):
            assert (await other.store.sweep()).reclaimed == 0
            key = f"at {step}"
            await flow.add(pipeline, [key])
            other.start()
            item = await until_state(other, pipeline, key, "completed")
            await other.stop()
            assert item.attempt == 1
        assert await flow.store.renew(lease), "its lease holds all the while"
        at = [event.at async for event in flow.events()]
        assert at == sorted(at), "the store's time never goes back"
        async with database.flow(pipeline) as late:
            assert (await late.store.sweep()).reclaimed == 0, "nor for who opens it now"


# --- SQLite ---

HOLD_THE_LOCK = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
db.execute("ROLLBACK")
"""


async def test_F16_a_foreign_process_that_holds_the_write_lock_is_waited_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "flow.db"
    began, go = asyncio.Event(), asyncio.Event()

    async def slow(work: Work) -> str:
        began.set()
        await go.wait()
        return "done"

    pipeline = one_stage(slow)
    async with working(onceflow.open(path, pipeline, settings=QUICK)) as flow:
        await flow.add(pipeline, ["a"])
        await began.wait()
        holder = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLD_THE_LOCK, str(path),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert await holder.stdout.readline() == b"held\n"
        go.set()
        adding = asyncio.create_task(flow.add(pipeline, ["b"]))
        stuck, _ = await asyncio.wait([adding], timeout=0.5)
        assert not stuck, "it waits, and gets no error"
        assert await flow.counts() == {"work-active": 1}, "reading goes on"
        holder.stdin.close()
        await holder.wait()
        assert (await adding).new == 1
        await until_state(flow, pipeline, "b", "completed")
        item = await until_state(flow, pipeline, "a", "completed")
        assert item.attempt == 1
        await flow.stop()
        await audited(flow)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system to fill")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "onceflow-test", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


async def test_F14_a_full_disk_is_said_and_waited_for_and_costs_no_attempt(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def slow(work: Work) -> str:
        began.set()
        await go.wait()
        return os.urandom(2000).hex()

    pipeline = one_stage(slow)
    async with working(onceflow.open(small_disk / "flow.db", pipeline, settings=QUICK)) as flow:
        await flow.add(pipeline, [f"k{at}" for at in range(15)])
        await began.wait()
        fill = small_disk / "fill"
        with fill.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass

        async def add_until_it_is_full(size: int) -> None:
            for at in range(200):  # the log file has some room of its own left
                await flow.add(pipeline, [Seed(f"more{at} of {size}", os.urandom(size).hex())])

        for size in (20_000, 2000, 1):  # at the end there is no room for the smallest write
            with pytest.raises(StoreUnavailable, match="is full; nothing accepted is lost, free"):
                await add_until_it_is_full(size)
        go.set()

        async def troubled() -> bool:
            return "trying again" in caplog.text

        await until(flow, troubled)
        fill.unlink()

        async def done() -> bool:
            return set(await flow.counts()) == {"completed"}

        await until(flow, done)
        assert {item.attempt for item in await flow.items()} == {1}
        await flow.stop()
        await audited(flow)


async def test_a_write_whose_caller_is_cancelled_does_not_stop_the_writes_of_others(
    database: Database,
) -> None:
    pipeline = one_stage()
    for wait in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55):  # steps of the loop
        async with database.flow(pipeline) as flow:
            calls = [asyncio.create_task(flow.add(pipeline, [f"gone{at}"])) for at in range(3)]
            for _ in range(wait):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            async with asyncio.timeout(60):
                await flow.add(pipeline, [f"kept{wait}"])
    async with database.flow(pipeline) as flow:
        await flow.drain()
        kept = [item.key for item in await flow.items() if item.key.startswith("kept")]
        assert len(kept) == 10
        await audited(flow)


async def test_a_connection_whose_caller_is_cancelled_while_it_is_made_is_closed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    begun = asyncio.Event()

    async def hang(self: Any, *_: Any, **__: Any) -> Any:
        made.append(self)
        begun.set()
        await asyncio.Event().wait()

    pipeline = one_stage()
    async with onceflow.open(postgres_url, pipeline) as flow:
        monkeypatch.setattr(asyncpg.Connection, "fetchval", hang)
        calls = [asyncio.create_task(flow.counts()) for _ in range(3)]
        async with asyncio.timeout(60):
            await begun.wait()
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert [connection.is_closed() for connection in made] == [True] * len(made)


async def test_a_worker_that_vanished_while_it_claimed_is_not_believed_alive(
    database: Database,
) -> None:
    """It left between its claim and its first heartbeat after it: its leases go back at once."""
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        await claim_as(flow.store, pipeline)
        await flow.store.leave("dead")
        await flow.drain()
        item = await only(flow, pipeline)
        assert (item.state, item.attempt) == ("completed", 2)
        await audited(flow)
