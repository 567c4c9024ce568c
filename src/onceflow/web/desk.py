"""What every route works with: the flow, the feed of events, and a few things kept for a moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from onceflow import Flow
from onceflow.engine.figures import stage_figures, workers
from onceflow.engine.listing import known_states, state_name
from onceflow.web.feed import Feed

COUNTS_SECONDS = 1.0
FIGURES_SECONDS = 5.0


@dataclass
class Desk:
    """One per app."""

    flow: Flow
    feed: Feed
    wait_seconds: float = 30.0
    """How long a stage call waits before it answers 202."""
    ping_seconds: float = 15.0
    streams_max: int = 500
    answers: Counter[int] = field(default_factory=Counter)
    """Answers by status, for the metrics."""
    _counts: tuple[float, list[Any]] | None = None
    _figures: tuple[float, dict[str, Any]] | None = None
    _depths: tuple[float, dict[str, dict[str, int]]] | None = None
    _workers: tuple[float, list[dict[str, Any]]] | None = None
    _counting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def counts(self) -> list[Any]:
        """Items by pipeline, stage and phase. Counted at most once a second, whoever asks."""
        async with self._counting:
            now = asyncio.get_running_loop().time()
            if self._counts is None or now - self._counts[0] >= COUNTS_SECONDS:
                rows = await self.flow.store.read("counts", pipeline=None)
                self._counts = (asyncio.get_running_loop().time(), rows)
            return self._counts[1]

    async def depths(self) -> dict[str, dict[str, int]]:
        """Items by depth, of pipelines whose items lead to items. Counted as seldom."""
        async with self._counting:
            now = asyncio.get_running_loop().time()
            if self._depths is None or now - self._depths[0] >= FIGURES_SECONDS:
                found: dict[str, dict[str, int]] = {}
                for name, pipeline in self.flow.pipelines.items():
                    if pipeline.spreads is None:
                        continue
                    counts: dict[str, int] = found.setdefault(name, {})
                    rows = await self.flow.store.read("counts_by_depth", pipeline=name)
                    for row in sorted(rows, key=lambda row: row["depth"]):
                        deep = str(row["depth"])
                        counts[deep] = counts.get(deep, 0) + row["items"]
                self._depths = (asyncio.get_running_loop().time(), found)
            return self._depths[1]

    async def figures(self) -> dict[str, Any]:
        """Times and rates of each stage. Read at most once in five seconds, whoever asks."""
        async with self._counting:
            now = asyncio.get_running_loop().time()
            if self._figures is None or now - self._figures[0] >= FIGURES_SECONDS:
                found = await stage_figures(self.flow.store)
                self._figures = (asyncio.get_running_loop().time(), found)
            return self._figures[1]

    async def workers(self) -> list[dict[str, Any]]:
        """Every worker with what it said last. Read at most once a second, whoever asks."""
        async with self._counting:
            now = asyncio.get_running_loop().time()
            if self._workers is None or now - self._workers[0] >= COUNTS_SECONDS:
                self._workers = (asyncio.get_running_loop().time(), await workers(self.flow))
            return self._workers[1]

    async def states(self) -> dict[str, dict[str, int]]:
        """Items by pipeline and state."""
        names = await known_states(self.flow.store)
        found: dict[str, dict[str, int]] = {name: {} for name in names}
        for row in await self.counts():
            state = state_name(names, row["pipeline"], row["stage"], row["phase"])
            one = found.setdefault(row["pipeline"], {})
            one[state] = one.get(state, 0) + row["items"]
        return found
