"""An event loop with virtual time that plays several processes at once, by a seed.

Each callback belongs to an `Owner`, a simulated process, through its context. Within one owner
callbacks run in the order they were scheduled, as in a real loop; whose turn it is among several
owners is chosen by the seed. Time stands still while anybody can run, then jumps to the next timer.
An owner that is stopped runs nothing until it goes on; then everything it missed comes late, as
after SIGSTOP and SIGCONT. One that never goes on was killed.

Nothing here reads a clock, a random source of the system, or a thread's timing.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
STEPS_AT_ONCE_MAX = 4000
"""Callbacks within a millisecond; more means that something spins instead of waiting."""
TICK = 1e-6
"""A timer fires a little after its time, never at it: nobody may count on the equal."""
BURIALS_MAX = 10
LOOP_BEGIN = 1000.0
WALL_BEGIN = 1_700_000_000.0


class Stuck(Exception):
    """Nothing can ever happen again, or something spins and time stands still."""


class Owner:
    """One simulated process: whose callbacks these are."""

    __slots__ = ("name", "queued", "ready", "running", "wall_step")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.running = True
        self.queued = False
        self.wall_step = 0.0
        """How far somebody has set this process's wall clock from the others'."""


OWNER: ContextVar[Owner] = ContextVar("owner")


class SimLoop(asyncio.BaseEventLoop):
    """One loop for all owners."""

    _stopping: bool

    def __init__(self, seed: int | str, *, threads: bool = False) -> None:
        """`threads` waits for handlers that run in threads before time goes on: slower, and what
        they do at once is not in the seed's hands."""
        super().__init__()
        self._threads = threads
        self._from_threads: deque[asyncio.Handle] = deque()
        self._now = LOOP_BEGIN
        self._since = LOOP_BEGIN
        self._steps = 0
        self._random = Random(seed).random
        self._turns: list[Owner] = []
        self._timers: list[tuple[float, int, Owner, asyncio.TimerHandle]] = []
        self._count = 0
        self._nobody = Owner("world")
        self._owners = [self._nobody]
        self.tasks: list[asyncio.Task[Any]] = []
        """Every task there was: a killed owner's must not be tidied up by the garbage collector."""
        self.errors: list[str] = []
        self.set_exception_handler(self._unhandled)
        self.set_debug(False)

    # --- what asyncio asks for ---

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(context.get(OWNER, self._nobody), handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if not self._threads:
            return self.call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._from_threads.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        owner = context.get(OWNER, self._nobody)
        heapq.heappush(self._timers, (when, self._count, owner, timer))
        return timer

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, context=context)
        self.tasks.append(task)
        return task

    def _run_once(self) -> None:
        """Everything that can happen now, then the next timers."""
        turns = self._turns
        while turns and not self._stopping:
            at = int(self._random() * len(turns)) if len(turns) > 1 else 0
            owner = turns[at]
            handle = owner.ready.popleft()
            if not owner.ready:
                turns[at] = turns[-1]
                turns.pop()
                owner.queued = False
            if not handle.cancelled():
                self._steps += 1
                handle._run()
                if self._steps > STEPS_AT_ONCE_MAX:
                    self._steps = 0
                    raise Stuck(f"{owner.name} spins: time stands still at {self._now:.3f}")
        if not self._stopping:
            self._advance()

    def _advance(self) -> None:
        if self._threads and self._heard_from_threads():
            return
        timers = self._timers
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Stuck(f"nothing can happen any more, at {self._now:.3f}")
        self._now = max(self._now, timers[0][0]) + TICK
        if self._now > self._since + 0.001:
            self._since = self._now
            self._steps = 0
        while timers and timers[0][0] <= self._now:
            _, _, owner, timer = heapq.heappop(timers)
            if not timer.cancelled():
                self._enqueue(owner, timer)

    def _heard_from_threads(self) -> bool:
        """Let the handlers in threads end, and take in what they have to say."""
        for thread in threading.enumerate():
            if thread.name.startswith("onceflow-"):
                thread.join()
        heard = bool(self._from_threads)
        while self._from_threads:
            self._enqueue(self._nobody, self._from_threads.popleft())
        return heard

    def _enqueue(self, owner: Owner, handle: asyncio.Handle) -> None:
        owner.ready.append(handle)
        if owner.running and not owner.queued:
            owner.queued = True
            self._turns.append(owner)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when their time comes."""

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error!r}" if error else context["message"])

    # --- what a simulation asks for ---

    def owner(self, name: str) -> Owner:
        """A new process."""
        owner = Owner(name)
        self._owners.append(owner)
        return owner

    def stop_owner(self, owner: Owner) -> None:
        """It runs nothing from now on: SIGSTOP or, if it never goes on, SIGKILL."""
        owner.running = False
        if owner.queued:
            owner.queued = False
            self._turns.remove(owner)

    def go_on(self, owner: Owner) -> None:
        """SIGCONT: what was due meanwhile comes now, late."""
        owner.running = True
        if owner.ready and not owner.queued:
            owner.queued = True
            self._turns.append(owner)

    def spawn(self, owner: Owner, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something as that owner."""
        context = copy_context()
        context.run(OWNER.set, owner)
        return self.create_task(work, context=context)

    def wake_later(self, owner: Owner, delay: float, wake: Callable[[], None]) -> None:
        """Call something as that owner, after a while."""
        context = copy_context()
        context.run(OWNER.set, owner)
        self.call_later(delay, wake, context=context)

    def bury(self) -> None:
        """Let every task that is left end, also those of the killed: nobody looks any more."""
        for _ in range(BURIALS_MAX):
            left = [task for task in self.tasks if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            for owner in self._owners:
                self.go_on(owner)
            self.run_until_complete(asyncio.wait(left, timeout=3600))
        raise Stuck("tasks do not end when they are cancelled")

    @contextmanager
    def as_the_time(self) -> Iterator[None]:
        """Let the time module tell this loop's time, with each owner's steps of the wall clock."""

        def monotonic() -> float:
            return self._now

        def wall() -> float:
            return WALL_BEGIN + self._now + OWNER.get(self._nobody).wall_step

        fakes: dict[str, Callable[..., float]] = {
            "time": wall,
            "time_ns": lambda: round(wall() * 1e9),
            "monotonic": monotonic,
            "monotonic_ns": lambda: round(self._now * 1e9),
            "clock_gettime_ns": lambda clock: round(self._now * 1e9),
        }
        real = {name: getattr(time, name) for name in fakes}
        try:
            for name, fake in fakes.items():
                setattr(time, name, fake)
            yield
        finally:
            for name, function in real.items():
                setattr(time, name, function)
