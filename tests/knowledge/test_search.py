"""Search by meaning: exact, the same on both stores, and fed from what is committed."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import onceflow
from onceflow import Flow, Item, OnceflowError, Pipeline, Stage, StoreUnavailable, Work
from onceflow.clients import Embedder
from onceflow.clients.embed import EmbedModel, WordVectors, word_vectors
from onceflow.commands.graphml import graphml
from onceflow.knowledge import index as index_module
from onceflow.knowledge.articles import Loaded, Section
from onceflow.knowledge.graph import Graph
from onceflow.knowledge.index import LocalIndex, read_manifest
from onceflow.knowledge.pgvector import PgVector
from onceflow.knowledge.search import Search, window
from tests.knowledge.kit import Page, body_of, bread, changed, expand, grown


async def test_a_question_finds_the_section_that_answers_it(flow: Flow) -> None:
    async with Search(flow) as search:
        await search.catch_up()
        found = await search.find("who first made dough rise, long ago in Egypt?", most=3)
    assert (found[0].title, found[0].section) == ("Bread", "History")
    assert found[0].passage.startswith("Egyptian bakers leavened")
    assert found[0].url == "https://wiki.test/wiki/Bread#History"
    assert len(found) == 3
    assert found[0].score > found[1].score >= found[2].score


async def test_every_section_with_a_text_is_in_the_index_once(flow: Flow) -> None:
    async with Search(flow) as search:
        await search.catch_up()
        await search.catch_up()
        status = await search.status()
        found = await search.find("bread", most=100)
    assert status is not None
    assert (status.articles, status.sections) == (5, 8)
    assert status.lag.events == 0
    assert len({(one.title, one.n) for one in found}) == len(found) == 8


async def test_a_new_generation_replaces_the_old_one(flow: Flow, world: dict[str, Page]) -> None:
    async with Search(flow) as search:
        await search.catch_up()
        world["Oven"] = Page([("", "A volcano throws out lava and ash.")], revision=2)
        world["Fungus"] = Page([("", "")], revision=2)
        await flow.retry("expand", keys=["Oven", "Fungus"], from_stage="load")
        await flow.drain()
        status = await search.status()
        assert status is not None
        assert status.lag.events > 0
        await search.catch_up()
        found = await search.find("lava", most=100)
    assert (found[0].title, found[0].revision) == ("Oven", 2)
    assert [one.n for one in found if one.title == "Oven"] == [0]
    assert not [one for one in found if one.title == "Fungus"]


async def test_an_index_that_was_deleted_is_made_again(flow: Flow) -> None:
    async with Search(flow) as search:
        await search.catch_up()
        before = await search.find("flour", most=8)
        await search.rebuild()
        assert await search.find("flour", most=8) == before


async def test_both_stores_give_the_same_ten(
    tmp_path: Path, postgres_url: str, world: dict[str, Page]
) -> None:
    """Equal scores too: sections with one text are many, and the ids differ on both."""
    for number in range(30):
        world[f"Stub {number}"] = Page([("", "This article is a stub about baking.")])
    first = await grown(str(tmp_path / "a.db"), world, *world)
    second = await grown(postgres_url, world, *reversed(world))
    try:
        async with Search(first) as files, Search(second) as server:
            assert await PgVector.of(first) is None
            assert await PgVector.of(second) is not None
            await files.catch_up()
            await server.catch_up()
            for text in ("baking a stub", "alcohol and gas", "mushrooms", "hot chamber"):
                here = await files.find(text)
                there = await server.find(text)
                assert [(one.title, one.n, one.score) for one in here] == [
                    (one.title, one.n, one.score) for one in there
                ]
    finally:
        await first.__aexit__(None, None, None)
        await second.__aexit__(None, None, None)


async def test_a_server_without_pgvector_is_searched_by_files(
    postgres_url: str, world: dict[str, Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(flow: Flow) -> None:
        return None

    monkeypatch.setattr(PgVector, "of", none)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    flow = await grown(postgres_url, world)
    try:
        async with Search(flow) as search:
            await search.catch_up()
            assert search.folder.is_relative_to(tmp_path)
            assert (await search.find("sugar into alcohol"))[0].section == "Fermentation"
    finally:
        await flow.__aexit__(None, None, None)


async def test_two_processes_may_feed_one_index_at_once(flow: Flow) -> None:
    async with Search(flow) as one, Search(flow) as other:
        await asyncio.gather(one.catch_up(), other.catch_up())
        status = await other.status()
    assert status is not None
    assert (status.sections, status.lag.events) == (8, 0)


# --- the files ---


def _articles(count: int, sections: int, rng: np.random.Generator) -> list[Loaded]:
    found = []
    for item in range(1, count + 1):
        vectors = rng.standard_normal((sections, 32)).astype("<f4")
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        parts = tuple(
            Section(n, 2, f"h{n}", "", "text", vectors[n].tobytes()) for n in range(sections)
        )
        names = (f"T{item}",)
        found.append(Loaded(item, 1, 0, f"T{item}", item, 1, "", names, (), parts, (), "embedded"))
    return found


def test_nothing_is_missed_in_any_number_of_segments(tmp_path: Path) -> None:
    """Recall against looking at each vector one by one is 1, always."""
    rng = np.random.default_rng(1)
    articles = _articles(300, 5, rng)
    index = LocalIndex(tmp_path)
    for at in range(0, 300, 37):
        index.add(articles[at : at + 37], at + 1, None)
    for tidied in (False, True):
        if tidied:
            index.tidy()
            assert len(index.manifest.segments) == 1
        fresh = LocalIndex(tmp_path)
        for _ in range(5):
            query = rng.standard_normal(32).astype(np.float32)
            query /= np.linalg.norm(query)
            scores = {
                (article.item, section.n): float(
                    np.frombuffer(section.vector, "<f4").astype(np.float64) @ query
                )
                for article in articles
                for section in article.sections
            }
            best = sorted(scores, key=lambda place: -scores[place])[:10]
            assert [(hit.item, hit.n) for hit in fresh.search(query, "embedded", 10)] == best


def test_only_the_newest_segment_of_an_article_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    old, new = _articles(20, 3, rng), _articles(20, 2, rng)
    index = LocalIndex(tmp_path)
    index.add(old, 1, None)
    index.add(new[:10], 2, None)
    hits = LocalIndex(tmp_path).search(np.ones(32, np.float32), "embedded", 100)
    assert len(hits) == len(set(hits)) == 10 * 3 + 10 * 2
    assert index.manifest.sections == 50
    index.tidy()
    assert index.search(np.ones(32, np.float32), "embedded", 100) == hits


@pytest.mark.parametrize("harm", ["truncated", "rows", "manifest", "seq", "model", "deleted"])
async def test_a_damaged_index_is_made_again(
    tmp_path: Path, world: dict[str, Page], harm: str
) -> None:
    flow = await grown(str(tmp_path / "a.db"), world)
    try:
        async with Search(flow) as search:
            await search.catch_up()
            before = await search.find("oven", most=8)
            folder = search.folder
            vectors, rows = next(folder.glob("*.f32")), next(folder.glob("*.rows"))
            match harm:
                case "truncated":
                    vectors.write_bytes(vectors.read_bytes()[:-5])
                case "rows":
                    rows.write_bytes(rows.read_bytes()[:-9] + b"nonsense!")
                case "manifest":
                    (folder / "index.json").write_text('{"format": 1, "segme')
                case "seq":
                    changed(folder / "index.json", r'"seq": \d+', '"seq": "x"')
                case "model":
                    changed(folder / "index.json", '"embedded"', '"another"')
                case "deleted":
                    vectors.unlink()
        async with Search(flow) as search:
            await search.catch_up()
            assert await search.find("oven", most=8) == before
    finally:
        await flow.__aexit__(None, None, None)


async def test_an_index_of_a_database_that_was_here_before_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    flow = await grown(str(path), bread())
    async with Search(flow) as search:
        await search.catch_up()
    await flow.__aexit__(None, None, None)
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)  # noqa: ASYNC240
    flow = await grown(str(path), {"Lava": Page([("", "Lava is molten rock.")])})
    try:
        async with Search(flow) as search:
            await search.catch_up()
            assert [one.title for one in await search.find("bread", most=8)] == ["Lava"]
    finally:
        await flow.__aexit__(None, None, None)


async def test_a_killed_feeder_leaves_nothing_that_counts(
    tmp_path: Path, world: dict[str, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before the manifest is written: the next one begins where the last one was whole."""
    flow = await grown(str(tmp_path / "a.db"), world)
    write = index_module.write_json

    def killed(path: Path, value: object) -> None:
        raise KeyboardInterrupt

    try:
        async with Search(flow) as search:
            monkeypatch.setattr(index_module, "write_json", killed)
            index = LocalIndex(search.folder)
            search.folder.mkdir(parents=True)
            with pytest.raises(KeyboardInterrupt):
                index.add(_articles(3, 2, np.random.default_rng(3)), 99, None)
            monkeypatch.setattr(index_module, "write_json", write)
            assert read_manifest(search.folder) is None
            for name in (".index.json.ab12.new", ".graph.json.ab12.new", "graph.draft"):
                (search.folder / name).touch()
            await search.catch_up()
            drafts = {path.name for path in search.folder.glob("*") if "index" not in path.name}
            assert {".graph.json.ab12.new", "graph.draft"} <= drafts  # another's
            assert not list(search.folder.glob(".index*"))
            status = await search.status()
            assert status is not None
            assert status.sections == 8
            assert len(list(search.folder.glob("*.f32"))) == 1
    finally:
        await flow.__aexit__(None, None, None)


def test_a_passage_is_as_long_as_there_is_room() -> None:
    parts = ["One two.", "Three four.", "Five six.", "Seven eight."]
    assert window(parts, 2, 25) == "Five six. Seven eight."
    assert window(parts, 3, 23) == "Five six. Seven eight."
    assert window(["x" * 50], 0, 10) == "xxxxxxxxx…"


class Short:
    """Another model: its vectors have other dimensions."""

    name = "openai:short"

    async def vectors(self, texts: Sequence[str]) -> Any:
        return word_vectors(texts)[:, :64]

    async def close(self) -> None:
        return None


async def test_another_model_is_searched_apart(tmp_path: Path, world: dict[str, Page]) -> None:
    """Vectors of two models cannot be compared: the most used one answers, or the one asked for."""

    def body(title: str, page: Page) -> dict[str, Any]:
        found = body_of(title, page)
        if title == "Yeast":
            found["embed_model"] = Short.name
            for section in found["sections"]:
                whole = np.frombuffer(base64.b64decode(section["vector"]), "<f4")[:64]
                section["vector"] = base64.b64encode(whole.tobytes()).decode()
        return found

    flow = onceflow.open(str(tmp_path / "a.db"), expand(world, body))
    models: dict[str, EmbedModel] = {"openai:short": Short(), "embedded": WordVectors()}
    async with flow, Search(flow, embedder=lambda name: Embedder(models[name])) as search:
        await flow.add("expand", ["Bread"])
        await flow.drain()
        await search.catch_up()
        assert dict(await search.models()) == {"embedded": 6, "openai:short": 2}
        assert "Yeast" not in {one.title for one in await search.find("yeast")}
        found = await search.find("sugar into alcohol", model="openai:short")
        assert (found[0].title, found[0].n) == ("Yeast", 1)
        with pytest.raises(OnceflowError, match="there is embedded, openai:short"):
            await search.find("bread", model="openai:none-of-it")


async def test_a_server_that_is_away_is_told_as_such() -> None:
    class Away:
        class store:
            dsn = "postgresql://nobody@127.0.0.1:1/none"

    with pytest.raises(StoreUnavailable, match="the search index cannot be reached"):
        await PgVector.of(Away())  # type: ignore[arg-type]


FLOAT = base64.b64encode(bytes(4)).decode()
MISSHAPEN: dict[str, dict[str, Any]] = {
    "a section without a number": {"sections": [{"text": "x"}]},
    "sections that are a text": {"sections": "abc"},
    "a vector that is none": {"sections": [{"n": 0, "text": "x", "vector": 5}]},
    "a vector of no whole numbers": {"sections": [{"n": 0, "text": "x", "vector": "YWJjZGU="}]},
    "a vector of no numbers": {"sections": [{"n": 0, "text": "x", "vector": "////f////38="}]},
    "a vector without end": {
        "sections": [{"n": 0, "text": "x", "vector": base64.b64encode(bytes(80_000)).decode()}]
    },
    "a number of a section without end": {"sections": [{"n": 10**12, "vector": FLOAT}]},
    "two sections of one number": {"sections": [{"n": 0, "text": "x"}, {"n": 0, "text": "y"}]},
    "an id that is a text": {"page_id": "x"},
    "numbers without end": {"page_id": 10**30, "revision": 10**30},
    "links that are a number": {"links": 5},
    "names that are none": {"redirects": [None, 5, {}], "categories": [None, []], "links": [[]]},
    "texts that no database takes": {
        "url": "\ud800", "categories": ["a\0b"], "links": ["a\0b"], "redirects": ["\ud800"],
        "sections": [{"n": 0, "text": "a\0b\ud800"}],
    },
}  # fmt: skip


async def test_articles_of_any_shape_keep_no_other_out(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's own loop may store anything."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    good = body_of("Bread", bread()["Bread"])

    async def load(work: Work) -> Any:
        return MISSHAPEN.get(work.key, good)

    async with onceflow.open(database, Pipeline("expand", Stage("load", load))) as flow:
        await flow.add("expand", [*MISSHAPEN, "Bread"])
        await flow.drain()
        async with Search(flow) as search:
            await search.catch_up()
            assert (await search.find("what is bread made of?"))[0].title == "Bread"
        graph = Graph(flow)
        assert await graph.catch_up()
        found = await graph.ask("MATCH (a:Article) RETURN a.title")
        assert {row[0] for row in found.rows} == {*MISSHAPEN, "Bread"}

        async def rows() -> AsyncIterator[tuple[Item, dict[str, Any]]]:
            for item in await flow.items("expand"):
                yield item, {"load": await flow.result(item.id, "load")}

        written: list[str] = []
        await graphml(rows, written.append)
        assert ElementTree.fromstring("".join(written)).tag.endswith("graphml")
