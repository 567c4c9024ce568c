"""Both stores behind one fixture, each test on a database of its own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from onceflow.store.base import Store
from onceflow.store.postgres import PostgresStore
from onceflow.store.sqlite import SqliteStore
from onceflow.testing.clock import FakeClock
from tests.support import postgres

pytest.register_assert_rewrite(
    "onceflow.testing.rig",
    "onceflow.testing.suite_claim",
    "onceflow.testing.suite_finish",
    "onceflow.testing.suite_lease",
    "onceflow.testing.suite_operate",
    "onceflow.testing.suite_race",
    "onceflow.testing.suite_run",
    "onceflow.testing.suite_spread",
)

from onceflow.testing.rig import NEWS  # noqa: E402  # after the line above, or it says nothing


@dataclass(frozen=True)
class Database:
    """One empty database, and a way past the store into its tables."""

    make: Callable[[FakeClock | None], Store]
    raw: Callable[[str], None]
    """Run statements as an intruder would, with the tables' own checks out of the way."""


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Database:
    path = tmp_path / "test.db"

    def raw(statements: str) -> None:
        connection = apsw.Connection(str(path))
        connection.execute("PRAGMA ignore_check_constraints=ON")
        connection.execute(statements)
        connection.close()

    return Database(lambda clock: SqliteStore(path, clock=clock), raw)


@pytest.fixture
def postgres_database(postgres_url: str) -> Database:
    def raw(statements: str) -> None:
        unchecked = "ALTER TABLE run DROP CONSTRAINT IF EXISTS run_check"
        postgres.execute(postgres_url, f"SET search_path TO onceflow; {unchecked}; {statements}")

    return Database(lambda clock: PostgresStore(postgres_url, clock=clock), raw)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(f"{request.param}_database")
    return found


@pytest.fixture
def make_store(database: Database) -> Callable[[FakeClock], Store]:
    return database.make


Raw = Callable[[], Awaitable[Any]]


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """A PostgreSQL store; SQLite's own tests have one of theirs."""
    opened = PostgresStore(postgres_url)
    await opened.open([NEWS])
    yield opened
    await opened.close()


@pytest.fixture
async def raw(postgres_url: str) -> AsyncIterator[Raw]:
    """Connections of somebody else, with our schema in their path."""
    made: list[Any] = []

    async def connect() -> Any:
        connection = await asyncpg.connect(postgres_url)
        made.append(connection)
        await connection.execute("SET search_path TO onceflow")
        return connection

    yield connect
    for connection in made:
        connection.terminate()
