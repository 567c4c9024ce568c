"""Section 2 of the hostile cases: what the fetcher connects to."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from onceflow.clients.http import Http
from onceflow.clients.resolve import system_resolver
from onceflow.core.errors import Permanent
from onceflow.testing.site import ALLOWED, Canary, Exchange, ScriptedResolver, Site, reply

from .conftest import MakeHttp
from .hostile import failure, failure_beside_others

BLOCKED = "permanent blocked_address"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_U01_loopback(make_http: MakeHttp, site: Site, canary: Canary, host: str) -> None:
    http = make_http(resolver=system_resolver)
    assert await failure_beside_others(http, site, site.url(host=host)) == BLOCKED
    assert canary.connections == 0


async def test_U02_metadata_service(make_http: MakeHttp) -> None:
    http = make_http(resolver=ScriptedResolver({"metadata.google.internal": ["169.254.169.254"]}))
    assert await failure(http.get("http://169.254.169.254/latest/meta-data/")) == BLOCKED
    assert await failure(http.get("http://metadata.google.internal/")) == BLOCKED


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "198.18.0.1"]
)
async def test_U03_private_networks(http: Http, host: str) -> None:
    assert await failure(http.get(f"http://{host}/")) == BLOCKED


@pytest.mark.parametrize(
    "host",
    [
        *("0.0.0.0", "[::]"),  # U04
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),  # U05
        *("2130706433", "0x7f000001"),  # U07
        *("0177.0.0.1", "127.1", "0"),  # U08
    ],
)
async def test_U04_U05_U07_U08_other_spellings(
    http: Http, site: Site, canary: Canary, host: str
) -> None:
    assert await failure(http.get(site.url(host=host))) == BLOCKED
    assert canary.connections == 0


async def test_U06_6to4_of_loopback(make_http: MakeHttp) -> None:
    http = make_http(resolver=ScriptedResolver({"a.test": ["2002:7f00:1::"]}))
    assert await failure(http.get("http://a.test/")) == BLOCKED


async def test_U09_credentials_in_a_url(http: Http, site: Site, canary: Canary) -> None:
    for text in (
        f"http://example.test@127.0.0.1:{site.port}/",
        f"http://127.0.0.1:{site.port}#@example.test/",
        f"http://example.test\\@127.0.0.1:{site.port}/",
    ):
        assert await failure(http.get(text)) == "permanent bad_url"
    assert canary.connections == 0


async def test_U11_the_judged_answer_is_the_one_used(
    make_http: MakeHttp, site: Site, canary: Canary
) -> None:
    resolver = ScriptedResolver({"turns.test": [["127.0.0.2"], ["127.0.0.1"]]})
    http = make_http(resolver=resolver)
    site.raw("/", reply("first"))  # closes, so that the second get needs a new connection
    assert (await http.get(site.url(host="turns.test"))).text == "first"
    assert resolver.asked == ["turns.test"]
    assert await failure(http.get(site.url(host="turns.test"))) == BLOCKED
    assert canary.connections == 0


async def test_U12_one_bad_answer_refuses_the_name(
    make_http: MakeHttp, site: Site, canary: Canary
) -> None:
    for answers in (["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "::1"]):
        http = make_http(resolver=ScriptedResolver({"both.test": answers}))
        assert await failure(http.get(site.url(host="both.test"))) == BLOCKED
    assert (canary.connections, site.connections) == (0, 0)


async def test_U13_redirect_to_loopback(http: Http, site: Site, canary: Canary) -> None:
    site.redirect("/go", site.url(host="127.0.0.1"))
    with pytest.raises(Permanent) as caught:
        await http.get(site.url("/go"))
    assert caught.value.code == "blocked_address"
    assert site.url("/go") in str(caught.value)
    assert canary.connections == 0


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://a.test/", "gopher://a/", "data:text/html,x", "javascript:1"],
)
async def test_U14_redirect_to_another_scheme(http: Http, site: Site, location: str) -> None:
    site.redirect("/go", location)
    assert await failure(http.get(site.url("/go"))) == "permanent refused_scheme"


async def test_U16_redirects_without_end(http: Http, site: Site) -> None:
    site.redirect("/a", "/b")
    site.redirect("/b", "/a")
    assert await failure(http.get(site.url("/a"))) == "permanent too_many_redirects"
    for number in range(7):
        site.redirect(f"/chain/{number}", f"/chain/{number + 1}")
    site.answer("/chain/7", "the end")
    assert await failure(http.get(site.url("/chain/1"))) == "permanent too_many_redirects"
    page = await http.get(site.url("/chain/2"))
    assert page.text == "the end"
    assert page.url == site.url("/chain/7")
    assert page.redirects == tuple(site.url(f"/chain/{n}") for n in range(2, 7))


async def test_U17_credentials_stay_with_their_origin(make_http: MakeHttp, site: Site) -> None:
    async with Site() as other:
        http = make_http(origin_headers={site.url(): {"Authorization": "Bearer k"}})
        site.redirect("/go", other.url("/there"))
        other.answer("/there", "arrived")
        page = await http.get(site.url("/go"), headers={"Cookie": "c=1", "X-Key": "k"})
        assert page.text == "arrived"
        first, second = site.requests[-1].headers, other.requests[-1].headers
        assert (first["authorization"], first["cookie"]) == ("Bearer k", "c=1")
        assert not {"authorization", "cookie", "x-key", "referer"} & set(second)


@pytest.mark.parametrize("allowed", [False, True])
async def test_U18_https_does_not_fall_to_http(
    make_http: MakeHttp, site: Site, certificates: Path, allowed: bool
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates / "good.pem", certificates / "good.key")
    site.answer("/plain", "plain")
    async with Site(tls=tls) as safe:
        safe.redirect("/go", site.url("/plain"))
        http = make_http(ca_file=str(certificates / "ca.pem"), allow_https_to_http=allowed)
        url = safe.url("/go", host="site.test")
        if allowed:
            assert (await http.get(url)).text == "plain"
        else:
            assert await failure(http.get(url)) == "permanent insecure_redirect"
            assert site.requests == []


async def test_U19_odd_locations(http: Http, site: Site, canary: Canary) -> None:
    site.redirect("/empty", "")
    assert await failure(http.get(site.url("/empty"))) == "permanent bad_url"
    site.redirect("/slashes", f"//127.0.0.1:{site.port}/x")
    assert await failure(http.get(site.url("/slashes"))) == BLOCKED
    site.raw("/utf8", "HTTP/1.1 302 Found\r\nLocation: /ü\r\nContent-Length: 0\r\n\r\n".encode())
    site.answer("/%C3%BC", "umlaut")
    assert (await http.get(site.url("/utf8"))).text == "umlaut"
    site.raw("/latin", b"HTTP/1.1 302 Found\r\nLocation: /\xfc\r\nContent-Length: 0\r\n\r\n")
    assert await failure(http.get(site.url("/latin"))) == "permanent bad_url"
    folded = b"HTTP/1.1 302 Found\r\nLocation: /a\r\n\tb\r\nContent-Length: 0\r\n\r\n"
    site.raw("/newline", folded)
    kind = await failure(http.get(site.url("/newline")))
    assert kind in ("permanent bad_url", "permanent bad_protocol")
    assert canary.connections == 0


async def test_U28_a_resolver_that_fails_hangs_or_floods(
    make_http: MakeHttp, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(host: str, /) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    http = make_http(resolver=ScriptedResolver({}))
    assert await failure(http.get("http://nowhere.test/")) == "permanent name_not_found"
    http = make_http(resolver=hangs, fetch_seconds=0.05)
    assert await failure(http.get("http://slow.test/")) == "transient timeout"
    many = [f"127.0.0.{n}" for n in range(10, 250)]
    http = make_http(
        resolver=ScriptedResolver({"many.test": many}), allow_networks=("127.0.0.0/8",)
    )
    tried: list[str] = []
    connect = asyncio.get_running_loop().sock_connect

    async def count(sock: socket.socket, address: tuple[str, int]) -> None:
        tried.append(address[0])
        await connect(sock, address)

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", count)
    assert await failure(http.get(site.url(host="many.test"))) == "transient connect_failed"
    assert len(set(tried)) <= 4


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (socket.EAI_NONAME, "permanent name_not_found"),
        (socket.EAI_AGAIN, "transient resolve_failed"),
        (socket.EAI_FAIL, "transient resolve_failed"),
    ],
)
async def test_U28_what_the_machines_resolver_says(
    make_http: MakeHttp, monkeypatch: pytest.MonkeyPatch, number: int, wanted: str
) -> None:
    def answers(*_: object, **__: object) -> object:
        raise socket.gaierror(number, "said the resolver")

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    http = make_http(resolver=system_resolver)
    assert await failure(http.get("http://a.test/")) == wanted


async def test_R4_the_environment_is_not_read(
    make_http: MakeHttp, site: Site, canary: Canary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy = f"http://127.0.0.1:{canary.port}"
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.2 login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    site.answer("/", "direct")
    assert (await make_http().get(site.url())).text == "direct"
    assert "authorization" not in site.requests[-1].headers
    assert canary.connections == 0


async def test_the_socket_itself_is_judged_whatever_the_resolver_was_told(
    make_http: MakeHttp, site: Site, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a name's answers passed, the address a socket is opened for is looked at again."""
    from onceflow.clients import _wire

    async def unjudged(self: object, host: str, port: int = 0, family: int = 0) -> list[object]:
        return [
            {"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET,
             "proto": 0, "flags": 0}
        ]  # fmt: skip

    monkeypatch.setattr(_wire._JudgingResolver, "resolve", unjudged)
    assert await failure(make_http().get(site.url(host="site.test"))) == BLOCKED
    assert canary.connections == 0


async def test_an_ordinary_page(site: Site) -> None:
    from onceflow.clients import FetchSettings

    async def page(exchange: Exchange) -> None:
        await exchange.send(reply("<p>héllo</p>", headers={"ETag": '"1"'}))

    site.script("/a", page)
    settings = FetchSettings(allow_networks=ALLOWED)
    async with Http(contact="ops@example.test", settings=settings) as http:
        got = await http.get(site.url("/x/../a#part"))
    assert (got.status, got.text, got.url) == (200, "<p>héllo</p>", site.url("/a"))
    assert (got.redirects, got.etag, got.headers["CONTENT-TYPE"]) == (
        (),
        '"1"',
        "text/html; charset=utf-8",
    )
    agent = site.requests[-1].headers["user-agent"]
    assert agent.startswith("onceflow")
    assert "(+ops@example.test)" in agent
