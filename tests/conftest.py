"""What every test may ask for: a real PostgreSQL server, and a fresh database in it."""

import os
import secrets
import signal
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import hypothesis
import pytest

from tests.support import postgres

# Elapsed time is not a property of the code under test. In CI the same examples each time: a
# failure there is to be found again at the desk.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

# A shell without job control starts background jobs with Ctrl-C ignored, nohup with SIGHUP, and
# programs inherit that. The tests that signal programs need them as they are in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_report_header() -> str:
    if "ONCEFLOW_TEST_DATABASE" in os.environ:
        return "postgresql: the server named in ONCEFLOW_TEST_DATABASE"
    return f"postgresql: {postgres.VERSION}, one server of its own per test process"


@pytest.fixture(scope="session")
def postgres_server_url() -> Iterator[str]:
    """The address of a server where this test process may create databases.

    Under xdist each process has a server of its own: one initdb more, but no lock between the
    processes and nobody left waiting for a server that another one stopped.
    """
    given = os.environ.get("ONCEFLOW_TEST_DATABASE")
    if given:
        yield given
        return
    settings: dict[str, str | int] = {}
    if os.environ.get("ONCEFLOW_TEST_FSYNC") != "1":
        # No machine loses power in the ordinary suite, and only that can show what fsync=off gives
        # up: a server killed in the middle still recovers every commit. (Not so with
        # synchronous_commit=off, which forgets the last commits when the server is killed: it
        # stays on.) ONCEFLOW_TEST_FSYNC=1 keeps PostgreSQL's own settings.
        settings = {"fsync": "off", "full_page_writes": "off"}
    try:
        server = postgres.start(settings=settings)
    except postgres.Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI tests both stores, and PostgreSQL did not start: {error}")
        pytest.skip(f"no PostgreSQL: {error} (or name a server in ONCEFLOW_TEST_DATABASE)")
    with server:
        yield server.url


@pytest.fixture
def own_server() -> Iterator[postgres.Server]:
    """A server that a test may stop, start and crash. It writes nothing to its disk unasked: what
    did not wait for the disk is lost in a crash."""
    settings = {"fsync": "off", "full_page_writes": "off", "wal_writer_delay": "10s"}
    try:
        server = postgres.start(settings=settings)
    except postgres.Unavailable as error:
        pytest.skip(f"no PostgreSQL: {error}")
    with server:
        yield server


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """The address of a new, empty database, dropped after the test with whoever is in it."""
    name = f"onceflow_test_{secrets.token_hex(8)}"
    # template0 has no connections, ever, so the copy cannot be refused because of one.
    postgres.execute(postgres_server_url, f'CREATE DATABASE "{name}" TEMPLATE template0')
    try:
        yield urlunsplit(urlsplit(postgres_server_url)._replace(path=f"/{name}"))
    finally:
        postgres.execute(postgres_server_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
