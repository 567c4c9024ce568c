"""Carry a whole database over to an empty one: items with their fences, results, history, runs.

One transaction on either side: the source stands still meanwhile, the target has all of it or
nothing. Columns are matched by their names, so both must have the same version of the schema,
which they have when one program has opened them. Workers, their texts in progress and the clock's
own notes stay behind: they belong to the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from hashlib import md5
from typing import TYPE_CHECKING, Any, Protocol

import apsw

from onceflow.core.errors import StoreError
from onceflow.store.base import Store
from onceflow.store.queries import numbered, sql
from onceflow.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from onceflow.store.postgres import PostgresStore

STAYS = frozenset({"meta", "worker", "partial"})
BATCH_ROWS = 500
SHORT_BYTES = 1000
SIGN = "…"
"""Which every short form has in it, and no key that stays as it is."""
Told = Callable[[str, int], None]
Record = Sequence[Any]


class Side(Protocol):
    """One of the two databases, in a transaction of its own."""

    async def tables(self) -> dict[str, list[str]]:
        """Every table that is carried over, with its columns."""

    async def count(self, table: str) -> int: ...

    def read(self, table: str) -> AsyncIterator[list[Record]]:
        """All its rows in batches, their values in the order of `tables`."""

    async def write(self, table: str, columns: list[str], rows: list[Record]) -> None: ...

    async def settle(self) -> None:
        """All is written: number what comes next, and look at what can be looked at."""

    async def shut(self, moved_to: str) -> None:
        """Nothing is accepted or worked on here any more."""

    async def open(self) -> None:
        """It is used again."""


async def carry_over(source: Store, target: Store, told: Told) -> dict[str, int]:
    """Copy everything; how many rows each table has got. The target must be empty.

    The source is shut for good in its transaction, which is committed first: whatever happens in
    between, no item is worked on in both. A move that was cut off there is done again.
    """
    copied: dict[str, int] = {}
    async with _side(target) as to, _side(source) as from_:
        theirs = await to.tables()
        for table in theirs:
            if await to.count(table):
                raise StoreError(
                    f"{target.url} is not empty: its table {table} has rows; name a new database"
                )
        for table, columns in (await from_.tables()).items():
            kept = [name for name in columns if name in theirs[table]]
            at = [columns.index(name) for name in kept]
            copied[table] = 0
            async for rows in from_.read(table):
                await to.write(table, kept, [[row[index] for index in at] for row in rows])
                copied[table] += len(rows)
                told(table, copied[table])
        await to.settle()
        for table, count in copied.items():
            there = await from_.count(table), await to.count(table)
            if there != (count, count):
                raise StoreError(
                    f"table {table}: {there[0]:,} rows there, {there[1]:,} here; nothing was kept"
                )
        await from_.open()  # a move that was cut off had shut it
        await from_.shut(target.url)
    return copied


async def take_back(source: Store) -> None:
    """A database that was carried over accepts and works again."""
    async with _side(source) as side:
        await side.open()


def _side(store: Store) -> AbstractAsyncContextManager[Side]:
    if isinstance(store, SqliteStore):
        return _sqlite(store)
    from onceflow.store.postgres import PostgresStore

    if isinstance(store, PostgresStore):
        return _postgres(store)
    raise StoreError(f"{store.url} cannot be moved")


# --- SQLite ---


class _Sqlite:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def tables(self) -> dict[str, list[str]]:
        names = [
            row[1] for row in self._connection.execute("PRAGMA table_list")
            if row[0] == "main" and not row[1].startswith("sqlite_") and row[1] not in STAYS
        ]  # fmt: skip
        return {
            name: [row[1] for row in self._connection.execute(f"PRAGMA table_info({name})")]
            for name in sorted(names)
        }

    async def count(self, table: str) -> int:
        text = _text("sqlite", "move_count", table=_rows_of("sqlite", table))
        return int(self._connection.execute(text).get)

    async def read(self, table: str) -> AsyncIterator[list[Record]]:
        names = ", ".join((await self.tables())[table])
        text = _text("sqlite", "move_read", table=_rows_of("sqlite", table), columns=names)
        rows = iter(self._connection.execute(text))
        while batch := await asyncio.to_thread(_some, rows):
            yield batch

    async def write(self, table: str, columns: list[str], rows: list[Record]) -> None:
        values = ", ".join("?" * len(columns))
        names = ", ".join(columns)
        text = _text("sqlite", "move_write", table=table, columns=names, values=values)
        await asyncio.to_thread(self._connection.executemany, text, rows)

    async def settle(self) -> None: ...

    async def shut(self, moved_to: str) -> None:
        self._connection.execute(_text("sqlite", "move_shut"))
        values = {"name": "moved_to", "value": moved_to}
        self._connection.execute(_text("sqlite", "meta_set"), values)

    async def open(self) -> None:
        self._connection.execute(_text("sqlite", "move_open"))


@asynccontextmanager
async def _sqlite(store: SqliteStore) -> AsyncIterator[_Sqlite]:
    """With the write lock, on either side: nobody changes anything meanwhile."""
    with _transaction(store._connect()) as connection:
        yield _Sqlite(connection)


@contextmanager
def _transaction(connection: apsw.Connection) -> Iterator[apsw.Connection]:
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()  # what was not committed is rolled back


def _some(rows: Iterator[Record]) -> list[Record]:
    found: list[Record] = []
    for row in rows:
        found.append(row)
        if len(found) == BATCH_ROWS:
            break
    return found


# --- PostgreSQL ---


class _Postgres:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def tables(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for row in await self._connection.fetch(_text("postgres", "move_columns")):
            if row["name"] not in STAYS:
                found.setdefault(row["name"], []).append(row["column"])
        return found

    async def count(self, table: str) -> int:
        text = _text("postgres", "move_count", table=_rows_of("postgres", table))
        return int(await self._connection.fetchval(text))

    async def read(self, table: str) -> AsyncIterator[list[Record]]:
        columns = (await self.tables())[table]
        batch: list[Record] = []
        names = ", ".join(columns)
        text = _text("postgres", "move_read", table=_rows_of("postgres", table), columns=names)
        async for row in self._connection.cursor(text, prefetch=BATCH_ROWS):
            batch.append(tuple(row))
            if len(batch) == BATCH_ROWS:
                yield batch
                batch = []
        if batch:
            yield batch

    async def write(self, table: str, columns: list[str], rows: list[Record]) -> None:
        if table == "alias":
            names = [name for name in columns if name != "short_key"]
            at = [columns.index(name) for name in names]
            key = columns.index("key")
            rows = [[*(row[one] for one in at), shortened(row[key])] for row in rows]
            columns = [*names, "short_key"]
        await self._connection.copy_records_to_table(
            table, records=rows, columns=columns, schema_name="onceflow"
        )

    async def settle(self) -> None:
        await self._connection.execute(_text("postgres", "move_own_keys"))
        await self._connection.fetch(_text("postgres", "move_numbers"))
        if wrong := await self._connection.fetchval(_text("postgres", "move_short")):
            raise StoreError(f"{wrong:,} keys were not carried over as they are; nothing was kept")

    async def shut(self, moved_to: str) -> None:
        await self._connection.execute(_text("postgres", "move_shut"))
        await self._connection.execute(numbered("postgres", "meta_set")[0], "moved_to", moved_to)

    async def open(self) -> None:
        await self._connection.execute(_text("postgres", "move_open"))


@asynccontextmanager
async def _postgres(store: PostgresStore) -> AsyncIterator[_Postgres]:
    assert store._pool is not None, "it is open"
    connection = await store._pool.connect()
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL search_path TO onceflow")
            await connection.execute(_text("postgres", "move_lock"))
            yield _Postgres(connection)
    finally:
        connection.terminate()


def _rows_of(backend: str, table: str) -> str:
    """PostgreSQL has the items' own keys among the others; only those are carried over."""
    return f"({_text(backend, 'move_alias')}) AS alias" if table == "alias" else table


def shortened(key: str) -> str:
    """What the server's `shorten` makes of a key, which is checked afterwards."""
    raw = key.encode()
    if len(raw) <= SHORT_BYTES and SIGN not in key:
        return key
    return f"{key[:100]}{SIGN}{len(raw)}{_md5(raw)}{_md5(SIGN.encode() + raw)}"


def _md5(raw: bytes) -> str:
    return md5(raw, usedforsecurity=False).hexdigest()


def _text(backend: str, name: str, **parts: str) -> str:
    text = sql(backend, name)
    lines: Iterable[str] = (line for line in text.splitlines() if not line.startswith("--"))
    names: Mapping[str, str] = parts
    return "\n".join(lines).format(**names) if names else "\n".join(lines)
