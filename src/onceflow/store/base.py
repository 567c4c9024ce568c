"""What the engine asks of a store. Both back ends answer the same, by one behaviour suite.

Every write is a compare-and-swap whose guard is in its SQL. Everything here may be asked again
after a lost reply: the answer is then the one that was lost, or one that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol

from onceflow.core.item import Added, Lease, Mark, Seed
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import Part, Transition

Row = Mapping[str, Any]
Command = Literal["retry", "cancel", "release", "trigger"]

SWEEP_MAX = 500
"""How many rows one bounded statement of a sweep touches at the most."""
LANES_WALKED_MAX = 1000
"""How many lanes one claim looks at; the next one goes on from there."""
RUNS_IN_TURN_MAX = 100
"""How many runs one claim looks at; where there are more, the next one goes on from there."""
DEATHS_MAX = 5
"""So many workers may die while an item's handler runs beside others; then it runs alone."""
APART_MS = 10_000
"""How long at the most an item waits for its last attempt after its worker died."""
WORKER_FORGOTTEN_MS = 3_600_000
"""A worker that has been silent so long and holds nothing is forgotten."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One process start. The id is fresh each time: two processes never share one."""

    id: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A wish for leases: at most `count` of one stage, or the one item named."""

    pipeline: str
    stage: str
    before: str
    """The stage whose result is this one's input; empty for what came with the item."""
    count: int
    turn: int = 0
    """Grows by one a claim: whose turn it is among several runs."""
    lane: str = ""
    """Lanes after this one come first."""
    item: int | None = None
    prefetch: bool = False
    """The leases wait in a local queue: each is begun by a later exchange, and counts from then."""
    run: str = ""
    """Where there are too many runs for one look, those after this one come first."""


class Claimed(NamedTuple):
    """What one claim gave."""

    leases: Sequence[Lease]
    lane: str = ""
    """Where the next claim goes on."""
    more: bool = False
    """There may be more: ask again without waiting for a wake-up."""
    opens_in_ms: int | None = None
    """A lane that was closed opens then."""
    full: bool = False
    """The stage's limit, declared or an operator's, is reached: who frees a place asks again."""
    contested: int = 0
    """Items that were first in line when it looked, but that another claim was taking: the
    compare-and-swap lost them. Always 0 where there is one writer."""
    run: str = ""
    """The run that was served last, if there were too many for one look."""


class Finish(NamedTuple):
    """A lease and the transition it wants to make."""

    lease: Lease
    change: Transition
    claim_next: bool = False
    """The stage it goes on to is claimed along with it, if nothing bounds that stage."""


class Kept(IntEnum):
    """What became of a finish. Only LOST is false."""

    LOST = 0
    """Somebody else has the item: nothing was changed."""
    KEPT = 1
    BEFORE = 2
    """It was kept when it was asked for first, and that answer was lost."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The answer to an exchange: what became of the finishes, what was claimed for the wishes, the
    leases of items that went on to their next stages at once, and which prefetched leases began."""

    kept: Sequence[Kept] = ()
    claimed: Sequence[Claimed] = ()
    continued: Sequence[Lease] = ()
    begun: Sequence[bool] = ()


class Add(NamedTuple):
    """Items to be, and the run they belong to. The caller makes up the run's id, so that adding
    again after a lost reply is harmless."""

    pipeline: Pipeline
    run: str
    seeds: Sequence[Seed]
    seal: bool = True
    max_items: int | None = None
    max_depth: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None

    @property
    def has_ceiling(self) -> bool:
        """Whether a run that was halted may go on after it."""
        return self.max_tokens is not None or self.max_cost is not None


class Accepted(NamedTuple):
    """The answer to an add."""

    added: Added
    claimed: Sequence[Claimed] = ()


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did, and when the next waiting item is due."""

    reclaimed: int = 0
    promoted: int = 0
    settled: int = 0
    finished: int = 0
    due_in_ms: int | None = None
    more: bool = False
    """There are more runs to look at: ask again."""
    missed: int = 0
    """Gates that were due while somebody else had their runs locked: ask again soon."""

    @property
    def moved(self) -> bool:
        return bool(self.reclaimed or self.promoted or self.settled or self.finished)


@dataclass(frozen=True, slots=True)
class Target:
    """An item as an operator saw it: the command fits only while its version is the same."""

    item: int
    version: int
    lane: str = ""


class Store(Protocol):
    """The one door to durable state."""

    url: str
    """Where it is, fit to be shown: without a password."""

    async def open(self, pipelines: Iterable[Pipeline] = ()) -> None:
        """Connect, migrate, and make the pipelines known."""

    async def close(self) -> None:
        """Let go of every connection and thread."""

    async def add(
        self, add: Add, worker: str = "", number: int = 0, claims: Sequence[Claim] = ()
    ) -> Accepted:
        """Accept items into a run, and claim in the same transaction. `number` is the ticket of the
        leases it gives."""

    async def exchange(
        self,
        worker: str,
        number: int,
        finishes: Sequence[Finish],
        claims: Sequence[Claim],
        begins: Sequence[Lease] = (),
    ) -> Exchanged:
        """Finish attempts, claim new ones and begin prefetched ones, in one transaction. `number`
        is the ticket of the leases it gives: no two exchanges of any processes have the same."""

    async def held(self, worker: str) -> set[Mark]:
        """The leases that the database says a worker has."""

    async def leases(self, worker: str, items: Collection[int]) -> list[Lease]:
        """The leases that a worker has on some items, each with its input."""

    async def renew(self, lease: Lease, text: str | None = None, part: Part | None = None) -> bool:
        """Move the lease's deadline on and keep its text so far, or a part of its work along with
        what that cost; False if the lease was lost."""

    async def beat(self, worker: Worker, report: str | None = None) -> bool:
        """Say that a worker lives. One small row, however many leases it has. True if nobody knew
        the worker until now: it is new, or was forgotten, and then it was given nothing."""

    async def sweep(self, runs: Sequence[str] = ()) -> Swept:
        """Ask again for whatever must happen: reclaim, wake what is due, open gates.

        `runs` are asked about first; the others take turns, a page at a time.
        """

    async def act(
        self, command: Command, targets: Sequence[Target], stage: str = "", why: str = ""
    ) -> list[int]:
        """An operator's command: the ids of those it still fitted."""

    async def tune(
        self,
        pipeline: str,
        stage: str,
        *,
        limit: int | None = None,
        paused: bool | None = None,
        why: str = "",
    ) -> None:
        """Set a stage's limit (0 goes back to the declared one), pause it or resume it."""

    async def read(self, query: str, **parameters: Any) -> list[Row]:
        """The rows of a named query, a file `sql/<backend>/read_<query>.sql`."""

    async def prune(self, before_ms: int) -> int:
        """Drop the events and older generations of items settled before that time."""

    async def leave(self, worker: str, *, release: bool = False) -> None:
        """A worker stops: its row goes, so what it still holds can be reclaimed at once. With
        `release`, by itself and in good order: what it holds is ready again, uncounted."""

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` soon after another process's commit. Only a hint: it may be lost."""

    def for_thread(self) -> Store:
        """The same database, for an event loop in another thread."""
