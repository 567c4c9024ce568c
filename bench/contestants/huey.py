"""Huey on SQLite with its default durability: WAL and SQLite's own synchronous=FULL.

Huey runs plain functions in threads. A function that returns None has no result to store, which
is Huey at its fastest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from huey import SqliteHuey  # type: ignore[import-untyped]  # it has no types

from bench.contestant import Contestant, Send, Started
from bench.measures import Rate, Stopwatch

DRAIN_SECONDS_MAX = 300
DEFAULT_POLL_SECONDS = (0.1, 10.0)  # the first delay and the longest, as its consumer has them


class Huey(Contestant):
    def __init__(self, url: str, threads: int = 1, poll_seconds: float | None = None) -> None:
        super().__init__(url)
        self.threads = threads
        self.poll = (poll_seconds, poll_seconds) if poll_seconds else DEFAULT_POLL_SECONDS
        self.phase_seconds = self.poll[0]
        self.huey = SqliteHuey("bench", filename=url)
        self.started: Started = _nobody_waits

        def ping() -> None:
            self.started()

        self.ping = self._task(ping)

    async def rate(self, n: int) -> Rate:
        done = _Countdown(n)

        def noop(i: int) -> None:
            done.one()

        return self._work_off(self._task(noop), done, stages=1)

    async def pipeline3(self, n: int) -> Rate:
        """Each task calls the next one, which enqueues it."""
        done = _Countdown(n)

        def third(i: int) -> None:
            done.one()

        def second(i: int) -> None:
            add_third(i)

        def first(i: int) -> None:
            add_second(i)

        add_third, add_second = self._task(third), self._task(second)
        return self._work_off(self._task(first), done, stages=3)

    @asynccontextmanager
    async def worker(self, started: Started) -> AsyncIterator[None]:
        self.started = started
        first, longest = self.poll
        consumer = self.huey.create_consumer(
            workers=self.threads, periodic=False, initial_delay=first, max_delay=longest
        )
        consumer.start()
        yield
        await asyncio.to_thread(consumer.stop, graceful=True)

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        async def send() -> None:
            self.ping()

        yield send

    def _task(self, function: Callable[..., None]) -> Callable[..., object]:
        """What enqueues a call of that function."""
        enqueue: Callable[..., object] = self.huey.task()(function)
        return enqueue

    def _work_off(self, task: Callable[[int], object], done: _Countdown, stages: int) -> Rate:
        for i in range(done.n):
            task(i)
        consumer = self.huey.create_consumer(workers=self.threads, periodic=False)
        with Stopwatch() as watch:
            consumer.start()
            if not done.zero.wait(DRAIN_SECONDS_MAX):
                raise TimeoutError("Huey did not finish its items")
        consumer.stop(graceful=True)
        return watch.rate(done.n, stages)


def _nobody_waits() -> None:
    """The sending process never runs the handler."""


class _Countdown:
    def __init__(self, n: int) -> None:
        self.n = n
        self._left = n
        self._lock = threading.Lock()
        self.zero = threading.Event()

    def one(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.zero.set()


CONTESTANT = Huey
