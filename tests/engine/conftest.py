"""The behaviours of the engine are tested on both stores."""

from pathlib import Path

import pytest

from onceflow.testing.clock import FakeClock
from tests.engine.kit import Database


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of each kind in turn."""
    if request.param == "sqlite":
        return Database("sqlite", str(tmp_path / "flow.db"))
    return Database("postgres", request.getfixturevalue("postgres_url"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
