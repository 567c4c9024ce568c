"""The book of leases: one entry for each lease that this process believes it has.

An entry is named by its lease's mark, not by its item: an item that goes on to its next stage has a
new lease, and what is still on the way for the old one cannot be taken for it.

    from         to          when
    (nothing)    QUEUED      a claim gave it, or `reconcile` found it
    QUEUED       BEGINNING   a processor is there; the database is told that its handler begins
    QUEUED       RUNNING     a processor is there, and the claim said so already
    BEGINNING    RUNNING     the database knows
    RUNNING      ENDED       its handler is over, or was cut off: it has an outcome
    QUEUED, BEGINNING, RUNNING -> ENDED   it is given back
    ENDED        SENT        an exchange asks for its outcome
    SENT         ENDED       that exchange got no answer: it is asked for again
    SENT         GONE        it was answered
    QUEUED, BEGINNING, RUNNING -> GONE    the lease was lost

Pure: no clock, no store, no await.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from onceflow.core.item import Lease, Mark, mark_of
from onceflow.core.transition import Outcome

if TYPE_CHECKING:
    import asyncio

    from onceflow.engine.pool import Processor
    from onceflow.engine.scheduler import Plan

StageKey = tuple[str, str]
"""(pipeline, stage)."""


class Refusal(StrEnum):
    """Why a lease was not queued."""

    QUEUED = "already queued"
    PROCESSING = "being processed"
    ELSEWHERE = "queued in another stage"
    FULL = "queue full"


class State(IntEnum):
    """Before ENDED something is still to be done; from then on there is an outcome."""

    QUEUED = 1
    BEGINNING = 2
    RUNNING = 3
    ENDED = 4
    SENT = 5
    GONE = 6


@dataclass(slots=True, eq=False)
class Entry:
    """One lease, and how far this process has got with it."""

    lease: Lease
    plan: Plan
    since: float = 0.0
    """When it came in, on the loop's clock."""
    state: State = State.QUEUED
    processor: Processor | None = None
    """Kept until the outcome is sent, so that nothing piles up while the database is away."""
    attempt: asyncio.Task[None] | None = None
    outcome: Outcome | None = None
    seconds: float | None = None
    """How long the handler took."""
    parts: bool = False
    """Its handler has kept parts of its work, or asked for those of earlier attempts."""
    alone: bool = False
    """The store refused an exchange with it: it is asked for by itself."""
    mark: Mark = field(init=False)
    """Which lease it is."""

    def __post_init__(self) -> None:
        self.mark = mark_of(self.lease)


class Book:
    """All the entries of one process, with one bounded local queue per stage."""

    def __init__(self, stages: Iterable[StageKey], most: int) -> None:
        self.most = most
        self.refused: Counter[Refusal] = Counter()
        self._entries: dict[Mark, Entry] = {}
        self._by_item: dict[int, Entry] = {}
        """The entry of an item that is alive."""
        self._queues: dict[StageKey, deque[Entry]] = {stage: deque() for stage in stages}
        self._alone: deque[Entry] = deque()
        """What waits until nothing else is under way here."""
        self._quiet = 0
        """Entries alive that must run alone."""
        self._ended: deque[Entry] = deque()
        self._runs: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    # --- in ---

    def take_in(self, entry: Entry) -> Refusal | None:
        """Queue a new lease, or say why not: the four refusals."""
        lease = entry.lease
        queue = self._queues[entry.plan.key]
        other = self._by_item.get(lease.item)
        refusal = None
        if other is not None and other.state is State.QUEUED:
            refusal = Refusal.QUEUED if other.plan is entry.plan else Refusal.ELSEWHERE
        elif other is not None:
            refusal = Refusal.PROCESSING
        elif len(queue) >= self.most:
            refusal = Refusal.FULL
        if refusal is not None:
            self.refused[refusal] += 1
            return refusal
        self._enter(entry)
        self._by_item[lease.item] = entry
        self._quiet += lease.alone
        self._queue_of(entry).append(entry)
        return None

    def give_back(self, entry: Entry, outcome: Outcome) -> None:
        """A new lease that is not worked on here: all that is left is to say so."""
        self._enter(entry)
        entry.outcome = outcome
        entry.state = State.ENDED
        self._ended.append(entry)

    def _queue_of(self, entry: Entry) -> deque[Entry]:
        return self._alone if entry.lease.alone else self._queues[entry.plan.key]

    def _enter(self, entry: Entry) -> None:
        self._entries[entry.mark] = entry
        self._runs[entry.lease.run] += 1

    # --- work ---

    def next(self, stage: StageKey) -> Entry | None:
        """Take the next lease of a stage out of its queue, for a processor."""
        queue = self._queues[stage]
        return queue.popleft() if queue else None

    def next_alone(self) -> Entry | None:
        """Take the next lease that must run alone, if nothing else is under way here."""
        if not self._alone or len(self._by_item) > len(self._alone):
            return None
        return self._alone.popleft()

    def ended(self, entry: Entry, outcome: Outcome, seconds: float | None = None) -> None:
        """What is to become of a lease is known."""
        assert entry.state < State.ENDED
        self._leave(entry)
        entry.seconds = seconds
        entry.outcome = outcome
        entry.state = State.ENDED
        self._ended.append(entry)

    def take_ended(self) -> list[Entry]:
        """What to ask for next: everything that ended, or one entry that must be alone."""
        if not self._ended:
            return []
        if any(one.alone for one in self._ended):
            first = next(one for one in self._ended if one.alone)
            self._ended.remove(first)
            taken = [first]
        else:
            taken = list(self._ended)
            self._ended.clear()
        for one in taken:
            one.state = State.SENT
        return taken

    def back(self, entries: Iterable[Entry]) -> None:
        """They got no answer: they are asked for again, before all others."""
        for one in reversed(list(entries)):
            one.state = State.ENDED
            self._ended.appendleft(one)

    def forget(self, entry: Entry) -> None:
        """A lease is answered for, or was lost."""
        if entry.state < State.ENDED:
            self._leave(entry)
        entry.state = State.GONE
        del self._entries[entry.mark]
        run = entry.lease.run
        self._runs[run] -= 1
        if not self._runs[run]:
            del self._runs[run]

    def _leave(self, entry: Entry) -> None:
        """It is not alive any more."""
        if entry.state is State.QUEUED and entry in (queue := self._queue_of(entry)):
            queue.remove(entry)
        del self._by_item[entry.lease.item]
        self._quiet -= entry.lease.alone

    # --- questions ---

    def of(self, item: int) -> Entry | None:
        """The entry of an item that is alive here."""
        return self._by_item.get(item)

    def get(self, lease: Lease) -> Entry | None:
        return self._entries.get(mark_of(lease))

    def alive(self) -> list[Entry]:
        return list(self._by_item.values())

    def running(self) -> Iterator[Entry]:
        return (one for one in self._by_item.values() if one.state is State.RUNNING)

    def waiting(self, stage: StageKey | None = None) -> list[Entry]:
        """What waits for a processor, of one stage or of all."""
        if stage is not None:
            return list(self._queues[stage])
        return [one for queue in (self._alone, *self._queues.values()) for one in queue]

    @property
    def wants_quiet(self) -> bool:
        """Whether a lease is here that must run alone: nothing else is claimed meanwhile."""
        return self._quiet > 0

    def size(self, stage: StageKey) -> int:
        return len(self._queues[stage])

    @property
    def has_ended(self) -> bool:
        """Whether anything waits to be asked for."""
        return bool(self._ended)

    def marks(self) -> set[Mark]:
        """Every lease that this process believes it has."""
        return set(self._entries)

    def has_run(self, run: str) -> bool:
        """Whether anything of a run is under way here."""
        return run in self._runs
