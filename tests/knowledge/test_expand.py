"""With the real pipeline against a wiki: redirects, titles that turn out to be others, reloads."""

from typing import Any

import onceflow
from onceflow import Flow
from onceflow.clients import Embedder
from onceflow.knowledge.graph import Graph
from onceflow.knowledge.search import Search
from onceflow.testing.wiki import WikiSite, depths, edges, graph
from tests.knowledge.test_graph import _all
from tests.pipelines.test_expand import FewNumbers, expand

NODES = "MATCH (a:Article) WHERE a.loaded RETURN a.title, a.expansion_depth"
LINKS = "MATCH (a:Article)-[:LINKS_TO]->(b:Article) RETURN a.title, b.title"
SECTIONS = "MATCH (a:Article)-[:HAS_SECTION]->(s:Section) RETURN a.title, count(s)"
STATES = "MATCH (a:Article) RETURN a.expansion_state, a.expansion_depth, count(*)"


async def _is_the_wikis(flow: Flow, made: Graph, pages: Any, seed: str) -> None:
    nodes, links, sections, states = await _all(made, NODES, LINKS, SECTIONS, STATES)
    wanted = depths(pages, [seed])
    assert dict(nodes) == wanted
    assert len(nodes) == len(wanted)
    assert set(links) == edges(pages, wanted)
    assert len(links) == len(set(links))
    assert {title for title, _ in sections} == set(wanted)
    assert {(state, depth): count for state, depth, count in states} == await made.store_counts()


async def test_the_graph_is_the_wikis_whether_it_grew_or_was_made_at_once(database: str) -> None:
    pages = graph(articles=60, links=240, seed=3, redirects=20, apart=3, missing=4)
    async with WikiSite(pages) as site:
        job = expand(site)
        async with onceflow.open(database, job.pipeline()) as flow:
            await flow.add("expand", ["Topic 0"])
            growing = Graph(flow)
            await growing.catch_up()
            working = flow.start()
            async for event in flow.events(follow=True, pipeline="expand"):
                if event.kind == "stage_finished" and event.seq > 150:
                    break
            await growing.catch_up()
            await flow.stop()
            await working
            await flow.drain()
            await growing.catch_up()
            await _is_the_wikis(flow, growing, pages, "Topic 0")
            await growing.rebuild()
            await _is_the_wikis(flow, growing, pages, "Topic 0")
            await _refreshed(flow, growing, site)


async def _refreshed(flow: Flow, growing: Graph, site: WikiSite) -> None:
    """One article has a new revision, the others are as they were."""
    async with Search(flow, embedder=lambda name: Embedder(FewNumbers())) as search:
        await search.catch_up()
        before = await search.status()
        text = site.pages["Topic 0"].text
        site.edit("Topic 0", text=f"{text}\n== News ==\nAn added section.")
        await flow.retry("expand", keys=["Topic 0", "Topic 1"], from_stage="load")
        await flow.drain()
        await search.catch_up()
        after = await search.status()
        assert before is not None
        assert after is not None
        assert after.sections == before.sections + 1
    await growing.catch_up()
    await _is_the_wikis(flow, growing, site.pages, "Topic 0")
