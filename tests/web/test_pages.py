"""The add-article page in a real browser: alive, safe to click twice, and whole without scripts."""

import random
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.cli.loopback import Loopback
from tests.pipelines.conftest import article
from tests.web.browser import Watch, browser
from tests.web.kit import Server, served


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=90_000)
    with browser() as running:
        yield running


@pytest.fixture
def server(tmp_path: Path, world: Loopback) -> Iterator[Server]:
    with served(tmp_path, str(tmp_path / "a.db"), world=world) as running:
        yield running


def new_context(chromium: Browser, **options: object) -> BrowserContext:
    context = chromium.new_context(reduced_motion="reduce", **options)  # type: ignore[arg-type]
    context.set_default_timeout(90_000)
    return context


def lasting_port() -> int:
    """A free port that no outgoing connection gets while nobody listens there for a moment."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


def add(page: Page, server: Server, urls: list[str]) -> None:
    page.goto(f"{server.url}/admin/add-article")
    page.fill("#urls", "\n".join(urls))
    page.click("#add button")
    page.wait_for_url("**ids=**")


def ids_of(page: Page) -> list[int]:
    return [int(id) for id in (page.get_attribute("#cards", "data-ids") or "").split(",")]


def test_three_articles_from_their_urls_to_their_stories(
    chromium: Browser, server: Server, world: Loopback
) -> None:
    with new_context(chromium) as context:
        watch = Watch(context, server.url)
        page = context.new_page()
        add(page, server, [*world.articles(3), "no address"])
        expect(page.locator(".said").first).to_have_text("3 added.")
        expect(page.locator(".refused")).to_contain_text("no address has no scheme")
        ids = ids_of(page)
        assert len(ids) == 3
        for id in ids:
            expect(page.locator(f"#job-{id} .state")).to_contain_text("READY_TO_GENERATE")
        expect(page.locator("#live")).to_have_text("● live")
        page.dblclick(f"#job-{ids[0]} .act button")
        expect(page.locator(f"#job-{ids[0]} .state")).to_contain_text("SAVED")
        expect(page.locator(f"#job-{ids[0]} .story h4")).to_have_text("Bread")
        page.click(f"#job-{ids[0]} .story summary")
        page.click(f"#job-{ids[1]} .act button")
        expect(page.locator(f"#job-{ids[1]} .state")).to_contain_text("SAVED")
        expect(page.locator(f"#job-{ids[0]} .story details")).to_have_attribute("open", "")
        assert (watch.errors, watch.foreign) == ([], [])
    assert world.summarized["story"] == 2


def test_a_double_click_and_a_reload_add_nothing_twice(
    chromium: Browser, server: Server, world: Loopback
) -> None:
    with new_context(chromium) as context:
        watch = Watch(context, server.url)
        page = context.new_page()
        page.goto(f"{server.url}/admin/add-article")
        page.fill("#urls", world.articles(1)[0])
        page.dblclick("#add button")
        page.wait_for_url("**ids=**")
        [id] = ids_of(page)
        page.reload()
        page.reload()
        expect(page.locator(f"#job-{id} .state")).to_contain_text("READY_TO_GENERATE")
        page.goto(f"{server.url}/admin/add-article")
        expect(page.locator("article")).to_have_count(1)
        assert (watch.errors, watch.foreign) == ([], [])


def test_a_failure_shows_its_reason_and_can_be_tried_again(
    chromium: Browser, server: Server, world: Loopback
) -> None:
    with new_context(chromium) as context:
        page = context.new_page()
        add(page, server, [world.site.url("/comes-later")])
        expect(page.locator(".error")).to_contain_text("answered 404")
        expect(page.locator(".error")).to_contain_text("http_404, permanent")
        world.site.answer("/comes-later", article("bread"))
        page.click("text=Try again")
        expect(page.locator("article .state")).to_contain_text("READY_TO_GENERATE")


def test_the_page_survives_a_server_that_is_killed_and_started_again(
    chromium: Browser, tmp_path: Path, world: Loopback
) -> None:
    database = str(tmp_path / "a.db")
    url = world.articles(1)[0]
    with new_context(chromium) as context:
        page = context.new_page()
        port = lasting_port()
        with served(tmp_path, database, world=world, port=port) as first:
            add(page, first, [url])
            expect(page.locator("article .state")).to_contain_text("READY_TO_GENERATE")
            expect(page.locator("#live")).to_have_text("● live")
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(30)
            expect(page.locator("#live")).not_to_have_text("● live")
        with served(tmp_path, database, world=world, port=port):
            expect(page.locator("#live")).to_have_text("● live")
            page.click("article .act button")
            expect(page.locator("article .state")).to_contain_text("SAVED")


def test_without_javascript_it_is_a_plain_form(
    chromium: Browser, server: Server, world: Loopback
) -> None:
    with new_context(chromium, java_script_enabled=False) as context:
        page = context.new_page()
        add(page, server, world.articles(1))
        expect(page.locator("article .state")).to_contain_text("READY_TO_GENERATE")
        page.click("article .act button")
        expect(page.locator("article .state")).to_contain_text("SAVED")
        expect(page.locator("article .story h4")).to_have_text("Bread")


def test_where_no_events_come_the_page_asks_by_itself(
    chromium: Browser, server: Server, world: Loopback
) -> None:
    with new_context(chromium) as context:
        context.route("**/api/events*", lambda route: route.abort())
        page = context.new_page()
        add(page, server, world.articles(1))
        expect(page.locator("#live")).to_contain_text("asking")
        expect(page.locator("article .state")).to_contain_text("READY_TO_GENERATE")
        page.click("article .act button")
        expect(page.locator("article .state")).to_contain_text("SAVED")


def test_eight_tabs_share_one_stream_and_the_next_takes_over(
    chromium: Browser, server: Server, world: Loopback
) -> None:
    with new_context(chromium) as context:
        watch = Watch(context, server.url)
        tabs = [context.new_page() for _ in range(8)]
        add(tabs[0], server, world.articles(2))
        for tab in tabs[1:]:
            tab.goto(tabs[0].url)
        ids = ids_of(tabs[0])
        for tab in tabs:
            expect(tab.locator("#live")).to_have_text("● live")
            expect(tab.locator(f"#job-{ids[1]} .state")).to_contain_text("READY_TO_GENERATE")
        with server.client() as client:  # that of the page before may take a moment to be missed
            while "\nonceflow_streams 1\n" not in client.get("/metrics").text:
                pass
        tabs[7].click(f"#job-{ids[0]} .act button")
        for tab in tabs:
            expect(tab.locator(f"#job-{ids[0]} .state")).to_contain_text("SAVED")
        tabs[0].close()  # it led
        tabs[3].click(f"#job-{ids[1]} .act button")
        for tab in tabs[1:]:
            expect(tab.locator(f"#job-{ids[1]} .state")).to_contain_text("SAVED")
            expect(tab.locator("#live")).to_have_text("● live")
        assert (watch.errors, watch.foreign) == ([], [])


def test_the_theme_is_kept_and_nothing_overflows_a_narrow_window(
    chromium: Browser, server: Server, world: Loopback
) -> None:
    with new_context(chromium, viewport={"width": 340, "height": 700}) as context:
        page = context.new_page()
        long = f"{world.site.url('/' + 'long' * 60)}"
        add(page, server, [*world.articles(1), long])
        expect(page.locator(".failed .state")).to_contain_text("FAILED")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") is True
        page.click("#theme")
        page.click("#theme")
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == "rgb(20, 23, 28)"
