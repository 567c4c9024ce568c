"""The attempts of this process: each entry with a processor, from its beginning to its outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from onceflow.core.errors import StoreUnavailable
from onceflow.core.item import Lease
from onceflow.core.transition import Failed, Outcome, Released, failure
from onceflow.engine.attempt import Processes, attempt, past_deadline
from onceflow.engine.book import Book, Entry, State
from onceflow.engine.health import Tally
from onceflow.engine.scheduler import Plan
from onceflow.engine.setback import Setback
from onceflow.engine.streams import Streams
from onceflow.engine.tasks import Tasks
from onceflow.engine.work import Desk
from onceflow.store.base import Store

log = logging.getLogger("onceflow")

STAGE_PAUSED = "its stage was paused"


class Attempts:
    """Begins handlers, and decides what becomes of those that are not to go on."""

    def __init__(
        self,
        store: Store,
        book: Book,
        streams: Streams,
        tally: Tally,
        tasks: Tasks,
        processes: Processes,
        setback: Setback,
        pause: Callable[[Plan, str], None],
    ) -> None:
        self._store = store
        self._book = book
        self._streams = streams
        self._tally = tally
        self._tasks = tasks
        self._processes = processes
        self._setback = setback
        self._pause = pause
        self._loop = asyncio.get_running_loop()
        self.desk: Desk | None = None
        """Where handlers ask; it needs this object first."""

    def begin(self, entry: Entry) -> None:
        """The database knows that the handler begins: so it does."""
        assert entry.processor is not None
        if entry.state is State.BEGINNING:
            entry.plan.pool.begin(entry.processor, self._loop.time())
        entry.state = State.RUNNING
        entry.attempt = self._tasks.begin(self._run(entry))

    async def _run(self, entry: Entry) -> None:
        plan, lease = entry.plan, entry.lease
        assert self.desk is not None
        assert entry.processor is not None
        assert entry.attempt is not None
        began = entry.processor.since
        outcome: Outcome
        try:
            try:
                lacking = plan.before and lease.data is None and await self._lacking(plan, lease)
                outcome = lacking or await attempt(
                    plan.stage, plan.way, lease, self.desk, self._processes
                )
            except asyncio.CancelledError:
                if entry.state is not State.RUNNING:  # whoever cancelled it has decided
                    raise
                outcome = Failed(
                    "the handler was cancelled from within", "cancelled", unexpected=True
                )
            except (
                GeneratorExit
            ) as error:  # Python gives one that is awaited to the outermost frame
                outcome = failure(error)
            if entry.state is State.RUNNING:
                self._ended(entry, outcome, self._loop.time() - began)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._tasks.failed(error)
        finally:
            self._tasks.over(entry.attempt)

    def _ended(self, entry: Entry, outcome: Outcome, seconds: float) -> None:
        self._streams.ended(entry.lease)
        self._book.ended(entry, outcome, seconds)
        if isinstance(outcome, Released) and outcome.pause:
            self._pause(entry.plan, outcome.reason)

    async def _lacking(self, plan: Plan, lease: Lease) -> Outcome | None:
        """A stage follows another one since its pipeline was changed: nobody has done that one for
        this item. Where this stage itself was done before, it may be done again."""
        try:
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

    # --- ends that are not the handler's own ---

    def sent(self, entry: Entry) -> None:
        """An outcome is on its way to the database: its place is free."""
        if entry.processor is not None:
            entry.plan.pool.release(entry.processor)
            entry.processor = None

    def lose(self, entry: Entry) -> None:
        """Somebody took the lease away: the attempt is ended, what it would give is dropped."""
        assert entry.state < State.ENDED
        was_queued = entry.state is State.QUEUED
        log.info(
            "the lease on %s was lost%s", entry.lease.key,
            " while it was queued" if was_queued else "; its attempt is ended",
        )  # fmt: skip
        self._tally.lost += 1
        self._setback.suspect(entry.lease)
        self._book.forget(entry)
        self._cancel(entry)

    def give_back(self, entries: Iterable[Entry], why: str) -> None:
        """Leases that are not worked on here any more: ready again, their attempts uncounted."""
        for entry in entries:
            self._book.ended(entry, Released(why))
            self._cancel(entry)

    def cut_off(self, plans: Iterable[Plan], now: float) -> None:
        """End attempts that are past their deadlines; their processors are in error."""
        for plan in plans:
            for processor in plan.pool.begun_before(now - plan.stage.deadline_seconds):
                assert processor.lease is not None
                entry = self._book.get(processor.lease)
                if entry is None or entry.state is not State.RUNNING:
                    continue  # its outcome waits for the database
                failed = past_deadline(plan.stage)
                plan.pool.fail(processor, failed.message)
                entry.processor = None
                self._book.ended(entry, failed)
                self._cancel(entry)
                log.warning("%s: %s", entry.lease.key, failed.message)
                self._tally.expired += 1

    def _cancel(self, entry: Entry) -> None:
        """Its state says already that it is over. The handler may take its time, or never notice:
        the processor does not wait for it."""
        if entry.attempt is not None:
            entry.attempt.cancel()
        self._streams.drop(entry.lease)
        self.sent(entry)
