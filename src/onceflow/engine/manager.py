"""The manager: the single owner of this process's transitions.

One loop, one thing at a time: claim, assign, attempt, decide, commit. Handlers run beside it and
only hand their outcomes in; every change of state goes through `_exchange`. Whatever must happen
(reclaim, wake what is due, open gates) is asked for again each cycle.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
    Set,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from onceflow.core.errors import OnceflowError, Permanent, StoreUnavailable
from onceflow.core.item import SETTLED, Added, Item, Json, Lease, Mark, Phase, mark_of
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import (
    Failed,
    Left,
    Outcome,
    Part,
    Released,
    Transition,
    decide,
    decode,
    failure,
)
from onceflow.engine.attempt import Processes, Way, attempt, past_deadline, way_of
from onceflow.engine.bus import Bus, Live
from onceflow.engine.coordinator import Coordinator
from onceflow.engine.health import Health, Tally, report
from onceflow.engine.heart import Heart, ThreadHeart
from onceflow.engine.listing import known_states, run_items, to_item
from onceflow.engine.neighbours import ended, machine
from onceflow.engine.pool import Pool, Processor
from onceflow.engine.queue import Queues, Refusal, StageKey
from onceflow.engine.scheduler import Plan, Scheduler
from onceflow.engine.settings import Settings
from onceflow.engine.streams import Streams
from onceflow.store.base import (
    Accepted,
    Add,
    Claim,
    Claimed,
    Exchanged,
    Finish,
    Row,
    Store,
    Worker,
)
from onceflow.store.clock import boot_id

log = logging.getLogger("onceflow")
T = TypeVar("T")


class Finished(NamedTuple):
    """An attempt that ended, before its outcome is decided and committed."""

    plan: Plan
    lease: Lease
    outcome: Outcome
    processed: bool
    """Its item counts as being processed until this is committed."""
    seconds: float | None = None
    """How long the handler took."""
    due: float = 0.0
    """Until then it may wait for its neighbours, on the loop's clock."""


class Stopped(StoreUnavailable):
    """Asked of a manager that has ended meanwhile, or cannot begin: nothing was done, ask the store
    itself."""


class Asked(NamedTuple):
    """An exchange under way."""

    ended: deque[Finished]
    finishes: list[Finish]
    wishes: list[tuple[Plan, Claim]]
    reply: asyncio.Future[Exchanged]


@dataclass(slots=True)
class Volatile:
    """A lease under way here that is not durable yet: nothing is written under it before."""

    asked: asyncio.Task[Any]
    """Who waits until it is."""
    ended: Finished | None = None
    """What its attempt gave, if that is over."""


class Manager:
    """Works on the stages of its pipelines until it is stopped, or until there is no more to do."""

    def __init__(
        self,
        store: Store,
        pipelines: Iterable[Pipeline],
        settings: Settings,
        worker: Worker,
        bus: Bus,
        heart: Callable[..., Heart] = ThreadHeart,
    ) -> None:
        self.worker = worker
        self.tally = Tally()
        self._store = store
        self._settings = settings
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._pipelines = {pipeline.name: pipeline for pipeline in pipelines}
        cores = settings.cpu_processes or os.cpu_count() or 1
        plans = [plan for pipeline in self._pipelines.values() for plan in _plans(pipeline, cores)]
        self._queues = Queues([plan.key for plan in plans], settings.queue_max)
        self._scheduler = Scheduler(plans, self._queues)
        self._coordinator = Coordinator(self._scheduler, self._queues, settings.cycle_seconds)
        in_processes = [plan for plan in plans if plan.way is Way.PROCESS]
        self._processes = Processes(sum(plan.pool.idle for plan in in_processes))
        self._finished: deque[Finished] = deque()
        self._asked: deque[Asked] = deque()
        self._early: dict[int, Lease] = {}
        """New leases on items whose finish, though it must be committed, is not answered yet."""
        self._pauses: dict[StageKey, str] = {}
        self._beside: set[asyncio.Task[Any]] = set()
        """What callers have asked the database for, beside the exchanges."""
        self._volatile: dict[Mark, Volatile] = {}
        self._unproven: dict[Mark, Outcome] = {}
        """Leases that nobody said were durable, though their attempts had begun; what to say of
        those that are there all the same, also if that shows much later."""
        self._may_ask = asyncio.Event()
        """Callers may do so: not before the first heartbeat, nor while we look what we hold."""
        self._unreached = False
        """The first heartbeat could not be written yet."""
        self._streams = Streams(store, bus, settings.partial_seconds)
        self._have_parts: set[Mark] = set()
        """The leases under way here that have asked for parts of earlier attempts, or kept some."""
        self._left_behind: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._settled_runs: set[str] = set()
        self._strange: set[StageKey] = set()
        """Stages that our pipelines do not have, though items wait in them: said once."""
        self._lease_seconds = min(
            (pipeline.lease_seconds for pipeline in self._pipelines.values()), default=300.0
        )
        beats = (pipeline.heartbeat_seconds for pipeline in self._pipelines.values())
        self._heart = heart(
            store, worker, min(beats, default=30.0), self._report_text, self._known_again
        )
        self._scan_at = self._sweep_at = self._idle_check_at = float("-inf")
        self._sweeping: asyncio.Task[bool] | None = None
        self._swept_at = float("-inf")
        self._sweep_took = 0.0
        self._gates_at = float("inf")
        """When to ask for the gates of the runs that had items settled here."""
        self._sleeps_until = float("-inf")
        """Until when the loop waits, if nothing happens; in the past while it works."""
        self._alarm: asyncio.Handle = self._loop.call_soon(self._news.set)
        """What wakes it then."""
        self._health_at = self._loop.time() + settings.health_seconds
        self._settle_seconds = SETTLE_SECONDS
        self._in_doubt = False
        self._unanswered: set[Mark] = set()
        """Leases whose finishes, that were to go on, got no answer when first asked for."""
        self._troubles = 0
        self._stop_at: float | None = None
        self._over = False

    # --- from outside ---

    def wake(self) -> None:
        """Something may have become claimable, due or settled: look at once, and sweep; but a busy
        neighbour is not swept after all the time."""
        self._scheduler.wake()
        apart = max(HEARD_SECONDS, self._settle_seconds)
        self._sweep_at = min(self._sweep_at, max(self._loop.time(), self._swept_at + apart))
        self._news.set()

    def stop(self, grace_seconds: float | None = None) -> None:
        """Claim no more, give attempts under way this long, release the rest uncounted."""
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        stop_at = self._loop.time() + grace
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)
        self._news.set()

    def health(self) -> Health:
        """The state of this process at this moment."""
        silent = self._heart.silent_seconds()
        return report(self._scheduler, self._queues, self.tally, silent, self._loop.time())

    async def add(self, add: Add) -> Added:
        """Add items; as many as there is room for begin in the same transaction."""
        await self._turn_to_ask()
        return await self._ask(self._add(add))

    async def perform(self, item: int, stage: StageKey) -> bool:
        """Claim one item by name and begin it at once; False if that cannot be."""
        plan = self._scheduler.plans.get(stage)
        if plan is None:
            return False
        try:
            await self._turn_to_ask()
        except Stopped:
            return False
        return await self._ask(self._perform(item, plan))

    def over(self) -> None:
        """It has ended, or never began: nobody waits for it any more."""
        self._over = True
        self._may_ask.set()

    async def _turn_to_ask(self) -> None:
        """Whoever asks during a stop asks the store itself: otherwise a stop might never end. And
        so does who asks while not even a heartbeat can be written: the store says why."""
        while not self._may_ask.is_set() and not self._unreached:
            await self._may_ask.wait()
        if self._over or self._stop_at is not None or self._unreached:
            raise Stopped("the manager stops, has stopped or cannot begin")

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Have the database asked beside the exchanges: the way through the loop would take as long
        as the question. Its answer is ours, also when the caller does not wait for it."""
        asked = self._loop.create_task(question)
        self._beside.add(asked)
        asked.add_done_callback(self._answered)
        return await asyncio.shield(asked)

    def _answered(self, asked: asyncio.Task[Any]) -> None:
        self._beside.discard(asked)
        if not asked.cancelled():
            asked.exception()  # the caller has it, or is gone

    async def _add(self, add: Add) -> Added:
        first = (add.pipeline.name, add.pipeline.first.name)
        plan = self._scheduler.plans[first]
        room = self._scheduler.room(plan) if self._may_claim() else 0
        count = min(len(add.seeds), room)
        wishes = [(plan, plan.wish(count))] if count > 0 else []
        marks: list[Mark] = []
        asked = asyncio.current_task()
        assert asked is not None

        def early(accepted: Accepted) -> None:
            for one in accepted.claimed:
                for lease in one.leases:
                    marks.append(mark_of(lease))
                    self._volatile[mark_of(lease)] = Volatile(asked)
            self._begin_with(wishes, accepted.claimed)
            wishes.clear()  # neither begun once more nor given up

        claims = _reserve(wishes)
        try:
            added, claimed = await self._store.add(
                add, self.worker.id, claims, early if claims else None
            )
        except BaseException:
            self._give_up(wishes)
            self._withdraw(marks)
            raise
        self._confirm(marks)
        if wishes:
            self._begin_with(wishes, claimed)
        if added.new > sum(len(one.leases) for one in claimed):
            # There was no room, or a claim under way reserved it and looked before this commit.
            self._scheduler.wake(first)
        if add.has_ceiling or added.known:
            # A run that was halted may go on, and what is known may be done again: in any stage.
            self._scheduler.wake()
        if not added.new:
            self._ask_for_gate(add.run)  # it may be settled as it is
        self._news.set()
        self._bus.poke()
        return added

    def _confirm(self, marks: Iterable[Mark]) -> None:
        """Leases are durable: what their attempts have given is committed next."""
        for mark in marks:
            ended = self._volatile.pop(mark).ended
            if ended is not None:
                self._finished.append(ended)

    def _withdraw(self, marks: Iterable[Mark]) -> None:
        """Nobody says that leases are durable: their attempts are ended, what they gave is dropped,
        and we look what the database says."""
        for mark in marks:
            outcome = self._forget(mark, self._volatile.pop(mark).ended)
            if outcome is not None:
                self._unproven[mark] = outcome
                while len(self._unproven) > UNPROVEN_MAX:
                    del self._unproven[next(iter(self._unproven))]
            self._in_doubt = True
            self._news.set()

    def _forget(self, mark: Mark, ended: Finished | None) -> Outcome | None:
        """Drop a lease that may not exist, wherever its attempt has got to. If it began, then what
        to say of it should the lease exist: once more under the same one would be another attempt.
        """
        item, fence = mark
        failed = Failed("the database did not confirm that it began", "unconfirmed")
        if ended is not None and ended.processed:
            self._queues.finished(item)
            self._streams.drop(item)
            return failed
        for plan, processor in _working(self._scheduler):
            if processor.lease is not None and mark_of(processor.lease) == mark:
                self._end_attempt(processor, plan)
                return failed
        if item in self._early and self._early[item].fence == fence:
            del self._early[item]
        if any(mark_of(lease) == mark for lease in self._queues.waiting()):
            self._queues.drop(item)
        if ended is None:
            return None
        return ended.outcome if isinstance(ended.outcome, Released) else failed

    async def _perform(self, item: int, plan: Plan) -> bool:
        if not self._may_claim() or (plan.stage.bounded and self._scheduler.room(plan) <= 0):
            return False
        wishes = [(plan, plan.wish(1, item))]
        try:
            reply = await self._store.exchange(self.worker.id, [], _reserve(wishes))
        except BaseException:
            self._give_up(wishes)
            raise
        self._begin_with(wishes, reply.claimed, first=True)
        self._bus.poke()
        return any(one.leases for one in reply.claimed)

    def _begin_with(
        self,
        wishes: Sequence[tuple[Plan, Claim]],
        claimed: Sequence[Claimed],
        *,
        first: bool = False,
    ) -> None:
        """A caller's claims were answered: begin at once. If the manager was ended meanwhile, what
        it was given is reclaimed, since its worker has left."""
        if not self._over:
            self._take_in(wishes, claimed, first=first)
            self._begin_attempts()
        self._news.set()

    # --- the loop ---

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until stopped or, if asked so, until nothing is left to do."""
        fence: asyncio.Task[None] | None = None
        try:
            await self._first_beat()
            self._may_ask.set()
            await self._bury_neighbours()
            fence = asyncio.create_task(self._watch_heart())
            while True:
                try:
                    await self._cycle()
                    if until_idle and self._stop_at is None and await self._is_idle():
                        self.stop()
                    if not self._awaits_reply():  # otherwise it is the reply that tells
                        self._troubles = 0
                except StoreUnavailable as error:
                    self._trouble(error)
                if self._is_over():
                    return
                await self._wait(until_idle)
        finally:
            if fence is not None:
                fence.cancel()
            await self._end()

    async def _first_beat(self) -> None:
        """Nothing is claimed before it. A database that is away at this moment is asked again."""
        while self._stop_at is None:
            try:
                await self._heart.start()
                self._unreached = False
                return
            except StoreUnavailable as error:
                self._unreached = True
                self._may_ask.set()  # who waits for it looks again
                self._may_ask.clear()
                self._trouble(error)
                await asyncio.sleep(self._pause())

    async def _bury_neighbours(self) -> None:
        """Sign off workers of this machine that were killed: what they held is reclaimed now."""
        if self.worker.host != machine():
            return
        try:
            for worker in ended(await self._store.read("workers"), boot_id()):
                log.info("worker %s has ended without a word; what it held is taken back", worker)
                await self._store.leave(worker)
                self._sweep_at = float("-inf")
        except StoreUnavailable as error:
            self._trouble(error)  # at the next health check

    async def _cycle(self) -> None:
        now = self._loop.time()
        self._cut_off(now)
        self._fence_myself(now)
        if self._stop_at is not None:
            self._wind_down(now)
        if self._in_doubt:
            await self._adopt()
        await self._exchange(now)
        await self._assign()
        await self._save_streams(now)
        await self._sweep_in_turn(now)
        if now >= self._health_at:
            await self._check_health(now)
        if now >= self._scan_at:
            self._scan_at = now + self._settings.scan_seconds
            self._scheduler.wake()
            self._news.set()

    async def _exchange(self, now: float) -> None:
        """Commit what ended and claim what there is room for, in one transaction. A second
        exchange may begin while one is under way, so that neither side waits for the other."""
        while self._asked and (self._asked[0].reply.done() or len(self._asked) == EXCHANGES_MAX):
            await self._settle_oldest()
        if self._pauses:
            await self._pause_stages()
        if self._gathers(now):
            return
        ended, self._finished = self._finished, deque()
        changes = [self._decide(one) for one in ended]
        going_on = self._going_on(ended, changes) if self._may_claim() else set()
        finishes = [
            Finish(one.lease, change, at in going_on)
            for at, (one, change) in enumerate(zip(ended, changes, strict=True))
        ]
        self._hunger_after((one.plan, changes[at], at in going_on) for at, one in enumerate(ended))
        wishes = self._scheduler.wishes(now) if self._may_claim() else []
        if not finishes and not wishes:
            return
        claims = [wish for _, wish in wishes]
        reply = asyncio.ensure_future(self._store.exchange(self.worker.id, finishes, claims))
        reply.add_done_callback(lambda _: self._news.set())
        self._asked.append(Asked(ended, finishes, wishes, reply))

    def _gathers(self, now: float) -> bool:
        """Whether what ended waits a moment, so that what ends next is committed along with it:
        only while attempts are under way here, and no processor idles that could have work."""
        if self._stop_at is not None or not 0 < len(self._finished) < GATHER_MAX:
            return False
        return (
            now < min(one.due for one in self._finished)
            and any(_busy(self._scheduler))
            and not self._scheduler.waits(now, Counter(one.plan.key for one in self._finished))
        )

    def _going_on(self, ended: Iterable[Finished], changes: Sequence[Transition]) -> set[int]:
        """Whose next stages are claimed along with these finishes: there is room here for them, and
        nobody waits for that stage, as far as its last claim said. Their room is reserved."""
        room: dict[StageKey, int] = {}
        going_on: set[int] = set()
        for at, (one, change) in enumerate(zip(ended, changes, strict=True)):
            lease = one.lease
            if change.stage == lease.stage or not change.goes_on:
                continue
            key = (lease.pipeline, change.stage)
            if key not in room:
                room[key] = self._scheduler.room_unasked(key)
            if room[key] > 0:
                room[key] -= 1
                self._scheduler.plans[key].reserved += 1
                going_on.add(at)
        return going_on

    def _give_room_back(self, finishes: Iterable[Finish]) -> None:
        """The room for items that were to go on is free again."""
        for lease, change, claim_next in finishes:
            if claim_next:
                self._scheduler.plans[lease.pipeline, change.stage].reserved -= 1

    async def _pause_stages(self) -> None:
        """A handler said that no item of its stage can succeed: nobody shall claim it again. What
        was claimed before that was committed goes back without an attempt."""
        for (pipeline, stage), why in list(self._pauses.items()):
            await self._store.tune(pipeline, stage, paused=True, why=why)
            log.error("stage %s of %s is paused: %s", stage, pipeline, why)
            async with self._nothing_under_way():
                del self._pauses[pipeline, stage]

    async def _settle_oldest(self) -> None:
        """Wait for the answer to the oldest exchange under way, and act on it."""
        ended, finishes, wishes, asked = self._asked[0]
        try:
            reply = await asked
        except BaseException as error:
            self._asked.popleft()
            self._give_up(wishes)
            self._give_room_back(finishes)
            self._unanswered.update(mark_of(one.lease) for one in finishes if one.claim_next)
            self._finished.extendleft(reversed(ended))
            if ended and isinstance(error, Exception) and not isinstance(error, StoreUnavailable):
                await self._finish_one_by_one()
                return
            raise
        self._asked.popleft()
        self._troubles = 0
        self._idle_check_at = float("-inf")
        claimed = {plan.key for plan, _ in wishes}
        continued = {lease.item for lease in reply.continued}
        self._give_room_back(finishes)
        committed: list[tuple[Plan, Transition, bool]] = []
        for one, finish, kept in zip(ended, finishes, reply.kept, strict=True):
            self._settle(one, finish.change, kept)
            if kept:
                committed.append((one.plan, finish.change, one.lease.item in continued))
        # A claim of another exchange may have looked before this was committed.
        self._hunger_after(committed, seen=claimed)
        self._take_in(wishes, reply.claimed)
        self.tally.claimed += len(reply.continued)
        for lease in reply.continued:
            self._queue(self._scheduler.plans[lease.pipeline, lease.stage], lease)
        self._bus.poke()

    @asynccontextmanager
    async def _nothing_under_way(self) -> AsyncIterator[None]:
        """Inside, the database has answered everything, and callers wait: what it says of our
        leases is the whole truth."""
        self._may_ask.clear()
        try:
            while self._asked:
                await self._settle_oldest()
            while self._beside:
                await asyncio.wait(self._beside)
            yield
        finally:
            self._may_ask.set()

    async def _finish_one_by_one(self) -> None:
        """The store refused a whole batch for good. Only the item that it does not like fails, so
        that one cannot hold up the rest."""
        while self._finished:
            one = self._finished[0]
            try:
                finish = Finish(one.lease, self._decide(one))
                reply = await self._store.exchange(self.worker.id, [finish], [])
            except StoreUnavailable:
                raise
            except Exception as error:  # the store's own words go into the item's history
                log.warning("%s: the store refused its result", one.lease.key, exc_info=error)
                if isinstance(one.outcome, Failed) and one.outcome.code == "refused":
                    raise
                refused = Failed(f"the store refused the result: {error}", "refused", True)
                self._finished[0] = one._replace(outcome=refused)
                continue
            self._finished.popleft()
            self._settle(one, finish.change, reply.kept[0])

    def _may_claim(self) -> bool:
        """Not at a stop, and not while no heartbeat can be written: it would be lost again."""
        return self._stop_at is None and self._silence_left() > 0

    def _give_up(self, wishes: Sequence[tuple[Plan, Claim]]) -> None:
        """Claims got no answer: they may have been made all the same."""
        for plan, wish in wishes:
            self._scheduler.gave_up(plan, wish)
            self._in_doubt = True
            self._news.set()

    def _decide(self, one: Finished) -> Transition:
        try:
            change = decide(one.plan.pipeline, one.lease, one.outcome)
            if (
                self._have_parts
                and mark_of(one.lease) in self._have_parts
                and change.result is not None
            ):
                return change._replace(had_parts=True)
            return change
        except Exception as error:  # a pipeline's own lane or canonical function raised
            return decide(one.plan.pipeline, one.lease, failure(error))

    def _settle(self, one: Finished, change: Transition, kept: bool) -> None:
        """A finish was answered: the item is somebody else's business."""
        lease = one.lease
        if self._have_parts:
            self._have_parts.discard(mark_of(lease))
        if self._unanswered and mark_of(lease) in self._unanswered:
            self._unanswered.discard(mark_of(lease))
            self._in_doubt = True  # it may have gone on when it was asked for first
        if one.processed:
            self._queues.finished(lease.item)
            self._streams.drop(lease.item)
            early = self._early.pop(lease.item, None) if self._early else None
            if early is not None and early.fence > lease.fence:
                self._queue(self._scheduler.plans[early.pipeline, early.stage], early)
        if not kept:
            self.tally.lost += 1
            log.info("the lease on %s was lost; its result is dropped", lease.key)
            return
        self._count(one.outcome, change)
        if change.phase in SETTLED:
            self._ask_for_gate(lease.run)
        if change.delay_ms is not None:
            self._sweep_at = min(self._sweep_at, self._loop.time() + change.delay_ms / 1000)
        if log.isEnabledFor(logging.INFO):
            _log_transition(one, change)

    def _ask_for_gate(self, run: str) -> None:
        self._settled_runs.add(run)
        self._gates_at = min(self._gates_at, self._loop.time() + self._settle_seconds)

    def _count(self, outcome: Outcome, change: Transition) -> None:
        if isinstance(outcome, Released):
            self.tally.released += 1
        elif change.phase is Phase.FAILED:
            self.tally.failed += 1
        elif isinstance(outcome, Failed):
            self.tally.retried += 1
        else:
            self.tally.finished += 1

    def _hunger_after(
        self, changes: Iterable[tuple[Plan, Transition, bool]], seen: Set[StageKey] = frozenset()
    ) -> None:
        """What transitions make claimable, in this process's view: not what went on at once, nor
        what a claim in the same transaction has `seen`."""
        hungry: set[StageKey] = set()
        for plan, change, going_on in changes:
            if change.phase is Phase.READY and not going_on:
                hungry.add((plan.pipeline.name, change.stage))
            if plan.stage.bounded:
                hungry.add(plan.key)
            if change.children:
                hungry.add((plan.pipeline.name, plan.pipeline.first.name))
                if plan.pipeline.spreads is not None:
                    hungry.add((plan.pipeline.name, plan.pipeline.spreads.name))
        for key in hungry - seen:
            if key in self._scheduler.plans:
                self._scheduler.wake(key)

    def _take_in(
        self,
        wishes: Sequence[tuple[Plan, Claim]],
        claimed: Sequence[Claimed],
        *,
        first: bool = False,
    ) -> None:
        """Leases came in: queue them. One that is refused is given back."""
        now = self._loop.time()
        for (plan, wish), one in zip(wishes, claimed, strict=True):
            self._scheduler.took(plan, wish, one, now)
            self.tally.claimed += len(one.leases)
            self.tally.contested += one.contested
            for lease in one.leases:
                self._queue(plan, lease, first=first)

    def _queue(self, plan: Plan, lease: Lease, *, first: bool = False) -> None:
        if plan.key in self._pauses:
            self._give_back(lease, STAGE_PAUSED)
            return
        refusal = self._queues.enqueue(lease, first=first)
        if refusal is not None and self._drop_older(lease):
            refusal = self._queues.enqueue(lease, first=first)
        if refusal is Refusal.PROCESSING:
            self._early[lease.item] = lease
        elif refusal is not None:
            log.info("%s was not queued in %s: %s", lease.key, lease.stage, refusal.value)
            self._give_back(lease, f"the local queue refused it: {refusal.value}")

    def _drop_older(self, lease: Lease) -> bool:
        """A new lease on an item says that the one it had here was lost: that one makes way."""
        if self._queues.drop(lease.item):
            self.tally.lost += 1
            return True
        for plan, processor in _working(self._scheduler):
            older = processor.lease
            if older is not None and older.item == lease.item and older.fence < lease.fence:
                self._lose(plan, processor, older)
                return True
        return False

    async def _assign(self) -> None:
        """Give what is queued to idle processors. Many are begun a few at a time: meanwhile the
        database is answered. After so many, what has ended is committed while the rest begins."""
        for _ in range(ASSIGN_STEPS_MAX):
            if self._begin_attempts() < ASSIGN_STEP:
                return
            await asyncio.sleep(0)
        self._news.set()

    def _begin_attempts(self) -> int:
        """Begin so many attempts at most, each a task of its own; how many they were."""
        assigned = self._coordinator.assign(self._loop.time())
        begun = list(islice(assigned, ASSIGN_STEP))
        for plan, processor, lease in begun:
            processor.attempt = self._loop.create_task(self._attempt(plan, processor, lease))
        return len(begun)

    async def _attempt(self, plan: Plan, processor: Processor, lease: Lease) -> None:
        outcome: Outcome
        try:
            lacking = plan.before and lease.data is None and await self._lacking(plan, lease)
            outcome = lacking or await attempt(plan.stage, plan.way, lease, self, self._processes)
        except asyncio.CancelledError:
            if processor.lease is not lease:  # whoever cancelled it has decided about the item
                raise
            outcome = Failed("the handler was cancelled from within", "cancelled", unexpected=True)
        if processor.lease is lease:
            now = self._loop.time()
            seconds = now - processor.since
            due = now + self._patience(plan, seconds)
            plan.pool.release(processor)
            self._streams.ended(lease)
            if isinstance(outcome, Released) and outcome.pause:
                self._pauses[plan.key] = outcome.reason
                self._give_back_queued(STAGE_PAUSED, plan.key)
            self._hand_in(Finished(plan, lease, outcome, processed=True, seconds=seconds, due=due))
            if self._queues or not self._gathers(now):
                self._news.set()
            else:
                self._wake_by(due)

    async def _lacking(self, plan: Plan, lease: Lease) -> Outcome | None:
        """A stage follows another one since its pipeline was changed: nobody has done that one for
        this item. Where this stage itself was done before, it may be done again."""
        try:
            await self._durable(lease)
            if await self._store.read("result", item=lease.item, stage=lease.stage):
                return None
        except StoreUnavailable as error:
            return failure(error)
        return Failed(
            f"{lease.key}: no result of stage {plan.before!r}, which comes before "
            f"{lease.stage!r}, is stored, as if the pipeline was changed meanwhile; retry it from "
            f"there: onceflow retry {lease.key} --from-stage {plan.before}",
            "no_input",
            permanent=True,
        )

    def _patience(self, plan: Plan, seconds: float) -> float:
        """How long what an attempt of so many seconds gave may wait for its neighbours."""
        if plan.ends and not self._bus.watched:
            return LONG_GATHER_SECONDS_MAX
        if plan.ends:
            return min(LONG_GATHER_SECONDS_MAX, seconds)
        if self._heart.pressed():
            return min(LONG_GATHER_SECONDS_MAX, seconds * PRESSED_GATHER_SHARE)
        return min(GATHER_SECONDS_MAX, seconds * GATHER_SHARE)

    async def _wait(self, until_idle: bool) -> None:
        """Until something happens, or it is time for what the timers are for."""
        now = self._loop.time()
        gathers = self._gathers(now)
        if self._finished and not self._troubles and not gathers:
            await asyncio.sleep(0)
            return
        if self._troubles and not self._asked:
            await asyncio.sleep(self._pause())
            return
        times = [self._scan_at, self._health_at]
        if self._sweeping is None:  # otherwise its answer comes first
            times += [self._sweep_at, self._gates_at]
        opens_at = self._scheduler.opens_at() if self._may_claim() else None
        times += [at for at in (opens_at, self._coordinator.next_at(now)) if at]
        times += self._streams.due_times()
        if gathers:
            times.append(min(one.due for one in self._finished))
        times += [at for plan in self._scheduler.plans.values() if (at := _deadline(plan))]
        in_flight = any(_busy(self._scheduler))
        if self._stop_at is not None:
            if now < self._stop_at:  # afterwards only replies are waited for
                times.append(self._stop_at)
        elif until_idle or in_flight:
            times.append(now + self._settings.poll_seconds)
        if in_flight and self._silence_left() > 0:
            times.append(now + self._silence_left())
        elif self._queues:
            times.append(now + self._settings.assign_seconds)
        self._sleeps_until = float("inf")
        self._wake_by(min(times))
        try:
            await self._news.wait()
        finally:
            self._alarm.cancel()
            self._sleeps_until = float("-inf")
        self._news.clear()

    def _wake_by(self, time: float) -> None:
        """If the loop sleeps, then not longer than that."""
        if time < self._sleeps_until:
            self._alarm.cancel()
            self._sleeps_until = time
            self._alarm = self._loop.call_at(time, self._news.set)

    async def _is_idle(self) -> bool:
        """Whether nothing is left to do here or, for these pipelines, anywhere."""
        if self._has_work() or self._sweeping is not None or self._scheduler.any_room():
            return False
        now = self._loop.time()
        if now < self._idle_check_at and not self._settled_runs:
            return False
        self._idle_check_at = now + self._settings.poll_seconds
        # Others may finish, and end, at any moment. Only a sweep after all was seen settled leaves
        # no gate shut, and only a look after that finds what another one's sweep has opened.
        for _ in range(2):
            if await self._sweep() or not await self._all_settled():
                return False
        return not self._has_work()  # somebody may have added something meanwhile

    async def _all_settled(self) -> bool:
        """Whether nothing of these pipelines is left to do for anybody. What is ready in a stage
        that their tables do not have is left to programs that know it."""
        left = False
        for row in await self._store.read("activity"):
            pipeline, stage = row["pipeline"], row["stage"]
            if pipeline not in self._pipelines:
                continue
            left = left or bool(row["active"])
            if not row["ready"] and not row["backing_off"]:
                continue
            if (pipeline, stage) in self._scheduler.plans:
                left = True
                if row["ready"]:
                    self._scheduler.wake()
            elif (pipeline, stage) not in self._strange:
                self._strange.add((pipeline, stage))
                log.warning(
                    "items wait in stage %r, which pipeline %r does not have here: run the program "
                    "that has it, put it back, or cancel them", stage, pipeline,
                )  # fmt: skip
        return not left

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        if self._has_work():
            out_of_reach = self._troubles and self._loop.time() > self._last_words_at()
            return bool(out_of_reach)  # what is left will be reclaimed
        gates = self._settled_runs or self._sweeping is not None
        return not gates or self._loop.time() > self._last_words_at()

    def _awaits_reply(self) -> bool:
        """Whether the database was asked for something and has not answered yet."""
        return bool(self._asked) or self._sweeping is not None

    def _has_work(self) -> bool:
        """Whether anything that was claimed, or may be, is not yet answered for."""
        under_way = self._finished or self._asked or self._beside or self._queues
        return bool(under_way) or any(_busy(self._scheduler))

    def _last_words_at(self) -> float:
        assert self._stop_at is not None
        return self._stop_at + LAST_WORDS_SECONDS

    async def _end(self) -> None:
        self.over()
        for asked in self._asked:
            asked.reply.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        for plan, processor in _working(self._scheduler):
            self._end_attempt(processor, plan)
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=1)
        await self._heart.stop()
        self._processes.close()
        try:
            await self._store.leave(self.worker.id)
        except OnceflowError as error:
            log.warning("could not sign off: %s", error)

    # --- what the cycle asks for again ---

    async def _sweep_in_turn(self, now: float) -> None:
        """Sweep when it is time, one sweep at a time, beside the exchanges: none waits for it."""
        if self._sweeping is not None and self._sweeping.done():
            sweeping, self._sweeping = self._sweeping, None
            await sweeping
        if self._sweeping is None and (now >= self._sweep_at or self._gates_are_due(now)):
            self._sweeping = self._loop.create_task(self._sweep())
            self._sweeping.add_done_callback(lambda _: self._news.set())

    def _gates_are_due(self, now: float) -> bool:
        """Whether to ask for the gates of runs that had items settled here. A run that has work
        under way here is not over: it is asked about now and then only, for the witness's sake."""
        if now < self._gates_at:
            return False
        self._gates_at = self._swept_at + BUSY_SETTLE_SECONDS
        return now >= self._gates_at or not self._settled_runs <= self._in_hand()

    def _in_hand(self) -> set[str]:
        """The runs that have work under way here."""
        working = (processor.lease for _, processor in _working(self._scheduler))
        ended = (one.lease for ended in (self._finished, *(each.ended for each in self._asked))
                 for one in ended)  # fmt: skip
        leases = (*self._queues.waiting(), *working, *ended)
        return {lease.run for lease in leases if lease is not None}

    async def _sweep(self) -> bool:
        """Reclaim, wake what is due, open gates; whether anything moved."""
        runs, self._settled_runs = list(self._settled_runs), set()
        began = self._swept_at = self._loop.time()
        self._sweep_at = self._gates_at = float("inf")  # unless somebody asks meanwhile
        try:
            swept = await self._store.sweep(runs)
        except BaseException:
            self._settled_runs.update(runs)
            self._sweep_at = began
            raise
        self.tally.reclaimed += swept.reclaimed
        now = self._swept_at = self._loop.time()
        took, before = now - began, self._sweep_took
        self._sweep_took = took
        # One slow sweep may have waited for somebody else's lock: two are what it takes.
        self._settle_seconds = max(SETTLE_SECONDS, min(took, before) * SWEEP_SHARE)
        self._sweep_at = min(self._sweep_at, now + self._settings.cleanup_seconds)
        if swept.due_in_ms is not None:
            self._sweep_at = min(self._sweep_at, now + max(swept.due_in_ms, 1) / 1000)
        if swept.missed:  # another sweep had them locked, and may have looked too early itself
            self._settled_runs.update(runs)
            self._sweep_at = min(self._sweep_at, now + SETTLE_SECONDS)
        if swept.more:
            self._sweep_at = now
        if swept.moved:
            self._idle_check_at = now
            self._scheduler.wake()
            self._bus.poke()
            self._news.set()
        return swept.moved or swept.more or bool(swept.missed)

    async def _adopt(self) -> None:
        """A claim's reply was lost: find out what it gave, by reading."""
        async with self._nothing_under_way():
            await self._adopt_unknown(await self._store.read("held", worker=self.worker.id))

    async def _adopt_unknown(self, held: Sequence[Row]) -> None:
        """Take in the leases that we have without knowing it."""
        ended = {one.lease.item for one in self._finished}
        unknown: list[tuple[Plan, Lease]] = []
        for row in held:
            plan = self._scheduler.plans.get((row["pipeline"], row["stage"]))
            # What ended may have gone on already: we look again when its finish is answered.
            if row["id"] not in ended and plan is not None and not self._queues.holds(row["id"]):
                body = await self._store.read("result", item=row["id"], stage=plan.before)
                lease = Lease(
                    row["id"], row["pipeline"], row["key"], row["stage"], row["fence"],
                    row["attempt"], row["generation"], row["run"], row["depth"],
                    row["claimed_at"], bytes(body[0]["body"]) if body else None,
                )  # fmt: skip
                unknown.append((plan, lease))
        for plan, lease in await self._ascertain(unknown):
            self.tally.adopted += 1
            log.info("found the lease on %s, whose reply was lost", lease.key)
            outcome = self._unproven.pop(mark_of(lease), None)
            if outcome is None:
                self._queue(plan, lease)
            else:
                self._hand_in(Finished(plan, lease, outcome, processed=False))
        self._in_doubt = False

    async def _ascertain(self, unknown: list[tuple[Plan, Lease]]) -> list[tuple[Plan, Lease]]:
        """Those of the leases just read that a crash of the server cannot undo. What was read may
        not be on the disk yet, but with the next write it is: those that are there after it."""
        if not unknown:
            return []
        for _, lease in unknown:
            await self._store.renew(lease)
        rows = await self._store.read("held", worker=self.worker.id)
        durable = {(row["id"], row["fence"], row["key"], row["claimed_at"]) for row in rows}
        return [
            (plan, lease) for plan, lease in unknown
            if (lease.item, lease.fence, lease.key, lease.claimed_at) in durable
        ]  # fmt: skip

    async def _check_health(self, now: float) -> None:
        """Replace processors in error, end attempts whose leases were lost, adopt hidden ones."""
        self._health_at = now + self._settings.health_seconds
        self.tally.checks += 1
        replaced = sum(plan.pool.replace_failed() for plan in self._scheduler.plans.values())
        if replaced:
            self.tally.replaced += replaced
            self._scheduler.wake()
            self._news.set()
        async with self._nothing_under_way():
            rows = await self._store.read("held", worker=self.worker.id)
            held = {(row["id"], row["fence"]) for row in rows}
            await self._look_after_queued(held)
            for plan, processor in _working(self._scheduler):
                lease = processor.lease
                if lease is not None and mark_of(lease) not in held:
                    self._lose(plan, processor, lease)
            await self._adopt_unknown(rows)
        await self._bury_neighbours()
        health = self.health()
        level = logging.INFO if health.healthy else logging.WARNING
        log.log(level, "health: %s", health)

    async def _look_after_queued(self, held: set[Mark]) -> None:
        """What waits here for a processor: drop what was lost, keep what waits long."""
        [clock] = await self._store.read("now")
        for lease in self._queues.waiting():
            if mark_of(lease) not in held:
                log.info("the lease on %s was lost while it was queued", lease.key)
                self.tally.lost += 1
                self._queues.drop(lease.item)
                continue
            pipeline = self._pipelines[lease.pipeline]
            if clock["now"] - lease.claimed_at > pipeline.lease_seconds * 500:
                await self._store.renew(lease)

    def _lose(self, plan: Plan, processor: Processor, lease: Lease) -> None:
        """Somebody took the lease away: the attempt is ended, what it would give is dropped."""
        log.info("the lease on %s was lost; its attempt is ended", lease.key)
        self.tally.lost += 1
        self._end_attempt(processor, plan)

    def _end_attempt(self, processor: Processor, plan: Plan) -> None:
        lease = processor.lease
        assert lease is not None
        self._cancel(processor)
        plan.pool.release(processor)
        self._queues.finished(lease.item)
        self._streams.drop(lease.item)

    def _cancel(self, processor: Processor) -> None:
        """End an attempt. It may take its time, or never notice: the processor does not wait."""
        task = processor.attempt
        if task is not None and not task.done():
            task.cancel()
            self._left_behind.add(task)
            task.add_done_callback(self._left_behind.discard)

    def _cut_off(self, now: float) -> None:
        """End attempts that are past their deadlines; their processors are in error."""
        for plan in self._scheduler.plans.values():
            for processor in plan.pool.begun_before(now - plan.stage.deadline_seconds):
                failed = past_deadline(plan.stage)
                self._cancel(processor)
                lease = plan.pool.fail(processor, failed.message)
                self._queues.finished(lease.item)
                self._streams.drop(lease.item)
                log.warning("%s: %s", lease.key, failed.message)
                self.tally.expired += 1
                self._hand_in(Finished(plan, lease, failed, processed=False))

    def _fence_myself(self, now: float) -> None:
        """No heartbeat for two thirds of a lease: stop my own work before others take it over."""
        if self._silence_left() > 0:
            return
        working = _working(self._scheduler)
        if not working and not self._queues:
            return
        log.warning("no heartbeat could be written for too long; all work here is stopped")
        self.tally.fenced += 1
        self._give_back_working("no heartbeat could be written")
        self._give_back_queued("no heartbeat could be written")

    async def _watch_heart(self) -> None:
        """Stop the work in time also while the loop waits for a database that does not answer."""
        while True:
            await asyncio.sleep(max(self._silence_left(), self._settings.poll_seconds))
            self._fence_myself(self._loop.time())

    def _silence_left(self) -> float:
        """How long no heartbeat may be written from now on before the work must stop."""
        return self._lease_seconds * 2 / 3 - self._heart.silent_seconds()

    def _wind_down(self, now: float) -> None:
        """A stop: what is queued goes back at once, what runs when its grace is over."""
        self._give_back_queued("the worker stopped")
        if self._stop_at is not None and now >= self._stop_at:
            self._give_back_working("the worker stopped")
        if self._settled_runs and not self._has_work():
            self._sweep_at = now  # nobody else may be there to ask for their gates

    def _give_back_working(self, why: str) -> None:
        for plan, processor in _working(self._scheduler):
            lease = processor.lease
            assert lease is not None
            self._end_attempt(processor, plan)
            self._give_back(lease, why)

    def _give_back_queued(self, why: str, stage: StageKey | None = None) -> None:
        """What waits here for a processor, of one stage or of all."""
        for lease in self._queues.empty(stage):
            self._give_back(lease, why)

    def _give_back(self, lease: Lease, why: str) -> None:
        """A lease that nobody works on here: ready again, the attempt not counted."""
        plan = self._scheduler.plans[lease.pipeline, lease.stage]
        self._hand_in(Finished(plan, lease, Released(why), processed=False))

    def _hand_in(self, one: Finished) -> None:
        """An attempt is over: its outcome is committed next, or when its lease is durable."""
        volatile = self._volatile.get(mark_of(one.lease))
        if volatile is None:
            self._finished.append(one)
        else:
            volatile.ended = one

    def _pause(self) -> float:
        """How long to leave the database alone before the next try."""
        grown: float = 0.05 * 2 ** min(self._troubles, 10)
        return min(self._settings.patience_seconds, grown)

    def _trouble(self, error: StoreUnavailable) -> None:
        if not self._troubles:
            log.warning("%s; trying again", error)
        self._troubles += 1

    # --- what handlers ask for ---

    def emit(self, lease: Lease, kind: str, fields: dict[str, Any]) -> None:
        """A handler streams. Called from its thread or from the loop."""
        if kind not in self._pipelines[lease.pipeline].events:
            raise Permanent(
                f"unknown event kind {kind!r}; declare it with Pipeline(events=...)",
                code="unknown_event",
            )
        try:
            on_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            self._emit(lease, kind, fields)
        else:
            self._loop.call_soon_threadsafe(self._emit, lease, kind, fields)

    def _emit(self, lease: Lease, kind: str, fields: dict[str, Any]) -> None:
        if not self._scheduler.plans[lease.pipeline, lease.stage].pool.works_on(lease):
            return  # left behind: its lease was lost, another attempt may be under way
        due = self._streams.add(lease, kind, fields, self._loop.time())
        if due is not None:
            self._wake_by(due)

    def streaming(self) -> list[Live]:
        """The text in progress of every item, for who begins to watch."""
        return self._streams.snapshots()

    async def _save_streams(self, now: float) -> None:
        """Keep the text in progress, and end attempts whose leases that showed to be lost."""
        lost = await self._streams.save(now, self._volatile)
        for plan, processor in _working(self._scheduler) if lost else ():
            if processor.lease in lost:
                self._lose(plan, processor, processor.lease)

    async def _durable(self, lease: Lease) -> None:
        """What a handler asks the database for waits until its own lease is there. If that never
        is, its attempt is ended."""
        volatile = self._volatile.get(mark_of(lease))
        if volatile is not None:
            await asyncio.wait([volatile.asked])

    async def run_items(self, lease: Lease, phase: str) -> AsyncIterator[Item]:
        await self._durable(lease)
        async for item in run_items(self._store, self._pipelines, lease.run, phase):
            yield item

    async def item(self, lease: Lease, key: str) -> Item | None:
        await self._durable(lease)
        pipeline = lease.pipeline
        rows = await self._store.read("item_by_key", pipeline=pipeline, key=key)
        return to_item(rows[0], await known_states(self._store)) if rows else None

    async def result(self, lease: Lease, stage: str) -> Json:
        await self._durable(lease)
        rows = await self._store.read("result", item=lease.item, stage=stage)
        return decode(bytes(rows[0]["body"])) if rows else None

    async def keep(self, lease: Lease, part: Part) -> bool:
        """A piece of work was paid for: it is worth waiting for a database that is away."""
        self._have_parts.add(mark_of(lease))
        await self._durable(lease)
        while True:
            try:
                return await self._store.renew(lease, part=part)
            except StoreUnavailable as error:
                self._trouble(error)
                await asyncio.sleep(self._pause())

    async def kept(self, lease: Lease) -> dict[str, Json]:
        self._have_parts.add(mark_of(lease))
        await self._durable(lease)
        rows = await self._store.read("parts", item=lease.item, stage=lease.stage)
        return {row["name"]: decode(bytes(row["body"])) for row in rows}

    async def left(self, lease: Lease) -> Left:
        await self._durable(lease)
        rows = await self._store.read("left", run=lease.run)
        return Left(rows[0]["tokens"], rows[0]["cost"]) if rows else Left()

    def _known_again(self) -> None:
        """The database had forgotten this worker, and gave it nothing meanwhile."""
        log.warning("the database had forgotten this worker, and knows it again")
        self.wake()

    def _report_text(self) -> str:
        return self.health().as_json()


EXCHANGES_MAX = 3
"""Exchanges under way at once: while the database works on one, this process prepares another."""
ASSIGN_STEP = 50
"""So many attempts are begun before the loop looks whether the database has answered."""
ASSIGN_STEPS_MAX = 10
"""So often a cycle does that. With half of it, the server takes a tenth longer for all."""
UNPROVEN_MAX = 1000
"""So many leases that may yet turn up are remembered: many times as many as a fault leaves."""
GATHER_SHARE = 1 / 8
"""What ended waits for its neighbours at most this share of the time that its attempt took."""
GATHER_SECONDS_MAX = 0.02
LONG_GATHER_SECONDS_MAX = 0.05
"""The same where nothing follows and no place under a limit is freed: but while somebody watches,
not longer than its attempt took."""
PRESSED_GATHER_SHARE = 1 / 2
"""Where everybody waits for a core, a place that is free a little later costs nothing, and what a
commit would take of that core can be used: half of the attempt's time, and also the longer one."""
GATHER_MAX = 32
"""So many are committed at once: more together would hardly cost less."""
SETTLE_SECONDS = 0.05
"""After an item is settled, how soon its run's gate is asked for, unless the work ends earlier."""
BUSY_SETTLE_SECONDS = 0.5
"""The same while work of the run is under way here."""
HEARD_SECONDS = 1.0
"""How far sweeps are apart that others' commits give reason to."""
SWEEP_SHARE = 20
"""Sweeps for gates take at most one part in so many of the time, however long one takes."""
STAGE_PAUSED = "its stage was paused"
LAST_WORDS_SECONDS = 10.0
"""How long a stop goes on trying to release leases, and to open the gates of what it settled, in a
database that does not answer."""


def _plans(pipeline: Pipeline, cores: int) -> Iterable[Plan]:
    """The stages of a pipeline in the order of their priority, each with a pool of its own. A
    `cpu=True` stage has as many processors as there are processes for it: an attempt that waited
    for one would use up its deadline."""
    changed = _log_processor if log.isEnabledFor(logging.DEBUG) else None
    before = {following.name: stage.name for stage in pipeline.stages
              if (following := pipeline.after(stage.name)) is not None}  # fmt: skip
    for stage in pipeline.every_stage:
        count = min(stage.processors, cores) if stage.cpu else stage.processors
        pool = Pool(stage.name, count, changed)
        key = (pipeline.name, stage.name)
        ends = not stage.bounded and pipeline.after(stage.name) is None
        yield Plan(pipeline, stage, before.get(stage.name, ""), pool, key, way_of(stage), ends)


def _log_processor(processor: Processor) -> None:
    log.debug("%s is %s", processor.name, processor.state.value)


def _reserve(wishes: Iterable[tuple[Plan, Claim]]) -> list[Claim]:
    """Claims, and the room that they may fill is reserved until they are answered or given up."""
    for plan, wish in wishes:
        plan.reserved += wish.count
    return [wish for _, wish in wishes]


def _working(scheduler: Scheduler) -> list[tuple[Plan, Processor]]:
    return [
        (plan, processor) for plan in scheduler.plans.values() for processor in plan.pool.working()
    ]


def _busy(scheduler: Scheduler) -> Iterable[bool]:
    return (plan.pool.busy > 0 for plan in scheduler.plans.values())


def _deadline(plan: Plan) -> float | None:
    oldest = plan.pool.oldest()
    return None if oldest is None else oldest + plan.stage.deadline_seconds


def _log_transition(one: Finished, change: Transition) -> None:
    lease = one.lease
    state = one.plan.pipeline.state(change.stage, change.phase)
    for event in change.events:
        log.info(
            "%s %s %s: %s", lease.pipeline, lease.key, event.kind, state,
            extra={
                "pipeline": lease.pipeline, "key": lease.key, "item": lease.item,
                "run": lease.run, "stage": lease.stage, "phase": str(change.phase),
                "state": state, "fence": lease.fence, "attempt": lease.attempt,
                "kind": event.kind, "seconds": one.seconds,
            },
        )  # fmt: skip
