"""The knowledge graph: what is committed, as a graph database that Cypher can ask.

A projection: fed from committed events by whoever has its lock, in batches that are taken in whole
or not at all. `graph.json` says whether the file was closed properly, up to which event it goes,
and a digest of it; whatever is not as it says is made again from the database. The library runs in
a process of its own: a damaged file or an odd query can end that one only.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onceflow import Flow
from onceflow.core.errors import OnceflowError, pip_install
from onceflow.core.item import Phase
from onceflow.knowledge.articles import (
    BATCH,
    NAME,
    Article,
    Lag,
    Loaded,
    article_of,
    articles,
    changes,
    lag_after,
    loaded,
    state_of,
    states_of,
)
from onceflow.knowledge.place import folder_of, held, is_empty, read_json, witness_of, write_json

FORMAT = 1
CHILD = Path(__file__).with_name("_graph_child.py")
FILE, DRAFT, MARK, LOCK = "graph.lbug", "graph.draft", "graph.json", "graph.lock"
ANSWER_BYTES_MAX = 64 * 1024 * 1024
APPLY_SECONDS = 600.0
HELD_SECONDS = 5.0
WAIT_SECONDS = 0.05
FOLLOW_SECONDS = 1.0
QUIET_SECONDS = 30.0
SECONDS_DEFAULT = 10.0
ROWS_DEFAULT = 1000
PAGE = 500
NO_TIME = -1
"""Not null: a column of nothing but nulls would have no type."""


Question = tuple[str, Mapping[str, Any] | None]
"""Cypher and its parameters."""


class GraphError(OnceflowError):
    """The graph database refused a query or could not be asked."""


class GraphMissing(GraphError):
    """The library is not installed."""


class _Gone(GraphError):
    """The child process ended without an answer."""


class _Busy(GraphError):
    """The file cannot be opened for writing: somebody reads it for longer than one waits."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query gave."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False
    """There are more rows than were wanted."""

    def as_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class GraphStatus:
    """Up to where the graph goes, and how far that is behind."""

    seq: int
    is_whole: bool
    """False while somebody writes, or after somebody was killed while writing."""
    lag: Lag


def is_installed() -> bool:
    return find_spec("ladybug") is not None


def what_is_missing() -> str:
    return f"the graph needs ladybug: {pip_install('graph')}"


async def graph_status(flow: Flow, folder: Path | None = None) -> GraphStatus | None:
    """How far the graph is behind; None if there is none. The library is not needed for it."""
    mark = read_json(folder_of(flow, folder) / MARK)
    if mark.get("format") != FORMAT:
        return None
    seq = int(mark.get("seq") or 0)
    return GraphStatus(seq, bool(mark.get("digest")), await lag_after(flow, seq))


class Graph:
    """The graph of a database. `told` hears of articles as they are taken in."""

    def __init__(
        self,
        flow: Flow,
        folder: Path | None = None,
        *,
        told: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._flow = flow
        self.folder = folder_of(flow, folder)
        self._told = told
        self._writer: _Child | None = None
        self._asking = asyncio.Lock()
        self._seq = 0
        self._reconciled: tuple[int, int] | None = None
        self._looked_from = self._looked = 0
        """Where the file is, and how far beyond that others' events were passed over."""
        self.rebuilt = 0
        """How often all of it was made again."""

    @property
    def is_open(self) -> bool:
        """Whether this process writes to it."""
        return self._writer is not None

    @property
    def _file(self) -> Path:
        return self.folder / FILE

    # --- feeding ---

    async def catch_up(self, *, wait_seconds: float = HELD_SECONDS) -> bool:
        """Take in what was committed since, and mend what is damaged. False: another process has
        the file, and does that."""
        async with self._owned(wait_seconds) as got:
            if got:
                self._reconciled = None
                try:
                    await self._advance()
                except _Busy:
                    return False
            return got

    async def rebuild(self) -> None:
        """Make all of it again."""
        async with self._owned(HELD_SECONDS) as got:
            if not got:
                raise GraphError(f"another process has {self._file} open; stop it first")
            await self._rebuild()
            await self._advance()

    async def follow(self, over: asyncio.Event) -> None:
        """Keep it up to date until `over`, whenever there is something new and nobody else does.
        The file is closed again after a quiet while."""
        while not over.is_set():
            if await self._is_behind():
                async with self._owned(0) as got:
                    quiet = 0.0
                    while got and not over.is_set() and quiet < QUIET_SECONDS:
                        quiet = 0.0 if await self._advanced() else quiet + FOLLOW_SECONDS
                        if quiet and self._writer is None:
                            break
                        await _until(over, FOLLOW_SECONDS)
            await _until(over, FOLLOW_SECONDS)

    async def _advanced(self) -> bool:
        try:
            return await self._advance()
        except (_Gone, _Busy):  # it is made again, or asked again, the next time
            return True

    async def _is_behind(self) -> bool:
        mark = read_json(self.folder / MARK)
        seq = int(mark.get("seq") or 0) if mark.get("digest") and self._file.exists() else 0
        if not seq and await is_empty(self._flow):
            return False
        if seq != self._looked_from:  # somebody wrote it, or made it anew
            self._looked_from, self._looked = seq, seq
        last = int((await self._flow.store.read("last_event"))[0]["seq"])
        async with aclosing(self._flow.events(after=self._looked, pipeline=NAME)) as events:  # type: ignore[type-var]  # it is a generator
            if await anext(events, None) is not None:
                return True
        self._looked = last
        return False

    @asynccontextmanager
    async def _owned(self, wait_seconds: float) -> AsyncIterator[bool]:
        """The lock, if it can be had in time; at the end the file is closed properly."""
        if not is_installed():
            raise GraphMissing(what_is_missing())
        until = asyncio.get_running_loop().time() + wait_seconds
        while True:
            with held(self.folder / LOCK) as got:
                if got:
                    try:
                        yield True
                    finally:
                        await self._close()
                    return
            if asyncio.get_running_loop().time() >= until:
                break
            await asyncio.sleep(WAIT_SECONDS)
        yield False

    async def _advance(self) -> bool:
        """From where the file is to what is committed. Whether that was any way at all."""
        before = self._seq, self.rebuilt
        if self._writer is not None and not self._writer.is_alive:
            self._writer = None
        if self._writer is None:
            mark = read_json(self.folder / MARK)
            ours = mark.get("witness") in (None, await witness_of(self._flow))
            whole = mark.get("format") == FORMAT and mark.get("digest")
            if not ours or not whole or await asyncio.to_thread(self._digest) != mark["digest"]:
                await self._rebuild()
            else:
                self._seq = int(mark["seq"])
        try:
            await self._take_in()
            await self._reconcile()
        except _Gone:
            self._writer = None
            raise
        return before != (self._seq, self.rebuilt)

    async def _take_in(self) -> None:
        async for change in changes(self._flow, self._seq):
            rows = await articles(self._flow, change.items)
            found = await loaded(self._flow, change.loaded)
            if not await self._apply(rows, found, change.seq):
                await self._rebuild()  # it goes on from there
                return await self._take_in()
            self._told(len(rows))
        return None

    async def _apply(
        self,
        rows: Sequence[Article],
        found: Sequence[Loaded],
        seq: int | None,
        *,
        bulk: bool = False,
    ) -> bool:
        writer = await self._open_writer()
        request = {
            "do": "apply",
            "articles": [_state(row) for row in rows],
            "loaded": [_body(one) for one in found],
            "seq": seq,
            "bulk": bulk,
        }
        async with self._asking:
            answer = await writer.ask(request, APPLY_SECONDS)
        if answer["unclear"]:
            return False
        if seq is not None:
            self._seq = seq
            self._note()
        return True

    async def _reconcile(self) -> None:
        """Put right which states and depths differ. A shorter way to an article changes its depth
        without an event of its own."""
        if self._reconciled == (self._seq, self.rebuilt):
            return
        here = await self.store_counts()
        self._reconciled = self._seq, self.rebuilt
        if self._writer is None and read_json(self.folder / MARK).get("counts") == _listed(here):
            return
        there = await self._graph_counts()
        if here == there:
            return
        known = {
            row[0]: row[1:]
            for row in (
                await self._trusted(
                    "MATCH (a:Article) RETURN a.id, a.expansion_state, a.expansion_depth",
                    rows_max=100_000_000,
                )
            ).rows
        }
        states = await states_of(self._flow)
        after = 0
        while page := await self._flow.items(NAME, after=after, limit=PAGE):
            after = page[-1].id
            wrong = [
                item.id
                for item in page
                if not item.key.startswith("gate:")
                and known.get(item.id) != (item.state, item.depth)
            ]
            if wrong:
                ids = json.dumps(wrong)
                rows = await self._flow.store.read("items_by_id", ids=ids)
                await self._apply([article_of(row, states) for row in rows], (), None)

    async def store_counts(self) -> dict[tuple[str, int], int]:
        """How many articles there are in each state and depth, by the database."""
        states = await states_of(self._flow)
        found: dict[tuple[str, int], int] = {}
        for row in await self._flow.store.read("counts_by_depth", pipeline=NAME):
            state = state_of(states, row)
            if state is not None:
                place = state, row["depth"]
                found[place] = found.get(place, 0) + row["items"]
        return found

    async def _graph_counts(self) -> dict[tuple[str, int], int]:
        found = await self._trusted(
            "MATCH (a:Article) RETURN a.expansion_state, a.expansion_depth, count(*)",
            rows_max=1_000_000,
        )
        return {(row[0], row[1]): row[2] for row in found.rows}

    async def _rebuild(self) -> None:
        """All of it, beside the file that is there, and then in its place."""
        await self._drop_writer()
        seq = (await self._flow.store.read("last_event"))[0]["seq"]
        witness = await witness_of(self._flow)
        self.folder.mkdir(parents=True, exist_ok=True)
        _remove(self.folder, DRAFT)
        draft = self.folder / DRAFT
        child = self._writer = await _Child.started()
        await child.ask({"do": "open", "path": str(draft), "read_only": False, "make": True}, 60)
        self.rebuilt += 1
        states = await states_of(self._flow)
        after = 0
        while page := await self._flow.items(NAME, after=after, limit=BATCH):
            after = page[-1].id
            ids = [item.id for item in page if not item.key.startswith("gate:")]
            rows = await self._flow.store.read("items_by_id", ids=json.dumps(ids))
            found = [article_of(row, states) for row in rows]
            await self._apply(found, await loaded(self._flow, ids), None, bulk=True)
            self._told(len(rows))
        await child.ask({"do": "link_all"}, APPLY_SECONDS)
        await self._apply((), (), seq)
        counts = _listed(await self._graph_counts())
        await child.ask({"do": "close"}, APPLY_SECONDS)
        await self._drop_writer()
        _remove(self.folder, FILE)
        draft.replace(self._file)
        self._seq = seq
        await asyncio.to_thread(self._sign, witness, counts)

    # --- the file ---

    async def _open_writer(self) -> _Child:
        if self._writer is None:
            request = {"do": "open", "path": str(self._file), "read_only": False}
            child = await _Child.started()
            tries = int(HELD_SECONDS / WAIT_SECONDS)
            for left in reversed(range(tries)):
                try:
                    await child.ask(request, 60)
                    break
                except GraphError as error:
                    if isinstance(error, _Gone) or "lock" not in str(error).lower() or not left:
                        await child.end()
                        raise _Busy(f"{self._file} cannot be opened: {error}") from None
                await asyncio.sleep(WAIT_SECONDS)  # somebody reads; a query has an end
            self._writer = child
            self._note()  # it is not whole until it is closed
        return self._writer

    async def _close(self) -> None:
        """Close the file and sign it; if that is not possible it is made again the next time."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            if writer.is_alive:
                self._writer = writer
                counts = _listed(await self._graph_counts())
                await writer.ask({"do": "close"}, APPLY_SECONDS)
                witness = await witness_of(self._flow)
                await asyncio.to_thread(self._sign, witness, counts)
        except (GraphError, OnceflowError):
            pass
        finally:
            self._writer = None
            await writer.end()

    async def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.end()

    def _note(self) -> None:
        """Where we are, for whoever asks how far behind the graph is; without a digest."""
        witness = read_json(self.folder / MARK).get("witness")
        write_json(self.folder / MARK, {"format": FORMAT, "seq": self._seq, "witness": witness})

    def _sign(self, witness: list[Any] | None, counts: list[list[Any]]) -> None:
        write_json(
            self.folder / MARK,
            {
                "format": FORMAT,
                "seq": self._seq,
                "witness": witness,
                "counts": counts,
                "digest": self._digest(),
            },
        )

    def _digest(self) -> str | None:
        """What the file holds, in short; None if it is not there or was not closed."""
        if any(path.name != FILE for path in self.folder.glob(f"{FILE}*")):
            return None
        found = blake2b(digest_size=16)
        try:
            with self._file.open("rb") as file:
                while part := file.read(1 << 20):
                    found.update(part)
        except OSError:
            return None
        return found.hexdigest()

    # --- asking ---

    async def query(
        self,
        cypher: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        seconds: float = SECONDS_DEFAULT,
        rows_max: int = ROWS_DEFAULT,
    ) -> Rows:
        """The rows of one query that was judged before, in a process that is ended in time."""
        return (await self._read([(cypher, parameters)], seconds, rows_max))[0]

    async def _read(self, queries: Sequence[Question], seconds: float, rows_max: int) -> list[Rows]:
        """In a process of their own, which lets go of the file at once: no writer can open it
        while somebody reads."""
        if not is_installed():
            raise GraphMissing(what_is_missing())
        if not self._file.exists():
            raise GraphError(f"there is no graph {self._file} yet; `onceflow graph rebuild`")
        child = await _Child.started()
        try:
            await child.ask({"do": "open", "path": str(self._file), "read_only": True}, 60)
            return [
                _rows(await child.ask(_query(cypher, given, seconds, rows_max), seconds + 1))
                for cypher, given in queries
            ]
        except TimeoutError:
            raise GraphError(
                f"the query took longer than {seconds:g} seconds and was ended"
            ) from None
        finally:
            await child.end()

    async def _trusted(
        self, cypher: str, parameters: Mapping[str, Any] | None = None, *, rows_max: int
    ) -> Rows:
        """A query of our own, answered by the process that has the file open for writing."""
        writer = await self._open_writer()
        async with self._asking:
            return _rows(await writer.ask(_query(cypher, parameters, 60, rows_max), 120))

    async def ask(
        self, cypher: str, parameters: Mapping[str, Any] | None = None, *, rows_max: int = 100_000
    ) -> Rows:
        """A query of our own, answered by whichever process is at hand."""
        return (await self.ask_all((cypher, parameters), rows_max=rows_max))[0]

    async def ask_all(self, *queries: Question, rows_max: int = 100_000) -> list[Rows]:
        """Several queries of our own."""
        if self._writer is not None and self._writer.is_alive and self._file.exists():
            return [
                await self._trusted(cypher, given, rows_max=rows_max) for cypher, given in queries
            ]
        return await self._read(queries, 60, rows_max)


class _Child:
    """The process that has the library."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def started(cls) -> _Child:
        if not is_installed():
            raise GraphMissing(what_is_missing())
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            str(CHILD),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if "ONCEFLOW" not in name},
        )
        return cls(process)

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Its answer. It does not survive a question that takes too long or is given up."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        body = json.dumps(request).encode()
        try:
            async with asyncio.timeout(seconds):
                self._process.stdin.write(struct.pack(">I", len(body)) + body)
                await self._process.stdin.drain()
                (size,) = struct.unpack(">I", await self._process.stdout.readexactly(4))
                if size > ANSWER_BYTES_MAX:
                    raise _Gone("the graph's answer is too large")
                answer: dict[str, Any] = json.loads(await self._process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.end()
            raise _Gone("the graph database ended without an answer") from None
        except BaseException:
            await self.end()
            raise
        if "missing" in answer:
            raise GraphMissing(what_is_missing())
        if "error" in answer:
            raise GraphError(_said(answer["error"]))
        return answer

    async def end(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def _query(
    cypher: str, parameters: Mapping[str, Any] | None, seconds: float, rows_max: int
) -> dict[str, Any]:
    return {
        "do": "query",
        "cypher": cypher,
        "parameters": dict(parameters or {}),
        "seconds": seconds,
        "rows_max": rows_max,
    }


def _rows(answer: Mapping[str, Any]) -> Rows:
    return Rows(
        tuple(answer["columns"]), tuple(tuple(row) for row in answer["rows"]), answer["more"]
    )


def _said(text: str) -> str:
    """The library's words in one line."""
    if "Interrupted" in text:
        return "the query took too long and was ended; ask for less"
    return " ".join(text.split())[:500]


def _state(row: Article) -> dict[str, Any]:
    return {
        "title": row.title,
        "id": row.id,
        "state": row.state,
        "depth": row.depth,
        "retry_count": row.retry_count,
        "error": row.error or "",
        "claimed_at": NO_TIME if row.claimed_at is None else row.claimed_at,
        "processed_at": row.updated_at if row.phase == Phase.FAILED else NO_TIME,
    }


def _body(one: Loaded) -> dict[str, Any]:
    return {
        "title": one.title,
        "id": one.item,
        "generation": one.generation,
        "at": one.at,
        "page_id": one.page_id,
        "revision": one.revision,
        "url": one.url,
        "aliases": [name for name in one.names if name != one.title],
        "links": list(one.links),
        "categories": list(one.categories),
        "same_as": one.same_as,
        "unchanged": one.unchanged,
        "sections": [
            {
                "n": section.n,
                "level": section.level,
                "heading": section.heading,
                "anchor": section.anchor,
                "text": section.text,
            }
            for section in one.sections
        ],
    }


def _listed(counts: Mapping[tuple[str, int], int]) -> list[list[Any]]:
    return [[state, depth, count] for (state, depth), count in sorted(counts.items())]


def _remove(folder: Path, name: str) -> None:
    for path in folder.glob(f"{name}*"):
        path.unlink(missing_ok=True)


async def _until(over: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over.wait()
