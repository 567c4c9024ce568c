"""Notices a database that knows less than it did: a failover to a server that lagged behind, or an
older copy put in the place of the file.

Tickets keep results of before from getting to another item, so nothing is done here but to say it:
what `add` had acknowledged last may be gone, and only whoever added it can add it again.
"""

from __future__ import annotations

import asyncio
import logging

from onceflow.core.item import Lease
from onceflow.engine.health import Tally
from onceflow.engine.tasks import Tasks
from onceflow.store.base import Store

log = logging.getLogger("onceflow")


class Setback:
    """Looks at items whose leases were lost. Fences only grow: an item with a lower one than we
    were given, or none at all, has lost its newest history."""

    def __init__(self, store: Store, tasks: Tasks, tally: Tally) -> None:
        self._store = store
        self._tasks = tasks
        self._tally = tally
        self._looking: asyncio.Task[None] | None = None

    def suspect(self, lease: Lease) -> None:
        """A lease was lost: mostly because somebody took it over. One at a time is looked at."""
        if self._looking is None:
            self._looking = self._tasks.spawn(self._look(lease))

    async def _look(self, lease: Lease) -> None:
        try:
            rows = await self._store.read("item", id=lease.item)
        finally:
            self._looking = None
        if rows and rows[0]["key"] == lease.key:
            row = rows[0]
            if row["fence"] > lease.fence:
                return
            if row["fence"] == lease.fence and row["ticket"] == lease.ticket:
                return
        self._tally.setbacks += 1
        log.error(
            "the database knows less than it did: %s was claimed here with fence %d, and it has no "
            "record of that. It was replaced by a server that lagged behind, or by an older copy. "
            "No result of before gets to another item; what was added last may be gone: add it "
            "again, known items stay as they are", lease.key, lease.fence,
        )  # fmt: skip
