"""robots.txt: what a site asks of us, kept for an hour.

| robots.txt answers | then |
|---|---|
| 2xx | its rules hold; the first 512 KiB are read, what is not UTF-8 is replaced |
| 4xx except 429, or redirects without end | there are no rules: everything is allowed |
| 429, 5xx | nothing is allowed for now: `robots_unavailable`, transient |
| nothing (refused, cut, timeout) | the same failure as the page would have met |
| a redirect to a blocked address | `blocked_address`, permanent |
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from onceflow.clients._missing import not_installed
from onceflow.clients.urls import Url, parse_url, shown
from onceflow.core.errors import Permanent, Transient

ORIGINS_MAX = 1000
CRAWL_DELAY_SECONDS_MAX = 60.0
UNAVAILABLE_SECONDS = 60.0

# Fetches robots.txt: status, beginning of the body, and the Retry-After of a refusal.
Fetch = Callable[[Url], Awaitable[tuple[int, bytes, float | None]]]


@dataclass(frozen=True, slots=True)
class Rules:
    """One site's rules. `parser` is None where everything is allowed."""

    parser: Any
    agent: str

    def allow(self, url: Url) -> bool:
        return self.parser is None or bool(self.parser.can_fetch(url.href, self.agent))

    @property
    def crawl_delay(self) -> float | None:
        """Seconds between two requests that the site asks for, at most a minute."""
        if self.parser is None:
            return None
        delay = self.parser.crawl_delay(self.agent)
        if delay is None or delay < 0:
            return None
        return min(float(delay), CRAWL_DELAY_SECONDS_MAX)

    @property
    def sitemaps(self) -> list[str]:
        return [] if self.parser is None else list(self.parser.sitemaps)[:100]


@dataclass(slots=True)
class _Site:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rules: Rules | None = None
    failure: Transient | None = None
    until: float = 0.0


class Robots:
    """The rules by origin, least recently asked ones forgotten first."""

    def __init__(
        self, fetch: Fetch, *, agent: str, seconds: float, clock: Callable[[], float]
    ) -> None:
        self._fetch = fetch
        self._agent = agent
        self._seconds = seconds
        self._clock = clock
        self._sites: OrderedDict[str, _Site] = OrderedDict()

    def known(self, url: Url) -> Rules | None:
        """The rules, if they are at hand: the usual case, without waiting."""
        site = self._sites.get(url.origin)
        if site is None or self._clock() >= site.until:
            return None
        return site.rules

    async def rules(self, url: Url) -> Rules:
        """The rules for a URL's site; asks the site at most once at a time."""
        site = self._sites.setdefault(url.origin, _Site())
        self._sites.move_to_end(url.origin)
        while len(self._sites) > ORIGINS_MAX:
            self._sites.popitem(last=False)
        if site.rules is not None and self._clock() < site.until:
            return site.rules
        async with site.lock:
            if self._clock() < site.until:
                if site.failure is not None:
                    raise _copy(site.failure, site.until - self._clock())
                if site.rules is not None:
                    return site.rules
            return await self._ask(url, site)

    async def _ask(self, url: Url, site: _Site) -> Rules:
        site.rules = site.failure = None
        try:
            status, body, retry_after = await self._fetch(parse_url("/robots.txt", base=url))
        except Permanent as error:
            if error.code != "too_many_redirects":
                raise
            status, body, retry_after = 404, b"", None
        if status == 429 or status >= 500:
            seconds = max(retry_after or 0.0, UNAVAILABLE_SECONDS)
            site.failure = Transient(
                f"{shown(url.origin)}/robots.txt answered {status}: nothing is fetched until it is"
                " readable",
                code="robots_unavailable",
                retry_after=seconds,
            )
            site.until = self._clock() + seconds
            raise _copy(site.failure, seconds)
        site.rules = Rules(self._parse(body) if 200 <= status < 300 else None, self._agent)
        site.until = self._clock() + self._seconds
        return site.rules

    def _parse(self, body: bytes) -> Any:
        try:
            from protego import Protego
        except ImportError as error:
            raise not_installed("robots.txt", error, "clients") from None
        return Protego.parse(body.decode("utf-8-sig", errors="replace"))


def _copy(failure: Transient, seconds: float) -> Transient:
    """A fresh exception each time: a raised one keeps the trace of whoever raised it."""
    return Transient(str(failure), code=failure.code, retry_after=seconds)
