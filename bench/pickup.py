"""How soon an idle engine starts on one new item, added in the same process or by another."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bench.contestant import Contestant
from bench.machine import cpu_seconds_of
from bench.measures import Idle, Pickup

SETTLE_SECONDS = 1.0
PROGRAM_SETTLE_SECONDS = 3.0  # an interpreter starts, too
PAUSE_SECONDS = (0.02, 0.08)
ANSWER_SECONDS_MAX = 30.0

Add = Callable[[], Awaitable[float]]
"""Adds one item and answers when it began to, on the clock that all processes share."""


class _Arrivals:
    """When handlers started. They may run in any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._times: asyncio.Queue[float] = asyncio.Queue()

    def started(self) -> None:
        # perf_counter is the system's monotonic clock on Linux: the same in every process.
        now = time.perf_counter()
        self._loop.call_soon_threadsafe(self._times.put_nowait, now)

    async def next(self) -> float:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await self._times.get()


async def in_one_process(contestant: Contestant, n: int) -> Pickup:
    async with contestant.sender() as send:

        async def add() -> float:
            began = time.perf_counter()
            await send()
            return began

        return await _measure(contestant, n, add)


async def from_another_process(contestant: Contestant, n: int, task: dict[str, Any]) -> Pickup:
    async with _sending_process(task) as add:
        return await _measure(contestant, n, add)


async def idle(contestant: Contestant, seconds: float) -> Idle:
    """What a worker uses that has nothing to do for so long."""
    if contestant.program:
        return await _idle_program(contestant.program, seconds)
    async with contestant.worker(lambda: None):
        await asyncio.sleep(SETTLE_SECONDS)
        began, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        return Idle((time.process_time() - used) / (time.perf_counter() - began))


async def _idle_program(program: Sequence[str], seconds: float) -> Idle:
    process = await asyncio.create_subprocess_exec(
        *program, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await asyncio.sleep(PROGRAM_SETTLE_SECONDS)
        began, used = time.perf_counter(), cpu_seconds_of(process.pid)
        await asyncio.sleep(seconds)
        share = (cpu_seconds_of(process.pid) - used) / (time.perf_counter() - began)
        if process.returncode is not None:
            raise RuntimeError(f"{program[0]} ended with {process.returncode}")
        return Idle(share)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _measure(contestant: Contestant, n: int, add: Add) -> Pickup:
    arrivals = _Arrivals()
    seconds = []
    async with contestant.worker(arrivals.started):
        await asyncio.sleep(SETTLE_SECONDS)
        for _ in range(n):
            # The arrival may be earlier than the return of the call that added the item.
            began = await add()
            seconds.append(await arrivals.next() - began)
            phase = random.uniform(0, contestant.phase_seconds)
            await asyncio.sleep(random.uniform(*PAUSE_SECONDS) + phase)
    return Pickup(seconds)


@asynccontextmanager
async def _sending_process(task: dict[str, Any]) -> AsyncIterator[Add]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.child", json.dumps({**task, "measure": "send"})),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to_sender, from_sender = process.stdin, process.stdout

    async def line() -> str:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            text = (await from_sender.readline()).decode()
        if not text:
            raise RuntimeError("the sending process ended early")
        return text

    async def add() -> float:
        to_sender.write(b"add\n")
        await to_sender.drain()
        return float(await line())

    try:
        await line()  # it says that it is ready
        yield add
    finally:
        to_sender.close()
        await process.wait()


async def send_on_request(contestant: Contestant) -> None:
    """The other process: for each line that comes in, add one item and say when that began."""
    async with contestant.sender() as send:
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            began = time.perf_counter()
            await send()
            print(repr(began), flush=True)
