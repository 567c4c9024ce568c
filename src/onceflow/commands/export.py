"""`export`: items and their results as JSON lines, CSV, Parquet or GraphML, however many."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from onceflow import Flow, Item
from onceflow.commands.common import Common, check_pipeline, find_run
from onceflow.commands.graphml import graphml
from onceflow.commands.look import item_json
from onceflow.commands.output import OK, ReaderGone, UsageError, forget, speaks_unicode
from onceflow.commands.text import many
from onceflow.core.errors import pip_install

FORMATS = ("jsonl", "csv", "parquet", "graphml")
GRAPH = "expand"
"""The pipeline whose items are a graph."""
PAGE = 200
COLUMNS_MAX = 500
GROUP_ROWS = 1000
GROUP_CHARS = 16_000_000
"""A row group of Parquet is written at so many rows, or so much text, whichever comes first."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would take for a formula."""


def export(
    *,
    pipeline: str | None = None,
    run: str | None = None,
    state: str | None = None,
    format: str | None = None,
    out: Path | None = None,
    common: Common | None = None,
) -> int:
    """Items and the newest result of each of their stages, as a file or to stdout.

    JSON lines have the results as they are, under `results`. CSV and Parquet have a
    column for each name in them, such as summarize.summary; what is nested there
    is JSON text. In CSV a text that a spreadsheet would take for a formula gets a
    ' before it.

    Parameters
    ----------
    pipeline
        Only this pipeline's.
    run
        Only of this run; `last` is the newest.
    state
        Only in this state, such as completed.
    format
        jsonl, csv, parquet, or graphml for the articles of expand and the links
        among them; else by the ending of --out, else jsonl.
    out
        The file, written whole or not at all. Without it, stdout.
    """
    common = common or Common()
    chosen = _format(format, out)
    if chosen == "parquet":
        if out is None:
            raise UsageError("Parquet is no text: name a file with --out")
        _parquet()  # said before anything is read
    wanted = _Wanted(pipeline, run, state)
    count = asyncio.run(_export(common.existing(), wanted, chosen, out))
    where = "stdout" if out is None else str(out)
    if common.json and out is not None:
        common.out.emit({"items": count, "format": chosen, "out": where})
    else:
        common.out.say(f"{many(count, 'item')} to {where}")
    return OK


def _format(given: str | None, out: Path | None) -> str:
    name = given or (out.suffix.removeprefix(".") if out is not None else "") or "jsonl"
    name = {"json": "jsonl", "ndjson": "jsonl", "pq": "parquet"}.get(name.lower(), name.lower())
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}; choose --format {', '.join(FORMATS)}")
    return name


@dataclass(frozen=True, slots=True)
class _Wanted:
    pipeline: str | None
    run: str | None
    state: str | None


async def _export(flow: Flow, wanted: _Wanted, format: str, path: Path | None) -> int:
    async with flow:
        await check_pipeline(flow, wanted.pipeline)
        if wanted.run is not None:
            found = await find_run(flow, wanted.run)
            wanted = _Wanted(wanted.pipeline or found.pipeline, found.id, wanted.state)
        stages = await _stages(flow)
        count = 0
        if format == "graphml":
            if wanted.pipeline not in (None, GRAPH):
                raise UsageError(f"GraphML is of articles: choose --pipeline {GRAPH}")
            await check_pipeline(flow, GRAPH)
            wanted = _Wanted(GRAPH, wanted.run, wanted.state)
            with _opened(path) as file:
                return await graphml(
                    lambda: _rows(flow, wanted, stages), lambda text: _write(file, text)
                )
        if format == "jsonl":
            plain_ascii = path is None and not speaks_unicode(sys.stdout)
            with _opened(path) as file:
                async for item, results in _rows(flow, wanted, stages):
                    whole = {**item_json(item), "results": results}
                    line = json.dumps(whole, ensure_ascii=plain_ascii)
                    _write(file, line + "\n")
                    count += 1
            return count
        pipeline = wanted.pipeline or _only(list(stages))
        wanted = _Wanted(pipeline, wanted.run, wanted.state)
        columns = _Columns()
        async for item, results in _rows(flow, wanted, stages):
            columns.see(flat(item, results))
        with _opened(path, binary=format == "parquet") as file:
            table: _Table = Csv(file, columns) if format == "csv" else Parquet(file, columns)
            async for item, results in _rows(flow, wanted, stages):
                table.put(flat(item, results))
                count += 1
            table.end()
        return count


async def _stages(flow: Flow) -> dict[str, list[str]]:
    """The stages of each pipeline, in their order, without its gate's."""
    found: dict[str, list[str]] = {row["name"]: [] for row in await flow.store.read("pipelines")}
    for row in sorted(await flow.store.read("stages"), key=lambda row: row["position"]):
        if not row["is_gate"]:
            found.setdefault(row["pipeline"], []).append(row["stage"])
    return found


def _only(pipelines: list[str]) -> str:
    if len(pipelines) != 1:
        names = ", ".join(pipelines) or "none yet"
        raise UsageError(f"a table is of one pipeline; choose --pipeline ({names})")
    return pipelines[0]


async def _rows(
    flow: Flow, wanted: _Wanted, stages: Mapping[str, list[str]]
) -> AsyncIterator[tuple[Item, dict[str, Any]]]:
    """Every item with the newest results of its stages, a page at a time."""
    after = 0
    while page := await flow.items(
        wanted.pipeline, run=wanted.run, state=wanted.state, after=after, limit=PAGE
    ):
        after = page[-1].id
        for item in page:
            if item.key.startswith("gate:"):
                continue
            results: dict[str, Any] = {}
            for stage in stages.get(item.pipeline, ()):
                result = await flow.result(item.id, stage)
                if result is not None:
                    results[stage] = result
            yield item, results


def flat(item: Item, results: Mapping[str, Any]) -> dict[str, Any]:
    """An item as one row: a column for each name in its results."""
    row: dict[str, Any] = item_json(item)
    row["phase"] = item.phase.value
    for stage, result in results.items():
        if not isinstance(result, dict):
            row[stage] = _cell(result)
            continue
        for name, value in result.items():
            row[f"{stage}.{name}"] = _cell(value)
    return row


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return json.dumps(value, ensure_ascii=False)


@dataclass(slots=True)
class _Columns:
    """The columns of a table and what is in them, found by a look through all rows."""

    kinds: dict[str, type | None] = field(default_factory=dict)

    def see(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if name not in self.kinds and len(self.kinds) >= COLUMNS_MAX:
                raise UsageError(
                    f"the results have more than {COLUMNS_MAX} names; use --format jsonl"
                )
            self.kinds[name] = _wider(self.kinds.get(name), value)


def _wider(kind: type | None, value: Any) -> type | None:
    """What a column must hold to hold this too."""
    if value is None:
        return kind
    found: type = type(value)
    if found is int and not -(2**63) <= value < 2**63:
        found = str
    if kind is None or kind is found:
        return found
    return float if {kind, found} == {int, float} else str


class _Table(Protocol):
    def put(self, row: Mapping[str, Any]) -> None: ...

    def end(self) -> None: ...


class Csv:
    """RFC 4180, UTF-8."""

    def __init__(self, file: IO[Any], columns: _Columns) -> None:
        self._file = file
        self._names = list(columns.kinds)
        self._line = _Line()
        self._csv = csv.writer(self._line)
        self._put(self._names)

    def put(self, row: Mapping[str, Any]) -> None:
        self._put([_safe(row.get(name)) for name in self._names])

    def end(self) -> None: ...

    def _put(self, cells: Sequence[Any]) -> None:
        self._csv.writerow(cells)
        _write(self._file, self._line.text)


class _Line:
    """Where `csv` writes one line."""

    text = ""

    def write(self, text: str) -> None:
        self.text = text


def _safe(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value


class Parquet:
    """Typed columns, in row groups of bounded size."""

    def __init__(self, file: IO[Any], columns: _Columns) -> None:
        self._arrow, parquet = _parquet()
        kinds: dict[type | None, Any]
        kinds = {str: self._arrow.string(), int: self._arrow.int64(), bool: self._arrow.bool_(),
                 float: self._arrow.float64(), None: self._arrow.string()}  # fmt: skip
        self._kinds = columns.kinds
        fields = [(name, kinds[kind]) for name, kind in self._kinds.items()]
        self._schema = self._arrow.schema(fields)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._chars = 0

    def put(self, row: Mapping[str, Any]) -> None:
        values = {name: _as(kind, row.get(name)) for name, kind in self._kinds.items()}
        self._rows.append(values)
        self._chars += sum(len(value) for value in values.values() if isinstance(value, str))
        if len(self._rows) >= GROUP_ROWS or self._chars >= GROUP_CHARS:
            self._flush()

    def end(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, self._schema))
            self._rows, self._chars = [], 0


def _as(kind: type | None, value: Any) -> Any:
    """A value as its column holds it."""
    if value is None or kind is None or type(value) is kind:
        return value if kind is not str else _clean(value)
    if kind is str:
        return _clean(value if isinstance(value, str) else json.dumps(value))
    return float(value) if kind is float and isinstance(value, int) else None


def _clean(value: Any) -> Any:
    """Lone surrogates cannot be UTF-8."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]  # the package has no types
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]  # as above
    except ImportError:
        raise UsageError(f"Parquet needs pyarrow: {pip_install('export')}") from None
    return pyarrow, parquet


@contextlib.contextmanager
def _opened(path: Path | None, *, binary: bool = False) -> Iterator[IO[Any]]:
    """The file, which takes its name when it is whole; or stdout."""
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with _new(new, binary=binary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            new.unlink()


def _new(path: Path, *, binary: bool) -> IO[Any]:
    if binary:
        return path.open("wb")
    return path.open("w", encoding="utf-8", newline="", errors="replace")


def _write(file: IO[Any], text: str) -> None:
    try:
        file.write(text)
    except BrokenPipeError:
        forget(sys.stdout)
        raise ReaderGone from None
