"""The databases of the scenarios."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import postgres

pytest.register_assert_rewrite("tests.chaos.kit", "tests.chaos.scenarios", "tests.chaos.failover")

from tests.chaos.kit import SAID  # noqa: E402  # after the line above, or it says nothing


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SAID:
        terminalreporter.section("chaos")
        for line in SAID:
            terminalreporter.write_line(line)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that does not exist yet, or is empty."""
    if request.param == "sqlite":
        return str(tmp_path / "chaos.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def own_server() -> Iterator[postgres.Server]:
    """A server to crash, with PostgreSQL's own, durable settings."""
    try:
        server = postgres.start()
    except postgres.Unavailable as error:
        pytest.skip(f"no PostgreSQL: {error}")
    with server:
        yield server
