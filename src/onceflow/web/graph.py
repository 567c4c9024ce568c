"""The knowledge graph: its page, what the page asks for, and search by meaning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from onceflow import Flow, OnceflowError, StoreUnavailable
from onceflow.core.errors import SettingsError, pip_install
from onceflow.knowledge.graph import (
    MARK,
    Graph,
    GraphError,
    Question,
    is_installed,
    what_is_missing,
)
from onceflow.knowledge.place import folder_of, is_empty, read_json
from onceflow.knowledge.search import Search
from onceflow.web import pages
from onceflow.web.jobs import At, JobId

NODES_MAX = 3000
EDGES_MAX = 20_000
LINKS_READ_MAX = 100_000
ROWS_MAX = 200_000
LISTED_MAX = 200
FEED_SECONDS = 1.0
STOP_SECONDS = 1.0
"""How long the graph has to be closed when the server stops."""
VENDOR = pages.STATIC / "vendor"
SCRIPTS = ("graphology.js", "sigma.js")
NOT_YET = "the graph is being made; look again in a moment"
NO_VECTORS = "search by meaning needs numpy and wordllama: "
log = logging.getLogger("onceflow")

router = APIRouter(tags=["knowledge graph"])


class GraphNode(BaseModel):
    """An article."""

    id: int
    title: str
    state: str
    depth: int
    loaded: bool


class GraphOut(BaseModel):
    """The articles nearest to the seeds, and the links among them."""

    nodes: list[GraphNode]
    edges: list[tuple[int, int]]
    """From article to article, by their ids."""
    shown: int
    total: int
    """Of how many articles these are."""
    edges_cut: bool
    """There are more links among them than are given."""
    seq: int
    """The last event that is in it; 0 if that is not known at the moment."""
    note: str
    """Why there is nothing, if so."""


class NeighbourOut(BaseModel):
    """One article, and whom it links to and is linked by."""

    id: int
    title: str
    state: str
    depth: int
    url: str
    loaded: bool
    sections: list[str]
    categories: list[str]
    links_to: list[GraphNode]
    linked_from: list[GraphNode]
    links: int
    """How many articles it links to; at most 200 are listed."""
    linked: int
    note: str


class SectionOut(BaseModel):
    """A section that is near to what was asked."""

    item: int
    title: str
    section: str
    score: float
    passage: str
    url: str


class SearchOut(BaseModel):
    """Articles whose titles have the words, and sections near in meaning."""

    titles: list[GraphNode]
    sections: list[SectionOut]
    note: str


class Knowledge:
    """The index and the graph of the server's database, fed while it runs."""

    def __init__(self, flow: Flow, folder: Path | None) -> None:
        self._flow = flow
        self._given = folder
        self.graph: Graph | None = None
        self.search: Search | None = None
        self._over = asyncio.Event()
        self._drawn: tuple[Any, int, GraphOut] | None = None

    def mark(self) -> tuple[str, int] | None:
        """What changes whenever the graph does, and the last event in it; None while somebody
        writes."""
        if self.graph is None or self.graph.is_open:
            return None
        mark = read_json(self.graph.folder / MARK)
        return (mark["digest"], int(mark.get("seq") or 0)) if mark.get("digest") else None

    def drawn(self, limit: int) -> GraphOut | None:
        """What was answered before, if the graph is still the same."""
        mark = self.mark()
        if mark is None or self._drawn is None or self._drawn[:2] != (mark, limit):
            return None
        return self._drawn[2]

    def keep(self, mark: Any, limit: int, found: GraphOut) -> None:
        self._drawn = (mark, limit, found) if mark is not None else None

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Feed them until the end."""
        with suppress(SettingsError):  # a database in memory has no place for them
            folder = folder_of(self._flow, self._given)
            if is_installed():
                self.graph = Graph(self._flow, folder)
            if find_spec("numpy") is not None and find_spec("wordllama") is not None:
                self.search = Search(self._flow, folder)
        feeding = asyncio.gather(self._feed_graph(), self._feed_search())
        try:
            yield
        finally:
            self._over.set()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await feeding
            except (TimeoutError, OnceflowError, OSError):
                log.info("the graph was not closed in time; it is made again the next time")
            if self.search is not None:
                await self.search.close()

    async def _feed_graph(self) -> None:
        while self.graph is not None and not self._over.is_set():
            try:
                await self.graph.follow(self._over)
            except (OnceflowError, OSError) as error:
                await self._again(f"the graph cannot be fed at the moment: {error}", error)

    async def _feed_search(self) -> None:
        """Only where an expansion is: nobody else needs an index."""
        while self.search is not None and not self._over.is_set():
            try:
                if not await is_empty(self._flow):
                    await self.search.catch_up(wait_seconds=0)
                await self._wait(FEED_SECONDS)
            except (OnceflowError, OSError) as error:
                await self._again(f"the index cannot be fed at the moment: {error}", error)

    async def _again(self, text: str, error: Exception) -> None:
        if not isinstance(error, StoreUnavailable):  # that is told elsewhere
            log.warning("%s", text)
        await self._wait(10 * FEED_SECONDS)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()


NODE = "a.id, a.title, a.expansion_state, a.expansion_depth, a.loaded"
SHOWN = (
    f"MATCH (a:Article) WHERE a.same_as IS NULL RETURN {NODE}"
    " ORDER BY a.expansion_depth, a.id LIMIT $most"
)
TOTAL = "MATCH (a:Article) WHERE a.same_as IS NULL RETURN count(*)"
EDGES = (
    "MATCH (a:Article) WHERE a.same_as IS NULL WITH a ORDER BY a.expansion_depth, a.id LIMIT $most"
    " MATCH (a)-[:LINKS_TO]->(b:Article) RETURN a.id, b.id LIMIT $edges"
)
ONE = f"MATCH (a:Article {{id: $id}}) RETURN {NODE}, a.url"
SECTIONS = (
    "MATCH (:Article {id: $id})-[:HAS_SECTION]->(s:Section) RETURN s.heading ORDER BY s.n LIMIT 200"
)
CATEGORIES = (
    "MATCH (:Article {id: $id})-[:IN_CATEGORY]->(c:Category) RETURN c.name"
    " ORDER BY c.name LIMIT 200"
)
TO = f"MATCH (:Article {{id: $id}})-[:LINKS_TO]->(a:Article) RETURN {NODE} ORDER BY a.title"
FROM = f"MATCH (:Article {{id: $id}})<-[:LINKS_TO]-(a:Article) RETURN {NODE} ORDER BY a.title"
TITLES = (
    f"MATCH (a:Article) WHERE a.same_as IS NULL AND lower(a.title) CONTAINS $text RETURN {NODE}"
    " ORDER BY a.expansion_depth, a.title LIMIT 20"
)


def _knowledge(request: Request) -> Knowledge:
    found: Knowledge = request.app.state.knowledge
    return found


async def _asked(request: Request, *queries: Question) -> tuple[list[list[Any]], str]:
    """The rows of each query, or why there are none."""
    graph = _knowledge(request).graph
    note = what_is_missing()
    if graph is not None:
        try:
            found = await graph.ask_all(*queries, rows_max=ROWS_MAX)
            return [list(one.rows) for one in found], ""
        except (GraphError, TimeoutError):
            note = NOT_YET
    return [[] for _ in queries], note


def _node(row: Any) -> GraphNode:
    id, title, state, depth, loaded = row[:5]
    return GraphNode(id=id, title=title, state=state, depth=depth, loaded=bool(loaded))


@router.get("/api/graph")
async def graph(
    request: Request, desk: At, limit: Annotated[int, Query(ge=1, le=NODES_MAX)] = NODES_MAX
) -> GraphOut:
    """The articles nearest to the seeds, at most 3,000, and the links among them."""
    knowledge = _knowledge(request)
    if (known := knowledge.drawn(limit)) is not None:
        return known
    if await is_empty(desk.flow):
        note = "no article yet: `onceflow expand TITLE…` brings some"
        return GraphOut(nodes=[], edges=[], shown=0, total=0, edges_cut=False, seq=0, note=note)
    mark = knowledge.mark()
    [rows, total, links], note = await _asked(
        request,
        (SHOWN, {"most": limit}),
        (TOTAL, None),
        (EDGES, {"most": limit, "edges": LINKS_READ_MAX}),
    )
    nodes = [_node(row) for row in rows]
    ids = {node.id for node in nodes}
    among = [(source, target) for source, target in links if target in ids and source in ids]
    found = GraphOut(
        nodes=nodes,
        edges=among[:EDGES_MAX],
        shown=len(nodes),
        total=max(len(nodes), total[0][0] if total else 0),
        edges_cut=len(among) > EDGES_MAX or len(links) == LINKS_READ_MAX,
        seq=0 if mark is None else mark[1],
        note=note,
    )
    if not note:
        knowledge.keep(mark, limit, found)
    return found


@router.get("/api/graph/articles/{id}")
async def article(request: Request, id: JobId) -> NeighbourOut:
    """One article with its neighbours, sections and categories. An unknown one has none."""
    queries = [(cypher, {"id": id}) for cypher in (ONE, SECTIONS, CATEGORIES, TO, FROM)]
    [rows, sections, categories, to, linked], note = await _asked(request, *queries)
    if not rows:
        rows, note = [(id, "", "", 0, False, "")], note or "there is no such article"
    one = _node(rows[0])
    return NeighbourOut(
        **one.model_dump(),
        url=rows[0][5] or "",
        sections=[row[0] for row in sections if row[0]],
        categories=[row[0] for row in categories],
        links_to=[_node(row) for row in to[:LISTED_MAX]],
        linked_from=[_node(row) for row in linked[:LISTED_MAX]],
        links=len(to),
        linked=len(linked),
        note=note,
    )


@router.get("/api/search")
async def search(
    request: Request,
    q: Annotated[str, Query(min_length=1, max_length=500)],
    limit: Annotated[int, Query(ge=1, le=100)] = 10,
) -> SearchOut:
    """Articles whose titles have the words, and sections near to them in meaning."""
    text = q.strip()
    [titles], note = await _asked(request, (TITLES, {"text": text.lower()}))
    index = _knowledge(request).search
    sections = await index.find(text, most=limit) if index is not None and text else []
    return SearchOut(
        titles=[_node(row) for row in titles],
        sections=[
            SectionOut(item=one.item, title=one.title, section=one.section, score=one.score,
                       passage=one.passage, url=one.url)
            for one in sections
        ],
        note=NO_VECTORS + pip_install("embedded") if index is None else note,
    )  # fmt: skip


@router.get("/graph", include_in_schema=False)
async def graph_page(request: Request) -> Response:
    missing = [name for name in SCRIPTS if not (VENDOR / name).exists()]
    return pages.page(request, "graph.html", missing=missing, nodes_max=NODES_MAX)
