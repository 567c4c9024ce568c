"""Texts in progress for readers of events: those of the worker inside at once, others' as stored.

A piece is known by its epoch (the attempt's fence) and its offset, so applying one twice changes
nothing. Nothing is kept for a reader but how far it has read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

from onceflow import Flow, StoreUnavailable
from onceflow.engine.bus import Live

TELL_SECONDS = 0.1
"""The least time between two pieces of the texts."""
LOOK_SECONDS = 0.25
"""How often texts of other workers are looked for, while somebody listens."""
KEPT_SECONDS = 2.0
"""For how long a text that the worker inside told is kept though the database does not have it."""
TEXTS_MAX = 200
PIECE_CHARS_MAX = 16_384

Places = dict[int, tuple[int, int]]
"""How far a reader is: item -> epoch, and characters of it."""


@dataclass(slots=True)
class Text:
    """What one attempt has told so far."""

    pipeline: str
    key: str
    stage: str
    run: str
    epoch: int
    text: str = ""
    told_at: float = 0.0
    """When the worker inside told the last of it, on the loop's clock."""


@dataclass(frozen=True, slots=True)
class Partial:
    """One piece."""

    item: int
    pipeline: str
    key: str
    stage: str
    run: str
    epoch: int
    offset: int
    text: str

    def body(self) -> str:
        return json.dumps(
            {"kind": "partial", "item": self.item, "pipeline": self.pipeline, "key": self.key,
             "stage": self.stage, "run": self.run, "epoch": self.epoch, "offset": self.offset,
             "text": self.text},
            separators=(",", ":"),
        )  # fmt: skip


class Texts:
    """The texts in progress, as far as this process knows them."""

    def __init__(self, flow: Flow, wake: Callable[[], None]) -> None:
        self._flow = flow
        self._wake = wake
        self._told = flow.bus.subscribe()
        self._texts: dict[int, Text] = {}
        self.listeners = 0

    async def run(self) -> None:
        """For ever: tell what streams here, look for what streams elsewhere."""
        look_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await self._told.wait(LOOK_SECONDS)
            changed = self.take()
            if not self.listeners:
                self._texts.clear()
            elif loop.time() >= look_at:
                look_at = loop.time() + LOOK_SECONDS
                try:
                    changed |= await self._look()
                except StoreUnavailable:
                    continue  # the feed says so
            if changed:
                self._wake()
            await asyncio.sleep(TELL_SECONDS)

    def take(self) -> bool:
        """What the worker inside has told meanwhile; whether there was anything."""
        pieces = self._told.take()
        for live in pieces if self.listeners else ():
            self._apply(live)
        return bool(pieces)

    def _apply(self, live: Live) -> None:
        piece = live.data.get("text")
        if not isinstance(piece, str):
            return
        text = self._texts.get(live.item)
        if text is None or text.epoch < live.fence:
            text = Text(live.pipeline, live.key, live.stage, live.run, live.fence)
            if live.offset:
                return  # somebody began to listen in its middle: the database has the beginning
            self._texts[live.item] = text
        if text.epoch == live.fence and len(text.text) == live.offset:
            text.text += piece
            text.told_at = asyncio.get_running_loop().time()

    async def _look(self) -> bool:
        """Texts as they are stored; whether any has changed."""
        changed = False
        rows = {row["item"]: row for row in await self._flow.store.read("partials", most=TEXTS_MAX)}
        for item, row in rows.items():
            known = self._texts.get(item)
            if known is not None and known.epoch == row["fence"]:
                if len(known.text) >= row["chars"]:
                    continue
            elif known is not None and known.epoch > row["fence"]:
                continue
            found = await self._flow.partial(item)
            if found is None or found[0] != row["fence"]:
                continue
            self._texts[item] = Text(
                row["pipeline"], row["key"], row["stage"], row["run"], found[0], found[1]
            )
            changed = True
        recently = asyncio.get_running_loop().time() - KEPT_SECONDS  # it may not be stored yet
        for item in [item for item in self._texts if item not in rows]:
            if self._texts[item].told_at < recently:
                del self._texts[item]
        return changed

    def since(self, places: Places, covers: Callable[[Partial], bool]) -> list[Partial]:
        """What a reader has not read yet of what it wants; its places are moved on."""
        found: list[Partial] = []
        for item in [item for item in places if item not in self._texts]:
            del places[item]
        for item, text in self._texts.items():
            epoch, offset = places.get(item, (0, 0))
            if epoch != text.epoch:
                offset = 0
            piece = text.text[offset : offset + PIECE_CHARS_MAX]
            if piece:
                places[item] = (text.epoch, offset + len(piece))
                partial = Partial(
                    item, text.pipeline, text.key, text.stage, text.run, text.epoch, offset, piece
                )
                if covers(partial):
                    found.append(partial)
        return found
