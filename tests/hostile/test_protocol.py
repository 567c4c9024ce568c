"""Section 3 of the hostile cases: what a server does to the fetcher."""

import asyncio
import gzip
import random
import ssl
import time
import zlib
from email.utils import formatdate
from pathlib import Path

import pytest

import onceflow
from onceflow import Flow
from onceflow.testing.site import Exchange, Script, Site, reply

from .conftest import MakeHttp
from .kit import MIB, Bench, LoopClock, article, pipeline

CHUNKED = {"Transfer-Encoding": "chunked"}


async def outcomes(
    run: Bench, site: Site, wanted: dict[str, str], **options: object
) -> dict[str, list[str]]:
    """Each path ends as it is wanted to; a permanent failure after one attempt. The kinds."""
    urls = {path: site.url(path) for path in wanted}
    ended = await run(*urls.values(), beside=site, **options)  # type: ignore[arg-type]  # passed on
    assert {path: ended.outcome(url) for path, url in urls.items()} == wanted
    return {path: ended.kinds(url) for path, url in urls.items()}


async def once(run: Bench, site: Site, wanted: dict[str, str], **options: object) -> None:
    """As `outcomes`, and nothing was tried twice."""
    for path, kinds in (await outcomes(run, site, wanted, **options)).items():
        assert kinds.count("claimed") <= 2, path  # once for each stage it came to
        assert "retried" not in kinds, path


def flood(head: bytes, block: bytes) -> Script:
    async def send(exchange: Exchange) -> None:
        await exchange.send(head)
        while not exchange.writer.is_closing():
            await exchange.send(block)
            await asyncio.sleep(0)

    return send


async def ends_in_time(
    run: Bench, site: Site, clock: LoopClock, script: Script, *, hold: int = 0
) -> None:
    """The whole fetch takes 30 s by the clock, whatever trickles in, and not 36."""
    site.script("/slow", script)
    url = site.url("/slow")

    async def wait(flow: Flow) -> None:
        await clock.passes(28)
        assert (await flow.item("summarize", url)).state == "scraping"
        await clock.passes(7)

    ended = await run(url, beside=site, attempts=1, then=wait)
    assert ended.outcome(url) == "failed timeout"
    (failed,) = [event for event in ended.events if event.kind == "failed"]
    assert failed.data["permanent"] is False


async def test_P01_never_answers(run: Bench, site: Site, clock: LoopClock) -> None:
    await ends_in_time(run, site, clock, Exchange.gone)


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\nX-", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-"],
    ids=["status", "header", "interim"],
)
async def test_P02_one_byte_of_header_a_second(
    run: Bench, site: Site, clock: LoopClock, head: bytes
) -> None:
    async def trickle(exchange: Exchange) -> None:
        await exchange.send(head)
        for byte in b"HTTP/1.1 200 OK and so on, without an end to it" if not head else b"a" * 100:
            await exchange.send(bytes([byte]))
            await asyncio.sleep(1)

    await ends_in_time(run, site, clock, trickle)


@pytest.mark.parametrize(
    ("headers", "byte"),
    [(b"", b"a"), (b"Content-Length: 1000\r\n", b"a"),
     (b"Transfer-Encoding: chunked\r\n", b"1\r\na\r\n")],
    ids=["until-closed", "length", "chunked"],
)  # fmt: skip
async def test_P03_one_byte_of_body_a_second(
    run: Bench, site: Site, clock: LoopClock, headers: bytes, byte: bytes
) -> None:
    async def trickle(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + headers + b"\r\n")
        for _ in range(100):
            await exchange.send(byte)
            await asyncio.sleep(1)

    await ends_in_time(run, site, clock, trickle)


async def test_P04_a_body_without_end(run: Bench, site: Site) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
    site.script("/plain", flood(head + b"\r\n", b"x" * 65536))
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    site.script("/chunked", flood(chunked, b"10000\r\n" + b"x" * 65536 + b"\r\n"))
    site.script("/small", flood(chunked, b"1\r\nx\r\n" * 10_000))
    site.script("/extensions", flood(chunked, (b"1;" + b"e" * 4000 + b"\r\nx\r\n") * 16))
    site.script("/interim", flood(b"", b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" * 1000))
    squeeze = zlib.compressobj(wbits=31)
    start = squeeze.compress(b"<p>") + squeeze.flush(zlib.Z_FULL_FLUSH)
    more = squeeze.compress(random.Random(1).randbytes(65536)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    site.script("/gzip", flood(head + b"Content-Encoding: gzip\r\n\r\n" + start, more))
    site.script("/404", flood(head.replace(b"200 OK", b"404 No") + b"\r\n", b"x" * 65536))
    # One by one: each may take its own 10 MiB, and more than one is not what is looked at.
    for path in ("/plain", "/chunked", "/extensions", "/gzip", "/404"):
        await once(run, site, {path: "failed too_large"})
    for path in ("/small", "/interim"):
        await once(run, site, {path: "failed bad_protocol"})


async def test_P05_announced_10_tib(run: Bench, site: Site) -> None:
    read = asyncio.Event()

    async def announce(exchange: Exchange) -> None:
        await exchange.send(reply(b"a", headers={"Content-Length": str(10 * 2**40)}))
        await exchange.gone()  # before reading: the client leaves without another byte
        read.set()

    site.script("/length", announce)
    site.answer("/just", b"a", headers={"Content-Length": str(10 * MIB + 1)})
    site.raw("/chunk", reply(b"A0000000000\r\na", headers=CHUNKED))
    site.raw("/absurd", reply(b"a", headers={"Content-Length": "9" * 40}))
    wanted = dict.fromkeys(["/length", "/just", "/chunk"], "failed too_large")
    await once(run, site, wanted | {"/absurd": "failed bad_protocol"})
    await read.wait()


async def test_P06_ends_in_the_middle(run: Bench, site: Site) -> None:
    page = article("cut").encode()
    whole = gzip.compress(page)
    site.raw("/length", reply(page[:500], headers={"Content-Length": "1000"}))
    site.raw("/chunked", reply(b"%x\r\n%s" % (len(page), page[:500]), headers=CHUNKED))
    site.raw("/no-last-chunk", reply(b"%x\r\n%s\r\n" % (len(page), page), headers=CHUNKED))
    site.answer("/gzip", whole[: len(whole) // 2], headers={"Content-Encoding": "gzip"})
    site.answer("/no-sum", whole[:-4], headers={"Content-Encoding": "gzip"})

    async def reset(exchange: Exchange) -> None:
        await exchange.send(reply(page[:500], headers={"Content-Length": "1000"}))
        exchange.reset()

    paths = ["/length", "/chunked", "/no-last-chunk", "/gzip", "/no-sum"]
    wanted = dict.fromkeys(paths, "failed truncated")
    urls = [site.url(path) for path in paths]
    ended = await run(*urls, beside=site, attempts=2)
    assert {path: ended.outcome(site.url(path)) for path in paths} == wanted
    assert all(ended.kinds(url).count("claimed") == 2 for url in urls), "it may work later"
    assert not any(url in ended.pages for url in urls), "nothing of it is stored"
    site.script("/reset", reset)
    ended = await run(site.url("/reset"), beside=site, attempts=2)
    assert ended.outcome(site.url("/reset")) in ("failed truncated", "failed disconnected")
    assert site.url("/reset") not in ended.pages


def bomb(mebibytes: int) -> bytes:
    """Gzip members of 32 MiB of zeros each, after one another: to a reader one stream."""
    return gzip.compress(bytes(32 * MIB)) * (mebibytes // 32)


async def test_P07_a_bomb_of_1_gib(run: Bench, site: Site) -> None:
    squeeze = zlib.compressobj(9, wbits=31)
    one_member = b"".join(squeeze.compress(bytes(MIB)) for _ in range(1024)) + squeeze.flush()
    assert len(one_member) < 2 * MIB
    site.answer("/one", one_member, headers={"Content-Encoding": "gzip"})
    site.answer("/many", bomb(1024), headers={"Content-Encoding": "x-gzip"})
    raw = zlib.compress(bytes(64 * MIB), 9)
    site.answer("/deflate", raw, headers={"Content-Encoding": "deflate"})
    site.answer("/404", one_member, headers={"Content-Encoding": "gzip"}, status=404)
    paths = ["/one", "/many", "/deflate", "/404"]
    site.answer("/empty", gzip.compress(b"") * 400_000, headers={"Content-Encoding": "gzip"})
    wanted = dict.fromkeys(paths, "failed too_large") | {"/empty": "failed bad_encoding"}
    await once(run, site, wanted)


async def test_P08_a_bomb_in_a_bomb(run: Bench, site: Site) -> None:
    ten = bomb(1024) * 10
    inner, deep = gzip.compress(ten), gzip.compress(gzip.compress(ten))
    site.answer("/two", inner, headers={"Content-Encoding": "gzip, gzip"})
    site.answer("/lines", inner, headers=[("Content-Encoding", "gzip")] * 2)
    site.answer("/mixed", zlib.compress(ten), headers={"Content-Encoding": "gzip, deflate"})
    site.answer("/three", deep, headers={"Content-Encoding": "gzip,gzip,gzip"})
    site.answer("/three-lines", deep, headers=[("Content-Encoding", "gzip")] * 3)
    large, many = "failed too_large", "failed bad_encoding"
    wanted = {"/two": large, "/lines": large, "/mixed": large, "/three": many, "/three-lines": many}
    await once(run, site, wanted)


async def test_P09_codings_that_are_not(run: Bench, site: Site) -> None:
    damaged = bytearray(gzip.compress(random.Random(1).randbytes(50_000)))
    damaged[len(damaged) // 2] ^= 0xFF
    wrong_sum = bytearray(gzip.compress(article("x").encode()))
    wrong_sum[-6] ^= 0xFF
    bodies: dict[str, tuple[str | bytes, str]] = {
        "/plain": ("just text", "gzip"),
        "/damaged": (bytes(damaged), "gzip"),
        "/sum": (bytes(wrong_sum), "gzip"),
        "/deflate": ("<p>just text", "deflate"),
        "/unknown": ("x", "compress"),
        "/brotli": ("x", "br"),
        "/zstd": ("x", "zstd"),
        "/odd": ("x", "gzip;q=1"),
        "/long": ("x", "a" * 5000),
        "/half": (gzip.compress(b"plain"), "gzip, gzip"),
    }
    for path, (body, coding) in bodies.items():
        site.answer(path, body, headers={"Content-Encoding": coding})
    await once(run, site, dict.fromkeys(bodies, "failed bad_encoding"))


async def test_P10_headers(run: Bench, site: Site) -> None:
    heads = {
        "/long": b"X-Long: " + b"a" * MIB + b"\r\n",
        "/name": b"a" * 10_000 + b": x\r\n",
        "/many": b"".join(b"X-%d: a\r\n" % n for n in range(10_000)),
        "/101": b"".join(b"X-%d: a\r\n" % n for n in range(101)),
        "/block": b"".join(b"X-%d: %s\r\n" % (n, b"a" * 4000) for n in range(40)),
        "/colon": b"no colon here\r\n",
        "/nul": b"X-Nul: a\x00b\r\n",
        "/space": b"X Space: a\r\n",
        "/before": b"X-Before : a\r\n",
        "/empty": b": a\r\n",
        "/two": b"Content-Length: 5\r\nContent-Length: 6\r\n",
        "/list": b"Content-Length: 5, 6\r\n",
        "/negative": b"Content-Length: -5\r\n",
        "/plus": b"Content-Length: +5\r\n",
        "/hex": b"Content-Length: 0x5\r\n",
        "/coding": b"Transfer-Encoding: gzip\r\nContent-Length: 5\r\n",
        "/both": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "/gzip": b"Transfer-Encoding: gzip, chunked\r\n",
        "/twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "/unknown": b"Transfer-Encoding: xchunked\r\n",
    }
    for path, head in heads.items():
        site.raw(path, b"HTTP/1.1 200 OK\r\n" + head + b"\r\n5\r\nhello\r\n0\r\n\r\n")
    await once(run, site, dict.fromkeys(heads, "failed bad_protocol"))


async def test_P11_status_lines(run: Bench, site: Site) -> None:
    lines = [b"HTTP/1.1 000 X", b"HTTP/1.1 99 X", b"HTTP/1.1 999 X", b"HTTP/1.1 600 X"]
    lines += [b"HTTP/9.9 200 OK", b"Content-Type: text/html", b"SSH-2.0-OpenSSH_9.2", b"HTTP/1.1"]
    lines += [b"\x16\x03\x01\x02\x00\x01", b"HTTP/1.1 2x0 OK", b"HTTP/1.1 -200 OK", b"RTSP/1.0 200"]
    lines += [
        b"HTTP/1.1 2000 OK",
        b"<html><body>hello",
        b"220 mail.test ESMTP",
        b"HTTP/2 200",
        b"\0",
    ]
    for number, line in enumerate(lines):
        site.raw(f"/{number}", line + b"\r\nContent-Length: 0\r\n\r\n")
    wanted = dict.fromkeys((f"/{n}" for n in range(len(lines))), "failed bad_protocol")
    site.raw(
        "/101", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    )
    await once(run, site, wanted | {"/101": "failed bad_protocol"})


async def test_P12_a_body_where_none_may_be(run: Bench, site: Site) -> None:
    trap = reply(article("planted"))
    for status in (204, 205, 304):
        site.answer(f"/{status}", trap, status=status)
    site.answer("/empty", b"")
    paths = {"/204": "completed", "/205": "completed", "/304": "failed http_304"}
    paths["/empty"] = "completed"
    urls = {path: site.url(path) for path in paths}
    ended = await run(*urls.values(), beside=site)
    assert {path: ended.outcome(url) for path, url in urls.items()} == paths
    for path in ("/204", "/205", "/empty"):
        assert "nothing to summarize" in ended.summaries[urls[path]]["note"]
        assert ended.summaries[urls[path]]["model"] is None
    assert "planted" not in ended.text


async def waits(run: Bench, site: Site, *paths: str) -> dict[str, float]:
    """For how many seconds each item waits after its first attempt."""
    table = pipeline(run.http, run.extractor, run.llm, backoff_seconds=2.0, attempts=3, lanes=False)
    urls = {site.url(path): path for path in paths}
    found: dict[str, float] = {}
    async with onceflow.open(run.folder / "waits.db", table) as flow:
        await flow.add(table, list(urls))
        async for event in flow.run_until_idle():
            if event.kind == "retried":
                assert event.key is not None
                found[urls[event.key]] = event.data["delay_ms"] / 1000
                assert (await flow.item(table, event.key)).state == "idle"
            if len(found) == len(urls):
                break
        await flow.stop(grace_seconds=0)
    return found


async def test_P13_waiting_when_asked_to(run: Bench, site: Site) -> None:
    values = {
        "5": (5, 5.6),
        formatdate(time.time() + 600, usegmt=True): (480, 667),  # less what went by meanwhile
        "-1": (1, 2),
        "1" + "0" * 12: (900, 1000),
        "abc": (1, 2),
        "": (1, 2),
        "1.5": (1, 2),
        "nan": (1, 2),
        "Mon, 99 Foo 2020": (1, 2),
        formatdate(0, usegmt=True): (1, 2),
    }
    paths: dict[str, tuple[float, float]] = {}
    for status in (429, 503):
        for number, (value, bounds) in enumerate(values.items()):
            path = f"/{status}/{number}"
            site.answer(path, "later", status=status, headers={"Retry-After": value})
            paths[path] = bounds
    found = await waits(run, site, *paths)
    for path, (low, high) in paths.items():
        assert low <= found[path] <= high, path


async def test_P14_permanent_statuses(run: Bench, site: Site) -> None:
    statuses = [401, 402, 403, 404, 405, 410, 418, 451, 400, 300, 206]
    for status in statuses:
        site.answer(f"/{status}", article("no"), status=status)
    await once(run, site, {f"/{status}": f"failed http_{status}" for status in statuses})


async def test_P15_500_twice_then_200(run: Bench, site: Site) -> None:
    for status in (500, 502, 504):
        site.answer(f"/{status}", "broken", status=status)
        site.answer(f"/{status}", "broken", status=status)
        site.answer(f"/{status}", article("mended"))
        site.answer(f"/ever/{status}", "broken", status=status)
    mended = {f"/{status}": "completed" for status in (500, 502, 504)}
    broken = {f"/ever/{status}": f"failed http_{status}" for status in (500, 502, 504)}
    kinds = await outcomes(run, site, mended | broken)
    assert all(kinds[path].count("retried") == 2 for path in (*mended, *broken))
    site.answer("/later", "broken", status=500)
    (first,) = (await waits(run, site, "/later")).values()
    assert 1 <= first <= 2  # backing off: two seconds, of which the spread takes up to half


def tls_of(certificates: Path, name: str) -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return tls


@pytest.mark.parametrize("name", ["good", "expired", "wrong-host"])
async def test_P16_certificates(
    run: Bench, plain: Site, make_http: MakeHttp, certificates: Path, name: str
) -> None:
    async with Site(tls=tls_of(certificates, name)) as safe:
        safe.answer("/", article("safe"))
        url = safe.url("/", host="site.test")
        trusting = make_http(ca_file=str(certificates / "ca.pem"))
        ended = await run(url, http=trusting)
        wanted = "completed" if name == "good" else "failed bad_certificate"
        assert ended.outcome(url) == wanted
        asked = len(safe.requests)
        ended = await run(url)  # signed by itself, as far as this one knows
        assert ended.outcome(url) == "failed bad_certificate"
        assert "retried" not in ended.kinds(url)
        assert len(safe.requests) == asked, "nothing was said to it"


async def hello_to(certificates: Path) -> bytes:
    """What a real server answers to a client's first words, up to and with its certificate."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs, ours = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(theirs, outgoing, server_hostname="site.test")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(outgoing.read())
    server = tls_of(certificates, "good").wrap_bio(incoming, ours, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    return ours.read()


@pytest.mark.parametrize("part", ["nothing", "half", "all"])
@pytest.mark.parametrize("how", ["reset", "close"])
async def test_P16_cut_in_the_handshake(
    run: Bench, certificates: Path, part: str, how: str
) -> None:
    words = await hello_to(certificates)
    said = {"nothing": b"", "half": words[:40], "all": words}[part]

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        exchange = Exchange(None, reader, writer)  # type: ignore[arg-type]  # no request was read
        await exchange.send(said)
        if how == "reset":
            exchange.reset()
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.2", 0)
    async with server:
        url = f"https://site.test:{server.sockets[0].getsockname()[1]}/"
        ended = await run(url, attempts=2)
    if part == "all":
        # The words of another handshake: to the client they are simply wrong.
        assert ended.outcome(url) in ("failed bad_tls", "failed disconnected")
    else:
        assert ended.outcome(url) == "failed disconnected"
        assert ended.kinds(url).count("claimed") == 2


async def test_P17_types(run: Bench, site: Site) -> None:
    page = article("typed").encode()
    cases: dict[str, tuple[str | None, bytes, bool]] = {
        "/pdf": ("application/pdf", page, False),
        "/png": ("image/png", page, False),
        "/video": ("video/mp4", page, False),
        "/zip": ("application/zip", page, False),
        "/garbage": ("garbage", page, False),
        "/missing": (None, page, True),
        "/missing-pdf": (None, b"%PDF-1.7 " + page, False),
        "/charset": ("text/html; charset=", page, True),
        "/two": ("text/html, application/pdf", page, True),
        "/two-pdf": ("text/html, application/pdf", b"%PDF-1.7", False),
        "/octets": ("application/octet-stream", page, True),
        "/xhtml": ("application/xhtml+xml", page, True),
        "/text": ("TEXT/PLAIN", page, True),
        "/odd": ('text/html; charset="; boundary=', page, True),
        "/long": ("text/html;" + "a" * 7000, page, True),
    }
    for path, (kind, body, _) in cases.items():
        site.answer(path, body, content_type=kind)
    site.raw(
        "/lines", reply(page, headers=[("Content-Type", "text/html"), ("Content-Type", "a/b")])
    )
    wanted = {
        path: "completed" if reads else "failed not_text" for path, (_, _, reads) in cases.items()
    }
    await once(run, site, wanted | {"/lines": "completed"})


async def test_P18_cookies(run: Bench, site: Site) -> None:
    cookies = b"".join(b"Set-Cookie: c%d=1\r\n" % n for n in range(200_000))
    site.raw("/many", b"HTTP/1.1 200 OK\r\n" + cookies + b"\r\nhello")
    site.answer(
        "/few", article("few"), headers=[("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2")]
    )
    site.redirect("/go", "/few")
    wanted = {"/many": "failed bad_protocol", "/few": "completed", "/go": "completed"}
    await once(run, site, wanted)
    await once(run, site, {"/few": "completed"})
    assert not any("cookie" in request.headers for request in site.requests)


async def test_P19_chunks(run: Bench, site: Site) -> None:
    bodies = {
        "/huge": b"FFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n",
        "/overflow": b"FFFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n",
        "/sign": b"8000000000000003\r\nabc\r\n0\r\n\r\n",
        "/wrap": b"10000000000000003\r\nabc\r\n0\r\n\r\n",
        "/minus": b"-1\r\nabc\r\n0\r\n\r\n",
        "/plus": b"+3\r\nabc\r\n0\r\n\r\n",
        "/hex": b"0x10\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n",
        "/crlf": b"3\r\nabc0\r\n\r\n",
        "/longer": b"3\r\nabcdef\r\n0\r\n\r\n",
        "/none": b"\r\nabc\r\n0\r\n\r\n",
        "/space": b" 3\r\nabc\r\n0\r\n\r\n",
        "/letters": b"xyz\r\nabc\r\n0\r\n\r\n",
        "/extension": b"3;" + b"e" * 100_000 + b"\r\nabc\r\n0\r\n\r\n",
        "/trailers": b"3\r\nabc\r\n0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        "/not": b"<html>not chunked at all</html>",
    }
    for path, body in bodies.items():
        site.raw(path, reply(body, headers=CHUNKED))
    await once(run, site, dict.fromkeys(bodies, "failed bad_protocol"))
    page = article("good").encode()
    good = b"%X;a=b\r\n%s\r\n%x \r\n%s\r\n0\r\nX: y\r\n\r\n" % (
        100,
        page[:100],
        len(page) - 100,
        page[100:],
    )
    site.answer("/good", good, headers=CHUNKED)
    await once(run, site, {"/good": "completed"})


async def test_P20_answers_nobody_asked_for(run: Bench, site: Site, make_http: MakeHttp) -> None:
    """On a kept connection they are never the next page's answer: twenty pages in turn."""

    async def and_one_more(exchange: Exchange) -> None:
        exchange.keep_open = True
        await exchange.send(reply(article("asked")))
        await exchange.send(reply(article("planted")))

    paths = {}
    for number in range(20):
        site.script(f"/trap/{number}", and_one_more)
        site.answer(f"/own/{number}", article(f"own {number}"))
        paths[f"/trap/{number}"] = paths[f"/own/{number}"] = "completed"
    http = make_http(connections_per_host_max=1)
    urls = [site.url(path) for path in paths]
    ended = await run(*urls, beside=site, http=http, host_limit=1)
    for number in range(20):
        assert f"room number own {number} " in ended.pages[site.url(f"/own/{number}")]["text"]
        assert "room number asked " in ended.pages[site.url(f"/trap/{number}")]["text"]
    assert "planted" not in ended.text


async def test_P20_an_answer_before_the_request(run: Bench, plain: Site) -> None:
    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(article("eager")))
        writer.close()

    server = await asyncio.start_server(eager, "127.0.0.2", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        urls = [f"http://127.0.0.2:{port}/{number}" for number in range(10)]
        ended = await run(*urls, attempts=1)
    # Whether its words come before ours are on the way is the network's choice: then they are an
    # answer, or the connection is gone. Nobody else gets them: the run has looked at the ten.
    assert {ended.outcome(url) for url in urls} <= {"completed", "failed disconnected"}


async def test_P21_http_1_0_without_length(run: Bench, site: Site) -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n"
    site.raw("/plain", head + b"\r\n" + article("old").encode())
    site.raw("/kept", head + b"Connection: keep-alive\r\n\r\n" + article("old").encode())
    site.raw("/lf", (head + b"\r\n").replace(b"\r\n", b"\n") + article("old").encode())
    await once(run, site, {"/plain": "completed", "/kept": "completed", "/lf": "completed"})


async def test_P22_sixty_four_items_on_two_connections(
    run: Bench, site: Site, make_http: MakeHttp
) -> None:
    now = peak = 0

    async def counted(exchange: Exchange) -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        exchange.keep_open = True
        for _ in range(5):
            await asyncio.sleep(0)
        now -= 1
        await exchange.send(reply(article("counted")))

    for number in range(64):
        site.script(f"/{number}", counted)
    urls = [site.url(f"/{number}") for number in range(64)]
    ended = await run(*urls, beside=site, host_limit=2)  # two is the default
    assert {ended.outcome(url) for url in urls} == {"completed"}
    assert peak <= 2
    assert site.open_peak == 2


async def test_P23_robots_txt(run: Bench, plain: Site, make_http: MakeHttp) -> None:
    http = make_http(robots=True)
    plain.answer("/robots.txt", b"User-agent: *\nAllow: /\n")
    text = b"User-agent: *\nDisallow: /page\n"

    async def judged(body: bytes | Script, status: int = 200) -> str:
        async with Site() as site:
            site.answer("/page", article("page"))
            if isinstance(body, bytes):
                site.answer("/robots.txt", body, status=status, content_type="text/plain")
            else:
                site.script("/robots.txt", body)
            ended = await run(site.url("/page"), http=http, attempts=1)
            return ended.outcome(site.url("/page"))

    async def loop(exchange: Exchange) -> None:
        exchange.keep_open = True
        await exchange.send(reply(status=302, headers={"Location": "/robots.txt"}))

    async def to_the_canary(exchange: Exchange) -> None:
        location = exchange.request.headers["host"].replace("127.0.0.2", "127.0.0.1")
        await exchange.send(
            reply(status=302, headers={"Location": f"http://{location}/robots.txt"})
        )

    head = b"HTTP/1.1 200 OK\r\n\r\n"
    assert (
        await judged(flood(head + text, b"#" + b"x" * 65534 + b"\n")) == "failed robots_disallowed"
    )
    assert await judged(flood(head, b"User-agent: *\nDisallow: /x\n" * 2000)) == "completed"
    assert await judged(b"", 500) == "failed robots_unavailable"
    assert await judged(b"", 503) == "failed robots_unavailable"
    assert await judged(b"", 429) == "failed robots_unavailable"
    assert await judged(loop) == "completed"
    assert await judged(to_the_canary) == "failed blocked_address"
    assert await judged(b"\xff\xfe\x80 rubbish \x00\n" + text) == "failed robots_disallowed"
    assert await judged(b"\xff\xfe\x80 rubbish \x00\xc3\x28") == "completed"
    assert await judged(b"\xef\xbb\xbfUser-agent: *\nDisallow: /") == "failed robots_disallowed"
    assert await judged(b"", 404) == "completed"
    stars = b"User-agent: *\nDisallow: /" + b"*a" * 5000 + b"$\n"
    assert await judged(stars) == "completed"
    bombed = bomb(64)

    async def gzipped(exchange: Exchange) -> None:
        await exchange.send(reply(bombed, headers={"Content-Encoding": "gzip"}))

    assert await judged(gzipped) == "completed"


async def test_P24_validators(run: Bench, site: Site) -> None:
    for path, head in {
        "/etag": b'ETag: "' + b"e" * MIB + b'"',
        "/date": b"Last-Modified: " + b"m" * MIB,
    }.items():
        site.raw(path, b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\nhello")
    page = article("validated")
    site.answer("/4k", page, headers={"ETag": '"' + "e" * 4000 + '"', "Last-Modified": "m" * 4000})
    site.answer("/short", page, headers={"ETag": '"e"'})
    urls = {path: site.url(path) for path in ("/etag", "/date", "/4k", "/short")}
    ended = await run(*urls.values(), beside=site)
    assert [ended.outcome(url) for url in urls.values()] == [
        *("failed bad_protocol", "failed bad_protocol", "completed", "completed")
    ]
    assert ended.pages[urls["/4k"]]["etag"] is None
    assert ended.pages[urls["/4k"]]["last_modified"] is None
    assert ended.pages[urls["/short"]]["etag"] == '"e"'
