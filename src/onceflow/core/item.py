"""The values that travel between the store, the engine and the caller. All frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = Any
"""What a handler returns: anything `json.dumps` takes, usually a dict."""


class Phase(StrEnum):
    """Where an item is within its stage."""

    WAITING = "waiting"
    READY = "ready"
    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


SETTLED = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED})
"""Terminal for the pipeline; left only by an operator's command."""


class Kind(StrEnum):
    """What an event says. The set is closed, but a pipeline may declare kinds of its own."""

    ADDED = "added"
    CLAIMED = "claimed"
    STAGE_FINISHED = "stage_finished"
    SCRAPE_FINISHED = "scrape_finished"
    SUMMARY_PARTIAL = "summary_partial"
    SUMMARY_FINISHED = "summary_finished"
    RETRIED = "retried"
    FAILED = "failed"
    RECLAIMED = "reclaimed"
    RELEASED = "released"
    TRIGGERED = "triggered"
    REOPENED = "reopened"
    CANCELLED = "cancelled"
    GATE_OPENED = "gate_opened"
    RUN_FINISHED = "run_finished"
    PAUSED = "paused"
    RESUMED = "resumed"
    LIMITED = "limited"
    SERVER_CHANGED = "server_changed"


@dataclass(frozen=True, slots=True)
class Seed:
    """One item to be: its key, and what is known about it before the first stage."""

    key: str
    data: Json = None
    priority: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Added:
    """What `add` did. `known` keys were there already and keep the work and result they have."""

    run: str
    new: int
    known: int
    over_budget: int = 0


class Lease(NamedTuple):
    """The right to finish one item's stage, until somebody raises the fence.

    A tuple, because one is made for every claim: a frozen dataclass takes four times as long.
    """

    item: int
    pipeline: str
    key: str
    stage: str
    fence: int
    attempt: int
    generation: int
    run: str
    depth: int
    claimed_at: int
    data: bytes | None
    """The stored result of the stage before, as the store keeps it; None if there is none."""
    ticket: int
    """The number of the exchange that gave it. No process uses one twice, so it cannot come again,
    also when a database has lost its last commits and gives ids and fences once more."""
    alone: bool = False
    """So many workers died while it ran beside others that nothing else runs while it does. Its
    handler begins only when the store was told so."""


Mark: TypeAlias = tuple[int, int, int]
"""An item, a fence and a ticket: which lease it is."""


def mark_of(lease: Lease) -> Mark:
    return lease.item, lease.fence, lease.ticket


@dataclass(frozen=True, slots=True)
class Item:
    """One item as a listing shows it; `result` is filled only where the reader asked for it."""

    id: int
    pipeline: str
    key: str
    stage: str
    phase: Phase
    state: str
    generation: int
    fence: int
    attempt: int
    priority: int
    depth: int
    lane: str
    run: str
    worker: str | None
    due_at: int | None
    created_at: int
    updated_at: int
    error: str | None
    error_code: str | None
    result: Json = None


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the history. `seq` is the durable cursor; `n` counts the item's own events."""

    seq: int
    at: int
    kind: str
    pipeline: str
    key: str | None
    item: int | None
    n: int | None
    run: str | None
    stage: str | None
    phase: str | None
    state: str | None
    generation: int | None
    fence: int | None
    attempt: int | None
    worker: str | None
    seconds: float | None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """The items submitted together, and its gate."""

    id: str
    pipeline: str
    created_at: int
    sealed: bool
    accepted: int
    open: int
    """How many of its items are not settled yet."""
    failed: int
    max_items: int | None
    tokens: int
    cost: float
    halted: str | None
    gate_opened_at: int | None
    gate_item: int | None
    finished_at: int | None


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant, as `audit` reports it."""

    invariant: str
    item: int | None
    key: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Which items a listing or an operator's command means. Empty means all."""

    pipeline: str | None = None
    keys: Sequence[str] | None = None
    ids: Sequence[int] | None = None
    run: str | None = None
    places: Sequence[tuple[str, str]] | None = None
    """(stage, phase) pairs, which is what a public state name stands for."""
    stage: str | None = None
    phases: Sequence[str] | None = None
    error_code: str | None = None
