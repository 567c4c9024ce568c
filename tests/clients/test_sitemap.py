"""Sitemaps (cases D17 and D18), and URLs that come in through the API (U27)."""

import gzip

import pytest

from onceflow.clients.http import Http
from onceflow.clients.resolve import check_public
from onceflow.clients.sitemap import parse_sitemap, site_urls
from onceflow.core.errors import HandlerError, Permanent
from onceflow.testing.site import Canary, ScriptedResolver, Site

from .hostile import memory_bounded

URLSET = '<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'


def listing(*urls: str) -> str:
    return URLSET + "".join(f"<url><loc>{url}</loc></url>" for url in urls) + "</urlset>"


def index(*urls: str) -> str:
    rows = "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls)
    return f"<sitemapindex>{rows}</sitemapindex>"


def test_pages_are_read() -> None:
    body = listing(
        "http://a.test/x?a=1&amp;b=2", " http://a.test/y ", "<![CDATA[http://a.test/z]]>"
    )
    wanted = ("http://a.test/x?a=1&b=2", "http://a.test/y", "http://a.test/z")
    assert parse_sitemap(body.encode()).pages == wanted
    assert parse_sitemap(gzip.compress(body.encode())).pages == wanted
    assert parse_sitemap(b"\xef\xbb\xbfhttp://a.test/1\r\nhttp://a.test/2\n").pages == (
        "http://a.test/1",
        "http://a.test/2",
    )


def test_D17_entities_and_document_types_are_refused() -> None:
    laughs = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>' + listing("http://&b;/")
    outside = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + listing("http://a/&x;")
    for body in (laughs, outside, "<!doctype html><loc>x</loc>"):
        with pytest.raises(Permanent) as caught:
            parse_sitemap(body.encode())
        assert caught.value.code == "bad_sitemap"


async def test_D17_nothing_outside_is_asked_for(http: Http, site: Site, canary: Canary) -> None:
    address = f"http://127.0.0.1:{site.port}/x"
    entity = f'<!DOCTYPE a [<!ENTITY x SYSTEM "{address}">]>' + listing("http://a/&x;")
    site.answer("/a.xml", entity)
    site.answer("/b.xml", index(address, "file:///etc/passwd"))
    assert await site_urls(http, [site.url("/a.xml"), site.url("/b.xml"), address]) == ()
    assert canary.connections == 0


async def test_D18_an_index_of_itself(http: Http, site: Site) -> None:
    site.answer("/index.xml", index(site.url("/index.xml"), site.url("/pages.xml")))
    site.answer("/pages.xml", listing(site.url("/p"), site.url("/p#again"), "javascript:1"))
    assert await site_urls(http, [site.url("/index.xml")]) == (site.url("/p"),)
    assert site.paths() == ["/index.xml", "/pages.xml"]


async def test_D18_indexes_without_end(http: Http, site: Site) -> None:
    for number in range(100):
        children = [site.url(f"/{number * 3 + n}.xml") for n in (1, 2, 3)]
        site.answer(f"/{number}.xml", index(*children))
    assert await site_urls(http, [site.url("/0.xml")]) == ()
    assert len(site.paths()) <= 20


async def test_D18_many_urls_and_a_bomb(http: Http, site: Site) -> None:
    many = listing(*(f"http://a.test/{n}" for n in range(100_000)))
    site.answer("/many.xml", many)
    site.answer("/bomb.xml.gz", gzip.compress(bytes(200 * 2**20)), content_type="application/gzip")
    with memory_bounded():
        urls = await site_urls(http, [site.url("/bomb.xml.gz"), site.url("/many.xml")])
    assert len(urls) == 10_000


@pytest.mark.parametrize("body", [b"", b"\xff\xfe\x00", b"<loc>" * 100_000, b"<loc>x" * 100_000])
def test_rubbish_ends(body: bytes) -> None:
    assert parse_sitemap(body).pages == ()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://10.1.2.3/hook", "http://hidden.test/", "http://[::1]/"]
)
async def test_U27_private_addresses_are_refused(url: str) -> None:
    resolver = ScriptedResolver({"hidden.test": ["8.8.8.8", "192.168.1.1"]})
    with pytest.raises(HandlerError) as caught:
        await check_public(url, resolver=resolver)
    assert caught.value.code == "blocked_address"


async def test_U27_public_and_allowed_ones_pass() -> None:
    resolver = ScriptedResolver({"a.test": ["8.8.8.8"]})
    assert await check_public("HTTP://A.test/x#y", resolver=resolver) == "http://a.test/x"
    assert await check_public("http://127.0.0.2/", allow_networks=["127.0.0.2/32"])
