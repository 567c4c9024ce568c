"""`onceflow export`: every item once, in each format, in little memory."""

import csv
import io
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from onceflow.commands import export as module
from onceflow.commands.export import Csv, _Columns
from tests.cli.conftest import PROGRAM, Answer, Call, clean_environment, finished, spawn

MIXED = '''
"""Results of every shape."""

from onceflow import Pipeline, Stage

SHAPES = {
    "text": {"value": "plain", "n": 1},
    "formula": {"value": "=cmd()", "n": 2.5},
    "nested": {"value": ["a", {"b": "ü"}], "ok": True},
    "large": {"value": None, "n": 2**70},
    "bare": [1, 2],
    "surrogate": {"value": "half \\ud800"},
}


async def shape(work):
    return SHAPES[work.key]


mixed = Pipeline("mixed", Stage("shape", shape))
'''
HEAVY = """
from onceflow import Pipeline, Stage
import random

CHARS = 100_000


async def heavy(work):
    return {"text": "".join(random.Random(work.key).choices("abcdefgh ", k=CHARS))}


heavy = Pipeline("heavy", Stage("heavy", heavy))
"""


@pytest.fixture
def on(call: Call, database: str) -> Call:
    def run(*arguments: object) -> Answer:
        return call(*arguments, "--db", database)

    return run


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_json_lines_have_the_results_as_they_are(on: Call, program: Path) -> None:
    on("run", program, "a", "gone")

    answer = on("export")

    assert answer.code == 0
    found = {line["key"]: line for line in answer.lines}
    assert list(found) == ["a", "gone"]  # the gate's own item is not one of the user's
    assert found["a"]["results"] == {
        "fetch": {"text": "the text of a"},
        "count": {"length": 13},
    }
    assert (found["gone"]["state"], found["gone"]["error_code"]) == ("failed", "gone")
    assert "2 items to stdout" in answer.err


def test_json_lines_are_json_on_a_stdout_that_speaks_ascii_only(
    call: Call, program: Path, tmp_path: Path
) -> None:
    call("run", program, "été")
    environment = clean_environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")

    answer = finished(spawn("export", cwd=tmp_path, env=environment))

    assert answer.out.isascii()
    assert [item["key"] for item in answer.lines] == ["été"]


def test_a_run_or_a_state_is_all_that_is_exported(on: Call, program: Path) -> None:
    on("run", program, "a", "gone")
    on("run", program, "b")

    assert [line["key"] for line in on("export", "--run", "last").lines] == ["b"]
    assert [line["key"] for line in on("export", "--state", "failed").lines] == ["gone"]
    assert on("export", "--run", "none").code == 2
    assert "no pipeline 'other'" in on("export", "--pipeline", "other").err


@pytest.fixture
def mixed(on: Call, write_program: Callable[[str], Path]) -> None:
    file = write_program(MIXED)
    on("run", file, "text", "formula", "nested", "large", "bare", "surrogate")


@pytest.mark.usefixtures("mixed")
def test_csv_has_a_column_for_each_name_and_no_formula(on: Call, tmp_path: Path) -> None:
    answer = on("export", "--out", "items.csv")

    assert (answer.code, "6 items to items.csv" in answer.err) == (0, True)
    raw = (tmp_path / "items.csv").read_bytes()
    found = {row["key"]: row for row in rows(raw.decode())}
    assert found["text"]["shape.value"] == "plain"
    assert found["formula"]["shape.value"] == "'=cmd()"
    assert json.loads(found["nested"]["shape.value"]) == ["a", {"b": "ü"}]
    assert found["nested"]["shape.ok"] == "true"
    assert found["large"]["shape.n"] == str(2**70)
    assert found["bare"]["shape"] == "[1, 2]"
    assert found["text"]["shape"] == ""
    assert list(tmp_path.glob(".items.csv*")) == []


@pytest.mark.usefixtures("mixed")
def test_parquet_has_typed_columns(on: Call, tmp_path: Path) -> None:
    answer = on("export", "--format", "parquet", "--out", "items.pq", "--json")

    assert answer.object == {"items": 6, "format": "parquet", "out": "items.pq"}
    table = pyarrow.parquet.read_table(tmp_path / "items.pq")
    found = {row["key"]: row for row in table.to_pylist()}
    assert str(table.schema.field("id").type) == "int64"
    assert str(table.schema.field("shape.ok").type) == "bool"
    assert str(table.schema.field("shape.n").type) == "string"  # one does not fit a number
    assert found["formula"]["shape.value"] == "=cmd()"
    assert found["formula"]["shape.n"] == "2.5"
    assert found["large"]["shape.n"] == str(2**70)
    assert found["nested"]["shape.ok"] is True
    assert found["surrogate"]["shape.value"] == "half ?"


def test_whole_numbers_and_others_are_one_column_of_numbers() -> None:
    columns = _Columns()
    for value in (None, 1, 2.5):
        columns.see({"n": value})
    assert columns.kinds == {"n": float}
    table = Csv(io.StringIO(), columns)
    table.put({"n": 1})
    table.put({"n": None})
    assert table._file.getvalue() == 'n\r\n1\r\n""\r\n'


def test_what_cannot_be_meant_is_refused(
    on: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("run", program, "a")
    assert "there is no format 'xml'" in on("export", "--format", "xml").err
    assert "name a file with --out" in on("export", "--format", "parquet").err
    (tmp_path / "taken.jsonl").mkdir()
    answer = on("export", "--out", "taken.jsonl")
    assert (answer.code, "taken.jsonl cannot be written" in answer.err) == (2, True)
    assert on("export", "--out", "nowhere/a.csv").code == 2
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = on("export", "--out", "a.parquet")
    assert (answer.code, ".[export]" in answer.err) == (2, True)


def test_a_table_is_of_one_pipeline(
    on: Call, program: Path, write_program: Callable[[str], Path]
) -> None:
    on("run", program, "a")
    on("run", write_program(PROGRAM.replace('"news"', '"olds"')), "b")

    assert len(on("export").lines) == 2
    answer = on("export", "--format", "csv")
    assert (answer.code, "choose --pipeline" in answer.err) == (2, True)
    answer = on("export", "--format", "csv", "--pipeline", "olds")
    assert [row["key"] for row in rows(answer.out)] == ["b"]


def test_an_export_that_fails_leaves_the_old_file_as_it_was(
    on: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("run", program, "a")
    (tmp_path / "a.csv").write_text("before")
    monkeypatch.setattr(Csv, "end", lambda self: (_ for _ in ()).throw(OSError(28, "full")))

    answer = on("export", "--out", "a.csv")

    assert (answer.code, "a.csv cannot be written: full" in answer.err) == (2, True)
    assert (tmp_path / "a.csv").read_text() == "before"
    assert list(tmp_path.glob(".a.csv*")) == []


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_memory_does_not_grow_with_what_is_exported(
    call: Call, write_program: Callable[[str], Path], tmp_path: Path, format: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """20 MB of text in all; what is held at once is a small part of it."""
    monkeypatch.setattr(module, "GROUP_CHARS", 1_000_000)
    file = write_program(HEAVY)
    call("run", file, *(f"k{n}" for n in range(200)))
    call("export", "--format", format, "--out", "warm.x", "--state", "completed", "--run", "last")

    tracemalloc.start()
    try:
        answer = call("export", "--format", format, "--out", "all.x")
        peak: Any = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert answer.code == 0
    assert (tmp_path / "all.x").stat().st_size > 5_000_000
    assert peak < 8_000_000


def test_c13_a_reader_that_goes_away_is_no_error(program: Path, tmp_path: Path, call: Call) -> None:
    call("run", program, *(f"k{n}" for n in range(50)), "--db", "a.db")
    process = spawn("export", "--db", "a.db", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None

    answer = finished(process)

    assert (answer.code, "Traceback" in answer.err) == (0, False)
