"""litequeue on SQLite, set to synchronous=FULL as the others are (its default is NORMAL).

A bare queue: no handlers, no retries, no stages, and no way to wait for an item.
"""

from __future__ import annotations

from litequeue import LiteQueue  # type: ignore[import-untyped]  # it has no types

from bench.contestant import Contestant, settled
from bench.measures import Rate, Stopwatch


class LiteQueueContestant(Contestant):
    async def rate(self, n: int) -> Rate:
        return self._work_off(n, stages=1)

    async def pipeline3(self, n: int) -> Rate:
        """One queue per stage. An item is in the next queue before this one lets go of it."""
        return self._work_off(n, stages=3)

    def _work_off(self, n: int, stages: int) -> Rate:
        queues = [LiteQueue(f"{self.url}-{stage}") for stage in range(stages)]
        for queue in queues:
            queue.conn.execute("PRAGMA synchronous = FULL")
        for i in range(n):
            queues[0].put(str(i))
        done = 0
        with Stopwatch() as watch:
            for queue, onward in zip(queues, [*queues[1:], None], strict=True):
                for _ in range(n):
                    message = queue.pop()
                    if onward is None:
                        done += 1
                    else:
                        onward.put(message.data)
                    queue.done(message.message_id)
        settled(done, n)
        return watch.rate(n, stages)


CONTESTANT = LiteQueueContestant
