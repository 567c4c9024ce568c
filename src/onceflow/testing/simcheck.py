"""What a simulation watches: the committed history as it grows, and what must hold at its end."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import apsw

from onceflow.core.item import SETTLED, Kind, Lease, Mark
from onceflow.core.pipeline import GATE_KEY, Pipeline
from onceflow.core.transition import decode
from onceflow.engine.manager import Manager

BRANCHES = (
    "a lease was lost at its commit",
    "a lost lease's attempt was ended by the health check or a refused partial",
    "a commit asked again after a lost reply was found kept",
    "a commit asked again after a failure was kept",
    "a commit was rolled back by a full disk",
    "a write whose caller was told it failed was committed later",
    "a late commit came after what is held was read",
    "a late commit came after its process had signed off",
    "a late commit came after its process had crashed",
    "a late commit gave leases that nobody waits for",
    "a late finish came after it was asked again and kept",
    "a late finish came when its lease was lost",
    "two exchanges were committed in another order than asked",
    "two exchanges were answered in another order than asked",
    "a lease that had waited here was lost when it was to begin",
    "a claim's reply was lost",
    "a claim whose reply was lost was adopted",
    "an add was asked again after a lost reply",
    "a worker fenced itself",
    "an attempt was cut off at its deadline",
    "a processor in error was replaced",
    "an item was failed as poison",
    "an item failed when its attempts were used up",
    "a crashed worker's lease was reclaimed",
    "a stopped worker's lease was reclaimed while it lives",
    "a cut-off worker's lease was reclaimed while it lives",
    "a stopped worker's late commit was refused",
    "a cut-off worker's late commit was refused",
    "a heartbeat came after the lease was over",
    "a lease was reclaimed while its renewal was under way",
    "a partial text was refused",
    "the local queue refused a lease",
    "leases were released at a graceful stop",
    "a lease was released because no heartbeat could be written",
    "an operator released an active item",
    "an active item was cancelled",
    "an operator's command came too late",
    "a retry raced a claim and lost",
    "a backing-off item was made ready by a retry",
    "a second generation was finished",
    "the last two items of a run were settled in one exchange",
    "the last two items of a run were settled by two managers at once",
    "the gate was opened by another manager than the last item's",
    "the gate of an empty run opened",
    "sweeps of two managers were under way at once",
    "a run's budget was reached by children",
    "a child was known already",
    "an item was added twice",
    "an item belonged to two runs",
    "a run was halted at its ceiling",
    "an item went on to its next stage at once",
    "the reply to items that went on was lost",
    "an item could not go on at once",
    "a claim found the limit full",
    "a limit was set below the live leases",
    "a claim found every lane shut",
    "a claim found its stage paused",
    "a worker crashed between claim and attempt",
    "a worker crashed after a commit, before its reply",
    "a worker crashed before a commit",
    "a handler killed its worker",
    "a handler ignored its cancellation",
    "a result was not JSON",
    "a notification was dropped",
    "a wall clock was stepped",
    "a trigger performed its stage",
    "a trigger joined",
    "a trigger was skipped",
    "a trigger came before its stage",
    "a stop gave up on a database out of reach",
)
"""The rare ways through the engine. A simulation that never takes one of them proves little."""
EXCHANGE_SECONDS_MAX = 0.9
"""What a process believes and what is stored differ while an exchange is under way, which takes
some milliseconds once all is healed."""


@cache
def _sql(name: str) -> str:
    return (files("onceflow.testing") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


class Journal:
    """What happened in one simulation, and what went wrong."""

    def __init__(
        self, now: Callable[[], float], show: Callable[[str], object] | None = None
    ) -> None:
        self.branches: Counter[str] = Counter()
        self.violations: list[str] = []
        self._hash = hashlib.blake2b(digest_size=8)
        self._now = now
        self._show = show

    @property
    def trace(self) -> str:
        """A hash over everything that happened, in its order."""
        return self._hash.hexdigest()

    def note(self, line: str) -> None:
        line = f"{self._now():.3f} {line}\n"
        self._hash.update(line.encode())
        if self._show is not None:
            self._show(line)

    def remark(self, line: str) -> None:
        """For the reader of a trace only."""
        if self._show is not None:
            self._show(f"{self._now():.3f}   {line}\n")

    def reach(self, branch: str) -> None:
        assert branch in BRANCHES, branch
        self.branches[branch] += 1
        self.remark(f"[{branch}]")

    def violate(self, what: str) -> None:
        self.note(f"VIOLATION {what}")
        self.violations.append(what)


Attempt: TypeAlias = tuple[int, int, int]
"""An item, a fence and the time of the claim: what the database has forgotten may come again."""


def attempt_of(lease: Lease) -> Attempt:
    return lease.item, lease.fence, lease.claimed_at


def beliefs(manager: Manager) -> set[Mark]:
    """The leases that a process believes it has: queued, worked on, or ended and not answered."""
    return manager.marks()


class Oracle:
    """Looks at the shared database after every commit, with its own connection's eyes."""

    def __init__(self, db: apsw.Connection, journal: Journal, pipeline: Pipeline) -> None:
        self._db = db
        self._journal = journal
        self._pipeline = pipeline
        self._seq = self._at = 0
        self._places: dict[int, tuple[int, int, str, str | None]] = {}
        self._keys: dict[int, str] = {}
        self._finished: dict[tuple[int, str, int], int] = {}
        self._lane_starts: dict[tuple[str, str], int] = {}
        self._live: dict[tuple[str, str], int] = {}
        self.reclaimed_at: dict[int, float] = {}
        self.last_settler: dict[str, str] = {}
        self.moved_at = 0
        self._executions: Counter[Attempt] = Counter()
        self.returned: dict[Attempt, Any] = {}
        self.told: dict[Attempt, str] = {}
        """What each attempt has streamed so far."""
        self._disagreed: dict[str, dict[Mark, float]] = {}

    def ask(self, name: str, **parameters: Any) -> Any:
        """The one row of a query, or its one value."""
        return self._db.execute(_sql(name), parameters).get

    def rows(self, name: str, **parameters: Any) -> list[Any]:
        return self._db.execute(_sql(name), parameters).fetchall()

    def phase(self, item: int) -> str:
        """Empty for one that was not looked at yet."""
        return self._places[item][2] if item in self._places else ""

    def holder(self, item: int) -> str | None:
        return self._places[item][3]

    # --- after every commit ---

    def look(self, process: str, on_event: Callable[[str, int, str | None, Any], None]) -> None:
        """Judge what was just committed by that process."""
        rows = self.rows("new_events", after=self._seq)
        if not rows:
            return
        for row in rows:
            self._judge(process, row, on_event)
        self._count_leases()

    def _judge(
        self, process: str, row: Any, on_event: Callable[[str, int, str | None, Any], None]
    ) -> None:
        (seq, at, kind, item, n, run, stage, next_stage, phase, generation, fence, attempt, worker,
         data) = row  # fmt: skip
        journal = self._journal
        journal.note(
            f"  #{seq} {kind} item={item} n={n} run={run} {stage}>{next_stage or ''} {phase} "
            f"g={generation} f={fence} a={attempt} w={worker} {data or ''}"
        )
        if at < self._at:
            journal.violate(f"I17: the store's time went back from {self._at} to {at}")
        self._seq, self._at = seq, at
        if item is None:
            return
        self.moved_at = at
        before = self._places.get(item, (0, -1, "", None))
        if n != before[0] + 1:
            journal.violate(f"I12: item {item} has event {n} after {before[0]}")
        by_holder = worker is not None and kind != Kind.CLAIMED
        if by_holder:
            same_attempt = fence == before[1] and worker == before[3]
            if not same_attempt:
                journal.violate(f"I1: item {item}: {kind} by {worker} with fence {fence}, {before}")
        elif fence <= before[1]:
            journal.violate(f"I1: item {item}: {kind} left the fence at {fence}, {before}")
        if by_holder and (next_stage is not None or phase == "done"):
            first = self._finished.setdefault((item, stage, generation), fence)
            if first != fence:
                journal.violate(f"I2: item {item} finished {stage} twice in {generation}")
            elif generation > 1:
                journal.reach("a second generation was finished")
        if kind == Kind.CLAIMED:
            self._check_spacing(item, stage, at)
        if kind == Kind.GATE_OPENED:
            self._check_gate(process, run)
        on_event(kind, item, before[3], None if data is None else json.loads(data))
        if phase in SETTLED:
            self.last_settler[run] = process
        # A holder may store several events for one attempt: it is known until somebody else acts.
        self._places[item] = (n, fence, phase, worker)

    def key(self, item: int) -> str:
        if item not in self._keys:
            self._keys = {row[0]: row[1] for row in self.rows("all_items")}
        return self._keys[item]

    def _check_spacing(self, item: int, stage: str, at: int) -> None:
        lane = self._pipeline.stage(stage).lane
        if lane is None or not lane.spacing_seconds:
            return
        name = self._pipeline.lane_of(self._pipeline.stage(stage), self.key(item))
        last = self._lane_starts.get((stage, name))
        if last is not None and at - last < int(lane.spacing_seconds * 1000):
            self._journal.violate(f"lane {name} of {stage}: starts {at - last} ms apart")
        self._lane_starts[stage, name] = at

    def _check_gate(self, process: str, run: str) -> None:
        if self.ask("open_members", run=run):
            self._journal.violate(f"I8: the gate of {run} opened early")
        if not self.ask("members", run=run):
            self._journal.reach("the gate of an empty run opened")
        elif self.last_settler.get(run, process) != process:
            self._journal.reach("the gate was opened by another manager than the last item's")

    def _count_leases(self) -> None:
        """Live leases stay within limits; one that was lowered is reached from above."""
        stages: Counter[str] = Counter()
        limits: dict[str, int | None] = {}
        live: dict[tuple[str, str], int] = {}
        for stage, lane, count, limit, lane_limit in self.rows("live_leases"):
            stages[stage] += count
            limits[stage] = limit
            live[stage, lane] = count
            if lane_limit is not None and count > max(lane_limit, self._live.get((stage, lane), 0)):
                self._journal.violate(f"lane {lane} of {stage}: {count} leases, {lane_limit} may")
        for stage, limit in limits.items():
            before = sum(count for (name, _), count in self._live.items() if name == stage)
            if limit is not None and stages[stage] > max(limit, before):
                self._journal.violate(f"I7: {stages[stage]} live leases of {stage}, {limit} may")
        self._live = live

    # --- what the engine was told ---

    def check_kept(self, lease: Lease, worker: str) -> None:
        """What was answered as kept is in the history."""
        if not self.ask("finished_by", item=lease.item, fence=lease.fence, worker=worker):
            self._journal.violate(f"I4: {lease.key}: its commit was confirmed but is not stored")

    def known(self) -> list[str]:
        """The keys of the items there are, but for the gates'."""
        keys = [row[1] for row in self.rows("all_items")]
        return [key for key in keys if not key.startswith(GATE_KEY)]

    def check_held(self, lease: Lease, text: str | None) -> None:
        """What was answered as held is held, and the text is this attempt's own."""
        told = self.told.get(attempt_of(lease), "")
        if text is not None and not told.startswith(text):
            self._journal.violate(f"{lease.key}: the text {text!r} was kept, {told!r} was told")
        phase, fence, _ = self.ask("lease_now", item=lease.item)
        if (phase, fence) != ("active", lease.fence):
            self._journal.violate(
                f"I1: {lease.key}: fence {lease.fence} was renewed, the item is {phase} at {fence}"
            )

    def began(self, lease: Lease) -> None:
        """A handler runs. Under one fence it runs once."""
        self._executions[attempt_of(lease)] += 1
        if self._executions[attempt_of(lease)] > 1:
            self._journal.violate(f"{lease.key}: two attempts under fence {lease.fence}")

    def check_beliefs(
        self, process: str, believed: set[Mark], held: set[Mark], now: float, most: float
    ) -> None:
        """What a process believes it holds is what the database says, but for so many seconds."""
        before = self._disagreed.get(process, {})
        self._disagreed[process] = {mark: before.get(mark, now) for mark in sorted(believed ^ held)}
        for mark, since in self._disagreed[process].items():
            if now - since > most:
                says = "believes that it holds" if mark in believed else "does not know of"
                self._journal.violate(
                    f"{process} {says} item {mark[0]} with fence {mark[1]} for {now - since:.1f} s"
                )

    # --- the end ---

    def is_idle(self) -> bool:
        return not self.rows("unsettled") and not self.rows("unfinished_runs")

    def check_end(self) -> None:
        """What must be true when everything has come to rest."""
        violate = self._journal.violate
        for item, key, _, phase, _, _, runs in self.rows("all_items"):
            if runs > 1:
                self._journal.reach("an item belonged to two runs")
            if phase == "active":
                violate(f"{key}: item {item} is still active")
        for run, sealed, accepted, most, gate_stage, settled_at, _, gates, opened in self.rows(
            "all_runs"
        ):
            expected = int(gate_stage is not None and settled_at is not None)
            if gates != expected or opened != expected:
                violate(f"I8: {run} has {gates} gate items, its gate opened {opened} times")
            if most is not None and accepted > most:
                violate(f"{run} accepted {accepted} items, {most} may")
            if not sealed:
                violate(f"{run} was never sealed")
        for item, fence, now, phase in self.rows("stray_partials"):
            violate(f"item {item} is {phase} at fence {now}, the text of fence {fence} is left")
        for item, stage, generation, body, fence, at in self.rows("all_results"):
            if (item, fence, at) not in self.returned:
                violate(f"item {item}: the result of {stage} {generation} was returned by nobody")
            elif decode(bytes(body)) != self.returned[item, fence, at]:
                violate(f"item {item}: {stage} {generation} is not what fence {fence} returned")
        for item, stage, generation, claims, released, reopened, most in self.rows("all_attempts"):
            allowed = most * (1 + reopened) + released
            if claims > allowed:
                violate(f"I10: item {item}: {claims} attempts at {stage} {generation}")
