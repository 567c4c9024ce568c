"""The processors of one stage: each works on one lease at a time.

A processor is `idle`, `busy`, or `error`: past its deadline, its item given back, out of service
until the next health check replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from onceflow.core.item import Lease


class ProcessorState(StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Processor:
    """One place where one attempt can run."""

    name: str
    state: ProcessorState = ProcessorState.IDLE
    lease: Lease | None = None
    since: float = 0.0
    """When the attempt began, on the loop's clock."""
    attempt: asyncio.Task[None] | None = None
    error: str | None = None


class Pool:
    """The processors of one stage."""

    def __init__(
        self, stage: str, count: int, changed: Callable[[Processor], None] | None = None
    ) -> None:
        self.processors = [Processor(f"{stage}-processor-{at}") for at in range(1, count + 1)]
        self._idle = list(reversed(self.processors))
        self._busy: dict[int, Processor] = {}  # by item, in the order they began
        self._changed = changed

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def assign(self, lease: Lease, now: float) -> Processor:
        """Give a lease to an idle processor."""
        processor = self._idle.pop()
        processor.state = ProcessorState.BUSY
        processor.lease = lease
        processor.since = now
        self._busy[lease.item] = processor
        if self._changed is not None:
            self._changed(processor)
        return processor

    def release(self, processor: Processor) -> None:
        """An attempt ended: its processor is free for the next, while the outcome is committed."""
        assert processor.lease is not None
        del self._busy[processor.lease.item]
        processor.state = ProcessorState.IDLE
        processor.lease = processor.attempt = None
        self._idle.append(processor)
        if self._changed is not None:
            self._changed(processor)

    def fail(self, processor: Processor, error: str) -> Lease:
        """Take a processor out of service; the lease it had."""
        lease = processor.lease
        assert lease is not None
        del self._busy[lease.item]
        processor.state = ProcessorState.ERROR
        processor.error = error
        processor.lease = processor.attempt = None
        if self._changed is not None:
            self._changed(processor)
        return lease

    def replace_failed(self) -> int:
        """Put a fresh processor in the place of each that is in error; how many there were."""
        count = 0
        for processor in self.processors:
            if processor.state is ProcessorState.ERROR:
                count += 1
                processor.state = ProcessorState.IDLE
                processor.error = None
                self._idle.append(processor)
                if self._changed is not None:
                    self._changed(processor)
        return count

    def works_on(self, lease: Lease) -> bool:
        """Whether a processor is busy with this very lease."""
        processor = self._busy.get(lease.item)
        return processor is not None and processor.lease is lease

    def begun_before(self, time: float) -> Iterator[Processor]:
        """The busy processors whose attempts began before that time."""
        for processor in list(self._busy.values()):
            if processor.since > time:
                return
            yield processor

    def oldest(self) -> float | None:
        """When the longest attempt under way began."""
        for processor in self._busy.values():
            return processor.since
        return None

    def working(self) -> list[Processor]:
        """Those whose attempts are under way."""
        return list(self._busy.values())
