"""What is measured, on whom, with which settings, and what Onceflow wants to reach.

Of the settings of one contestant the best counts. They were chosen by trying: those left out were
never the best of their contestant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Store = Literal["postgresql", "sqlite"]
Measure = Literal["rate", "pipeline3", "pickup", "pickup_other", "idle"]
Kind = Literal["onceflow", "before", "peer", "queue", "raw"]
Setting = Mapping[str, Any]

STORES: tuple[Store, ...] = ("postgresql", "sqlite")

KINDS: Mapping[str, Kind] = {
    "onceflow": "onceflow",
    "before": "before",  # another checkout of Onceflow (--beside)
    "pgqueuer": "peer",
    "procrastinate": "peer",
    "saq": "peer",
    "dbos": "peer",
    "huey": "peer",
    # No handlers, no retries, no stages: shown, but not what an engine is compared with.
    "persist_queue": "queue",
    "litequeue": "queue",
    "raw_postgres": "raw",
    "raw_sqlite": "raw",
}

DEFAULTS: Setting = {}


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant in a row, with the settings that are tried."""

    contestant: str
    settings: tuple[Setting, ...] = (DEFAULTS,)

    @property
    def kind(self) -> Kind:
        return KINDS[self.contestant]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on Onceflow's figure divided by the best peer's."""

    sign: Literal[">=", "<="]
    ratio: float

    def met(self, ratio: float) -> bool:
        return ratio >= self.ratio if self.sign == ">=" else ratio <= self.ratio

    def __str__(self) -> str:
        return f"{'≥' if self.sign == '>=' else '≤'} {self.ratio:.3g} x"


@dataclass(frozen=True, slots=True)
class Row:
    """One contest: the same measure, the same store, the same n for all."""

    title: str
    store: Store
    measure: Measure
    n: int
    n_quick: int
    entries: tuple[Entry, ...]
    goal: Goal | None = None

    @property
    def more_is_better(self) -> bool:
        return self.measure in ("rate", "pipeline3")

    @property
    def unit(self) -> str:
        if self.more_is_better:
            return "items/s"
        return "% of a core" if self.measure == "idle" else "ms"


ONCEFLOW = Entry(
    "onceflow",
    (
        DEFAULTS,  # 10 processors a stage, claims of 10
        {"processors": 100, "batch": 100},
        {"processors": 500, "batch": 500},
        {"processors": 1000},  # claims of half the pool
    ),
)
BATCHES = (10, 100, 500, 1000)
POLLS_OF_DBOS = ({"poll_seconds": 0.01}, DEFAULTS)
POLLS_OF_HUEY = ({"poll_seconds": 0.005}, DEFAULTS)

RATES = (
    Row(
        "one-stage items",
        "postgresql",
        "rate",
        n=20_000,
        n_quick=4_000,
        entries=(
            ONCEFLOW,
            Entry("pgqueuer", tuple({"batch": batch} for batch in BATCHES)),
            Entry("raw_postgres", ({"batch": 100}, {"batch": 500})),
            Entry("procrastinate", ({"concurrency": 10}, {"concurrency": 50})),
            Entry("saq", ({"concurrency": 10}, {"concurrency": 50})),
            Entry("dbos", POLLS_OF_DBOS),
        ),
        goal=Goal(">=", 1.5),
    ),
    Row(
        "three-stage items",
        "postgresql",
        "pipeline3",
        n=5_000,
        n_quick=1_000,
        entries=(
            ONCEFLOW,
            Entry("pgqueuer", tuple({"batch": batch, "connections": 20} for batch in BATCHES)),
            Entry("raw_postgres", ({"batch": 100}, {"batch": 100, "connections": 4})),
            Entry("procrastinate", ({"concurrency": 10}, {"concurrency": 50})),
            Entry("saq", ({"concurrency": 10}, {"concurrency": 50})),
            Entry("dbos", ({"direct": 50}, *POLLS_OF_DBOS)),
        ),
        goal=Goal(">=", 10),
    ),
    Row(
        "one-stage items",
        "sqlite",
        "rate",
        n=20_000,
        n_quick=4_000,
        entries=(
            ONCEFLOW,
            Entry("huey", ({"threads": 1}, {"threads": 8})),
            Entry("raw_sqlite", ({"batch": 1}, {"batch": 100}, {"batch": 500})),
            Entry("persist_queue"),
            Entry("litequeue"),
            Entry("dbos", POLLS_OF_DBOS),
        ),
    ),
    Row(
        "three-stage items",
        "sqlite",
        "pipeline3",
        n=5_000,
        n_quick=1_000,
        entries=(
            ONCEFLOW,
            Entry("huey", ({"threads": 1}, {"threads": 8})),
            Entry("raw_sqlite", ({"batch": 1}, {"batch": 100}, {"batch": 500})),
            Entry("persist_queue"),
            Entry("litequeue"),
            Entry("dbos", ({"direct": 50}, *POLLS_OF_DBOS)),
        ),
        goal=Goal(">=", 10),
    ),
)


def _waiting(
    title: str, measure: Measure, goal: Goal | None, n: int, n_quick: int
) -> tuple[Row, ...]:
    """Rows about workers that wait for items."""
    waits = measure != "pickup_other"  # persist-queue is woken by its own process only
    return (
        Row(
            title,
            "postgresql",
            measure,
            n,
            n_quick,
            entries=(
                Entry("onceflow"),
                Entry("pgqueuer"),
                Entry("raw_postgres"),
                Entry("procrastinate"),
                Entry("saq"),
                Entry("dbos", POLLS_OF_DBOS),
            ),
            goal=goal,
        ),
        Row(
            title,
            "sqlite",
            measure,
            n,
            n_quick,
            entries=(
                Entry("onceflow"),
                Entry("huey", POLLS_OF_HUEY),
                Entry("raw_sqlite"),
                *((Entry("persist_queue"),) if waits else ()),
                Entry("dbos", POLLS_OF_DBOS),
            ),
            goal=goal,
        ),
    )


PICKUPS = (
    *_waiting("pick-up p50, one process", "pickup", Goal("<=", 0.9), n=60, n_quick=20),
    *_waiting("pick-up p50, other process", "pickup_other", Goal("<=", 1.0), n=60, n_quick=20),
)
# Seconds, here: longer than the 30 s between two heartbeats.
IDLES = _waiting("idle worker, CPU", "idle", None, n=35, n_quick=35)

ROWS = (*RATES, *PICKUPS, *IDLES)
