"""Every block of the README does what it says: its commands run, its settings take effect."""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from onceflow.cli import COMMANDS
from tests.cli.conftest import clean_environment
from tests.cli.loopback import GENTLE, MODEL_PATH, Loopback

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
SOME_FAIL = ("onceflow run texts.py",)
"""Whose exit code is 1, as the text says."""
OLLAMA = "http://localhost:11434/v1"


def commands() -> list[str]:
    return [
        line.removeprefix("$ ")
        for kind, text in BLOCKS
        if kind == "console"
        for line in text.splitlines()
    ]


def settings() -> list[str]:
    return [text for kind, text in BLOCKS if kind == "toml"]


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    made = Loopback()
    with made.served():
        made.model_answers()
        yield made


@pytest.fixture
def folder(loopback: Loopback, tmp_path: Path) -> Path:
    """Where a reader is: with a list of addresses, and the README's program."""
    (tmp_path / "urls.txt").write_text("\n".join(loopback.articles(2)) + "\n")
    [program] = [text for kind, text in BLOCKS if kind == "python"]
    (tmp_path / "texts.py").write_text(program)
    return tmp_path


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    program = f"{sys.executable} -m onceflow"
    environment = clean_environment(
        **GENTLE, ONCEFLOW_FETCH_ALLOW_NETWORKS="127.0.0.2/32", OPENAI_API_KEY="sk-0123456789"
    )
    return subprocess.run(
        command.replace("onceflow", program, 1), shell=True, cwd=folder, env=environment,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def test_only_blocks_that_are_tested_are_in_the_readme() -> None:
    assert {kind for kind, _ in BLOCKS} == {"console", "python", "toml"}
    assert README.count("```") == 2 * len(BLOCKS)


def test_every_command_of_the_readme_runs(folder: Path) -> None:
    ran = [one for one in commands() if not one.startswith(("python3 ", "pip ", "onceflow demo"))]
    assert len(ran) >= 7
    for command in ran:
        done = run(folder, command)
        expected = 1 if command.startswith(SOME_FAIL) else 0
        assert done.returncode == expected, (command, done.stdout, done.stderr)
        assert done.stdout.strip(), command


def test_what_the_readme_installs_is_what_the_demo_needs(wheel: Path) -> None:
    [install] = [one for one in commands() if " install " in one]
    [extras] = re.findall(r"'\.\[(.*)\]'", install)
    with zipfile.ZipFile(wheel) as opened:
        [name] = [one for one in opened.namelist() if one.endswith(".dist-info/METADATA")]
        known = Parser().parsestr(opened.read(name).decode()).get_all("Provides-Extra")
    assert set(extras.split(",")) <= set(known or [])
    source = (ROOT / "src" / "onceflow" / "commands" / "demo.py").read_text()
    assert f"pip_install('{extras}')" in source  # what it says when something is missing


def test_every_extra_is_named_with_what_it_is_for() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [table] = re.findall(r"\| extra \| for \|\n\|---\|---\|\n((?:\|.*\n)+)", README)
    assert [name for name in known["optional-dependencies"] if f"`{name}`" not in table] == []


def test_every_ready_command_of_the_table_is_there_or_said_to_be_coming() -> None:
    rows = re.findall(
        r"^\| `onceflow (\w+)[^|`]*(?:\\\|[^|`]*)*` \| (\*coming)?", README, re.MULTILINE
    )
    assert len(rows) >= 5
    known = {name for commands in COMMANDS.values() for name in commands}
    assert {name for name, coming in rows if not coming} <= known
    assert not {name for name, coming in rows if coming} & known


def test_make_demo_is_the_demo() -> None:
    done = subprocess.run(
        ["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=180, check=True
    )
    assert "onceflow demo" in done.stdout


def test_the_settings_for_a_model_a_prompt_and_a_language_are_three_lines_each() -> None:
    assert [len(text.splitlines()) for text in settings()] == [3, 3, 3]


def test_the_settings_of_the_readme_reach_the_model(folder: Path, loopback: Loopback) -> None:
    model, prompt, language = (
        text.replace(OLLAMA, loopback.site.url("/v1")) for text in settings()
    )
    said = []
    for number, text in enumerate((model, f"{model}\n{prompt}", f"{model}\n{language}")):
        (folder / f"{number}.toml").write_text(text)
        loopback.site.requests.clear()
        done = run(folder, f"onceflow summarize urls.txt --refresh --config {number}.toml")
        assert done.returncode == 0, done.stderr
        asked = [one for one in loopback.site.requests if one.path == MODEL_PATH]
        assert asked
        said.append(asked[0].body.decode())
    wish = tomllib.loads(prompt)["summarize"]["prompt"]
    assert tomllib.loads(model)["model"].removeprefix("openai:") in said[0]
    assert wish.partition("words: ")[2] in said[1]
    assert "about 60 words" in said[1]
    assert "in German" in said[2]


def test_every_picture_of_the_readme_is_there_and_fetches_nothing() -> None:
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    drawn = [name for name in pictures if name.endswith(".svg")]
    photographed = [name for name in pictures if name.endswith(".png")]
    assert (len(drawn), len(photographed)) == (2, 2)
    assert all((ROOT / name).read_bytes().startswith(b"\x89PNG") for name in photographed)
    for name in drawn:
        text = (ROOT / name).read_text()
        assert "KILLED" in text
        assert re.findall(r"https?://(?!www\.w3\.org/|127)[^\s\"<]+", text) == []
