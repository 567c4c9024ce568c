"""What a user may ask of the graph, the named queries, and the command."""

import asyncio
from pathlib import Path

import pytest

from onceflow import Flow
from onceflow.core.item import Lease
from onceflow.knowledge.cypher import judged
from onceflow.knowledge.graph import FILE, Graph, GraphError
from onceflow.knowledge.states import QUERIES, from_graph, from_store
from onceflow.store.base import Claim, Worker
from tests.cli.conftest import Answer, Call
from tests.knowledge.kit import Page, grown


@pytest.mark.parametrize(
    "text",
    [
        "CREATE (:Article {title: 'x'})",
        "MATCH (a) SET a.title = 'x'",
        "match (a) detach delete a",
        "MERGE (a:Article {title: 'x'})",
        "COPY (MATCH (a:Article) RETURN a.title) TO 'x.csv'",
        "LOAD FROM 'secrets.csv' RETURN *",
        "MATCH (a) WITH a LOAD FROM 'secrets.csv' RETURN *",
        "ATTACH 'other.lbug' AS other",
        "INSTALL json",
        "LOAD EXTENSION json",
        "EXPORT DATABASE 'there'",
        "IMPORT DATABASE 'there'",
        "DROP TABLE Article",
        "ALTER TABLE Article ADD x INT64",
        "CHECKPOINT",
        "BEGIN TRANSACTION",
        "CALL threads=5",
        "CALL show_functions() RETURN *",
        "RETURN 1; DROP TABLE Article",
        "RETURN 'it''s' /* DROP",
        "RETURN 'unfinished",
        "EXPLAIN MATCH (a) RETURN a",
        "USE GRAPH x",
        "",
        "// only a comment",
    ],
)
def test_whatever_does_more_than_read_is_refused(text: str) -> None:
    with pytest.raises(GraphError):
        judged(text)


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (a:Article) RETURN a.title LIMIT 5",
        "MATCH (a:Article) WHERE a.title = 'CREATE; DROP' RETURN a.set, a.`copy` // DELETE it",
        "UNWIND [1, 2] AS x RETURN x /* SET */",
        "CALL show_tables() RETURN *",
        "OPTIONAL MATCH (a) RETURN count(*);",
        r"RETURN 'it\'s; SET'",
    ],
)
def test_whatever_reads_is_asked(text: str) -> None:
    assert judged(f" {text} ") == text.rstrip(";")


async def test_the_named_queries_give_the_same_from_the_graph_and_the_store(
    flow: Flow, world: dict[str, Page]
) -> None:
    await flow.add("expand", ["Waits", "Held"])
    await _claimed(flow, "Held")
    graph = Graph(flow)
    await graph.catch_up()
    found = {}
    for name in QUERIES:
        from_there = await from_graph(graph, flow, name, -1)
        from_here = await from_store(flow, name, -1)
        assert from_there == from_here
        found[name] = from_here.as_dicts()
    assert found["distribution"] == [
        {"state": "processed", "count": 5, "avg_depth": 1.0},
        {"state": "claimed", "count": 1, "avg_depth": 0.0},
        {"state": "discovered", "count": 1, "avg_depth": 0.0},
        {"state": "failed", "count": 1, "avg_depth": 1.0},
    ]
    assert found["queue"] == [{"queue_size": 1}]
    assert found["progress"] == [{"loaded_count": 5, "total": 8, "percent_complete": 62.5}]
    assert [(row["title"], row["depth"]) for row in found["stale"]] == [("Held", 0)]
    assert (await from_store(flow, "stale", 300)).rows == ()


async def _claimed(flow: Flow, title: str) -> Lease:
    worker = Worker("a" * 16, "elsewhere.test", 1)
    await flow.store.beat(worker)
    item = (await flow.item("expand", title)).id
    claim = Claim("expand", "load", "", 1, item=item)
    reply = await flow.store.exchange(worker.id, 1, [], [claim])
    [lease] = reply.claimed[0].leases
    return lease


async def test_D22_any_title_is_a_key_of_the_graph(tmp_path: Path) -> None:
    titles = ["A/B", "Who?", "C# (language)", "100%25", "..", "'; DROP TABLE Article; --", "🎈",
              "\u05e9\u05dc\u05d5\u05dd", "x" * 255, "Ünï \\ \"q\" $x {y: 1}"]  # fmt: skip
    world = {title: Page([("", f"About {title}.")], links=titles) for title in titles}
    flow = await grown(str(tmp_path / "odd.db"), world, *titles)
    graph = Graph(flow)
    try:
        await graph.catch_up()
        found = await graph.query("MATCH (a:Article)-[e:LINKS_TO]->() RETURN a.title, count(e)")
    finally:
        await flow.__aexit__(None, None, None)
    assert sorted(found.rows) == sorted((title, len(titles)) for title in titles)


async def test_the_graph_on_the_command_line(flow: Flow, database: str, call: Call) -> None:
    def said(*words: str) -> Answer:
        return call("graph", *words, "--db", database)

    asked = "MATCH (a:Article {title: 'Bread'})-[:LINKS_TO]->(b) RETURN b.title ORDER BY b.title"
    found = await asyncio.to_thread(said, asked)
    assert (found.code, found.out.split()) == (0, ["B.TITLE", "Flour", "Oven", "Yeast"])
    found = await asyncio.to_thread(said, "progress", "--from", "store", "--json")
    assert found.object["total"] == 6
    found = await asyncio.to_thread(said, "CREATE (:Article {title: 'x'})")
    assert found.code == 2
    assert "a query begins with MATCH" in found.err
    folder = Graph(flow).folder
    (folder / FILE).unlink()
    found = await asyncio.to_thread(said, "rebuild", "--json")
    assert found.object == {"articles": 6, "links": 9, "sections": 9, "categories": 4}
    assert "the graph was made from 6 articles" in found.err


async def test_status_says_how_far_behind_they_are(flow: Flow, database: str, call: Call) -> None:
    def said(*words: str) -> Answer:
        return call(*words, "--db", database)

    found = await asyncio.to_thread(said, "status", "--json")
    assert found.object["knowledge"] == {"search": None, "graph": None}
    await asyncio.to_thread(said, "search", "bread")
    await Graph(flow).catch_up()
    found = await asyncio.to_thread(said, "status")
    assert "  search index  8 sections of 5 articles, up to date\n" in found.out
    assert "  graph         up to date\n" in found.out
    await flow.add("expand", ["More"])
    found = await asyncio.to_thread(said, "status")
    assert "  search index  8 sections of 5 articles, 1 event behind" in found.out
    assert "  graph         1 event behind, the oldest " in found.out
