"""The texts in progress: told to watchers at once, stored now and then for who comes late."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from onceflow.core.item import Lease
from onceflow.core.transition import clean
from onceflow.engine.bus import SNAPSHOT, Bus, Live
from onceflow.store.base import Store


@dataclass(slots=True)
class Stream:
    """The text of one attempt in progress."""

    lease: Lease
    text: str = ""
    saved: int = 0
    """How many characters of it are stored."""
    due: float = 0.0
    """When it may be stored next, on the loop's clock; 0 until it has begun."""

    @property
    def unsaved(self) -> bool:
        return len(self.text) > self.saved


class Streams:
    """The streams of one process's attempts, by their items."""

    def __init__(self, store: Store, bus: Bus, partial_seconds: float) -> None:
        self._store = store
        self._bus = bus
        self._partial_seconds = partial_seconds
        self._streams: dict[int, Stream] = {}

    def add(self, lease: Lease, kind: str, fields: dict[str, Any], now: float) -> float | None:
        """An attempt tells something; when that is to be stored, if nothing was before: the rest of
        a text waits along with what is there. A short one is over before it is worth a write."""
        stream = self._streams.get(lease.item)
        if stream is None or stream.lease is not lease:
            stream = self._streams[lease.item] = Stream(lease)
        offset = len(stream.text)
        text = fields.get("text")
        was_unsaved = stream.unsaved
        if isinstance(text, str):
            fields = {**fields, "text": clean(text)}
            stream.text += fields["text"]
        if self._bus.watched:
            self._bus.push(_live(lease, kind, offset, fields))
        if was_unsaved or not stream.unsaved:
            return None
        stream.due = stream.due or now + self._partial_seconds
        return stream.due

    def ended(self, lease: Lease) -> None:
        """An attempt ended: its result says more, and is stored next."""
        stream = self._streams.get(lease.item)
        if stream is not None and stream.lease is lease:
            stream.saved = len(stream.text)

    def drop(self, lease: Lease) -> None:
        """A lease is over: its item may have a new one, whose text is another."""
        stream = self._streams.get(lease.item)
        if stream is not None and stream.lease is lease:
            del self._streams[lease.item]

    def due_times(self) -> Iterable[float]:
        """When there is something to store."""
        return (stream.due for stream in self._streams.values() if stream.unsaved)

    def snapshots(self) -> list[Live]:
        """The text in progress of every item, for who begins to watch: the deltas go on from it."""
        return [
            _live(stream.lease, SNAPSHOT, 0, {"text": stream.text})
            for stream in self._streams.values()
            if stream.text
        ]

    async def save(self, now: float) -> list[Lease]:
        """Store what is due; the leases that showed to be lost."""
        lost: list[Lease] = []
        for stream in list(self._streams.values()):
            if not stream.unsaved or now < stream.due:
                continue
            length = len(stream.text)
            stream.due = now + self._partial_seconds
            held = await self._store.renew(stream.lease, stream.text)
            stream.saved = length
            if not held:
                lost.append(stream.lease)
                self.drop(stream.lease)
        return lost


def _live(lease: Lease, kind: str, offset: int, fields: dict[str, Any]) -> Live:
    return Live(
        lease.item, lease.pipeline, lease.key, lease.stage, kind, lease.fence, offset, fields,
        lease.run,
    )  # fmt: skip
