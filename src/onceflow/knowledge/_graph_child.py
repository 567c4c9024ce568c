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
ROWS_PER_TRANSACTION = 20_000
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
        self._web: Web | None = None
        """Who links to whom. None: not read yet."""

    def make(self) -> None:
        for statement in cypher("schema").split(";"):
            self._connection.execute(statement)
        self._web = Web()

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
            unclear = bool(request["loaded"]) and not self._put_loaded(
                request["loaded"], bulk=request["bulk"]
            )
            if request["seq"] is not None:
                execute(cypher("seen"), {"seq": request["seq"]})
            execute("ROLLBACK" if unclear else "COMMIT")
        except BaseException:
            with suppress(RuntimeError):
                execute("ROLLBACK")
            raise
        return {"unclear": unclear}

    def _put_loaded(self, loaded: Sequence[dict[str, Any]], *, bulk: bool) -> bool:
        """False if names lead elsewhere than they did: then all edges have to be made anew."""
        web = self._read_web()
        known = {row[0]: row[1:] for row in self._rows("known", _ids(loaded))}
        fresh = [one for one in loaded if known.get(one["id"], [0])[0] < one["generation"]]
        same = [one for one in fresh if one["unchanged"] and one["id"] in known]
        self._run("put_unchanged", [_only(one, "id", "generation", "at") for one in same])
        fresh = [one for one in fresh if one not in same]
        again = [one for one in fresh if one["id"] in known]
        if again:
            for statement in AGAIN:
                self._run(statement, _ids(again))
            for one in again:
                _, aliases, links, same_as = known[one["id"]]
                before = web.title(one["id"]), set(aliases or ()), same_as or ""
                if before != (one["title"], set(one["aliases"]), one["same_as"]):
                    return False
                web.forget(one["id"], links or ())
        columns = "id", "generation", "at", "page_id", "revision", "url", "same_as"
        self._run(
            "put_loaded",
            [
                {**_only(one, *columns), "aliases": ["", *one["aliases"]],
                 "links": ["", *one["links"]]}
                for one in fresh
            ],
        )  # fmt: skip
        self._run(
            "add_sections",
            [
                {**section, "article": one["id"], "title": one["title"],
                 "id": f"{one['id']}:{section['n']}"}
                for one in fresh
                for section in one["sections"]
            ],
        )  # fmt: skip
        members = [{"id": one["id"], "name": name} for one in fresh for name in one["categories"]]
        categories = dict.fromkeys(row["name"] for row in members)
        self._run("add_categories", [{"name": name} for name in categories])
        self._run("add_members", members)
        if again:
            self._connection.execute(cypher("drop_empty"))
        clear = True
        for one in fresh:
            clear &= web.name(one["id"], one["title"], one["aliases"], one["same_as"])
        for one in fresh:
            web.link(one["id"], one["links"])
        if bulk:
            return True
        self._run("join_links", web.edges())
        return clear

    def link_all(self) -> dict[str, Any]:
        """The edges of everything that was put in bulk."""
        rows = self._read_web().edges()
        for at in range(0, len(rows), ROWS_PER_TRANSACTION):
            self._connection.execute("BEGIN TRANSACTION")
            self._run("add_links", rows[at : at + ROWS_PER_TRANSACTION])
            self._connection.execute("COMMIT")
        return {"edges": len(rows)}

    def _read_web(self) -> Web:
        """What the file knows of names and links, once for as long as it is open."""
        if self._web is None:
            self._web = Web()
            rows = self._rows("names")
            for item, title, aliases, _, same_as in rows:
                self._web.name(item, title, aliases or (), same_as or "")
            for item, _, _, links, _ in rows:
                self._web.link(item, links or ())
            self._web.edges()  # they are there already
        return self._web

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


class Web:
    """Names, and the links that wait for what they name."""

    def __init__(self) -> None:
        self._titles: dict[str, int] = {}
        """The titles of loaded articles."""
        self._named: dict[int, str] = {}
        self._aliases: dict[str, str] = {}
        """Other names: of which title."""
        self._waiting: dict[str, dict[int, None]] = {}
        """Links that lead nowhere yet: name -> articles that have them."""
        self._fresh: dict[str, None] = {}
        """Names about which something was learnt since the last edges were made."""

    def title(self, item: int) -> str | None:
        """The title under which an article was named; the file may know a newer one already."""
        return self._named.get(item)

    def name(self, item: int, title: str, aliases: Iterable[str], same_as: str) -> bool:
        """False if one of the names led elsewhere before."""
        clear = True
        self._named[item] = title
        owner = same_as or title
        if not same_as:
            clear = title not in self._aliases or self._aliases[title] == title
            self._titles[title] = item
            self._fresh[title] = None
        for name in (*aliases, *([title] if same_as else ())):
            if name == owner:
                continue
            if name in self._titles or self._aliases.get(name, owner) != owner:
                clear = False
            self._aliases.setdefault(name, owner)
            self._fresh[name] = None
        return clear

    def link(self, item: int, links: Iterable[str]) -> None:
        for name in links:
            self._waiting.setdefault(name, {})[item] = None
            self._fresh[name] = None

    def forget(self, item: int, links: Iterable[str]) -> None:
        for name in links:
            self._waiting.get(self._titled(name), {}).pop(item, None)
            self._waiting.get(name, {}).pop(item, None)

    def _titled(self, name: str) -> str:
        return name if name in self._titles else self._aliases.get(name, name)

    def edges(self) -> list[dict[str, int]]:
        """Each pair of which one links to the other, once, as far as it was not given before."""
        found: dict[tuple[int, int], None] = {}
        names = list(self._fresh)
        self._fresh = {}
        for name in names:
            title = self._titled(name)
            sources = self._waiting.pop(name, None)
            if sources is None:
                continue
            target = self._titles.get(title)
            if target is not None:
                found |= dict.fromkeys((source, target) for source in sources)
            else:
                self._waiting.setdefault(title, {}).update(sources)
        return [{"source": source, "target": target} for source, target in found]


def _ids(loaded: Sequence[dict[str, Any]]) -> list[dict[str, int]]:
    return [{"id": one["id"]} for one in loaded]


def _only(one: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: one[name] for name in names}


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
                case "link_all" if graph is not None:
                    answer = graph.link_all()
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
