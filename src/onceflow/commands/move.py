"""`move`: a whole database to another place."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import onceflow
from onceflow import Flow
from onceflow.commands.common import Common
from onceflow.commands.output import OK, SOME_FAILED, Out, UsageError
from onceflow.commands.text import many, masked


def move(
    source: str,
    target: str | None = None,
    /,
    *,
    undo: Annotated[bool, Parameter(negative=())] = False,
    common: Common | None = None,
) -> int:
    """Carry a database over, from SQLite to PostgreSQL or back, with history and fences.

    Stop every worker and server first. The target must be empty; it has all of it or
    nothing. Afterwards the source accepts nothing and is not worked on, so that nothing is
    done twice: whoever tries is told where it went. It can be looked at, and deleted.

    Parameters
    ----------
    source
        The database there is: a file, sqlite:///FILE or postgresql://HOST/NAME.
    target
        A new one, of either kind.
    undo
        Use SOURCE again, which was moved; only if nobody works on its copy.
    """
    common = common or Common()
    if common.db is not None:
        raise UsageError("move takes two databases and no --db: onceflow move SOURCE TARGET")
    if undo == (target is not None):
        raise UsageError("onceflow move SOURCE TARGET, or: onceflow move --undo SOURCE")
    path = source.removeprefix("sqlite:///")
    if "://" not in path and not Path(path).exists():
        raise UsageError(f"there is no database {masked(source)}")
    settings = common.settings()
    there = onceflow.open(source, settings=settings)
    if target is None:
        return asyncio.run(_undo(there, common.out))
    return asyncio.run(_move(there, onceflow.open(target, settings=settings), common.out))


async def _undo(source: Flow, out: Out) -> int:
    from onceflow.engine.move import undo

    async with source:
        place = await undo(source)
        if out.as_json:
            out.emit({"source": source.store.url, "was_moved_to": place})
        else:
            out.line(f"{masked(source.store.url)} is used again; its copy is {masked(place)}")
    return OK


async def _move(source: Flow, target: Flow, out: Out) -> int:
    from onceflow.engine.move import move as carry

    shown: dict[str, int] = {}

    def told(table: str, count: int) -> None:
        if count - shown.get(table, 0) >= TOLD_ROWS:
            shown[table] = count
            out.say(f"{table}: {count:,} rows so far")

    async with source, target:
        if source.store.url == target.store.url:
            raise UsageError("source and target are the same database")
        moved = await carry(source, target, told)
        items = moved.rows.get("item", 0)
        if out.as_json:
            out.emit(
                {"source": source.store.url, "target": target.store.url, "rows": moved.rows,
                 "violations": [asdict(one) for one in moved.violations]}
            )  # fmt: skip
        else:
            for table, count in moved.rows.items():
                if count:
                    out.line(f"  {table:<9} {count:,}")
            verdict = "no violation"
            if moved.violations:
                verdict = f"{many(len(moved.violations), 'violation')}: onceflow audit names them"
            out.line(
                f"moved {many(items, 'item')} to {masked(target.store.url)}; counts agree, audit: "
                f"{verdict}"
            )
            out.say(f'  next: put db = "{masked(target.store.url)}" into onceflow.toml, or set')
            out.say("  ONCEFLOW_DB; the old database accepts nothing any more")
    return SOME_FAILED if moved.violations else OK


TOLD_ROWS = 100_000
"""How often progress is told."""
