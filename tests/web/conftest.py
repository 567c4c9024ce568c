"""One world, and on each store a server that works and one that only serves."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx2
import pytest

from tests.cli.loopback import Loopback
from tests.pipelines.conftest import article
from tests.web.kit import Puppet, Server, new_database, puppet_flow, served, stories


@pytest.fixture(scope="module")
def world() -> Iterator[Loopback]:
    """A site with articles and a model that writes stories."""
    with Loopback().served() as world:
        stories(world)
        yield world


@dataclass
class Place:
    """A database with a server on it."""

    kind: str
    database: str
    server: Server
    world: Loopback
    folder: Path

    def client(self) -> httpx2.Client:
        return self.server.client()


def _place(
    request: pytest.FixtureRequest, factory: pytest.TempPathFactory, world: Loopback, *flags: str
) -> Iterator[Place]:
    kind: str = request.param
    folder = factory.mktemp(kind)
    url = "" if kind == "sqlite" else request.getfixturevalue("postgres_server_url")
    with (
        new_database(kind, folder, url) as database,
        served(folder, database, *flags, world=world) as server,
    ):
        yield Place(kind, database, server, world, folder)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def quiet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, world: Loopback
) -> Iterator[Place]:
    """A server without a worker: every state stays as it is put."""
    yield from _place(request, tmp_path_factory, world, "--no-worker")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def busy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, world: Loopback
) -> Iterator[Place]:
    """A server with a worker inside."""
    yield from _place(request, tmp_path_factory, world)


@pytest.fixture
async def puppet(quiet: Place) -> AsyncIterator[Puppet]:
    async with puppet_flow(quiet.database) as flow:
        yield Puppet(flow, flow.pipelines["ingest"])


@pytest.fixture
async def busy_puppet(busy: Place) -> AsyncIterator[Puppet]:
    async with puppet_flow(busy.database) as flow:
        yield Puppet(flow, flow.pipelines["ingest"])


Fresh = Callable[[str], AbstractContextManager[tuple[Path, str]]]


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Fresh:
    """Makes a folder and an empty database of a kind, for one test alone."""

    @contextmanager
    def make(kind: str) -> Iterator[tuple[Path, str]]:
        url = "" if kind == "sqlite" else request.getfixturevalue("postgres_server_url")
        with new_database(kind, tmp_path, url) as database:
            yield tmp_path, database

    return make


NUMBERS = count(1)


@pytest.fixture
def url(world: Loopback) -> str:
    """The address of an article that no other test has."""
    number = next(NUMBERS)
    world.site.answer(f"/w{number}", article(f"subject{number} of many kinds"))
    return world.site.url(f"/w{number}")
