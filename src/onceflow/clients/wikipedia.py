"""Articles of Wikipedia, or of any other MediaWiki, through its api.php.

    wiki = Wikipedia("en", contact="you@example.org")
    article = await wiki.load("Graph theory")

Loads that are asked for at the same time travel together, up to 50 titles in one request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from onceflow.clients._batches import Batches
from onceflow.clients.http import Http, Page, check_status
from onceflow.clients.resolve import Resolver, system_resolver
from onceflow.clients.settings import FetchSettings
from onceflow.clients.text import one_line
from onceflow.clients.urls import parse_url, shown
from onceflow.clients.wikitext import Section, sections, tells_apart
from onceflow.core.errors import HandlerError, Permanent, SettingsError, Transient

TITLES_MAX = 50  # what the API takes from a client without special rights
TITLE_BYTES_MAX = 255
URL_CHARS_MAX = 7000
ROUNDS_MAX = 100
LINKS_MAX = 50_000
CATEGORIES_MAX = 1000
REDIRECTS_MAX = 5000
HOPS_MAX = 10
LOAD_SECONDS_MAX = 240.0
OTHER_REQUESTS_SECONDS = 0.002  # how long a load waits for others to travel with

NO_CONTACT = (
    "a wiki's operators must be able to reach you, so its requests carry your contact, and none is"
    " set. Add --contact you@example.org, or this line to the top of onceflow.toml:\n\n"
    '    contact = "you@example.org"\n'
)

_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,12}){0,2}|simple|tarantino")
_INVALID = re.compile(r"[|<>\[\]{}\x00-\x1f\x7f\ufffd\ud800-\udfff]")
# What one title of several may be the cause of: they are asked for again in smaller numbers.
_ONE_OF_THEM = ("too_large", "http_500", "http_414", "wiki_error")
_TRANSIENT_ERRORS = ("maxlag", "readonly", "ratelimited", "internal_api_error")
# What no title changes: the wiki is not for us.
_REFUSALS = ("readapidenied", "permissiondenied", "blocked", "autoblocked", "unknown_action")

_BASE = {"action": "query", "format": "json", "formatversion": "2", "redirects": "1"}
_PROPS = ("info", "pageprops", "revisions", "categories", "links", "redirects")
_OPTIONS = {
    "info": {"inprop": "url"},
    "pageprops": {"ppprop": "disambiguation"},
    "revisions": {"rvprop": "ids|content|contentmodel", "rvslots": "main"},
    "categories": {"clshow": "!hidden", "cllimit": "max"},
    "links": {"plnamespace": "0", "pllimit": "max"},
    "redirects": {"rdnamespace": "0", "rdlimit": "max", "rdprop": "title"},
}
_MARKS = {"links": "plcontinue", "categories": "clcontinue", "redirects": "rdcontinue"}


@dataclass(frozen=True, slots=True)
class Article:
    """One page as it is under its canonical title.

    `redirects` are the other titles that lead to it, `links` the main-namespace titles it links
    to, both as the wiki's API gives them; categories without hidden ones and without their prefix.
    `cut` names what was too much and is incomplete: "links", "sections" and so on.
    """

    title: str
    page_id: int
    revision: int
    url: str
    redirects: tuple[str, ...]
    categories: tuple[str, ...]
    sections: tuple[Section, ...]
    links: tuple[str, ...]
    cut: tuple[str, ...] = ()


@dataclass(slots=True)
class _Raw:
    """A page put together from the parts in which the API gives it."""

    head: dict[str, Any]
    lists: dict[str, list[str]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)


class _Found(NamedTuple):
    """What one question about some titles came to. `more`: the lists given up before their end."""

    pages: dict[str, _Raw]  # by title
    onward: dict[str, str]  # spelling or redirect -> where it leads
    redirects: dict[str, str]  # only the redirects
    strange: dict[str, str]  # title -> what it is instead of an article
    more: frozenset[str] = frozenset()


class Wikipedia:
    """A wiki's articles. Make one and share it; `close()` or the end of the loop closes it.

    `wiki` is a language ("en", "de") or the URL of an api.php. `connections` requests are under
    way at once, in this process.
    """

    def __init__(
        self,
        wiki: str = "en",
        *,
        contact: str | None,
        settings: FetchSettings | None = None,
        resolver: Resolver = system_resolver,
        connections: int = 2,
        titles_max: int = TITLES_MAX,
        maxlag_seconds: int | None = 5,
    ) -> None:
        if contact is None or not contact.strip():
            raise SettingsError(NO_CONTACT)
        if not 1 <= titles_max <= TITLES_MAX:
            raise SettingsError(f"titles_max is {titles_max}; it must be 1 to {TITLES_MAX}")
        if connections < 1:
            raise SettingsError(f"connections is {connections}; it must be at least 1")
        self.api_url = api_url(wiki)
        self.requests = 0
        self._titles_max = titles_max
        self._base = dict(_BASE)
        if maxlag_seconds is not None:
            self._base["maxlag"] = str(maxlag_seconds)
        limits = replace(settings or FetchSettings(), connections_per_host_max=connections)
        self._http = Http(contact=contact, settings=limits, resolver=resolver)
        self._loads: Batches[str, Article | HandlerError] = Batches(
            self._load_all, at_once=connections, wait_seconds=OTHER_REQUESTS_SECONDS
        )

    async def load(self, title: str) -> Article:
        """The article that `title` leads to.

        `Permanent`: `not_found`, `invalid_title`, `not_an_article`, `disambiguation`,
        `redirect_loop`. `Transient`: `maxlag`, `readonly`, `http_429`, `http_5..`, `timeout`,
        `bad_answer` and what else may pass, with the wiki's own Retry-After.
        """
        check_title(title)
        found = await self._loads.get(title.strip())
        if isinstance(found, HandlerError):
            raise _again(found, title)
        return found

    async def revisions(self, titles: Iterable[str]) -> dict[str, int | None]:
        """The newest revision of each title, through redirects; None where there is no article."""
        wanted = list(dict.fromkeys(titles))
        newest: dict[str, int] = {}
        valid = [title.strip() for title in wanted if _fault(title) is None]
        for part in self._parts(valid):
            found = await self._ask(part, ("info",))
            for title in part:
                page = found.pages.get(_end(title, found))
                revision = None if page is None else page.head.get("lastrevid")
                if isinstance(revision, int) and revision > 0:
                    newest[title] = revision
        return {title: newest.get(title.strip()) for title in wanted}

    async def close(self) -> None:
        await self._loads.close()
        await self._http.close()

    async def __aenter__(self) -> Wikipedia:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _parts(self, titles: Sequence[str]) -> list[list[str]]:
        """As many titles in a request as the API and the length of a URL allow."""
        parts: list[list[str]] = []
        chars = 0
        for title in titles:
            size = len(quote(title, safe="")) + 3
            if not parts or len(parts[-1]) >= self._titles_max or chars + size > URL_CHARS_MAX:
                parts.append([])
                chars = len(self.api_url) + 1000
            parts[-1].append(title)
            chars += size
        return parts

    async def _load_all(self, titles: Sequence[str]) -> dict[str, Article | HandlerError]:
        loaded: dict[str, Article | HandlerError] = {}
        for part in self._parts(titles):
            try:
                async with asyncio.timeout(LOAD_SECONDS_MAX):
                    loaded.update(await self._load_part(part))
            except TimeoutError:
                late = Transient(f"{shown(self.api_url)} took too long", code="timeout")
                loaded.update(dict.fromkeys(part, late))
        return loaded

    async def _load_part(self, titles: Sequence[str]) -> dict[str, Article | HandlerError]:
        try:
            found = await self._ask(titles, _PROPS)
        except HandlerError as error:
            if len(titles) == 1 or error.code not in _ONE_OF_THEM:
                return dict.fromkeys(titles, error)
            # One of them is the cause: the others must not fail with it.
            middle = len(titles) // 2
            first = await self._load_part(titles[:middle])
            return {**first, **await self._load_part(titles[middle:])}
        if not found.more:
            # In a thread: reading the text of fifty articles must not hold up everything else.
            return await asyncio.to_thread(_articles, titles, found)
        if len(titles) > 1:
            # The largest by itself, so that the others do not wait for all of its links.
            largest = max(titles, key=lambda title: _size(title, found))
            rest = await self._load_part([title for title in titles if title != largest])
            return {**rest, **await self._load_part([largest])}
        return {titles[0]: await self._cut_short(titles[0], found)}

    async def _cut_short(self, title: str, found: _Found) -> Article | HandlerError:
        """A page with more lists than anybody asks for: what came, and the rest of it whole."""
        try:
            rest = await self._ask([title], [name for name in _PROPS if name not in _MARKS])
        except HandlerError as error:
            return error
        name = _end(title, rest)
        if name in rest.pages and name in found.pages:
            rest.pages[name].lists.update(found.pages[name].lists)
            rest.pages[name].cut.update(found.more)
        return (await asyncio.to_thread(_articles, [title], rest))[title]

    async def _ask(self, titles: Sequence[str], props: Sequence[str]) -> _Found:
        """One question, continued until the API says that it is complete."""
        query = {**self._base, "titles": "|".join(titles), "prop": "|".join(props)}
        for prop in props:
            query.update(_OPTIONS[prop])
        found = _Found({}, {}, {}, {})
        onward: dict[str, str] = {}
        for _ in range(ROUNDS_MAX):
            answer = await self._get({**query, **onward})
            _take(_mapping(answer, "query"), found)
            if "continue" not in answer:
                return found
            following = _mapping(answer, "continue")
            following = {key: str(value) for key, value in following.items() if key not in query}
            if following == onward or not following:
                raise _nonsense(self.api_url, "its continuation leads nowhere")
            onward = following
        more = frozenset(prop for prop, mark in _MARKS.items() if mark in onward)
        return found._replace(more=more or frozenset(_MARKS))

    async def _get(self, query: Mapping[str, str]) -> dict[str, Any]:
        pairs = "&".join(f"{key}={quote(value, safe='|!')}" for key, value in query.items())
        self.requests += 1
        try:
            page = await self._http.get(f"{self.api_url}?{pairs}", robots=False)
            return _answer(page)
        except HandlerError as error:
            # A message has the address of the wiki, not the fifty titles of the question.
            text = str(error).replace(shown(f"{self.api_url}?{pairs}"), shown(self.api_url))
            if isinstance(error, Transient):
                raise Transient(
                    text,
                    code=error.code,
                    retry_after=error.retry_after,
                    hold_lane_seconds=error.hold_lane_seconds,
                ) from None
            raise Permanent(text, code=error.code) from None


def api_url(wiki: str) -> str:
    """The api.php of a language edition ("de") or of the wiki at a URL."""
    wiki = wiki.strip()
    if _LANGUAGE.fullmatch(wiki.lower()):
        return f"https://{wiki.lower()}.wikipedia.org/w/api.php"
    try:
        url = parse_url(wiki)
    except Permanent:
        url = None
    if url is None or "?" in url.href or not url.href.endswith("api.php"):
        raise SettingsError(
            f"wiki: {shown(wiki, chars_max=80)!r} is neither a language, such as de, nor the URL of"
            " an api.php, such as https://de.wikipedia.org/w/api.php (its Special:Version names it)"
        )
    return url.href


def check_title(title: str) -> None:
    """Raise `Permanent` (`invalid_title`) for what no wiki takes as a title."""
    fault = _fault(title)
    if fault is not None:
        raise _invalid(title, fault)


def _fault(title: str) -> str | None:
    if not title.strip(" _"):
        return "it is empty"
    if found := _INVALID.search(title):
        return f"the character {found.group()!r} cannot be in one"
    if len(title.encode()) > TITLE_BYTES_MAX:
        return f"it has more than {TITLE_BYTES_MAX} bytes"
    return None


def _invalid(title: str, why: str) -> Permanent:
    name = one_line(title, chars_max=80)
    return Permanent(f"{name!r} is not a title: {why}", code="invalid_title")


def _answer(page: Page) -> dict[str, Any]:
    """The JSON of an answer. Raises by its status and by the error the API reports in it."""
    told = page.headers.get("mediawiki-api-error", "")
    if page.status >= 400 and not told:
        _check(page)
    try:
        answer = json.loads(page.body)
    except (ValueError, RecursionError):
        if page.status >= 400:
            _check(page)
        raise _nonsense(
            page.url, "its answer is not JSON; is it the address of an api.php?"
        ) from None
    if not isinstance(answer, dict):
        raise _nonsense(page.url, "its answer is not an object")
    if "error" in answer:
        _raise_reported(answer["error"], page)
    _check(page)
    return answer


def _check(page: Page) -> None:
    try:
        check_status(page)
    except Transient as error:
        if error.retry_after:
            error.hold_lane_seconds = error.retry_after
        raise


def _raise_reported(error: object, page: Page) -> None:
    details = error if isinstance(error, dict) else {}
    name = one_line(str(details.get("code", "unknown")), chars_max=60)
    info = one_line(str(details.get("info", "")), chars_max=200)
    message = f"{shown(page.url.partition('?')[0])} says {name}: {info}"
    if name.startswith(_TRANSIENT_ERRORS):
        known = name if name in ("maxlag", "readonly", "ratelimited") else "wiki_error"
        hold = (page.retry_after or 0.0) if known != "wiki_error" else 0.0
        raise Transient(message, code=known, retry_after=page.retry_after, hold_lane_seconds=hold)
    raise Permanent(message, code="wiki_refused" if name in _REFUSALS else "wiki_error")


def _mapping(answer: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = answer.get(key, {})
    if not isinstance(value, dict):
        raise _nonsense("the wiki", f"its {key} is not an object")
    return value


def _nonsense(url: str, why: str) -> Transient:
    return Transient(f"{shown(url.partition('?')[0])}: {why}", code="bad_answer")


def _take(query: Mapping[str, Any], found: _Found) -> None:
    """Add what one answer holds. Whatever has another shape than promised is a `bad_answer`."""
    try:
        for kind in ("normalized", "converted", "redirects"):
            for pair in query.get(kind, ()):
                start = unquote(pair["from"]) if pair.get("fromencoded") else str(pair["from"])
                found.onward[start] = str(pair["to"])
                if kind == "redirects":
                    found.redirects[start] = str(pair["to"])
        for foreign in query.get("interwiki", ()):
            found.strange[str(foreign["title"])] = "it is on another wiki"
        for page in query.get("pages", ()):
            raw = found.pages.setdefault(str(page["title"]), _Raw({}))
            raw.head.update(page)
            for name, most in (
                ("links", LINKS_MAX),
                ("categories", CATEGORIES_MAX),
                ("redirects", REDIRECTS_MAX),
            ):
                titles = raw.lists.setdefault(name, [])
                titles += [str(one["title"]) for one in page.get(name, ())]
                if len(titles) > most:
                    del titles[most:]
                    raw.cut.add(name)
    except (KeyError, TypeError, AttributeError):
        raise _nonsense("the wiki", "its answer has another shape than an api.php gives") from None


def _end(title: str, found: _Found) -> str:
    """Where a title leads; a title of a circle, if it leads into one."""
    seen = {title}
    while (following := found.onward.get(title)) is not None:
        if following in seen:
            return title
        seen.add(following)
        title = following
    return title


def _size(title: str, found: _Found) -> int:
    page = found.pages.get(_end(title, found))
    return 0 if page is None else sum(len(titles) for titles in page.lists.values())


def _articles(titles: Sequence[str], found: _Found) -> dict[str, Article | HandlerError]:
    return {title: _article(title, found) for title in titles}


def _article(title: str, found: _Found) -> Article | HandlerError:
    try:
        return _read(title, found)
    except HandlerError as error:
        return error
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        return _nonsense("the wiki", f"what it says of {title!r} is no page")


def _read(title: str, found: _Found) -> Article:
    end = _end(title, found)
    named = repr(one_line(title, chars_max=80))
    if end in found.redirects:
        raise Permanent(f"{named}: its redirects go in a circle", code="redirect_loop")
    if end in found.strange:
        raise _invalid(title, found.strange[end])
    if not end:
        raise _invalid(title, "nothing is left of it without its fragment")
    raw = found.pages.get(end)
    if raw is None:
        raise _nonsense("the wiki", f"its answer leaves out {named}")
    head = raw.head
    if head.get("invalid"):
        raise _invalid(title, one_line(str(head.get("invalidreason", "")), chars_max=200))
    if head.get("missing") or head.get("special"):
        raise Permanent(f"there is no article {named}", code="not_found")
    if head["ns"] != 0:
        raise Permanent(f"{named} is not among the articles", code="not_an_article")
    if head.get("redirect"):
        raise Permanent(f"{named} leads to {end!r}, which is a redirect too", code="redirect_loop")
    revision = head["revisions"][0]
    slot = revision["slots"]["main"] if "slots" in revision else revision
    if slot.get("contentmodel", "wikitext") != "wikitext":
        raise Permanent(f"{named} is not written in wikitext", code="not_an_article")
    text = slot.get("content", "")  # hidden by the wiki's administrators: no text
    categories = raw.lists["categories"]
    names = tuple(name.partition(":")[2] or name for name in categories)
    if "disambiguation" in head.get("pageprops", {}) or tells_apart(text, names):
        raise Permanent(f"{named} only tells several articles apart", code="disambiguation")
    prefixes = {name.partition(":")[0] for name in categories}
    parts, shortened = sections(text, category_prefixes=prefixes)
    if shortened:
        raw.cut.add("sections")
    led = [start for start in _way(title, found) if start in found.redirects]
    return Article(
        title=str(head["title"]),
        page_id=int(head["pageid"]),
        revision=int(revision["revid"]),
        url=str(head["canonicalurl"] if "canonicalurl" in head else head["fullurl"]),
        redirects=tuple(dict.fromkeys([*led, *raw.lists["redirects"]])),
        categories=names,
        sections=parts,
        links=tuple(dict.fromkeys(raw.lists["links"])),
        cut=tuple(sorted(raw.cut)),
    )


def _way(title: str, found: _Found) -> list[str]:
    way = [title]
    while (following := found.onward.get(way[-1])) is not None and following not in way:
        way.append(following)
    return way


def _again(error: HandlerError, title: str) -> HandlerError:
    """The same failure for each who waited: an exception raised twice grows its traceback."""
    name = one_line(title, chars_max=80)
    text = str(error)
    message = text if repr(name) in text else f"{name!r}: {text}"
    if isinstance(error, Transient):
        return Transient(
            message,
            code=error.code,
            retry_after=error.retry_after,
            hold_lane_seconds=error.hold_lane_seconds,
        )
    return Permanent(message, code=error.code)
