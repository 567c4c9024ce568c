"""A real MediaWiki with some hundred pages: what we read equals what its own API says, exactly."""

import asyncio
import html
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow.clients import Article, FetchSettings, Wikipedia
from onceflow.core.errors import Permanent
from onceflow.knowledge.graph import Graph
from onceflow.pipelines.expand import Expand
from onceflow.testing.site import ALLOWED
from tests.support import encyclopedia, mediawiki

pytestmark = [pytest.mark.wiki, pytest.mark.timeout(900)]

PAGES_MIN = 300
CODES = {
    "Mercury (names)": "disambiguation",
    "Bank": "disambiguation",
    "Circle one": "redirect_loop",
    "Circle self": "redirect_loop",
    "Nowhere": "not_found",
    "Never written": "not_found",
    "Red link/with slash?": "not_found",
    "Outside": "not_an_article",
    "Category:Waters": "not_an_article",
    "Special:Version": "not_found",
    "Talk:Topic 1": "not_found",
    "a%00b": "invalid_title",
    "..": "invalid_title",
    "<b>": "invalid_title",
    "#": "invalid_title",
}


@dataclass(slots=True)
class Told:
    """One page, by the wiki's own account."""

    page_id: int
    revision: int
    url: str
    links: set[str] = field(default_factory=set)
    categories: set[str] = field(default_factory=set)
    redirects: set[str] = field(default_factory=set)
    sections: list[tuple[int, str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Account:
    """Everything the API says, asked for one list at a time by no code of ours."""

    wiki: mediawiki.Wiki
    articles: dict[str, Told]
    ends: dict[str, str | None]  # any title that is linked to -> the article it leads to


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    try:
        folder = tmp_path_factory.mktemp("mediawiki")
        with mediawiki.serving(folder / "wiki", encyclopedia.pages()) as wiki:
            yield _account(wiki)
    except mediawiki.Unavailable as reason:
        pytest.skip(str(reason))


def _account(wiki: mediawiki.Wiki) -> Account:
    listed = {"generator": "allpages", "gapnamespace": "0", "gapfilterredir": "nonredirects"}
    listed["gaplimit"] = "50"
    articles: dict[str, Told] = {}
    for part in wiki.query(prop="info", inprop="url", **listed):
        for page in part["pages"]:
            told = Told(page["pageid"], page["lastrevid"], page["canonicalurl"])
            articles[page["title"]] = told
    lists = (
        ("links", {"plnamespace": "0", "pllimit": "500"}),
        ("categories", {"clshow": "!hidden", "cllimit": "500"}),
        ("redirects", {"rdnamespace": "0", "rdlimit": "500"}),
    )
    for prop, options in lists:
        for part in wiki.query(prop=prop, **options, **listed):
            for page in part.get("pages", ()):
                found = {one["title"] for one in page.get(prop, ())}
                getattr(articles[page["title"]], prop).update(found)
    apart = {title for title, told in articles.items()
             if "Category:Disambiguation pages" in told.categories}  # fmt: skip
    with ThreadPoolExecutor(mediawiki.WORKERS) as threads:
        for title, sections in zip(
            articles, threads.map(lambda title: _sections(wiki, title), articles), strict=True
        ):
            articles[title].sections = sections
    for title in apart:
        del articles[title]
    wanted = sorted({link for told in articles.values() for link in told.links})
    return Account(wiki, articles, _ends(wiki, wanted, articles))


def _sections(wiki: mediawiki.Wiki, title: str) -> list[tuple[int, str, str]]:
    """Those of the page's own text; headings that a template brings are marked by a T."""
    parsed = wiki.ask(action="parse", page=title, prop="sections")["parse"]["sections"]
    return [
        (int(one["level"]), _words(one["line"]), one["anchor"])
        for one in parsed
        if not one["index"].startswith("T")
    ]


def _words(line: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", line)).split())


def _ends(
    wiki: mediawiki.Wiki, titles: list[str], articles: dict[str, Told]
) -> dict[str, str | None]:
    ends: dict[str, str | None] = {}
    for start in range(0, len(titles), 50):
        part = titles[start : start + 50]
        found: dict[str, Any] = wiki.ask(action="query", titles="|".join(part), redirects="1")
        onward = {one["from"]: one["to"] for one in found["query"].get("redirects", ())}
        for title in part:
            end = title
            for _ in range(len(onward) + 1):  # enough for any chain, and a circle ends too
                end = onward.get(end, end)
            ends[title] = end if end in articles else None
    return ends


def open_wiki(account: Account) -> Wikipedia:
    settings = FetchSettings(allow_networks=ALLOWED)
    return Wikipedia(
        account.wiki.api_url, contact="t@example.org", settings=settings, connections=4
    )


def breadth_first(account: Account, seed: str, depth_max: int) -> dict[str, int]:
    found: dict[str, int] = {}
    queue = deque([(seed, 0)])
    while queue:
        title, depth = queue.popleft()
        if title in found:
            continue
        found[title] = depth
        if depth < depth_max:
            ends = [account.ends[link] for link in sorted(account.articles[title].links)]
            queue.extend((end, depth + 1) for end in ends if end is not None)
    return found


async def test_every_article_is_what_the_wiki_itself_says(account: Account) -> None:
    assert len(account.articles) >= PAGES_MIN
    async with open_wiki(account) as wiki:
        loaded = await asyncio.gather(*(wiki.load(title) for title in account.articles))
        assert wiki.requests < len(account.articles) / 4
    for (title, told), article in zip(account.articles.items(), loaded, strict=True):
        assert article.title == title
        assert (article.page_id, article.revision, article.url) == (
            told.page_id,
            told.revision,
            told.url,
        )
        assert set(article.links) == told.links, title
        assert len(article.links) == len(told.links)
        assert {f"Category:{name}" for name in article.categories} == told.categories, title
        assert set(article.redirects) == told.redirects, title
        own = [(one.level, one.heading, one.anchor) for one in article.sections[1:]]
        assert own == told.sections, title
        assert article.cut == ()


async def test_every_title_that_is_linked_to_leads_where_the_wiki_says(account: Account) -> None:
    async def end(wiki: Wikipedia, title: str) -> str | None:
        try:
            article: Article = await wiki.load(title)
        except Permanent:
            return None
        return article.title

    async with open_wiki(account) as wiki:
        found = await asyncio.gather(*(end(wiki, title) for title in account.ends))
    assert dict(zip(account.ends, found, strict=True)) == account.ends


async def test_what_is_no_article_says_why(account: Account) -> None:
    async with open_wiki(account) as wiki:
        for title, code in CODES.items():
            with pytest.raises(Permanent) as caught:
                await wiki.load(title)
            assert caught.value.code == code, title
        assert (await wiki.load("triple")).title == (await wiki.load("alias 0")).title
        known = await wiki.revisions([*account.articles, *CODES])
    assert known == {
        **dict.fromkeys(CODES),
        **{title: told.revision for title, told in account.articles.items()},
        **{
            title: known[title]
            for title in ("Mercury (names)", "Bank", "Outside", "Category:Waters")
        },
    }


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "onceflow.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.mark.parametrize("depth_max", [3, 40])
async def test_an_expansion_is_the_part_of_the_wiki_that_can_be_reached(
    account: Account, database: str, depth_max: int, tmp_path: Path
) -> None:
    """Nodes, edges, categories, sections and depths of the graph, by a search of our own."""
    expected = breadth_first(account, "Topic 0", depth_max)
    told = {title: account.articles[title] for title in expected}
    edges = {
        (title, end)
        for title, one in told.items()
        for link in one.links
        if (end := account.ends[link]) in told
    }
    job = Expand(open_wiki(account))
    async with onceflow.open(database, job.pipeline()) as flow:
        await flow.add("expand", ["topic_0"], max_depth=depth_max)
        await flow.drain()
        assert await flow.audit() == []
        failed = {item.error_code for item in await flow.items("expand", state="failed")}
        assert failed <= set(CODES.values())
        graph = Graph(flow, tmp_path / "graph")
        assert await graph.catch_up()

        async def rows(cypher: str) -> list[tuple[Any, ...]]:
            found = await graph.ask(cypher)
            assert not found.more
            return [tuple(row) for row in found.rows]

        nodes = await rows("MATCH (a:Article) WHERE a.loaded RETURN a.title, a.expansion_depth")
        assert len(nodes) == len(expected)
        assert dict(nodes) == expected
        links = await rows("MATCH (a:Article)-[:LINKS_TO]->(b:Article) RETURN a.title, b.title")
        assert (edges - set(links), set(links) - edges) == (set(), set())
        assert len(links) == len(edges)
        members = await rows(
            "MATCH (a:Article)-[:IN_CATEGORY]->(c:Category) RETURN a.title, c.name"
        )
        assert sorted(members) == sorted(
            (title, name.partition(":")[2])
            for title, one in told.items()
            for name in one.categories
        )
        sections = await rows(
            "MATCH (a:Article)-[:HAS_SECTION]->(s:Section) WHERE s.n > 0"
            " RETURN a.title, s.n, s.level, s.heading, s.anchor"
        )
        assert sorted(sections) == sorted(
            (title, n, *one)
            for title, page in told.items()
            for n, one in enumerate(page.sections, start=1)
        )
    if depth_max == 40:
        assert len(expected) >= PAGES_MIN
        assert not {"Island one", "Island two"} & set(expected)
