"""The coordinator: gives queued leases to idle processors, in the stages' priority order.

A stage may be throttled: then a cycle assigns at most so many of it, and its cycles are at least
`cycle_seconds` apart.
"""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.core.item import Lease
from onceflow.engine.pool import Processor
from onceflow.engine.queue import Queues
from onceflow.engine.scheduler import Plan, Scheduler


class Coordinator:
    def __init__(self, scheduler: Scheduler, queues: Queues, cycle_seconds: float) -> None:
        self._scheduler = scheduler
        self._queues = queues
        self._cycle_seconds = cycle_seconds

    def assign(self, now: float) -> Iterator[tuple[Plan, Processor, Lease]]:
        """Assign what can be assigned now."""
        for plan in self._scheduler.plans.values():
            pool = plan.pool
            if not pool.idle or not self._queues.size(plan.key):
                continue
            most = plan.stage.assign_max
            if most is not None:
                if now < plan.assigned_at + self._cycle_seconds:
                    continue
                plan.assigned_at = now
            count = pool.idle if most is None else min(pool.idle, most)
            for _ in range(count):
                lease = self._queues.take(plan.key)
                if lease is None:
                    break
                yield plan, pool.assign(lease, now), lease

    def next_at(self, now: float) -> float | None:
        """When a throttled stage that could assign may do so again."""
        times = [
            max(now, plan.assigned_at + self._cycle_seconds)
            for plan in self._scheduler.plans.values()
            if plan.stage.assign_max is not None and plan.pool.idle and self._queues.size(plan.key)
        ]
        return min(times, default=None)
