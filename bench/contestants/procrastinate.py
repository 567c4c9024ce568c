"""Procrastinate on PostgreSQL, through psycopg 3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector
from procrastinate.types import JSONValue

from bench.contestant import Contestant, Send, Started, settled, vacuum
from bench.measures import Rate, Stopwatch

FILL_CHUNK = 500


class Procrastinate(Contestant):
    def __init__(self, url: str, concurrency: int = 10) -> None:
        super().__init__(url)
        self.concurrency = concurrency

    async def prepare(self) -> None:
        async with self._app().open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def rate(self, n: int) -> Rate:
        app = self._app()
        done = 0

        @app.task(name="noop")
        async def noop(i: int) -> None:
            nonlocal done
            done += 1

        async with app.open_async():
            await self._fill(app, "noop", n)
            with Stopwatch() as watch:
                await self._drain(app)
        settled(done, n)
        return watch.rate(n)

    async def pipeline3(self, n: int) -> Rate:
        """Procrastinate has no stages: each task defers the next one."""
        app = self._app()
        done = 0

        @app.task(name="third")
        async def third(i: int) -> None:
            nonlocal done
            done += 1

        @app.task(name="second")
        async def second(i: int) -> None:
            await third.defer_async(i=i)

        @app.task(name="first")
        async def first(i: int) -> None:
            await second.defer_async(i=i)

        async with app.open_async():
            await self._fill(app, "first", n)
            with Stopwatch() as watch:
                await self._drain(app)
        settled(done, n)
        return watch.rate(n, stages=3)

    @asynccontextmanager
    async def worker(self, started: Started) -> AsyncIterator[None]:
        app = self._app()

        @app.task(name="ping")
        async def ping(i: int) -> None:
            started()

        async with app.open_async():
            running = app.run_worker_async(
                concurrency=self.concurrency, install_signal_handlers=False
            )
            task = asyncio.create_task(running)
            yield
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        app = self._app()

        async def send() -> None:
            await app.configure_task("ping").defer_async(i=1)

        async with app.open_async():
            yield send

    def _app(self) -> App:
        size = min(self.concurrency + 2, 30)
        return App(connector=PsycopgConnector(conninfo=self.url, max_size=size))

    async def _fill(self, app: App, name: str, n: int) -> None:
        for start in range(0, n, FILL_CHUNK):
            end = min(start + FILL_CHUNK, n)
            values: list[dict[str, JSONValue]] = [{"i": i} for i in range(start, end)]
            await app.tasks[name].batch_defer_async(*values)
        await vacuum(self.url)

    async def _drain(self, app: App) -> None:
        await app.run_worker_async(
            wait=False, concurrency=self.concurrency, install_signal_handlers=False
        )


CONTESTANT = Procrastinate
