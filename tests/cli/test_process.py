"""The real program in processes of its own: signals, pipes, terminals, several at once."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, clean_environment, finished, spawn

SLOW = '''
"""A handler that tells when it begins, and ends when it is told so."""

from pathlib import Path

from onceflow import Pipeline, Stage

HERE = Path(__file__).parent


def work(work):
    with (HERE / "begun").open("w") as begun:
        begun.write(work.key)
    if (HERE / "go").exists():
        (HERE / "go").read_text()


slow = Pipeline("slow", Stage("work", work, ready="new", limit=1), lease_seconds=60)
'''

FAST_SETTINGS = ("--poll-seconds", "0.05")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A folder with slow.py; its handler stops at `begun` until that is read, then at `go`."""
    (tmp_path / "slow.py").write_text(SLOW)
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "go")
    return tmp_path


def told(process: subprocess.Popen[str], words: str) -> str:
    """Read the process's stderr until it says this."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without saying {words!r}")


def item(folder: Path, key: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(finished(spawn("show", key, "--json", cwd=folder)).out)
    return found


def let_go(folder: Path) -> None:
    """Everything that still waits in this folder ends."""
    for name in ("begun", "go"):
        with contextlib.suppress(FileNotFoundError):
            (folder / name).rename(folder / f"{name}-over")
            os.close(os.open(folder / f"{name}-over", os.O_RDWR | os.O_NONBLOCK))


def test_sigterm_lets_a_worker_finish_what_it_has_and_exit_with_0(slow: Path) -> None:
    finished(spawn("run", "slow.py", "a", "b", "--add-only", cwd=slow))
    worker = spawn("worker", "slow.py", "--json", cwd=slow)
    assert (slow / "begun").read_text() == "a"

    worker.send_signal(signal.SIGTERM)
    line = json.loads(told(worker, "stopping"))
    (slow / "go").write_text("go")
    answer = finished(worker)

    assert line["level"] == "info"
    assert answer.code == 0
    assert (answer.object["finished"], answer.object["released"]) == (1, 0)
    assert item(slow, "a")["phase"] == "done"
    assert item(slow, "b")["phase"] == "ready"


def test_a_second_signal_stops_at_once_and_costs_no_attempt(slow: Path) -> None:
    finished(spawn("run", "slow.py", "a", "--add-only", cwd=slow))
    worker = spawn("worker", "slow.py", cwd=slow)
    assert (slow / "begun").read_text() == "a"

    worker.send_signal(signal.SIGINT)
    told(worker, "stopping: ")
    worker.send_signal(signal.SIGINT)
    answer = finished(worker)

    assert answer.code == 130
    assert "given back" in answer.err
    found = item(slow, "a")
    assert (found["phase"], found["attempt"]) == ("ready", 0)


def test_the_grace_time_ends_and_the_rest_is_given_back(slow: Path) -> None:
    finished(spawn("run", "slow.py", "a", "--add-only", cwd=slow))
    worker = spawn("worker", "slow.py", "--grace-seconds", "0.1", cwd=slow)
    assert (slow / "begun").read_text() == "a"

    worker.send_signal(signal.SIGTERM)
    answer = finished(worker)

    assert answer.code == 0
    assert item(slow, "a")["attempt"] == 0


def test_ctrl_c_stops_a_run_and_the_same_command_goes_on(slow: Path) -> None:
    run = spawn("run", "slow.py", "a", "b", *FAST_SETTINGS, cwd=slow)
    assert (slow / "begun").read_text() == "a"
    run.send_signal(signal.SIGINT)
    told(run, "stopping")
    (slow / "go").write_text("go")
    first = finished(run)
    let_go(slow)
    (slow / "begun").touch()

    second = finished(spawn("run", "slow.py", "a", "b", "--json", *FAST_SETTINGS, cwd=slow))

    assert first.code == 130
    assert "stopped, 1 done, 1 open" in first.out
    assert "run the same command again" in first.out
    assert (second.code, second.object["done"], second.object["new"]) == (0, 2, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_idle_worker_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "news.py").write_text(PROGRAM)
    worker = spawn("worker", "news.py", cwd=tmp_path)
    told(worker, "works on news in onceflow.db")

    worker.send_signal(number)
    answer = finished(worker)

    assert (answer.code, "stopped: nothing to do" in answer.err) == (0, True)


def test_following_ends_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "news.py").write_text(PROGRAM)
    finished(spawn("run", "news.py", "a", cwd=tmp_path))
    for words in (["events", "--follow", "--json"], ["watch", "--json"]):
        follower = spawn(*words, cwd=tmp_path)
        assert follower.stdout is not None
        json.loads(follower.stdout.readline())
        follower.send_signal(signal.SIGINT)
        answer = finished(follower)
        assert (answer.code, answer.err) == (130, "")


def test_events_are_followed_across_processes(tmp_path: Path) -> None:
    (tmp_path / "news.py").write_text(PROGRAM)
    finished(spawn("run", "news.py", "a", cwd=tmp_path))
    follower = spawn("events", "--follow", "--last", 1, "--json", cwd=tmp_path)
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["kind"] == "run_finished"

    finished(spawn("run", "news.py", "b", cwd=tmp_path))

    line = json.loads(follower.stdout.readline())
    assert (line["kind"], line["key"]) == ("added", "b")
    follower.kill()
    follower.communicate()


# --- C13: stdout closed, no terminal, width 20, another locale ---


@pytest.fixture(scope="module")
def many_items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database of 3,000 items."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "news.py").write_text(PROGRAM)
    (folder / "seeds.txt").write_text("\n".join(f"key {number}" for number in range(3000)))
    assert finished(spawn("run", "news.py", "seeds.txt", "--add-only", cwd=folder)).code == 0
    return folder


@pytest.mark.parametrize(
    "words",
    [["items"], ["items", "--json"], ["events"], ["events", "--json"], ["status"], ["--help"],
     ["config", "show"]],
    ids=" ".join,
)  # fmt: skip
def test_c13_a_reader_that_goes_away_gives_no_traceback(many_items: Path, words: list[str]) -> None:
    process = spawn(*words, cwd=many_items)
    assert process.stdout is not None
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()

    # A short answer may be written whole before the reader goes: then it says what comes next.
    trouble = [line for line in said.splitlines() if not line.startswith("next: ")]
    assert (process.wait(timeout=180), trouble) == (0, [])


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", ">/dev/full"])
def test_c13_closed_streams_give_no_traceback(many_items: Path, closed: str) -> None:
    for words in ("status", "run news.py none-such --add-only", "frobnicate"):
        command = f"{sys.executable} -m onceflow {words} {closed}"
        done = subprocess.run(
            ["sh", "-c", command], cwd=many_items, capture_output=True, text=True,
            env=clean_environment(), timeout=180, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert "Exception ignored" not in done.stderr
        assert done.returncode in ((0, 3) if words != "frobnicate" else (2,))


def test_c13_another_locale_gives_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "news.py").write_text(PROGRAM)
    plain = clean_environment(LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    keys = ["käse", "漢字", "gone …"]

    ran = finished(spawn("run", "news.py", *keys, cwd=tmp_path, env=plain))
    listed = finished(spawn("items", cwd=tmp_path, env=plain))
    helped = finished(spawn("run", "--help", cwd=tmp_path, env=plain))

    assert (ran.code, listed.code, helped.code) == (1, 0, 0)
    assert "Traceback" not in ran.err + listed.err + helped.err
    assert "\\u6f22" in listed.out


@contextlib.contextmanager
def terminal(columns: int) -> Iterator[tuple[int, int]]:
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        yield main, other
    finally:
        os.close(main)


def shown_in_terminal(
    folder: Path, columns: int, *words: str, code: int | None = None, **environment: str
) -> str:
    with terminal(columns) as (main, other):
        process = spawn(
            *words, cwd=folder, stdout=other, stderr=other,
            env=clean_environment(TERM="xterm-256color", **environment),
        )  # fmt: skip
        os.close(other)
        raw = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(main, 65536):
                raw += part
        assert process.wait(timeout=180) in ((0, 1) if code is None else (code,))
        return raw.decode()


@pytest.mark.parametrize("columns", [20, 60, 200])
def test_c13_a_terminal_of_any_width_gives_no_traceback(tmp_path: Path, columns: int) -> None:
    (tmp_path / "news.py").write_text(PROGRAM)

    text = shown_in_terminal(tmp_path, columns, "run", "news.py", "a", "gone")

    assert "Traceback" not in text
    assert "\x1b[?25l" in text, "the live board hides the cursor"
    assert "\x1b[?25h" in text, "and gives it back"
    assert "1 done, 1 failed" in text
    for words in (["status"], ["items"], ["events"], ["watch", "last"], ["--help"]):
        assert "Traceback" not in shown_in_terminal(tmp_path, columns, *words)


def test_ci_and_no_color_are_honoured(tmp_path: Path) -> None:
    (tmp_path / "news.py").write_text(PROGRAM)

    in_ci = shown_in_terminal(tmp_path, 80, "run", "news.py", "a", "gone", CI="1")
    colourless = shown_in_terminal(tmp_path, 80, "run", "news.py", "b", "gone 2", NO_COLOR="1")

    assert "\x1b" not in in_ci
    assert "2 of 2 settled" in in_ci
    assert "\x1b[3" not in colourless.replace("\x1b[3A", "")


def test_a_terminal_that_goes_away_does_not_stop_the_work(slow: Path) -> None:
    with terminal(80) as (_, other):
        run = spawn("run", "slow.py", "a", *FAST_SETTINGS, cwd=slow, stderr=other)
        os.close(other)
        assert (slow / "begun").read_text() == "a"
    (slow / "go").write_text("go")

    assert finished(run).code == 0
    assert item(slow, "a")["phase"] == "done"


# --- several at once ---


def test_c15_two_runs_on_one_folder_help_each_other(slow: Path) -> None:
    keys = [f"k{number}" for number in range(6)]
    both = [spawn("run", "slow.py", *keys, "--json", *FAST_SETTINGS, cwd=slow) for _ in range(2)]
    worked = [(slow / "begun").read_text()]
    let_go(slow)
    (slow / "begun").touch()

    answers = [finished(one) for one in both]

    assert worked[0] in keys
    assert [answer.code for answer in answers] == [0, 0]
    assert {answer.object["run"] for answer in answers} == {answers[0].object["run"]}
    assert [answer.object["done"] for answer in answers] == [6, 6]
    assert sum(answer.object["new"] for answer in answers) == 6
    assert finished(spawn("audit", cwd=slow)).code == 0


def test_c12_an_import_that_was_killed_is_imported_again_as_one(tmp_path: Path) -> None:
    (tmp_path / "news.py").write_text(PROGRAM)
    lines = [f"key {number}" for number in range(12_000)]
    script = (
        "import os, signal, onceflow; add = onceflow.Flow.add\n"
        "async def killed(flow, pipeline, keys, **options):\n"
        "    if 'key 5000' in keys: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return await add(flow, pipeline, keys, **options)\n"
        "onceflow.Flow.add = killed\n"
        "from onceflow.cli import main; main(['run', 'news.py', 'list.txt', '--add-only'])\n"
    )
    (tmp_path / "list.txt").write_text("\n".join(lines))
    killed = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=clean_environment(), check=False
    )
    assert killed.returncode == -signal.SIGKILL

    answer = finished(spawn("run", "news.py", "list.txt", "--add-only", "--json", cwd=tmp_path))

    assert (answer.object["new"], answer.object["known"]) == (7000, 5000)
    [run] = finished(spawn("runs", "--json", cwd=tmp_path)).lines
    assert (run["accepted"], run["sealed"]) == (12_000, True)


# --- start-up ---

HEAVY = (
    "apsw", "asyncpg", "aiohttp", "pebble", "rich.live", "rich.markdown", "numpy", "openai",
    "trafilatura", "fastapi", "onceflow.commands.follow", "onceflow.commands.work",
    "onceflow.store.sqlite", "onceflow.store.postgres",
)  # fmt: skip


@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_help_imports_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    code = (
        "import sys; from onceflow.cli import main; main(sys.argv[1:]);"
        "sys.stderr.write('\\n'.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True,
        env=clean_environment(), check=True,
    )  # fmt: skip

    assert [name for name in HEAVY if name in done.stderr.split()] == []


def test_the_installed_command_is_this_program() -> None:
    script = Path(sys.executable).with_name("onceflow")

    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)

    assert done.stdout.strip().count(".") == 2
