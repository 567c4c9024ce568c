"""Where handlers ask: each question belongs to the lease of the attempt that asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from onceflow.core.errors import Permanent, StoreUnavailable
from onceflow.core.item import Item, Json, Lease
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import Left, Part, decode
from onceflow.engine.book import Book, State
from onceflow.engine.listing import known_states, run_items, to_item
from onceflow.engine.streams import Streams
from onceflow.engine.tasks import Trouble
from onceflow.store.base import Store


class HandlerDesk:
    def __init__(
        self,
        store: Store,
        pipelines: Mapping[str, Pipeline],
        book: Book,
        streams: Streams,
        trouble: Trouble,
        wake_by: Callable[[float], None],
    ) -> None:
        self._store = store
        self._pipelines = pipelines
        self._book = book
        self._streams = streams
        self._trouble = trouble
        self._wake_by = wake_by
        self._loop = asyncio.get_running_loop()

    def emit(self, lease: Lease, kind: str, fields: dict[str, Any]) -> None:
        """A handler streams. Called from its thread or from the loop."""
        if kind not in self._pipelines[lease.pipeline].events:
            raise Permanent(
                f"unknown event kind {kind!r}; declare it with Pipeline(events=...)",
                code="unknown_event",
            )
        try:
            on_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            self._emit(lease, kind, fields)
        else:
            self._loop.call_soon_threadsafe(self._emit, lease, kind, fields)

    def _emit(self, lease: Lease, kind: str, fields: dict[str, Any]) -> None:
        entry = self._book.get(lease)
        if entry is None or entry.state is not State.RUNNING:
            return  # left behind: its lease was lost, another attempt may be under way
        due = self._streams.add(lease, kind, fields, self._loop.time())
        if due is not None:
            self._wake_by(due)

    async def run_items(self, lease: Lease, phase: str) -> AsyncIterator[Item]:
        async for item in run_items(self._store, self._pipelines, lease.run, phase):
            yield item

    async def item(self, lease: Lease, key: str) -> Item | None:
        rows = await self._store.read("item_by_key", pipeline=lease.pipeline, key=key)
        return to_item(rows[0], await known_states(self._store)) if rows else None

    async def result(self, lease: Lease, stage: str) -> Json:
        rows = await self._store.read("result", item=lease.item, stage=stage)
        return decode(bytes(rows[0]["body"])) if rows else None

    async def keep(self, lease: Lease, part: Part) -> bool:
        """A piece of work was paid for: it is worth waiting for a database that is away."""
        self._has_parts(lease)
        while True:
            try:
                return await self._store.renew(lease, part=part)
            except StoreUnavailable as error:
                self._trouble.report(error)
                await self._trouble.wait()

    async def kept(self, lease: Lease) -> dict[str, Json]:
        self._has_parts(lease)
        rows = await self._store.read("parts", item=lease.item, stage=lease.stage)
        return {row["name"]: decode(bytes(row["body"])) for row in rows}

    def _has_parts(self, lease: Lease) -> None:
        entry = self._book.get(lease)
        if entry is not None:
            entry.parts = True

    async def left(self, lease: Lease) -> Left:
        rows = await self._store.read("left", run=lease.run)
        return Left(rows[0]["tokens"], rows[0]["cost"]) if rows else Left()
