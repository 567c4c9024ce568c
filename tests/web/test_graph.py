"""The graph page and what it asks for: the same as what is committed, drawn, searched and live."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import onceflow
from onceflow.web import graph as web_graph
from onceflow.web import pages
from tests.knowledge.kit import bread, expand, grown
from tests.web.browser import Watch, browser
from tests.web.kit import Server, served

DRAWN = "#picture[data-drawn]"
needs_scripts = pytest.mark.skipif(
    not all((web_graph.VENDOR / name).exists() for name in web_graph.SCRIPTS),
    reason="sigma and graphology are not in place: make setup",
)


async def _grow(database: str) -> None:
    flow = await grown(database, bread())
    await flow.__aexit__(None, None, None)


async def _add(database: str, *titles: str) -> None:
    async with onceflow.open(database, expand(bread())) as flow:
        await flow.add("expand", titles)


@contextmanager
def _served(folder: Path, *flags: object) -> Iterator[tuple[Server, str]]:
    database = str(folder / "a.db")
    asyncio.run(_grow(database))
    with served(folder, database, "--no-worker", *flags) as server:
        yield server, database


def _settled(server: Server, path: str) -> Any:
    """The answer as soon as index and graph have caught up."""
    with server.client() as client:
        while True:
            found = client.get(path).json()
            if not found["note"] and (found.get("nodes") or found.get("sections")):
                return found


def test_the_api_gives_the_graph_its_articles_and_search(tmp_path: Path) -> None:
    with _served(tmp_path) as (server, _), server.client() as client:
        found = _settled(server, "/api/graph")
        titles = {node["id"]: node["title"] for node in found["nodes"]}
        assert (found["shown"], found["total"], found["edges_cut"]) == (6, 6, False)
        assert ("Bread", "Flour") in {(titles[a], titles[b]) for a, b in found["edges"]}
        assert found["nodes"][0] == {
            "id": 1, "title": "Bread", "state": "processed", "depth": 0, "loaded": True
        }  # fmt: skip
        few = client.get("/api/graph?limit=2").json()
        assert (few["shown"], few["total"], len(few["nodes"])) == (2, 6, 2)
        one = client.get("/api/graph/articles/1").json()
        assert [node["title"] for node in one["links_to"]] == ["Flour", "Oven", "Yeast"]
        assert (one["links"], one["linked"]) == (3, 3)
        assert one["sections"] == ["History", "Baking", "Gallery"]
        assert one["url"] == "https://wiki.test/wiki/Bread"
        assert client.get("/api/graph/articles/99").json()["note"] == "there is no such article"
        found = _settled(server, "/api/search?q=Yeast")
        assert [node["title"] for node in found["titles"]] == ["Yeast"]
        assert found["sections"][0]["title"] == "Yeast"
        assert client.get("/api/search").status_code == 422


def test_a_database_without_articles_says_so(tmp_path: Path) -> None:
    flags = (tmp_path, str(tmp_path / "a.db"), "--no-worker")
    with served(*flags) as server, server.client() as client:
        assert "no article yet" in client.get("/api/graph").json()["note"]
        assert "<h1>Graph</h1>" in client.get("/graph").text


def test_without_its_scripts_the_page_says_how_to_get_them() -> None:
    template = pages.templates.get_template("graph.html")
    given = {"root": "", "path": "/graph", "nav": pages.NAV, "version": "1", "has_token": False}
    assert "make setup" in template.render(missing=["sigma.js"], nodes_max=1, **given)
    assert "make setup" not in template.render(missing=[], nodes_max=1, **given)


@needs_scripts
def test_the_page_draws_searches_shows_neighbours_and_grows(tmp_path: Path) -> None:
    with _served(tmp_path, "--root-path", "/once") as (server, database), browser() as chromium:
        place = server.url.removesuffix("/once")
        _settled(Server(server.process, place, server.errors), "/api/graph")
        with chromium.new_context(reduced_motion="reduce") as context:
            context.set_default_timeout(30_000)
            expect.set_options(timeout=30_000)
            watch = Watch(context, place)
            page = context.new_page()
            context.route(  # as a proxy does
                "**/once/**",
                lambda route: route.continue_(url=route.request.url.replace("/once/", "/")),
            )
            page.goto(f"{server.url}/graph")
            page.wait_for_selector(DRAWN)
            expect(page.locator("#count")).to_contain_text("6 articles shown; 9 links")
            expect(page.locator("#legend")).to_contain_text("processed 5")
            expect(page.locator("#live")).to_have_text("● live")
            page.fill("#q", "sugar into alcohol")
            expect(page.locator("#side")).to_contain_text("Yeast › Fermentation")
            page.fill("#q", "bre")
            page.press("#q", "Enter")
            page.click("#side button.name:has-text('Bread')")
            expect(page.locator("#side h2").first).to_have_text("Bread")
            expect(page.locator("#side")).to_contain_text("Links to 3")
            page.focus("#picture")
            for key in ("ArrowLeft", "+", "-", "0", "Escape"):
                page.keyboard.press(key)
            with ThreadPoolExecutor(1) as elsewhere:  # Playwright has a loop in this thread
                elsewhere.submit(asyncio.run, _add(database, "One more")).result()
            expect(page.locator("#count")).to_contain_text("7 articles shown")
            expect(page.locator("#legend")).to_contain_text("discovered 1")
            assert watch.errors == []
            assert watch.foreign == []
            _without_scripts(page, server)


def _without_scripts(page: Any, server: Server) -> None:
    """The rest of the page works without the picture."""
    page.route("**/once/static/vendor/*", lambda route: route.fulfill(body=""))
    page.goto(f"{server.url}/graph")
    expect(page.locator("#list li")).to_have_count(7)
    page.click("#list button.name:has-text('Oven')")
    expect(page.locator("#side h2")).to_have_text("Oven")
    assert page.locator("#picture").is_hidden()
