"""Search by meaning over the sections of loaded articles. Exact, and the same on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceflow import Flow
from onceflow.clients import Embedder
from onceflow.clients.sentences import sentences
from onceflow.core.errors import OnceflowError
from onceflow.knowledge.articles import Lag, Loaded, Section, changes, lag_after, loaded
from onceflow.knowledge.index import Hit, LocalIndex, Manifest, read_manifest
from onceflow.knowledge.pgvector import PgVector
from onceflow.knowledge.place import folder_of, held, witness_of

if TYPE_CHECKING:
    from onceflow.clients.embed import Vectors

MOST_DEFAULT = 10
MOST_MAX = 1000
QUERY_CHARS_MAX = 2000
PASSAGE_CHARS = 400
SENTENCES_MAX = 200
HELD_SECONDS = 5.0
"""How long a search waits for another process that feeds the index; then it takes what is there."""
WAIT_SECONDS = 0.05

EmbedderOf = Callable[[str], Embedder]


@dataclass(frozen=True, slots=True)
class Found:
    """A section that answers a question."""

    title: str
    section: str
    """Its heading; empty for the lead."""
    n: int
    score: float
    """The cosine: 1 is the same, 0 has nothing to do with it."""
    passage: str
    url: str
    item: int
    revision: int
    text: str


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """What the index has, and how far it is behind."""

    kind: str
    articles: int
    sections: int
    lag: Lag


class Search:
    """The index of a database. `told` hears of articles as they are taken in."""

    def __init__(
        self,
        flow: Flow,
        folder: Path | None = None,
        *,
        embedder: EmbedderOf = Embedder,
        told: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._flow = flow
        self._given = folder
        self._embedder = embedder
        self._embedders: dict[str, Embedder] = {}
        self._told = told
        self._pg: PgVector | None = None
        self._asked = False
        self._local: tuple[Manifest, LocalIndex] | None = None

    @property
    def folder(self) -> Path:
        return folder_of(self._flow, self._given)

    async def close(self) -> None:
        for embedder in self._embedders.values():
            await embedder.close()

    async def __aenter__(self) -> Search:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- feeding ---

    async def catch_up(self, *, wait_seconds: float = HELD_SECONDS) -> None:
        """Take in what was committed since the last time, whoever did it last."""
        if (pg := await self._server()) is not None:
            await pg.feed(self._flow, self._told)
            return
        folder = self.folder
        until = asyncio.get_running_loop().time() + wait_seconds
        while True:
            with held(folder / "index.lock") as got:
                if got:
                    await self._feed(folder)
                    return
            if asyncio.get_running_loop().time() >= until:
                return
            await asyncio.sleep(WAIT_SECONDS)

    async def _feed(self, folder: Path) -> None:
        witness = await witness_of(self._flow)
        manifest = await asyncio.to_thread(read_manifest, folder)
        ours = manifest is not None and manifest.witness in (None, witness)
        fresh = changes(self._flow, manifest.seq if ours and manifest is not None else 0)
        index: LocalIndex | None = None
        async for change in fresh:
            if index is None:
                index = await asyncio.to_thread(LocalIndex, folder)
                if not ours:
                    index.forget()
            known = index.known()
            found = [
                one
                for one in await loaded(self._flow, change.loaded)
                if known.get(one.item, 0) < one.generation
                and not (one.item in known and one.unchanged)
                and not (one.item not in known and one.same_as)
            ]
            await asyncio.to_thread(index.add, found, change.seq, witness)
            self._told(len(found))
        if index is not None:
            await asyncio.to_thread(index.tidy)
        elif not ours and manifest is not None:  # of a database that was here before
            LocalIndex(folder).forget()

    async def rebuild(self) -> None:
        """Forget the index and make it again from the database."""
        if (pg := await self._server()) is not None:
            await pg.forget()
        else:
            with held(self.folder / "index.lock") as got:
                if not got:
                    raise OnceflowError(f"another process feeds {self.folder}; try again later")
                LocalIndex(self.folder).forget()
        await self.catch_up()

    async def _server(self) -> PgVector | None:
        if not self._asked:
            self._pg = await PgVector.of(self._flow)
            self._asked = True
        return self._pg

    async def status(self) -> IndexStatus | None:
        """What the index has; None if there is none yet."""
        pg = self._pg if self._asked else await PgVector.of(self._flow, make=False)
        if pg is not None:
            articles, sections = await pg.counts()
            seq = await pg.seen()
            lag = await lag_after(self._flow, seq)
            return IndexStatus("pgvector", articles, sections, lag) if seq else None
        manifest = read_manifest(self.folder)
        if manifest is None:
            return None
        lag = await lag_after(self._flow, manifest.seq)
        return IndexStatus("files", manifest.articles, manifest.sections, lag)

    # --- searching ---

    async def models(self) -> Mapping[str, int]:
        """The embedding models whose vectors are in it, the most used first."""
        if (pg := await self._server()) is not None:
            return await pg.models()
        return (await self._index()).models()

    async def find(
        self, text: str, *, most: int = MOST_DEFAULT, model: str | None = None
    ) -> list[Found]:
        """The sections nearest to a text, the best first."""
        models = await self.models()
        chosen = model or next(iter(models), None)
        if chosen is None or not text.strip():
            return []
        if chosen not in models:
            known = ", ".join(models)
            raise OnceflowError(f"no section has vectors of the model {chosen}; there is {known}")
        query = (await self.embed(chosen, [text[:QUERY_CHARS_MAX]]))[0]
        hits = await self.nearest(query, chosen, max(1, min(most, MOST_MAX)))
        return await self._shown(hits, query, chosen)

    async def nearest(self, query: Any, model: str, most: int) -> list[Hit]:
        """Who is nearest to a vector: no result of any article is read for it."""
        if (pg := await self._server()) is not None:
            return await pg.search(query, model, most)
        index = await self._index()
        return await asyncio.to_thread(index.search, query, model, most)

    async def embed(self, model: str, texts: Sequence[str]) -> Vectors:
        embedder = self._embedders.get(model)
        if embedder is None:
            embedder = self._embedders[model] = self._embedder(model)
        return await embedder.embed(texts)

    async def _index(self) -> LocalIndex:
        """The index as it is now; mapped again only if somebody wrote meanwhile."""
        manifest = await asyncio.to_thread(read_manifest, self.folder)
        if self._local is None or self._local[0] != manifest or manifest is None:
            index = await asyncio.to_thread(LocalIndex, self.folder)
            self._local = (index.manifest, index)
        return self._local[1]

    async def _shown(self, hits: Sequence[Hit], query: Any, model: str) -> list[Found]:
        articles = {
            one.item: one
            for one in await loaded(self._flow, list(dict.fromkeys(hit.item for hit in hits)))
        }
        found: list[Found] = []
        for hit in hits:
            article = articles.get(hit.item)
            section = None if article is None else _section(article, hit.n)
            if article is None or section is None:  # a newer revision was committed just now
                continue
            passage = await self._passage(section, query, model)
            found.append(
                Found(
                    title=article.title,
                    section=section.heading,
                    n=hit.n,
                    score=round(hit.score, 4),
                    passage=passage,
                    url=f"{article.url}#{section.anchor}" if section.anchor else article.url,
                    item=hit.item,
                    revision=article.revision,
                    text=section.text,
                )
            )
        return found

    async def _passage(self, section: Section, query: Any, model: str) -> str:
        """The sentences of a section that are nearest to the question, as they stand there."""
        if len(section.text) <= PASSAGE_CHARS:
            return " ".join(section.text.split())
        parts = sentences(section.text, count_max=SENTENCES_MAX)
        best = 0
        if model == "embedded":  # asking a server for each would cost more than it tells
            scores = await self.embed(model, parts) @ query
            best = int(scores.argmax())
        return window(parts, best, PASSAGE_CHARS)


def window(parts: Sequence[str], at: int, chars: int) -> str:
    """A sentence and as many after and before it as there is room for."""
    first = last = at
    size = len(parts[at])
    while True:
        if last + 1 < len(parts) and size + len(parts[last + 1]) < chars:
            last += 1
            size += len(parts[last]) + 1
        elif first > 0 and size + len(parts[first - 1]) < chars:
            first -= 1
            size += len(parts[first]) + 1
        else:
            break
    text = " ".join(parts[first : last + 1])
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _section(article: Loaded, n: int) -> Section | None:
    return next((section for section in article.sections if section.n == n), None)
