"""`search`, `ask`, `graph`: what the loaded articles say, and how they hang together."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from onceflow import Flow
from onceflow.commands.common import Common, Flag
from onceflow.commands.config import Config, LlmSettings
from onceflow.commands.output import OK, SOME_FAILED, Out, UsageError, terminal_width
from onceflow.commands.text import many, plain
from onceflow.core.errors import SettingsError, pip_install

if TYPE_CHECKING:
    from onceflow.clients import Embedder, Llm
    from onceflow.knowledge.search import Found, Search

PASSAGE_SHOWN = 400
WIDTH_DEFAULT = 100
TOLD_FROM = 2000
COUNTS = (
    "MATCH (a:Article) WITH COUNT(a) AS articles OPTIONAL MATCH (:Article)-[e:LINKS_TO]->(:Article)"
    " WITH articles, COUNT(e) AS links OPTIONAL MATCH (s:Section)"
    " WITH articles, links, COUNT(s) AS sections OPTIONAL MATCH (c:Category)"
    " RETURN articles, links, sections, COUNT(c) AS categories"
)
NONE_LOADED = "no article is loaded yet: `onceflow expand TITLE…` loads some"


def search(
    text: str,
    /,
    *,
    limit: int = 10,
    embed_model: str | None = None,
    rebuild: Annotated[bool, Flag] = False,
    common: Common | None = None,
) -> int:
    """The sections of loaded articles that are nearest in meaning to a text.

    Every section is compared, so the best are the best, on SQLite and on PostgreSQL.

    Parameters
    ----------
    text
        A question or a few words.
    limit
        At most so many.
    embed_model
        Search the vectors of this model, where articles were loaded with several.
    rebuild
        Make the index again from the database first.
    """
    common = common or Common()
    if not 1 <= limit <= 1000:
        raise UsageError(f"--limit is {limit}; it must be between 1 and 1000")
    _needs_numpy()
    return asyncio.run(_search(common, text, limit, embed_model, rebuild))


async def _search(
    common: Common, text: str, limit: int, embed_model: str | None, rebuild: bool
) -> int:
    out = common.out
    async with common.existing() as flow, opened(flow, common) as index:
        await _fed(index, out, rebuild=rebuild)
        found = await index.find(text, most=limit, model=embed_model)
    if out.as_json:
        for one in found:
            fields = asdict(one)
            del fields["text"]
            out.emit(fields)
    else:
        for number, one in enumerate(found, start=1):
            _put(out, number, one)
    if not found:
        out.say(NONE_LOADED)
    return OK if found else SOME_FAILED


def _put(out: Out, number: int, one: Found) -> None:
    out.line(f"{number:>2}  {one.score:.3f}  {place(one.title, one.section)}")
    for line in wrapped(one.passage, PASSAGE_SHOWN, " " * 11):
        out.line(line)


def ask(
    question: str,
    /,
    *,
    model: str | None = None,
    base_url: str | None = None,
    passages: int = 8,
    common: Common | None = None,
) -> int:
    """Answer a question from the loaded articles, with citations.

    The embedded model answers with sentences as they stand in the articles, and says
    so if none has to do with the question. Another model writes the answer, from the
    passages found alone; what it cites is checked.

    Parameters
    ----------
    question
        In your own words.
    model
        embedded (the default), openai:MODEL, local:smollm2 or local:PATH.gguf.
    base_url
        The OpenAI-compatible server of openai:MODEL, such as http://localhost:11434/v1.
    passages
        From how many sections to answer.
    """
    common = common or Common()
    if not 1 <= passages <= 50:
        raise UsageError(f"--passages is {passages}; it must be between 1 and 50")
    if not question.strip():
        raise UsageError("the question is empty")
    _needs_numpy()
    return asyncio.run(_ask(common, question, llm_of(common, model, base_url), passages))


async def _ask(common: Common, question: str, llm: Llm, passages: int) -> int:
    from onceflow.knowledge.ask import ask as answer_to

    out = common.out
    async with common.existing() as flow, opened(flow, common) as index:
        await _fed(index, out)
        answer = await answer_to(index, question, llm, passages=passages)
    if out.as_json:
        out.emit({**asdict(answer), "is_found": answer.is_found})
        return OK if answer.is_found else SOME_FAILED
    for line in wrapped(answer.text, 20_000, ""):
        out.line(line)
    if answer.citations:
        out.line()
    for one in answer.citations:
        out.line(f"[{one.number}] {place(one.title, one.section)}")
        if one.url:
            out.line(f"    {plain(one.url)}")
    if answer.note:
        out.say(f"onceflow: {answer.note}")
    return OK if answer.is_found else SOME_FAILED


def graph(
    query: str,
    /,
    *,
    source: Annotated[Literal["graph", "store"], Parameter(name="--from")] = "graph",
    seconds: float = 10.0,
    limit: int = 1000,
    stale_seconds: float = 300.0,
    common: Common | None = None,
) -> int:
    """The knowledge graph: ask it in Cypher, or for its states by name.

    There are Article, Section and Category; LINKS_TO, HAS_SECTION and IN_CATEGORY.
    A query can only read; one that takes too long is ended. By name:

    distribution  articles and their mean depth by state
    queue         how many wait to be loaded
    progress      how many of all are loaded
    stale         claims that are older than --stale-seconds
    rebuild       make the graph again from the database

    Parameters
    ----------
    query
        Cypher, such as "MATCH (a:Article) RETURN a.title LIMIT 5", or one of the names.
    source
        Ask the graph, or the database itself (the names only).
    seconds
        How long a query may take.
    limit
        At most so many rows.
    stale_seconds
        What `stale` lists: claims made longer ago.
    """
    common = common or Common()
    if not 0 < seconds <= 3600:
        raise UsageError(f"--seconds is {seconds:g}; it must be between 0 and 3600")
    if not 1 <= limit <= 1_000_000:
        raise UsageError(f"--limit is {limit}; it must be between 1 and 1000000")
    from onceflow.knowledge.states import QUERIES

    if source == "store" and query not in QUERIES:
        raise UsageError(f"--from store answers {', '.join(QUERIES)}; Cypher asks the graph")
    return asyncio.run(_graph(common, query, source, seconds, limit, stale_seconds))


async def _graph(
    common: Common, query: str, source: str, seconds: float, limit: int, stale_seconds: float
) -> int:
    from onceflow.knowledge.cypher import judged
    from onceflow.knowledge.graph import Graph
    from onceflow.knowledge.states import QUERIES, from_graph, from_store

    out = common.out
    if query not in QUERIES and query != "rebuild":
        query = judged(query)  # before anything is opened
    async with common.existing() as flow:
        if source == "store":
            found = await from_store(flow, query, stale_seconds)
        else:
            told = Told(out)
            graph = Graph(flow, folder(common), told=told)
            if query == "rebuild":
                await graph.rebuild()
                found = await graph.ask(COUNTS)
            else:
                if not await graph.catch_up():
                    out.say("onceflow: another process feeds the graph; asking it as it is")
                found = (
                    await from_graph(graph, flow, query, stale_seconds)
                    if query in QUERIES
                    else await graph.query(query, seconds=seconds, rows_max=limit)
                )
            told.end(graph.rebuilt)
    if out.as_json:
        for row in found.as_dicts():
            out.emit(row)
    else:
        out.table(
            [plain(name, 60).upper() for name in found.columns],
            [[_cell(cell) for cell in row] for row in found.rows],
        )
    if found.more:
        out.say(f"onceflow: the first {many(len(found.rows), 'row')}; --limit shows more")
    return OK


class Told:
    """Says once that the graph is being made, and how large it was."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._articles = 0

    def __call__(self, articles: int) -> None:
        if self._articles < TOLD_FROM <= self._articles + articles:
            self._out.say("onceflow: taking in what was committed since the last time")
        self._articles += articles

    def end(self, rebuilt: int) -> None:
        if rebuilt:
            self._out.say(f"onceflow: the graph was made from {many(self._articles, 'article')}")


def _cell(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.2f}"
    return plain(json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict | list) else cell)


# --- shared ---


def folder(common: Common) -> Path | None:
    """The folder for the index and the graph, if one was chosen."""
    given = Config(common.config).place("knowledge")[0]
    return Path(given) if given else None


@asynccontextmanager
async def opened(flow: Flow, common: Common) -> AsyncIterator[Search]:
    """The search index of a database."""
    from onceflow.knowledge.search import Search

    async with Search(flow, folder(common), embedder=_embedder(common)) as index:
        yield index


async def _fed(index: Search, out: Out, *, rebuild: bool = False) -> None:
    """Bring the index up to date, and say so if there was much to do."""
    before = await index.status()
    behind = 0 if before is None else before.lag.events
    if behind > 1000 or (before is None and not out.as_json):
        out.say("onceflow: taking in what was loaded since the last time")
    await (index.rebuild() if rebuild else index.catch_up())
    after = await index.status()
    if after is not None and after.lag.events:
        out.say(
            "onceflow: another process feeds the index, which is "
            f"{many(after.lag.events, 'event')} behind"
        )


def _embedder(common: Common) -> Any:
    from onceflow.clients import Embedder

    llm: LlmSettings = Config(common.config).made("llm")[0]

    def made(name: str) -> Embedder:
        return Embedder(name, base_url=llm.base_url)

    return made


def llm_of(common: Common, model: str | None, base_url: str | None) -> Llm:
    """The model that flags, variables and file choose."""
    from onceflow.clients import Llm, LlmLimits

    config = Config(common.config)
    llm: LlmSettings = config.made("llm", base_url=base_url)[0]
    name, source = config.place("model", model)
    try:
        return Llm(
            name or "",
            base_url=llm.base_url,
            context_tokens=llm.context_tokens,
            limits=LlmLimits(llm.call_seconds, llm.idle_seconds, llm.answer_chars_max),
        )
    except SettingsError as error:
        raise UsageError(f"{source}: {error}; `onceflow models` lists them") from None


def _needs_numpy() -> None:
    missing = [name for name in ("numpy", "wordllama") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"search by meaning needs {' and '.join(missing)}: {pip_install('embedded')}"
        )


def place(title: str, section: str) -> str:
    """An article and its section, for people."""
    return plain(f"{title} › {section}" if section else title)  # noqa: RUF001 - it points on


def wrapped(text: str, most: int, indent: str) -> list[str]:
    """Text from outside in lines that fit the terminal."""
    width = terminal_width(sys.stdout) or WIDTH_DEFAULT
    return textwrap.wrap(
        plain(text, most), min(width, 120), initial_indent=indent, subsequent_indent=indent
    )
