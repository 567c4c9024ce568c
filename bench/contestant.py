"""What every contestant can be asked. Each has its own small file in `bench/contestants`.

A contestant is made for one measurement, in a process of its own, on an empty database. `url` is
`postgresql://...` or the path of an SQLite file that does not exist yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg

from bench.measures import Rate

Send = Callable[[], Awaitable[None]]
"""Adds one item; it is durable when this returns."""

Started = Callable[[], None]
"""Called by the handler of an item, in whatever thread it runs."""


class Contestant:
    """One engine with one setting on one database."""

    phase_seconds: float = 0.0
    """How far apart its polls are. Items are sent at random moments of that interval."""

    program: Sequence[str] = ()
    """The command that users start as a worker, if its idle CPU is to be that program's."""

    def __init__(self, url: str, **setting: Any) -> None:
        self.url = url
        self.setting = setting

    async def prepare(self) -> None:
        """Make the schema."""

    async def rate(self, n: int) -> Rate:
        """Add n items with one stage that does nothing, then work them off, measured."""
        raise NotImplementedError

    async def pipeline3(self, n: int) -> Rate:
        """The same with three stages. A stage's end is durable before the next one starts."""
        raise NotImplementedError

    def worker(self, started: Started) -> AbstractAsyncContextManager[None]:
        """A worker that waits for items while the context is open."""
        raise NotImplementedError

    def sender(self) -> AbstractAsyncContextManager[Send]:
        """Something that can add items, in the worker's process or in another."""
        raise NotImplementedError


async def vacuum(url: str) -> None:
    """What a server does by itself within minutes of a large insert: the same for everybody."""
    if url.startswith("postgresql:"):
        connection = await asyncpg.connect(url)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()


def settled(done: int, n: int) -> None:
    """A figure counts only if the work was done."""
    if done != n:
        raise RuntimeError(f"{done} of {n} items were finished")
