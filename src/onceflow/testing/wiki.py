"""A small wiki on loopback that answers like MediaWiki's api.php, as badly as it is told to.

    pages = graph(articles=500, links=6000, seed=1, redirects=40, apart=5)
    async with WikiSite(pages) as site:
        wiki = Wikipedia(site.api_url, contact="t@example.org",
                         settings=FetchSettings(allow_networks=ALLOWED))
        site.fail("maxlag", times=3)

`depths`, `edges` and `ends` are what an expansion of `pages` must come to, worked out plainly. As a
program of its own, for several worker processes: `python -m onceflow.testing.wiki --help`; the
first line it writes is the URL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from urllib.parse import quote

from aiohttp import web

from onceflow.testing.site import ALLOWED, HOST

__all__ = ["ALLOWED", "WikiPage", "WikiSite", "depths", "edges", "ends", "graph"]

LISTED_MAX = 500  # links, categories or redirects in one answer, as in MediaWiki
TITLES_MAX = 50
FAILURES = (
    "429", "500", "502", "503", "maxlag", "readonly", "error", "denied", "cut", "html", "list",
    "shape", "giant", "never",
)  # fmt: skip

_INVALID = re.compile(r"[<>\[\]{}|\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}|^\.{1,2}$")
_WORDS = (
    "river bridge market winter council library engine garden harbour music theory planet glass"
    " letter forest signal history island copper teacher weather border kitchen number"
)


@dataclass(frozen=True, slots=True)
class WikiPage:
    """A page. `links` and `categories` are listed by the API whatever `text` says."""

    text: str = ""
    links: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    hidden_categories: tuple[str, ...] = ()
    redirect: str | None = None
    apart: bool = False  # a disambiguation page
    namespace: int = 0


def graph(
    articles: int,
    links: int,
    *,
    seed: int = 0,
    redirects: int = 0,
    apart: int = 0,
    missing: int = 0,
    words: int = 90,
) -> dict[str, WikiPage]:
    """A closed graph: so many articles, `Topic 0` the first, and so many links among them.

    Every article can be reached from the first. `redirects` titles (`Alias 3`) lead to articles,
    and links go through them now and then; `apart` and `missing` titles are linked to besides.
    An article has about so many `words`; from 200 on, with references, templates and a table.
    """
    if not articles - 1 <= links <= articles * (articles - 1):
        raise ValueError(f"{articles} articles cannot have {links} links and be connected")
    chance = random.Random(seed)
    names = [f"Topic {number}" for number in range(articles)]
    aliases: dict[int, list[str]] = {}
    pages: dict[str, WikiPage] = {}
    for number in range(redirects):
        target = chance.randrange(articles)
        aliases.setdefault(target, []).append(f"Alias {number}")
        pages[f"Alias {number}"] = WikiPage(redirect=names[target])
    pairs: set[tuple[int, int]] = {(chance.randrange(at), at) for at in range(1, articles)}
    while len(pairs) < links:
        start, end = chance.randrange(articles), chance.randrange(articles)
        if start != end:
            pairs.add((start, end))
    linked: list[list[str]] = [[] for _ in names]
    for start, end in sorted(pairs):
        others = aliases.get(end, [])
        linked[start].append(
            chance.choice(others) if others and chance.random() < 0.5 else names[end]
        )
    for number in range(apart):
        pages[f"Apart {number}"] = WikiPage("may be", (names[number % articles],), apart=True)
        linked[chance.randrange(articles)].append(f"Apart {number}")
    for number in range(missing):
        linked[chance.randrange(articles)].append(f"Missing {number}")
    for number, name in enumerate(names):
        own = random.Random(f"{seed} {number}")
        text = _text(name, linked[number], words, own)
        topics = (f"Group {number % 7}", f"Group {own.randrange(7, 40)}")
        pages[name] = WikiPage(text, tuple(linked[number]), topics, ("Pages made by a generator",))
    return pages


def _text(name: str, links: Sequence[str], words: int, own: random.Random) -> str:
    known = _WORDS.split()
    said = [
        " ".join(own.choices(known, k=30)).capitalize() + "." for _ in range(max(3, words // 30))
    ]
    if words < 200:
        return f"'''{name}'''. {said[0]}\n== History ==\n{said[1]}\n=== Later ===\n{said[2]}\n"
    box = "{{Infobox thing\n| name = " + name + "\n| kind = {{small|a thing}}\n| year = 1900\n}}\n"
    parts = [f"{box}'''{name}'''. {said[0]}"]
    for at, one in enumerate(said[1:], start=1):
        if at % 3 == 1:
            parts.append(f"== Part {at // 3 + 1} ==")
        source = f"{{{{cite web|url=https://a.example/{at}|title={one[:20]}}}}}"
        link = links[at % len(links)] if links else name
        parts.append(f"{one} See [[{link}|the other]].<ref name=r{at}>{source}</ref>\n")
    parts.append("{| class=wikitable\n! year !! number\n|-\n| 1900 || 7\n|}")
    return "\n".join(parts)


def ends(pages: Mapping[str, WikiPage], title: str) -> str | None:
    """The title of the article that `title` leads to; None if it leads to none."""
    seen: set[str] = set()
    while (page := pages.get(title)) is not None and page.redirect is not None:
        if title in seen:
            return None
        seen.add(title)
        title = page.redirect
    return None if page is None or page.apart or page.namespace else title


def depths(
    pages: Mapping[str, WikiPage], seeds: Iterable[str], *, depth_max: int | None = None
) -> dict[str, int]:
    """Every article that can be reached, with its shortest depth. Redirects cost none."""
    found: dict[str, int] = {}
    queue: deque[tuple[str, int]] = deque((seed, 0) for seed in seeds)
    while queue:
        title, depth = queue.popleft()
        end = ends(pages, title)
        if end is None or end in found:
            continue
        found[end] = depth
        if depth_max is None or depth < depth_max:
            queue.extend((link, depth + 1) for link in pages[end].links)
    return found


def edges(pages: Mapping[str, WikiPage], loaded: Iterable[str]) -> set[tuple[str, str]]:
    """The links among loaded articles, each once, through redirects."""
    known = set(loaded)
    pairs = {(start, ends(pages, link)) for start in known for link in pages[start].links}
    return {(start, end) for start, end in pairs if end is not None and end in known}


@dataclass(slots=True)
class _Failure:
    kind: str
    times: int
    retry_after: float | None
    title: str | None


@dataclass(slots=True)
class _Entry:
    title: str
    page_id: int
    revision: int
    page: WikiPage
    links: list[str]


@dataclass(slots=True)
class WikiSite:
    """The wiki. `asked` counts titles, `requests` holds the queries in the order they came."""

    pages: Mapping[str, WikiPage]
    delay_seconds: float = 0.0
    host: str = HOST
    port: int = 0
    flaky: float = 0.0  # the share of requests that fail in some passing way
    seed: int = 0
    requests: list[dict[str, str]] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)  # set by each request
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _aliases: dict[str, list[str]] = field(default_factory=dict)
    _failures: list[_Failure] = field(default_factory=list)
    _chance: random.Random = field(default_factory=random.Random)
    _runner: web.AppRunner | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def api_url(self) -> str:
        return f"http://{self.host}:{self.port}/w/api.php"

    def fail(
        self,
        kind: str,
        *,
        times: int = 1,
        retry_after: float | None = None,
        title: str | None = None,
    ) -> None:
        """The next `times` requests (that ask for `title`) go wrong: one of `FAILURES`."""
        if kind not in FAILURES:
            raise ValueError(f"{kind!r} is none of {', '.join(FAILURES)}")
        self._failures.append(_Failure(kind, times, retry_after, title))

    def edit(self, title: str, **changes: object) -> None:
        """Change a page: `edit("Topic 3", text="…")`. It gets a new revision."""
        entry = self._entries[title]
        entry.page = replace(entry.page, **changes)  # type: ignore[arg-type]  # checked by replace
        entry.links = _sorted(entry.page)
        entry.revision = max(one.revision for one in self._entries.values()) + 1

    async def __aenter__(self) -> WikiSite:
        self._chance.seed(self.seed)
        for number, (title, page) in enumerate(self.pages.items(), start=1):
            self._entries[title] = _Entry(title, number, 1000 + number, page, _sorted(page))
            if page.redirect is not None:
                self._aliases.setdefault(page.redirect, []).append(title)
        app = web.Application()
        app.router.add_get("/w/api.php", self._serve)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self._stopping.set()
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        query = {name: str(value) for name, value in request.query.items()}
        self.requests.append(query)
        self.arrived.set()
        titles = query.get("titles", "").split("|")
        if "continue" not in query:
            self.asked.update(titles)
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        failure = self._failure(titles)
        if failure is not None:
            return await self._failed(request, failure)
        if query.get("action") != "query" or len(titles) > TITLES_MAX:
            return _reported("badvalue", "not what this wiki knows")
        return _json(self._answer(query, titles))

    def _failure(self, titles: Sequence[str]) -> _Failure | None:
        for failure in self._failures:
            if failure.times > 0 and (failure.title is None or failure.title in titles):
                failure.times -= 1
                return failure
        if self.flaky and self._chance.random() < self.flaky:
            return _Failure(self._chance.choice(("429", "500", "503", "maxlag", "cut")), 1, 0, None)
        return None

    async def _failed(self, request: web.Request, failure: _Failure) -> web.StreamResponse:
        kind = failure.kind
        wait = failure.retry_after
        headers = {} if wait is None else {"Retry-After": f"{wait:g}"}
        if kind.isdigit():
            return web.Response(status=int(kind), headers=headers, text="<h1>not now</h1>")
        if kind in ("maxlag", "readonly", "error", "denied"):
            codes = {"error": "internal_api_error_DBQueryError", "denied": "readapidenied"}
            return _reported(codes.get(kind, kind), "as it was told to", headers)
        if kind == "html":
            return web.Response(text="<html><h1>Sign in</h1></html>", content_type="text/html")
        if kind == "list":
            return _json([1, 2, 3])
        if kind == "shape":
            return _json({"query": {"pages": [{"title": ["no"], "links": 7}], "redirects": [3]}})
        if kind == "never":
            await self._stopping.wait()
            return web.Response(status=503)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if kind == "cut":
            response.content_length = 5000
        await response.prepare(request)
        if kind == "cut":
            await response.write(b'{"batchcomplete": true, "query": {"pages": [')
        while kind == "giant":
            await response.write(b" " * 2**20)
        assert request.transport is not None
        request.transport.abort()
        return response

    def _answer(self, query: Mapping[str, str], titles: Sequence[str]) -> dict[str, Any]:
        normalized, redirects, wanted, pages = self._resolve(titles, "redirects" in query)
        props = query.get("prop", "").split("|")
        onward: dict[str, str] = {}
        continued = "continue" in query
        if not continued or "rvcontinue" in query:
            for entry, row in zip(wanted, pages, strict=False):
                self._head(entry, row, props, query)
        lists = (
            ("links", "pl", lambda one: one.links),
            ("categories", "cl", lambda one: _categories(one.page, query.get("clshow", ""))),
            ("redirects", "rd", lambda one: self._aliases.get(one.title, [])),
        )
        for name, prefix, read in lists:
            if name not in props or (continued and f"{prefix}continue" not in query):
                continue
            start = int(query.get(f"{prefix}continue", "0"))
            listed = [(row, read(entry)) for entry, row in zip(wanted, pages, strict=False)]
            flat = ((row, one) for row, titles in listed for one in titles)
            for row, one in islice(flat, start, start + LISTED_MAX):
                row.setdefault(name, []).append({"ns": 14 if prefix == "cl" else 0, "title": one})
            if start + LISTED_MAX < sum(len(titles) for _, titles in listed):
                onward[f"{prefix}continue"] = str(start + LISTED_MAX)
        answer: dict[str, Any] = {"query": {"pages": pages}}
        if normalized:
            answer["query"]["normalized"] = normalized
        if redirects:
            answer["query"]["redirects"] = redirects
        if onward:
            return {"continue": {**onward, "continue": "||info"}, **answer}
        return {"batchcomplete": True, **answer}

    def _resolve(
        self, titles: Sequence[str], follow: bool
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[_Entry], list[dict[str, Any]]]:
        """As MediaWiki does it: spelling, then redirects to their end; a circle leaves no page."""
        normalized: list[dict[str, Any]] = []
        redirects: dict[str, str] = {}
        found: dict[str, _Entry] = {}
        others: dict[str, dict[str, Any]] = {}
        for given in titles:
            title = _spelled(given)
            if title != given:
                normalized.append({"fromencoded": False, "from": given, "to": title})
            if not title:
                continue
            if _INVALID.search(title) or len(title.encode()) > 255:
                others[title] = {"title": title, "invalid": True, "invalidreason": "bad characters"}
                continue
            while (entry := self._entries.get(title)) is not None:
                if not follow or entry.page.redirect is None or title in redirects:
                    break
                redirects[title] = entry.page.redirect
                title = entry.page.redirect
            if entry is None:
                others[title] = {"ns": 0, "title": title, "missing": True}
            elif entry.page.redirect is None or not follow:
                found[title] = entry
        entries = sorted(found.values(), key=lambda one: one.page_id)
        rows: list[dict[str, Any]] = [
            {"pageid": one.page_id, "ns": one.page.namespace, "title": one.title} for one in entries
        ]
        pairs = [{"from": start, "to": end} for start, end in redirects.items()]
        return normalized, pairs, entries, [*rows, *others.values()]

    def _head(
        self, entry: _Entry, row: dict[str, Any], props: Sequence[str], query: Mapping[str, str]
    ) -> None:
        if "info" in props:
            row["lastrevid"] = entry.revision
            row["canonicalurl"] = f"http://{self.host}:{self.port}/wiki/{quote(entry.title)}"
            if entry.page.redirect is not None:
                row["redirect"] = True
        if "pageprops" in props and entry.page.apart:
            row["pageprops"] = {"disambiguation": ""}
        if "revisions" in props:
            slot = {"contentmodel": "wikitext", "content": entry.page.text}
            row["revisions"] = [{"revid": entry.revision, "slots": {"main": slot}}]


def _categories(page: WikiPage, show: str) -> list[str]:
    shown = page.categories if show == "!hidden" else (*page.categories, *page.hidden_categories)
    return sorted(f"Category:{name}" for name in set(shown))


def _sorted(page: WikiPage) -> list[str]:
    return sorted(set(page.links))


def _spelled(title: str) -> str:
    title = " ".join(title.partition("#")[0].replace("_", " ").split())
    return title[:1].upper() + title[1:]


def _json(answer: object, headers: Mapping[str, str] | None = None) -> web.Response:
    body = json.dumps(answer).encode()
    return web.Response(body=body, content_type="application/json", headers=headers)


def _reported(code: str, info: str, headers: Mapping[str, str] | None = None) -> web.Response:
    found = {"MediaWiki-API-Error": code, **(headers or {})}
    return _json({"error": {"code": code, "info": info}}, found)


async def _stand(site: WikiSite) -> None:
    async with site:
        sys.stdout.write(f"{site.api_url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a generated graph until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m onceflow.testing.wiki", description=main.__doc__
    )
    for name, kind, default in (
        *(("articles", int, 500), ("links", int, 6000), ("seed", int, 0), ("redirects", int, 0)),
        *(("apart", int, 0), ("missing", int, 0), ("words", int, 90), ("port", int, 0)),
        *(("delay-seconds", float, 0.0), ("flaky", float, 0.0)),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default)
    given = parser.parse_args(arguments)
    pages = graph(
        given.articles,
        given.links,
        seed=given.seed,
        redirects=given.redirects,
        apart=given.apart,
        missing=given.missing,
        words=given.words,
    )
    site = WikiSite(
        pages,
        delay_seconds=given.delay_seconds,
        port=given.port,
        flaky=given.flaky,
        seed=given.seed,
    )
    try:
        asyncio.run(_stand(site))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
