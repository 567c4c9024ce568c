"""A polite fetcher: one page at a time, under limits, from public addresses only."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from onceflow.clients import text as texts
from onceflow.clients._lifetime import PerLoop
from onceflow.clients._missing import not_installed
from onceflow.clients.codings import ACCEPTED
from onceflow.clients.resolve import Resolver, system_resolver
from onceflow.clients.robots import Robots, Rules
from onceflow.clients.settings import FetchSettings
from onceflow.clients.urls import Url, parse_url, shown
from onceflow.core.errors import Permanent, SettingsError, Transient

if TYPE_CHECKING:
    from onceflow.clients._wire import Answer, Wire

AGENT = "onceflow"
VALIDATOR_CHARS_MAX = 1024
REDIRECTS = (301, 302, 303, 307, 308)
TRANSIENT_STATUSES = (408, 425, 429)

_TEXT_TYPES = re.compile(r"text/.+|application/(?:(?:.+\+)?(?:xml|json)|javascript)")
_UNTOLD_TYPES = ("", "application/octet-stream", "application/unknown")


class Headers(Mapping[str, str]):
    """An answer's headers; names in any case, repeated ones joined by a comma."""

    def __init__(self, pairs: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> None:
        self._given = pairs

    @cached_property
    def _values(self) -> dict[str, str]:
        joined: dict[str, list[str]] = {}
        given = self._given
        for name, value in given.items() if isinstance(given, Mapping) else given:
            joined.setdefault(name.lower(), []).append(value)
        return {name: ", ".join(values) for name, values in joined.items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({self._values!r})"

    def __reduce__(self) -> tuple[type[Headers], tuple[dict[str, str]]]:
        return Headers, (self._values,)  # what came from the wire cannot go to another process


@dataclass(frozen=True)
class Page:
    """An answer, whatever its status. `url` is where it came from after all redirects."""

    url: str
    status: int
    headers: Mapping[str, str] = field(default_factory=Headers)
    body: bytes = b""
    redirects: tuple[str, ...] = ()  # the URLs that led here, the requested one first
    retry_after: float | None = None  # seconds the server asks us to wait, bounded

    @property
    def content_type(self) -> str:
        """The media type without parameters, lower case; empty if missing or contradictory."""
        kinds = {part.partition(";")[0].strip().lower() for part in self._content_types()}
        return kinds.pop() if len(kinds) == 1 else ""

    @property
    def is_text(self) -> bool:
        """By the type the server names and by the first bytes: both must look like text."""
        kind = self.content_type
        told = kind in _UNTOLD_TYPES or _TEXT_TYPES.fullmatch(kind) is not None
        return told and texts.is_text(self.body)

    @property
    def text(self) -> str:
        """The body as text. Raises `Permanent` (`not_text`) for a PDF, an image, an archive."""
        if not self.is_text:
            what = self.content_type or "unknown type"
            raise Permanent(f"{shown(self.url)} is not text ({what[:60]})", code="not_text")
        return self.decoded.text

    @cached_property
    def decoded(self) -> texts.Decoded:
        """The text, the charset it was read by, and whether that is doubtful."""
        return texts.decode(self.body, texts.charset_of(self.headers.get("content-type", "")))

    @property
    def etag(self) -> str | None:
        return self._validator("etag")

    @property
    def last_modified(self) -> str | None:
        return self._validator("last-modified")

    def _content_types(self) -> list[str]:
        return [part for part in self.headers.get("content-type", "").split(",") if part.strip()]

    def _validator(self, name: str) -> str | None:
        value = self.headers.get(name, "").strip()
        fits = 0 < len(value) <= VALIDATOR_CHARS_MAX and value.isascii() and value.isprintable()
        return value if fits else None


@dataclass(frozen=True, slots=True)
class _Desk:
    """What belongs to one event loop."""

    wire: Wire
    robots: Robots


class Http:
    """Fetches pages. Make one and share it; it can be used by any number of tasks.

    `contact` (an address or a URL) goes into the User-Agent, so that a site can reach you.
    `origin_headers` are sent to that origin and to no other, also after a redirect.
    """

    def __init__(
        self,
        *,
        contact: str | None = None,
        settings: FetchSettings | None = None,
        resolver: Resolver = system_resolver,
        origin_headers: Mapping[str, Mapping[str, str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings or FetchSettings()
        self.user_agent = user_agent(contact)
        self._origin_headers = {
            parse_url(origin).origin: dict(headers)
            for origin, headers in (origin_headers or {}).items()
        }
        self._resolver = resolver
        self._wall_clock = wall_clock
        self._clock = clock
        self._desks: PerLoop[_Desk] = PerLoop(self._open, _close)

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        etag: str | None = None,
        last_modified: str | None = None,
        robots: bool | None = None,
    ) -> Page:
        """The page at `url`, whatever its status; `etag` and `last_modified` ask for a 304.

        Raises `Transient` or `Permanent` when there is no answer to give. `headers` go to the
        origin of `url` only. `robots=False` is for what a site offers to programs (an API).
        """
        start = parse_url(url)
        extra = dict(headers or {})
        if etag:
            extra["If-None-Match"] = etag
        if last_modified:
            extra["If-Modified-Since"] = last_modified
        ask_robots = self.settings.robots if robots is None else robots
        until = asyncio.get_running_loop().time() + self.settings.fetch_seconds
        return await self._follow(start, extra, until, ask_robots=ask_robots)

    async def page(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        etag: str | None = None,
        last_modified: str | None = None,
    ) -> Page:
        """Like `get`, but only a page that can be read: 2xx (or the 304 asked for), and text.

        408, 425, 429 and 5xx are `Transient`, with `retry_after`; other statuses are `Permanent`.
        """
        page = await self.get(url, headers=headers, etag=etag, last_modified=last_modified)
        check_status(page, not_modified_asked=bool(etag or last_modified))
        if page.body and not page.is_text:
            _ = page.text  # raises not_text
        return page

    async def robots(self, url: str) -> Rules:
        """The site's rules: `.allow(url)`, `.crawl_delay`, `.sitemaps`."""
        start = parse_url(url)
        until = asyncio.get_running_loop().time() + self.settings.fetch_seconds
        return await self._rules(start, until)

    async def close(self) -> None:
        """Close the connections now. Without it they are closed with the event loop."""
        await self._desks.close()

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self) -> _Desk:
        try:
            from onceflow.clients._wire import Wire
        except ImportError as error:
            raise not_installed("fetching pages", error, "clients") from None
        robots = Robots(
            self._robots_txt,
            agent=AGENT,
            seconds=self.settings.robots_seconds,
            clock=self._clock,
        )
        headers = {
            "User-Agent": self.user_agent,
            "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5",
            "Accept-Encoding": ACCEPTED,
        }
        return _Desk(Wire(self.settings, self._resolver, headers), robots)

    async def _follow(
        self,
        start: Url,
        extra: Mapping[str, str],
        until: float,
        *,
        ask_robots: bool = False,
        cut_at: int | None = None,
    ) -> Page:
        """The page, by the loop's time `until` at the latest, robots.txt and redirects included."""
        desk = self._desks.peek() or await self._desks.get()
        url, hops = start, [start.href]
        while True:
            if ask_robots:
                rules = desk.robots.known(url) or await self._rules(url, until)
                if not rules.allow(url):
                    raise Permanent(
                        f"{shown(url.href)}: the site's robots.txt does not allow it",
                        code="robots_disallowed",
                    )
            headers = self._own_headers(url, start, extra)
            try:
                answer = await desk.wire.get(url, headers, until=until, cut_at=cut_at)
            except Permanent as error:
                if len(hops) == 1:
                    raise
                path = " -> ".join(shown(hop) for hop in hops)
                raise Permanent(f"{path}: {error}", code=error.code) from error
            if answer.status in REDIRECTS and "Location" in answer.headers:
                url = self._next(url, answer, hops)
                continue
            wait = answer.headers.get("Retry-After")
            return Page(
                url=url.href,
                status=answer.status,
                headers=Headers(answer.headers),
                body=answer.body,
                redirects=tuple(hops[:-1]),
                retry_after=None if wait is None else self._retry_after(wait),
            )

    async def _rules(self, url: Url, until: float) -> Rules:
        robots = (await self._desks.get()).robots
        try:
            # Not only for the request: another task may be asking, and this one waits for it.
            async with asyncio.timeout_at(until):
                return await robots.rules(url)
        except TimeoutError:
            raise Transient(
                f"{shown(url.href)}: the site's robots.txt took too long", code="timeout"
            ) from None

    def _next(self, url: Url, answer: Answer, hops: list[str]) -> Url:
        path = " -> ".join(shown(hop) for hop in hops)
        if len(hops) > self.settings.redirects_max:
            raise Permanent(
                f"{path}: more than {self.settings.redirects_max} redirects",
                code="too_many_redirects",
            )
        locations = set(answer.headers.getall("Location"))
        if len(locations) > 1:
            raise Permanent(f"{path} redirects to several places at once", code="bad_protocol")
        location = locations.pop()
        try:
            target = parse_url(location, base=url)
        except Permanent as error:
            raise Permanent(f"{path} redirects to {error}", code=error.code) from None
        falls = url.scheme == "https" and target.scheme == "http"
        if falls and not self.settings.allow_https_to_http:
            raise Permanent(
                f"{path} redirects from https to http: {shown(target.href)}",
                code="insecure_redirect",
            )
        if target.href in hops:
            raise Permanent(f"{path}: the redirects go in a circle", code="too_many_redirects")
        hops.append(target.href)
        return target

    def _own_headers(
        self, url: Url, start: Url, extra: Mapping[str, str]
    ) -> Mapping[str, str] | None:
        """What this origin gets besides the usual: never what was meant for another one."""
        own = self._origin_headers.get(url.origin)
        added = extra if url.origin == start.origin else None
        return {**(own or {}), **(added or {})} if own or added else None

    async def _robots_txt(self, url: Url) -> tuple[int, bytes, float | None]:
        cut_at = self.settings.robots_bytes_max
        until = asyncio.get_running_loop().time() + self.settings.fetch_seconds
        page = await self._follow(url, {}, until, cut_at=cut_at)
        return page.status, page.body, page.retry_after

    def _retry_after(self, value: str) -> float | None:
        return parse_retry_after(
            value, now=self._wall_clock(), seconds_max=self.settings.retry_after_seconds_max
        )


def check_status(page: Page, *, not_modified_asked: bool = False) -> None:
    """Raise by status: what may work later is `Transient`, what will not is `Permanent`."""
    status = page.status
    partial = status == 206  # never asked for
    if (200 <= status < 300 and not partial) or (status == 304 and not_modified_asked):
        return
    message = f"{shown(page.url)} answered {status}"
    if status in TRANSIENT_STATUSES or status >= 500:
        raise Transient(message, code=f"http_{status}", retry_after=page.retry_after)
    raise Permanent(message, code=f"http_{status}")


def parse_retry_after(value: str, *, now: float, seconds_max: float) -> float | None:
    """Seconds to wait: a number or an HTTP date, at most `seconds_max`. Rubbish gives None."""
    value = value.strip()[:64]
    if value.isascii() and value.isdigit():
        return min(float(value), seconds_max)
    if not value[:1].isalpha():
        return None
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = moment.timestamp() - now
    return min(max(seconds, 0.0), seconds_max) if math.isfinite(seconds) else None


def user_agent(contact: str | None) -> str:
    """Who we are, and whom to ask. A contact with control characters or brackets is refused."""
    try:
        name = f"{AGENT}/{version('onceflow')}"
    except PackageNotFoundError:  # run from a checkout that is not installed
        name = AGENT
    if contact is None or not contact.strip():
        return name
    contact = contact.strip()
    if len(contact) > 200 or not contact.isascii() or not contact.isprintable():
        raise SettingsError("contact: at most 200 plain characters, an e-mail address or a URL")
    return f"{name} (+{contact.replace('(', '').replace(')', '')})"


async def _close(desk: _Desk) -> None:
    await desk.wire.close()
