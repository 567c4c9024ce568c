"""The manager: one per process, the owner of its work.

Each turn of its loop does five things: *claim* what there is room for, *assign* leases to idle
processors, begin their *attempts*, *decide* what those that ended change, *commit* it. None of them
waits: what asks the database runs beside the loop, in tasks that are watched. The parts:

    scheduler, book     what to claim, and the leases that this process has
    coordinator, pools  which processor gets which lease
    attempts, desk      handlers under way, and what they may ask
    exchange            claims, beginnings and outcomes, in one transaction: the only way in which
                        an item moves from here
    sweeper, care       what must happen again and again; this worker's life and health
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable

from onceflow.core.item import SETTLED, Added, Lease, Mark, Phase
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import Failed, Released, Transition
from onceflow.engine.attempt import Processes, Way, way_of
from onceflow.engine.attempts import STAGE_PAUSED, Attempts
from onceflow.engine.book import Book, Entry, StageKey, State
from onceflow.engine.bus import Bus, Live
from onceflow.engine.care import Care
from onceflow.engine.coordinator import Coordinator
from onceflow.engine.desk import HandlerDesk
from onceflow.engine.exchange import Exchange
from onceflow.engine.health import Health, Tally, report
from onceflow.engine.heart import Heart, ThreadHeart
from onceflow.engine.pool import Pool, Processor
from onceflow.engine.scheduler import Plan, Scheduler
from onceflow.engine.setback import Setback
from onceflow.engine.settings import Settings
from onceflow.engine.streams import Streams
from onceflow.engine.sweep import Sweeper
from onceflow.engine.tasks import Tasks, Trouble
from onceflow.store.base import Add, Kept, Store, Worker

log = logging.getLogger("onceflow")

LAST_WORDS_SECONDS = 10.0
"""How long a stop goes on trying to release leases, and to open the gates of what it settled, in a
database that does not answer."""


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
        self.over = False
        """Its work has ended, one way or the other."""
        self._store = store
        self._settings = settings
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._pipelines = {pipeline.name: pipeline for pipeline in pipelines}
        cores = settings.cpu_processes or os.cpu_count() or 1
        plans = [plan for pipeline in self._pipelines.values() for plan in _plans(pipeline, cores)]
        self._news = asyncio.Event()
        self._trouble = Trouble(settings.patience_seconds)
        self._tasks = Tasks(self._news.set, self._trouble)
        self._book = Book([plan.key for plan in plans], settings.queue_max)
        self._scheduler = Scheduler(plans, self._book)
        self._coordinator = Coordinator(self._scheduler, self._book, settings.cycle_seconds)
        self._streams = Streams(store, bus, settings.partial_seconds)
        in_processes = [plan for plan in plans if plan.way is Way.PROCESS]
        self._processes = Processes(sum(plan.pool.idle for plan in in_processes))
        self._setback = Setback(store, self._tasks, self.tally)
        self._attempts = Attempts(
            store, self._book, self._streams, self.tally, self._tasks, self._processes,
            self._setback, self._pause,
        )  # fmt: skip
        self._attempts.desk = HandlerDesk(
            store, self._pipelines, self._book, self._streams, self._trouble, self._wake_by
        )
        self._exchange = Exchange(
            store, worker.id, self._book, self._scheduler, self._attempts, self._tasks,
            self._trouble, self.tally, self._answered, self._committed,
        )  # fmt: skip
        self._sweeper = Sweeper(
            store, self._tasks, self._trouble, self.tally, settings.cleanup_seconds, self._moved
        )
        beats = (pipeline.heartbeat_seconds for pipeline in self._pipelines.values())
        self._care = Care(
            store, worker,
            heart(store, worker, min(beats, default=30.0), self._report, self._known_again),
            self._book, self._scheduler, self._attempts, self._exchange, self._sweeper,
            self._tasks, self._trouble, self.tally, self.health, settings.health_seconds,
        )  # fmt: skip
        self._scan_at = self._idle_at = float("-inf")
        self._stop_at: float | None = None
        self._until_idle = False
        self._saving: asyncio.Task[None] | None = None
        self._idling: asyncio.Task[None] | None = None
        self._strange: set[StageKey] = set()
        """Stages that our pipelines do not have, though items wait in them: said once."""
        self._alarm_at = float("inf")
        """When the loop wakes, if nothing happens before."""
        self._alarm: asyncio.Handle = self._loop.call_soon(self._news.set)

    # --- from outside ---

    def wake(self) -> None:
        """Somebody committed something: it may be claimable, due, settled, or taken away here."""
        self._scheduler.wake()
        self._sweeper.heard()
        self._exchange.look_soon(self._loop.time())
        self._news.set()

    def stop(self, grace_seconds: float | None = None) -> None:
        """Claim no more, give attempts under way this long, release the rest uncounted."""
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        stop_at = self._loop.time() + grace
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)
        self._news.set()

    def health(self) -> Health:
        """The state of this process at this moment."""
        silent = self._care.silent_seconds()
        return report(self._scheduler, self._book, self.tally, silent, self._loop.time())

    async def add(self, add: Add) -> Added:
        """Add items; where nobody waits, as many as there is room for are claimed along with it."""
        added = await self._exchange.add(add, self._may_claim)
        if not added.new:
            self._sweeper.ask(add.run)  # it may be settled as it is
        self._news.set()
        return added

    async def perform(self, item: int, stage: StageKey) -> bool:
        """Claim one item by name and begin it at once; False if that cannot be."""
        plan = self._scheduler.plans.get(stage)
        if not self.over:
            await self._care.tried.wait()  # a worker that nobody knows yet can claim nothing
        if plan is None or not self._may_claim:
            return False
        self._news.set()
        return await self._exchange.claim_by_name(plan, item)

    def streaming(self) -> list[Live]:
        """The text in progress of every item, for who begins to watch."""
        return self._streams.snapshots()

    def marks(self) -> set[Mark]:
        """The leases that this process believes it has."""
        return self._book.marks()

    # --- the loop ---

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until stopped or, if asked so, until nothing is left to do."""
        self._until_idle = until_idle
        try:
            await self._care.begin(lambda: self._stop_at is not None)
            while not self._is_over():
                self._turn(self._loop.time())
                await self._wait()
                self._tasks.check()
        finally:
            await self._end()

    def _turn(self, now: float) -> None:
        self._care.turn(now)
        if self._stop_at is not None:
            self._wind_down(now)
        if now >= self._scan_at:
            self._scan_at = now + self._settings.scan_seconds
            self._scheduler.wake()
        self._exchange.turn(now, self._may_claim)
        for entry in self._coordinator.assign(now):
            self._exchange.begin(entry)
        self._exchange.turn(now, self._may_claim)  # what begins, and the places that were taken
        self._sweeper.turn(now)
        if self._saving is None and any(at <= now for at in self._streams.due_times()):
            self._saving = self._tasks.spawn(self._save_streams())
        if self._until_idle and self._looks_idle(now):
            self._idle_at = now + self._settings.poll_seconds
            self._idling = self._tasks.spawn(self._stop_if_idle())

    @property
    def _may_claim(self) -> bool:
        return self._stop_at is None and self._care.alive

    def _wind_down(self, now: float) -> None:
        """A stop: what is queued goes back at once, what runs when its grace is over."""
        assert self._stop_at is not None
        waiting = [one for one in self._book.alive() if one.state is not State.RUNNING]
        self._attempts.give_back(waiting, "the worker stopped")
        if now >= self._stop_at:
            self._attempts.give_back(self._book.alive(), "the worker stopped")
        if self._sweeper.pending and not self._has_work():
            self._sweeper.hurry()

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        last_words = self._loop.time() > self._stop_at + LAST_WORDS_SECONDS
        if self._has_work():
            return bool(self._trouble.times) and last_words  # what is left will be reclaimed
        return last_words or not self._sweeper.pending

    def _has_work(self) -> bool:
        """Whether anything that was claimed, or may be, is not yet answered for."""
        return bool(self._book) or self._exchange.busy

    async def _wait(self) -> None:
        """Until something happens, or it is time for what the timers are for."""
        if self._news.is_set():
            await asyncio.sleep(0)  # whatever set it may have more to say
        else:
            self._wake_by(min(self._times(self._loop.time())))
            await self._news.wait()
            self._alarm.cancel()
            self._alarm_at = float("inf")
        self._news.clear()

    def _times(self, now: float) -> list[float]:
        """When there is something to do, if nothing happens before."""
        times = [self._scan_at, self._care.next_at(now)]
        if self._exchange.free and self._may_claim:  # otherwise its answer comes first
            times += self._scheduler.opening_times()
        if self._saving is None:
            times += self._streams.due_times()
        for at in (
            self._coordinator.next_at(now), self._sweeper.next_at(), self._exchange.next_at()
        ):  # fmt: skip
            if at is not None:
                times.append(at)
        if self._stop_at is not None:
            last = self._stop_at + LAST_WORDS_SECONDS
            times += [at for at in (self._stop_at, last) if at > now]
        if self._until_idle or self._book:
            times.append(now + self._settings.poll_seconds)
        if self._trouble.until > now:
            times.append(self._trouble.until)
        return times

    def _wake_by(self, time: float) -> None:
        """If the loop sleeps, then not longer than that."""
        if time < self._alarm_at:
            self._alarm.cancel()
            self._alarm_at = time
            self._alarm = self._loop.call_at(time, self._news.set)

    async def _end(self) -> None:
        self.over = True
        self._care.tried.set()
        self._stop_at = self._stop_at or self._loop.time()
        self._alarm.cancel()
        for entry in self._book.alive():
            self._book.ended(entry, Released("the worker stopped"))
        self._scheduler.end()
        await self._tasks.end(seconds=1.0)
        self._processes.close()
        await self._care.end()

    # --- what the parts tell ---

    def _answered(self, entry: Entry, change: Transition, kept: Kept) -> None:
        """An outcome was committed, or its lease was lost: the item is somebody else's business."""
        lease = entry.lease
        self._streams.drop(lease)
        if not kept:
            self.tally.lost += 1
            self._setback.suspect(lease)
            log.info("the lease on %s was lost; its result is dropped", lease.key)
            return
        self._count(entry, change)
        if change.phase in SETTLED and not self._book.has_run(lease.run):
            self._sweeper.ask(lease.run)
        if change.delay_ms is not None:
            self._sweeper.ask(within=change.delay_ms / 1000)
        if log.isEnabledFor(logging.INFO):
            _log_transition(entry, change)

    def _count(self, entry: Entry, change: Transition) -> None:
        if isinstance(entry.outcome, Released):
            self.tally.released += 1
        elif change.phase is Phase.FAILED:
            self.tally.failed += 1
        elif isinstance(entry.outcome, Failed):
            self.tally.retried += 1
        else:
            self.tally.finished += 1

    def _committed(self) -> None:
        """This process has changed something: watchers look, and so does who waits for the end."""
        self._idle_at = float("-inf")
        self._bus.poke()
        self._news.set()

    def _moved(self) -> None:
        """A sweep has changed something."""
        self._scheduler.wake()
        self._committed()

    def _pause(self, plan: Plan, why: str) -> None:
        """A handler has its stage paused."""
        if not plan.paused:
            plan.paused = why
            self._attempts.give_back(self._book.waiting(plan.key), STAGE_PAUSED)
            self._tasks.spawn(self._exchange.pause(plan, why))

    def _known_again(self) -> None:
        """The database had forgotten this worker, and gave it nothing meanwhile."""
        log.warning("the database had forgotten this worker, and knows it again")
        self.wake()

    def _report(self) -> str:
        return self.health().as_json()

    # --- beside the loop ---

    async def _save_streams(self) -> None:
        """Keep the text in progress, and end attempts whose leases show to be lost."""
        try:
            for lease in await self._streams.save(self._loop.time()):
                entry = self._book.get(lease)
                if entry is not None and entry.state is State.RUNNING:
                    self._attempts.lose(entry)
        finally:
            self._saving = None

    def _looks_idle(self, now: float) -> bool:
        """Whether nothing is left to do here, as far as this process knows."""
        return (
            self._stop_at is None
            and self._idling is None
            and not self._has_work()
            and not self._sweeper.busy
            and not self._scheduler.any_room()
            and (now >= self._idle_at or self._sweeper.pending)
            and now >= self._trouble.until
        )

    async def _stop_if_idle(self) -> None:
        """Stop if nothing is left to do for anybody. Others may finish, and end, at any moment:
        only a sweep after all was seen settled leaves no gate shut, and only a look after that
        finds what another one's sweep has opened."""
        try:
            for _ in range(2):
                if await self._sweeper.sweep() or not await self._all_settled():
                    return
            if not self._has_work():  # somebody may have added something meanwhile
                self.stop()
        finally:
            self._idling = None

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
        yield Plan(pipeline, stage, before.get(stage.name, ""), pool, key, way_of(stage))


def _log_processor(processor: Processor) -> None:
    log.debug("%s is %s", processor.name, processor.state.value)


def _log_transition(entry: Entry, change: Transition) -> None:
    lease: Lease = entry.lease
    state = entry.plan.pipeline.state(change.stage, change.phase)
    for event in change.events:
        log.info(
            "%s %s %s: %s", lease.pipeline, lease.key, event.kind, state,
            extra={
                "pipeline": lease.pipeline, "key": lease.key, "item": lease.item,
                "run": lease.run, "stage": lease.stage, "phase": str(change.phase),
                "state": state, "fence": lease.fence, "attempt": lease.attempt,
                "kind": event.kind, "seconds": entry.seconds,
            },
        )  # fmt: skip
