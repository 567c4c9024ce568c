"""What a process says about itself: its processors, queues, refusals and last check."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from onceflow.engine.book import Book
from onceflow.engine.pool import ProcessorState
from onceflow.engine.scheduler import Scheduler


@dataclass(slots=True)
class Tally:
    """What has happened in this process since it started."""

    claimed: int = 0
    contested: int = 0
    """Items first in line that another claim took: the losing UPDATEs."""
    finished: int = 0
    failed: int = 0
    retried: int = 0
    released: int = 0
    lost: int = 0
    """Leases lost before their attempts were committed: their results were dropped."""
    adopted: int = 0
    """Leases found in the database that a lost reply had hidden."""
    expired: int = 0
    """Attempts cut off at their deadline."""
    replaced: int = 0
    """Processors replaced after an error."""
    reclaimed: int = 0
    setbacks: int = 0
    """Times the database was seen to know less than it did."""
    fenced: int = 0
    """Times all work was stopped because no heartbeat could be written."""
    checks: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """One report, as the API and `onceflow status` show it."""

    healthy: bool
    queues: dict[str, int]
    pools: dict[str, dict[str, int]]
    """Of each stage, its processors by state."""
    processors: list[dict[str, Any]]
    refused: dict[str, int]
    tally: dict[str, int]
    silent_seconds: float
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        """One line for the log."""
        totals: Counter[str] = Counter()
        for states in self.pools.values():
            totals.update(states)
        words = ["; ".join(self.problems) or "ok"]
        words.append("processors " + ", ".join(f"{n} {state}" for state, n in totals.items()))
        queued = ", ".join(f"{name} {size}" for name, size in self.queues.items() if size)
        words.append(f"queues {queued or 'empty'}")
        counts = {name: count for name, count in self.tally.items() if count}
        words.append(", ".join(f"{name} {count}" for name, count in counts.items()) or "no work")
        return "; ".join(words)


def report(
    scheduler: Scheduler, book: Book, tally: Tally, silent_seconds: float, now: float
) -> Health:
    """The state of the whole process at this moment."""
    processors: list[dict[str, Any]] = []
    problems: list[str] = []
    sizes: dict[str, int] = {}
    pools: dict[str, dict[str, int]] = {}
    for plan in scheduler.plans.values():
        name = f"{plan.pipeline.name}/{plan.stage.name}"
        sizes[name] = book.size(plan.key)
        states = Counter(processor.state for processor in plan.pool.processors)
        pools[name] = {state.value: states[state] for state in ProcessorState}
        if states[ProcessorState.ERROR]:
            problems.append(f"{name}: {states[ProcessorState.ERROR]} processors in error")
        for processor in plan.pool.processors:
            lease = processor.lease
            if processor.state is ProcessorState.IDLE:
                continue  # a thousand idle ones say nothing
            processors.append(
                {
                    "name": processor.name,
                    "pipeline": plan.pipeline.name,
                    "stage": plan.stage.name,
                    "state": processor.state.value,
                    "key": None if lease is None else lease.key,
                    "seconds": None if lease is None else round(now - processor.since, 3),
                    "error": processor.error,
                }
            )
        processors.append(
            {
                "pipeline": plan.pipeline.name,
                "stage": plan.stage.name,
                "state": ProcessorState.IDLE.value,
                "count": states[ProcessorState.IDLE],
            }
        )
    return Health(
        not problems,
        sizes,
        pools,
        processors,
        {reason.value: count for reason, count in dict(book.refused).items()},
        asdict(tally),
        round(silent_seconds, 3),
        problems,
    )
