"""The expand pipeline: exactly the reachable articles, their true depths, each link once."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import onceflow
from onceflow import Flow
from onceflow.clients import Article, Embedder, FetchSettings, Wikipedia
from onceflow.commands.config import Config
from onceflow.pipelines.expand import Expand, Wiki, titled
from onceflow.store.base import Store
from onceflow.store.postgres import PostgresStore
from onceflow.store.sqlite import SqliteStore
from onceflow.testing.clock import FakeClock
from onceflow.testing.wiki import ALLOWED, WikiPage, WikiSite, depths, edges, ends, graph
from onceflow.web.desk import Desk


class FewNumbers:
    """An embedding model that costs nothing: three numbers from a text's length and letters."""

    name = "few"

    async def vectors(self, texts: Any) -> Any:
        return [[len(text), text.count("a") + 1, text.count("e") + 1] for text in texts]

    async def close(self) -> None: ...


@pytest.fixture
async def site() -> AsyncIterator[WikiSite]:
    pages = graph(articles=60, links=240, seed=3, redirects=20, apart=3, missing=4)
    async with WikiSite(pages) as wiki:
        yield wiki


def expand(site: WikiSite, **options: Any) -> Expand:
    wiki = Wikipedia(
        site.api_url,
        contact="tests@example.org",
        settings=FetchSettings(allow_networks=ALLOWED),
        connections=4,
    )
    return Expand(wiki, Embedder(FewNumbers()), **{"backoff_seconds": 0.01, **options})


async def articles(flow: Flow, run: str | None = None) -> dict[str, Mapping[str, Any]]:
    """Every node: what was loaded, with its depth and state; titles that only lead to one left
    out."""
    found: dict[str, Mapping[str, Any]] = {}
    for item in await flow.items("expand", run=run):
        body = await flow.result(item.id, "load")
        if body is not None and "same_as" not in body:
            assert body["title"] == item.key, "the key is the article's own title"
            assert item.key not in found
            found[item.key] = {**body, "depth": item.depth, "state": item.state}
    return found


def linked(pages: Mapping[str, WikiPage], nodes: Mapping[str, Mapping[str, Any]]) -> set[Any]:
    """The edges, found as a reader of the results finds them: through the articles' names."""
    return {
        (title, end)
        for title, body in nodes.items()
        for link in body["links"]
        if (end := ends(pages, link)) in nodes
    }


async def test_everything_that_can_be_reached_is_there_once(database: str, site: WikiSite) -> None:
    job = expand(site)
    async with onceflow.open(database, job.pipeline()) as flow:
        await flow.add("expand", ["Topic 0"])
        await flow.drain()
        nodes = await articles(flow)
        assert {title: body["depth"] for title, body in nodes.items()} == depths(
            site.pages, ["Topic 0"]
        )
        assert linked(site.pages, nodes) == edges(site.pages, nodes)
        counts = await flow.counts("expand")
        failed = {item.key: item.error_code for item in await flow.items("expand", state="failed")}
        assert set(failed.values()) == {"not_found", "disambiguation"}
        assert set(counts) == {"processed", "failed"}
        assert await flow.audit() == []


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_articles_at_the_depth_limit_are_loaded_but_not_followed(
    database: str, site: WikiSite, depth: int
) -> None:
    async with onceflow.open(database, expand(site).pipeline()) as flow:
        await flow.add("expand", ["Topic 0"], max_depth=depth)
        await flow.drain()
        nodes = await articles(flow)
        found = {title: body["depth"] for title, body in nodes.items()}
        assert found == depths(site.pages, ["Topic 0"], depth_max=depth)


async def test_max_articles_is_exact(database: str, site: WikiSite) -> None:
    job = expand(site)
    async with onceflow.open(database, job.pipeline()) as flow:
        added = await flow.add("expand", ["Topic 0"], max_items=25)
        await flow.drain()
        assert (await flow.run(added.run)).accepted == 25
        assert len(await flow.items("expand", run=added.run)) == 25

        more = await flow.add("expand", ["Topic 0"], max_items=40)
        await flow.drain()
        assert (await flow.run(more.run)).accepted == 40
        assert (await flow.run(added.run)).accepted == 25
        assert await flow.audit() == []


async def test_a_redirect_is_the_article_whichever_is_found_first(database: str) -> None:
    pages = {
        "Start": WikiPage("text", links=("Alias one", "Other")),
        "Other": WikiPage("text", links=("Target", "Alias two")),
        "Target": WikiPage("text", links=("Beyond",)),
        "Beyond": WikiPage("text"),
        "Alias one": WikiPage(redirect="Target"),
        "Alias two": WikiPage(redirect="Alias one"),
        "start": WikiPage(redirect="Start"),
    }
    async with (
        WikiSite(pages) as site,
        onceflow.open(database, expand(site).pipeline()) as flow,
    ):
        await flow.add("expand", ["Start"])
        await flow.drain()
        nodes = await articles(flow)
        assert {title: body["depth"] for title, body in nodes.items()} == {
            "Start": 0, "Other": 1, "Target": 1, "Beyond": 2,
        }  # fmt: skip
        assert (await flow.item("expand", "Alias one")).key == "Target"

        await flow.add("expand", ["Alias two", "Alias one", "Target"])
        await flow.drain()
        nodes = await articles(flow)
        assert (nodes["Target"]["depth"], nodes["Beyond"]["depth"]) == (0, 1)
        assert await flow.audit() == []


async def test_titles_that_are_seeds_together_and_one_article_make_one(database: str) -> None:
    pages = {
        "Target": WikiPage("text", links=("Beyond",)),
        "Beyond": WikiPage("text"),
        **{f"Alias {number}": WikiPage(redirect="Target") for number in range(5)},
    }
    async with (
        WikiSite(pages) as site,
        onceflow.open(database, expand(site).pipeline()) as flow,
    ):
        added = await flow.add("expand", [f"Alias {number}" for number in range(5)], max_items=6)
        await flow.drain()
        assert set(await articles(flow)) == {"Target", "Beyond"}
        assert (await flow.run(added.run)).accepted == 6
        assert await flow.audit() == []


async def test_a_result_is_whole_and_has_vectors(database: str, site: WikiSite) -> None:
    async with onceflow.open(database, expand(site).pipeline()) as flow:
        await flow.add("expand", ["https://wiki.test/wiki/Topic_0#History"], max_depth=0)
        await flow.drain()
        item = await flow.item("expand", "Topic 0")
        body = await flow.result(item.id, "load")
    assert list(body) == [
        "title", "page_id", "revision", "url", "redirects", "categories", "sections", "links",
        "embed_model",
    ]  # fmt: skip
    assert [one["heading"] for one in body["sections"]] == ["", "History", "Later"]
    for one in body["sections"]:
        vector = np.frombuffer(base64.b64decode(one["vector"]), "<f4")
        assert vector.shape == (3,)
        assert float(np.linalg.norm(vector)) == pytest.approx(1)
    assert "Pages made by a generator" not in body["categories"]


async def test_only_what_changed_is_loaded_again(database: str, site: WikiSite) -> None:
    async with onceflow.open(database, expand(site).pipeline()) as flow:
        await flow.add("expand", ["Topic 0"], max_depth=1)
        await flow.drain()
        before = await articles(flow)
        one, other = list(before)[1:3]
        site.edit(one, text="'''New'''.\n== Another ==\nNew text.", links=("Topic 0", other))
        site.asked.clear()
        site.requests.clear()

        await flow.retry("expand", state="processed", from_stage="load")
        await flow.drain()

        loads = [query for query in site.requests if "revisions" in query["prop"]]
        assert {title for query in loads for title in query["titles"].split("|")} == {one}
        after = await articles(flow)
        assert after[one]["revision"] > before[one]["revision"]
        assert [part["heading"] for part in after[one]["sections"]] == ["", "Another"]
        assert after[other] == {**before[other], "unchanged": True}
        assert await flow.audit() == []


async def test_a_title_that_is_added_to_be_refreshed_is_loaded_again(
    database: str, site: WikiSite
) -> None:
    """Joining a run alone has an article do its last stage again, and that is not enough."""
    async with onceflow.open(database, expand(site).pipeline()) as flow:
        await flow.add("expand", ["Topic 0"], max_depth=0)
        await flow.drain()
        site.edit("Topic 0", text="'''New'''.\n== Another ==\nNew text.", links=("Topic 1",))

        again = await flow.add("expand", ["Topic 0"], max_depth=1, refresh=True)
        await flow.drain()

        nodes = await articles(flow, again.run)
        assert [one["heading"] for one in nodes["Topic 0"]["sections"]] == ["", "Another"]
        assert set(nodes) == {"Topic 0", "Topic 1"}
        assert (await flow.run(again.run)).finished_at is not None
        assert await flow.audit() == []


async def test_what_is_off_the_subject_is_loaded_but_not_followed(database: str) -> None:
    pages = {
        "Start": WikiPage("about a graph", links=("Near", "Far")),
        "Near": WikiPage("a graph", links=("Nearer",), categories=("Graph theory",)),
        "Far": WikiPage("bread", links=("Bakery",), categories=("Food",)),
        "Nearer": WikiPage("graphs"),
        "Bakery": WikiPage("bread"),
    }
    async with WikiSite(pages) as site:
        job = expand(site, categories=["Category:graph *"])
        async with onceflow.open(database, job.pipeline()) as flow:
            await flow.add("expand", ["Start"])
            await flow.drain()
            assert set(await articles(flow)) == {"Start", "Near", "Far", "Nearer"}
            far = await flow.item("expand", "Far")
            result = await flow.result(far.id, "link")
            assert result["off_subject"] == "in none of the categories Category:graph *"


async def test_about_keeps_to_a_meaning(tmp_path: Any) -> None:
    maths = "a graph is a set of vertices joined by edges, studied in discrete mathematics"
    bread = "bread is baked from flour, water and yeast in a hot oven by a baker"
    pages = {
        "Start": WikiPage(maths, links=("Near", "Far")),
        "Near": WikiPage(f"A tree in graph theory: {maths}", links=("Nearer",)),
        "Far": WikiPage(bread, links=("Bakery",)),
        "Nearer": WikiPage(maths),
        "Bakery": WikiPage(bread),
    }
    async with WikiSite(pages) as site:
        job = replace(
            expand(site), embedder=Embedder(), about="graph theory, a part of mathematics"
        )
        async with onceflow.open(tmp_path / "x.db", job.pipeline()) as flow:
            await flow.add("expand", ["Start"])
            await flow.drain()
            assert set(await articles(flow)) == {"Start", "Near", "Far", "Nearer"}


async def test_a_wiki_in_trouble_is_asked_again(database: str, site: WikiSite) -> None:
    for kind in ("429", "maxlag", "503", "cut"):
        site.fail(kind)
    async with onceflow.open(database, expand(site).pipeline()) as flow:
        await flow.add("expand", ["Topic 0", "Topic 1"], max_depth=0)
        async with asyncio.timeout(60):
            while (await flow.counts("expand")).get("processed") != 2:
                failed = await flow.items("expand", state="failed")
                if failed:
                    await flow.retry("expand")
                await flow.drain()
        assert await flow.audit() == []


async def test_a_wiki_that_refuses_pauses_all_and_fails_nothing(
    database: str, site: WikiSite
) -> None:
    site.fail("denied", times=1)
    async with onceflow.open(database, expand(site).pipeline()) as flow:
        await flow.add("expand", ["Topic 0"], max_depth=0)
        await flow.drain()
        assert await flow.counts("expand") == {"discovered": 1}
        assert "resume" in await flow.why("expand", "Topic 0")
        await flow.resume("expand", "load")
        await flow.drain()
        assert await flow.counts("expand") == {"processed": 1}


async def test_depths_are_counted_for_the_api(tmp_path: Path, site: WikiSite) -> None:
    async with onceflow.open(tmp_path / "x.db", expand(site).pipeline()) as flow:
        desk = Desk(flow, cast(Any, None))
        await flow.add("expand", ["Topic 0"], max_depth=1)
        await flow.drain()
        found = await desk.depths()
        true = depths(site.pages, ["Topic 0"], depth_max=1)
        assert found["expand"]["0"] == 1
        assert found["expand"]["1"] >= len(true) - 1


class Odd(Wiki):
    """A wiki with titles that cannot be items."""

    async def load(self, title: str) -> Article:
        odd = ("gate:x", "x" * 9000, "#only", "\x01")
        links = (*odd, "Beyond") if title == "Start" else ()
        redirects = (*odd, "Begin") if title == "Start" else ()
        return Article(title, 1, 1, "", redirects, (), (), links)

    async def revisions(self, titles: Any) -> dict[str, int | None]:
        return dict.fromkeys(titles)


async def test_links_and_redirects_that_cannot_be_items_are_passed_over(database: str) -> None:
    async with onceflow.open(database, Expand(Odd(), Embedder(FewNumbers())).pipeline()) as flow:
        await flow.add("expand", ["Start"])
        await flow.drain()
        assert await flow.counts("expand") == {"processed": 2}
        assert (await flow.item("expand", "Begin")).key == "Start"
        assert (await flow.item("expand", "Beyond")).depth == 1


class Stuck:
    """A wiki whose first answer comes when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun = asyncio.Event()
        self.answer = asyncio.Event()

    async def load(self, title: str) -> Article:
        self.asked.append(title)
        self.begun.set()
        if len(self.asked) == 1:
            await self.answer.wait()
        number = len(self.asked)
        return Article(title, 1, number, "", (), (), (), ("Beyond",) if title == "Start" else ())

    async def revisions(self, titles: Any) -> dict[str, int | None]:
        return dict.fromkeys(titles)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_an_article_that_was_taken_over_is_skipped_by_its_first_worker(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The first worker still runs, but gave no sign of life for a lease."""
    clock = FakeClock()

    def store() -> Store:
        if kind == "sqlite":
            return SqliteStore(tmp_path / "x.db", clock=clock)
        return PostgresStore(request.getfixturevalue("postgres_url"), clock=clock)

    wiki = Stuck()
    job = Expand(wiki, Embedder(FewNumbers()))
    async with (
        onceflow.open(store(), job.pipeline()) as first,
        onceflow.open(store(), job.pipeline()) as second,
    ):
        await first.add("expand", ["Start"], max_depth=1)
        first.start()
        async with asyncio.timeout(60):
            await wiki.begun.wait()
        assert (await second.item("expand", "Start")).state == "claimed"
        clock.advance(seconds=job.lease_seconds + 1)
        await second.drain()
        assert await second.counts("expand") == {"processed": 2}
        wiki.answer.set()
        await first.stop()
        assert await second.counts("expand") == {"processed": 2}
        item = await second.item("expand", "Start")
        assert [row["stage"] for row in await second.results(item.id)] == ["link", "load"]
        kinds = [event.kind async for event in second.events(item=item.id)]
        assert "reclaimed" in kinds
        assert kinds.count("stage_finished") == 2
        assert wiki.asked.count("Start") >= 2, "both have asked, and one result was stored"
        assert await second.audit() == []


def test_a_title_has_one_spelling() -> None:
    for text in ("Graph_theory", " Graph  theory ", "Graph theory#History",
                 "https://en.wikipedia.org/wiki/Graph_theory?action=view"):  # fmt: skip
        assert titled(text) == "Graph theory"
    assert titled("https://de.wikipedia.org/wiki/K%C3%B6ln") == titled("Ko\u0308ln") == "Köln"
    assert titled("AC/DC") == "AC/DC"
    assert titled("What?") == "What?"


PAGE = (Path(__file__).parents[2] / "docs" / "expand.md").read_text(encoding="utf-8")


async def test_the_program_that_the_documentation_shows_runs(
    tmp_path: Path, site: WikiSite
) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    counts = await names["grow"](str(tmp_path / "x.db"), expand(site).wiki, "Topic 0")
    assert counts["processed"] > 10


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_a_configuration_that_is_shown_is_accepted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    file.write_text(text, encoding="utf-8")
    config = Config(file, {})
    assert config.place("contact")[0] == "you@example.org"
    assert config.made("expand")[0]


def test_every_state_is_in_the_table() -> None:
    assert {
        state for state in Expand().pipeline().states.values() if f"`{state}`" not in PAGE
    } == set()


def test_the_loop_that_is_shown_is_the_example() -> None:
    example = Path(__file__).parents[2] / "examples" / "own_loop.py"
    assert example.read_text(encoding="utf-8") in PAGE
