"""A user's FILE.py: what is wrong with it is said in a line, with the line that raised."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Call, finished, spawn

Write = Callable[[str], Path]
HEAD = "from onceflow import Pipeline, Stage\n\ndef work(work): return 1\n\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "defines no Pipeline"),
        ("x = 1\n\nx = undefined_name\n", "line 3: NameError: name 'undefined_name'"),
        ("def broken(:\n", "line 1: SyntaxError: invalid syntax"),
        ("import not_a_module_at_all\n", "line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit(4)\n", "line 2: it ended the program"),
        ("import json\n\njson.loads('{')\n", "line 3: JSONDecodeError"),
        ("raise ValueError\n", "line 1: ValueError"),
    ],
)
def test_a_bad_file_is_refused_with_the_line_that_raised(
    call: Call, write_program: Write, text: str, words: str
) -> None:
    path = write_program(text)

    for command in ("run", "worker"):
        answer = call(command, path, *(["a"] if command == "run" else []))
        assert answer.code == 2
        assert answer.err.count("\n") == 1
        assert path.name in answer.err
        assert words in answer.err


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ('Stage("a", work, next="b"), Stage("b", work, next="a")', "circle"),
        ('Stage("a", work, next="c"), Stage("b", work), Stage("c", work)', "never reached"),
        ('Stage("a", work), Stage("a", work)', "named twice"),
        ('Stage("select", work)', "word of SQL"),
        ('Stage("a\'b", work)', "not allowed"),
        ('Stage("a\\nb", work)', "not allowed"),
        ('Stage("a", work, limit=0)', "at least 1"),
        ('Stage("a", work), lease_seconds=1, heartbeat_seconds=1', "two heartbeats"),
    ],
)
def test_c03_a_bad_table_of_stages_is_refused_with_its_line(
    call: Call, write_program: Write, stages: str, words: str
) -> None:
    path = write_program(f'{HEAD}news = Pipeline("news", {stages})\n')

    answer = call("run", path, "a")

    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert f"{path.name} line 5: pipeline 'news'" in answer.err
    assert words in answer.err


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing.py", "there is no file missing.py"), ("folder.py", "is a folder"),
     ("news.txt", "not the name of a Python module"), ("a.b.py", "not the name of a Python module"),
     ("json.py", "rename the file")],
)  # fmt: skip
def test_a_file_that_cannot_be_a_module_is_refused(
    call: Call, tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "folder.py").mkdir()
    for other in ("news.txt", "a.b.py", "json.py"):
        (tmp_path / other).touch()

    answer = call("run", name, "a")

    assert (answer.code, words in answer.err) == (2, True)


def test_of_several_pipelines_one_must_be_chosen(call: Call, write_program: Write) -> None:
    path = write_program(
        f'{HEAD}one = Pipeline("one", Stage("a", work))\ntwo = Pipeline("two", Stage("a", work))\n'
    )

    assert "choose one with --pipeline" in call("run", path, "a").err
    assert "has no pipeline 'three'" in call("run", path, "a", "--pipeline", "three").err
    assert call("run", path, "a", "--pipeline", "two", "--json").object["pipeline"] == "two"
    assert "several pipelines" not in call("run", path, "b", "--pipeline", "one").err
    assert "choose --pipeline" not in call("show", "a").err


def test_an_unknown_option_is_not_taken_for_a_key(call: Call, program: Path) -> None:
    answer = call("run", program, "a", "--jsno")

    assert (answer.code, "there is no option --jsno" in answer.err) == (2, True)
    assert call("run", program, "--as-keys", "--json", "--", "-x").object["done"] == 1


def test_a_handler_for_another_process_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text(
        "import os\nfrom onceflow import Pipeline, Stage\n\n"
        "def burn(work): return {'pid': os.getpid(), 'parent': os.getppid()}\n\n"
        'heavy = Pipeline("heavy", Stage("burn", burn, cpu=True))\n'
    )

    process = spawn("run", "heavy.py", "a", "--cpu-processes", 1, cwd=tmp_path)
    assert finished(process).code == 0
    answer = finished(spawn("show", "a", "--json", cwd=tmp_path))

    body = answer.object["results"][0]["body"]
    assert body["pid"] != process.pid
