"""What a person is told to do next, and what a narrow terminal, a closed pipe or a killed worker
looks like."""

import asyncio
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import onceflow
from onceflow.commands.text import masked
from onceflow.core.errors import pip_install
from onceflow.engine.neighbours import machine
from onceflow.store.base import Worker
from tests.cli.conftest import PROGRAM, Answer, Call, finished, spawn
from tests.cli.test_process import shown_in_terminal


@pytest.fixture
def on(call: Call, database: str) -> Call:
    def run(*arguments: object) -> Answer:
        return call(*arguments, "--db", database)

    return run


def test_why_and_show_name_the_exact_command(on: Call, program: Path, database: str) -> None:
    shown = masked(database)
    on("run", program, "a", "gone away", "down")

    failed = on("why", "gone away")
    assert failed.out.splitlines()[1] == (
        f"  next: onceflow retry 'gone away' --db {shown}, then onceflow worker FILE.py "
        f"--db {shown}"
    )
    assert on("why", "a", "--json").object["next"] == f"onceflow show a --db {shown}"
    retried = on("retry", "gone away")
    assert retried.out == "retried 1 item\n"
    assert f"next: onceflow worker FILE.py --db {shown}, or the command" in retried.err
    assert on("retry", "down", "--quiet").err == ""
    assert on("show", "gone away", "--json").object["next"].startswith("onceflow worker FILE.py")
    paused = on("pause", "fetch")
    assert f"next: onceflow resume fetch --db {shown}, to claim" in paused.err
    assert on("why", "gone away", "--json").object["next"] == (
        f"onceflow resume fetch --pipeline news --db {shown}"
    )
    said = on("status").err
    assert f"next: onceflow resume fetch --pipeline news --db {shown}" in said
    assert f"next: onceflow worker FILE.py --db {shown}" in said


def test_who_works_is_named_once_whatever_the_stages(on: Call, program: Path) -> None:
    on("run", program, "a", "b")
    on("retry", "a", "--from-stage", "fetch")

    assert on("retry", "b", "--from-stage", "count").err.count("next:") == 1


def test_a_database_with_a_space_in_its_path_can_be_typed_as_shown(
    call: Call, program: Path, tmp_path: Path
) -> None:
    (tmp_path / "a b").mkdir()
    path = tmp_path / "a b" / "c.db"
    call("run", program, "gone", "--db", path)

    assert f"onceflow retry gone --db '{path}'" in call("why", "gone", "--db", path).out


def test_a_remark_is_broken_between_words(tmp_path: Path) -> None:
    text = shown_in_terminal(tmp_path, 40, "status", "--db", "nowhere.db", code=3)

    words = "there is no database nowhere.db"
    assert words in " ".join(text.split())
    assert all(len(line) <= 40 for line in text.splitlines())


def test_status_names_where_the_failures_are(on: Call, program: Path, database: str) -> None:
    shown = masked(database)
    on("run", program, "gone")
    assert f"next: onceflow items --phase failed --pipeline news --db {shown}" in (on("status").err)


def test_what_came_out_before_a_retry_is_said_to_be_from_before(on: Call, program: Path) -> None:
    assert "from before" not in on("run", program, "a", "down").out
    on("retry", "down")

    again = on("run", program, "a", "down")

    assert "that is from before 1 item changed: this command" in again.out
    assert "--new-run writes a new one" in again.out
    assert "from before" not in on("run", program, "a", "down", "--new-run").out


def test_a_killed_worker_of_this_machine_is_shown_as_ended(
    on: Call, program: Path, database: str
) -> None:
    on("run", program, "a", "--add-only")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    async def beat() -> None:
        async with onceflow.open(database) as flow:
            await flow.store.beat(Worker("killed", machine(), gone.pid))

    asyncio.run(beat())
    assert "ended without a word" in on("status").out
    [worker] = on("status", "--json").object["workers"]
    assert worker["ended"] is True
    assert "no worker lives" in on("why", "a").out
    assert "no worker lives" in on("doctor").out


@pytest.mark.parametrize("kind", ["text", "folder", "nowhere"])
def test_serve_refuses_a_database_that_it_cannot_use_in_one_line(
    call: Call, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "a.db"
    if kind == "text":
        path.write_text("not a database" * 100)
    elif kind == "folder":
        path.mkdir()
    else:
        path = tmp_path / "nowhere" / "a.db"

    answer = call("serve", "--port", 0, "--db", path)

    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert str(path) in answer.err


def test_serve_says_that_a_server_is_away(call: Call) -> None:
    answer = call("serve", "--port", 0, "--db", "postgresql://nobody@127.0.0.1:1/none")
    assert (answer.code, len(answer.err.splitlines())) == (3, 1)


@pytest.mark.parametrize("words", [("watch",), ("watch", "last"), ("events", "--follow")])
def test_following_ends_quietly_when_nobody_reads_it_any_more(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "news.py").write_text(PROGRAM)
    finished(spawn("run", "news.py", "a", "--add-only", cwd=tmp_path))
    following = spawn(*words, cwd=tmp_path)
    assert following.stdout is not None
    assert following.stdout.readline()
    following.stdout.close()

    assert following.wait(180) == 0
    assert following.stderr is not None
    assert following.stderr.read() == ""
    following.stderr.close()


@pytest.mark.parametrize("columns", [40, 80])
def test_listings_fit_a_narrow_terminal_and_lose_no_error(tmp_path: Path, columns: int) -> None:
    (tmp_path / "news.py").write_text(PROGRAM)
    key = f"https://example.org/{'long' * 30}/end.html"
    finished(spawn("run", "news.py", key, "gone", cwd=tmp_path))
    for words in (["items"], ["runs"], ["show", key], ["show", "gone"], ["status"], ["events"]):
        text = shown_in_terminal(tmp_path, columns, *words)
        wide = [line for line in text.splitlines() if len(line) > columns and "next:" not in line]
        assert wide == [], words
    assert "the page is gone" in " ".join(shown_in_terminal(tmp_path, columns, "items").split())
    assert "end.html" in shown_in_terminal(tmp_path, columns, "items")


def test_what_is_missing_is_installed_from_where_the_program_came_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Found:
        def __init__(self, origin: str | None) -> None:
            self.origin = origin

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.origin

    for origin, wanted in (
        ('{"dir_info": {}, "url": "file:///somewhere"}', "pip install '.[export]'"),
        (None, "pip install 'onceflow[export]'"),
    ):
        pip_install.cache_clear()
        monkeypatch.setattr(
            importlib.metadata, "distribution", lambda _, origin=origin: Found(origin)
        )
        assert pip_install("export") == wanted
    pip_install.cache_clear()
