"""The processors of one stage: each works on one lease at a time.

A processor is `idle`, `busy`, or `error`: past its deadline, its item given back, out of service
until the next health check replaces it.
"""

from __future__ import annotations

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
    error: str | None = None


class Pool:
    """The processors of one stage."""

    def __init__(
        self, stage: str, count: int, changed: Callable[[Processor], None] | None = None
    ) -> None:
        self.processors = [Processor(f"{stage}-processor-{at}") for at in range(1, count + 1)]
        self._idle = list(reversed(self.processors))
        self._busy: dict[Processor, None] = {}  # in the order they began
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
        self._busy[processor] = None
        if self._changed is not None:
            self._changed(processor)
        return processor

    def begin(self, processor: Processor, now: float) -> None:
        """Its attempt begins only now: it had waited for the database."""
        del self._busy[processor]
        processor.since = now
        self._busy[processor] = None

    def release(self, processor: Processor) -> None:
        """Its lease is somebody else's business: it is free for the next."""
        del self._busy[processor]
        processor.state = ProcessorState.IDLE
        processor.lease = None
        self._idle.append(processor)
        if self._changed is not None:
            self._changed(processor)

    def fail(self, processor: Processor, error: str) -> None:
        """Take a processor out of service."""
        del self._busy[processor]
        processor.state = ProcessorState.ERROR
        processor.error = error
        processor.lease = None
        if self._changed is not None:
            self._changed(processor)

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

    def begun_before(self, time: float) -> Iterator[Processor]:
        """The busy processors whose attempts began before that time."""
        for processor in list(self._busy):
            if processor.since > time:
                return
            yield processor

    def oldest(self) -> float | None:
        """When the longest attempt under way began."""
        for processor in self._busy:
            return processor.since
        return None
