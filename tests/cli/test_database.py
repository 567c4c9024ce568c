"""A database that is not ours is refused clearly and left untouched; no password is shown."""

import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import pytest

import onceflow
from tests.cli.conftest import Call

SECRET = "hunter2secret"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{SECRET}@127.0.0.1:1/db",
        f"postgres://me:{SECRET}@127.0.0.1:1/db?sslmode=bogus",
        f"postgresql://127.0.0.1:1/db?password={SECRET}",
        f"postgresql://me:{SECRET}@[broken/db",
        f"postgresql://me:{SECRET}@127.0.0.1:port/db",
        f"mysql://me:{SECRET}@127.0.0.1/db",
    ],
)
@pytest.mark.parametrize(
    "words",
    [["status"], ["doctor"], ["config", "show"], ["status", "--json"], ["doctor", "--json"],
     ["audit", "--bogus"], ["config", "show", "--json"]],
    ids=" ".join,
)  # fmt: skip
def test_c04_a_password_is_never_printed(call: Call, address: str, words: list[str]) -> None:
    answer = call(*words, "--db", address)

    assert answer.code in (0, 1, 2, 3)
    assert SECRET not in answer.out + answer.err
    assert "Traceback" not in answer.err


def test_c04_not_even_where_no_address_belongs(call: Call) -> None:
    answer = call("status", f"postgresql://me:{SECRET}@host/db")

    assert answer.code == 2
    assert SECRET not in answer.err


def test_a_server_that_is_not_there_is_exit_code_3(call: Call, program: Path) -> None:
    for words in (["status"], ["run", program, "a"], ["doctor"]):
        assert call(*words, "--db", "postgresql://127.0.0.1:1/db").code == 3


def newer(path: Path) -> None:
    async def make() -> None:
        async with onceflow.open(path):
            pass

    asyncio.run(make())
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()


def read_only(path: Path) -> None:
    newer(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    path.chmod(0o444)


WRONG = {
    "a folder": (Path.mkdir, "is a folder"),
    "zero bytes": (Path.touch, "is empty"),
    "random bytes": (lambda path: path.write_bytes(os.urandom(5000)), "not a SQLite database"),
    "a newer schema": (newer, "newer Onceflow"),
    "another program's": (foreign, "another program's"),
    "read-only": (read_only, "read-only"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("command", ["status", "run", "worker", "audit"])
def test_c05_a_wrong_database_is_refused_and_left_untouched(
    call: Call, tmp_path: Path, program: Path, kind: str, command: str
) -> None:
    path = tmp_path / "wrong.db"
    make, words = WRONG[kind]
    make(path)
    before = (stat.S_IMODE(path.stat().st_mode), path.is_dir() or path.read_bytes())

    more = [program] if command in ("run", "worker") else []
    answer = call(command, *more, "--db", path)

    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "wrong.db" in answer.err
    assert words in answer.err
    assert (stat.S_IMODE(path.stat().st_mode), path.is_dir() or path.read_bytes()) == before


def test_c05_a_folder_that_does_not_exist_is_named(call: Call, program: Path) -> None:
    answer = call("run", program, "a", "--db", "nowhere/a.db")

    assert answer.code == 2
    assert "nowhere does not exist" in answer.err


def test_looking_does_not_make_a_database(call: Call, tmp_path: Path) -> None:
    answer = call("status")

    assert answer.code == 3
    assert "there is no database onceflow.db" in answer.err
    assert not (tmp_path / "onceflow.db").exists()


def test_a_database_without_anything_in_it_is_shown(call: Call, database: str) -> None:
    async def make() -> None:
        async with onceflow.open(database):
            pass

    asyncio.run(make())

    assert "no pipeline yet" in call("status", "--db", database).out
    assert call("items", "--db", database, "--json").out == ""
    assert call("runs", "--db", database, "--json").out == ""
    assert call("events", "--db", database, "--json").out == ""
    assert call("watch", "--once", "--db", database).code == 0
    assert call("audit", "--db", database, "--json").object["ok"] is True
    assert call("doctor", "--db", database, "--json").object["ok"] is True
