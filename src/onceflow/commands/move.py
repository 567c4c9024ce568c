"""`move`: a whole database to another place."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

import onceflow
from onceflow import Flow
from onceflow.commands.common import Common
from onceflow.commands.output import OK, SOME_FAILED, Out, UsageError
from onceflow.commands.text import many, masked


def move(source: str, target: str, /, *, common: Common | None = None) -> int:
    """Carry a database over, from SQLite to PostgreSQL or back, with history and fences.

    Stop every worker and server first. The target must be empty; it has all of it or
    nothing. Afterwards the stages of the source are paused, so that nobody does its work
    twice; it is otherwise left as it is, and can be deleted.

    Parameters
    ----------
    source
        The database there is: a file, sqlite:///FILE or postgresql://HOST/NAME.
    target
        A new one, of either kind.
    """
    common = common or Common()
    if common.db is not None:
        raise UsageError("move takes two databases and no --db: onceflow move SOURCE TARGET")
    path = source.removeprefix("sqlite:///")
    if "://" not in path and not Path(path).exists():
        raise UsageError(f"there is no database {masked(source)}")
    settings = common.settings()
    there, here = (onceflow.open(each, settings=settings) for each in (source, target))
    return asyncio.run(_move(there, here, common.out))


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
            out.say("  ONCEFLOW_DB; the stages of the old database are paused")
    return SOME_FAILED if moved.violations else OK


TOLD_ROWS = 100_000
"""How often progress is told."""
