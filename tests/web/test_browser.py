"""The dashboard and the pages of websites in a real browser: alive, without an error, asking nobody
else, and whole without scripts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.cli.loopback import ALLOW, Loopback
from tests.pipelines.conftest import article
from tests.web.browser import Watch, browser
from tests.web.kit import served


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=60_000)
    with browser() as running:
        yield running


def test_a_site_from_its_address_to_its_report_and_every_page_of_the_dashboard(
    chromium: Browser, world: Loopback, tmp_path: Path
) -> None:
    world.site.answer("/", article("bread, ovens and the baking of bread in wood-fired ovens"))
    with (
        served(tmp_path, str(tmp_path / "a.db"), *ALLOW) as server,
        chromium.new_context(reduced_motion="reduce") as context,
    ):
        watch = Watch(context, server.url)
        page = context.new_page()
        page.goto(f"{server.url}/analysis")
        page.fill("#sites", world.site.url("/"))
        page.click("form.add button")
        page.wait_for_url("**/analysis/1")
        expect(page.locator("#part article .state")).to_contain_text("completed")
        expect(page.locator(".dial")).to_have_count(2)
        expect(page.locator("#live")).to_have_text("● live")
        page.click("a.button")
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator("body")).to_contain_text("No assistant was asked")
        for path, title in (
            ("/", "Board"), ("/items", "Items"), ("/runs", "Runs"), ("/failures", "Failures"),
            ("/processors", "Processors"), ("/items/1", world.site.url("/")),
        ):  # fmt: skip
            page.goto(f"{server.url}{path}")
            expect(page.locator("h1")).to_have_text(title)
        page.goto(f"{server.url}/")
        expect(page.locator(".machine")).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.set_viewport_size({"width": 360, "height": 700})
        narrow = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert (wide, narrow) == (True, True), "nothing has to be scrolled sideways"
        assert (watch.errors, watch.foreign) == ([], [])

        with chromium.new_context(java_script_enabled=False) as plain:
            page = plain.new_page()
            for path in ("/", "/processors", "/analysis", "/analysis/1", "/items/1"):
                page.goto(f"{server.url}{path}")
                expect(page.locator("h1")).to_be_visible()
            expect(page.locator(".timeline li").first).to_contain_text("added")
