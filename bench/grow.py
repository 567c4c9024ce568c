"""Makes a database large in minutes: a thousand items go through the engine, SQL copies them.

The copies have the history, results and runs of real items, under other ids and keys.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence

import asyncpg

import onceflow
from onceflow import Pipeline

ORIGINALS = 1000
COPIES_AT_ONCE = 100
TABLES = ("item", "result", "event", "member")
KEYS = "alias"  # where PostgreSQL's store has every key

COLUMNS_ON_POSTGRESQL = """
SELECT column_name FROM information_schema.columns
 WHERE table_schema = current_schema() AND table_name = $1 AND is_generated = 'NEVER'
 ORDER BY ordinal_position
"""


async def grow(url: str, pipeline: Pipeline, n: int) -> int:
    """Fill the database at `url` with n items, every second one done, the others ready."""
    async with onceflow.open(url, pipeline) as flow:
        await flow.add(pipeline, [f"item {i}" for i in range(ORIGINALS // 2)])
        await flow.drain()
        await flow.add(pipeline, [f"item {i}" for i in range(ORIGINALS // 2, ORIGINALS)])
    times = n // ORIGINALS
    if url.startswith("postgresql:"):
        return await _grow_postgresql(url, times)
    return await asyncio.to_thread(_grow_sqlite, url, times)


def _copy(table: str, columns: Sequence[str], series: str) -> str:
    """An INSERT that copies what has an id up to the originals', once for each value `k`."""
    values = {
        "id": f"t.id + k * {ORIGINALS}",
        "item": f"t.item + k * {ORIGINALS}",
        "key": "t.key || ' copy ' || k",
        "short_key": "t.short_key || ' copy ' || k",
    }
    if table == "member":
        values.pop("id")
    # Events are numbered by the store itself; everything else is copied as it is.
    names = [name for name in columns if name != "seq"]
    chosen = ", ".join(values.get(name, f"t.{name}") for name in names)
    whose = "id" if table == "item" else "item"
    return (
        f"INSERT INTO {table} ({', '.join(names)}) {{overriding}} SELECT {chosen} FROM {series}"
        f" CROSS JOIN {table} AS t WHERE t.{whose} <= {ORIGINALS}"
    )


def _ranges(times: int) -> list[tuple[int, int]]:
    starts = range(1, times, COPIES_AT_ONCE)
    return [(start, min(start + COPIES_AT_ONCE, times) - 1) for start in starts]


def _grow_sqlite(path: str, times: int) -> int:
    series = (
        "(WITH RECURSIVE s (k) AS (SELECT {first} UNION ALL SELECT k + 1 FROM s WHERE k < {last})"
        " SELECT k FROM s) AS series"
    )
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -200000")
    for table in TABLES:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        for first, last in _ranges(times):
            numbers = series.format(first=first, last=last)
            statement = _copy(table, columns, numbers).format(overriding="")
            connection.execute(statement)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (rows,) = connection.execute("SELECT count(*) FROM item").fetchone()
    connection.close()
    return int(rows)


async def _grow_postgresql(url: str, times: int) -> int:
    connection = await asyncpg.connect(url)
    await connection.execute("SET synchronous_commit = off; SET search_path = onceflow")
    for table in (*TABLES, KEYS):
        columns = [row[0] for row in await connection.fetch(COLUMNS_ON_POSTGRESQL, table)]
        overriding = "OVERRIDING SYSTEM VALUE" if table == "item" else ""
        for first, last in _ranges(times):
            numbers = f"generate_series({first}, {last}) AS series (k)"
            statement = _copy(table, columns, numbers).format(overriding=overriding)
            await connection.execute(statement)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    rows = await connection.fetchval("SELECT count(*) FROM item")
    await connection.close()
    return int(rows)
