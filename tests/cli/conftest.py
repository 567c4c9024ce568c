"""Where a command's tests keep their databases: each runs on both stores."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that does not exist yet, or is empty."""
    if request.param == "sqlite":
        return str(tmp_path / "onceflow.db")
    url: str = request.getfixturevalue("postgres_url")
    return url
