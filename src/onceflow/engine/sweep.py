"""The sweeper: has the database do again and again whatever must happen.

Reclaim, wake what is due, open gates: each an idempotent statement of the store. What happens here
or elsewhere only makes the next sweep sooner.

    resting   until the time at which something is due, or was asked for
    sweeping  one at a time, beside the exchanges
    resting   at least as long as bounds sweeps to a twentieth of the time
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onceflow.engine.health import Tally
from onceflow.engine.tasks import Tasks, Trouble
from onceflow.store.base import Store

SETTLE_SECONDS = 0.05
"""After an item is settled, how soon its run's gate is asked for."""
HEARD_SECONDS = 1.0
"""How far sweeps are apart that others' commits give reason to."""
SWEEP_SHARE = 20
"""Sweeps take at most one part in so many of the time, however long one takes."""


class Sweeper:
    def __init__(
        self,
        store: Store,
        tasks: Tasks,
        trouble: Trouble,
        tally: Tally,
        cleanup_seconds: float,
        moved: Callable[[], None],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._trouble = trouble
        self._tally = tally
        self._cleanup_seconds = cleanup_seconds
        self._moved = moved
        self._loop = asyncio.get_running_loop()
        self._runs: set[str] = set()
        """Runs that had items settled here, whose gates nobody has asked for since."""
        self._at = float("-inf")
        self._rests_until = float("-inf")
        self._swept_at = float("-inf")
        self._took = 0.0
        self._task: asyncio.Task[bool] | None = None

    @property
    def busy(self) -> bool:
        return self._task is not None

    @property
    def pending(self) -> bool:
        """Whether gates are still to be asked for."""
        return bool(self._runs) or self.busy

    def next_at(self) -> float | None:
        """When to sweep next; None while a sweep is under way."""
        if self._task is not None:
            return None
        return max(self._at, self._rests_until, self._trouble.until)

    def ask(self, run: str | None = None, within: float = SETTLE_SECONDS) -> None:
        """Sweep so soon; `run` may be settled."""
        if run is not None:
            self._runs.add(run)
        self._at = min(self._at, self._loop.time() + within)

    def heard(self) -> None:
        """Others committed something: they sweep as well, so there is no hurry."""
        apart = self._swept_at + HEARD_SECONDS - self._loop.time()
        self.ask(within=max(0.0, apart))

    def hurry(self) -> None:
        """Nobody else may be there to ask for the gates of what was settled here."""
        self._at = self._rests_until = float("-inf")

    def turn(self, now: float) -> None:
        at = self.next_at()
        if at is not None and now >= at:
            self._task = self._tasks.spawn(self.sweep())
            self._task.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self._task = None

    async def sweep(self) -> bool:
        """Sweep now; whether anything moved, or may yet."""
        runs, self._runs = self._runs, set()
        began, self._at = self._loop.time(), float("inf")
        try:
            swept = await self._store.sweep(sorted(runs))
        except BaseException:
            self._runs |= runs
            self._at = began
            raise
        self._swept_at = now = self._loop.time()
        # One slow sweep may have waited for somebody else's lock: two are what it takes.
        took, self._took = min(now - began, self._took), now - began
        self._rests_until = now + max(SETTLE_SECONDS, SWEEP_SHARE * took)
        self._tally.reclaimed += swept.reclaimed
        if swept.missed:  # another sweep had them locked, and may have looked too early itself
            self._runs |= runs
            self.ask()
        self.ask(within=0.0 if swept.more else self._cleanup_seconds)
        if swept.due_in_ms is not None:
            self.ask(within=max(swept.due_in_ms, 1) / 1000)
        if swept.moved:
            self._moved()
        return bool(swept.moved or swept.more or swept.missed)
