"""Section 3 of the hostile cases: what a server may do to the fetcher."""

import asyncio
import gzip
import ssl
import zlib
from email.utils import formatdate
from pathlib import Path

import pytest

from onceflow.clients.http import Http, Page, check_status, parse_retry_after
from onceflow.core.errors import Permanent, Transient
from onceflow.testing.site import Exchange, Site, reply

from .conftest import MakeHttp
from .hostile import failure, failure_beside_others, memory_bounded

MIB = 1024 * 1024
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_P01_never_answers(make_http: MakeHttp, site: Site) -> None:
    site.script("/", Exchange.gone)
    http, patient = make_http(fetch_seconds=0.5), make_http()
    kind = await failure_beside_others(http, site, site.url(), patient=patient)
    assert kind == "transient timeout"


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_P02_P03_trickling_does_not_extend_the_deadline(
    make_http: MakeHttp, site: Site, head: bytes
) -> None:
    async def trickle(exchange: Exchange) -> None:
        await exchange.send(head)
        while not exchange.writer.is_closing() and not exchange.reader.at_eof():
            await exchange.send(b"a")
            await asyncio.sleep(0.001)

    site.script("/", trickle)
    http, patient = make_http(fetch_seconds=0.5), make_http()
    kind = await failure_beside_others(http, site, site.url(), patient=patient)
    assert kind == "transient timeout"


async def test_P04_endless_body(http: Http, site: Site) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        while not exchange.writer.is_closing():
            await exchange.send(b"x" * 65536)
            await asyncio.sleep(0)  # a closed transport drains without pause

    site.script("/", endless)
    with memory_bounded():
        assert await failure_beside_others(http, site, site.url()) == "permanent too_large"


async def test_P05_announced_10_tib(http: Http, site: Site) -> None:
    site.answer("/", b"a", headers={"Content-Length": str(10 * 2**40)})
    assert await failure(http.get(site.url())) == "permanent too_large"


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_R6_a_cap_holds_whatever_the_status(
    make_http: MakeHttp, site: Site, status: int
) -> None:
    site.answer("/", b"a" * 2000, status=status)
    assert await failure(make_http(wire_bytes_max=1000).get(site.url())) == "permanent too_large"


async def test_P06_ends_in_the_middle(http: Http, site: Site) -> None:
    site.raw("/", reply(b"a" * 500, headers={"Content-Length": "1000"}))
    assert await failure(http.get(site.url())) == "transient truncated"
    chunked = {"Transfer-Encoding": "chunked"}
    site.raw("/chunked", reply(b"5\r\nabcde\r\n5\r\nab", headers=chunked))
    assert await failure(http.get(site.url("/chunked"))) == "transient truncated"
    whole = gzip.compress(b"a" * 100_000)
    site.answer("/gzip", whole[: len(whole) // 2], headers={"Content-Encoding": "gzip"})
    assert await failure(http.get(site.url("/gzip"))) == "transient truncated"

    async def reset(exchange: Exchange) -> None:
        await exchange.send(reply(b"a" * 500, headers={"Content-Length": "1000"}))
        exchange.reset()

    site.script("/reset", reset)
    kind = await failure(http.get(site.url("/reset")))
    assert kind in ("transient truncated", "transient disconnected")


def bomb(mebibytes: int) -> bytes:
    """Gzip members of 32 MiB of zeros each, after one another: to a reader one stream."""
    return gzip.compress(bytes(32 * MIB)) * (mebibytes // 32)


async def test_P07_P08_compression_bombs(http: Http, site: Site) -> None:
    one = bomb(1024)
    site.answer("/one", one, headers={"Content-Encoding": "gzip"})
    ten = one * 10
    site.answer("/two", gzip.compress(ten), headers={"Content-Encoding": "gzip, gzip"})
    site.answer("/deep", gzip.compress(ten), headers={"Content-Encoding": "gzip,gzip,gzip"})
    with memory_bounded():
        assert await failure(http.get(site.url("/one"))) == "permanent too_large"
        assert await failure_beside_others(http, site, site.url("/two")) == "permanent too_large"
        assert await failure(http.get(site.url("/deep"))) == "permanent bad_encoding"


async def test_P09_codings_that_are_not(http: Http, site: Site) -> None:
    site.answer("/plain", "just text", headers={"Content-Encoding": "gzip"})
    damaged = bytearray(gzip.compress(bytes(range(256)) * 400))
    damaged[len(damaged) // 2] ^= 0xFF
    site.answer("/damaged", bytes(damaged), headers={"Content-Encoding": "gzip"})
    site.answer("/unknown", "x", headers={"Content-Encoding": "compress"})
    site.answer("/brotli", "x", headers={"Content-Encoding": "br"})
    for path in ("/plain", "/damaged", "/unknown", "/brotli"):
        assert await failure(http.get(site.url(path))) == "permanent bad_encoding", path


@pytest.mark.parametrize("wbits", [31, 15, -15])
async def test_P09_codings_that_are(http: Http, site: Site, wbits: int) -> None:
    text = "ordinary text, " * 1000
    squeeze = zlib.compressobj(wbits=wbits)
    body = squeeze.compress(text.encode()) + squeeze.flush()
    name = "GZIP" if wbits == 31 else "deflate"
    site.answer("/", body, headers={"Content-Encoding": name})
    assert (await http.get(site.url())).text == text
    site.answer("/empty", b"", headers={"Content-Encoding": name})
    assert (await http.get(site.url("/empty"))).body == b""


@pytest.mark.parametrize(
    "head",
    [
        b"X-Long: " + b"a" * MIB + b"\r\n",
        b"".join(b"X-%d: a\r\n" % n for n in range(10_000)),
        b"".join(b"X-%d: %s\r\n" % (n, b"a" * 4000) for n in range(40)),
        b"no colon here\r\n",
        b"X-Nul: a\x00b\r\n",
        b"".join(b"Set-Cookie: c%d=1\r\n" % n for n in range(200_000)),  # P18
        b'ETag: "' + b"e" * MIB + b'"\r\n',  # P24
        b"Last-Modified: " + b"m" * MIB + b"\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: -5\r\n",
    ],
    ids=["long", "many", "block", "colon", "nul", "P18", "P24-etag", "P24-date", "two", "negative"],
)
async def test_P10_P18_P24_headers(http: Http, site: Site, head: bytes) -> None:
    site.raw("/", b"HTTP/1.1 200 OK\r\n" + head + b"\r\nhello")
    with memory_bounded():
        kind = await failure_beside_others(http, site, site.url())
    assert kind == "permanent bad_protocol"


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/1.1 000 X",
        b"HTTP/1.1 99 X",
        b"HTTP/1.1 999 X",
        b"HTTP/1.1 600 X",
        b"HTTP/9.9 200 OK",
        b"Content-Type: text/html",
        b"SSH-2.0-OpenSSH_9.2",
        b"\x16\x03\x01\x02\x00\x01",
        b"HTTP/1.1 2x0 OK",
    ],
)
async def test_P11_status_lines(http: Http, site: Site, line: bytes) -> None:
    site.raw("/", line + b"\r\nContent-Length: 0\r\n\r\n")
    assert await failure_beside_others(http, site, site.url()) == "permanent bad_protocol"


@pytest.mark.parametrize("status", [204, 205, 304])
async def test_P12_a_body_where_none_may_be(http: Http, site: Site, status: int) -> None:
    trap = reply("planted for the next request")
    site.answer("/", trap, status=status)
    site.answer("/next", "its own answer")
    page = await http.get(site.url())
    assert (page.status, page.body, page.text) == (status, b"", "")
    assert (await http.get(site.url("/next"))).text == "its own answer"


async def test_P12_an_empty_page(http: Http, site: Site) -> None:
    site.answer("/", b"")
    page = await http.page(site.url())
    assert (page.status, page.text) == (200, "")


def test_P13_retry_after() -> None:
    def parse(text: str) -> float | None:
        return parse_retry_after(text, now=1_000_000_000.0, seconds_max=3600)

    assert parse("5") == 5
    assert parse(formatdate(1_000_000_090, usegmt=True)) == 90
    assert parse(formatdate(999_999_000, usegmt=True)) == 0
    assert parse("1" + "0" * 12) == 3600
    assert parse(formatdate(9_000_000_000, usegmt=True)) == 3600
    for rubbish in ("-1", "abc", "", "1.5", "٣", "Mon, 99 Foo 2020", "nan", "5 seconds", "1e9"):
        assert parse(rubbish) is None, rubbish


@pytest.mark.parametrize("status", [429, 503])
async def test_P13_waiting_is_asked_for(http: Http, site: Site, status: int) -> None:
    site.answer("/", "later", status=status, headers={"Retry-After": "5"})
    with pytest.raises(Transient) as caught:
        await http.page(site.url())
    assert (caught.value.code, caught.value.retry_after) == (f"http_{status}", 5)
    assert (await http.get(site.url())).status == status


@pytest.mark.parametrize("status", [401, 403, 404, 410, 451, 400, 418, 300])
async def test_P14_permanent_statuses(http: Http, site: Site, status: int) -> None:
    site.answer("/", "no", status=status)
    assert await failure(http.page(site.url())) == f"permanent http_{status}"
    assert (await http.get(site.url())).text == "no"


@pytest.mark.parametrize("status", [408, 425, 500, 502, 504, 599])
def test_P15_transient_statuses(status: int) -> None:
    with pytest.raises(Transient):
        check_status(Page("http://a.test/", status))


async def test_P15_500_twice_then_200(http: Http, site: Site) -> None:
    site.answer("/", "broken", status=500)
    site.answer("/", "broken", status=500)
    site.answer("/", "mended")
    assert await failure(http.page(site.url())) == "transient http_500"
    assert await failure(http.page(site.url())) == "transient http_500"
    assert (await http.page(site.url())).text == "mended"


@pytest.mark.parametrize("name", ["good", "expired", "wrong-host"])
@pytest.mark.parametrize("trusted", [True, False])
async def test_P16_certificates(
    make_http: MakeHttp, certificates: Path, name: str, trusted: bool
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    http = make_http(ca_file=str(certificates / "ca.pem") if trusted else None)
    async with Site(tls=tls) as safe:
        safe.answer("/", "safe")
        url = safe.url(host="site.test")
        if name == "good" and trusted:
            assert (await http.get(url)).text == "safe"
        else:
            assert await failure(http.get(url)) == "permanent bad_certificate"
            assert safe.requests == []


async def test_P16_reset_in_the_handshake(make_http: MakeHttp) -> None:
    async def hello_then_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        Exchange(None, reader, writer).reset()  # type: ignore[arg-type]  # no request was read

    server = await asyncio.start_server(hello_then_reset, "127.0.0.2", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        kind = await failure(make_http().get(f"https://site.test:{port}/"))
    assert kind == "transient disconnected"


async def test_P16_plain_http_on_a_tls_port(http: Http) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(reply("what?", status=400))
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.2", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        kind = await failure(http.get(f"https://site.test:{port}/"))
    assert kind == "permanent bad_tls"


@pytest.mark.parametrize(
    ("content_type", "body", "reads"),
    [
        ("application/pdf", b"plain enough", False),
        ("image/png", b"plain enough", False),
        ("video/mp4", b"plain enough", False),
        ("text/html", b"%PDF-1.7 ...", False),  # D20
        ("text/html", b"PK\x03\x04rest", False),
        ("text/html", b"\x89PNG\r\n\x1a\nrest", False),
        ("text/html", bytes(range(32)) * 64, False),
        (None, b"<p>hi", True),
        (None, b"%PDF-1.7", False),
        ("text/html; charset=", b"<p>hi", True),
        ("application/octet-stream", b"<p>hi", True),
        ("text/html, application/pdf", b"<p>hi", True),
        ("text/html, application/pdf", b"%PDF-", False),
        ("application/xhtml+xml", b"<p>hi", True),
        ("application/atom+xml; charset=utf-8", b"<p>hi", True),
        ("TEXT/PLAIN", b"<p>hi", True),
        ("garbage", b"<p>hi", False),
    ],
)
async def test_P17_D20_types(
    http: Http, site: Site, content_type: str | None, body: bytes, reads: bool
) -> None:
    site.answer("/", body, content_type=content_type)
    if reads:
        assert (await http.page(site.url())).text == "<p>hi"
    else:
        assert await failure(http.page(site.url())) == "permanent not_text"
        page = await http.get(site.url())
        assert page.body == body
        with pytest.raises(Permanent, match="not text"):
            _ = page.text


async def test_P18_no_cookie_is_kept(http: Http, site: Site) -> None:
    site.answer("/", "x", headers=[("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2")])
    await http.get(site.url())
    await http.get(site.url())
    assert "cookie" not in site.requests[-1].headers


@pytest.mark.parametrize(
    "body",
    [
        b"FFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n",
        b"FFFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n",
        b"-1\r\nabc\r\n0\r\n\r\n",
        b"0x10\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n",
        b"3\r\nabc0\r\n\r\n",
        b"\r\nabc\r\n0\r\n\r\n",
    ],
    ids=["huge", "overflow", "minus", "hex", "crlf", "none"],
)
async def test_P19_chunks(http: Http, site: Site, body: bytes) -> None:
    site.raw("/", reply(body, headers={"Transfer-Encoding": "chunked"}))
    kind = await failure_beside_others(http, site, site.url())
    assert kind == "permanent bad_protocol"


async def test_P19_chunk_extensions(http: Http, site: Site) -> None:
    chunked = {"Transfer-Encoding": "chunked"}
    site.answer("/short", b"3;name=value\r\nabc\r\n0;x\r\nX-After: 1\r\n\r\n", headers=chunked)
    assert (await http.get(site.url("/short"))).text == "abc"
    for path, body in (
        ("/one", b"3;" + b"e" * MIB + b"\r\nabc\r\n0\r\n\r\n"),
        ("/trailers", b"0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n"),
        ("/long-trailer", b"0\r\nX: " + b"y" * MIB + b"\r\n\r\n"),
    ):
        site.raw(path, reply(body, headers=chunked))
        with memory_bounded():
            assert await failure(http.get(site.url(path))) == "permanent bad_protocol", path


@pytest.mark.parametrize(
    ("head", "more", "wanted"),
    [
        (CHUNKED, b"1;e=" + b"e" * 4000 + b"\r\na\r\n", "too_large"),
        (CHUNKED, b"1\r\na\r\n", "bad_protocol"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n", "bad_protocol"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "bad_protocol"),
    ],
    ids=["extensions", "small-chunks", "hints", "continue"],
)
async def test_R6_the_wire_is_counted_whatever_is_on_it(
    make_http: MakeHttp, site: Site, head: bytes, more: bytes, wanted: str
) -> None:
    sent = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.send(head)
        block = more * (65536 // len(more) + 1)
        while not exchange.writer.is_closing():
            await exchange.send(block)
            sent += len(block)
            await asyncio.sleep(0)

    site.script("/", flood)
    http = make_http(wire_bytes_max=MIB)
    with memory_bounded():
        kind = await failure_beside_others(http, site, site.url())
    assert kind == f"permanent {wanted}"
    assert sent < 16 * MIB  # what the sockets between hold may have been on its way


async def test_P07_a_gzip_of_very_many_parts(http: Http, site: Site) -> None:
    site.answer("/", gzip.compress(b"") * 400_000, headers={"Content-Encoding": "gzip"})
    assert await failure_beside_others(http, site, site.url()) == "permanent bad_encoding"


async def test_P20_an_answer_nobody_asked_for(make_http: MakeHttp, site: Site) -> None:
    """Bytes that arrive on a kept connection are not the next page's answer."""
    planted = asyncio.Event()

    async def and_one_more(exchange: Exchange) -> None:
        exchange.keep_open = True
        await exchange.send(reply("asked for"))
        await exchange.send(reply("planted"))
        planted.set()

    site.script("/first", and_one_more)
    for number in range(5):
        site.answer(f"/{number}", f"own {number}")
    http = make_http(connections_per_host_max=1)
    for number in range(5):
        planted.clear()
        assert (await http.get(site.url("/first"))).text == "asked for"
        await planted.wait()
        assert (await http.get(site.url(f"/{number}"))).text == f"own {number}"


async def test_P20_an_answer_before_the_request(make_http: MakeHttp, site: Site) -> None:
    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply("before you asked"))
        writer.close()

    site.answer("/", "own")
    server = await asyncio.start_server(eager, "127.0.0.2", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        http = make_http()
        try:
            assert (await http.get(f"http://127.0.0.2:{port}/")).text == "before you asked"
        except Transient as error:
            assert error.code in ("disconnected", "truncated")  # noqa: PT017 - either is fair
        assert (await http.get(site.url())).text == "own"


async def test_P21_http_1_0_without_length(http: Http, site: Site) -> None:
    site.raw("/", b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
    assert (await http.get(site.url())).text == "until the end"


async def test_P22_connections_per_host(make_http: MakeHttp, site: Site) -> None:
    for number in range(64):
        site.answer(f"/{number}", f"{number}")
    http = make_http(connections_per_host_max=2)
    pages = await asyncio.gather(*(http.get(site.url(f"/{n}")) for n in range(64)))
    assert [page.text for page in pages] == [str(n) for n in range(64)]
    assert site.open_peak == 2


async def test_P24_a_validator_is_bounded(http: Http, site: Site) -> None:
    site.answer("/", "x", headers={"ETag": '"' + "e" * 4000 + '"', "Last-Modified": "yesterday"})
    page = await http.get(site.url())
    assert page.etag is None
    assert page.last_modified == "yesterday"


async def test_conditional_get(http: Http, site: Site) -> None:
    date = "Sat, 01 Jan 2022 00:00:00 GMT"
    site.answer("/", "new", headers={"ETag": 'W/"7"', "Last-Modified": date})
    site.answer("/", status=304, headers={"ETag": 'W/"7"'})
    page = await http.page(site.url())
    again = await http.page(site.url(), etag=page.etag, last_modified=page.last_modified)
    assert (again.status, again.body) == (304, b"")
    sent = site.requests[-1].headers
    assert sent["if-none-match"] == 'W/"7"'
    assert sent["if-modified-since"] == date
    assert await failure(http.page(site.url())) == "permanent http_304"


async def test_connections_are_kept(http: Http, site: Site) -> None:
    site.answer("/", "x")
    for _ in range(5):
        await http.get(site.url())
    assert site.connections == 1


async def test_connection_refused(http: Http, site: Site) -> None:
    async with Site() as gone:
        url = gone.url()
    assert await failure(http.get(url)) == "transient connect_failed"


async def test_a_kept_connection_that_the_server_closed_is_not_a_failure(
    http: Http, site: Site
) -> None:
    """It may close one just when somebody uses it: nothing was answered, so a new one is opened."""

    async def answer_then_close(exchange: Exchange) -> None:
        exchange.keep_open = True
        await exchange.send(reply("one"))
        if await exchange.reader.read(1):  # the next request comes, and this is the answer
            exchange.writer.transport.abort()

    site.script("/one", answer_then_close)
    site.answer("/two", "two")
    assert (await http.get(site.url("/one"))).text == "one"
    assert (await http.get(site.url("/two"))).text == "two"
    assert site.connections == 2
    site.script("/never", lambda exchange: _reset(exchange))
    assert await failure(http.get(site.url("/never"))) == "transient disconnected"


async def _reset(exchange: Exchange) -> None:
    exchange.reset()


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-A", "a\r\nX-B: b"), ("X-A", "a\nb"), ("X-A\r\nX-B", "a"), ("X A", "a"), ("", "a"),
     ("X-A", "a\x00"), ("X-A", "a" * 10_000)],
)  # fmt: skip
async def test_headers_that_cannot_be_sent(http: Http, site: Site, name: str, value: str) -> None:
    kind = await failure(http.get(site.url(), headers={name: value}))
    assert kind == "permanent bad_header"
    assert site.requests == []


async def test_a_callers_header_takes_the_place_of_the_usual_one(http: Http, site: Site) -> None:
    site.answer("/", "x")
    await http.get(site.url(), headers={"accept": "application/json", "X-More": "1"})
    sent = site.requests[-1].headers
    assert (sent["accept"], sent["x-more"]) == ("application/json", "1")
    assert sent["host"] == f"127.0.0.2:{site.port}"
    assert sent["accept-encoding"] == "gzip, deflate"
