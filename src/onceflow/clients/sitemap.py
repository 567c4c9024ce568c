"""The URLs a site lists of itself: sitemaps, their indexes, and plain lists.

They are read as text, not by an XML parser: a sitemap needs nothing of XML but its `<loc>`, and
what is not parsed expands no entity and opens no file.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from html import unescape

from onceflow.clients.codings import Decoder
from onceflow.clients.http import Http, check_status
from onceflow.clients.urls import parse_url
from onceflow.core.errors import HandlerError, Permanent

URLS_MAX = 10_000
SITEMAPS_MAX = 20
DEPTH_MAX = 2
DECODED_BYTES_MAX = 20 * 1024 * 1024

_DECLARATION = re.compile(r"<!(?:DOCTYPE|ENTITY|ELEMENT|ATTLIST)", re.IGNORECASE)
_LOCATION = re.compile(
    r"<loc>([^<]{1,8192}|\s{0,64}<!\[CDATA\[[^\]]{1,8192}\]\]>\s{0,64})</loc>", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Sitemap:
    """What one file says: pages, or further sitemaps."""

    pages: tuple[str, ...] = ()
    sitemaps: tuple[str, ...] = ()


def parse_sitemap(body: bytes, *, urls_max: int = URLS_MAX) -> Sitemap:
    """Raises `Permanent`: `bad_sitemap` for declarations, `too_large` for a bomb."""
    if body.startswith(b"\x1f\x8b"):
        decoder = Decoder(["gzip"], bytes_max=DECODED_BYTES_MAX)
        decoder.feed(body)
        decoder.finish()
        body = bytes(decoder.body)
    text = body.decode("utf-8-sig", errors="replace")
    if _DECLARATION.search(text):
        raise Permanent("the sitemap declares a document type or entities", code="bad_sitemap")
    found: list[str] = []
    if "<loc>" in text.lower():
        matches = (match.group(1) for match in _LOCATION.finditer(text))
    else:
        matches = (line for line in text.splitlines() if line.startswith(("http://", "https://")))
    for raw in matches:
        value = raw.strip().removeprefix("<![CDATA[").removesuffix("]]>")
        found.append(unescape(value).strip())
        if len(found) == urls_max:
            break
    if re.search(r"<(?:\w{1,16}:)?sitemapindex\b", text[:4096], re.IGNORECASE):
        return Sitemap(sitemaps=tuple(found))
    return Sitemap(pages=tuple(found))


async def site_urls(
    http: Http, starts: Iterable[str], *, urls_max: int = URLS_MAX
) -> tuple[str, ...]:
    """Canonical URLs of pages, from these sitemaps and those they name.

    A sitemap that cannot be read is passed over. Each URL is judged again when it is fetched.
    """
    waiting = deque((start, 0) for start in starts)
    seen: set[str] = set()
    pages: dict[str, None] = {}
    while waiting and len(seen) < SITEMAPS_MAX and len(pages) < urls_max:
        text, depth = waiting.popleft()
        try:
            url = parse_url(text).href
            if url in seen:
                continue
            seen.add(url)
            answer = await http.get(url)
            check_status(answer)
            sitemap = parse_sitemap(answer.body, urls_max=urls_max)
        except HandlerError:
            continue
        for page in sitemap.pages:
            try:
                pages[parse_url(page).href] = None
            except Permanent:
                continue
            if len(pages) >= urls_max:
                break
        if depth < DEPTH_MAX:
            waiting.extend((one, depth + 1) for one in sitemap.sitemaps[:SITEMAPS_MAX])
    return tuple(pages)
