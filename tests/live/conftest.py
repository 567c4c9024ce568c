"""What the live tests need from this machine; each says what is missing and how to get it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import docs, nginx


@pytest.fixture(scope="session")
def documentation() -> Path:
    """A folder with real pages."""
    try:
        return docs.folder()
    except docs.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def site(documentation: Path, tmp_path: Path) -> Iterator[nginx.Server]:
    """nginx, slow enough that requests overlap. It refuses (503) the ninth at the same moment."""
    try:
        with nginx.serving(
            documentation,
            tmp_path / "nginx",
            http="limit_conn_zone $server_name zone=all:1m;",
            server="limit_conn all 8; limit_rate 100k; location = /now { stub_status; }",
        ) as server:
            yield server
    except nginx.Unavailable as reason:
        pytest.skip(str(reason))
