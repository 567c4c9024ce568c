"""persist-queue's SQLiteAckQueue, in WAL mode with synchronous=FULL.

A bare queue: no handlers, no retries, no stages. One thread takes, works and acknowledges.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from persistqueue import SQLiteAckQueue

from bench.contestant import Contestant, Send, Started, settled
from bench.measures import Rate, Stopwatch

END = "end"


class PersistQueue(Contestant):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._shared: SQLiteAckQueue | None = None

    async def rate(self, n: int) -> Rate:
        return self._work_off(n, stages=1)

    async def pipeline3(self, n: int) -> Rate:
        """One queue per stage. An item is in the next queue before this one lets go of it."""
        return self._work_off(n, stages=3)

    @asynccontextmanager
    async def worker(self, started: Started) -> AsyncIterator[None]:
        queue = self._queue()

        def work() -> None:
            while (item := queue.get()) != END:
                started()
                queue.ack(item)

        thread = threading.Thread(target=work)
        thread.start()
        yield
        queue.put(END)
        await asyncio.to_thread(thread.join)

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        # The waiting thread is woken only by the object it waits on, so both share one.
        queue = self._shared = self._queue()

        async def send() -> None:
            queue.put(1)

        yield send

    def _queue(self, stage: int = 0) -> SQLiteAckQueue:
        if self._shared is not None:
            return self._shared
        return SQLiteAckQueue(f"{self.url}-{stage}", auto_commit=True, multithreading=True)

    def _work_off(self, n: int, stages: int) -> Rate:
        queues = [self._queue(stage) for stage in range(stages)]
        for i in range(n):
            queues[0].put(i)
        done = 0
        with Stopwatch() as watch:
            for queue, onward in zip(queues, [*queues[1:], None], strict=True):
                for _ in range(n):
                    item = queue.get(block=False)
                    if onward is None:
                        done += 1
                    else:
                        onward.put(item)
                    queue.ack(item)
        settled(done, n)
        return watch.rate(n, stages)


CONTESTANT = PersistQueue
