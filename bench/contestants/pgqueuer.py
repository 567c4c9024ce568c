"""PgQueuer on PostgreSQL, through asyncpg, its fastest driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from bench.contestant import Contestant, Send, Started, settled, vacuum
from bench.measures import Rate, Stopwatch

FILL_CHUNK = 1000
DEQUEUE_TIMEOUT = timedelta(seconds=1)


class PgQueuerContestant(Contestant):
    def __init__(self, url: str, batch: int = 10, connections: int = 10) -> None:
        super().__init__(url)
        self.batch = batch
        self.connections = connections

    async def prepare(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def rate(self, n: int) -> Rate:
        connection = await asyncpg.connect(self.url)
        await self._fill(connection, "noop", n)
        queuer = PgQueuer(AsyncpgDriver(connection))

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            pass

        with Stopwatch() as watch:
            await queuer.qm.run(
                mode=QueueExecutionMode.drain,
                batch_size=self.batch,
                dequeue_timeout=DEQUEUE_TIMEOUT,
            )
        await self._check_empty(n)
        return watch.rate(n)

    async def pipeline3(self, n: int) -> Rate:
        """PgQueuer has no stages: each handler enqueues the next one, over a pool."""
        connection = await asyncpg.connect(self.url)
        await self._fill(connection, "first", n)
        queuer = PgQueuer(AsyncpgDriver(connection))
        done = 0
        async with asyncpg.create_pool(
            self.url, min_size=self.connections, max_size=self.connections
        ) as pool:
            onward = Queries(AsyncpgPoolDriver(pool))

            @queuer.entrypoint("first")
            async def first(job: Job) -> None:
                await onward.enqueue("second", b"1")

            @queuer.entrypoint("second")
            async def second(job: Job) -> None:
                await onward.enqueue("third", b"1")

            @queuer.entrypoint("third")
            async def third(job: Job) -> None:
                nonlocal done
                done += 1
                if done == n:
                    queuer.shutdown.set()

            with Stopwatch() as watch:
                await queuer.qm.run(batch_size=self.batch, dequeue_timeout=DEQUEUE_TIMEOUT)
        await self._check_empty(n)
        return watch.rate(n, stages=3)

    @asynccontextmanager
    async def worker(self, started: Started) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self.url)
        queuer = PgQueuer(AsyncpgDriver(connection))

        @queuer.entrypoint("ping")
        async def ping(job: Job) -> None:
            started()

        task = asyncio.create_task(queuer.run(batch_size=self.batch))
        yield
        queuer.shutdown.set()
        await task

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        connection = await asyncpg.connect(self.url)
        queries = Queries(AsyncpgDriver(connection))

        async def send() -> None:
            await queries.enqueue("ping", b"1")

        yield send
        await connection.close()

    async def _fill(self, connection: asyncpg.Connection, name: str, n: int) -> None:
        queries = Queries(AsyncpgDriver(connection))
        for start in range(0, n, FILL_CHUNK):
            size = min(FILL_CHUNK, n - start)
            await queries.enqueue([name] * size, [b"1"] * size, [0] * size)
        await vacuum(self.url)

    async def _check_empty(self, n: int) -> None:
        connection = await asyncpg.connect(self.url)
        left = await connection.fetchval("SELECT count(*) FROM pgqueuer")
        await connection.close()
        settled(n - left, n)


CONTESTANT = PgQueuerContestant
