"""Single questions, asked at the same time, gathered into few."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

from onceflow.clients._lifetime import PerLoop

K = TypeVar("K")
V = TypeVar("V")


class Batches(Generic[K, V]):
    """`get(key)` waits a moment for others, then `ask` is called once for all of them.

    At most `at_once` calls are under way; what comes meanwhile goes into the next one, up to
    `size_max` keys. A key asked for twice at once is asked for once.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]],
        *,
        at_once: int,
        wait_seconds: float,
        size_max: int = 50,
    ) -> None:
        self._desks: PerLoop[_Desk[K, V]] = PerLoop(
            lambda: _Desk(ask, at_once, wait_seconds, size_max), _end
        )

    async def get(self, key: K) -> V:
        desk = self._desks.peek() or await self._desks.get()
        return await desk.get(key)

    async def close(self) -> None:
        await self._desks.close()


class _Desk(Generic[K, V]):
    """The questions of one event loop."""

    def __init__(
        self,
        ask: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]],
        at_once: int,
        wait_seconds: float,
        size_max: int,
    ) -> None:
        self._ask = ask
        self._at_once = at_once
        self._wait_seconds = wait_seconds
        self._size_max = size_max
        self._waiting: dict[K, list[asyncio.Future[V]]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._gathering = False

    async def get(self, key: K) -> V:
        answer: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(answer)
        self._start()
        return await answer

    def _start(self) -> None:
        if self._gathering or not self._waiting or len(self._calls) >= self._at_once:
            return
        self._gathering = True
        call = asyncio.get_running_loop().create_task(self._serve())
        self._calls.add(call)
        call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            self._start()

    async def _serve(self) -> None:
        """Wait for others, then call once; who is left over gets a call beside this one."""
        try:
            await asyncio.sleep(self._wait_seconds)
        finally:
            self._gathering = False
        keys = list(islice(self._waiting, self._size_max))
        batch = {key: self._waiting.pop(key) for key in keys}
        self._start()
        await self._call(batch)

    async def _call(self, batch: dict[K, list[asyncio.Future[V]]]) -> None:
        wanted = [key for key, waiters in batch.items() if not all(w.done() for w in waiters)]
        if not wanted:
            return  # everybody has gone
        try:
            answers = await self._ask(wanted)
            for key in wanted:
                for waiter in batch[key]:
                    if not waiter.done():
                        waiter.set_result(answers[key])
        except BaseException as error:
            for waiters in batch.values():
                for waiter in waiters:
                    if waiter.done():
                        continue
                    if isinstance(error, Exception):
                        waiter.set_exception(error)
                    else:
                        waiter.cancel()
            if not isinstance(error, Exception):
                raise

    async def close(self) -> None:
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for waiters in self._waiting.values():
            for waiter in waiters:
                waiter.cancel()
        self._waiting.clear()


async def _end(desk: _Desk[K, V]) -> None:
    await desk.close()
