"""What a handler gets: one lease's work, and the few things it may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from onceflow.core.errors import Permanent, Transient
from onceflow.core.item import Item, Json, Lease
from onceflow.core.transition import (
    NOTHING_SPENT,
    Left,
    Part,
    Usage,
    countable,
    decode,
    encode,
    is_name,
)


class Desk(Protocol):
    """Where a handler's questions go: the manager answers them, no handler reaches the store."""

    def emit(self, lease: Lease, kind: str, fields: dict[str, Any]) -> None: ...

    def run_items(self, lease: Lease, phase: str) -> AsyncIterator[Item]: ...

    async def item(self, lease: Lease, key: str) -> Item | None: ...

    async def result(self, lease: Lease, stage: str) -> Json: ...

    async def keep(self, lease: Lease, part: Part) -> bool: ...

    async def kept(self, lease: Lease) -> dict[str, Json]: ...

    async def left(self, lease: Lease) -> Left: ...


class Work:
    """One attempt at one item's stage.

    `input` is the result of the stage before, or what came with the item for the first stage. A
    test makes one by hand, `Work("https://a.test/", input={"text": "…"})`, and finds in `emitted`
    what the handler told its watchers.
    """

    __slots__ = (
        "_desk", "_lease", "attempt", "depth", "emitted", "generation", "input", "key", "pipeline",
        "run", "stage",
    )  # fmt: skip

    def __init__(
        self,
        key: str,
        input: Json = None,
        pipeline: str = "",
        stage: str = "",
        run: str = "",
        depth: int = 0,
        attempt: int = 1,
        generation: int = 1,
        lease: Lease | None = None,
        desk: Desk | None = None,
    ) -> None:
        self.key = key
        self.input = input
        self.pipeline = pipeline
        self.stage = stage
        self.run = run
        self.depth = depth
        self.attempt = attempt
        self.generation = generation
        self.emitted: list[tuple[str, dict[str, Any]]] = []
        self._lease = lease
        self._desk = desk

    def __repr__(self) -> str:
        return f"Work({self.key!r}, stage={self.stage!r}, attempt={self.attempt})"

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this stage: pass it on to whoever must not act twice."""
        return f"{self.pipeline}/{self.key}/{self.stage}"

    def emit(self, kind: str, **fields: Any) -> None:
        """Tell live watchers. Not stored: a watcher may miss it. `text` adds to the item's text."""
        if self._lease is None:
            self.emitted.append((kind, fields))
            return
        desk, lease = self._asked("emit")
        desk.emit(lease, kind, fields)

    async def result(self, stage: str) -> Json:
        """The stored result of an earlier stage of this item, or of this one's last time."""
        if stage == self.stage and self.generation == 1:
            return None  # it never ended before
        desk, lease = self._asked("result")
        return await desk.result(lease, stage)

    async def keep(self, name: str, value: Json, usage: Usage = NOTHING_SPENT) -> None:
        """Store a piece of this stage's work and count what it cost, in one transaction: should
        this attempt not finish, the next one finds it with `kept`. A name is kept once an attempt.
        """
        desk, lease = self._asked("keep")
        if not is_name(name):
            raise Permanent(
                f"{self.key}: stage {self.stage!r} keeps a part under {name!r}; name it with a "
                "clean, non-empty text",
                code="bad_part",
            )
        body = encode(value, self.key, self.stage)
        part = Part(name, body, countable(usage, self.key, self.stage))
        if not await desk.keep(lease, part):
            raise Transient(f"the lease on {self.key} was lost", code="lease_lost")

    async def kept(self) -> dict[str, Json]:
        """What attempts at this stage have kept since it last had a result, by name."""
        desk, lease = self._asked("kept")
        return await desk.kept(lease)

    async def left(self) -> Left:
        """What the run may still spend. Raise `Halt` when that is nothing: the item goes back
        uncounted, until somebody raises the ceiling."""
        desk, lease = self._asked("left")
        return await desk.left(lease)

    async def item(self, key: str) -> Item | None:
        """The item of this pipeline that a key, or another key of it, stands for; None if there is
        none. Its results are not read."""
        desk, lease = self._asked("item")
        return await desk.item(lease, key)

    def finished_items(self) -> AsyncIterator[Item]:
        """The completed items of this run, each with the result of its last stage."""
        desk, lease = self._asked("finished_items")
        return desk.run_items(lease, "done")

    def failed_items(self) -> AsyncIterator[Item]:
        """The failed items of this run, each with its error."""
        desk, lease = self._asked("failed_items")
        return desk.run_items(lease, "failed")

    def _asked(self, what: str) -> tuple[Desk, Lease]:
        if self._desk is None or self._lease is None:
            raise Permanent(
                f"work.{what} needs the engine, and a cpu=True handler runs in a process without "
                "it; do that in another stage",
                code="no_engine",
            )
        return self._desk, self._lease


def work_for(lease: Lease, desk: Desk | None) -> Work:
    """The work of a lease; without a desk it can be sent to another process."""
    return Work(
        lease.key,
        decode(lease.data),
        lease.pipeline,
        lease.stage,
        lease.run,
        lease.depth,
        lease.attempt,
        lease.generation,
        lease,
        desk,
    )
