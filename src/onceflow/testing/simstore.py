"""The way from a simulated process to the one shared store, with everything that can go wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from random import Random
from typing import Any, TypeVar

import apsw

from onceflow.core.errors import OnceflowError, StoreUnavailable
from onceflow.core.item import SETTLED, Lease, Mark
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import Part
from onceflow.engine.flow import Flow
from onceflow.engine.manager import Manager
from onceflow.store.base import (
    Accepted,
    Add,
    Claim,
    Claimed,
    Command,
    Exchanged,
    Finish,
    Kept,
    Row,
    Store,
    Swept,
    Target,
    Worker,
)
from onceflow.store.sqlite import SqliteStore
from onceflow.testing.simcheck import Journal, Oracle
from onceflow.testing.simloop import Owner, SimLoop

T = TypeVar("T")
LATE_SECONDS_MAX = 5.0
"""So late at the most a write is committed whose caller was told that it failed."""
LATE_MOMENT_SECONDS = 0.01
WAY_SECONDS_MIN = 0.0005


class Fate(Enum):
    """What becomes of one call.

    LATE is a statement that goes on in the server when its connection is cut: it waits for a lock,
    or its COMMIT for a standby, and nobody is there to hear how it ends. The caller is told that it
    failed, and cannot take it back. So everything may be late that is one statement, or whose
    COMMIT may be the last thing that was sent: add, exchange, renew, beat, leave, act, tune. The
    transaction is run as a whole when it is committed, which is what a server shows that makes
    conflicting ones wait for it. Not late: a read, which changes nothing; `open`, `sweep` and
    `prune`, which ask for several transactions one after the other: those not begun when the
    connection was cut never are, and the one under way does what any other process's would do.
    """

    WELL = "well"
    FAILED = "failed before the transaction"
    FULL = "rolled back by a full disk"
    LOST = "reply lost"
    LATE = "told that it failed, committed later"
    HANGS = "hangs"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"

    @property
    def unheard(self) -> bool:
        """It is committed, but its caller is told that it failed."""
        return self in (Fate.LOST, Fate.LATE)


class Until(Enum):
    """What a late commit waits for; in each case not longer than `LATE_SECONDS_MAX`."""

    MOMENT = "some milliseconds"
    WHILE = "up to some seconds"
    HELD = "until its process has read what it holds"
    AGAIN = "until its process has asked for the same again"
    LEFT = "until its process has signed off"
    CRASH = "until its process was killed, which is soon"


@dataclass(frozen=True, slots=True)
class Weather:
    """How often what goes wrong, per call, and how slow everything is."""

    failed: float = 0.0
    full: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    hangs: float = 0.0
    crash: float = 0.0
    dropped: float = 0.0
    """Of the notifications."""
    slow: float = 0.0
    """Of the calls, which take up to a second instead of some milliseconds."""
    overtaken: float = 0.0
    """Of the exchanges, on their way to the store and again on the way back: others asked later
    by the same process are committed, or answered, before them."""

    @property
    def _table(self) -> list[tuple[Fate, float]]:
        return [
            (Fate.FAILED, self.failed),
            (Fate.FULL, self.full),
            (Fate.LOST, self.lost),
            (Fate.LATE, self.late),
            (Fate.HANGS, self.hangs),
            (Fate.CRASH_BEFORE, self.crash / 2),
            (Fate.CRASH_AFTER, self.crash / 2),
        ]

    def fate(self, drawn: float) -> Fate:
        for fate, share in self._table:
            if drawn < share:
                return fate
            drawn -= share
        return Fate.WELL


CALM = Weather()


class OneConnection(SqliteStore):
    """A store of one process on the connection that all simulated processes share."""

    def __init__(self, connection: apsw.Connection, boot: str) -> None:
        self._shared = connection
        super().__init__(":memory:", boot=boot, inline=True)

    def _connect(self) -> apsw.Connection:
        return self._shared

    def take_touch(self) -> bool:
        """Whether the commit just made would have told the others."""
        touched, self._touch = self._touch, False
        return touched


@dataclass(slots=True, eq=False)
class Late:
    """A write that the server has, whose caller was told that it failed."""

    process: Process
    kind: str
    until: Until
    asked_at: float
    commit: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Net:
    """What all simulated processes share."""

    loop: SimLoop
    random: Random
    journal: Journal
    oracle: Oracle
    db: apsw.Connection
    lease_seconds: float
    weather: Weather = CALM
    processes: list[Process] = field(default_factory=list)
    by_worker: dict[str, Process] = field(default_factory=dict)
    by_owner: dict[Owner, Process] = field(default_factory=dict)
    kept: set[tuple[int, int]] = field(default_factory=set)
    hidden: set[tuple[int, int]] = field(default_factory=set)
    """Finishes that were kept, but whose replies were lost."""
    failed: set[tuple[int, int]] = field(default_factory=set)
    lost_adds: set[str] = field(default_factory=set)
    settled: dict[str, tuple[float, str]] = field(default_factory=dict)
    sweeping: set[str] = field(default_factory=set)
    disk_full: bool = False
    lates: list[Late] = field(default_factory=list)
    """What is still to be committed, late."""
    fault_at: float = 0.0
    """When the last late commit came: a fault like the others, but after them."""
    server: Owner = field(init=False)

    def __post_init__(self) -> None:
        self.db.set_commit_hook(self._before_commit)
        self.server = self.loop.owner("server")

    def _before_commit(self) -> bool:
        if self.disk_full:
            raise apsw.FullError("the simulated disk is full")
        return False

    def take_late(self, process: Process, kind: str, commit: Callable[[], Awaitable[None]]) -> None:
        """Commit this later. What it waits for is drawn; not much of it once all is healed."""
        until = self.random.choice(list(Until)) if self.weather.late else Until.MOMENT
        late = Late(process, kind, until, self.loop.time(), commit)
        self.lates.append(late)
        moment = until is Until.MOMENT
        seconds = self.random.random() * (LATE_MOMENT_SECONDS if moment else LATE_SECONDS_MAX)
        self.loop.wake_later(self.server, seconds, partial(self._commit_late, late))
        if until is Until.CRASH:
            self.loop.wake_later(
                self.server, seconds / 2, lambda: process.crash(f"a late {kind} is under way")
            )

    def let_late_go(self, process: Process, until: Until, kind: str = "") -> None:
        """Commit soon what has waited for this; what waited for a look at what is held comes before
        the process can ask for anything else, and so is first."""
        soon = WAY_SECONDS_MIN if until is Until.HELD else LATE_MOMENT_SECONDS
        for late in self.lates:
            if late.process is process and late.until is until and kind in ("", late.kind):
                late.until = Until.MOMENT
                seconds = self.random.random() * soon
                self.loop.wake_later(self.server, seconds, partial(self._commit_late, late))

    def _commit_late(self, late: Late) -> None:
        if late in self.lates:
            self.lates.remove(late)
            self.fault_at = self.loop.time()
            self.loop.spawn(self.server, self._commit(late))

    async def _commit(self, late: Late) -> None:
        journal, process = self.journal, late.process
        journal.note(f"{process.name} {late.kind} is committed, late")
        try:
            await late.commit()
        except OnceflowError as error:  # it did not fit any more, and nobody hears of it
            journal.note(f"it was refused: {error}")
            return
        journal.reach("a write whose caller was told it failed was committed later")
        if process.held_read_at > late.asked_at:
            journal.reach("a late commit came after what is held was read")
        if process.left_at > late.asked_at:
            journal.reach("a late commit came after its process had signed off")
        elif not process.alive:
            journal.reach("a late commit came after its process had crashed")

    def tell_others(self, sender: Process) -> None:
        """Wake the other processes, soon or never: it is only a hint."""
        for process in self.processes:
            if process is sender or process.wake is None or not process.alive:
                continue
            if self.random.random() < self.weather.dropped:
                self.journal.reach("a notification was dropped")
                continue
            delay = 0.001 + self.random.random() * 0.01
            if self.weather.dropped and self.random.random() < 0.1:
                delay += self.random.random() * 3
            self.loop.wake_later(process.owner, delay, process.wake)


class Process:
    """One start of one simulated process."""

    def __init__(self, net: Net, name: str, *, immortal: bool = False) -> None:
        self.net = net
        self.immortal = immortal
        self.name = name
        self.owner = net.loop.owner(name)
        self.alive = True
        self.buried = False
        self.stopping = False
        self.cut_until = 0.0
        self.hanging = 0
        """Calls that hang: while one does, it cannot know what it holds."""
        self.stopped_at: float | None = None
        self.continued_at = self.rejoined_at = float("-inf")
        self.held_read_at = self.left_at = float("-inf")
        self.flow: Flow | None = None
        self.manager: Manager | None = None
        self.wake: Callable[[], None] | None = None
        self.denied: set[tuple[int, int]] = set()
        self.gone: asyncio.Future[None] = net.loop.create_future()
        self.store = SimStore(self)
        net.processes.append(self)
        net.by_owner[self.owner] = self

    def is_cut(self) -> bool:
        """Whether the network is down between this process and the store."""
        return self.buried or self.net.loop.time() < self.cut_until

    def crash(self, why: str) -> None:
        """kill -9."""
        if self.alive and not self.immortal:
            self.net.journal.note(f"{self.name} CRASHES: {why}")
            self.alive = False
            self.net.loop.stop_owner(self.owner)
            self.ended()

    def ended(self, _: object = None) -> None:
        """Its program is over, one way or the other."""
        if not self.gone.done():
            self.gone.set_result(None)

    def pause(self) -> None:
        self.net.journal.note(f"{self.name} is stopped")
        self.stopped_at = self.net.loop.time()
        self.net.loop.stop_owner(self.owner)

    def go_on(self) -> None:
        if self.stopped_at is not None and self.alive:
            self.net.journal.note(f"{self.name} goes on")
            self.stopped_at = None
            self.continued_at = self.net.loop.time()
            self.net.loop.go_on(self.owner)

    def cut_off(self, seconds: float) -> None:
        self.net.journal.note(f"{self.name} is cut off for {seconds:.1f} s")
        self.cut_until = self.rejoined_at = self.net.loop.time() + seconds


class SimStore:
    """One process's view of the shared store."""

    url = "simulated"

    def __init__(self, process: Process) -> None:
        self._process = process
        self._net = process.net
        self._inner = OneConnection(process.net.db, "boot-1")
        self._uncommitted: set[int] = set()
        """Exchanges under way, by the order in which they were asked for."""
        self._unanswered: set[int] = set()

    # --- the protocol ---

    async def open(self, pipelines: Iterable[Pipeline] = ()) -> None:
        await self._call("open", lambda: self._inner.open(pipelines), may_be_late=False)

    async def close(self) -> None:
        """The connection is everybody's."""

    async def add(
        self, add: Add, worker: str = "", number: int = 0, claims: Sequence[Claim] = ()
    ) -> Accepted:
        net = self._net

        def after(reply: Accepted, fate: Fate) -> None:
            self._claimed(claims, reply.claimed, fate)
            if add.run in net.lost_adds:
                net.journal.reach("an add was asked again after a lost reply")
            elif reply.added.known:
                net.journal.reach("an item was added twice")
            if fate.unheard:
                net.lost_adds.add(add.run)

        what = f"add {add.run} {len(add.seeds)}"
        return await self._call(what, lambda: self._inner.add(add, worker, number, claims), after)

    async def exchange(
        self,
        worker: str,
        number: int,
        finishes: Sequence[Finish],
        claims: Sequence[Claim],
        begins: Sequence[Lease] = (),
    ) -> Exchanged:
        began = self._net.loop.time()

        def after(reply: Exchanged, fate: Fate) -> None:
            self._committed(number, fate)
            if not all(reply.begun):
                self._net.journal.reach(
                    "a lease that had waited here was lost when it was to begin"
                )
            for finish, kept in zip(finishes, reply.kept, strict=True):
                self._finished(worker, finish, kept, fate)
            self._settled(finishes, reply.kept, began)
            self._went_on(finishes, reply, fate)
            self._claimed(claims, reply.claimed, fate)

        def ask() -> Awaitable[Exchanged]:
            children = [seed.key for one in finishes for seed in one.change.children]
            if children and self._net.oracle.ask("known_keys", keys=json.dumps(children)):
                self._net.journal.reach("a child was known already")
            return self._inner.exchange(worker, number, finishes, claims, begins)

        what = "exchange " + " ".join(f"{one.lease.item}:{one.lease.fence}" for one in finishes)
        what += " ".join(f" {claim.stage}*{claim.count}" for claim in claims)
        what += " ".join(f" begin {one.item}:{one.fence}" for one in begins)
        try:
            return await self._in_any_order(number, lambda: self._call(what, ask, after))
        except StoreUnavailable:
            self._net.failed.update((one.lease.item, one.lease.fence) for one in finishes)
            raise

    async def _in_any_order(self, number: int, ask: Callable[[], Awaitable[T]]) -> T:
        """An exchange that others of the same process may overtake, there and back."""
        self._uncommitted.add(number)
        self._unanswered.add(number)
        try:
            await self._be_overtaken()
            try:
                return await ask()
            finally:
                self._uncommitted.discard(number)
        finally:
            ended = asyncio.current_task()
            if ended is None or not ended.cancelling():
                await self._be_overtaken()
            self._unanswered.discard(number)
            if self._unanswered and min(self._unanswered) < number:
                self._net.journal.reach("two exchanges were answered in another order than asked")

    async def _be_overtaken(self) -> None:
        random = self._net.random
        if random.random() < self._net.weather.overtaken:
            await asyncio.sleep(random.random() * random.choice([0.01, 0.1]))

    def _committed(self, number: int, fate: Fate) -> None:
        self._uncommitted.discard(number)
        if fate is not Fate.LATE and self._uncommitted and min(self._uncommitted) < number:
            self._net.journal.reach("two exchanges were committed in another order than asked")

    async def renew(self, lease: Lease, text: str | None = None, part: Part | None = None) -> bool:
        began = self._net.loop.time()

        def after(held: bool, fate: Fate) -> None:
            if held:
                self._net.oracle.check_held(lease, text)
                return
            if text is not None:
                self._net.journal.reach("a partial text was refused")
            if self._net.oracle.reclaimed_at.get(lease.item, 0.0) >= began:
                self._net.journal.reach("a lease was reclaimed while its renewal was under way")

        return await self._call(
            f"renew {lease.item}:{lease.fence}", lambda: self._inner.renew(lease, text, part), after
        )

    async def beat(self, worker: Worker, report: str | None = None) -> bool:
        self._net.by_worker[worker.id] = self._process

        async def ask() -> bool:
            beat_at = self._net.oracle.ask("beat_of", worker=worker.id)
            if beat_at is not None:
                silent = self._inner.now() - beat_at
                if silent > self._net.lease_seconds * 1000:
                    self._net.journal.reach("a heartbeat came after the lease was over")
            return await self._inner.beat(worker, report)

        return await self._call("beat", ask)

    async def leave(self, worker: str, *, release: bool = False) -> None:
        def after(reply: None, fate: Fate) -> None:
            self._process.left_at = self._net.loop.time()
            self._net.let_late_go(self._process, Until.LEFT)

        await self._call("leave", lambda: self._inner.leave(worker, release=release), after)

    async def sweep(self, runs: Sequence[str] = ()) -> Swept:
        sweeping = self._net.sweeping

        def after(reply: Swept, fate: Fate) -> None:
            if sweeping - {self._process.name}:
                self._net.journal.reach("sweeps of two managers were under way at once")

        sweeping.add(self._process.name)
        try:
            return await self._call(
                "sweep", lambda: self._inner.sweep(sorted(runs)), after, may_be_late=False
            )
        finally:
            sweeping.discard(self._process.name)

    async def act(
        self, command: Command, targets: Sequence[Target], stage: str = "", why: str = ""
    ) -> list[int]:
        oracle, journal = self._net.oracle, self._net.journal
        phases: dict[int, str] = {}

        def ask() -> Awaitable[list[int]]:
            phases.update((one.item, oracle.phase(one.item)) for one in targets)
            return self._inner.act(command, targets, stage, why)

        def after(changed: list[int], fate: Fate) -> None:
            for target in targets:
                phase = phases[target.item]
                if target.item not in changed:
                    journal.reach("an operator's command came too late")
                    if command == "retry" and phase == "active":
                        journal.reach("a retry raced a claim and lost")
                elif command == "cancel" and phase == "active":
                    journal.reach("an active item was cancelled")
                elif command == "release":
                    journal.reach("an operator released an active item")
                elif command == "retry" and phase == "waiting":
                    journal.reach("a backing-off item was made ready by a retry")

        what = f"act {command} {[(target.item, target.version) for target in targets]} {stage}"
        return await self._call(what, ask, after)

    async def tune(
        self,
        pipeline: str,
        stage: str,
        *,
        limit: int | None = None,
        paused: bool | None = None,
        why: str = "",
    ) -> None:
        def after(reply: None, fate: Fate) -> None:
            most, _, active, _ = self._net.oracle.ask("stage_now", stage=stage)
            if limit is not None and most is not None and active > most:
                self._net.journal.reach("a limit was set below the live leases")

        await self._call(
            f"tune {stage} {limit} {paused}",
            lambda: self._inner.tune(pipeline, stage, limit=limit, paused=paused, why=why),
            after,
        )

    async def read(self, query: str, **parameters: Any) -> list[Row]:
        return await self._call(
            f"read {query}", lambda: self._inner.read(query, **parameters), writes=False
        )

    async def held(self, worker: str) -> set[Mark]:
        async def ask() -> set[Mark]:
            marks = await self._inner.held(worker)
            self._has_read_held()
            return marks

        return await self._call("held", ask, writes=False)

    async def leases(self, worker: str, items: Collection[int]) -> list[Lease]:
        return await self._call(
            f"leases {len(items)}", lambda: self._inner.leases(worker, items), writes=False
        )

    def _has_read_held(self) -> None:
        """What this process is about to hear of its leases need not be true for long."""
        self._process.held_read_at = self._net.loop.time()
        self._net.let_late_go(self._process, Until.HELD)

    async def prune(self, before_ms: int) -> int:
        return await self._call("prune", lambda: self._inner.prune(before_ms), may_be_late=False)

    def watch(self, wake: Callable[[], None]) -> None:
        process = self._process
        process.wake = wake
        if process.flow is not None and process.flow._manager is not None:
            process.manager = process.flow._manager

    def for_thread(self) -> Store:
        return self

    def now(self) -> int:
        return self._inner.now()

    # --- one call ---

    async def _call(
        self,
        what: str,
        ask: Callable[[], Awaitable[T]],
        after: Callable[[T, Fate], None] | None = None,
        *,
        writes: bool = True,
        may_be_late: bool = True,
    ) -> T:
        process, net = self._process, self._net
        journal = net.journal
        fate = net.weather.fate(net.random.random())
        if process.immortal and fate in (Fate.CRASH_BEFORE, Fate.CRASH_AFTER):
            fate = Fate.FAILED
        if fate is Fate.LATE and not (writes and may_be_late):
            fate = Fate.FAILED
        journal.note(f"{process.name} {what}" + (f" ({fate.value})" if fate != Fate.WELL else ""))
        await self._way()
        if self._is_out_of_reach():
            await asyncio.sleep(0.0 if process.buried else net.random.random() * 0.5)
            raise StoreUnavailable("the network is down")
        if fate is Fate.CRASH_BEFORE:
            journal.reach("a worker crashed before a commit")
            await self._crash(what)
        if fate is Fate.FAILED:
            raise StoreUnavailable("the simulated store failed")
        if fate is Fate.HANGS:
            process.hanging += 1
            try:
                await asyncio.sleep(net.random.random() * net.lease_seconds * 1.2)
            finally:
                process.hanging -= 1
            fate = Fate.LOST if net.random.random() < 0.5 else Fate.WELL
        kind = what.partition(" ")[0]
        if fate is Fate.LATE:
            net.take_late(process, kind, lambda: self._commit_late(ask, after))
            await self._way()
            raise StoreUnavailable("the connection was cut")
        if writes and fate is Fate.FULL:
            net.disk_full = True
        try:
            reply = await ask()
        except StoreUnavailable:
            if net.disk_full:
                journal.reach("a commit was rolled back by a full disk")
            raise
        finally:
            net.disk_full = False
        if writes:
            net.oracle.look(process.name, self._on_event)
            if after is not None:
                after(reply, fate)
            if self._inner.take_touch():
                net.tell_others(process)
            net.let_late_go(process, Until.AGAIN, kind)
        if fate is Fate.CRASH_AFTER:
            await self._crash(f"after {what}")
        await self._way()
        if fate is Fate.LOST or self._is_out_of_reach():
            raise StoreUnavailable("the reply was lost")
        return reply

    async def _commit_late(
        self, ask: Callable[[], Awaitable[T]], after: Callable[[T, Fate], None] | None
    ) -> None:
        """Run a transaction of which nobody hears any more."""
        net = self._net
        reply = await ask()
        net.oracle.look(self._process.name, self._on_event)
        if after is not None:
            after(reply, Fate.LATE)
        if self._inner.take_touch():
            net.tell_others(self._process)

    def _is_out_of_reach(self) -> bool:
        return self._process.is_cut()

    async def _way(self) -> None:
        """The time that one way takes."""
        net = self._net
        drawn = net.random.random()
        if drawn < net.weather.slow:
            await asyncio.sleep(net.random.random())
        else:
            await asyncio.sleep(WAY_SECONDS_MIN + drawn * 0.004)

    async def _crash(self, what: str) -> None:
        self._process.crash(what)
        await asyncio.get_running_loop().create_future()

    # --- what was rare about it ---

    def _finished(self, worker: str, finish: Finish, kept: Kept, fate: Fate) -> None:
        process, net, journal = self._process, self._net, self._net.journal
        lease = finish.lease
        key = (lease.item, lease.fence)
        if not kept:
            if key in net.kept:
                journal.violate(f"{lease.key}: fence {lease.fence} was kept, then denied")
            if fate is Fate.LATE:
                journal.reach("a late finish came when its lease was lost")
                return  # the process does not know
            journal.reach("a lease was lost at its commit")
            process.denied.add(key)
            claimed = lease.claimed_at / 1000 - self._inner.now() / 1000 + net.loop.time()
            if process.continued_at > claimed:
                journal.reach("a stopped worker's late commit was refused")
            if claimed < process.rejoined_at <= net.loop.time():
                journal.reach("a cut-off worker's late commit was refused")
            return
        net.oracle.check_kept(lease, worker)
        if fate is Fate.LATE and key in net.kept:
            journal.reach("a late finish came after it was asked again and kept")
        elif key in net.hidden:
            journal.reach("a commit asked again after a lost reply was found kept")
        elif key in net.failed:
            journal.reach("a commit asked again after a failure was kept")
        if finish.change.children and key not in net.kept:
            for accepted, most in net.oracle.rows("budgets_of", item=lease.item):
                if accepted == most:
                    journal.reach("a run's budget was reached by children")
        net.kept.add(key)
        if fate.unheard:
            net.hidden.add(key)
        if fate is Fate.CRASH_AFTER:
            journal.reach("a worker crashed after a commit, before its reply")

    def _settled(self, finishes: Sequence[Finish], kept: Sequence[Kept], began: float) -> None:
        """Whether these were the last items of a run, and who settled the one before."""
        net = self._net
        runs: dict[str, int] = {}
        for finish, was_kept in zip(finishes, kept, strict=True):
            if was_kept and finish.change.phase in SETTLED:
                runs[finish.lease.run] = runs.get(finish.lease.run, 0) + 1
        for run, count in runs.items():
            if not net.oracle.ask("open_members", run=run):
                at, whose = net.settled.get(run, (0.0, self._process.name))
                if count > 1:
                    net.journal.reach("the last two items of a run were settled in one exchange")
                if whose != self._process.name and at >= began:
                    net.journal.reach(
                        "the last two items of a run were settled by two managers at once"
                    )
            net.settled[run] = (net.loop.time(), self._process.name)

    def _went_on(self, finishes: Sequence[Finish], reply: Exchanged, fate: Fate) -> None:
        journal = self._net.journal
        if reply.continued:
            journal.reach("an item went on to its next stage at once")
            if fate.unheard:
                journal.reach("the reply to items that went on was lost")
        asked = sum(one.claim_next and kept for one, kept in zip(finishes, reply.kept, strict=True))
        if asked > len(reply.continued):
            journal.reach("an item could not go on at once")

    def _claimed(self, claims: Sequence[Claim], claimed: Sequence[Claimed], fate: Fate) -> None:
        journal = self._net.journal
        if any(one.leases for one in claimed):
            if fate.unheard:
                journal.reach("a claim's reply was lost")
            if fate is Fate.LATE:
                journal.reach("a late commit gave leases that nobody waits for")
            if fate is Fate.CRASH_AFTER:
                journal.reach("a worker crashed between claim and attempt")
        for wish, one in zip(claims, claimed, strict=True):
            if one.leases or wish.item is not None:
                continue
            most, paused, active, ready = self._net.oracle.ask("stage_now", stage=wish.stage)
            if not ready:
                continue
            if paused:
                journal.reach("a claim found its stage paused")
            elif most is not None and active >= most:
                journal.reach("a claim found the limit full")
            elif one.opens_in_ms is not None:
                journal.reach("a claim found every lane shut")

    def _on_event(self, kind: str, item: int, holder: str | None, data: Any) -> None:
        journal, net = self._net.journal, self._net
        code = (data or {}).get("code")
        if kind == "reclaimed" or code == "poison":
            net.oracle.reclaimed_at[item] = net.loop.time()
            whose = net.by_worker.get(holder or "")
            if code == "poison":
                journal.reach("an item was failed as poison")
            if whose is not None and not whose.alive:
                journal.reach("a crashed worker's lease was reclaimed")
            elif whose is not None and whose.stopped_at is not None:
                journal.reach("a stopped worker's lease was reclaimed while it lives")
            elif whose is not None and whose.is_cut():
                journal.reach("a cut-off worker's lease was reclaimed while it lives")
        elif kind == "failed" and not data.get("permanent"):
            journal.reach("an item failed when its attempts were used up")
        if code == "not_json":
            journal.reach("a result was not JSON")
        if kind == "released" and holder is not None:
            reason = (data or {}).get("reason", "")
            if "worker stopped" in reason:
                journal.reach("leases were released at a graceful stop")
            if "heartbeat" in reason:
                journal.reach("a lease was released because no heartbeat could be written")
