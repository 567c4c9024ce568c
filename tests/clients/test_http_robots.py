"""robots.txt: P23 and the everyday rules."""

import asyncio

import pytest

from onceflow.clients.http import Http
from onceflow.core.errors import Transient
from onceflow.testing.site import Canary, Exchange, Site, reply

from .conftest import MakeHttp
from .hostile import failure, memory_bounded


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def polite(make_http: MakeHttp, clock: Clock) -> Http:
    return make_http(robots=True, clock=clock)


def robots(site: Site, body: bytes | str, status: int = 200) -> None:
    site.answer("/robots.txt", body, status=status, content_type="text/plain")


async def test_rules_are_kept_and_asked_once(polite: Http, site: Site, clock: Clock) -> None:
    robots(site, "User-agent: *\nDisallow: /private\nCrawl-delay: 2\nSitemap: http://a.test/s.xml")
    site.answer("/open", "open")
    site.answer("/private", "private")
    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(polite.get(site.url("/open")))
    assert await failure(polite.get(site.url("/private"))) == "permanent robots_disallowed"
    assert [r.path for r in site.requests].count("/robots.txt") == 1
    assert "/private" not in site.paths()
    rules = await polite.robots(site.url("/"))
    assert (rules.crawl_delay, rules.sitemaps) == (2, ["http://a.test/s.xml"])
    clock.now += 3601
    await polite.get(site.url("/open"))
    assert [r.path for r in site.requests].count("/robots.txt") == 2


async def test_our_own_name_has_its_own_rules(polite: Http, site: Site) -> None:
    robots(site, "User-agent: *\nDisallow: /\n\nUser-agent: onceflow\nDisallow: /no\n")
    site.answer("/yes", "yes")
    assert (await polite.get(site.url("/yes"))).text == "yes"
    assert await failure(polite.get(site.url("/no"))) == "permanent robots_disallowed"


async def test_a_redirect_is_asked_about_too(polite: Http, site: Site) -> None:
    robots(site, "User-agent: *\nDisallow: /private")
    site.redirect("/go", "/private")
    assert await failure(polite.get(site.url("/go"))) == "permanent robots_disallowed"


async def test_robots_can_be_left_out_for_an_api(polite: Http, site: Site) -> None:
    robots(site, "User-agent: *\nDisallow: /")
    site.answer("/api", "data")
    assert (await polite.get(site.url("/api"), robots=False)).text == "data"


@pytest.mark.parametrize("status", [404, 401, 403, 410])
async def test_P23_missing_allows(polite: Http, site: Site, status: int) -> None:
    robots(site, "User-agent: *\nDisallow: /", status=status)
    site.answer("/", "open")
    assert (await polite.get(site.url())).text == "open"


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_P23_5xx_allows_nothing_for_now(
    polite: Http, site: Site, clock: Clock, status: int
) -> None:
    robots(site, "", status=status)
    robots(site, "")
    site.answer("/", "open")
    for _ in range(2):
        with pytest.raises(Transient) as caught:
            await polite.get(site.url())
        assert (caught.value.code, caught.value.retry_after) == ("robots_unavailable", 60)
    assert [r.path for r in site.requests] == ["/robots.txt"]
    clock.now += 61
    assert (await polite.get(site.url())).text == "open"


async def test_P23_disallow_all(polite: Http, site: Site) -> None:
    robots(site, b"\xef\xbb\xbfUser-agent: *\nDisallow: /")
    assert await failure(polite.get(site.url())) == "permanent robots_disallowed"


async def test_P23_500_mib(polite: Http, site: Site) -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\n\r\nUser-agent: *\nDisallow: /no\n")
        for _ in range(500 * 16):
            if exchange.writer.is_closing():
                return
            await exchange.send(b"#" + b"x" * 65534 + b"\n")
            await asyncio.sleep(0)

    site.script("/robots.txt", flood)
    site.answer("/yes", "yes")
    with memory_bounded():
        assert (await polite.get(site.url("/yes"))).text == "yes"
    assert await failure(polite.get(site.url("/no"))) == "permanent robots_disallowed"


async def test_P23_redirect_loop_means_no_rules(polite: Http, site: Site) -> None:
    site.redirect("/robots.txt", "/robots2.txt")
    site.redirect("/robots2.txt", "/robots.txt")
    site.answer("/", "open")
    assert (await polite.get(site.url())).text == "open"


async def test_P23_redirect_to_the_canary(polite: Http, site: Site, canary: Canary) -> None:
    site.redirect("/robots.txt", f"http://127.0.0.1:{site.port}/robots.txt")
    assert await failure(polite.get(site.url())) == "permanent blocked_address"
    assert canary.connections == 0


async def test_P23_invalid_utf8(polite: Http, site: Site) -> None:
    robots(site, b"\xff\xfe\x80 rubbish \x00\nUser-agent: *\nDisallow: /no\xc3\x28\nDisallow: /x\n")
    site.answer("/yes", "yes")
    assert (await polite.get(site.url("/yes"))).text == "yes"
    assert await failure(polite.get(site.url("/x"))) == "permanent robots_disallowed"


async def test_P23_a_slow_robots_txt_counts_into_the_fetch(make_http: MakeHttp, site: Site) -> None:
    site.script("/robots.txt", Exchange.gone)
    http = make_http(robots=True, fetch_seconds=0.1)
    assert await failure(http.get(site.url())) == "transient timeout"


async def test_absurd_crawl_delays_are_bounded(polite: Http, site: Site) -> None:
    robots(site, "User-agent: *\nCrawl-delay: 99999999\n")
    assert (await polite.robots(site.url())).crawl_delay == 60
    async with Site() as other:
        other.raw("/robots.txt", reply("User-agent: *\nCrawl-delay: -5\n"))
        assert (await polite.robots(other.url())).crawl_delay is None
