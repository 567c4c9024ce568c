"""The heartbeat of one process: from a thread of its own, so that a busy loop does not look dead.

A beat says that the process lives, for all its leases at once. When none could be written for two
thirds of the shortest lease, the manager stops its own work: others may have taken it over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from onceflow.core.errors import OnceflowError
from onceflow.store.base import Store, Worker

log = logging.getLogger("onceflow")


class Heart(Protocol):
    """What the manager needs of a heartbeat."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def silent_seconds(self) -> float:
        """How long no beat has been written."""


class ThreadHeart:
    """Beats from a thread with an event loop and a connection of its own."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        seconds: float,
        report: Callable[[], str],
        known_again: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._seconds = seconds
        self._report = report
        self._known_again = known_again
        self._loop = asyncio.get_running_loop()
        self._beat_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onceflow-heart", daemon=True)

    async def start(self) -> None:
        """The first beat is written before anything is claimed."""
        await self._store.beat(self._worker, self._report())
        self._beat_at = time.monotonic()
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def silent_seconds(self) -> float:
        return time.monotonic() - self._beat_at

    def _run(self) -> None:
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        store = self._store.for_thread()
        try:
            while not await asyncio.to_thread(self._stop.wait, self._seconds):
                sent = time.monotonic()
                try:
                    async with asyncio.timeout(self._seconds):
                        forgotten = await store.beat(self._worker, self._report())
                    self._beat_at = sent
                    if forgotten:
                        self._loop.call_soon_threadsafe(self._known_again)
                except TimeoutError:
                    log.warning("the heartbeat got no answer in time")
                except Exception as error:  # one that ended here would stop the worker for good
                    log.warning("the heartbeat was not written: %s", error)
        finally:
            if store is not self._store:
                await store.close()


class LoopHeart:
    """Beats from the manager's own loop, where there are no threads: in a simulation."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        seconds: float,
        report: Callable[[], str],
        known_again: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._seconds = seconds
        self._report = report
        self._known_again = known_again
        self._loop = asyncio.get_running_loop()
        self._beat_at = self._loop.time()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._store.beat(self._worker, self._report())
        self._beat_at = self._loop.time()
        self._task = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def silent_seconds(self) -> float:
        return self._loop.time() - self._beat_at

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            sent = self._loop.time()
            try:
                forgotten = await self._store.beat(self._worker, self._report())
                self._beat_at = sent
                if forgotten:
                    self._known_again()
            except OnceflowError as error:
                log.warning("the heartbeat was not written: %s", error)
