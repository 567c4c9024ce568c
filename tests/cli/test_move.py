"""`onceflow move`: everything is there afterwards, in both directions, or nothing is."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow import Done
from onceflow.commands.program import one_pipeline
from onceflow.core.errors import WrongDatabase
from onceflow.core.transition import Part, decide
from onceflow.engine.neighbours import machine
from onceflow.store import move as move_module
from onceflow.store.base import Finish, Worker
from onceflow.store.move import shortened
from tests.cli.conftest import Call
from tests.engine.kit import DEAD, NUMBERS, claim_as

LONG = "long " * 900  # longer than an index entry may be
KEYS = ("a", "b", "gone", "down", LONG.strip(), "käse 漢字")


@pytest.fixture
def filled(call: Call, program: Path) -> Path:
    """A SQLite database in which much has happened, and something is left to do."""
    call("run", program, *KEYS, "--db", "there.db")
    call("retry", "down", "--db", "there.db")
    call("run", program, "down", "--db", "there.db")
    call("run", program, "left", "--add-only", "--db", "there.db")

    async def alias() -> None:
        async with onceflow.open("there.db", one_pipeline(program, None)) as flow:
            [lease] = await claim_as(flow.store, flow.pipelines["news"], count=1)
            change = decide(
                flow.pipelines["news"], lease, Done({"text": "x"}, aliases=["other", LONG + "!"])
            )
            await flow.store.exchange(DEAD.id, next(NUMBERS), [Finish(lease, change)], [])
            await flow.store.leave(DEAD.id)

    asyncio.run(alias())
    return program


def everything(call: Call, database: str) -> dict[str, Any]:
    async def bodies() -> list[Any]:
        async with onceflow.open(database) as flow:
            return [await flow.results(item.id) for item in await flow.items(limit=1000)]

    return {
        "items": call("items", "--json", "--db", database).lines,
        "events": call("events", "--json", "--db", database).lines,
        "runs": call("runs", "--json", "--db", database).lines,
        "results": asyncio.run(bodies()),
    }  # fmt: skip


def test_all_is_carried_over_and_back_and_goes_on_there(
    call: Call, filled: Path, postgres_url: str
) -> None:
    before = everything(call, "there.db")

    moved = call("move", "sqlite:///there.db", postgres_url)

    assert moved.code == 0, moved.err
    assert f"moved {len(before['items'])} items to" in moved.out
    assert "counts agree, audit: no violation" in moved.out
    assert everything(call, postgres_url) == before
    assert call("show", "other", "--db", postgres_url, "--json").object["key"] == "left"
    assert call("show", LONG + "!", "--db", postgres_url, "--json").object["key"] == "left"
    back = call("move", postgres_url, "back.db", "--json")
    assert (back.code, back.object["violations"]) == (0, [])
    assert everything(call, "back.db") == before
    assert call("show", "other", "--db", "back.db", "--json").object["key"] == "left"
    # Where it came from is at rest, whoever has it now goes on behind the highest numbers.
    assert "moved to" in call("why", "left", "--db", "there.db").out
    assert "moved to" not in call("why", "left", "--db", "back.db").out
    assert call("run", filled, "left", "new", "--db", "back.db", "--json").object["done"] == 2
    assert call("audit", "--db", "back.db").code == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_moved_database_refuses_whatever_would_do_its_work_twice(
    call: Call, filled: Path, postgres_url: str, kind: str
) -> None:
    source, target = "there.db", postgres_url
    call("move", source, target)
    if kind == "postgres":
        source, target = postgres_url, "back.db"
        call("move", source, target)
    before = everything(call, source)
    place = target.rpartition("@")[2]

    for command in (
        ["run", filled, "one-more"], ["run", filled, "left"], ["worker", filled],
        ["resume", "fetch", "--pipeline", "news"], ["pause", "fetch", "--pipeline", "news"],
        ["retry", "a"], ["cancel", "left"],
    ):  # fmt: skip
        answer = call(*command, "--db", source)
        assert answer.code == 2, (command, answer)
        assert "was moved to" in answer.err, (command, answer.err)
        assert place in answer.err

    assert everything(call, source) == before, "a look stays possible"
    status = call("status", "--db", source)
    assert "moved to" in status.out
    assert place in status.out
    assert "resume" not in status.out + status.err
    assert "next: onceflow status --db" in status.err
    assert place in status.err
    assert call("doctor", "--db", source).code == 1
    assert place in call("why", "left", "--db", source).out


def test_a_moved_database_can_be_taken_back(call: Call, filled: Path, postgres_url: str) -> None:
    call("move", "there.db", postgres_url)

    assert call("move", "--undo", "there.db").code == 0

    assert call("run", filled, "left", "new", "--db", "there.db", "--json").object["done"] == 2
    again = call("move", "--undo", "there.db")
    assert (again.code, "was not moved" in again.err) == (2, True)


def test_a_flow_that_was_open_during_a_move_accepts_nothing_afterwards(
    call: Call, filled: Path, postgres_url: str
) -> None:
    async def add_after() -> None:
        async with onceflow.open("there.db", one_pipeline(filled, None)) as flow:
            await asyncio.to_thread(call, "move", "there.db", postgres_url)
            with pytest.raises(WrongDatabase, match="was moved to"):
                await flow.add("news", ["late"])

    asyncio.run(add_after())
    assert "late" not in {
        item["key"] for item in call("items", "--json", "--db", postgres_url).lines
    }


def test_a_move_that_is_cut_off_between_its_commits_is_done_again(
    call: Call, filled: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is shut before the target has anything: nobody can work on both."""
    before = everything(call, "there.db")
    shut = move_module._Sqlite.shut

    async def cut_off(self: Any, moved_to: str) -> None:
        await shut(self, moved_to)
        self._connection.execute("COMMIT")
        raise RuntimeError("the machine stops")

    with monkeypatch.context() as patch:
        patch.setattr(move_module._Sqlite, "shut", cut_off)
        with pytest.raises(RuntimeError):
            call("move", "there.db", postgres_url)
    assert call("run", filled, "left", "--db", "there.db").code == 2

    assert call("move", "there.db", postgres_url).code == 0

    assert everything(call, postgres_url) == before


def test_parts_of_unfinished_work_are_carried_over(
    call: Call, program: Path, postgres_url: str
) -> None:
    call("run", program, "left", "--add-only", "--db", "there.db")

    async def kept() -> None:
        async with onceflow.open("there.db", one_pipeline(program, None)) as flow:
            [lease] = await claim_as(flow.store, flow.pipelines["news"], count=1)
            assert await flow.store.renew(lease, part=Part("one", b'"half of it"'))
            await flow.store.leave(DEAD.id)

    asyncio.run(kept())
    for source, target in (("there.db", postgres_url), (postgres_url, "back.db")):
        assert call("move", source, target, "--json").object["rows"]["part"] == 1


def test_new_numbers_go_on_behind_the_old_ones_on_postgresql(
    call: Call, filled: Path, postgres_url: str
) -> None:
    last = everything(call, "there.db")
    call("move", "there.db", postgres_url)

    report = call("run", filled, "left", "new", "--db", postgres_url, "--json").object

    assert report["done"] == 2
    events = call("events", "--json", "--db", postgres_url).lines
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
    assert events[: len(last["events"])] == last["events"]
    assert call("audit", "--db", postgres_url).code == 0


def test_a_target_that_is_not_empty_is_left_alone(
    call: Call, filled: Path, postgres_url: str
) -> None:
    call("run", filled, "mine", "--db", postgres_url)
    before = everything(call, postgres_url)

    answer = call("move", "there.db", postgres_url)

    assert (answer.code, "is not empty" in answer.err) == (2, True)
    assert everything(call, postgres_url) == before
    assert "paused" not in call("status", "--db", "there.db").out.lower()


def test_it_is_refused_while_a_worker_lives(call: Call, filled: Path, tmp_path: Path) -> None:
    async def beat() -> None:
        async with onceflow.open("there.db") as flow:
            await flow.store.beat(Worker("alive", machine(), os.getpid()))

    asyncio.run(beat())
    answer = call("move", "there.db", "here.db")
    assert (answer.code, f"pid {os.getpid()}" in answer.err) == (2, True)
    assert "stop every worker" in answer.err


def test_wrong_arguments_are_said(call: Call, filled: Path) -> None:
    assert "there is no database nowhere.db" in call("move", "nowhere.db", "x.db").err
    assert "no --db" in call("move", "there.db", "x.db", "--db", "y.db").err
    assert "the same database" in call("move", "there.db", "there.db").err


def test_a_fault_in_the_middle_leaves_the_target_empty(
    call: Call, filled: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceflow.store.move.shortened", lambda key: f"{key}!")
    answer = call("move", "there.db", postgres_url)
    assert (answer.code, "were not carried over as they are" in answer.err) == (2, True)
    monkeypatch.undo()
    assert call("items", "--db", postgres_url, "--json").lines == []


def test_short_keys_stay_as_they_are() -> None:
    assert shortened("a" * 1000) == "a" * 1000
    assert len(shortened("ä" * 501)) < 200
