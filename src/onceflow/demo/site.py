"""The bundled site's server: on loopback, with the habits of real ones, and a log of its own.

One page redirects, one is gone, one fails twice before it works, one is slow, one has two
addresses, and robots.txt closes a corner.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType

from aiohttp import web

from onceflow.demo.articles import Article, article_page, articles, front_page, missing_page
from onceflow.demo.articles import print_page as print_version

HOST = "127.0.0.1"
NETWORK = f"{HOST}/32"
"""What the address rules have to be opened for, and no more."""

SLOW = "icetrade"
FAILS_TWICE = "lighthouses"
MOVED = "sourdough"
TWO_ADDRESSES = "tides"

SLOW_PATH = f"/articles/{SLOW}"
FAILING_PATH = f"/articles/{FAILS_TWICE}"
OLD_PATH = f"/2019/{MOVED}"
PRINT_PATH = f"/print/{TWO_ADDRESSES}"
GONE_PATH = "/articles/perpetual-motion"
CLOSED_PATH = "/drafts/unfinished"

ROBOTS = "User-agent: *\nDisallow: /drafts/\n"
SLOW_SECONDS = 3.0
HELD_SECONDS_MAX = 25.0


@dataclass(slots=True)
class Visit:
    """One request, as the server saw it."""

    path: str
    status: int
    whole: bool = False
    """The answer was sent to its end; the visitor did not go away before."""


class Site:
    """Serves the articles while it is entered.

    The first visitor of the slow page gets half of it and then waits until `release`: long enough
    to be killed meanwhile.
    """

    def __init__(self, *, slow_seconds: float = SLOW_SECONDS) -> None:
        self.port = 0
        self.visits: list[Visit] = []
        self.slow_begun = asyncio.Event()
        self._slow_seconds = slow_seconds
        self._released = asyncio.Event()
        self._failures_left = 2
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Site:
        app = web.Application(middlewares=[self._log])
        app.router.add_get("/", self._front)
        app.router.add_get("/robots.txt", self._robots)
        app.router.add_get("/articles/{name}", self._article)
        app.router.add_get("/print/{name}", self._print)
        app.router.add_get("/2019/{name}", self._moved)
        app.router.add_get("/drafts/{name}", self._draft)
        # A visitor that went away has its answer cancelled, so that the log can tell.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        if self._runner is not None:
            await self._runner.cleanup()

    def url(self, path: str) -> str:
        return f"http://{HOST}:{self.port}{path}"

    def addresses(self) -> list[str]:
        """What the demo asks for: every article, and each way in which an address can be odd."""
        names = [name for name in articles() if name not in (MOVED, SLOW, FAILS_TWICE)]
        names[1:1] = [FAILS_TWICE]
        names[3:3] = [SLOW]
        paths = [f"/articles/{name}" for name in names]
        paths[6:6] = [OLD_PATH]
        return [self.url(path) for path in (*paths, PRINT_PATH, GONE_PATH, CLOSED_PATH)]

    def release(self) -> None:
        """Whoever waits for the slow page need not wait any more."""
        self._released.set()

    def counts(self) -> dict[str, int]:
        """How often each path was asked for, robots.txt left out."""
        return dict(Counter(one.path for one in self.visits if one.path != "/robots.txt"))

    @web.middleware
    async def _log(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        visit = Visit(request.path, 0)
        self.visits.append(visit)
        try:
            response = await handler(request)
        except web.HTTPException as answer:
            visit.status = answer.status
            raise
        visit.status = response.status
        visit.whole = True
        return response

    # --- pages ---

    async def _front(self, _: web.Request) -> web.StreamResponse:
        return _html(front_page())

    async def _robots(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=ROBOTS)

    async def _article(self, request: web.Request) -> web.StreamResponse:
        article = articles().get(request.match_info["name"])
        if article is None:
            return _html(missing_page(), status=404)
        if article.name == FAILS_TWICE and self._failures_left:
            self._failures_left -= 1
            return web.Response(status=503, text="busy, come back later\n")
        page = article_page(article, canonical=self.url(article.path))
        if article.name == SLOW:
            return await self._slowly(request, page)
        return _html(page)

    async def _print(self, request: web.Request) -> web.StreamResponse:
        article = self._known(request)
        return _html(print_version(article, canonical=self.url(article.path)))

    async def _moved(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPMovedPermanently(self._known(request).path)

    async def _draft(self, _: web.Request) -> web.StreamResponse:
        return _html(missing_page(), status=410)

    def _known(self, request: web.Request) -> Article:
        article = articles().get(request.match_info["name"])
        if article is None:
            raise web.HTTPNotFound
        return article

    async def _slowly(self, request: web.Request, page: str) -> web.StreamResponse:
        """Half of the page at once, the rest after a while."""
        first = not self.slow_begun.is_set()
        data = page.encode()
        response = web.StreamResponse(headers={"Content-Type": "text/html; charset=utf-8"})
        response.content_length = len(data)
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        self.slow_begun.set()
        if first:
            async with asyncio.timeout(HELD_SECONDS_MAX):
                await self._released.wait()
        await asyncio.sleep(self._slow_seconds)
        await response.write(data[len(data) // 2 :])
        return response


def _html(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html")
