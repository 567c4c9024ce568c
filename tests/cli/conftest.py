"""What the commands' tests share: databases on both stores, a pipeline's file, and two ways in."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from onceflow.cli import main

PROGRAM = '''
"""A pipeline for tests: a key's first word says what becomes of it."""

from onceflow import Permanent, Pipeline, Stage, Transient, Work


async def fetch(work: Work):
    if work.key.startswith("gone"):
        raise Permanent("the page is gone", code="gone")
    if work.key.startswith("down"):
        raise Transient("the site is down", code="timeout")
    return {"text": f"the text of {work.key}"}


async def digest(work: Work):
    return {"items": [item.key async for item in work.finished_items()]}


news = Pipeline(
    "news",
    Stage("fetch", fetch, ready="idle", active="fetching"),
    Stage("count", lambda work: {"length": len(work.input["text"])}, ready="fetched"),
    after_all=digest,
    attempts=1,
)
'''

numbers = count(1)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that does not exist yet, or is empty."""
    if request.param == "sqlite":
        return str(tmp_path / "onceflow.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def write_program(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Writes a FILE.py with a name of its own: in one process a module is imported once."""
    written: list[str] = []

    def write(text: str) -> Path:
        name = f"program_{os.getpid()}_{next(numbers)}"
        written.append(name)
        path = tmp_path / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        return path

    yield write
    for name in written:
        sys.modules.pop(name, None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


@pytest.fixture
def program(write_program: Callable[[str], Path]) -> Path:
    return write_program(PROGRAM)


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """The JSON objects on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> Any:
        """The one JSON object on stdout."""
        [value] = self.lines
        return value


Call = Callable[..., Answer]


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Run a command in this process, in an empty folder, without anybody's environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ONCEFLOW_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


def clean_environment(**more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ONCEFLOW_") and name not in ("CI", "NO_COLOR")
    }
    return {**kept, **more}


def spawn(*arguments: object, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Start the real program."""
    options.setdefault("env", clean_environment())
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    command = [sys.executable, "-m", "onceflow", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, text=True, **options)


def finished(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=180)
    return Answer(process.returncode, out or "", err or "")
