"""The exchange with the database: the only way in which a lease comes, ends or begins.

    open      up to two exchanges are under way; each commits what ended and claims what there is
              room for, in one transaction
    unsure    one got no answer: made or not, nobody knows. Nothing is asked until `reconcile`
    open      `reconcile` has read which leases the database says we have, and the book agrees

Outcomes are asked for again: the fence makes that harmless. Claims are never asked for again but
found. The routine check is the same `reconcile`, so that it is not only used on bad days. An
answer that comes after we have read (the statement waited on the server for a lock) is harmless
too: its finishes meet a fence that has moved on, and what it claimed is found by the next check.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from onceflow.core.errors import OnceflowError, StoreUnavailable
from onceflow.core.item import Added, Lease
from onceflow.core.transition import Failed, Released, Transition, decide, failure
from onceflow.engine.attempts import STAGE_PAUSED, Attempts
from onceflow.engine.book import Book, Entry, StageKey, State
from onceflow.engine.health import Tally
from onceflow.engine.scheduler import Plan, Scheduler, Wish
from onceflow.engine.tasks import Tasks, Trouble
from onceflow.store.base import Add, Exchanged, Finish, Kept, Store

log = logging.getLogger("onceflow")

SLOTS = 2
"""Exchanges under way at once: the database works on one while this process answers the other."""
LOOK_SECONDS = 1.0
"""After what others committed, leases are compared at most so often."""


@dataclass(slots=True, eq=False)
class Batch:
    """What one exchange asks for."""

    number: int
    ended: list[Entry] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    begins: list[Entry] = field(default_factory=list)

    @property
    def stages(self) -> set[StageKey]:
        """Where it claims."""
        return {wish.plan.key for wish in self.wishes if wish.claim.item is None}


Done = Callable[[Entry, Transition, Kept], None]


class Exchange:
    def __init__(
        self,
        store: Store,
        worker: str,
        book: Book,
        scheduler: Scheduler,
        attempts: Attempts,
        tasks: Tasks,
        trouble: Trouble,
        tally: Tally,
        done: Done,
        committed: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._book = book
        self._scheduler = scheduler
        self._attempts = attempts
        self._tasks = tasks
        self._trouble = trouble
        self._tally = tally
        self._done = done
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._asked: set[asyncio.Task[object]] = set()
        """Exchanges under way."""
        self._number = first_number(worker)
        self._shut = 0
        """Who wants that none begins."""
        self.unsure = False
        self._mending: asyncio.Task[None] | None = None
        self._begins: list[Entry] = []
        self._look_at: float | None = None
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether the database was asked for something, or will be."""
        return bool(self._asked or self._book.has_ended or self.unsure or self._mending)

    @property
    def free(self) -> bool:
        """Whether one more exchange may begin."""
        if self.unsure or self._shut or self._looking or len(self._asked) >= SLOTS:
            return False
        return self._loop.time() >= self._trouble.until

    def next_at(self) -> float | None:
        """When there is something to do, if nothing happens before."""
        return None if self._look_at is None else max(self._look_at, self._trouble.until)

    # --- ask ---

    def turn(self, now: float, may_claim: bool) -> None:
        """Ask for all that can be asked for now."""
        if now < self._trouble.until:
            return
        if self.unsure and self._mending is None:
            self._mending = self._tasks.spawn(self._mend())
        if self._look_at is not None and now >= self._look_at:
            self._look_at, self._looked_at = None, now
            self._looking = self._tasks.spawn(self._look())
        while self.free and (batch := self._next(now, may_claim)) is not None:
            self._spawn(batch)

    def _spawn(self, batch: Batch) -> None:
        task = self._tasks.spawn(self._ask(batch))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    def begin(self, entry: Entry) -> None:
        """An entry has its processor: its handler begins, at once or when the database knows."""
        if entry.plan.queues or entry.lease.alone:
            entry.state = State.BEGINNING
            self._begins.append(entry)
        else:
            self._attempts.begin(entry)

    def _next(self, now: float, may_claim: bool) -> Batch | None:
        ended = self._book.take_ended()
        begins = [one for one in self._begins if one.state is State.BEGINNING]
        self._begins.clear()
        alone = bool(ended) and ended[0].alone
        may_claim = may_claim and not alone
        finishes: list[Finish] = []
        for one in ended:
            self._attempts.sent(one)
        for one in ended:
            change = decided(one)
            goes_on = may_claim and self._scheduler.reserve_next(one.plan, change)
            finishes.append(Finish(one.lease, change, goes_on))
        self._scheduler.wake_after(
            (one.plan, finish.change, finish.claim_next)
            for one, finish in zip(ended, finishes, strict=True)
        )  # the claims of this transaction may take what it makes ready
        wishes = self._scheduler.wishes(now) if may_claim else []
        if not (ended or wishes or begins):
            return None
        return Batch(self._next_number(), ended, finishes, wishes, begins)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    async def _ask(self, batch: Batch) -> None:
        try:
            reply = await self._store.exchange(
                self._worker, batch.number, batch.finishes,
                [wish.claim for wish in batch.wishes], [one.lease for one in batch.begins],
            )  # fmt: skip
        except BaseException as error:
            self._undo(batch)
            if not isinstance(error, Exception) or isinstance(error, StoreUnavailable):
                self.unsure = True
                raise
            if not batch.ended:
                raise
            self._refused(batch, error)
        else:
            self._settle(batch, reply)

    def _undo(self, batch: Batch) -> None:
        """No answer: what ended is asked for again, its room and its claims are given back."""
        self._book.back(batch.ended)
        self._begins += [one for one in batch.begins if one.state is State.BEGINNING]
        for wish in batch.wishes:
            self._scheduler.gave_up(wish)
        self._give_room_back(batch.finishes)

    def _give_room_back(self, finishes: Sequence[Finish]) -> None:
        for lease, change, claim_next in finishes:
            if claim_next:
                self._scheduler.plans[lease.pipeline, change.stage].reserved -= 1

    def _refused(self, batch: Batch, error: Exception) -> None:
        """The store refused all of it for good, and made nothing. Each is asked for by itself, and
        only the one that it does not like fails: none holds up the rest."""
        if len(batch.ended) > 1 or not batch.ended[0].alone:
            for one in batch.ended:
                one.alone = True
            return
        [one] = batch.ended
        log.warning("%s: the store refused its result", one.lease.key, exc_info=error)
        if isinstance(one.outcome, Failed) and one.outcome.code == "refused":
            raise error
        one.outcome = Failed(f"the store refused the result: {error}", "refused", True)

    # --- answers ---

    def _settle(self, batch: Batch, reply: Exchanged) -> None:
        now = self._loop.time()
        self._trouble.over()
        self._give_room_back(batch.finishes)
        continued = {lease.item for lease in reply.continued}
        kept_ones: list[tuple[Plan, Transition, bool]] = []
        for one, finish, kept in zip(batch.ended, batch.finishes, reply.kept, strict=True):
            self._book.forget(one)
            if kept is Kept.BEFORE:  # a lost exchange took effect after all: what else did it give?
                self.unsure = True
            if kept:
                kept_ones.append((one.plan, finish.change, one.lease.item in continued))
            self._done(one, finish.change, kept)
        for wish, claimed in zip(batch.wishes, reply.claimed, strict=True):
            self._scheduler.answered(wish, claimed, now)
            self._tally.contested += claimed.contested
            for lease in claimed.leases:
                self._take_in(wish.plan, lease, now)
        # A claim of another exchange may have looked before this was committed.
        self._scheduler.wake_after(kept_ones, but=batch.stages)
        for lease in reply.continued:
            self._take_in(self._scheduler.plans[lease.pipeline, lease.stage], lease, now)
        for one, begun in zip(batch.begins, reply.begun, strict=True):
            if one.state is State.BEGINNING:
                if begun:
                    self._attempts.begin(one)
                else:
                    self._attempts.lose(one)
        if batch.ended or any(claimed.leases for claimed in reply.claimed):
            self._committed()

    def _take_in(self, plan: Plan, lease: Lease, now: float) -> None:
        """A new lease: queue it, or give it back."""
        self._tally.claimed += 1
        entry = Entry(lease, plan, now)
        if plan.paused:
            self._book.give_back(entry, Released(STAGE_PAUSED))
            return
        refusal = self._book.take_in(entry)
        if refusal is not None:
            older = self._book.of(lease.item)
            if older is not None and older.lease.fence < lease.fence:
                self._attempts.lose(older)  # the new lease says that it was taken away
                refusal = self._book.take_in(entry)
        if refusal is not None:
            log.info("%s was not queued in %s: %s", lease.key, lease.stage, refusal.value)
            why = f"the local queue refused it: {refusal.value}"
            self._book.give_back(entry, Released(why))

    # --- adding, naming, pausing ---

    async def add(self, request: Add, may_claim: bool) -> Added:
        """Add items. If their stage has room and nobody waits there, as many as there is room for
        are claimed in the same transaction; they begin like those of any exchange."""
        plan = self._scheduler.plans[request.pipeline.name, request.pipeline.first.name]
        count = min(len(request.seeds), self._scheduler.room(plan), plan.claim_most)
        if may_claim and self.free and count > 0 and not plan.hungry and not plan.paused:
            work = self._add_and_claim(request, self._scheduler.wish(plan, count))
            task = self._tasks.spawn(work, for_caller=True)
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)
        else:
            task = self._tasks.spawn(self._add(request, plan), for_caller=True)
        return await asyncio.shield(task)  # done, also when the caller does not wait for it

    async def _add(self, request: Add, plan: Plan) -> Added:
        """It gives no lease, so nothing can get lost."""
        added = (await self._store.add(request)).added
        self._woken_by(request, added, plan)
        return added

    async def _add_and_claim(self, request: Add, wish: Wish) -> Added:
        try:
            added, [claimed] = await self._store.add(
                request, self._worker, self._next_number(), [wish.claim]
            )
        except BaseException as error:
            self._scheduler.gave_up(wish)
            if not isinstance(error, OnceflowError) or isinstance(error, StoreUnavailable):
                self.unsure = True
            raise
        self._trouble.over()
        now = self._loop.time()
        self._scheduler.answered(wish, claimed, now)
        for lease in claimed.leases:
            self._take_in(wish.plan, lease, now)
        if added.new > len(claimed.leases):
            self._woken_by(request, added, wish.plan)
        else:
            self._woken_by(request, added)
        return added

    def _woken_by(self, request: Add, added: Added, plan: Plan | None = None) -> None:
        """What an addition may have made claimable. A run that was halted may go on, and what is
        known may be done again, in any stage."""
        if request.has_ceiling or added.known:
            self._scheduler.wake()
        elif plan is not None:
            self._scheduler.wake(plan.key)
        self._committed()

    async def claim_by_name(self, plan: Plan, item: int) -> bool:
        """Claim one item with the next exchange; whether it is worked on here then."""
        return await asyncio.shield(self._scheduler.named(plan, item))

    async def pause(self, plan: Plan, why: str) -> None:
        """A handler says that no item of its stage can succeed: nobody shall claim it again. What
        was claimed before everybody knew goes back without an attempt."""
        name, stage = plan.pipeline.name, plan.stage.name
        while True:
            try:
                await self._store.tune(name, stage, paused=True, why=why)
                break
            except StoreUnavailable as error:
                self._trouble.report(error)
                await self._trouble.wait()
        log.error("stage %s of %s is paused: %s", stage, name, why)
        async with self.quiet():
            plan.paused = ""

    # --- what we hold ---

    async def _mend(self) -> None:
        try:
            await self.reconcile()
        finally:
            self._mending = None

    async def reconcile(self) -> None:
        """Make the book agree with the leases that the database says we have."""
        async with self.quiet():
            held = await self._store.held(self._worker)
            known = self._book.marks()
            unknown = sorted(held - known)
            leases = (
                await self._store.leases(self._worker, [mark[0] for mark in unknown])
                if unknown
                else []
            )
            self.unsure = False
            for one in self._book.alive():  # an outcome is asked for again instead
                if one.mark not in held:
                    self._attempts.lose(one)
            for lease in leases:
                self._found(lease)
            self._scheduler.answer_named()

    def _found(self, lease: Lease) -> None:
        """A lease that we did not know we had: its claim's answer was lost."""
        if self._book.get(lease) is not None:
            return
        plan = self._scheduler.plans.get((lease.pipeline, lease.stage))
        if plan is None:
            return  # nobody here asks for such: it is reclaimed
        self._tally.adopted += 1
        log.info("found the lease on %s, whose reply was lost", lease.key)
        self._take_in(plan, lease, self._loop.time())

    def look_soon(self, now: float) -> None:
        """Others committed something: it may be an operator's command that took a lease away."""
        if self._look_at is None and any(True for _ in self._book.running()):
            self._look_at = max(now, self._looked_at + LOOK_SECONDS)

    async def _look(self) -> None:
        """End attempts whose leases were taken away, before anything is claimed in their places.
        Whoever is running now had its lease before this reads, and only an exchange of our own,
        sent later, can end it in good order."""
        try:
            running = list(self._book.running())
            held = await self._store.held(self._worker)
            for one in running:
                if one.state is State.RUNNING and one.mark not in held:
                    self._attempts.lose(one)
        finally:
            self._looking = None

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Inside, no exchange is under way and none begins: what the database says is the whole
        truth, but for what it was asked for before and has not done yet."""
        self._shut += 1
        try:
            while self._asked:
                await asyncio.wait(self._asked)
            yield
        finally:
            self._shut -= 1


def decided(entry: Entry) -> Transition:
    """The transition that an entry's outcome asks for. A function of the pipeline's own (a lane, a
    canonical key) that raises is a failure of the attempt."""
    pipeline, lease = entry.plan.pipeline, entry.lease
    assert entry.outcome is not None
    try:
        change = decide(pipeline, lease, entry.outcome)
    except Exception as error:
        return decide(pipeline, lease, failure(error))
    if entry.parts and change.result is not None:
        return change._replace(had_parts=True)
    return change


def first_number(worker: str) -> int:
    """Where a worker's numbers begin: 62 bits that no other process start has, since each has a
    fresh id. So a ticket does not come again, whatever the database has forgotten."""
    digest = hashlib.blake2b(worker.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
