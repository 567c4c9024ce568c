"""What this process tells its watchers: that something was committed, and text as it streams."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

SNAPSHOT = "snapshot"
"""The kind of a message that has the whole text so far: deltas go on from it."""
BACKLOG_MAX = 10_000
"""Live messages one slow watcher may have waiting; older ones are dropped."""


@dataclass(frozen=True, slots=True)
class Live:
    """One piece of a stream. It is not stored: a watcher who comes late reads a snapshot."""

    item: int
    pipeline: str
    key: str
    stage: str
    kind: str
    fence: int
    """The epoch: a new attempt begins a new text."""
    offset: int
    """How many characters of this epoch came before."""
    data: dict[str, Any]
    run: str = ""


class Subscription:
    """One watcher."""

    def __init__(self) -> None:
        self._live: deque[Live] = deque(maxlen=BACKLOG_MAX)
        self._news = asyncio.Event()

    def poke(self) -> None:
        self._news.set()

    def push(self, live: Live) -> None:
        self._live.append(live)
        self._news.set()

    def take(self) -> list[Live]:
        """Everything that streamed since the last time."""
        taken = list(self._live)
        self._live.clear()
        return taken

    async def wait(self, seconds: float) -> None:
        """Until there is news, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()


class Bus:
    """All watchers of this process."""

    def __init__(self) -> None:
        self._subscriptions: dict[Subscription, None] = {}  # in the order they came

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        self._subscriptions[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    @property
    def watched(self) -> bool:
        return bool(self._subscriptions)

    def poke(self) -> None:
        """Something was committed."""
        for subscription in self._subscriptions:
            subscription.poke()

    def push(self, live: Live) -> None:
        for subscription in self._subscriptions:
            subscription.push(live)
