"""SAQ with its PostgreSQL queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from saq import Queue, Worker

from bench.contestant import Contestant, Send, Started, vacuum
from bench.measures import Rate, Stopwatch

FILLERS = 20
LEFT = "SELECT count(*) FROM saq_jobs WHERE status IN ('new', 'queued', 'active')"
DRAIN_SECONDS_MAX = 300
NO_TIMEOUT = 0  # its default of 10 s per job ends jobs for good on a busy machine


class Saq(Contestant):
    def __init__(self, url: str, concurrency: int = 10) -> None:
        super().__init__(url)
        self.concurrency = concurrency

    async def rate(self, n: int) -> Rate:
        queue = await self._queue()
        done = _Countdown(n)

        async def noop(context: Any, *, i: int) -> None:
            done.one()

        return await self._work_off(queue, {"noop": noop}, done, stages=1)

    async def pipeline3(self, n: int) -> Rate:
        """SAQ has no stages: each function enqueues the next one."""
        queue = await self._queue()
        done = _Countdown(n)

        async def first(context: Any, *, i: int) -> None:
            await queue.enqueue("second", i=i, timeout=NO_TIMEOUT)

        async def second(context: Any, *, i: int) -> None:
            await queue.enqueue("third", i=i, timeout=NO_TIMEOUT)

        async def third(context: Any, *, i: int) -> None:
            done.one()

        functions = {"first": first, "second": second, "third": third}
        return await self._work_off(queue, functions, done, stages=3)

    @asynccontextmanager
    async def worker(self, started: Started) -> AsyncIterator[None]:
        queue = await self._queue()

        async def ping(context: Any) -> None:
            started()

        async with self._working(queue, {"ping": ping}):
            yield
        await queue.disconnect()

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        queue = await self._queue()

        async def send() -> None:
            await queue.enqueue("ping")

        yield send
        await queue.disconnect()

    async def _queue(self) -> Any:
        queue = Queue.from_url(self.url)
        await queue.connect()
        return queue

    @asynccontextmanager
    async def _working(self, queue: Any, functions: dict[str, Any]) -> AsyncIterator[None]:
        worker = Worker(queue, functions=list(functions.items()), concurrency=self.concurrency)
        task = asyncio.create_task(worker.start())
        yield
        await worker.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _work_off(
        self, queue: Any, functions: dict[str, Any], done: _Countdown, stages: int
    ) -> Rate:
        name = next(iter(functions))
        numbers = iter(range(done.n))

        async def fill() -> None:
            for i in numbers:
                await queue.enqueue(name, i=i, timeout=NO_TIMEOUT)

        await asyncio.gather(*(fill() for _ in range(FILLERS)))
        await vacuum(self.url)
        connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        # The worker's task starts to run at the first await, inside the stopwatch.
        async with connection, self._working(queue, functions):
            with Stopwatch() as watch:
                async with asyncio.timeout(DRAIN_SECONDS_MAX):
                    await done.zero.wait()
                    while await _left(connection):  # noqa: ASYNC110 - no event
                        await asyncio.sleep(0.02)
        await queue.disconnect()
        return watch.rate(done.n, stages)


class _Countdown:
    def __init__(self, n: int) -> None:
        self.n = n
        self._left = n
        self.zero = asyncio.Event()

    def one(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.zero.set()


async def _left(connection: psycopg.AsyncConnection[Any]) -> int:
    row = await (await connection.execute(LEFT)).fetchone()
    assert row is not None
    return int(row[0])


CONTESTANT = Saq
