"""The process that has the graph database open, so that nobody else ends when it is killed.

It reads requests from stdin and answers on stdout, each a length of four bytes and JSON. It knows
nothing of Onceflow: `graph.py` tells it what to store.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

POOL_BYTES = 256 * 1024 * 1024
DATABASE_BYTES_MAX = 1 << 36
ROWS_AT_ONCE = 2000
CELL_CHARS_MAX = 20_000
ANSWER_CHARS_MAX = 16 * 1024 * 1024

AGAIN = ("drop_sections", "drop_members", "drop_links")
"""What goes of an article that was loaded again."""


@cache
def cypher(name: str) -> str:
    """One file's statement, without what it says of itself."""
    text = (Path(__file__).with_name("cypher") / f"{name}.cypher").read_text("utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("//"))


class Graph:
    """An open graph database."""

    def __init__(self, path: str, *, read_only: bool) -> None:
        import ladybug

        self._database = ladybug.Database(
            path,
            read_only=read_only,
            buffer_pool_size=POOL_BYTES,
            max_db_size=DATABASE_BYTES_MAX,
        )
        self._connection = ladybug.Connection(self._database, num_threads=1)
        self._names: dict[str, str] | None = None
        """Every title that leads to a loaded article. None: not read yet."""
        self._waiting: dict[str, dict[str, None]] = {}
        """Links to what is not loaded: name -> articles that link there."""

    def make(self) -> None:
        for statement in cypher("schema").split(";"):
            self._connection.execute(statement)
        self._names = {}

    def close(self) -> None:
        self._connection.close()
        self._database.close()

    # --- writing ---

    def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Articles as they are now, and the event up to which that was read: one transaction."""
        execute = self._connection.execute
        execute("BEGIN TRANSACTION")
        try:
            self._run("put_state", request["articles"])
            unclear = bool(request["loaded"]) and not self._put_loaded(request["loaded"])
            if request["seq"] is not None:
                execute(cypher("seen"), {"seq": request["seq"]})
            execute("ROLLBACK" if unclear else "COMMIT")
        except BaseException:
            with suppress(RuntimeError):
                execute("ROLLBACK")
            raise
        return {"unclear": unclear}

    def _put_loaded(self, loaded: Sequence[dict[str, Any]]) -> bool:
        """False if titles lead elsewhere than they did: then all edges have to be made anew."""
        if self._names is None:
            self._read_names()
        names = self._names
        assert names is not None
        known = {row[0]: row[1:] for row in self._rows("known", _titles(loaded))}
        fresh = [one for one in loaded if known.get(one["title"], [0])[0] < one["generation"]]
        again = [one for one in fresh if one["title"] in known]
        if again:
            for statement in AGAIN:
                self._run(statement, _titles(again))
            for one in again:
                _, aliases, links = known[one["title"]]
                if set(aliases or ()) != set(one["aliases"]):
                    return False
                for name in links or ():
                    self._waiting.get(name, {}).pop(one["title"], None)
        for one in fresh:
            for name in (one["title"], *one["aliases"]):
                if names.setdefault(name, one["title"]) != one["title"] and name == one["title"]:
                    return False
        padded = [
            {**one, "aliases": ["", *one["aliases"]], "links": ["", *one["links"]]} for one in fresh
        ]
        columns = ("title", "generation", "at", "page_id", "revision", "url", "aliases", "links")
        self._run("put_loaded", [{name: one[name] for name in columns} for one in padded])
        self._run(
            "add_sections",
            [
                {**section, "title": one["title"], "id": f"{one['id']}:{section['n']}"}
                for one in fresh
                for section in one["sections"]
            ],
        )
        members = [
            {"title": one["title"], "name": name} for one in fresh for name in one["categories"]
        ]
        categories = dict.fromkeys(row["name"] for row in members)
        self._run("add_categories", [{"name": name} for name in categories])
        self._run("add_members", members)
        self._run("add_links", self._edges(fresh, {one["title"] for one in again}))
        if again:
            self._connection.execute(cypher("drop_empty"))
        return True

    def _edges(self, fresh: Sequence[dict[str, Any]], again: set[str]) -> Iterable[dict[str, str]]:
        """Each pair of loaded articles of which one links to the other, once."""
        names = self._names
        assert names is not None
        edges: dict[tuple[str, str], None] = {}
        for one in fresh:
            for name in one["links"]:
                if name in names:
                    edges[one["title"], names[name]] = None
                else:
                    self._waiting.setdefault(name, {})[one["title"]] = None
        for one in fresh:
            if one["title"] not in again:
                for name in (one["title"], *one["aliases"]):
                    if names[name] == one["title"]:
                        for source in self._waiting.pop(name, {}):
                            edges[source, one["title"]] = None
        return [{"source": source, "target": target} for source, target in edges]

    def _read_names(self) -> None:
        """What the file knows of titles and links, once for as long as it is open."""
        self._names, self._waiting = {}, {}
        rows = self._rows("names")
        for title, aliases, _ in rows:
            for name in (*(aliases or ()), title):
                if name == title or name not in self._names:
                    self._names[name] = title
        for title, _, links in rows:
            for name in links or ():
                if name not in self._names:
                    self._waiting.setdefault(name, {})[title] = None

    def _run(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        listed = list(rows)
        for at in range(0, len(listed), ROWS_AT_ONCE):
            self._connection.execute(cypher(name), {"rows": listed[at : at + ROWS_AT_ONCE]})

    def _rows(self, name: str, rows: Sequence[dict[str, Any]] | None = None) -> list[Any]:
        given = {} if rows is None else {"rows": list(rows)}
        found: Any = self._connection.execute(cypher(name), given)
        return list(found.get_all())

    # --- reading ---

    def query(self, request: dict[str, Any]) -> dict[str, Any]:
        """The rows of one query, not more than are wanted."""
        self._connection.set_query_timeout(int(request["seconds"] * 1000))
        found = self._connection.execute(request["cypher"], request.get("parameters") or {})
        if isinstance(found, list):
            raise RuntimeError("one query at a time")
        rows: list[list[Any]] = []
        most, chars, more = request["rows_max"], 0, False
        while found.has_next():
            row = [_plain(cell) for cell in found.get_next()]
            chars += sum(len(cell) if isinstance(cell, str) else 50 for cell in row)
            if len(rows) == most or chars > ANSWER_CHARS_MAX:
                more = True
                break
            rows.append(row)
        return {"columns": found.get_column_names(), "rows": rows, "more": more}


def _titles(loaded: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    return [{"title": one["title"]} for one in loaded]


def _plain(cell: Any, depth: int = 0) -> Any:
    """A value as JSON has it, bounded."""
    if cell is None or isinstance(cell, bool | int):
        return cell
    if isinstance(cell, float):
        return cell if cell == cell and abs(cell) != float("inf") else None
    if isinstance(cell, str):
        return cell[:CELL_CHARS_MAX]
    if isinstance(cell, datetime):
        return cell.replace(tzinfo=cell.tzinfo or UTC).isoformat(timespec="milliseconds")
    if isinstance(cell, date):
        return cell.isoformat()
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    if isinstance(cell, dict) and depth < 8:
        return {
            str(name): _plain(value, depth + 1)
            for name, value in cell.items()
            if name not in ("_id", "_src", "_dst") and value is not None
        }
    if isinstance(cell, list | tuple) and depth < 8:
        return [_plain(value, depth + 1) for value in cell[:1000]]
    return str(cell)[:CELL_CHARS_MAX]


# --- requests ---


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer until nobody asks any more."""
    graph: Graph | None = None
    while (request := _read(source)) is not None:
        answer: dict[str, Any] = {}
        try:
            match request["do"]:
                case "open":
                    graph = Graph(request["path"], read_only=request["read_only"])
                    if request.get("make"):
                        graph.make()
                case "close" if graph is not None:
                    graph.close()
                    graph = None
                case "apply" if graph is not None:
                    answer = graph.apply(request)
                case "query" if graph is not None:
                    answer = graph.query(request)
                case _:
                    raise RuntimeError("the graph is not open")
        except (RuntimeError, ValueError, OSError, KeyError, AssertionError) as error:
            answer = {"error": f"{error}"[:2000] or type(error).__name__}
        except ImportError as error:
            answer = {"missing": error.name or str(error)}
        body = json.dumps(answer).encode()
        sink.write(struct.pack(">I", len(body)) + body)
        sink.flush()


def _read(source: BinaryIO) -> dict[str, Any] | None:
    head = source.read(4)
    if len(head) < 4:
        return None
    body = source.read(struct.unpack(">I", head)[0])
    found: dict[str, Any] = json.loads(body)
    return found


def main() -> None:
    with suppress(OSError, AttributeError):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides
    # What the library prints must not get between the answers.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
