"""Section 2 of the hostile cases: URLs and addresses."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import onceflow
from onceflow import Flow
from onceflow.clients.resolve import check_public, system_resolver
from onceflow.core.errors import HandlerError
from onceflow.testing.site import ScriptedResolver, Site, reply

from .conftest import MakeHttp
from .kit import Bench, LoopClock, article, pipeline

BLOCKED = "failed blocked_address"


async def blocked(run: Bench, site: Site, *urls: str, **options: object) -> None:
    ended = await run(*urls, beside=site, **options)  # type: ignore[arg-type]  # passed on
    for url in urls:
        assert ended.outcome(url) == BLOCKED, url
        assert ended.kinds(url).count("claimed") == 1, "a permanent failure is not tried again"
        assert ended.items[url].error is not None


async def test_U01_loopback(run: Bench, site: Site, make_http: MakeHttp) -> None:
    hosts = ["127.0.0.1", "localhost", "[::1]", "LOCALHOST", "127.0.0.3", "127.255.255.254"]
    http = make_http(resolver=system_resolver)
    await blocked(run, site, *(site.url(host=host) for host in hosts), http=http)


async def test_U02_metadata_services(run: Bench, site: Site, make_http: MakeHttp) -> None:
    names = {"metadata.google.internal": ["169.254.169.254"], "ecs.test": ["169.254.170.2"]}
    names["v6.test"] = ["fd00:ec2::254"]
    http = make_http(resolver=ScriptedResolver(names))
    await blocked(
        run,
        site,
        "http://169.254.169.254/latest/meta-data/",
        *(f"http://{name}/" for name in names),
        "http://[fd00:ec2::254]/latest/meta-data/",
        http=http,
    )


async def test_U03_private_networks(run: Bench, site: Site) -> None:
    hosts = ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1", "198.18.0.1"]
    hosts += ["198.19.255.255", "192.0.0.8", "192.0.2.1", "203.0.113.9", "224.0.0.1", "240.0.0.1"]
    hosts += ["255.255.255.255", "[fc00::1]", "[fe80::1]", "[ff02::1]", "[2001:db8::1]"]
    await blocked(run, site, *(f"http://{host}/" for host in hosts))


async def test_U04_unspecified(run: Bench, site: Site) -> None:
    await blocked(run, site, *(site.url(host=host) for host in ("0.0.0.0", "[::]", "0.1.2.3")))


async def test_U05_ipv4_inside_ipv6(run: Bench, site: Site) -> None:
    hosts = ["[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]"]
    hosts += ["[64:ff9b:1::7f00:1]", "[::ffff:0:127.0.0.1]", "[2001:0:7f00:1::]"]
    hosts += ["[2606:4700::5efe:7f00:1]", "[2606:4700::200:5efe:a00:1]"]
    await blocked(run, site, *(site.url(host=host) for host in hosts))


async def test_U06_6to4_of_loopback(run: Bench, site: Site, make_http: MakeHttp) -> None:
    names = {"a.test": ["2002:7f00:1::"], "b.test": ["2002:a00:1::1"], "c.test": ["2002:c0a8:1::"]}
    http = make_http(resolver=ScriptedResolver(names))
    await blocked(run, site, *(site.url(host=name) for name in names), http=http)


async def test_U07_decimal_and_hexadecimal_numbers(run: Bench, site: Site) -> None:
    hosts = ["2130706433", "0x7f000001", "0X7F000001", "017700000001", "0x7f.1"]
    await blocked(run, site, *(site.url(host=host) for host in hosts))


async def test_U08_octal_and_short_numbers(run: Bench, site: Site) -> None:
    hosts = ["0177.0.0.1", "127.1", "0", "127.0.1", "0x0", "127.0.0.1.", "１２７.0.0.1"]
    await blocked(run, site, *(site.url(host=host) for host in hosts))


async def test_U09_credentials_in_a_url(run: Bench, site: Site) -> None:
    port = site.port
    texts = [
        f"http://example.test@127.0.0.1:{port}/",
        f"http://127.0.0.1:{port}#@example.test/",
        f"http://example.test\\@127.0.0.1:{port}/",
        f"http://user:hunter2@127.0.0.2:{port}/",
        f"http://:hunter2@127.0.0.2:{port}/",
        f"http://@127.0.0.2:{port}/",
        f"http://a%40b:hunter2@127.0.0.2:{port}/",
    ]
    ended = await run(*texts, beside=site)
    assert {ended.outcome(text) for text in texts} == {"refused bad_url"}
    assert "hunter2" not in ended.text


async def test_U10_white_space_and_control_characters(run: Bench, site: Site) -> None:
    site.answer("/a", article("a"))
    trimmed = [f" {site.url('/a')} ", f"\t{site.url('/a')}\r\n"]
    texts = [
        f"http://127.0.0\t.2:{site.port}/a",
        f"http://127.0.0.2\n:{site.port}/a",
        f"http://127.0.0.2 :{site.port}/a",
        f"http://127.0.0.2:{site.port}/a\x00",
        f"ht\ntp://127.0.0.2:{site.port}/a",
        f"http://127.0.0.2\u3000:{site.port}/a",
    ]
    ended = await run(*trimmed, *texts, beside=site)
    assert {ended.outcome(text) for text in trimmed} == {"completed"}
    assert len({ended.items[text].id for text in trimmed}) == 1
    assert {ended.outcome(text) for text in texts} <= {"refused bad_url", "refused refused_scheme"}


async def test_U11_a_name_that_changes_its_mind(
    run: Bench, site: Site, make_http: MakeHttp
) -> None:
    resolver = ScriptedResolver({"turns.test": [["127.0.0.2"], ["127.0.0.1"]]})
    site.raw("/first", reply(article("first")))  # closes: the next page needs a new connection
    url = site.url("/first", host="turns.test")
    http = make_http(resolver=resolver)
    ended = await run(url, beside=site, http=http)
    assert ended.outcome(url) == "completed"
    assert resolver.asked == ["turns.test"]  # once, and the answer that was judged was used
    second = site.url("/second", host="turns.test")
    await blocked(run, site, second, http=http)


async def test_U12_one_bad_answer_among_others(run: Bench, site: Site, make_http: MakeHttp) -> None:
    names = {
        "a.test": ["127.0.0.2", "127.0.0.1"],
        "b.test": ["127.0.0.1", "127.0.0.2"],
        "c.test": ["127.0.0.2", "::1"],
        "d.test": ["127.0.0.2"] * 40 + ["10.0.0.1"],
        "e.test": ["127.0.0.2", "not an address"],
        "f.test": ["127.0.0.2", "fe80::1%eth0"],
    }
    http = make_http(resolver=ScriptedResolver(names))
    await blocked(run, site, *(site.url(host=name) for name in names), http=http)
    assert all(path.startswith("/ordinary/") for path in site.paths())


async def test_U13_redirect_to_loopback(run: Bench, site: Site) -> None:
    urls = []
    for status in (301, 302, 303, 307, 308):
        site.redirect(f"/go/{status}", site.url(host="127.0.0.1"), status=status)
        urls.append(site.url(f"/go/{status}"))
    ended = await run(*urls, beside=site)
    for url in urls:
        assert ended.outcome(url) == BLOCKED
        assert url in (ended.items[url].error or ""), "the first hop is recorded"


async def test_U14_redirect_to_another_scheme(run: Bench, site: Site) -> None:
    locations = ["file:///etc/passwd", "FILE:///etc/passwd", "ftp://a.test/", "gopher://a/"]
    locations += ["data:text/html,x", "javascript:1", " javascript:1", "ws://a.test/", "blob:x"]
    for number, location in enumerate(locations):
        site.redirect(f"/{number}", location)
    urls = [site.url(f"/{number}") for number in range(len(locations))]
    ended = await run(*urls, beside=site)
    assert {ended.outcome(url) for url in urls} == {"failed refused_scheme"}
    assert "root:" not in ended.text


async def test_U15_other_schemes_are_refused_at_submission(run: Bench, site: Site) -> None:
    texts = ["file:///etc/passwd", "FILE://", "jar:http://a.test/x!/", "view-source:http://a.test/"]
    texts += [
        "ftp://a.test/",
        "about:blank",
        "mailto:a@b.test",
        "chrome://settings",
        "http+unix://x",
    ]
    ended = await run(*texts, beside=site)
    assert {ended.outcome(text) for text in texts} == {"refused refused_scheme"}


async def test_U16_redirects_without_end(run: Bench, site: Site) -> None:
    site.redirect("/a", "/b")
    site.redirect("/b", "/a")
    site.redirect("/self", "/self")
    for number in range(7):
        site.redirect(f"/chain/{number}", f"/chain/{number + 1}")
    site.answer("/chain/7", article("end"))
    endless = [site.url("/a"), site.url("/self"), site.url("/chain/1")]
    ended = await run(*endless, site.url("/chain/2"), beside=site)
    assert {ended.outcome(url) for url in endless} == {"failed too_many_redirects"}
    assert all(ended.kinds(url).count("claimed") == 1 for url in endless)
    assert ended.outcome(site.url("/chain/2")) == "completed"  # five are followed


async def test_U17_credentials_stay_with_their_origin(
    run: Bench, site: Site, make_http: MakeHttp
) -> None:
    async with Site() as other:
        http = make_http(origin_headers={site.url(): {"Authorization": "Bearer hunter2"}})
        site.redirect("/go", other.url("/there"))
        site.redirect("/back", other.url("/back"))
        other.redirect("/back", site.url("/home"))
        site.answer("/home", article("home"))
        other.answer("/there", article("there"))
        ended = await run(site.url("/go"), site.url("/back"), beside=site, http=http)
        assert ended.outcome(site.url("/go")) == ended.outcome(site.url("/back")) == "completed"
        assert all(r.headers["authorization"] == "Bearer hunter2" for r in site.requests)
        assert not any(
            {"authorization", "cookie", "referer"} & set(r.headers) for r in other.requests
        )
        assert "hunter2" not in ended.text


@pytest.mark.parametrize("allowed", [False, True])
async def test_U18_https_does_not_fall_to_http(
    run: Bench, site: Site, make_http: MakeHttp, certificates: Path, allowed: bool
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates / "good.pem", certificates / "good.key")
    site.answer("/plain", article("plain"))
    async with Site(tls=tls) as safe:
        safe.redirect("/go", site.url("/plain"))
        http = make_http(ca_file=str(certificates / "ca.pem"), allow_https_to_http=allowed)
        url = safe.url("/go", host="site.test")
        ended = await run(url, beside=site, http=http)
    assert ended.outcome(url) == ("completed" if allowed else "failed insecure_redirect")
    assert ("/plain" in site.paths()) == allowed


async def test_U19_odd_locations(run: Bench, site: Site) -> None:
    def redirect(path: str, *lines: bytes) -> str:
        head = b"\r\n".join([b"HTTP/1.1 302 Found", *lines, b"Content-Length: 0", b"", b""])
        site.raw(path, head)
        return site.url(path)

    port = b"%d" % site.port
    site.answer("/%C3%BC", article("u"))
    wanted = {
        redirect("/empty", b"Location:"): "failed bad_url",
        redirect("/slashes", b"Location: //127.0.0.1:" + port + b"/x"): BLOCKED,
        redirect("/backslashes", b"Location: \\\\127.0.0.1:" + port + b"\\x"): BLOCKED,
        redirect("/utf8", "Location: /ü".encode()): "completed",
        redirect("/latin", b"Location: /\xfc"): "failed bad_url",
        redirect("/folded", b"Location: /a", b"\tb"): "failed bad_url",
        redirect("/nul", b"Location: /a\x00b"): "failed bad_protocol",
        redirect("/user", b"Location: http://u:p@127.0.0.2:" + port + b"/"): "failed bad_url",
        redirect("/long", b"Location: /" + b"a" * 8190): "failed bad_protocol",
        redirect("/none"): "failed http_302",
        redirect("/two", b"Location: /ordinary/1", b"Location: /%C3%BC"): "failed bad_protocol",
        redirect("/twice", b"Location: /%C3%BC", b"Location: /%C3%BC"): "completed",
    }
    ended = await run(*wanted, beside=site)
    assert {url: ended.outcome(url) for url in wanted} == wanted


async def test_U20_a_very_long_url(run: Bench, site: Site) -> None:
    texts = [site.url("/" + "a" * 100_000), site.url("/" + "ä" * 3000), site.url("/?" + "%" * 9000)]
    ended = await run(*texts, beside=site)
    assert {ended.outcome(text) for text in texts} == {"refused bad_url"}
    assert len(ended.text) < 1_000_000


async def test_U21_ports_that_are_no_web_servers(run: Bench, site: Site) -> None:
    ports = ["0", "65536", "80:90", "22", "25", "6379", "5432", "-1", "8o", "9" * 30, "00022", "٢٢"]
    texts = [f"http://127.0.0.2:{port}/" for port in ports]
    for number, port in enumerate(("22", "6379", "5432", "65536")):
        site.redirect(f"/{number}", f"http://127.0.0.2:{port}/")
    redirects = [site.url(f"/{number}") for number in range(4)]
    ended = await run(*texts, *redirects, beside=site)
    assert {ended.outcome(text) for text in texts} == {"refused bad_url"}
    assert {ended.outcome(url) for url in redirects} == {"failed bad_url"}


async def test_U22_impossible_hosts(run: Bench, site: Site) -> None:
    hosts = ["a" * 300, "a" * 64 + ".test", "a..b", ".a.test", "a.test..", "-a.test", "ä" * 200]
    hosts += ["xn--" + "9" * 60, "xn--a.test\u0301", "\ud800.test", "a$b.test", "1.2.3.4.5", "%00"]
    texts = [f"http://{host}/" for host in hosts]
    ended = await run(*texts, beside=site)
    assert {ended.outcome(text) for text in texts} == {"refused bad_url"}


async def test_U23_broken_ipv6(run: Bench, site: Site) -> None:
    texts = ["http://[fe80::1%25eth0]/", "http://[::1", "http://[::1]x/", "http://[::1%eth0]/"]
    texts += ["http://[1:2:3]/", "http://[::g]/", "http://::1/", "http://[]/", "http://[[::1]]/"]
    ended = await run(*texts, beside=site)
    assert {ended.outcome(text) for text in texts} == {"refused bad_url"}


async def test_U24_missing_or_turned_slashes(run: Bench, site: Site) -> None:
    texts = ["http:/\\127.0.0.1/", "http:///127.0.0.1/", "http:127.0.0.1", "http:\\\\127.0.0.1/"]
    texts += ["http:/127.0.0.1/", "http:////127.0.0.1/", "http://", "http:", "//127.0.0.1/", "x"]
    ended = await run(*texts, beside=site)
    assert {ended.outcome(text) for text in texts} == {"refused bad_url"}


FORMS = [
    "HTTP://Site.test:{}/a/../b?x=1#f",
    "http://site.test:{}/b?x=1",
    "http://SITE.test.:{}/%62?x=1",
]


async def test_U25_one_page_is_one_item(run: Bench, site: Site) -> None:
    site.answer("/b?x=1", article("b"))
    texts = [form.format(site.port) for form in FORMS]
    ended = await run(*texts, beside=site)
    assert len({ended.items[text].id for text in texts}) == 1
    assert site.paths().count("/b?x=1") == 1


async def test_U26_fifty_submissions_at_once(run: Bench, tmp_path: Path) -> None:
    table = pipeline(run.http, run.extractor, run.llm)
    texts = ["HTTP://Example.test:80/a/../b?x=1#f", "http://example.test/b?x=1"] * 25
    async with (
        onceflow.open(tmp_path / "one.db", table) as one,
        onceflow.open(tmp_path / "one.db", table) as other,
    ):
        flows: Sequence[Flow] = (one, other)
        calls = [flows[n % 2].add(table, [text]) for n, text in enumerate(texts)]
        added = await asyncio.gather(*calls)
        assert [sum(one.new for one in added), sum(one.known for one in added)] == [1, 49]
        assert len(await one.items(table)) == 1
        assert await one.audit() == []


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/v1", "http://10.1.2.3/hook", "http://hidden.test/", "http://[::1]:8000/v1",
     "http://[::ffff:10.0.0.1]/", "http://2130706433/v1"],
)  # fmt: skip
async def test_U27_an_address_that_comes_in_through_the_api(url: str) -> None:
    resolver = ScriptedResolver({"hidden.test": ["8.8.8.8", "192.168.1.1"]})
    with pytest.raises(HandlerError) as caught:
        await check_public(url, resolver=resolver)
    assert caught.value.code == "blocked_address"


async def test_U28_what_a_resolver_says(
    run: Bench, site: Site, make_http: MakeHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def count(sock: socket.socket, address: tuple[str, int]) -> None:
        tried.append(address[0])
        await connect(sock, address)

    many = [f"127.{n // 250}.9.{n % 250 + 1}" for n in range(500)]
    names = {"many.test": many, "none.test": []}
    scripted = ScriptedResolver(names)

    async def resolver(host: str, /) -> Sequence[str]:
        if host == "broken.test":
            raise onceflow.Transient("SERVFAIL", code="resolve_failed")
        return await scripted(host)

    monkeypatch.setattr(loop, "sock_connect", count)
    http = make_http(resolver=resolver, allow_networks=("127.0.0.0/8",))
    wanted = {
        "http://unknown.test/": "failed name_not_found",
        "http://none.test/": "failed name_not_found",
        "http://broken.test/": "failed resolve_failed",
        site.url("/", host="many.test"): "failed connect_failed",
    }
    ended = await run(*wanted, beside=site, http=http, attempts=2)
    assert {url: ended.outcome(url) for url in wanted} == wanted
    claims = [ended.kinds(url).count("claimed") for url in wanted]
    assert claims == [1, 1, 2, 2]  # NXDOMAIN is for good, SERVFAIL is not
    assert len({one for one in tried if one != "127.0.0.2"}) <= 4


async def test_U28_a_resolver_without_answer(
    run: Bench, site: Site, make_http: MakeHttp, clock: LoopClock
) -> None:
    async def hangs(host: str, /) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    url = "http://slow.test/"

    async def wait(flow: Flow) -> None:
        await clock.passes(29)
        assert (await flow.item("summarize", url)).state == "scraping"
        await clock.passes(6)  # 1.2 times the deadline, less a second

    ended = await run(url, beside=site, http=make_http(resolver=hangs), attempts=1, then=wait)
    assert ended.outcome(url) == "failed timeout"


async def test_U28_names_that_hang_hold_up_nothing_else(
    run: Bench, site: Site, make_http: MakeHttp, clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's resolver waits in threads, and summaries are made in threads too."""
    let_go = threading.Event()

    def look_up(host: str, *_: object, **__: object) -> list[object]:
        let_go.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async def wait(flow: Flow) -> None:
        await clock.passes(35)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    urls = [f"http://slow{number}.test/" for number in range(7)]
    http = make_http(resolver=system_resolver)
    try:
        ended = await run(*urls, beside=site, http=http, attempts=1, then=wait)
    finally:
        let_go.set()
    assert {ended.outcome(url) for url in urls} == {"failed timeout"}
