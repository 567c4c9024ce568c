"""One loop for all of it, so that the extractor's children and the model are loaded once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from onceflow.clients import Extractor, FetchSettings, Http, Llm
from onceflow.clients.resolve import Resolver
from onceflow.testing.site import ALLOWED, Canary, ScriptedResolver, Site
from tests.clients.conftest import certificates as certificates
from tests.clients.conftest import openssl as openssl

from .kit import Bench, LoopClock, article

MakeHttp = Callable[..., Http]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[Site]:
    async with Site() as site:
        yield site


@pytest_asyncio.fixture(loop_scope="session")
async def plain() -> AsyncIterator[Site]:
    """Another site, well-behaved."""
    async with Site() as plain:
        yield plain


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def canary(site: Site) -> AsyncIterator[Canary]:
    """On 127.0.0.1 and ::1, at the hostile site's port. No case may connect to it."""
    async with Canary(site.port) as canary:
        yield canary
        assert canary.connections == 0


@pytest_asyncio.fixture(loop_scope="session")
async def make_http() -> AsyncIterator[MakeHttp]:
    """`make_http(robots=True, ...)`: the real limits, the hostile site allowed."""
    made: list[Http] = []

    def make(*, resolver: Resolver | None = None, **options: object) -> Http:
        names = {name: options.pop(name) for name in ("origin_headers", "clock") if name in options}
        base = FetchSettings(allow_networks=ALLOWED, robots=False)
        http = Http(
            settings=replace(base, **options),  # type: ignore[arg-type]  # checked by replace
            resolver=resolver or ScriptedResolver({"site.test": ["127.0.0.2"]}),
            **names,  # type: ignore[arg-type]  # as above
        )
        made.append(http)
        return http

    yield make
    for http in made:
        await http.close()


@pytest_asyncio.fixture(loop_scope="session")
async def http(make_http: MakeHttp) -> Http:
    return make_http()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def shared() -> AsyncIterator[tuple[Extractor, Llm]]:
    """The extractor and the embedded model, warm: what they load once is no case's memory."""
    async with Extractor() as extractor, Llm() as llm:
        pages = [extractor.extract(article(number)) for number in range(4)]
        for found in await asyncio.gather(*pages):
            await llm.summarize(found.text).read()
        yield extractor, llm


@pytest_asyncio.fixture(loop_scope="session")
async def run(tmp_path: Path, http: Http, shared: tuple[Extractor, Llm], plain: Site) -> Bench:
    extractor, llm = shared
    return Bench(tmp_path, http, extractor, llm, plain)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def clock() -> LoopClock:
    return LoopClock(asyncio.get_running_loop())
