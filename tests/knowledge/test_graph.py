"""The graph: equal to what is committed, whatever happens to its file."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from onceflow import Flow
from onceflow.knowledge import graph as graph_module
from onceflow.knowledge.graph import (
    FILE,
    Graph,
    GraphError,
    GraphMissing,
    _Child,
    _query,
    graph_status,
)
from tests.knowledge.kit import Page, changed, grown

EDGES = {
    ("Bread", "Yeast"), ("Bread", "Oven"), ("Bread", "Flour"), ("Yeast", "Bread"),
    ("Yeast", "Fungus"), ("Oven", "Bread"), ("Flour", "Bread"), ("Flour", "Flour"),
    ("Fungus", "Yeast"),
}  # fmt: skip


STATES = "MATCH (a:Article) RETURN a.expansion_state, a.expansion_depth, count(*)"
LINKS = "MATCH (a:Article)-[:LINKS_TO]->(b:Article) RETURN a.title, b.title"


async def _all(graph: Graph, *queries: str) -> list[list[tuple[Any, ...]]]:
    """What each query gives, all in one process: starting it takes most of the time."""
    child = await _Child.started()
    try:
        path = str(graph.folder / FILE)
        await child.ask({"do": "open", "path": path, "read_only": True}, 60)
        answers = [await child.ask(_query(cypher, None, 60, 1000), 60) for cypher in queries]
    finally:
        await child.end()
    return [sorted(tuple(row) for row in answer["rows"]) for answer in answers]


async def _is_equal(graph: Graph, edges: set[tuple[str, str]], *queries: str) -> list[Any]:
    """The graph has these edges, each once, and the store's counts; what else was asked."""
    states, links, *more = await _all(graph, STATES, LINKS, *queries)
    found = {(state, depth): count for state, depth, count in states}
    assert found == await graph.store_counts()
    assert set(links) == edges
    assert len(links) == len(edges)
    return more


async def test_the_graph_is_what_was_committed(flow: Flow) -> None:
    graph = Graph(flow)
    assert await graph.catch_up()
    rows, members, sections = await _is_equal(
        graph,
        EDGES,
        "MATCH (a:Article) RETURN a.title, a.expansion_state, a.expansion_depth, a.retry_count, "
        "a.loaded, a.claimed_at, a.processed_at IS NULL",
        "MATCH (a:Article)-[:IN_CATEGORY]->(c:Category) RETURN c.name, a.title",
        "MATCH (a:Article {title: 'Bread'})-[:HAS_SECTION]->(s:Section) "
        "RETURN s.n, s.heading, s.level, s.anchor, s.text <> ''",
    )
    assert rows == [
        ("Bread", "processed", 0, 0, True, None, False),
        ("Flour", "processed", 1, 0, True, None, False),
        ("Fungus", "processed", 2, 0, True, None, False),
        ("Nowhere", "failed", 1, 1, False, None, False),
        ("Oven", "processed", 1, 0, True, None, False),
        ("Yeast", "processed", 1, 0, True, None, False),
    ]
    assert members == [
        ("Baking", "Bread"), ("Baking", "Yeast"), ("Foods", "Bread"), ("Foods", "Flour"),
        ("Fungi", "Yeast"), ("Kitchen", "Oven"),
    ]  # fmt: skip
    assert sections == [
        (0, "", 1, "", True), (1, "History", 2, "History", True), (2, "Baking", 2, "Baking", True),
        (3, "Gallery", 2, "Gallery", False),
    ]  # fmt: skip


async def test_taking_in_again_changes_nothing(lone: Flow) -> None:
    graph = Graph(lone)
    await graph.catch_up()
    before = (graph.folder / FILE).read_bytes()
    again = Graph(lone)
    await again.catch_up()
    assert again.rebuilt == 0
    assert (graph.folder / FILE).read_bytes() == before
    again._seq = 0
    async with again._owned(5):
        await again._open_writer()
        await again._take_in()  # every event again
    await _is_equal(again, EDGES)


async def test_it_follows_what_is_loaded_later_and_again(
    flow: Flow, world: dict[str, Page]
) -> None:
    graph = Graph(flow)
    await graph.catch_up()
    world["Nowhere"] = Page([("", "A place.")], links=["Bread"], categories=["Places"])
    world["Yeast"].links = ["Oven", "Bread"]
    world["Yeast"].categories = ["Baking"]
    world["Yeast"].sections = world["Yeast"].sections[:1]
    world["Yeast"].revision = 2
    await flow.retry("expand", keys=["Nowhere", "Yeast"], from_stage="load")
    await flow.drain()
    status = await graph_status(flow)
    assert status is not None
    assert status.lag.events > 0
    await graph.catch_up()
    assert graph.rebuilt == 1  # the first time only
    changed = EDGES - {("Yeast", "Fungus")} | {
        ("Yeast", "Oven"), ("Nowhere", "Bread"), ("Bread", "Nowhere")
    }  # fmt: skip
    names, sections = await _is_equal(
        graph,
        changed,
        "MATCH (c:Category) RETURN c.name",
        "MATCH (s:Section {title: 'Yeast'}) RETURN count(*)",
    )
    assert names == [("Baking",), ("Foods",), ("Kitchen",), ("Places",)]
    assert sections == [(1,)]
    status = await graph_status(flow)
    assert status is not None
    assert (status.lag.events, status.is_whole) == (0, True)


async def test_other_names_of_an_article_make_its_edges_anew(
    lone: Flow, world: dict[str, Page]
) -> None:
    graph = Graph(lone)
    await graph.catch_up()
    world["Bread"].redirects = ["Loaf"]
    world["Fungus"].links = ["Loaf"]
    await lone.retry("expand", keys=["Bread", "Fungus"], from_stage="load")
    await lone.drain()
    await graph.catch_up()
    gone = {("Fungus", "Yeast"), ("Yeast", "Bread")}
    await _is_equal(graph, EDGES - gone | {("Fungus", "Bread")})


async def test_a_shorter_way_that_was_found_later_is_in_the_graph(flow: Flow) -> None:
    """It changes an article's depth, and no event of that article tells of it."""
    graph = Graph(flow)
    await graph.catch_up()
    await flow.add("expand", ["Fungus"])
    assert (await flow.item("expand", "Fungus")).depth == 0
    await graph.catch_up()
    depth = "MATCH (a:Article {title: 'Fungus'}) RETURN a.expansion_depth"
    assert await _is_equal(graph, EDGES, depth) == [[(0,)]]


HARM = ["deleted", "truncated", "noise", "empty", "beside", "mark", "seq"]


@pytest.mark.parametrize("harm", HARM)
async def test_F23_a_damaged_graph_is_made_again(
    tmp_path: Path, world: dict[str, Page], harm: str
) -> None:
    flow = await grown(str(tmp_path / "a.db"), world)
    try:
        graph = Graph(flow)
        await graph.catch_up()
        file = graph.folder / FILE
        whole = file.read_bytes()
        match harm:
            case "deleted":
                file.unlink()
            case "truncated":
                file.write_bytes(whole[: len(whole) // 2])
            case "noise":
                file.write_bytes(whole[:9000] + os.urandom(5000) + whole[14000:])
            case "empty":
                file.write_bytes(b"")
            case "beside":
                (graph.folder / f"{FILE}.wal").write_bytes(os.urandom(500))
            case "mark":
                (graph.folder / "graph.json").write_text("{")
            case "seq":
                changed(graph.folder / "graph.json", r'"seq": \d+', '"seq": "x"')
        again = Graph(flow)
        await again.catch_up()
        assert again.rebuilt == 1
        await _is_equal(again, EDGES)
    finally:
        await flow.__aexit__(None, None, None)


async def test_F23_a_writer_that_was_killed_leaves_nothing_that_counts(lone: Flow) -> None:
    """-9 for the process that has the file, in the middle of a transaction."""
    graph = Graph(lone)
    await graph.catch_up()
    writing = Graph(lone)
    async with writing._owned(5):
        child = await writing._open_writer()
        await child.ask(
            {"do": "query", "cypher": "BEGIN TRANSACTION", "seconds": 5, "rows_max": 1}, 10
        )
        await child.ask(
            {"do": "query", "cypher": "MATCH (a:Article {title: 'Oven'}) SET a.expansion_depth = 9",
             "seconds": 5, "rows_max": 1}, 10,
        )  # fmt: skip
        os.kill(child._process.pid, signal.SIGKILL)
        await child._process.wait()
    status = await graph_status(lone)
    assert status is not None
    assert not status.is_whole
    again = Graph(lone)
    await again.catch_up()
    assert again.rebuilt == 1
    await _is_equal(again, EDGES)


async def test_one_writes_and_the_others_read_beside_it(lone: Flow) -> None:
    graph, other = Graph(lone), Graph(lone)
    await graph.catch_up()
    over = asyncio.Event()
    following = asyncio.create_task(graph.follow(over))
    async with asyncio.timeout(60):
        while graph._writer is None:
            await lone.add("expand", [f"Missing {os.urandom(2).hex()}"])
            await asyncio.sleep(0.05)
        assert await other.catch_up(wait_seconds=0) is False
        await lone.drain()
        while True:
            with suppress(AssertionError):
                await _is_equal(other, EDGES)
                break
    over.set()
    await following
    status = await graph_status(lone)
    assert status is not None
    assert status.is_whole


async def test_without_the_library_it_says_what_to_install(
    lone: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_module, "find_spec", lambda name: None)
    with pytest.raises(GraphMissing, match=r"pip install '.*\[graph\]'"):
        await Graph(lone).catch_up()


async def test_an_endless_query_is_ended(lone: Flow) -> None:
    graph = Graph(lone)
    await graph.catch_up()
    endless = (
        "MATCH (a:Article)-[:LINKS_TO*1..30]->(b:Article)-[:LINKS_TO*1..30]->(c:Article) "
        "RETURN count(*)"
    )
    with pytest.raises(GraphError, match="was ended"):
        await graph.query(endless, seconds=0.5)
    found = await graph.query("MATCH (a:Article) RETURN a.title ORDER BY a.title", rows_max=2)
    assert (found.rows, found.more) == ((("Bread",), ("Flour",)), True)
