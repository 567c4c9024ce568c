"""`onceflow expand`, against a wiki on loopback."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.testing.wiki import WikiPage, WikiSite, depths, edges, graph
from tests.cli.conftest import Answer, Call, finished, spawn
from tests.support.wiki import served

GRAPHML = "{http://graphml.graphdrawing.org/xmlns}"


@pytest.fixture(scope="module")
def wiki() -> Iterator[WikiSite]:
    with served(graph(articles=40, links=160, seed=5, redirects=12, apart=2, missing=2)) as site:
        yield site


@pytest.fixture
def on(call: Call, database: str, wiki: WikiSite) -> Call:
    def run(command: str, *arguments: object) -> Answer:
        flags = _flags(wiki) if command == "expand" else ()
        return call(command, *arguments, *flags, "--db", database)

    return run


def _flags(wiki: WikiSite) -> tuple[str, ...]:
    return (
        "--wiki", wiki.api_url, "--contact", "tests@example.org",
        "--allow-network", "127.0.0.2/32",
    )  # fmt: skip


def test_a_graph_is_grown_and_the_same_command_knows_it(on: Call, wiki: WikiSite) -> None:
    true = depths(wiki.pages, ["Topic 0"], depth_max=1)
    said = on("expand", "topic_0", "--depth", 1)
    assert said.code in (0, 1)  # a missing or a disambiguation page may be among them
    assert "by depth: 0: 1, 1: " in said.out
    assert 'look: onceflow search "…" --db ' in said.out
    assert "onceflow graph distribution --db " in said.out

    report = on("expand", "topic_0", "--depth", 1, "--json", "--quiet").object
    assert report["already"]
    assert (report["depths"]["0"], report["open"]) == (1, 0)

    more = on("expand", "topic_0", "--depth", 5, "--json", "--quiet").object
    assert not more["already"]
    assert more["items"] > report["items"]
    assert len(true) > 1

    refreshed = on("expand", "--refresh", "--json").object
    assert refreshed["items"] == more["items"]
    assert refreshed["done"] == more["done"]
    assert on("audit").code == 0
    assert "processed: it is done" in on("why", "Topic_0").out
    assert "processed" in on("status").out
    deep = next(row for row in on("items", "--json").lines if row["depth"] == 1)
    assert "  depth    1" in on("show", deep["id"]).out


def test_the_budget_is_exact_and_said(on: Call) -> None:
    report = on("expand", "Topic 0", "--max-articles", 9, "--json", "--quiet").object
    assert (report["items"], report["full"]) == (9, True)
    said = on("expand", "Topic 0", "--max-articles", 9)
    assert "its --max-articles is reached; with a larger one it goes on from here" in said.out


def test_graphml_has_every_article_and_every_link_once(
    on: Call, wiki: WikiSite, tmp_path: Path
) -> None:
    on("expand", "Topic 0", "--depth", 9, "--quiet")
    said = on("export", "--format", "graphml", "--out", tmp_path / "graph.graphml")
    true = depths(wiki.pages, ["Topic 0"])
    assert f"{len(true)} items" in said.err
    tree = ElementTree.parse(tmp_path / "graph.graphml")
    nodes: dict[str, dict[str, Any]] = {
        str(node.get("id")): {str(data.get("key")): data.text for data in node}
        for node in tree.iter(f"{GRAPHML}node")
    }
    assert {one["title"]: int(one["depth"]) for one in nodes.values()} == true
    found = [
        (nodes[str(edge.get("source"))]["title"], nodes[str(edge.get("target"))]["title"])
        for edge in tree.iter(f"{GRAPHML}edge")
    ]
    assert len(found) == len(set(found))
    assert set(found) == edges(wiki.pages, true)
    lines = on("export", "--pipeline", "expand", "--format", "jsonl").lines
    assert {"load", "link"} <= lines[0]["results"].keys()
    assert on("export", "--pipeline", "summarize", "--format", "graphml").code == 2


def test_a_contact_is_required_and_the_error_shows_how(call: Call, tmp_path: Path) -> None:
    said = call("expand", "Topic 0")
    assert said.code == 2
    assert 'contact = "you@example.org"' in said.err
    assert "--contact you@example.org" in said.err
    assert not (tmp_path / "onceflow.db").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("Topic 0", "--depth", "-1"), "--depth"),
        (("Topic 0", "--max-articles", "0"), "max_articles"),
        (("Topic 0", "--relevance", "2"), "relevance"),
        (("Topic 0", "--wiki", "https://example.org/"), "api.php"),
        (("--odd", "x"), "--as-titles"),
        (("Topic 0", "--follow", "--add-only"), "choose one"),
        (("", ""), "empty"),
        ((), "name titles"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(call: Call, arguments: tuple[str, ...], why: str) -> None:
    said = call("expand", *arguments, "--contact", "tests@example.org")
    assert said.code == 2
    assert why in said.err


def test_others_work_on_what_was_only_added(
    on: Call, database: str, wiki: WikiSite, tmp_path: Path
) -> None:
    (tmp_path / "titles.txt").write_text("# seeds\nTopic 0\nTopic 1\nTopic_1\n", encoding="utf-8")
    added = on("expand", "titles.txt", "--depth", 0, "--add-only")
    assert "added 2, already known 0" in added.out
    assert "onceflow worker expand" in added.out
    worker = spawn(
        "worker", "expand", *_flags(wiki), "--db", database, "--until-eof", "--quiet",
        cwd=tmp_path, stdin=-1,
    )  # fmt: skip
    report = on("expand", "titles.txt", "--depth", 0, "--follow", "--json", "--quiet").object
    assert report["done"] == 2
    assert worker.stdin is not None
    worker.stdin.close()
    worker.stdin = None
    assert finished(worker).code == 0


def test_a_flag_of_another_pipeline_is_refused(call: Call) -> None:
    said = call("worker", "expand", "--words", 5, "--contact", "tests@example.org")
    assert "--words has no effect on expand" in said.err
    said = call("worker", "summarize", "--about", "x")
    assert "--about has no effect on summarize" in said.err


def test_about_and_category_are_settings_too(on: Call, tmp_path: Path, call: Call) -> None:
    (tmp_path / "onceflow.toml").write_text(
        '[expand]\ncategories = ["Group 1", "Nothing*"]\nabout = "rivers and bridges"\n'
        "relevance = -1\ndepth = 1\nmax_articles = 30\n",
        encoding="utf-8",
    )
    report = on("expand", "Topic 0", "--json", "--quiet").object
    assert set(report["depths"]) == {"0", "1"}
    shown = {row["name"]: row for row in call("config", "show", "--json").lines if "name" in row}
    assert json.dumps(shown)


def test_odd_titles_are_taken_as_they_are(call: Call, tmp_path: Path) -> None:
    odd = ["AC/DC", "What?", "100% (song)", "C++", "Ψ 🎉", "..", "a" * 300]
    pages = {title: WikiPage("text") for title in odd[:5]}
    with served(pages) as wiki:
        said = call("expand", *odd, *_flags(wiki), "--as-titles", "--depth", 0, "--json", "--quiet")
    report = said.object
    assert (report["done"], report["failed"]) == (5, 2)
    codes = {row["key"]: row["error_code"] for row in call("items", "--json").lines}
    assert codes["AC/DC"] is None
    assert codes["a" * 300] == "invalid_title"
    assert sorted(one.name for one in tmp_path.iterdir() if "onceflow.db" not in one.name) == []
