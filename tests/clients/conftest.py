"""The hostile site on 127.0.0.2, the canary beside it, and a fetcher that may reach the site."""

import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from onceflow.clients.http import Http
from onceflow.clients.resolve import Resolver
from onceflow.clients.settings import FetchSettings
from onceflow.testing.site import ALLOWED, Canary, ScriptedResolver, Site

MakeHttp = Callable[..., Http]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as site:
        yield site


@pytest.fixture
async def canary(site: Site) -> AsyncIterator[Canary]:
    async with Canary(site.port) as canary:
        yield canary


@pytest.fixture
async def make_http() -> AsyncIterator[MakeHttp]:
    """`make_http(fetch_seconds=0.2, ...)`: the hostile site allowed, robots.txt not asked."""
    made: list[Http] = []

    def make(
        *,
        resolver: Resolver | None = None,
        origin_headers: dict[str, dict[str, str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        **settings: object,
    ) -> Http:
        base = FetchSettings(allow_networks=ALLOWED, robots=False, fetch_seconds=20)
        http = Http(
            settings=replace(base, **settings),  # type: ignore[arg-type]  # checked by replace
            resolver=resolver or ScriptedResolver({"site.test": ["127.0.0.2"]}),
            origin_headers=origin_headers,
            clock=clock,
        )
        made.append(http)
        return http

    yield make
    for http in made:
        await http.close()


@pytest.fixture
def http(make_http: MakeHttp) -> Http:
    return make_http()


@pytest.fixture(scope="session")
def openssl() -> str:
    found = shutil.which("openssl")
    if found is None:
        pytest.skip("no openssl command to make certificates with")
    return found


@pytest.fixture(scope="session")
def certificates(openssl: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, and good/expired/wrong-host .pem and .key signed by it."""
    folder = tmp_path_factory.mktemp("certificates")

    def run(*words: str) -> None:
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca",
        "-days", "2", "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=c\n[c]\ndatabase=index\nnew_certs_dir=.\ncertificate=ca.pem\n"
        "private_key=ca.key\nrand_serial=yes\ndefault_md=sha256\npolicy=p\ncopy_extensions=copy\n"
        "unique_subject=no\n[p]\ncommonName=supplied\n"
    )
    (folder / "index").write_text("")
    for name, host, dates in (
        ("good", "site.test", ["-days", "2"]),
        ("expired", "site.test", ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"]),
        ("wrong-host", "other.test", ["-days", "2"]),
    ):
        run("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr",
            "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}")  # fmt: skip
        run("ca", "-batch", "-config", "ca.cnf", "-in", f"{name}.csr", "-out", f"{name}.pem",
            "-notext", *dates)  # fmt: skip
    return folder
