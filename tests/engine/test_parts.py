"""What an attempt keeps for the next one, and where it stops when its run may spend no more."""

from contextlib import closing
from dataclasses import dataclass, field

import apsw
import asyncpg
import pytest

import onceflow
from onceflow import Done, Halt, Json, Pipeline, Stage, Transient, Usage, Work
from tests.engine.kit import Database

QUESTIONS = ("a", "b", "c", "d", "e")


@dataclass
class Asking:
    """Asks questions one by one, each of which costs ten tokens."""

    asked: list[str] = field(default_factory=list)
    fails_at: list[int] = field(default_factory=list)

    async def ask(self, work: Work) -> Json:
        answers = await work.kept()
        for question in QUESTIONS:
            if question in answers:
                continue
            if (await work.left()).nothing:
                raise Halt("nothing is left to pay with")
            self.asked.append(question)
            if len(self.asked) in self.fails_at:
                raise Transient("the line is bad")
            answers[question] = question.upper()
            await work.keep(question, question.upper(), Usage(10, 0.25))
        return Done(answers)

    def pipeline(self) -> Pipeline:
        return Pipeline("asking", Stage("ask", self.ask), backoff_seconds=0)


async def test_a_later_attempt_goes_on_where_the_last_one_failed(database: Database) -> None:
    job = Asking(fails_at=[3, 5])
    async with database.flow(job.pipeline()) as flow:
        run = (await flow.add("asking", ["x"])).run
        await flow.drain()
        item = await flow.item("asking", "x")
        assert (item.state, item.attempt) == ("completed", 3)
        result = await flow.result(item.id, "ask")
        assert result == {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E"}
        assert job.asked == ["a", "b", "c", "c", "d", "d", "e"]
        assert ((await flow.run(run)).tokens, (await flow.run(run)).cost) == (50, 1.25)
        assert await flow.audit() == []


async def test_a_ceiling_stops_an_attempt_and_a_higher_one_lets_it_go_on(
    database: Database,
) -> None:
    job = Asking()
    async with database.flow(job.pipeline()) as flow:
        run = (await flow.add("asking", ["x"], max_tokens=20)).run
        await flow.drain()
        item = await flow.item("asking", "x")
        assert (item.phase, item.attempt) == ("ready", 0)
        assert job.asked == ["a", "b"]
        assert (await flow.run(run)).halted == "its token ceiling is reached"
        await flow.drain()
        assert job.asked == ["a", "b"]

        await flow.add("asking", [], run=run, max_tokens=1000)
        await flow.drain()
        item = await flow.item("asking", "x")
        assert (item.state, item.attempt) == ("completed", 1)
        assert job.asked == list(QUESTIONS)
        assert await flow.audit() == []


async def rows_of_parts(database: Database) -> int:
    if database.kind == "sqlite":
        with closing(apsw.Connection(database.url)) as connection:
            return int(connection.execute("SELECT count(*) FROM part").get)
    connection = await asyncpg.connect(database.url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM onceflow.part"))
    finally:
        await connection.close()


async def test_what_was_kept_is_gone_when_the_stage_has_its_result(database: Database) -> None:
    job = Asking(fails_at=[3])
    async with database.flow(job.pipeline()) as flow:
        run = (await flow.add("asking", ["x"], max_tokens=20)).run
        await flow.drain()
        assert await rows_of_parts(database) == 2
        await flow.add("asking", [], run=run, max_tokens=1000)
        await flow.drain()
        assert (await flow.item("asking", "x")).state == "completed"
        assert await rows_of_parts(database) == 0


async def test_doing_it_again_keeps_nothing_of_what_was_finished(database: Database) -> None:
    job = Asking()
    async with database.flow(job.pipeline()) as flow:
        await flow.add("asking", ["x"])
        await flow.drain()
        await flow.add("asking", ["x"], refresh=True)
        await flow.drain()
        assert job.asked == [*QUESTIONS, *QUESTIONS]


async def test_halting_without_a_ceiling_that_is_reached_is_a_failed_attempt(
    database: Database,
) -> None:
    async def halts(work: Work) -> Json:
        raise Halt("enough")

    asking = Pipeline("asking", Stage("ask", halts), backoff_seconds=0)
    async with database.flow(asking) as flow:
        await flow.add("asking", ["x"])
        await flow.drain()
        item = await flow.item("asking", "x")
        assert (item.state, item.error_code) == ("failed", "halted")
        assert item.error == "enough (but its run has no ceiling that is reached)"


async def test_a_handler_without_an_engine_is_told_so() -> None:
    for asked in (Work("x").kept(), Work("x").left(), Work("x").keep("a", 1)):
        with pytest.raises(onceflow.Permanent, match="needs the engine"):
            await asked
