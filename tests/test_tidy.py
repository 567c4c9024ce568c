"""House rules, as tests: what a reviewer would otherwise have to remember."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from scripts.import_contracts import OnlyContract

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "onceflow"
SQL = PACKAGE / "store" / "sql"

LEFTOVER = re.compile(r"\b(FIXME|XXX|TODO|HACK)\b")

# Upper case, as we write SQL; BEGIN, PRAGMA and LISTEN steer a connection and may stand in code.
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|MERGE|WITH)\s")

ADDRESS = re.compile(r"://|^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", re.M)

# A folder of somebody's machine. Not preceded by a letter, so the path of a URL does not count.
MACHINE_PATH = re.compile(r"(?<![\w.*}/-])/(work|root|home/\w+|Users/\w+|tmp/\w[\w.-]*|opt/\w+)/\w")


def _tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so which files are tracked is not known")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # a picture or the like


def _matches(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(_text(path).splitlines(), start=1)
        if pattern.search(line)
    ]


def _statements_in(source: str) -> Iterator[tuple[int, str]]:
    """The strings in Python source that start like an SQL statement, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and STATEMENT.match(node.value)
        ):
            yield node.lineno, node.value


def test_nothing_is_left_for_later_in_the_package() -> None:
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".sql"}]

    assert _matches(LEFTOVER, sources) == []


def test_sql_statements_stand_in_sql_files_only() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()[:60]}"
        for path in PACKAGE.rglob("*.py")
        for line, text in _statements_in(path.read_text())
    ]

    assert found == []


def test_requirements_name_no_registry() -> None:
    assert _matches(ADDRESS, sorted((ROOT / "requirements").iterdir())) == []


def test_pinned_requirements_carry_hashes() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        pins = re.split(r"\n(?=\S)", path.read_text())
        loose = [pin for pin in pins if "==" in pin.split("\n")[0] and "--hash=sha256:" not in pin]
        assert loose == [], path


def test_tracked_files_name_no_folder_of_a_machine() -> None:
    paths = [path for path in _tracked_files() if path != Path(__file__).resolve()]

    assert _matches(MACHINE_PATH, paths) == []


def test_every_sql_file_begins_by_saying_what_it_does() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SQL.glob("*/**/*.sql")
        if not re.match(r"-- \S", path.read_text())
    ]

    assert silent == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (LEFTOVER, "# TODO later"),
        (LEFTOVER, "-- FIXME: slow"),
        (ADDRESS, "--index-url something"),
        (ADDRESS, "thing @ https://a.test/thing.whl"),
        (MACHINE_PATH, 'path = "/home/somebody/project"'),
        (MACHINE_PATH, "cd /root/project"),
    ],
)
def test_a_rule_sees_what_breaks_it(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (LEFTOVER, "the todo list"),
        (ADDRESS, "asyncpg==1.0 --hash=sha256:aa"),
        (MACHINE_PATH, "https://a.test/work/1"),
        (MACHINE_PATH, "#!/usr/bin/env bash"),
    ],
)
def test_a_rule_lets_the_rest_pass(pattern: re.Pattern[str], line: str) -> None:
    assert not pattern.search(line)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('run("SELECT 1")', [1]),
        ('x = 1\nrun(f"UPDATE {table} SET a = 1")', [2]),
        ('run("""\n  WITH picked AS (x)""")', [1]),
        ('run("BEGIN IMMEDIATE")\n"""Create a thing."""\n"select a stage"', []),
    ],
)
def test_sql_is_found_in_strings(source: str, lines: list[int]) -> None:
    assert [line for line, _ in _statements_in(source)] == lines


@pytest.mark.parametrize(
    ("imported", "kept"),
    [
        ("onceflow.core.errors", True),
        ("onceflow.clients.http", True),
        ("onceflow", True),
        ("onceflow.store.base", False),
        ("onceflow.core_extra", False),
    ],
)
def test_the_import_contract_allows_what_is_listed_only(imported: str, kept: bool) -> None:
    graph = grimp.ImportGraph()
    graph.add_import(importer="onceflow.pipelines.news", imported=imported)
    contract = OnlyContract(
        name="pipelines",
        session_options={"root_packages": ["onceflow"]},
        contract_options={
            "source": "onceflow.pipelines",
            "allowed": ["onceflow.core", "onceflow.clients"],
            "allowed_exactly": ["onceflow"],
        },
    )

    assert contract.check(graph, verbose=False).kept is kept
