"""Things that belong to one event loop and must be closed in it, without asking the user to.

A client is made once, often before any loop runs, and used by whichever loop runs. What it opens
(a connection pool, child processes) is kept per loop and closed when that loop shuts its
asynchronous generators down, as `asyncio.run` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class PerLoop(Generic[T]):
    """`get()` makes the thing of the running loop at first use; `close()` ends it."""

    def __init__(self, make: Callable[[], T], end: Callable[[T], Awaitable[None]]) -> None:
        self._make = make
        self._end = end
        self._things: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[T, None]]
        ] = WeakKeyDictionary()

    def peek(self) -> T | None:
        """The thing of the running loop, if it was made: `get` without the await."""
        known = self._things.get(asyncio.get_running_loop())
        return None if known is None else known[0]

    async def get(self) -> T:
        loop = asyncio.get_running_loop()
        known = self._things.get(loop)
        if known is not None:
            return known[0]
        thing = self._make()
        keeper = _keep(thing, self._end)
        # No await between the look-up and this line: a second caller finds the first one's thing.
        self._things[loop] = (thing, keeper)
        await anext(keeper)
        return thing

    async def close(self) -> None:
        known = self._things.pop(asyncio.get_running_loop(), None)
        if known is not None:
            await known[1].aclose()


async def _keep(thing: T, end: Callable[[T], Awaitable[None]]) -> AsyncGenerator[T, None]:
    try:
        yield thing
    finally:
        await end(thing)
