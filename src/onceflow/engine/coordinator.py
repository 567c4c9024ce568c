"""The coordinator: gives queued leases to idle processors, in the stages' priority order.

A stage may be throttled: then a cycle assigns at most so many of it, and its cycles are at least
`cycle_seconds` apart. What must run alone waits until nothing else is under way.
"""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.engine.book import Book, Entry
from onceflow.engine.scheduler import Scheduler


class Coordinator:
    def __init__(self, scheduler: Scheduler, book: Book, cycle_seconds: float) -> None:
        self._scheduler = scheduler
        self._book = book
        self._cycle_seconds = cycle_seconds

    def assign(self, now: float) -> Iterator[Entry]:
        """Give what can be given now: entries with their processors."""
        for plan in self._scheduler.plans.values():
            pool = plan.pool
            if not pool.idle or not self._book.size(plan.key):
                continue
            most = plan.stage.assign_max
            if most is not None:
                if now < plan.assigned_at + self._cycle_seconds:
                    continue
                plan.assigned_at = now
            count = pool.idle if most is None else min(pool.idle, most)
            for _ in range(count):
                entry = self._book.next(plan.key)
                if entry is None:
                    break
                entry.processor = pool.assign(entry.lease, now)
                yield entry
        if self._scheduler.awaits_nothing and (alone := self._book.next_alone()) is not None:
            alone.processor = alone.plan.pool.assign(alone.lease, now)
            yield alone

    def next_at(self, now: float) -> float | None:
        """When a throttled stage that could assign may do so again."""
        times = [
            max(now, plan.assigned_at + self._cycle_seconds)
            for plan in self._scheduler.plans.values()
            if plan.stage.assign_max is not None and plan.pool.idle and self._book.size(plan.key)
        ]
        return min(times, default=None)
