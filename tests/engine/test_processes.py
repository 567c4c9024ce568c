"""Real worker processes: stopped, ended by their own items, asked to end, started together."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from onceflow import Flow, Pipeline, Settings, Stage
from onceflow.store.base import DEATHS_MAX
from tests.engine import worker
from tests.engine.kit import Database, audited, kinds, ok, until, until_state, working
from tests.support.locks import others_can_write

ROOT = Path(__file__).resolve().parent.parent.parent
EAGER = Settings(poll_seconds=0.05, cleanup_seconds=0.05)
"""Sweeps all the time, so that a dead worker's items are found as soon as its lease is over."""


class Process:
    """A worker process, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said: list[str] = []

    async def says(self, beginning: str) -> str:
        """The next line that begins so."""
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            while line := (await self._process.stdout.readline()).decode().strip():
                self.said.append(line)
                if line.startswith(beginning):
                    return line
        raise AssertionError(f"it ended without saying {beginning!r}: {self.said}")

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def send(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    async def ends(self) -> int:
        async with asyncio.timeout(60):
            return await self._process.wait()


@asynccontextmanager
async def process(
    database: Database, handler: str, lease_seconds: float = 5
) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engine.worker", database.url, handler, str(lease_seconds),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    try:
        yield Process(started)
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


def quick(handler: str, lease_seconds: float = 5) -> Pipeline:
    """The same pipeline as the worker's, whose items are done at once here."""
    stage = Stage("work", ok, limit=20, processors=3)
    return Pipeline("killed", stage, lease_seconds=lease_seconds, backoff_seconds=0)


async def counts_are(flow: Flow, **wanted: int) -> None:
    async def question() -> bool:
        return await flow.counts() == wanted

    await until(flow, question)


async def test_F05_a_worker_stopped_for_longer_than_its_lease_commits_nothing_afterwards(
    database: Database,
) -> None:
    pipeline = quick("wait", 5)
    async with database.flow(pipeline, settings=EAGER) as flow:
        await flow.add(pipeline, ["a"])
        async with process(database, "wait", 5) as stopped:
            await stopped.says("began a")
            stopped.send(signal.SIGSTOP)
            while not await others_can_write(database.url):  # it was just writing
                stopped.send(signal.SIGCONT)
                await asyncio.sleep(0.01)
                stopped.send(signal.SIGSTOP)
            flow.start()
            item = await until_state(flow, pipeline, "a", "completed")
            await flow.stop()
            stopped.send(signal.SIGCONT)
            stopped.go_on()
            await until_gone_or_idle(stopped)
            stopped.send(signal.SIGTERM)
            tally = await stopped.says("tally")
            assert await stopped.ends() == 0
        assert "lost=1" in tally or "fenced=1" in tally, tally
        assert await flow.result(item.id, "work") == {"key": "a", "stage": "work"}
        assert await flow.partial(item.id) is None, "its late text is refused too"
        assert await kinds(flow, item.id) == [
            "added", "claimed", "reclaimed", "claimed", "stage_finished",
        ]  # fmt: skip
        await audited(flow)


async def until_gone_or_idle(stopped: Process) -> None:
    """Its handler ends, or is ended because no heartbeat was written: either is said or seen."""
    try:
        async with asyncio.timeout(1):
            await stopped.says("ended a")
    except TimeoutError:
        return  # it had cancelled its own work already


async def test_F18_an_item_that_ends_its_worker_is_failed_as_poison_and_the_others_are_done(
    database: Database,
) -> None:
    pipeline = quick("deadly", 5)
    deaths = 0
    async with database.flow(pipeline, settings=EAGER) as flow:
        await flow.add(pipeline, ["deadly"])
        await flow.add(pipeline, [f"k{at}" for at in range(10)])
        while True:
            async with process(database, "deadly", 5) as doomed:
                await doomed.says("working")
                ended = asyncio.create_task(doomed.ends())
                over = asyncio.create_task(counts_are(flow, failed=1, completed=10))
                await asyncio.wait([ended, over], return_when=asyncio.FIRST_COMPLETED)
                over.cancel()
                if not ended.done():
                    ended.cancel()
                    break
                assert ended.result() == 137
                deaths += 1
        item = await flow.item(pipeline, "deadly")
        assert (item.error_code, item.attempt) == ("poison", 3), "three times it was alone"
        assert 3 <= deaths <= 3 + DEATHS_MAX, "beside the others it is not known whose fault it was"
        others = [i for i in await flow.items() if i.key != "deadly"]
        beside = [i for i in others if "reclaimed" in await kinds(flow, i.id)]
        assert beside, "some had been under way when their worker ended"
        assert {i.attempt for i in others} == {1}, "and lost no attempt by it"
        assert {i.state for i in others} == {"completed"}
        await audited(flow)


async def test_F01_what_a_killed_worker_of_this_machine_held_is_not_waited_for(
    database: Database,
) -> None:
    pipeline = quick("wait", 3600)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        async with process(database, "wait", 3600) as killed:
            await killed.says("began a")
            killed.send(signal.SIGKILL)
            await killed.ends()
        flow.start()
        item = await until_state(flow, pipeline, "a", "completed")
        assert await kinds(flow, item.id) == [
            "added", "claimed", "reclaimed", "claimed", "stage_finished",
        ]  # fmt: skip
        await audited(flow)


async def test_F17_sigterm_lets_attempts_end_and_claims_nothing_more(database: Database) -> None:
    pipeline = quick("short", 30)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, [f"k{at:02}" for at in range(20)])
        async with process(database, "short", 30) as asked:
            for _ in range(3):
                await asked.says("began")
            asked.send(signal.SIGTERM)
            await asked.says("tally")
            assert await asked.ends() == 0
        counts = await flow.counts()
        began = len([line for line in asked.said if line.startswith("began")])
        assert counts["completed"] == began, "what had begun was finished"
        assert counts["work-ready"] == 20 - began
        assert {item.attempt for item in await flow.items(state="work-ready")} == {0}
        assert await flow.store.read("workers") == []
        await audited(flow)


async def test_F17_a_second_sigterm_stops_at_once_and_releases_uncounted(
    database: Database,
) -> None:
    pipeline = quick("hang", 30)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a", "b", "c"])
        async with process(database, "hang", 30) as asked:
            for _ in range(3):
                await asked.says("began")
            asked.send(signal.SIGTERM)
            await asked.says("stopping 1")
            asked.send(signal.SIGTERM)
            await asked.says("tally")
            assert await asked.ends() == 0
        assert await flow.counts() == {"work-ready": 3}
        assert {item.attempt for item in await flow.items()} == {0}
        await audited(flow)


async def test_F04_a_killed_worker_is_taken_over_when_its_lease_is_over(
    database: Database,
) -> None:
    pipeline = quick("hang")
    async with working(database.flow(pipeline, settings=EAGER)) as flow:
        await flow.pause(pipeline, "work")
        await flow.add(pipeline, ["a", "b", "c"])
        async with process(database, "hang") as killed:
            await killed.says("working")
            await flow.stop()
            await flow.resume(pipeline, "work")
            for _ in range(3):
                await killed.says("began")
            killed.send(signal.SIGKILL)
            assert await killed.ends() == -signal.SIGKILL
        flow.start()
        await counts_are(flow, completed=3)
        for item in await flow.items():
            assert item.attempt == 1, "three ran beside each other: nobody knows whose fault it was"
            assert (await kinds(flow, item.id)).count("reclaimed") == 1
        await flow.stop()
        await audited(flow)


async def test_F20_two_processes_started_together_share_the_work(database: Database) -> None:
    pipeline = quick("short", 30)
    async with database.flow(pipeline) as flow:
        async with process(database, "short", 30) as one, process(database, "short", 30) as other:
            await one.says("working")
            await other.says("working")
            await flow.add(pipeline, [f"k{at:02}" for at in range(12)])
            await counts_are(flow, completed=12)
            for each in (one, other):
                each.send(signal.SIGTERM)
                await each.says("tally")
                assert await each.ends() == 0
        begun = [line for each in (one, other) for line in each.said if line.startswith("began")]
        assert len(begun) == len(set(begun)) == 12
        assert {item.attempt for item in await flow.items()} == {1}
        await audited(flow)


def test_the_worker_of_these_tests_has_the_pipeline_they_expect() -> None:
    for name in worker.HANDLERS:
        mine: Any = quick(name)
        theirs: Any = worker.pipeline(name)
        assert mine.states == theirs.states
        assert (mine.lease_seconds, mine.first.limit) == (theirs.lease_seconds, theirs.first.limit)
