"""A polite fetcher: one page at a time, under limits, from public addresses only."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from onceflow.clients import text as texts
from onceflow.clients._lifetime import PerLoop
from onceflow.clients.codings import ACCEPTED
from onceflow.clients.resolve import Resolver, system_resolver
from onceflow.clients.robots import Robots, Rules
from onceflow.clients.settings import FetchSettings
from onceflow.clients.urls import Url, parse_url, shown
from onceflow.core.errors import OnceflowError, Permanent, SettingsError, Transient

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

    def __init__(self, pairs: Mapping[str, str] | list[tuple[str, str]] = ()) -> None:  # type: ignore[assignment]
        self._values: dict[str, str] = {}
        for name, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
            key = name.lower()
            self._values[key] = f"{self._values[key]}, {value}" if key in self._values else value

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({self._values!r})"


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
        return value if 0 < len(value) <= VALIDATOR_CHARS_MAX and value.isascii() else None


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
        self._wires: PerLoop[Wire] = PerLoop(self._open, _close)
        self._robots: PerLoop[Robots] = PerLoop(
            lambda: Robots(
                self._robots_txt,
                agent=AGENT,
                seconds=self.settings.robots_seconds,
                clock=clock,
            ),
            _nothing,
        )

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
        async with self._deadline(start):
            return await self._follow(start, extra, ask_robots=ask_robots, cut_at=None)

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
        async with self._deadline(start):
            return await (await self._robots.get()).rules(start)

    async def close(self) -> None:
        """Close the connections now. Without it they are closed with the event loop."""
        await self._wires.close()

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self) -> Wire:
        try:
            from onceflow.clients._wire import Wire
        except ModuleNotFoundError as error:
            raise OnceflowError(
                f"fetching pages needs {error.name}: pip install 'onceflow[web]'"
            ) from None
        return Wire(self.settings, self._resolver)

    def _deadline(self, url: Url) -> _Deadline:
        return _Deadline(self.settings.fetch_seconds, url)

    async def _follow(
        self, start: Url, extra: Mapping[str, str], *, ask_robots: bool, cut_at: int | None
    ) -> Page:
        wire = await self._wires.get()
        url, hops = start, [start.href]
        while True:
            if ask_robots and not (await (await self._robots.get()).rules(url)).allow(url):
                raise Permanent(
                    f"{shown(url.href)}: the site's robots.txt does not allow it",
                    code="robots_disallowed",
                )
            try:
                async with wire.get(url, self._request_headers(url, start, extra)) as answer:
                    if answer.status in REDIRECTS and "Location" in answer.headers:
                        url = self._next(url, answer, hops)
                        continue
                    body = await answer.read(cut_at=cut_at)
            except Permanent as error:
                if len(hops) == 1 or str(error).startswith(hops[0]):
                    raise
                path = " -> ".join(shown(hop) for hop in hops)
                raise Permanent(f"{path}: {error}", code=error.code) from error
            headers = Headers(list(answer.headers.items()))
            return Page(
                url=url.href,
                status=answer.status,
                headers=headers,
                body=body,
                redirects=tuple(hops[:-1]),
                retry_after=self._retry_after(headers.get("retry-after", "")),
            )

    def _next(self, url: Url, answer: Answer, hops: list[str]) -> Url:
        path = " -> ".join(shown(hop) for hop in hops)
        if len(hops) > self.settings.redirects_max:
            raise Permanent(
                f"{path}: more than {self.settings.redirects_max} redirects",
                code="too_many_redirects",
            )
        location = answer.headers.get("Location", "")
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

    def _request_headers(self, url: Url, start: Url, extra: Mapping[str, str]) -> dict[str, str]:
        headers = {
            "User-Agent": self.user_agent,
            "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5",
            "Accept-Encoding": ACCEPTED,
        }
        headers.update(self._origin_headers.get(url.origin, {}))
        if url.origin == start.origin:
            headers.update(extra)
        return headers

    async def _robots_txt(self, url: Url) -> tuple[int, bytes, float | None]:
        cut_at = self.settings.robots_bytes_max
        page = await self._follow(url, {}, ask_robots=False, cut_at=cut_at)
        return page.status, page.body, page.retry_after

    def _retry_after(self, value: str) -> float | None:
        return parse_retry_after(
            value, now=self._wall_clock(), seconds_max=self.settings.retry_after_seconds_max
        )


class _Deadline:
    """The time of the whole fetch, as a failure that names the page."""

    def __init__(self, seconds: float, url: Url) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._seconds = seconds
        self._url = url

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._timeout.__aexit__(*error)  # type: ignore[arg-type]
        except TimeoutError:
            raise Transient(
                f"{shown(self._url.href)} took longer than {self._seconds:g} s", code="timeout"
            ) from None


def check_status(page: Page, *, not_modified_asked: bool = False) -> None:
    """Raise by status: what may work later is `Transient`, what will not is `Permanent`."""
    status = page.status
    if 200 <= status < 300 or (status == 304 and not_modified_asked):
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


async def _close(wire: Wire) -> None:
    await wire.close()


async def _nothing(_: object) -> None:
    return None
