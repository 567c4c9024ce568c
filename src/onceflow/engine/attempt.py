"""One run of a handler: in the loop, in a thread, or in a process that can be killed."""

from __future__ import annotations

import asyncio
import inspect
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from multiprocessing import connection
from typing import Any, TypeVar

from onceflow.core.errors import Halt, StoreUnavailable
from onceflow.core.item import Lease
from onceflow.core.pipeline import Handler, Stage
from onceflow.core.transition import Failed, Outcome, Released, failure, outcome_of
from onceflow.engine.work import Desk, Work, work_for

log = logging.getLogger("onceflow")
T = TypeVar("T")


class Processes:
    """The processes of `cpu=True` handlers, started when the first one is needed."""

    def __init__(self, count: int) -> None:
        self._count = max(1, count)
        self._pool: Any = None

    async def run(self, handler: Handler, work: Work) -> Any:
        """Run a handler in a process; cancelling the caller kills it."""
        from pebble import ProcessExpired, ProcessPool

        if self._pool is None:
            # A fork would copy our threads' locks in whatever state they are.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPool(self._count, initializer=_end_with_parent, context=context)
        try:
            return await asyncio.wrap_future(self._pool.schedule(handler, args=[work]))
        except ProcessExpired as expired:
            raise RuntimeError(
                f"the process of the handler ended by itself (exit code {expired.exitcode})"
            ) from None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None


def _end_with_parent() -> None:
    """In a handler's process: should the worker be killed, nobody is left to end what hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="onceflow-parent", daemon=True).start()


class Way(Enum):
    """Where a handler runs."""

    LOOP = "async def"
    THREAD = "def"
    PROCESS = "cpu=True"


def way_of(stage: Stage) -> Way:
    if stage.cpu:
        return Way.PROCESS
    return Way.LOOP if is_async(stage.handler) else Way.THREAD


async def attempt(
    stage: Stage, way: Way, lease: Lease, desk: Desk, processes: Processes
) -> Outcome:
    """Run the stage's handler once and say how it ended. Nothing that a handler raises gets out,
    but a cancellation (whoever cancels has decided about the item already) and an interrupt."""
    here = os.getpid()
    try:
        if way is Way.LOOP:
            value = await stage.handler(work_for(lease, desk))
        elif way is Way.PROCESS:
            value = await processes.run(stage.handler, work_for(lease, None))
        else:
            value = await in_thread(stage.handler, work_for(lease, desk))
            if inspect.isawaitable(value):  # a plain def that gave a coroutine back
                value = await value
        return outcome_of(value)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # some raise their panics past Exception
        failed = await _failure(error, lease, desk)
        if isinstance(failed, Failed) and failed.unexpected:
            log.warning("%s: stage %r raised", lease.key, lease.stage, exc_info=error)
        return failed
    finally:
        if os.getpid() != here:  # the handler forked, and this is the child: it is no worker
            os._exit(0)


async def _failure(error: BaseException, lease: Lease, desk: Desk) -> Failed | Released:
    failed = failure(error)
    if not isinstance(error, Halt):
        return failed
    try:
        halted = (await desk.left(lease)).nothing
    except StoreUnavailable as away:
        return failure(away)
    if halted:
        return failed
    # Given back as it is, it would be claimed again at once, for ever.
    return Failed(f"{error} (but its run has no ceiling that is reached)", error.code)


def is_async(handler: Handler) -> bool:
    """Whether calling it gives a coroutine, also for an object with an async `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - asks about the method, not callability
    )


async def in_thread(handler: Callable[[Work], T], work: Work) -> T:
    """Run a blocking handler in a thread of its own. A thread cannot be killed: when the caller is
    cancelled it is left behind, and what it returns is dropped."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # None only with an error

    def target() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = handler(work)
        except StopIteration as stop:  # a future cannot carry one
            error = RuntimeError(f"the handler raised StopIteration: {stop}")
        except BaseException as raised:  # handed over to the loop, which records it
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=target, name=f"onceflow-{work.stage}", daemon=True).start()
    return await answer


def past_deadline(stage: Stage) -> Failed:
    """What is recorded for an attempt that was cut off."""
    return Failed(
        f"the attempt took longer than its {stage.deadline_seconds:g} s; raise deadline_seconds or "
        "make the handler quicker",
        "deadline",
    )
