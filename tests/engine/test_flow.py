"""The front door: add, work, watch, list, operate; on both stores."""

import asyncio
import threading
from contextlib import aclosing, suppress
from typing import Any

import pytest

import onceflow
from onceflow import (
    Done,
    Flow,
    OnceflowError,
    Permanent,
    Pipeline,
    PipelineError,
    Seed,
    Settings,
    Stage,
    StoreUnavailable,
    Transient,
    Usage,
    Work,
)
from onceflow.core.errors import UnknownItem
from onceflow.engine import flow as flow_module
from onceflow.testing.clock import FakeClock
from tests.engine.kit import (
    DEAD,
    QUICK,
    Database,
    audited,
    claim_as,
    kinds,
    ok,
    one_stage,
    only,
    until,
    until_state,
    working,
)

KEYS = [f"k{at:02}" for at in range(25)]


def tally(flow: Flow) -> dict[str, int]:
    """What the work of a flow has come to so far."""
    health = flow.health()
    assert health is not None
    return health.tally


def two_stages(first: Any = ok, second: Any = ok, **rules: Any) -> Pipeline:
    rules.setdefault("backoff_seconds", 0.0)
    return Pipeline(
        "news",
        Stage("scrape", first, ready="idle", active="scraping", limit=8),
        Stage("summarize", second, ready="scraped", active="summarizing"),
        **rules,
    )


# --- the way of an item ---


async def test_every_item_goes_through_every_stage_once(database: Database) -> None:
    seen: list[tuple[str, str]] = []

    async def note(work: Work) -> dict[str, Any]:
        seen.append((work.key, work.stage))
        return {"from": work.stage, "input": work.input}

    pipeline = two_stages(note, note)
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, KEYS)
        assert (added.new, added.known, added.over_budget) == (25, 0, 0)
        await flow.drain()
        assert sorted(seen) == sorted(
            (key, stage) for key in KEYS for stage in ("scrape", "summarize")
        )
        assert await flow.counts(pipeline) == {"completed": 25}
        item = await flow.item(pipeline, "k07")
        assert [(row["stage"], row["body"]) for row in await flow.results(item.id)] == [
            ("scrape", {"from": "scrape", "input": None}),
            ("summarize", {"from": "summarize", "input": {"from": "scrape", "input": None}}),
        ]
        assert await flow.result(item.id, "nowhere") is None
        assert (await flow.run(added.run)).finished_at is not None
        await audited(flow)


async def test_a_history_names_every_state_an_item_went_through(database: Database) -> None:
    pipeline = two_stages()
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["a"])
        events = [event async for event in flow.run_until_idle()]

    mine = [event for event in events if event.item is not None]
    assert [event.state for event in mine] == ["scraping", "scraped", "summarizing", "completed"]
    assert [event.n for event in mine] == [2, 3, 4, 5]
    assert {event.run for event in mine} == {added.run}
    assert len({event.worker for event in mine}) == 1
    assert [event.seconds is not None for event in mine] == [False, True, False, True]
    assert events[-1].kind == "run_finished"
    assert [event.seq for event in events] == sorted(event.seq for event in events)


async def test_handlers_may_be_async_plain_or_objects_and_a_plain_one_runs_in_a_thread(
    database: Database,
) -> None:
    class Callable_:
        async def __call__(self, work: Work) -> str:
            return "object"

    def plain(work: Work) -> str:
        return threading.current_thread().name

    def gives_a_coroutine(work: Work) -> Any:
        async def later() -> str:
            return "later"

        return later()

    pipeline = Pipeline(
        "kinds", Stage("a", Callable_()), Stage("b", plain), Stage("c", gives_a_coroutine)
    )
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["x"])
        await flow.drain()
        item = await only(flow, pipeline)
        assert [await flow.result(item.id, stage) for stage in "abc"] == [
            "object",
            "onceflow-b",
            "later",
        ]


async def test_a_handler_knows_its_item_and_can_read_earlier_results(database: Database) -> None:
    async def second(work: Work) -> Any:
        return [
            repr(work), work.idempotency_key, work.attempt, work.depth, work.generation,
            await work.result("scrape"), await work.result("nothing"),
        ]  # fmt: skip

    pipeline = two_stages(ok, second)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, [Seed("a", {"x": 1}, depth=3)])
        await flow.drain()
        item = await only(flow, pipeline)
        assert await flow.result(item.id, "summarize") == [
            "Work('a', stage='summarize', attempt=1)", "news/a/summarize", 1, 3, 1,
            {"key": "a", "stage": "scrape"}, None,
        ]  # fmt: skip


async def test_what_comes_with_an_item_is_the_first_stages_input(database: Database) -> None:
    async def echo(work: Work) -> Any:
        return work.input

    pipeline = one_stage(echo)
    large = {"text": "x" * 5000, "nul": "a\x00b", "half": "\ud800"}
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, [Seed("a", large), Seed("b", [1, None]), "c"])
        await flow.drain()
        ids = [(await flow.item(pipeline, key)).id for key in "abc"]
        assert [await flow.result(at, "work") for at in ids] == [large, [1, None], None]


async def test_a_higher_priority_number_comes_later(database: Database) -> None:
    order: list[str] = []

    async def note(work: Work) -> None:
        order.append(work.key)

    pipeline = one_stage(note, processors=1, batch=1)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, [Seed("c", priority=5), Seed("a", priority=-1), Seed("b")])
        await flow.drain()
    assert order == ["a", "b", "c"]


# --- adding ---


async def test_adding_again_is_harmless(database: Database) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        first = await flow.add(pipeline, ["a", "b", " a "])
        await flow.drain()
        again = await flow.add(pipeline, ["a", "b", "c"])
        assert (first.new, again.new, again.known) == (2, 1, 2)
        await flow.drain()
        assert await flow.counts() == {"completed": 3}
        assert len(await flow.items(run=again.run)) == 3, "known keys join the run"
        assert await kinds(flow, (await flow.item(pipeline, "a")).id) == [
            "added", "claimed", "stage_finished",
        ]  # fmt: skip
        await audited(flow)


async def test_I15_twenty_simultaneous_submissions_of_one_key_make_one_item(
    database: Database,
) -> None:
    pipeline = one_stage(canonical=str.lower)
    async with database.flow(pipeline) as one, database.flow(pipeline) as other:
        one.start()
        forms = ["Same", "SAME", "same", "sAME"]
        answers = await asyncio.gather(
            *[(one if at % 2 else other).add(pipeline, [forms[at % 4]]) for at in range(20)]
        )
        assert sum(answer.new for answer in answers) == 1
        assert sum(answer.known for answer in answers) == 19
        await until_state(one, pipeline, "same", "completed")
        assert len(await one.items()) == 1
        assert (await kinds(one)).count("claimed") == 1
        await one.stop()
        await audited(one)


@pytest.mark.parametrize("key", ["", "gate:x", "a\x00b", "x" * 9000])
async def test_what_cannot_be_a_key_is_refused_and_nothing_of_its_batch_is_added(
    database: Database, key: str
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        with pytest.raises(Permanent):
            await flow.add(pipeline, ["good", key])
        assert await flow.items() == []


async def test_data_that_is_not_json_is_refused_to_whoever_adds_it(database: Database) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        with pytest.raises(Permanent, match="not JSON"):
            await flow.add(pipeline, [Seed("a", {1, 2})])
        flow.start()
        with pytest.raises(Permanent, match="not JSON"):
            await flow.add(pipeline, [Seed("a", {1, 2})])
        await flow.add(pipeline, ["b"])
        await until_state(flow, pipeline, "b", "completed")


async def test_many_items_are_added_in_several_transactions_into_one_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_module, "ADD_CHUNK", 10)
    pipeline = one_stage(after_all=ok)
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, KEYS)
        assert (added.new, len(await flow.runs())) == (25, 1)
        await flow.drain()
        run = await flow.run(added.run)
        assert (run.accepted, run.sealed, run.open) == (25, True, 0)
        assert (await kinds(flow)).count("gate_opened") == 1
        await audited(flow)


async def test_one_key_in_the_place_of_a_list_is_refused(database: Database) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        with pytest.raises(TypeError, match=r"for one of them write \['abc'\]"):
            await flow.add(pipeline, "abc")
        assert await flow.items(pipeline) == []


async def test_a_sealed_run_takes_no_more_but_the_same_again(database: Database) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["a"], run="mine")
        assert added.run == "mine"
        assert (await flow.add(pipeline, ["a"], run="mine")).known == 1
        with pytest.raises(OnceflowError, match="run mine is sealed; add to a new run"):
            await flow.add(pipeline, ["b"], run="mine")


async def test_an_open_run_takes_more_until_it_is_sealed(database: Database) -> None:
    pipeline = one_stage(after_all=ok)
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["a"], seal=False)
        await flow.drain()
        assert (await flow.run(added.run)).gate_item is None
        await flow.add(pipeline, ["b"], run=added.run, seal=False)
        await flow.drain()
        await flow.seal(pipeline, added.run)
        await flow.drain()
        assert (await flow.run(added.run)).gate_item is not None
        await audited(flow)


async def test_a_run_belongs_to_one_pipeline(database: Database) -> None:
    one, other = one_stage(), one_stage(name="other")
    async with database.flow(one, other) as flow:
        await flow.add(one, ["a"], run="mine")
        with pytest.raises(OnceflowError, match="run mine belongs to pipeline 'solo'"):
            await flow.add(other, ["a"], run="mine")


async def test_whoever_adds_need_not_know_that_the_manager_has_just_ended(
    database: Database,
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        flow.start()
        manager = flow._manager
        await flow.stop()
        flow._manager = manager
        assert (await flow.add(pipeline, ["a"])).new == 1
        answer = await flow.trigger(pipeline, "a", "work", wait_seconds=0)
        assert answer.how == "joined"
        flow._manager = None
        await flow.drain()
        assert await flow.counts() == {"completed": 1}


async def test_an_add_that_waits_when_the_manager_is_ended_is_not_lost(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        busy = asyncio.Event()

        async def hang(*_: Any) -> Any:
            busy.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(flow.store, "exchange", hang)
            draining = asyncio.create_task(flow.drain())
            await busy.wait()
            adding = asyncio.create_task(flow.add(pipeline, ["a"]))
            await asyncio.sleep(0)
            draining.cancel()
            assert (await adding).new == 1
            await asyncio.wait([draining])
        await flow.drain()
        assert await flow.counts() == {"completed": 1}


async def test_an_add_that_breaks_down_is_told_so_and_the_work_goes_on(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        flow.start()
        real = flow.store.add

        async def break_down(*_: Any) -> Any:
            monkeypatch.setattr(flow.store, "add", real)
            raise AssertionError("a bug in the store")

        monkeypatch.setattr(flow.store, "add", break_down)
        with pytest.raises(AssertionError, match="a bug in the store"):
            await flow.add(pipeline, ["a"])
        await flow.add(pipeline, ["b"])
        await until_state(flow, pipeline, "b", "completed")


async def test_an_add_before_the_first_heartbeat_is_told_what_is_wrong(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        kind = type(flow.store)
        asked = asyncio.Event()

        async def full(*_: Any, **__: Any) -> Any:
            asked.set()
            raise StoreUnavailable("the disk of the database is full")

        with monkeypatch.context() as patch:
            patch.setattr(kind, "beat", full)
            patch.setattr(kind, "add", full)
            flow.start()
            with pytest.raises(StoreUnavailable, match="the disk of the database is full"):
                await flow.add(pipeline, ["a"])
        assert asked.is_set()
        assert (await flow.add(pipeline, ["a"])).new == 1
        await until_state(flow, pipeline, "a", "completed")


async def test_an_add_beside_a_claim_under_way_begins_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim has reserved all the room and looked before the add is committed."""
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        looked, go = asyncio.Event(), asyncio.Event()
        real = flow.store.exchange
        calls = 0

        async def slow(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            reply = await real(*args)
            if calls == 1:  # the first scan's, after which nobody is hungry
                looked.set()
                await go.wait()
            return reply

        monkeypatch.setattr(flow.store, "exchange", slow)
        flow.start()
        await looked.wait()
        await flow.add(pipeline, ["a"])
        go.set()
        await until_state(flow, pipeline, "a", "completed")


async def test_what_is_added_while_leases_are_looked_at_is_neither_lost_nor_adopted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A health check waits for an add that claims: between its commit and its answer the database
    knows of a lease that the manager does not. Meanwhile others add without a claim."""
    pipeline = one_stage()
    settings = Settings(poll_seconds=0.05, health_seconds=0.3)
    committed, answer = asyncio.Event(), asyncio.Event()
    order: list[str] = []
    async with working(database.flow(pipeline, settings=settings)) as flow:
        add, held = flow.store.add, flow.store.held

        async def slow_add(*args: Any) -> Any:
            order.append("add")
            added = await add(*args)
            if len(args) == 1:
                return added
            committed.set()
            await answer.wait()
            order.append("answered")
            return added

        async def watched(worker: str) -> Any:
            order.append("look")
            return await held(worker)

        async def works() -> bool:
            return (
                flow._manager is not None
                and flow._manager.tally.checks > 0
                and flow._manager._exchange.free
            )

        async def a_check_waits() -> bool:
            return flow._manager is not None and flow._manager._exchange._shut > 0

        await until(flow, works)
        monkeypatch.setattr(flow.store, "add", slow_add)
        monkeypatch.setattr(flow.store, "held", watched)
        first = asyncio.create_task(flow.add(pipeline, ["a"]))
        await committed.wait()
        await until(flow, a_check_waits)
        assert (await flow.add(pipeline, ["b"])).new == 1
        assert order[order.index("add") :] == ["add", "add"], "a check looked too early"
        answer.set()
        await first
        for key in ("a", "b"):
            item = await until_state(flow, pipeline, key, "completed")
            assert await kinds(flow, item.id) == ["added", "claimed", "stage_finished"]
        assert (tally(flow)["adopted"], tally(flow)["lost"]) == (0, 0)
        await flow.stop()
        await audited(flow)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_add_that_is_given_up_leaves_no_lease_behind(
    database: Database, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whoever adds may be cancelled before the commit or after it: the answer is the manager's."""
    pipeline = one_stage()
    async with working(database.flow(pipeline)) as flow:
        asked, go = asyncio.Event(), asyncio.Event()
        real = flow.store.add

        async def slow(*args: Any) -> Any:
            added = await real(*args) if moment == "after" else None
            asked.set()
            await go.wait()
            return added or await real(*args)

        monkeypatch.setattr(flow.store, "add", slow)
        adding = asyncio.create_task(flow.add(pipeline, ["a"]))
        await asked.wait()
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        go.set()
        await until_state_of_any(flow, "completed")
        item = await only(flow, pipeline)
        assert await kinds(flow, item.id) == ["added", "claimed", "stage_finished"]
        assert (tally(flow)["adopted"], tally(flow)["lost"]) == (0, 0)
        await flow.stop()
        await audited(flow)


async def test_a_stop_ends_while_others_keep_adding(database: Database) -> None:
    pipeline = one_stage()
    async with working(database.flow(pipeline)) as flow:
        go_on = True

        async def keep_adding(who: int) -> None:
            at = 0
            while go_on:
                await flow.add(pipeline, [f"{who} {at}"])
                at += 1

        adding = [asyncio.create_task(keep_adding(who)) for who in range(30)]
        await until_state_of_any(flow, "completed")
        async with asyncio.timeout(60):
            await flow.stop(grace_seconds=0)
        go_on = False
        await asyncio.gather(*adding)
        await audited(flow)


async def until_state_of_any(flow: Flow, state: str) -> None:
    async def question() -> int:
        return (await flow.counts()).get(state, 0)

    await until(flow, question)


async def test_an_add_does_not_wait_for_work_that_was_ended_before_it_began(
    database: Database,
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        starting = flow.start()
        adding = asyncio.create_task(flow.add(pipeline, ["a"]))
        starting.cancel()
        assert (await adding).new == 1
        with suppress(asyncio.CancelledError):
            await starting
        flow._working = None
        await flow.drain()
        assert (await only(flow, pipeline)).state == "completed"


async def test_many_add_at_once_and_all_of_it_is_done(database: Database) -> None:
    pipeline = one_stage(processors=100)
    async with working(database.flow(pipeline)) as flow:
        added = await asyncio.gather(*(flow.add(pipeline, [f"k{at}"]) for at in range(100)))
        assert sum(one.new for one in added) == 100
        for at in range(100):
            await until_state(flow, pipeline, f"k{at}", "completed")
        await flow.stop()
        await audited(flow)


async def test_a_claim_beside_a_finish_that_it_overtakes_begins_without_being_given_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked before the finish, it looks after it was committed: its lease is on an item whose
    finish is not answered yet."""
    waiting, committed, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def scrape(work: Work) -> Any:
        flow._told()  # somebody has committed something: a claim is asked for beside this attempt
        await waiting.wait()
        return await ok(work)

    pipeline = two_stages(scrape)
    async with database.flow(pipeline) as flow:
        real = flow.store.exchange
        calls = 0

        async def overtaken(
            worker: str, number: int, finishes: Any, claims: Any, begins: Any = ()
        ) -> Any:
            nonlocal calls
            calls += 1
            if finishes:
                reply = await real(worker, number, finishes, claims, begins)
                committed.set()
                await answered.wait()
                return reply
            if calls == 2:  # that claim
                waiting.set()
                await committed.wait()
            reply = await real(worker, number, finishes, claims, begins)
            if calls >= 2:
                answered.set()
            return reply

        monkeypatch.setattr(flow.store, "exchange", overtaken)
        await flow.add(pipeline, ["a"])
        await flow.drain()
        assert await kinds(flow, (await only(flow, pipeline)).id) == [
            "added", "claimed", "stage_finished", "claimed", "stage_finished",
        ]  # fmt: skip
        await audited(flow)


async def test_who_keeps_adding_does_not_hold_up_the_work(database: Database) -> None:
    pipeline = one_stage(processors=1, batch=1)
    async with working(database.flow(pipeline)) as flow:
        for at in range(300):
            await flow.add(pipeline, [f"k{at}"])
            if (await flow.counts()).get("completed", 0) > 5:
                break
        else:
            pytest.fail("300 items were added before six were done")
        await flow.stop()
        await audited(flow)


# --- working ---


async def test_one_flow_works_once_at_a_time(database: Database) -> None:
    async with working(database.flow(one_stage())) as flow:
        assert flow.start() is flow.start(), "starting again is the same work"
        with pytest.raises(OnceflowError, match="working already"):
            await flow.drain()
        with pytest.raises(OnceflowError, match="working already"):
            async for _ in flow.run_until_idle():
                pass


async def test_a_flow_can_be_stopped_before_its_first_step_and_started_again(
    database: Database,
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        flow.start()
        await flow.stop()
        assert flow.health() is None
        await flow.add(pipeline, ["a"])
        flow.start()
        await until_state(flow, pipeline, "a", "completed")
        await flow.stop()
        await flow.stop()


async def test_work_goes_on_until_it_is_stopped(database: Database) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        task = asyncio.create_task(flow.work())
        for key in ("a", "b"):
            await asyncio.sleep(0)
            await flow.add(pipeline, [key])
            await until_state(flow, pipeline, key, "completed")
        assert not task.done()
        flow.stop_soon()
        await task


async def test_draining_nothing_ends_at_once(database: Database) -> None:
    async with database.flow(one_stage()) as flow:
        await flow.drain()
        assert [event async for event in flow.run_until_idle()] == []


async def test_a_drain_waits_for_what_another_process_has_under_way(database: Database) -> None:
    go = asyncio.Event()
    here: list[str] = []

    async def waits(work: Work) -> str:
        await go.wait()
        return "theirs"

    async def mine_(work: Work) -> str:
        here.append(work.key)
        return "mine"

    async with (
        database.flow(one_stage(waits)) as theirs,
        database.flow(one_stage(mine_)) as mine,
    ):
        theirs.start()
        await theirs.add("solo", ["a"])
        await until_state(theirs, theirs.pipeline("solo"), "a", "work-active")
        draining = asyncio.create_task(mine.drain())
        assert not (await asyncio.wait([draining], timeout=0.3))[0]
        go.set()
        await draining
        assert here == []
        assert await mine.counts() == {"completed": 1}


async def test_run_until_idle_abandoned_in_the_middle_stops_cleanly(database: Database) -> None:
    pipeline = one_stage(processors=2)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, KEYS)
        async for event in flow.run_until_idle():
            if event.kind == "stage_finished":
                break
    async with database.flow(pipeline) as flow:
        rows = await flow.store.read("workers")
        assert rows == [], "the worker signed off before the database was closed"
        assert "work-active" not in await flow.counts()
        assert {item.attempt for item in await flow.items(state="work-ready")} <= {0}
        await flow.drain()
        assert await flow.counts() == {"completed": 25}
        await audited(flow)


async def test_run_until_idle_closed_by_its_reader_waits_for_the_attempts(
    database: Database,
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, KEYS)
        events: Any = flow.run_until_idle()
        assert (await anext(events)).kind == "claimed"
        await events.aclose()
        assert flow.health() is None
        assert "work-active" not in await flow.counts()


async def test_a_cancelled_drain_lets_go_of_what_it_had(database: Database) -> None:
    began = asyncio.Event()

    async def hang(work: Work) -> None:
        began.set()
        await asyncio.Event().wait()

    pipeline = one_stage(hang)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        draining = asyncio.create_task(flow.drain())
        await began.wait()
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        item = await only(flow, pipeline)
        assert (item.phase, item.attempt) == ("ready", 0), "at once, and it costs nothing"
        assert await kinds(flow, item.id) == ["added", "claimed", "released"]
        await audited(flow)


async def test_two_flows_share_the_work_and_no_item_is_done_twice(database: Database) -> None:
    """F20: two managers started together; the limit holds over both."""
    seen: list[str] = []
    live = most = 0

    async def note(work: Work) -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        seen.append(work.key)
        await asyncio.sleep(0)
        live -= 1

    pipeline = one_stage(note, limit=3)
    async with database.flow(pipeline) as one, database.flow(pipeline) as other:
        await one.add(pipeline, [f"k{at}" for at in range(100)])
        await asyncio.gather(one.drain(), other.drain())
        assert len(seen) == len(set(seen)) == 100
        assert most <= 3
        assert await one.counts() == {"completed": 100}
        await audited(one)


async def test_another_flows_submit_is_picked_up_without_waiting_for_the_scan(
    database: Database,
) -> None:
    """The scan is a minute away: only a wake-up can bring it within the time of this test."""
    pipeline = one_stage()
    async with working(database.flow(pipeline)) as worker, database.flow(pipeline) as client:
        await until(worker, lambda: worker.store.read("workers"))
        await client.add(pipeline, ["a"])
        await until_state(client, pipeline, "a", "completed")


async def test_a_database_of_other_pipelines_is_worked_on_only_where_they_are_known(
    database: Database,
) -> None:
    one, other = one_stage(), one_stage(name="other")
    async with database.flow(one) as mine, database.flow(other) as theirs:
        await mine.add(one, ["a"])
        await theirs.add(other, ["a"])
        await mine.drain()
        assert await mine.counts() == {"completed": 1, "work-ready": 1}
        assert await mine.counts(other) == {"work-ready": 1}
        with pytest.raises(UnknownItem, match="item of several pipelines"):
            await mine.item(None, "a")
        assert (await mine.item(None, (await mine.item(one, "a")).id)).pipeline == "solo"
        assert await mine.cancel(other) == 1, "an operator's command needs no program"


# --- failing ---


async def test_transient_permanent_and_unexpected_failures(database: Database) -> None:
    async def fail(work: Work) -> str:
        if work.key == "gone":
            raise Permanent("the page is gone", code="gone")
        if work.key == "flaky" and work.attempt == 3:
            return "at last"
        if work.key == "bug":
            raise ZeroDivisionError("oh")
        raise Transient("busy", code="busy")

    pipeline = one_stage(fail)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["gone", "flaky", "bug", "down"])
        await flow.drain()
        items = {item.key: item for item in await flow.items()}
        assert {key: (i.state, i.attempt, i.error_code) for key, i in items.items()} == {
            "gone": ("failed", 1, "gone"),
            "flaky": ("completed", 3, None),
            "bug": ("failed", 3, "unexpected"),
            "down": ("failed", 3, "busy"),
        }
        assert items["bug"].error == "ZeroDivisionError: oh"
        failed = [e async for e in flow.events(item=items["bug"].id, kinds=["failed"])]
        assert [event.data.get("unexpected") for event in failed] == [True]
        assert [i.key for i in await flow.items(pipeline, error_code="busy")] == ["down"]
        await audited(flow)


async def test_a_wrong_lane_or_key_function_fails_only_its_item(database: Database) -> None:
    def lane(key: str) -> str:
        if key == "bad":
            raise ValueError("no host")
        return key

    pipeline = Pipeline(
        "lanes", Stage("a", ok), Stage("b", ok, lane=onceflow.Lane(lane)), backoff_seconds=0
    )
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["bad", "good"])
        await flow.drain()
        assert await flow.counts() == {"failed": 1, "completed": 1}
        item = await flow.item(pipeline, "bad")
        assert (item.stage, item.attempt, item.error) == ("a", 3, "ValueError: no host")
        await audited(flow)


# --- reading ---


async def test_items_are_listed_page_by_page_and_by_what_is_asked(database: Database) -> None:
    pipeline = two_stages()
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, KEYS)
        pages = []
        after = 0
        while page := await flow.items(pipeline, after=after, limit=10):
            pages.append([item.key for item in page])
            after = page[-1].id
        assert [len(page) for page in pages] == [10, 10, 5]
        assert sorted(key for page in pages for key in page) == KEYS
        await flow.cancel(keys=["k01", "k02"])
        assert len(await flow.items(state="cancelled")) == 2
        assert len(await flow.items(state="idle", run=added.run)) == 23
        assert len(await flow.items(phase="ready", stage="scrape")) == 23
        assert await flow.items(run="none") == []
        assert await flow.counts(run=added.run) == {"idle": 23, "cancelled": 2}
        with pytest.raises(UnknownItem, match="no state 'sleeping'; there are cancelled, comp"):
            await flow.items(state="sleeping")


async def test_what_is_not_there_is_said_by_name(database: Database) -> None:
    async with database.flow(one_stage()) as flow:
        with pytest.raises(UnknownItem, match="no item 'x' in solo"):
            await flow.item("solo", "x")
        with pytest.raises(UnknownItem, match="no item 77"):
            await flow.item(None, 77)
        with pytest.raises(UnknownItem, match="no run 'r'"):
            await flow.run("r")
        with pytest.raises(PipelineError, match="no pipeline 'other' here; there is solo"):
            await flow.add("other", ["a"])
        with pytest.raises(PipelineError, match="has no stage 'nope'"):
            await flow.trigger("solo", "x", "nope")
    with pytest.raises(PipelineError, match="'solo' is given twice"):
        database.flow(one_stage(), one_stage())


async def test_runs_are_listed_newest_first(database: Database) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        for run in ("r1", "r2", "r3"):
            await flow.add(pipeline, [run], run=run)
        assert [run.id for run in await flow.runs(limit=2)] == ["r3", "r2"]
        assert [run.id for run in await flow.runs(pipeline, before="r2")] == ["r1"]


async def test_events_can_be_followed_from_another_flow(database: Database) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as worker, database.flow(pipeline) as reader:
        seen = []

        async def follow() -> None:
            events: Any = reader.events(follow=True, pipeline=pipeline)
            async with aclosing(events):
                async for event in events:
                    seen.append(event.kind)
                    if event.kind == "stage_finished":
                        return

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await worker.add(pipeline, ["a"])
        await worker.drain()
        async with asyncio.timeout(60):
            await following
        assert seen == ["added", "claimed", "stage_finished"]
        assert not reader.bus._subscriptions


async def test_events_of_a_pipeline_that_came_later_have_their_state_names(
    database: Database,
) -> None:
    async with database.flow() as reader, database.flow(one_stage()) as worker:
        events: Any = reader.events(follow=True)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await worker.add("solo", ["a"])
        async with asyncio.timeout(60):
            assert (await first).state == "work-ready"
        await events.aclose()


async def test_events_are_read_page_by_page_in_order(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_module, "PAGE", 7)
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, KEYS)
        await flow.drain()
        events = [event async for event in flow.events()]
        assert len(events) == 25 * 3 + 1
        assert len({event.seq for event in events}) == len(events)
        half = events[40].seq
        assert [e.seq async for e in flow.events(after=half)] == [e.seq for e in events[41:]]
        finished = [e async for e in flow.events(run=added.run, kinds=["stage_finished"])]
        assert len(finished) == 25


# --- operating ---


async def test_a_paused_stage_is_not_claimed_until_it_is_resumed(database: Database) -> None:
    pipeline = two_stages()
    async with database.flow(pipeline) as flow:
        await flow.pause(pipeline, "summarize", why="the model is down")
        await flow.pause(pipeline, "summarize")  # says nothing new
        await flow.add(pipeline, ["a"])
        await flow.drain()
        assert await flow.counts() == {"scraped": 1}
        assert "(the model is down)" in await flow.why(pipeline, "a")
        flow.start()
        await flow.resume(pipeline, "summarize")
        await until_state(flow, pipeline, "a", "completed")
        assert {"paused", "resumed"} <= set(await kinds(flow))
        with pytest.raises(OnceflowError, match="no stage 'nope'"):
            await flow.pause(pipeline, "nope")


async def test_a_limit_can_be_changed_while_the_work_goes_on(database: Database) -> None:
    live: set[str] = set()
    most: list[int] = []
    go = asyncio.Event()

    async def note(work: Work) -> None:
        live.add(work.key)
        most.append(len(live))
        await go.wait()
        live.discard(work.key)

    pipeline = one_stage(note, limit=2)
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, KEYS)

        async def count(wanted: int) -> bool:
            return len(live) == wanted

        await until(flow, lambda: count(2))
        await flow.limit(pipeline, "work", 5)
        await until(flow, lambda: count(5))
        assert max(most) == 5
        await flow.limit(pipeline, "work", None)
        go.set()
        await until(flow, lambda: _completed(flow, 25))
        assert max(most) == 5
        await flow.stop()
        await audited(flow)
        with pytest.raises(PipelineError, match="limit is 0; it must be at least 1"):
            await flow.limit(pipeline, "work", 0)


async def _completed(flow: onceflow.Flow, count: int) -> bool:
    return (await flow.counts()).get("completed") == count


async def test_a_cancelled_item_takes_its_lease_from_the_worker(database: Database) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a", "b"])
        [lease, _] = await claim_as(flow.store, pipeline)
        assert await flow.cancel(keys=["a"], why="not wanted", dry_run=True) == 1
        assert await flow.cancel(keys=["a"], why="not wanted") == 1
        assert await flow.cancel(keys=["a"]) == 0, "twice at the same time: one takes effect"
        assert not await flow.store.renew(lease)
        item = await flow.item(pipeline, "a")
        assert (item.state, item.error) == ("cancelled", "not wanted")
        await audited(flow)


async def test_a_released_item_is_ready_at_no_cost_and_its_worker_loses_it(
    database: Database,
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        [lease] = await claim_as(flow.store, pipeline)
        assert await flow.release(pipeline, why="stuck") == 1
        assert not await flow.store.renew(lease)
        item = await only(flow, pipeline)
        assert (item.phase, item.attempt) == ("ready", 0)
        assert await flow.release(pipeline) == 0
        await audited(flow)


async def test_a_cancelled_last_item_opens_the_gate_at_once(database: Database) -> None:
    pipeline = one_stage(after_all=ok)
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["a"])
        await flow.cancel(run=added.run)
        assert (await flow.run(added.run)).gate_item is not None
        await audited(flow)


async def test_history_of_old_items_is_pruned_and_the_rest_kept(
    database: Database, clock: FakeClock
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline, clock=clock) as flow:
        await flow.add(pipeline, ["old"])
        await flow.drain()
        clock.advance(1000)
        await flow.add(pipeline, ["new"])
        await flow.drain()
        assert await flow.prune(older_than_seconds=500) > 0
        assert await flow.prune(older_than_seconds=500) == 0
        new = await flow.item(pipeline, "new")
        assert len(await kinds(flow, new.id)) == 3
        assert await flow.counts() == {"completed": 2}
        await audited(flow)


# --- what a run may spend ---


async def test_a_run_that_reaches_its_token_ceiling_is_halted(database: Database) -> None:
    async def spend(work: Work) -> Done:
        return Done(work.key, usage=Usage(tokens=60, cost=0.5))

    pipeline = one_stage(spend, processors=1, batch=1, limit=1)
    async with database.flow(pipeline) as flow:
        halted = await flow.add(pipeline, KEYS, max_tokens=100)
        await flow.drain()
        run = await flow.run(halted.run)
        assert (run.tokens, run.cost, run.halted) == (120, 1.0, "its token ceiling is reached")
        assert await flow.counts() == {"completed": 2, "work-ready": 23}
        other = await flow.add(pipeline, ["x"], max_cost=10.0)
        await flow.drain()
        assert (await flow.run(other.run)).halted is None
        assert (await flow.item(pipeline, "x")).state == "completed"
        await audited(flow)


async def test_a_run_that_reaches_its_cost_ceiling_is_halted(database: Database) -> None:
    async def spend(work: Work) -> Done:
        return Done(work.key, usage=Usage(cost=0.5))

    pipeline = one_stage(spend, limit=1)
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, KEYS, max_cost=1.0)
        await flow.drain()
        assert (await flow.run(added.run)).halted == "its cost ceiling is reached"
        assert (await flow.counts())["completed"] == 2


# --- aliases ---


async def test_another_key_of_an_item_finds_it_and_adds_nothing(database: Database) -> None:
    async def redirect(work: Work) -> Done:
        return Done("x", aliases=["b", "c"])

    pipeline = one_stage(redirect)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        await flow.drain()
        item = await flow.item(pipeline, "a")
        assert (await flow.item(pipeline, "b")).id == (await flow.item(pipeline, "c")).id == item.id
        again = await flow.add(pipeline, ["b", "a", "d"])
        assert (again.new, again.known) == (1, 2)
        assert len(await flow.items(run=again.run)) == 2
        await flow.drain()
        await audited(flow)


# --- lost leases ---


async def test_a_stale_lease_cannot_finish_an_item(
    database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def slow(work: Work) -> str:
        began.set()
        await go.wait()
        return "too late"

    settings = onceflow.Settings(poll_seconds=0.05, cleanup_seconds=3600)
    # Bounded and with one processor: the paused one cannot claim the item again itself.
    slow_pipeline = one_stage(slow, limit=5, processors=1)
    slow_flow = database.flow(slow_pipeline, settings=settings, clock=clock)
    quick_flow = database.flow(one_stage(limit=5), clock=clock)
    async with slow_flow as paused, quick_flow as other:
        # It hears of nothing that others commit: it does not look whether its lease is there.
        monkeypatch.setattr(paused.store, "watch", lambda wake: None)
        paused.start()
        await paused.add("solo", ["a"])
        await began.wait()
        clock.advance(301)  # its heartbeat is not written meanwhile: as if it had been stopped
        await other.drain()
        assert (await other.item("solo", "a")).state == "completed"
        go.set()

        async def lost() -> bool:
            health = paused.health()
            return health is not None and health.tally["lost"] == 1

        await until(paused, lost)
        item = await other.item("solo", "a")
        assert await other.result(item.id, "work") == {"key": "a", "stage": "work"}
        assert await kinds(other, item.id) == [
            "added", "claimed", "reclaimed", "claimed", "stage_finished",
        ]  # fmt: skip
        await paused.stop()
        await audited(other)


async def test_an_attempt_whose_partials_are_refused_is_ended(
    database: Database, clock: FakeClock
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def stream(work: Work) -> None:
        began.set()
        try:
            while True:
                work.emit("summary_partial", text="x")
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    pipeline = one_stage(stream)
    async with working(database.flow(pipeline, clock=clock)) as flow:
        await flow.add(pipeline, ["a"])
        await began.wait()
        assert await flow.cancel(keys=["a"]) == 1
        async with asyncio.timeout(60):
            await ended.wait()
        await flow.stop()
        assert await flow.partial((await only(flow, pipeline)).id) is None
        await audited(flow)


# --- what the store does not like ---


async def test_a_result_the_store_refuses_fails_its_item_and_no_other(database: Database) -> None:
    async def children(work: Work) -> Done:
        data = {1, 2} if work.key == "bad" else {"a": 1}
        return Done("x", children=[Seed(f"{work.key}-child", data)] if work.depth == 0 else [])

    pipeline = one_stage(children)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["good", "bad", "fine"])
        await flow.drain()
        bad = await flow.item(pipeline, "bad")
        assert (bad.state, bad.error_code, bad.attempt) == ("failed", "refused", 1)
        assert "bad-child: stage '' returned something that is not JSON" in (bad.error or "")
        assert await flow.counts() == {"failed": 1, "completed": 4}
        await audited(flow)


async def test_a_store_that_refuses_even_the_failure_ends_the_work_with_its_words(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        real = flow.store.exchange
        calls = 0

        async def refuse(
            worker: str, number: int, finishes: Any, claims: Any, begins: Any = ()
        ) -> Any:
            nonlocal calls
            if finishes:
                calls += 1
                raise onceflow.OnceflowError(f"no, for the {calls}. time")
            return await real(worker, number, finishes, claims, begins)

        monkeypatch.setattr(flow.store, "exchange", refuse)
        with pytest.raises(OnceflowError, match=r"no, for the 3\. time"):
            await flow.drain()


async def test_a_lost_reply_to_a_claim_is_found_out_by_reading(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = two_stages()
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, KEYS)
        real = flow.store.exchange
        lost: list[bool] = []

        async def lose_replies(
            worker: str, number: int, finishes: Any, claims: Any, begins: Any = ()
        ) -> Any:
            reply = await real(worker, number, finishes, claims, begins)
            if len(lost) < 6:
                lost.append(bool(finishes))
                raise StoreUnavailable("the reply was lost")
            return reply

        monkeypatch.setattr(flow.store, "exchange", lose_replies)
        await flow.drain()
        assert any(lost)
        assert await flow.counts() == {"completed": 25}
        assert {item.attempt for item in await flow.items()} == {1}
        assert len(await kinds(flow)) == 25 * 5 + 1, "counted once"
        await audited(flow)


async def test_a_finish_that_takes_effect_after_its_reply_was_given_up_goes_on_all_the_same(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = two_stages()
    settings = Settings(health_seconds=3600)  # which would find it, too
    async with working(database.flow(pipeline, settings=settings)) as flow:
        real = flow.store.exchange
        on_its_way: list[Any] = []
        given_up = False

        async def be_late(
            worker: str, number: int, finishes: Any, claims: Any, begins: Any = ()
        ) -> Any:
            nonlocal given_up
            if not given_up and any(one.claim_next for one in finishes):
                given_up = True
                on_its_way.append((worker, finishes, claims))
                raise StoreUnavailable("no answer in time")
            while finishes and on_its_way:  # the database comes to it only now
                await real(*on_its_way.pop())
            return await real(worker, number, finishes, claims, begins)

        monkeypatch.setattr(flow.store, "exchange", be_late)
        for key in KEYS:  # one after the other: soon nobody waits for the second stage
            await flow.add(pipeline, [key])
            await until_state(flow, pipeline, key, "completed")
        assert given_up
        assert {item.attempt for item in await flow.items()} == {1}
        await audited(flow)


async def test_a_lost_reply_to_an_add_is_told_and_what_it_claimed_is_taken_in(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = one_stage()
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["first"])
        await until_state(flow, pipeline, "first", "completed")
        manager = flow._manager
        assert manager is not None

        async def at_rest() -> bool:
            return manager.tally.finished == 1 and not manager._exchange.busy

        await until(flow, at_rest)
        real = flow.store.add

        async def lose(*args: Any) -> Any:
            monkeypatch.setattr(flow.store, "add", real)
            await real(*args)
            raise StoreUnavailable("the reply was lost")

        monkeypatch.setattr(flow.store, "add", lose)
        with pytest.raises(StoreUnavailable):
            await flow.add(pipeline, ["a"], run="mine")
        assert (await flow.add(pipeline, ["a"], run="mine")).known == 1, "asking again is harmless"
        await until_state(flow, pipeline, "a", "completed")
        health = flow.health()
        assert health is not None
        assert health.tally["adopted"] == 1
        await flow.stop()
        await audited(flow)


async def test_a_lease_that_cannot_be_queued_is_given_back_uncounted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is full: the refusal is counted, and the item is somebody's later."""
    pipeline = one_stage(processors=1)
    async with database.flow(pipeline, settings=onceflow.Settings(queue_max=2)) as flow:
        await flow.add(pipeline, KEYS)
        real = flow.store.exchange
        generous = True

        async def too_many(
            worker: str, number: int, finishes: Any, claims: Any, begins: Any = ()
        ) -> Any:
            nonlocal generous
            if claims and generous:
                generous = False
                claims = [onceflow_claim(claim, 6) for claim in claims]
            return await real(worker, number, finishes, claims, begins)

        monkeypatch.setattr(flow.store, "exchange", too_many)
        async for event in flow.run_until_idle():
            if event.kind == "released":
                assert event.data["reason"] == "the local queue refused it: queue full"
                health = flow.health()
                assert health is None or health.refused == {"queue full": 4}
        assert await flow.counts() == {"completed": 25}
        assert (await kinds(flow)).count("released") == 4
        assert {item.attempt for item in await flow.items()} == {1}
        await audited(flow)


def onceflow_claim(claim: Any, count: int) -> Any:
    from dataclasses import replace

    return replace(claim, count=count)


# --- signing off ---


async def test_a_dead_workers_items_are_taken_over_when_its_lease_is_over(
    database: Database, clock: FakeClock
) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline, clock=clock) as flow:
        await flow.add(pipeline, ["a"])
        await claim_as(flow.store, pipeline)
        assert (await flow.store.sweep()).reclaimed == 0
        clock.advance(300)
        assert (await flow.store.sweep()).reclaimed == 0, "no early reclaim"
        clock.advance(1)
        await flow.drain()
        item = await only(flow, pipeline)
        assert (item.state, item.attempt) == ("completed", 2)
        clock.advance(3601)
        await flow.store.sweep()
        assert DEAD.id not in [row["id"] for row in await flow.store.read("workers")]
        await audited(flow)


async def test_a_stop_releases_the_rest_uncounted_on_both_stores(database: Database) -> None:
    began = asyncio.Event()

    async def hang(work: Work) -> None:
        began.set()
        await asyncio.Event().wait()

    pipeline = one_stage(hang, processors=2)
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, KEYS)
        await began.wait()
        await flow.stop(0)
        assert await flow.counts() == {"work-ready": 25}
        assert {item.attempt for item in await flow.items()} == {0}
        assert await flow.store.read("workers") == []
        await audited(flow)
        assert QUICK.grace_seconds > 0
