"""What to type next: the exact command, on this database."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from onceflow import Flow, Item
from onceflow.commands.common import WORKED_BY, Common
from onceflow.commands.text import masked, plain
from onceflow.core.item import Phase
from onceflow.engine.neighbours import living


def where(common: Common) -> str:
    """How a further command is told which database and settings are meant."""
    db = f" --db {_quoted(masked(common.db))}" if common.db else ""
    return db + (f" --config {shlex.quote(str(common.config))}" if common.config else "")


def _quoted(address: str) -> str:
    """As a shell takes it; the stars in the place of a password are to be seen as such."""
    return address if "***" in address else shlex.quote(address)


def go_on(pipeline: str, at: str) -> str:
    """What has a pipeline worked on. Of a ready one nobody here knows its flags (--model,
    --allow-network): without them, pages would be read in another way than they were added for."""
    if pipeline in WORKED_BY:
        return f"the `onceflow {pipeline}` command that added it once more"
    return f"onceflow worker FILE.py{at}"


def worker_for(pipelines: Collection[str]) -> str:
    """The command that works on these pipelines."""
    known = [WORKED_BY.get(name, "onceflow worker FILE.py") for name in pipelines]
    return known[0] if len(known) == 1 else "onceflow worker FILE.py"


async def anybody_works(flow: Flow, pipeline: str) -> bool:
    """Whether a worker lives, as far as its heartbeat says."""
    read = flow.store.read
    now = (await read("now"))[0]["now"]
    leases = [row["lease_ms"] for row in await read("stages") if row["pipeline"] == pipeline]
    return bool(living(await read("workers"), now, max(leases, default=300_000)))


async def next_step(flow: Flow, item: Item, at: str) -> str | None:
    """The command that gets one item on, or shows what came out; None if it goes on by itself."""
    key = await _name(flow, item)
    works = go_on(item.pipeline, at)
    match item.phase:
        case Phase.DONE:
            return f"onceflow show {key}{at}"
        case Phase.FAILED | Phase.CANCELLED:
            then = "" if await anybody_works(flow, item.pipeline) else f", then {works}"
            return f"onceflow retry {key}{at}{then}"
        case Phase.WAITING if item.due_at is None:
            if item.pipeline == "ingest":
                return f"onceflow ingest {key} --generate{at}"
            return f"in Python: flow.trigger({item.pipeline!r}, {item.key!r}, {item.stage!r})"
    if item.phase is Phase.READY:
        for row in await flow.store.read("stages"):
            mine = (row["pipeline"], row["stage"]) == (item.pipeline, item.stage)
            if mine and row["paused_at"] is not None:
                return f"onceflow resume {item.stage} --pipeline {item.pipeline}{at}"
        if (await flow.run(item.run)).halted:
            return "the command that added it once more, with a larger --max-tokens or --max-cost"
    return None if await anybody_works(flow, item.pipeline) else works


async def _name(flow: Flow, item: Item) -> str:
    """An item as further commands find it, also where several pipelines have its key."""
    key = shlex.quote(plain(item.key, 2000))
    for row in await flow.store.read("pipelines"):
        other = {"pipeline": row["name"], "key": item.key}
        if row["name"] != item.pipeline and await flow.store.read("item_by_key", **other):
            return f"{key} --pipeline {item.pipeline}"
    return key
