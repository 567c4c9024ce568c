"""A database on each store, with a world of articles in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onceflow import Flow
from tests.cli.conftest import call, database
from tests.knowledge.kit import Page, bread, grown

__all__ = ["call", "database"]


@pytest.fixture
def world() -> dict[str, Page]:
    return bread()


@pytest.fixture
async def flow(
    database: str, world: dict[str, Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Flow]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    flow = await grown(database, world)
    yield flow
    await flow.__aexit__(None, None, None)


@pytest.fixture
async def lone(tmp_path: Path, world: dict[str, Page]) -> AsyncIterator[Flow]:
    """The same on SQLite alone, where the store makes no difference."""
    flow = await grown(str(tmp_path / "lone.db"), world)
    yield flow
    await flow.__aexit__(None, None, None)
