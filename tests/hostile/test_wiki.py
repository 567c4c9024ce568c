"""Section 4 of the hostile cases, the wiki's part: odd titles, monstrous articles, circles."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import onceflow
from onceflow.clients import Article, Embedder, FetchSettings, Wikipedia
from onceflow.clients import wikipedia as module
from onceflow.clients.wikitext import SECTIONS_MAX
from onceflow.core.errors import Permanent
from onceflow.pipelines.expand import Expand
from onceflow.testing.wiki import ALLOWED, WikiPage, WikiSite


@asynccontextmanager
async def wiki_of(pages: Mapping[str, WikiPage]) -> AsyncIterator[Wikipedia]:
    settings = FetchSettings(allow_networks=ALLOWED)
    async with (
        WikiSite(pages) as site,
        Wikipedia(site.api_url, contact="t@example.org", settings=settings) as wiki,
    ):
        yield wiki


async def outcome(wiki: Wikipedia, title: str) -> str:
    try:
        return (await wiki.load(title)).title
    except Permanent as error:
        return error.code


ODD = (
    "AC/DC", "/", "//x//", "Who?", "What? Who?action=delete", "A&titles=B", "A=B", "100 % sure",
    "C++", "..Dots", "A/../B", "\u05e9\u05dc\u05d5\u05dd", "\u202eRight to left", "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "N" + "o" * 254, "\u6d77" * 85,
    "'; DROP TABLE item; --", "Robert'); MATCH (n) DETACH DELETE n //", "$(reboot)", "CON",
    "Quote \"x\"", "Back\\slash", "Z*",
)  # fmt: skip


@pytest.mark.parametrize("together", [True, False])
async def test_D22_odd_titles_lead_to_their_article_or_to_none(together: bool) -> None:
    """Each to the article of just this name; alone and in one request with all the others."""
    async with wiki_of({title: WikiPage(f"about {title}") for title in ODD}) as wiki:
        if together:
            loaded = await asyncio.gather(*(outcome(wiki, title) for title in ODD))
        else:
            loaded = [await outcome(wiki, title) for title in ODD]
        assert list(loaded) == list(ODD)


@pytest.mark.parametrize(
    "title",
    ["a\0b", "%00", "..", ".", "x" * 300, "\u6d77" * 86, "#", "#only", "<b>", "a|AC/DC", "[[x]]",
     "{{x}}", "", "\ud83d", "a\x1fb", "a\x7f", "a\rb"],
)  # fmt: skip
async def test_D22_what_cannot_be_a_title_is_refused(title: str) -> None:
    """Also in the middle of others, which it must not disturb."""
    async with wiki_of({"AC/DC": WikiPage("a band"), "A": WikiPage("a letter")}) as wiki:
        first, refused, last = await asyncio.gather(
            outcome(wiki, "A"), outcome(wiki, title), outcome(wiki, "AC/DC")
        )
        assert (first, last) == ("A", "AC/DC")
        assert refused == "invalid_title"


async def test_D22_a_fragment_is_no_part_of_a_title() -> None:
    async with wiki_of({"C": WikiPage("a letter")}) as wiki:
        assert await outcome(wiki, "C#") == "C"
        assert await outcome(wiki, "C#.NET?x=%00") == "C"
        assert await outcome(wiki, "C sharp#") == "not_found"


async def test_D23_monstrous_articles_are_cut_and_say_so() -> None:
    """500,000 links, 50,000 sections: bounded, and a neighbour in the same request is whole."""
    pages = {
        "Links": WikiPage("many", tuple(f"L{number}" for number in range(500_000))),
        "Sections": WikiPage("".join(f"== S {number} ==\ntext\n" for number in range(50_000))),
        "Plain": WikiPage("plain", ("Links", "Sections"), ("Calm",)),
    }
    async with wiki_of(pages) as wiki:
        links, sections, plain = await asyncio.gather(*(wiki.load(title) for title in pages))
        assert len(links.links) == module.LINKS_MAX
        assert links.cut == ("links",)
        assert links.sections[0].text == "many"
        assert len(sections.sections) == SECTIONS_MAX
        assert sections.cut == ("sections",)
        assert (plain.links, plain.categories, plain.cut) == (("Links", "Sections"), ("Calm",), ())
        assert wiki.requests < 4 * module.ROUNDS_MAX


async def test_D23_categories_that_hold_each_other_are_only_names() -> None:
    pages = {
        "A": WikiPage("a", (), ("Loop one",)),
        "Category:Loop one": WikiPage("x", (), ("Loop two",), namespace=14),
        "Category:Loop two": WikiPage("y", (), ("Loop one",), namespace=14),
    }
    async with wiki_of(pages) as wiki:
        article = await wiki.load("A")
        assert article.categories == ("Loop one",)
        assert wiki.requests == 1
        assert await outcome(wiki, "Category:Loop one") == "not_an_article"


async def test_D23_an_endless_continuation_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wiki that always says there is more, with ever new marks."""
    rounds = 0

    async def more(self: Wikipedia, query: Mapping[str, str]) -> dict[str, object]:
        nonlocal rounds
        rounds += 1
        page: dict[str, object] = {
            "pageid": 1, "ns": 0, "title": "A", "canonicalurl": "http://a.test/A",
            "revisions": [{"revid": 1, "content": "x"}], "links": [{"title": f"L{rounds}"}],
        }  # fmt: skip
        return {"continue": {"plcontinue": str(rounds)}, "query": {"pages": [page]}}

    monkeypatch.setattr(Wikipedia, "_get", more)
    async with wiki_of({}) as wiki:
        article = await wiki.load("A")
    assert isinstance(article, Article)
    assert article.cut == ("links",)
    assert rounds <= 2 * module.ROUNDS_MAX


async def test_D24_a_circle_of_redirects_ends_and_both_are_told() -> None:
    pages = {
        "This": WikiPage(redirect="That"),
        "That": WikiPage(redirect="This"),
        "Into": WikiPage(redirect="This"),
        "A": WikiPage("a", ("This", "That", "Into")),
    }
    async with wiki_of(pages) as wiki:
        ended = await asyncio.gather(*(outcome(wiki, title) for title in pages))
        assert list(ended) == ["redirect_loop"] * 3 + ["A"]
        assert wiki.requests == 1


class OneNumber:
    """An embedding model that costs nothing."""

    name = "one"

    async def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, float(len(text))] for text in texts]

    async def close(self) -> None: ...


async def expanded(tmp_path: Path, pages: Mapping[str, WikiPage], *seeds: str) -> dict[str, str]:
    """What became of every title: the error's code, or its state. The audit finds nothing."""
    async with wiki_of(pages) as wiki:
        table = Expand(wiki, Embedder(OneNumber())).pipeline()
        async with onceflow.open(tmp_path / "expand.db", table) as flow:
            await flow.add(table, seeds)
            await flow.drain()
            assert await flow.audit() == []
            items = await flow.items(table, limit=1000)
            return {item.key: item.error_code or item.state for item in items}


async def test_D22_odd_titles_are_keys_of_their_own(tmp_path: Path) -> None:
    pages = {title: WikiPage(f"about {title}") for title in ODD}
    ended = await expanded(tmp_path, {"Start": WikiPage("x", tuple(pages)), **pages}, "Start")
    assert ended == dict.fromkeys(["Start", *pages], "processed")


async def test_D23_circles_of_links_and_categories_end(tmp_path: Path) -> None:
    loop = ("Loop one", "Loop two")
    pages = {
        "A": WikiPage("a", ("A", "B"), loop),
        "B": WikiPage("b", ("A", "B", "C"), loop),
        "C": WikiPage("c", ("A",), loop),
        "Category:Loop one": WikiPage("x", ("A",), ("Loop two",), namespace=14),
        "Category:Loop two": WikiPage("y", ("A",), ("Loop one",), namespace=14),
    }
    assert await expanded(tmp_path, pages, "A") == dict.fromkeys("ABC", "processed")


async def test_D24_both_titles_of_a_circle_are_recorded(tmp_path: Path) -> None:
    pages = {
        "A": WikiPage("a", ("This", "That")),
        "This": WikiPage(redirect="That"),
        "That": WikiPage(redirect="This"),
    }
    assert await expanded(tmp_path, pages, "A") == {
        "A": "processed",
        "This": "redirect_loop",
        "That": "redirect_loop",
    }
