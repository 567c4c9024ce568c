"""Debian's chromium, driven by Playwright; the tests that need it say so where it is missing."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = shutil.which("chromium")


@contextmanager
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, headless=True)
        try:
            yield running
        finally:
            running.close()


class Watch:
    """What went wrong in a page, and whom it talked to."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self._origin = origin
        context.on("request", self._asked)
        context.on("page", self._page)

    def _page(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda said: self.errors.append(said.text) if said.type == "error" else None,
        )

    def _asked(self, request: object) -> None:
        url: str = request.url  # type: ignore[attr-defined]  # Playwright's Request
        if not url.startswith((self._origin, "data:", "about:")):
            self.foreign.append(url)
