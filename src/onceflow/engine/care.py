"""The care of one worker: its signs of life, the deadlines of its attempts, its regular check.

unknown   until the first heartbeat is written: nothing is claimed
alive     heartbeats are written
silent    none for two thirds of the shortest lease: all work here is stopped before others take
          it over, and nothing is claimed
alive     with the next heartbeat
gone      signed off: what it still held is ready again, uncounted
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from onceflow.core.errors import OnceflowError, StoreUnavailable
from onceflow.engine.attempts import Attempts
from onceflow.engine.book import Book
from onceflow.engine.exchange import Exchange
from onceflow.engine.health import Health, Tally
from onceflow.engine.heart import Heart
from onceflow.engine.neighbours import ended, machine
from onceflow.engine.scheduler import Scheduler
from onceflow.engine.sweep import Sweeper
from onceflow.engine.tasks import Tasks, Trouble
from onceflow.store.base import Store, Worker
from onceflow.store.clock import boot_id

log = logging.getLogger("onceflow")


class Care:
    def __init__(
        self,
        store: Store,
        worker: Worker,
        heart: Heart,
        book: Book,
        scheduler: Scheduler,
        attempts: Attempts,
        exchange: Exchange,
        sweeper: Sweeper,
        tasks: Tasks,
        trouble: Trouble,
        tally: Tally,
        health: Callable[[], Health],
        health_seconds: float,
    ) -> None:
        self._store = store
        self._worker = worker
        self._heart = heart
        self._book = book
        self._scheduler = scheduler
        self._attempts = attempts
        self._exchange = exchange
        self._sweeper = sweeper
        self._tasks = tasks
        self._trouble = trouble
        self._tally = tally
        self._health = health
        self._health_seconds = health_seconds
        self._lease_seconds = min(
            (plan.pipeline.lease_seconds for plan in scheduler.plans.values()), default=300.0
        )
        self._loop = asyncio.get_running_loop()
        self._known = False
        self.tried = asyncio.Event()
        """The first heartbeat was written, or could not be: who asks meanwhile waits for that."""
        self.check_at = self._loop.time() + health_seconds

    # --- life ---

    @property
    def alive(self) -> bool:
        """Whether leases that this worker gets would be its own for long enough."""
        return self._known and self.silence_left() > 0

    def silence_left(self) -> float:
        """How long no heartbeat may be written from now on before the work must stop."""
        return self._lease_seconds * 2 / 3 - self._heart.silent_seconds()

    def silent_seconds(self) -> float:
        return self._heart.silent_seconds()

    async def begin(self, stopping: Callable[[], bool]) -> None:
        """Write the first heartbeat. A database that is away at this moment is asked again."""
        while not stopping():
            try:
                await self._heart.start()
                self._known = True
                break
            except StoreUnavailable as error:
                self._trouble.report(error)
                self.tried.set()
                await self._trouble.wait()
        self.tried.set()
        self._trouble.over()
        try:
            await self._bury_neighbours()
        except StoreUnavailable as error:
            self._trouble.report(error)  # at the next check

    async def end(self) -> None:
        """Sign off, and give back what is still held."""
        await self._heart.stop()
        if not self._known:
            return
        try:
            await self._store.leave(self._worker.id, release=True)
        except OnceflowError as error:
            log.warning("could not sign off: %s", error)

    # --- each turn of the loop ---

    def turn(self, now: float) -> None:
        self._attempts.cut_off(self._scheduler.plans.values(), now)
        if self._known and self.silence_left() <= 0 and (alive := self._book.alive()):
            log.warning("no heartbeat could be written for too long; all work here is stopped")
            self._tally.fenced += 1
            self._attempts.give_back(alive, "no heartbeat could be written")
        if now >= self.check_at and now >= self._trouble.until:
            self.check_at = now + self._health_seconds
            self._tasks.spawn(self.check(now))

    def next_at(self, now: float) -> float:
        """When a deadline is over, the worker has been silent too long, or a check is due."""
        times = [max(self.check_at, self._trouble.until)]
        for plan in self._scheduler.plans.values():
            oldest = plan.pool.oldest()
            if oldest is not None:
                at = oldest + plan.stage.deadline_seconds
                # What is past it and was not cut off has ended, and waits for the database.
                times.append(at if at > now else now + 1)
        if self._book and (left := self.silence_left()) > 0:
            times.append(now + left)
        return min(times)

    # --- the regular check ---

    async def check(self, now: float) -> None:
        """Replace processors in error, compare the leases, keep what waits long, bury the dead."""
        self._tally.checks += 1
        replaced = sum(plan.pool.replace_failed() for plan in self._scheduler.plans.values())
        if replaced:
            self._tally.replaced += replaced
            self._scheduler.wake()
        await self._exchange.reconcile()
        for one in self._book.waiting():  # its deadline counts from its claim until it begins
            if now - one.since > one.plan.stage.deadline_seconds / 2:
                await self._store.renew(one.lease)
        await self._bury_neighbours()
        health = self._health()
        level = logging.INFO if health.healthy else logging.WARNING
        log.log(level, "health: %s", health)

    async def _bury_neighbours(self) -> None:
        """Sign off workers of this machine that were killed: what they held is reclaimed now, and
        counted; released, an item that kills its worker would never be failed as poison."""
        if self._worker.host != machine():
            return
        for worker in ended(await self._store.read("workers"), boot_id()):
            log.info("worker %s exited without signing off; its leases are reclaimed", worker)
            await self._store.leave(worker)
            self._sweeper.hurry()
