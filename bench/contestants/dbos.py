"""DBOS Transact on PostgreSQL or SQLite: durable workflows, called directly or from a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient

from bench.contestant import Contestant, Send, Started, settled, vacuum
from bench.measures import Rate, Stopwatch

VERSION = "1"
QUEUE = "bench"

finished = 0


def nobody_waits() -> None:
    """The sending process never runs the handler."""


started_now: Started = nobody_waits


@DBOS.step()
async def step(i: int) -> int:
    return i


@DBOS.workflow(name="noop")
async def noop(i: int) -> int:
    global finished
    finished += 1
    return i


@DBOS.workflow(name="three")
async def three(i: int) -> int:
    global finished
    for _ in range(3):
        await step(i)
    finished += 1
    return i


@DBOS.workflow(name="ping")
async def ping(i: int) -> int:
    started_now()
    return i


class Dbos(Contestant):
    def __init__(self, url: str, poll_seconds: float = 1.0, direct: int = 0) -> None:
        """`direct` workflows at once are awaited in the process, without a queue."""
        super().__init__(url)
        self.phase_seconds = poll_seconds
        self.direct = direct
        self.on_postgres = url.startswith("postgresql:")
        self.system_url = url if self.on_postgres else f"sqlite:///{url}"

    async def prepare(self) -> None:
        async with self._launched():
            pass

    async def rate(self, n: int) -> Rate:
        return await self._work_off("noop", n, stages=1)

    async def pipeline3(self, n: int) -> Rate:
        if self.direct:
            return await self._call_directly(three, n, stages=3)
        return await self._work_off("three", n, stages=3)

    @asynccontextmanager
    async def worker(self, started: Started) -> AsyncIterator[None]:
        global started_now
        started_now = started
        async with self._launched():
            yield

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        client = DBOSClient(system_database_url=self.system_url)

        async def send() -> None:
            await client.enqueue_async(self._options("ping"), 1)

        yield send
        client.destroy()

    @asynccontextmanager
    async def _launched(self) -> AsyncIterator[None]:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self.system_url,
                "application_version": VERSION,
                "log_level": "ERROR",
                "console_log_level": "ERROR",
            }
        )
        DBOS.launch()
        await DBOS.register_queue_async(QUEUE, polling_interval_sec=self.phase_seconds)
        yield
        DBOS.destroy()

    def _options(self, workflow: str) -> Any:
        return {"queue_name": QUEUE, "workflow_name": workflow, "app_version": VERSION}

    @contextmanager
    def _engine(self) -> Iterator[sqlalchemy.Engine]:
        url = self.system_url.replace("postgresql://", "postgresql+psycopg://")
        engine = sqlalchemy.create_engine(url)
        yield engine
        engine.dispose()

    async def _work_off(self, workflow: str, n: int, stages: int) -> Rate:
        with self._engine() as engine:
            client = DBOSClient(system_database_url=self.system_url)
            with engine.begin() as connection:
                for i in range(n):
                    client.enqueue_in_transaction(connection, self._options(workflow), i)
            client.destroy()
            await vacuum(self.url)
            with Stopwatch() as watch:
                async with self._launched():
                    while finished < n or self._pending(engine):  # noqa: ASYNC110 - no event
                        await asyncio.sleep(0.05)
        settled(finished, n)
        return watch.rate(n, stages)

    async def _call_directly(self, workflow: Any, n: int, stages: int) -> Rate:
        numbers = iter(range(n))

        async def caller() -> None:
            for i in numbers:
                await workflow(i)

        async with self._launched():
            with Stopwatch() as watch:
                await asyncio.gather(*(caller() for _ in range(self.direct)))
        settled(finished, n)
        return watch.rate(n, stages)

    def _pending(self, engine: sqlalchemy.Engine) -> int:
        table = "dbos.workflow_status" if self.on_postgres else "workflow_status"
        query = f"SELECT count(*) FROM {table} WHERE status IN ('ENQUEUED', 'PENDING')"
        with engine.connect() as connection:
            return int(connection.execute(sqlalchemy.text(query)).scalar_one())


CONTESTANT = Dbos
