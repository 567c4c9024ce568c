"""Reads a site politely: its home page, what robots.txt, sitemaps, feeds and menus name, and a
bounded number of pages that together stand for the whole."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from onceflow import Permanent, Transient, Work
from onceflow.clients import Extracted, Extractor, Http, Page
from onceflow.clients.http import check_status
from onceflow.clients.sitemap import site_urls
from onceflow.clients.urls import parse_url, shown
from onceflow.core.errors import HandlerError
from onceflow.pipelines.analyze.shapes import PageKind

SITEMAP_URLS_MAX = 2_000
CANDIDATES_MAX = 5_000
FEED_ENTRIES_MAX = 50
ENTRY_CHARS_MAX = 100_000
FEED_BYTES_MAX = 2_000_000
TEXT_CHARS_MAX = 60_000
TROUBLES_MAX = 3
"""So many pages in a row that fail for the moment: the site itself does."""
READ_SECONDS_MAX = 200.0
"""A site that asks for long pauses is not read for longer: the stage has a deadline."""

_NO_PAGE = re.compile(
    r"\.(?:pdf|jpe?g|png|gif|svg|webp|ico|css|js|mjs|json|xml|rss|atom|zip|gz|bz2|xz|tar|tgz|exe|dmg"
    r"|deb|rpm|iso|mp[34]|m4a|ogg|webm|avi|mov|woff2?|ttf|eot|docx?|xlsx?|pptx?|csv|txt|epub|asc)$",
    re.IGNORECASE,
)
_KINDS: tuple[tuple[PageKind, re.Pattern[str]], ...] = (
    ("legal", re.compile(r"privac|terms|legal|imprint|impressum|datenschutz|cookie|agb\b|licen[cs]e"
                         r"|copyright|mentions-legales|aviso-legal|disclaimer|colophon")),
    ("pricing", re.compile(r"pric(?:e|ing)|preise|tarif|precio|prezzi|preco|plans\b|料金|价格")),
    ("contact", re.compile(r"conta[ck]t|kontakt|contatti|contato|impress|お問い合わせ|联系|اتصل")),
    ("about", re.compile(r"about|feature|company|team|uber-uns|ueber-uns|über|a-propos"
                         r"|qui-sommes|chi-siamo|sobre|quienes|over-ons|history|mission|会社|关于")),
    ("help", re.compile(r"faq|help|support|hilfe|aide|ayuda|assist|service|troubleshoot|repair"
                        r"|howto|how-to|guide|questions")),
    ("documentation", re.compile(r"docs?(?:/|\b)|documentation|manual|reference|api\b|api/|tutorial"
                                 r"|handbook|handbuch|chapter|sect?\.|lang_|c3ref")),
    ("product", re.compile(r"product|produkt|produit|producto|prodott|shop|store|item/|catalog"
                           r"|solution|service|leistung|angebot|offer")),
    ("article", re.compile(r"blog|news|article|artikel|story|stories|post/|posts/|/20\d\d/|magazin"
                           r"|aktuell|actualit|noticia|notizie")),
    ("listing", re.compile(r"categor|tag/|tags/|archive|index|list|browse|sitemap|contents|toc\b")),
)  # fmt: skip
_TYPES: Mapping[str, PageKind] = {
    "Product": "product", "Service": "product", "SoftwareApplication": "product",
    "Article": "article", "NewsArticle": "article", "BlogPosting": "article",
    "TechArticle": "documentation", "FAQPage": "help", "QAPage": "help", "HowTo": "help",
    "ContactPage": "contact", "AboutPage": "about", "CollectionPage": "listing",
}  # fmt: skip
_WORTH: Mapping[PageKind, float] = {
    "product": 3.0, "pricing": 3.0, "about": 2.6, "help": 2.2, "documentation": 2.2,
    "article": 2.0, "contact": 1.8, "other": 1.6, "listing": 1.0, "legal": -1.0, "home": 4.0,
}  # fmt: skip


@dataclass(frozen=True)
class ReadPage:
    """A page as it was read; `about` is what it shows of its site."""

    url: str
    title: str = ""
    description: str = ""
    site_name: str = ""
    language: str = ""
    date: str = ""
    text: str = ""
    kind: PageKind = "other"
    links: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Site:
    """What was read of a site."""

    url: str
    pages: list[ReadPage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: int = 0
    dates: list[str] = field(default_factory=list)
    """Of the feed's entries."""


def site_key(text: str) -> str:
    """The one spelling of a site's address: without query; `https` where no scheme is given."""
    text = text.strip()
    if "://" not in text and re.match(r"[^\s/:@]+\.[^\s/:@]+(?:[/:]|$)|localhost(?:[/:]|$)", text):
        text = f"https://{text}"
    url = parse_url(text)
    parts = urlsplit(url.href)
    return parse_url(f"{parts.scheme}://{parts.netloc}{parts.path or '/'}").href


class Polite:
    """A fetcher that leaves a pause between two requests."""

    def __init__(self, http: Http, spacing_seconds: float) -> None:
        self._http = http
        self.spacing_seconds = spacing_seconds
        self._last: float | None = None

    async def get(self, url: str) -> Page:
        loop = asyncio.get_running_loop()
        if self._last is not None:
            await asyncio.sleep(max(0.0, self._last + self.spacing_seconds - loop.time()))
        try:
            return await self._http.get(url)
        finally:
            self._last = loop.time()


class Reader:
    """Reads one site. Pages that an earlier attempt has kept are not asked for again."""

    def __init__(
        self, http: Http, extractor: Extractor, *, pages_max: int, spacing_seconds: float
    ) -> None:
        self._http = http
        self._polite = Polite(http, spacing_seconds)
        self._extractor = extractor
        self._pages_max = pages_max
        self._kept: dict[str, Any] = {}
        self._troubles = 0

    async def read(self, start: str, work: Work | None = None) -> Site:
        """The site; raises `Permanent` or `Transient` if there is nothing to be had of it."""
        self._kept = {} if work is None else await work.kept()
        until = asyncio.get_running_loop().time() + READ_SECONDS_MAX
        site = Site(start)
        home = await self._home(start, site, work)
        site.pages.append(home)
        pool = Pool(home.url)
        pool.add(home.links, 0.5)
        pool.add((href for href, _ in home.about.get("menu", ())), 2.0)
        if self._pages_max > 1:
            await self._listed(home, site, pool)
        for _ in range(1, self._pages_max):  # each is a page asked for, whatever becomes of it
            url = pool.take()
            if url is None:
                break
            if asyncio.get_running_loop().time() > until:
                many = len(site.pages)
                site.notes.append(f"the site asks for long pauses: only {many} pages were read")
                break
            page = await self._page(url, site, work)
            if page is not None and pool.is_new(page):
                site.pages.append(page)
                pool.add(page.links, 0.3)
        return site

    async def _home(self, start: str, site: Site, work: Work | None) -> ReadPage:
        """The home page. Without one there is no site: the reason is the item's own."""
        if self._http.settings.robots:
            rules = await self._http.robots(start)
            pause = rules.crawl_delay or 0.0
            self._polite.spacing_seconds = max(self._polite.spacing_seconds, pause)
        if (known := self._kept.get(f"page {start}")) is not None:
            return _page_of(known)
        page = await self._polite.get(start)
        if not same_site(page.url, start):
            raise Permanent(
                f"{shown(start)} redirects to another site, {shown(page.url)}; analyze that one, "
                "if it is yours",
                code="other_site",
            )
        try:
            check_status(page)
        except Permanent as error:
            why = "the site lets no program read it" if page.status in (401, 403) else "it has no "
            why += "" if page.status in (401, 403) else "home page there"
            raise Permanent(f"{error}: {why}", code=error.code) from None
        if page.body and not page.is_text:
            what = page.content_type or "unknown type"
            raise Permanent(
                f"{shown(start)} is not a web page but {what}: there is nothing to analyze",
                code="not_text",
            )
        found = await self._extracted(page)
        home = _made(page, found, kind="home")
        if work is not None:
            await work.keep(f"page {start}", asdict(home))
        return home

    async def _page(self, url: str, site: Site, work: Work | None) -> ReadPage | None:
        """One more page; one that cannot be read is counted and passed over."""
        if (known := self._kept.get(f"page {url}")) is not None:
            return _page_of(known)
        try:
            page = await self._polite.get(url)
            check_status(page)
            if not same_site(page.url, site.url) or not page.is_text:
                site.refused += 1
                return None
            found = await self._extracted(page)
        except Transient as error:
            self._troubles += 1
            if error.code == "http_429" or self._troubles >= TROUBLES_MAX:  # not this page alone
                error.hold_lane_seconds = min(error.retry_after or 0.0, 60.0)
                raise
            site.refused += 1
            return None
        except Permanent as error:
            if error.code == "not_installed":
                raise
            site.refused += 1
            return None
        self._troubles = 0
        made = _made(page, found)
        if work is not None:
            await work.keep(f"page {url}", asdict(made))
        return made

    async def _extracted(self, page: Page) -> Extracted:
        return await self._extractor.extract(page, about=True)

    async def _listed(self, home: ReadPage, site: Site, pool: Pool) -> None:
        """What sitemaps and the feed name. They are asked for politely too, and are no pages."""
        starts: list[str] = []
        if self._http.settings.robots:
            starts = (await self._http.robots(home.url)).sitemaps[:3]
        starts = starts or [parse_url("/sitemap.xml", base=parse_url(home.url)).href]
        polite = cast(Http, self._polite)  # all that is used of it is `get`
        pool.add(await site_urls(polite, starts, urls_max=SITEMAP_URLS_MAX), 1.0)
        for feed in home.about.get("feeds", ())[:1]:
            try:
                answer = await self._polite.get(parse_url(feed, base=parse_url(home.url)).href)
                check_status(answer)
            except HandlerError:
                continue
            links, dates = feed_entries(answer.body[:FEED_BYTES_MAX])
            pool.add(links, 1.0)
            site.dates += dates


class Pool:
    """Addresses that could be read, and which of them would add most to what was read."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._base = parse_url(home)
        self._below = urlsplit(home).path.rpartition("/")[0] + "/"
        self._worth: dict[str, float] = {}
        self._taken = {home}
        self._groups: Counter[str] = Counter()
        self._texts: set[int] = set()

    def add(self, links: Iterable[str], bonus: float) -> None:
        for link in links:
            if len(self._worth) >= CANDIDATES_MAX:
                return
            try:
                url = parse_url(link, base=self._base).href
            except Permanent:
                continue
            parts = urlsplit(url)
            if (
                url in self._taken
                or not same_site(url, self._home)
                or not parts.path.startswith(self._below)
                or _NO_PAGE.search(parts.path)
            ):
                continue
            self._worth[url] = max(self._worth.get(url, 0.0), self._value(url) + bonus)

    def _value(self, url: str) -> float:
        parts = urlsplit(url)
        steps = [step for step in parts.path.removeprefix(self._below).split("/") if step]
        value = _WORTH[kind_of(url)] - 0.35 * max(0, len(steps) - 1) - (0.8 if parts.query else 0)
        if steps and re.search(r"\d{2,}", steps[-1]):
            value -= 0.5
        if len(steps) == 1 and re.fullmatch(r"(?:index|home|default)(?:\.\w+)?", steps[0]):
            value -= 3  # the home page once more
        return value

    def take(self) -> str | None:
        """The best one: what is like those taken already is worth less and less."""
        if not self._worth:
            return None
        url = max(self._worth, key=lambda one: (self._now(one), -len(one), one))
        del self._worth[url]
        self._taken.add(url)
        for group in self._groups_of(url):
            self._groups[group] += 1
        return url

    def _now(self, url: str) -> float:
        first, kind, like = self._groups_of(url)
        taken = 0.5 * self._groups[first] + 0.45 * self._groups[kind] + 1.5 * self._groups[like]
        return self._worth[url] - taken

    def _groups_of(self, url: str) -> tuple[str, str, str]:
        """What a page has in common with others: its folder, its kind, and an address that differs
        from theirs by numbers only."""
        path = urlsplit(url).path.removeprefix(self._below)
        steps = path.split("/")
        numbered = re.sub(r"\d+", "#", path)
        folder = f"/{steps[0]}" if len(steps) > 1 else "/"
        return folder, kind_of(url), numbered if numbered != path else f"={path}"

    def is_new(self, page: ReadPage) -> bool:
        """Whether its text was not read already, under another address."""
        self._taken.add(page.url)
        self._worth.pop(page.url, None)
        mark = hash(" ".join(page.text.split())[:5000])
        if page.text and mark in self._texts:
            return False
        self._texts.add(mark)
        return True


def kind_of(url: str, types: Iterable[str] = ()) -> PageKind:
    """What a page is, by what it says of itself and by its address."""
    for one in types:
        if one in _TYPES:
            return _TYPES[one]
    parts = urlsplit(url)
    path = f"{parts.path}?{parts.query}".lower()
    for kind, pattern in _KINDS:
        if pattern.search(path):
            return kind
    return "other"


def same_site(one: str, other: str) -> bool:
    """Whether two addresses are of one site: of one host, with or without `www.`."""

    def whose(url: str) -> tuple[str, int | None]:
        parts = urlsplit(url)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        port = None if parts.port in (None, usual) else parts.port
        return (parts.hostname or "").removeprefix("www."), port

    return whose(one) == whose(other)


def types_of(about: Mapping[str, Any]) -> list[str]:
    """The types of the things that a page's JSON-LD describes."""
    found: list[str] = []
    for thing in about.get("things", ()):
        named = thing.get("@type", ())
        for one in [named] if isinstance(named, str) else named:
            found.append(str(one).rpartition("/")[2])
    return found


# Nothing in these looks further than a little: a feed may be made to be read for hours.
_ENTRY = re.compile(r"<(?:item|entry)\b", re.IGNORECASE)
_ENTRY_END = re.compile(r"</(?:item|entry)>", re.IGNORECASE)
_ENTRY_LINK = re.compile(
    r"<link[^>]{0,300}href=[\"']([^\"']{1,2000})"
    r"|<link>\s{0,100}(?:<!\[CDATA\[\s{0,100})?([^<\]\s]{1,2000})",
    re.IGNORECASE,
)
_ENTRY_DATE = re.compile(
    r"<(?:pubDate|published|updated|dc:date)>\s{0,100}([^<]{8,40})<", re.IGNORECASE
)


def feed_entries(body: bytes) -> tuple[list[str], list[str]]:
    """The links and dates of a feed, read as text: nothing of XML is expanded."""
    text = body.decode("utf-8", errors="replace")
    links: list[str] = []
    dates: list[str] = []
    for part in _ENTRY.split(text, maxsplit=FEED_ENTRIES_MAX)[1:]:
        entry = _ENTRY_END.split(part[:ENTRY_CHARS_MAX], maxsplit=1)[0]
        if link := _ENTRY_LINK.search(entry):
            links.append(link.group(1) or link.group(2))
        if date := _ENTRY_DATE.search(entry):
            dates.append(date.group(1).strip())
    return links, dates


def _made(page: Page, found: Extracted, kind: PageKind | None = None) -> ReadPage:
    about = dict(found.about)
    headers = {
        name: page.headers[name][:200]
        for name in ("server", "x-powered-by", "x-generator", "link", "last-modified")
        if name in page.headers
    }
    return ReadPage(
        page.url, found.title, found.description, found.site_name, found.language, found.date,
        found.text[:TEXT_CHARS_MAX], kind or kind_of(page.url, types_of(about)),
        found.links, about, headers,
    )  # fmt: skip


def _page_of(kept: Mapping[str, Any]) -> ReadPage:
    return ReadPage(**{**kept, "links": tuple(kept["links"])})
