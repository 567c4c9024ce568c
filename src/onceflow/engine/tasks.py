"""The background tasks of one manager: who notices how each of them ends, and how long a database
that does not answer is left alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from onceflow.core.errors import StoreUnavailable

T = TypeVar("T")
log = logging.getLogger("onceflow")


class Trouble:
    """A database that is away: how often in a row, and until when it is left alone."""

    def __init__(self, pause_seconds_max: float) -> None:
        self._pause_seconds_max = pause_seconds_max
        self._loop = asyncio.get_running_loop()
        self.times = 0
        self.until = float("-inf")

    def report(self, error: StoreUnavailable) -> None:
        """It did not answer."""
        if not self.times:
            log.warning("%s; trying again", error)
        self.times += 1
        pause = min(self._pause_seconds_max, 0.05 * 2 ** min(self.times, 10))
        self.until = self._loop.time() + pause

    def over(self) -> None:
        """It has answered."""
        self.times = 0
        self.until = float("-inf")

    async def wait(self) -> None:
        await asyncio.sleep(max(0.0, self.until - self._loop.time()))


class Tasks:
    """Owner of every task that a manager starts. A database that is away is trouble, and trouble is
    waited out; anything else that ends a task ends the manager, with that error."""

    def __init__(self, news: Callable[[], None], trouble: Trouble) -> None:
        self._news = news
        self._trouble = trouble
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._for_callers: set[asyncio.Task[Any]] = set()
        self._error: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, T], *, for_caller: bool = False) -> asyncio.Task[T]:
        """Start a task. `for_caller`: somebody waits for it, and hears what it raises."""
        task = self._loop.create_task(work)
        (self._for_callers if for_caller else self._tasks).add(task)
        task.add_done_callback(self._answered if for_caller else self._ended)
        return task

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start one of many: it says itself when it is `over`, which takes a third of the time of
        a callback."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        return task

    def over(self, task: asyncio.Task[None]) -> None:
        """What was begun has come to its end."""
        self._tasks.discard(task)
        self._news()

    def _answered(self, task: asyncio.Task[Any]) -> None:
        self._for_callers.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has it, or is gone
        self._news()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)
        self._news()

    def failed(self, error: BaseException) -> None:
        """A task has ended with this."""
        if isinstance(error, StoreUnavailable):
            self._trouble.report(error)
        elif self._error is None:
            self._error = error

    def check(self) -> None:
        """Raise what a task ended with."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def end(self, seconds: float) -> None:
        """Cancel what is left and give it a moment; what never notices is left behind. What callers
        wait for is answered."""
        left = set(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=seconds)
