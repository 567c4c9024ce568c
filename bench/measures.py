"""What a contestant answers when it is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Rate:
    """So many items taken through all their stages, each stage's end durable."""

    items: int
    stages: int
    seconds: float
    cpu_seconds: float
    """Of the Python process with all its threads; the database server is not in it."""

    @property
    def items_per_second(self) -> float:
        return self.items / self.seconds

    @property
    def cpu_ms_per_transition(self) -> float:
        return 1000 * self.cpu_seconds / (self.items * self.stages)


@dataclass(frozen=True, slots=True)
class Pickup:
    """From the call that adds one item to an idle engine until its handler starts."""

    seconds: list[float]


@dataclass(frozen=True, slots=True)
class Idle:
    """What a worker with nothing to do uses of one core."""

    cpu_share: float


@dataclass(frozen=True, slots=True)
class ClaimTimes:
    """How long claims took in a table of so many items."""

    rows: int
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class Memory:
    """The resident memory of a worker, sampled while it works through many items."""

    items: list[int]
    rss_bytes: list[int]


@dataclass(slots=True)
class Stopwatch:
    """Wall time and CPU time of this process over a `with` block."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    _started: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    def __enter__(self) -> Self:
        self._started = time.perf_counter(), time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wall, cpu = self._started
        self.seconds = time.perf_counter() - wall
        self.cpu_seconds = time.process_time() - cpu

    def rate(self, items: int, stages: int = 1) -> Rate:
        return Rate(items, stages, self.seconds, self.cpu_seconds)
