"""The history as it grows, read once from the database for any number of readers.

The newest events are kept; a reader who is further behind reads the database until it has caught
up. No reader has a queue of its own, so one that never reads costs nothing but its connection.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from onceflow import Event, Flow, StoreUnavailable
from onceflow.web.shapes import event_fields
from onceflow.web.texts import Partial, Places, Texts

KEPT = 10_000
BATCH = 100
AGAIN_SECONDS = 0.5
FEW_READERS = 10
"""So many are told of each event at once."""
READER_SECONDS = 0.002
"""For each one more, how much longer what happens is gathered before a reader is told."""
SILENCE_SECONDS_MAX = 0.5
ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a reader wants; None is all."""

    pipeline: str | None = None
    item: int | None = None
    run: str | None = None
    kinds: frozenset[str] | None = None

    partials: bool = False
    """Texts in progress, too."""

    def fits(self, event: Event) -> bool:
        return self.covers(event) and (self.kinds is None or event.kind in self.kinds)

    def covers(self, one: Event | Partial) -> bool:
        """Whether it is about something that the reader asked about."""
        return (
            self.pipeline in (None, one.pipeline)
            and self.item in (None, one.item)
            and self.run in (None, one.run)
        )


class Feed:
    """One reader of the database, many of it."""

    def __init__(self, flow: Flow, *, kept: int = KEPT) -> None:
        self._flow = flow
        self._ring: deque[Event] = deque(maxlen=kept)
        self._bodies: dict[int, str] = {}
        """The newest events as they are sent, each made once for all readers."""
        self._news = asyncio.Event()
        self._closed = asyncio.Event()
        self.newest = 0
        self._floor = 0
        """Every event after this one, up to the newest, is in the ring."""
        self.closing = False
        self.readers = 0
        self.texts = Texts(flow, self._wake)

    async def start(self) -> None:
        self.newest = self._floor = await self.last()

    async def last(self) -> int:
        return int((await self._flow.store.read("last_event"))[0]["seq"])

    async def run(self) -> None:
        """Read for ever. A database that is away is asked again."""
        while True:
            try:
                async for event in self._flow.events(after=self.newest, follow=True):
                    self._take(event)
            except StoreUnavailable:
                await asyncio.sleep(AGAIN_SECONDS)

    def _take(self, event: Event) -> None:
        self.texts.take()  # what was told before this was committed comes before it
        if len(self._ring) == self._ring.maxlen:
            self._floor = self._ring[0].seq
            self._bodies.pop(self._floor, None)
        self._ring.append(event)
        self.newest = event.seq
        self._wake()

    def body(self, event: Event) -> str:
        """An event as JSON."""
        found = self._bodies.get(event.seq)
        if found is None:
            found = ENCODER.encode(event_fields(event))
            if event.seq > self._floor:
                self._bodies[event.seq] = found
        return found

    def recent(self, most: int) -> list[Event]:
        """The newest events this process has seen, oldest first."""
        return list(self._ring)[-most:]

    def _since(self, seq: int) -> list[Event]:
        newest_first = takewhile(lambda event: event.seq > seq, reversed(self._ring))
        return list(newest_first)[::-1]

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        """Let every reader go."""
        self.closing = True
        self._wake()
        self._closed.set()

    async def _gathered(self) -> None:
        """With many readers, let some more happen before one of them is told, each at a time of its
        own: what they cost is then the same however much happens, and holds up nobody."""
        silence = min((self.readers - FEW_READERS) * READER_SECONDS, SILENCE_SECONDS_MAX)
        if silence > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.5, 1.0) * silence):
                    await self._closed.wait()

    async def stored(self, after: int, wanted: Wanted) -> AsyncIterator[list[Event]]:
        """What the database has after a `seq`, in batches."""
        batch: list[Event] = []
        kinds = None if wanted.kinds is None else sorted(wanted.kinds)
        async for event in self._flow.events(
            after=after, pipeline=wanted.pipeline, item=wanted.item, run=wanted.run, kinds=kinds
        ):
            batch.append(event)
            if len(batch) == BATCH:
                yield batch
                batch = []
                if self.closing:
                    return
        if batch:
            yield batch

    async def follow(
        self, after: int, wanted: Wanted, *, ping_seconds: float
    ) -> AsyncIterator[Sequence[Event | Partial]]:
        """Everything wanted after a `seq`, each once and in order; an empty batch is a ping."""
        cursor = after
        places: Places = {}
        while not self.closing:
            news = self._news
            if wanted.partials and (told := self.texts.since(places, wanted.covers)):
                yield told
                continue
            if cursor < self._floor:
                horizon = self.newest
                async for batch in self.stored(cursor, wanted):
                    cursor = batch[-1].seq
                    yield batch
                cursor = max(cursor, horizon)
                continue
            fresh = self._since(cursor)
            if fresh:
                cursor = fresh[-1].seq
                found = [event for event in fresh if wanted.fits(event)]
                for at in range(0, len(found), BATCH):
                    yield found[at : at + BATCH]
                continue
            try:
                async with asyncio.timeout(ping_seconds):
                    await news.wait()
            except TimeoutError:
                yield []
                continue
            await self._gathered()
