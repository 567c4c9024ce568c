"""The local queues: leases that wait for a processor, one bounded queue per stage.

A lease is refused when its item is queued already, is being processed, is queued in another stage,
or the queue is full. Each refusal has its reason and is counted.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import StrEnum

from onceflow.core.item import Lease

StageKey = tuple[str, str]
"""(pipeline, stage)."""


class Refusal(StrEnum):
    """Why a lease was not queued."""

    QUEUED = "already queued"
    PROCESSING = "being processed"
    ELSEWHERE = "queued in another stage"
    FULL = "queue full"


class Queues:
    """All the local queues of one process."""

    def __init__(self, stages: list[StageKey], most: int) -> None:
        self.most = most
        self.refused: Counter[Refusal] = Counter()
        self._waiting: dict[StageKey, deque[Lease]] = {stage: deque() for stage in stages}
        self._queued: dict[int, StageKey] = {}
        self._processing: set[int] = set()

    def enqueue(self, lease: Lease, *, first: bool = False) -> Refusal | None:
        """Queue a lease, or say why not."""
        stage = (lease.pipeline, lease.stage)
        waiting = self._waiting[stage]
        refusal = None
        if lease.item in self._queued:
            same = self._queued[lease.item] == stage
            refusal = Refusal.QUEUED if same else Refusal.ELSEWHERE
        elif lease.item in self._processing:
            refusal = Refusal.PROCESSING
        elif len(waiting) >= self.most:
            refusal = Refusal.FULL
        if refusal is not None:
            self.refused[refusal] += 1
            return refusal
        self._queued[lease.item] = stage
        if first:
            waiting.appendleft(lease)
        else:
            waiting.append(lease)
        return None

    def take(self, stage: StageKey) -> Lease | None:
        """The next lease of a stage; its item counts as being processed from now on."""
        waiting = self._waiting[stage]
        if not waiting:
            return None
        lease = waiting.popleft()
        del self._queued[lease.item]
        self._processing.add(lease.item)
        return lease

    def finished(self, item: int) -> None:
        """An item is not being processed any more."""
        self._processing.discard(item)

    def empty(self, stage: StageKey | None = None) -> list[Lease]:
        """Take everything out, of one stage or of all."""
        leases = self.waiting() if stage is None else list(self._waiting[stage])
        for lease in leases:
            self._waiting[lease.pipeline, lease.stage].clear()
            del self._queued[lease.item]
        return leases

    def drop(self, item: int) -> bool:
        """Take one item out, because its lease was lost."""
        stage = self._queued.pop(item, None)
        if stage is None:
            return False
        self._waiting[stage] = deque(lease for lease in self._waiting[stage] if lease.item != item)
        return True

    def waiting(self) -> list[Lease]:
        """Every lease that waits for a processor."""
        return [lease for waiting in self._waiting.values() for lease in waiting]

    def size(self, stage: StageKey) -> int:
        return len(self._waiting[stage])

    def holds(self, item: int) -> bool:
        """Whether an item is queued or being processed here."""
        return item in self._queued or item in self._processing

    def __len__(self) -> int:
        return len(self._queued)
