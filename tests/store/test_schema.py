"""The schema: every way through the migrations ends at the one that is written down."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from onceflow.core.item import Seed
from onceflow.store import postgres as postgres_module
from onceflow.store import queries
from onceflow.store import sqlite as sqlite_module
from onceflow.store.base import Add
from onceflow.store.postgres import PostgresStore
from onceflow.store.sqlite import SqliteStore
from onceflow.testing.rig import NEWS

HERE = Path(__file__).parent


def sqlite_schema(path: Path) -> str:
    """Every table, its columns and its indexes, one line each."""
    connection = apsw.Connection(str(path))
    lines = [f"version {connection.pragma('user_version')}"]
    tables: list[Any] = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    ).fetchall()
    for table, text in tables:
        columns: list[Any] = connection.execute(f"PRAGMA table_info({table})").fetchall()
        for _, name, kind, required, default, key in columns:
            lines.append(
                f"{table}.{name} {kind}{' not null' * required}"
                f"{f' default {default}' if default is not None else ''}{' key' * bool(key)}"
            )
        lines += [f"{table} check {check}" for check in sorted(_checks(text))]
    indexes: list[Any] = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY name"
    ).fetchall()
    lines += [" ".join(text.split()) for (text,) in indexes]
    connection.close()
    return "\n".join(lines) + "\n"


def _checks(text: str) -> list[str]:
    found = []
    for match in re.finditer(r"CHECK \(", text):
        depth, at = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        found.append(" ".join(text[match.end() : at - 1].split()))
    return found


async def postgres_schema(url: str) -> str:
    connection: Any = await asyncpg.connect(url)
    version = await connection.fetchval(
        "SELECT value FROM onceflow.meta WHERE name = 'schema_version'"
    )
    columns = await connection.fetch(
        "SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) "
        "       || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END "
        "       || coalesce(' collate ' || (SELECT collname FROM pg_collation AS l "
        "                      WHERE l.oid = a.attcollation AND collname <> 'default'), '') "
        "       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '') AS line "
        "  FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 "
        "  LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum "
        " WHERE c.relnamespace = 'onceflow'::regnamespace AND c.relkind = 'r' "
        "   AND NOT a.attisdropped ORDER BY c.relname, a.attnum"
    )
    await connection.execute("SET search_path TO onceflow")
    rules = await connection.fetch(
        "SELECT conrelid::regclass::text || ' ' || pg_get_constraintdef(oid) AS line "
        "  FROM pg_constraint WHERE connamespace = 'onceflow'::regnamespace "
        "   AND contype IN ('c', 'p', 'u') ORDER BY 1"
    )
    indexes = await connection.fetch(
        "SELECT indexdef AS line FROM pg_indexes WHERE schemaname = 'onceflow' ORDER BY indexname"
    )
    options = await connection.fetch(
        "SELECT relname || ' ' || array_to_string(reloptions, ', ') AS line FROM pg_class "
        " WHERE relnamespace = 'onceflow'::regnamespace AND reloptions IS NOT NULL ORDER BY relname"
    )
    functions = await connection.fetch(
        "SELECT oid::regprocedure::text || ' ' || md5(prosrc) AS line FROM pg_proc "
        " WHERE pronamespace = 'onceflow'::regnamespace ORDER BY 1"
    )
    await connection.close()
    rows = [*columns, *rules, *indexes, *options, *functions]
    return "\n".join([f"version {version}", *[str(row["line"]) for row in rows]]) + "\n"


def _up_to(version: int) -> Callable[[str], tuple[str, ...]]:
    return lambda backend: queries.migrations(backend)[:version]


def _written_down(name: str, found: str) -> str:
    """What the file says. A new migration changes it: the failing test shows how."""
    path = HERE / name
    return path.read_text() if path.exists() else f"{name} is missing; it would be:\n{found}"


@pytest.mark.parametrize("start", range(len(queries.migrations("sqlite")) + 1))
async def test_sqlite_arrives_at_its_schema_from_every_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    path = tmp_path / "x.db"
    if start:
        monkeypatch.setattr(sqlite_module, "migrations", _up_to(start))
        sqlite_module.create(path)
        monkeypatch.undo()

    store = SqliteStore(path)
    await store.open([NEWS])
    await store.close()

    found = sqlite_schema(path)
    assert found == _written_down("schema_sqlite.txt", found)


@pytest.mark.parametrize("start", range(len(queries.migrations("postgres")) + 1))
async def test_postgres_arrives_at_its_schema_from_every_version(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    if start:
        monkeypatch.setattr(postgres_module, "migrations", _up_to(start))
        older = PostgresStore(postgres_url)
        await older.open([] if start < len(queries.migrations("postgres")) else [NEWS])
        await older.close()
        monkeypatch.undo()

    store = PostgresStore(postgres_url)
    await store.open([NEWS])
    await store.close()

    found = await postgres_schema(postgres_url)
    assert found == _written_down("schema_postgres.txt", found)


async def test_keys_stay_unique_through_the_migration_that_moved_them(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database of version 1, with an item, another key of it, and a long key."""
    monkeypatch.setattr(postgres_module, "migrations", _up_to(1))
    older = PostgresStore(postgres_url)
    await older.open([])
    await older.close()
    monkeypatch.undo()
    long = "x" * 5000
    connection: Any = await asyncpg.connect(postgres_url)
    await connection.execute("SET search_path TO onceflow")
    await connection.execute(
        "INSERT INTO item (pipeline, key, stage, phase, run, version, created_at, updated_at, "
        "                  short_key) "
        "SELECT 'news', key, 'scrape', 'ready', 'old', 1, 0, 0, shorten(key) "
        "  FROM unnest($1::text[]) AS k (key)",
        ["a", long],
    )
    await connection.execute(
        "INSERT INTO alias (pipeline, key, item, short_key) "
        "VALUES ('news', 'b', 1, 'b'), ('news', 'a', 2, 'a')"
    )
    await connection.close()

    store = PostgresStore(postgres_url)
    await store.open([NEWS])
    added = (await store.add(Add(NEWS, "new", [Seed(key) for key in ("a", "b", long, "c")]))).added
    found = [
        (await store.read("item_by_key", pipeline="news", key=key))[0]["key"]
        for key in ("a", "b", long, "c")
    ]
    await store.close()

    assert (added.new, added.known) == (1, 3)
    assert found == ["a", "a", long, "c"], "an item of its own goes before another one's alias"


async def test_keys_that_look_like_short_forms_are_found_after_the_migration_that_shortened_them(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "migrations", _up_to(8))
    older = PostgresStore(postgres_url)
    await older.open([])
    await older.close()
    monkeypatch.undo()
    keys = ["wait … what", "x" * 5000, "plain"]
    connection: Any = await asyncpg.connect(postgres_url)
    await connection.execute("SET search_path TO onceflow")
    await connection.execute(
        "INSERT INTO item (pipeline, key, stage, phase, run, version, created_at, updated_at) "
        "SELECT 'news', key, 'scrape', 'ready', 'old', 1, 0, 0 FROM unnest($1::text[]) AS k (key)",
        keys,
    )
    await connection.execute(
        "INSERT INTO alias (pipeline, item, short_key) SELECT pipeline, id, shorten(key) FROM item"
    )
    await connection.execute(
        "INSERT INTO alias (pipeline, key, item, short_key) VALUES ('news', 'b…', 3, 'b…')"
    )
    await connection.close()

    store = PostgresStore(postgres_url)
    await store.open([NEWS])
    added = (await store.add(Add(NEWS, "new", [Seed(key) for key in (*keys, "b…")]))).added
    await store.close()

    assert (added.new, added.known) == (0, 4)


def test_both_stores_have_the_same_columns() -> None:
    def columns(name: str) -> set[str]:
        text = (HERE / name).read_text()
        return set(re.findall(r"^([a-z]+\.[a-z_]+) ", text, re.M))

    of_postgres = columns("schema_postgres.txt")
    of_sqlite = columns("schema_sqlite.txt")
    assert of_postgres - of_sqlite == {"alias.short_key"}
    assert of_sqlite <= of_postgres
