"""The wiki client against the double of an api.php: what it asks, what it gives, how it fails."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from onceflow.clients import Article, FetchSettings, Wikipedia
from onceflow.clients import wikipedia as module
from onceflow.clients.wikipedia import api_url
from onceflow.core.errors import HandlerError, SettingsError, Transient
from onceflow.testing.wiki import ALLOWED, WikiPage, WikiSite, depths, edges, ends, graph

PAGES = {
    "Sea": WikiPage(
        "The '''sea''' is [[water]].\n== Salt ==\nMuch.\n",
        ("Water", "Salt", "Gone"),
        ("Waters",),
        ("Hidden one",),
    ),
    "Ocean": WikiPage(redirect="Sea"),
    "Big ocean": WikiPage(redirect="Ocean"),
    "Water": WikiPage("Wet.", ("Sea",)),
    "Mercury": WikiPage("A planet or a metal", ("Sea",), apart=True),
    "Planet": WikiPage("{{Disambiguation}} or not", ("Sea",)),
    "This": WikiPage(redirect="That"),
    "That": WikiPage(redirect="This"),
    "Itself": WikiPage(redirect="Itself"),
    "Help:Me": WikiPage("how to", namespace=12),
}

Open = Callable[..., Wikipedia]


@pytest.fixture
async def site() -> AsyncIterator[WikiSite]:
    async with WikiSite(PAGES) as site:
        yield site


@pytest.fixture
async def open_wiki() -> AsyncIterator[Open]:
    made: list[Wikipedia] = []

    def open_wiki(site: WikiSite, *, fetch_seconds: float = 20, **options: object) -> Wikipedia:
        settings = FetchSettings(allow_networks=ALLOWED, fetch_seconds=fetch_seconds)
        made.append(
            Wikipedia(site.api_url, contact="t@example.org", settings=settings, **options)  # type: ignore[arg-type]  # passed on
        )
        return made[-1]

    yield open_wiki
    for wiki in made:
        await wiki.close()


async def load_all(wiki: Wikipedia, *titles: str) -> list[Article | HandlerError]:
    async def one(title: str) -> Article | HandlerError:
        try:
            return await wiki.load(title)
        except HandlerError as error:
            return error

    return list(await asyncio.gather(*(one(title) for title in titles)))


async def code(wiki: Wikipedia, title: str) -> str:
    with pytest.raises(HandlerError) as caught:
        await wiki.load(title)
    kind = "transient" if isinstance(caught.value, Transient) else "permanent"
    return f"{kind} {caught.value.code}"


async def test_an_article(site: WikiSite, open_wiki: Open) -> None:
    article = await open_wiki(site).load("Sea")
    assert (article.title, article.page_id, article.revision) == ("Sea", 1, 1001)
    assert article.url.endswith("/wiki/Sea")
    assert article.links == ("Gone", "Salt", "Water")
    assert article.categories == ("Waters",)  # not the hidden one
    assert [(one.level, one.heading, one.text) for one in article.sections] == [
        (0, "", "The sea is water."),
        (2, "Salt", "Much."),
    ]
    assert article.redirects == ("Ocean",)
    assert article.cut == ()


async def test_spelling_and_redirects_lead_to_the_canonical_title(
    site: WikiSite, open_wiki: Open
) -> None:
    wiki = open_wiki(site)
    for title in ("sea", "_Sea ", "ocean", "Big_ocean", "Sea#Salt", "big  ocean"):
        article = await wiki.load(title)
        assert article.title == "Sea", title
    assert article.redirects == ("Big ocean", "Ocean")  # those that led here first


async def test_what_is_no_article_is_permanent(site: WikiSite, open_wiki: Open) -> None:
    wiki = open_wiki(site)
    assert await code(wiki, "Gone") == "permanent not_found"
    assert await code(wiki, "Mercury") == "permanent disambiguation"
    assert await code(wiki, "Planet") == "permanent disambiguation"  # by its template
    assert await code(wiki, "This") == "permanent redirect_loop"
    assert await code(wiki, "Itself") == "permanent redirect_loop"
    assert await code(wiki, "Help:Me") == "permanent not_an_article"
    for title in (
        "",
        " _ ",
        "a|b",
        "[x]",
        "a\0b",
        "a\nb",
        "\ud800",
        "x" * 256,
        "é" * 128,
        "#x",
        "..",
    ):
        assert await code(wiki, title) == "permanent invalid_title", title


async def test_a_redirect_that_the_wiki_leaves_is_permanent(
    site: WikiSite, open_wiki: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some wikis follow one redirect only: then the page they give is a redirect itself."""
    monkeypatch.setattr(
        module, "_BASE", {k: v for k, v in module._BASE.items() if k != "redirects"}
    )
    assert await code(open_wiki(site), "Ocean") == "permanent redirect_loop"


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ("429", "transient http_429"),
        ("500", "transient http_500"),
        ("503", "transient http_503"),
        ("maxlag", "transient maxlag"),
        ("readonly", "transient readonly"),
        ("error", "transient wiki_error"),
        ("denied", "permanent wiki_refused"),
        ("cut", "transient truncated"),
        ("html", "transient bad_answer"),
        ("list", "transient bad_answer"),
        ("shape", "transient bad_answer"),
        ("giant", "permanent too_large"),
    ],
)
async def test_each_failure_has_its_code(
    site: WikiSite, open_wiki: Open, failure: str, expected: str
) -> None:
    wiki = open_wiki(site)
    site.fail(failure, times=2)  # the fetcher may ask a dropped connection a second time
    assert await code(wiki, "Sea") == expected
    site._failures.clear()
    assert (await wiki.load("Sea")).title == "Sea"


async def test_no_answer_is_a_timeout(site: WikiSite, open_wiki: Open) -> None:
    site.fail("never")
    assert await code(open_wiki(site, fetch_seconds=0.2), "Sea") == "transient timeout"


@pytest.mark.parametrize("failure", ["429", "maxlag", "503"])
async def test_the_wikis_retry_after_is_passed_on(
    site: WikiSite, open_wiki: Open, failure: str
) -> None:
    site.fail(failure, retry_after=17)
    with pytest.raises(Transient) as caught:
        await open_wiki(site).load("Sea")
    assert caught.value.retry_after == 17
    assert caught.value.hold_lane_seconds == 17  # it means everybody who asks this wiki


async def test_a_message_names_the_title_and_not_the_whole_question(
    site: WikiSite, open_wiki: Open
) -> None:
    site.fail("429")
    sea, water = await load_all(open_wiki(site), "Sea", "Water")
    assert "'Sea'" in str(sea)
    assert "'Water'" in str(water)
    assert "titles=" not in str(sea)


async def test_loads_at_the_same_time_travel_together(open_wiki: Open) -> None:
    pages = graph(120, 600, seed=3)
    async with WikiSite(pages) as site:
        wiki = open_wiki(site)
        articles = await load_all(wiki, *pages)
        assert [one.title for one in articles if isinstance(one, Article)] == list(pages)
        assert wiki.requests == len(site.requests)
        starts = [query for query in site.requests if "continue" not in query]
        assert sorted(len(query["titles"].split("|")) for query in starts) == [20, 50, 50]
        assert set(site.asked.values()) == {1}


async def test_one_title_asked_for_twice_is_asked_once(site: WikiSite, open_wiki: Open) -> None:
    first, second = await load_all(open_wiki(site), "Sea", "Sea")
    assert first == second
    assert site.asked == {"Sea": 1}


async def test_lists_are_continued_to_their_end(open_wiki: Open) -> None:
    many = tuple(f"Link {number}" for number in range(1700))
    topics = tuple(f"Topic {number}" for number in range(700))
    pages = {
        "Long": WikiPage("x", many, topics),
        "Short": WikiPage("y", ("Long",)),
        **{f"Alias {number}": WikiPage(redirect="Long") for number in range(600)},
    }
    async with WikiSite(pages) as site:
        long, short = await load_all(open_wiki(site), "Long", "Short")
        assert isinstance(long, Article)
        assert isinstance(short, Article)
        assert set(long.links) == set(many)
        assert set(long.categories) == set(topics)
        assert len(long.redirects) == 600
        assert short.links == ("Long",)
        assert long.sections[0].text == "x"
        assert len(site.requests) == 4


async def test_one_bad_page_does_not_take_the_others_with_it(open_wiki: Open) -> None:
    pages = graph(20, 60, seed=4)
    async with WikiSite(pages) as site:
        site.fail("500", times=1000, title="Topic 7")
        loaded = await load_all(open_wiki(site), *pages)
    for title, one in zip(pages, loaded, strict=True):
        if title == "Topic 7":
            assert isinstance(one, Transient)
            assert one.code == "http_500"
        else:
            assert isinstance(one, Article)


async def test_a_busy_wiki_is_not_asked_again_in_smaller_numbers(open_wiki: Open) -> None:
    pages = graph(20, 60, seed=4)
    async with WikiSite(pages) as site:
        site.fail("429", times=1000)
        loaded = await load_all(open_wiki(site), *pages)
        assert [getattr(one, "code", None) for one in loaded] == ["http_429"] * 20
        assert len(site.requests) == 1


async def test_long_titles_do_not_make_a_url_too_long(open_wiki: Open) -> None:
    titles = [f"{number:02d}" + "海" * 80 for number in range(30)]
    pages = {title: WikiPage("x") for title in titles}
    async with WikiSite(pages) as site:
        loaded = await load_all(open_wiki(site), *titles)
    assert [getattr(one, "title", one) for one in loaded] == titles


async def test_a_load_that_is_given_up_disturbs_nobody(site: WikiSite, open_wiki: Open) -> None:
    wiki = open_wiki(site, connections=1)
    given_up = asyncio.create_task(wiki.load("Water"))
    kept = asyncio.create_task(wiki.load("Sea"))
    await asyncio.sleep(0)
    given_up.cancel()
    assert (await kept).title == "Sea"
    assert given_up.cancelled()
    assert "Water" not in site.asked


async def test_closing_ends_what_is_under_way(site: WikiSite, open_wiki: Open) -> None:
    site.fail("never")
    wiki = open_wiki(site)
    load = asyncio.create_task(wiki.load("Sea"))
    await site.arrived.wait()
    await wiki.close()
    with pytest.raises(asyncio.CancelledError):
        await load


async def test_revisions_say_what_changed(site: WikiSite, open_wiki: Open) -> None:
    wiki = open_wiki(site)
    titles = ["Sea", "Ocean", "Water", "Gone", "This", "a|b"]
    before = await wiki.revisions(titles)
    assert before == {
        "Sea": 1001,
        "Ocean": 1001,
        "Water": 1004,
        "Gone": None,
        "This": None,
        "a|b": None,
    }
    site.edit("Water", text="Wetter.")
    after = await wiki.revisions(titles)
    assert [title for title in titles if before[title] != after[title]] == ["Water"]
    assert (await wiki.load("Water")).revision == after["Water"]


async def test_every_request_says_who_asks_and_yields_to_a_lagging_wiki(
    site: WikiSite, open_wiki: Open
) -> None:
    wiki = open_wiki(site)
    await wiki.load("Sea")
    assert site.requests[0]["maxlag"] == "5"
    assert "t@example.org" in wiki._http.user_agent


def test_without_a_contact_the_error_shows_the_line_to_add() -> None:
    for contact in (None, "", "  "):
        with pytest.raises(SettingsError, match=r'contact = "you@example.org"'):
            Wikipedia("en", contact=contact)


def test_a_wiki_is_a_language_or_an_api() -> None:
    assert api_url("de") == "https://de.wikipedia.org/w/api.php"
    assert api_url("zh-min-nan") == "https://zh-min-nan.wikipedia.org/w/api.php"
    assert api_url("https://Wiki.Example.org/api.php") == "https://wiki.example.org/api.php"
    for wrong in (
        "",
        "en/../x",
        "https://de.wikipedia.org",
        "ftp://a.example/api.php",
        "deutsch sprache",
    ):
        with pytest.raises(SettingsError, match=r"api\.php"):
            api_url(wrong)


def test_the_generated_graph_is_what_it_says() -> None:
    pages = graph(300, 2000, seed=5, redirects=40, apart=6, missing=7)
    articles = [title for title in pages if ends(pages, title) == title]
    assert len(articles) == 300
    found = depths(pages, ["Topic 0"])
    assert set(found) == set(articles)
    assert len(edges(pages, articles)) == 2000
    assert pages == graph(300, 2000, seed=5, redirects=40, apart=6, missing=7)
    assert max(depths(pages, ["Topic 0"], depth_max=1).values()) == 1
    with pytest.raises(ValueError, match="connected"):
        graph(10, 5)


async def test_many_loads_wait_together_for_slow_answers(open_wiki: Open) -> None:
    """While as many requests are out as may be, the others gather into the next one."""
    pages = graph(200, 400, seed=6)
    async with WikiSite(pages, delay_seconds=0.02) as site:
        wiki = open_wiki(site, connections=2)
        await load_all(wiki, *pages)
        starts = [query for query in site.requests if "continue" not in query]
        assert [len(query["titles"].split("|")) for query in starts] == [50] * 4
