"""Both stores behind one fixture, each test on a database of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.store.base import Store
from onceflow.store.postgres import PostgresStore
from onceflow.store.sqlite import SqliteStore
from onceflow.testing.clock import FakeClock

pytest.register_assert_rewrite(
    "onceflow.testing.rig",
    "onceflow.testing.suite_claim",
    "onceflow.testing.suite_finish",
    "onceflow.testing.suite_operate",
    "onceflow.testing.suite_race",
    "onceflow.testing.suite_run",
)


@pytest.fixture(params=["sqlite", "postgres"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[FakeClock], Store]:
    if request.param == "sqlite":
        return lambda clock: SqliteStore(tmp_path / "test.db", clock=clock)
    url: str = request.getfixturevalue("postgres_url")
    return lambda clock: PostgresStore(url, clock=clock)
