"""A pipeline is a table of stages. It is checked when it is built, not when it runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from onceflow.core.errors import PipelineError
from onceflow.core.item import Kind, Phase

Handler = Callable[..., Any]
"""`async def`, plain `def` (run in a thread) or, with `cpu=True`, a `def` run in a process."""

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
STATE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
RESERVED = frozenset(
    ("select", "insert", "update", "delete", "create", "drop", "alter", "table", "from", "where",
     "order", "group", "join", "union")
)  # fmt: skip
GATE_KEY = "gate:"
"""The gate's item has this key followed by its run; no other key may begin so."""
LANE_CHARS_MAX = 253
"""As long as a host's name may be. Longer names that begin alike are one lane."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Items of one stage that share a limit and a spacing, such as the pages of one host."""

    key: Callable[[str], str]
    limit: int = 1
    spacing_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline: its handler, its public state names and its bounds.

    `limit` is global: the most items of this stage being worked on at once, over all processes
    and machines. `held` means an item waits here until somebody triggers the stage. `next` names
    the stage that follows, if it is not the one below in the table.
    """

    name: str
    handler: Handler
    ready: str = ""
    active: str = ""
    waiting: str = ""
    limit: int | None = None
    lane: Lane | None = None
    held: bool = False
    cpu: bool = False
    spreads: bool = False
    """It finds an item's children, as deep as the item's own depth makes them. An item that is done
    does it again when a shorter way to it is found, or when it joins another run, whose items its
    children are then too. Only the last stage can."""
    next: str | None = None
    attempts: int | None = None
    deadline_seconds: float = 300.0
    processors: int = 10
    batch: int = 10
    """How many items one claim takes at the most, unless half of the processors are more."""
    prefetch: int = 0
    """How many items may wait in the local queue, beyond the idle processors. They are claimed, so
    their state says `active`; an attempt counts only when its handler begins."""
    assign_max: int | None = None
    """How many items the coordinator assigns in one cycle; None is no throttle."""

    @property
    def bounded(self) -> bool:
        """Claimed only into free processors: a queued lease would use up the limit."""
        return self.limit is not None or self.lane is not None


@dataclass(frozen=True, init=False)
class Pipeline:
    """A named table of stages, with the rules they share.

    `after_all` is the gate: a handler (or a Stage of its own) that runs once for a run, when every
    item of it is settled.
    """

    name: str
    stages: tuple[Stage, ...]
    done: str
    failed: str
    cancelled: str
    gate_stage: Stage | None
    gate: Literal["settled", "completed"]
    lease_seconds: float
    heartbeat_seconds: float
    attempts: int
    backoff_seconds: float
    backoff_max_seconds: float
    events: frozenset[str]
    canonical: Callable[[str], str] | None
    _by_name: Mapping[str, Stage] = field(repr=False, compare=False)
    _next: Mapping[str, str | None] = field(repr=False, compare=False)
    states: Mapping[tuple[str, str], str] = field(repr=False, compare=False)
    """Every (stage, phase) with its public name, the whole state table."""

    def __init__(
        self,
        name: str,
        *stages: Stage,
        done: str = "completed",
        failed: str = "failed",
        cancelled: str = "cancelled",
        after_all: Handler | Stage | None = None,
        gate: Literal["settled", "completed"] = "settled",
        lease_seconds: float = 300.0,
        heartbeat_seconds: float | None = None,
        attempts: int = 3,
        backoff_seconds: float = 5.0,
        backoff_max_seconds: float = 900.0,
        events: tuple[str, ...] = (),
        canonical: Callable[[str], str] | None = None,
    ) -> None:
        for stage in stages:
            if not isinstance(stage, Stage):
                raise PipelineError(f"pipeline {name!r}: {stage!r} is not a Stage; give Stage(...)")
        gate_stage = after_all
        if after_all is not None and not isinstance(after_all, Stage):
            gate_stage = Stage("digest", after_all, ready="gathered", active="digesting")
        beat = heartbeat_seconds
        if beat is None:
            beat = min(30.0, lease_seconds / 3) if _is_number(lease_seconds) else 30.0
        every = (*stages, gate_stage) if isinstance(gate_stage, Stage) else stages
        values: dict[str, Any] = {
            "name": name,
            "stages": tuple(_named(stage) for stage in stages),
            "done": done,
            "failed": failed,
            "cancelled": cancelled,
            "gate_stage": _named(gate_stage) if isinstance(gate_stage, Stage) else None,
            "gate": gate,
            "lease_seconds": lease_seconds,
            "heartbeat_seconds": beat,
            "attempts": attempts,
            "backoff_seconds": backoff_seconds,
            "backoff_max_seconds": backoff_max_seconds,
            "events": frozenset(events) | frozenset(Kind),
            "canonical": canonical,
            "_by_name": {stage.name: _named(stage) for stage in every},
            "_next": _followers(stages),
        }
        for field_name, value in values.items():
            object.__setattr__(self, field_name, value)
        _check(self, every)
        object.__setattr__(self, "states", _states(self))

    @property
    def first(self) -> Stage:
        return self.stages[0]

    @property
    def last(self) -> Stage:
        """The stage after which an item is done."""
        return next(stage for stage in self.stages if self._next[stage.name] is None)

    @property
    def spreads(self) -> Stage | None:
        """The stage that is done again for a shorter way or another run; None if there is none."""
        return self.last if self.last.spreads else None

    @property
    def every_stage(self) -> tuple[Stage, ...]:
        """The stages in the order of their priority, the gate's at the end."""
        return self.stages if self.gate_stage is None else (*self.stages, self.gate_stage)

    def stage(self, name: str) -> Stage:
        """The stage of that name; a PipelineError that lists the names if there is none."""
        try:
            return self._by_name[name]
        except KeyError:
            names = ", ".join(self._by_name)
            raise PipelineError(
                f"pipeline {self.name!r} has no stage {name!r}; it has {names}"
            ) from None

    def has(self, name: str) -> bool:
        """Whether a stage, or the gate's, is called that."""
        return name in self._by_name

    def after(self, name: str) -> Stage | None:
        """The stage that follows, None after the last one."""
        following = self._next.get(name)
        return None if following is None else self._by_name[following]

    def leads(self, start: str, end: str) -> bool:
        """Whether an item that is at `end` has come through `start`, or is there."""
        at = self._by_name.get(start)
        while at is not None and at.name != end:
            at = self.after(at.name)
        return at is not None

    def order(self, name: str) -> int:
        """How far along the way a stage is, counted from 0."""
        names: list[str] = []
        at: str | None = self.stages[0].name
        while at is not None:
            names.append(at)
            at = self._next[at]
        return names.index(name) if name in names else len(names)

    def attempts_of(self, stage: Stage) -> int:
        return self.attempts if stage.attempts is None else stage.attempts

    def lane_of(self, stage: Stage, key: str) -> str:
        """The lane an item with that key has in that stage; empty where there are none."""
        return "" if stage.lane is None else stage.lane.key(key)[:LANE_CHARS_MAX] or "-"

    def state(self, stage: str, phase: str) -> str:
        """The public name of (stage, phase)."""
        return self.states[stage, phase]


def _states(pipeline: Pipeline) -> dict[tuple[str, str], str]:
    table: dict[tuple[str, str], str] = {}
    for stage in pipeline.every_stage:
        table[stage.name, Phase.WAITING] = stage.waiting
        table[stage.name, Phase.READY] = stage.ready
        table[stage.name, Phase.ACTIVE] = stage.active
        table[stage.name, Phase.DONE] = pipeline.done
        table[stage.name, Phase.FAILED] = pipeline.failed
        table[stage.name, Phase.CANCELLED] = pipeline.cancelled
    return table


def _named(stage: Stage) -> Stage:
    """The stage with every state name filled in."""
    if stage.ready and stage.active and stage.waiting:
        return stage
    ready = stage.ready or f"{stage.name}-ready"
    values = {name: getattr(stage, name) for name in Stage.__dataclass_fields__}
    values |= {
        "ready": ready,
        "active": stage.active or f"{stage.name}-active",
        "waiting": stage.waiting or ready,
    }
    return Stage(**values)


def _followers(stages: tuple[Stage, ...]) -> dict[str, str | None]:
    below = (*[stage.name for stage in stages[1:]], None)
    return {stage.name: stage.next or name for stage, name in zip(stages, below, strict=False)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_state(name: object) -> bool:
    return isinstance(name, str) and STATE.fullmatch(name) is not None


def _check(pipeline: Pipeline, every: tuple[Stage, ...]) -> None:
    def refuse(what: str) -> None:
        raise PipelineError(f"pipeline {pipeline.name!r}: {what}")

    _check_name("pipeline", pipeline.name, refuse)
    if not pipeline.stages:
        refuse("it has no stages; give at least one Stage")
    seen: set[str] = set()
    for stage in every:
        _check_name("stage", stage.name, refuse)
        if stage.name in seen:
            refuse(f"stage {stage.name!r} is named twice; rename one")
        seen.add(stage.name)
        _check_stage(pipeline, stage, refuse)
    _check_way(pipeline, refuse)
    _check_states(pipeline, refuse)
    for name in ("attempts", "lease_seconds", "heartbeat_seconds", "backoff_seconds",
                 "backoff_max_seconds"):  # fmt: skip
        value = getattr(pipeline, name)
        if not _is_number(value) or (name == "attempts" and not isinstance(value, int)):
            kind = "a whole number" if name == "attempts" else "a number"
            refuse(f"{name} is {value!r}; it must be {kind}")
        elif value <= 0 and not name.startswith("backoff"):
            refuse(f"{name} is {value}; it must be above 0")
    if pipeline.backoff_seconds < 0 or pipeline.backoff_max_seconds < pipeline.backoff_seconds:
        refuse(
            f"backoff_seconds is {pipeline.backoff_seconds} and backoff_max_seconds "
            f"{pipeline.backoff_max_seconds}; it must be 0 <= backoff <= max"
        )
    if pipeline.lease_seconds < 2 * pipeline.heartbeat_seconds:
        refuse(
            f"lease_seconds is {pipeline.lease_seconds} but heartbeat_seconds is "
            f"{pipeline.heartbeat_seconds}; a lease must last at least two heartbeats"
        )
    if pipeline.gate not in ("settled", "completed"):
        refuse(f"gate is {pipeline.gate!r}; it must be 'settled' or 'completed'")
    for kind in pipeline.events:
        if not NAME.fullmatch(kind):
            refuse(f"event kind {kind!r} is not a name (a-z, 0-9, _ and -)")


def _check_name(what: str, name: object, refuse: Callable[[str], None]) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        refuse(f"{what} name {name!r} is not allowed; use a-z, 0-9, _ and -, at most 63 characters")
    elif name in RESERVED:
        refuse(f"{what} name {name!r} is a word of SQL; choose another")


def _check_stage(pipeline: Pipeline, stage: Stage, refuse: Callable[[str], None]) -> None:
    whose = f"stage {stage.name!r}"
    if not callable(stage.handler):
        refuse(f"{whose}: its handler {stage.handler!r} cannot be called")
    bounds = {
        "limit": stage.limit,
        "attempts": stage.attempts,
        "processors": stage.processors,
        "batch": stage.batch,
        "assign_max": stage.assign_max,
    }
    least = {"prefetch": 0}
    bounds["prefetch"] = stage.prefetch
    if stage.lane is not None:
        bounds["lane limit"] = stage.lane.limit
        if stage.lane.spacing_seconds < 0:
            refuse(
                f"{whose}: lane spacing_seconds is {stage.lane.spacing_seconds}; it must be >= 0"
            )
    for name, value in bounds.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            refuse(f"{whose}: {name} is {value!r}; it must be a whole number")
        elif value is not None and value < (lowest := least.get(name, 1)):
            refuse(f"{whose}: {name} is {value}; it must be at least {lowest}")
    if not _is_number(stage.deadline_seconds) or stage.deadline_seconds <= 0:
        refuse(f"{whose}: deadline_seconds is {stage.deadline_seconds}; it must be above 0")


def _check_way(pipeline: Pipeline, refuse: Callable[[str], None]) -> None:
    """From the first stage the way must reach every stage once and end."""
    walked: list[str] = []
    at: str | None = pipeline.stages[0].name
    while at is not None:
        if at in walked:
            refuse(f"stages go in a circle: {' -> '.join([*walked, at])}; mend `next`")
        if at not in pipeline._next:
            refuse(f"stage {walked[-1]!r} goes on to {at!r}, which is not a stage; mend `next`")
        walked.append(at)
        at = pipeline._next[at]
    for stage in pipeline.every_stage:
        if stage.spreads and stage.name != walked[-1]:
            refuse(f"stage {stage.name!r} spreads but is not the last; only {walked[-1]!r} can")
    for stage in pipeline.stages:
        if stage.name not in walked:
            refuse(f"stage {stage.name!r} is never reached; mend `next` or remove it")


def _check_states(pipeline: Pipeline, refuse: Callable[[str], None]) -> None:
    ends = {"done": pipeline.done, "failed": pipeline.failed, "cancelled": pipeline.cancelled}
    for what, state in ends.items():
        if not _is_state(state):
            refuse(f"state name {state!r} for {what} is not allowed; use letters, 0-9, _ and -")
    if len(set(ends.values())) < len(ends):
        refuse(f"done, failed and cancelled need three names, not {sorted(ends.values())}")
    for stage in pipeline.every_stage:
        for state in (stage.ready, stage.active, stage.waiting):
            if not _is_state(state):
                refuse(
                    f"stage {stage.name!r}: state name {state!r} is not allowed; "
                    "use letters, 0-9, _ and -"
                )
            if state in ends.values():
                refuse(f"stage {stage.name!r}: state {state!r} is also the name of an end state")
