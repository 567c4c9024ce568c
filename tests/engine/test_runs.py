"""Runs: children within exact budgets, the gate that opens once, generations, and why()."""

import asyncio
import re
from typing import Any

import pytest

from onceflow import Done, Lane, Permanent, Pipeline, PipelineError, Seed, Stage, Transient, Work
from onceflow.core.transition import decide
from onceflow.engine.why import seconds
from onceflow.store.base import Finish
from onceflow.testing.clock import FakeClock
from tests.engine.kit import (
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

# --- children ---


def tree(width: int) -> Any:
    """A handler whose every item has so many children, without an end."""

    async def grow(work: Work) -> Done:
        return Done(work.depth, children=[f"{work.key}/{at}" for at in range(width)])

    return grow


@pytest.mark.parametrize("most", [1, 2, 7, 50])
async def test_a_runs_budget_is_exact(database: Database, most: int) -> None:
    pipeline = one_stage(tree(3), processors=4)
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["root"], max_items=most)
        await flow.drain()
        run = await flow.run(added.run)
        assert (run.accepted, run.open) == (most, 0)
        assert await flow.counts() == {"completed": most}
        await audited(flow)


async def test_what_is_added_beyond_the_budget_is_counted_and_left_out(database: Database) -> None:
    pipeline = one_stage()
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["a", "b", "c", "d"], max_items=3)
        assert (added.new, added.over_budget) == (3, 1)
        await flow.drain()
        assert await flow.counts() == {"completed": 3}


async def test_children_are_one_deeper_and_none_deeper_than_allowed(database: Database) -> None:
    pipeline = one_stage(tree(2))
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["root"], max_depth=2)
        await flow.drain()
        depths = [item.depth for item in await flow.items()]
        assert sorted(depths) == [0, 1, 1, 2, 2, 2, 2]
        await audited(flow)


async def test_children_begin_at_once_and_not_at_the_next_scan(database: Database) -> None:
    """The scan is a minute away, and nobody else is there to wake anybody."""

    async def chain(work: Work) -> Done:
        return Done("x", children=[f"{work.key}+"] if work.depth < 8 else [])

    pipeline = one_stage(chain)
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["a"])
        await until_state(flow, pipeline, "a", "completed")
        assert (await flow.item(pipeline, "a+")).id

        async def all_done() -> bool:
            return await flow.counts() == {"completed": 9}

        await until(flow, all_done)
        await flow.stop()
        await audited(flow)


async def test_a_child_known_already_joins_the_run_with_what_it_has(database: Database) -> None:
    async def once(work: Work) -> Done:
        return Done("x", children=[] if work.depth else ["known", "new"])

    pipeline = one_stage(once)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, [Seed("known", depth=5)])
        await flow.drain()
        added = await flow.add(pipeline, ["parent"])
        await flow.drain()
        assert {item.key for item in await flow.items(run=added.run)} == {"parent", "known", "new"}
        known = await flow.item(pipeline, "known")
        assert (known.depth, known.attempt) == (1, 1), "the shorter way counts, the work does not"
        await audited(flow)


# --- the gate ---


async def digest(work: Work) -> dict[str, Any]:
    done = sorted([item.key async for item in work.finished_items()])
    failed = sorted([(item.key, item.error) async for item in work.failed_items()])
    results = [item.result async for item in work.finished_items()]
    return {"done": done, "failed": failed, "results": len(results), "run": work.run}


async def digest_of(flow: Any, run: str) -> Any:
    return await flow.result((await flow.run(run)).gate_item, "digest")


async def gates(flow: Any) -> int:
    return (await kinds(flow)).count("gate_opened")


@pytest.mark.parametrize("keys", [[], ["a"], ["a", "b", "c"]])
async def test_the_gate_opens_once_when_all_is_settled(database: Database, keys: list[str]) -> None:
    pipeline = one_stage(after_all=digest)
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, keys)
        await flow.drain()
        assert await digest_of(flow, added.run) == {
            "done": keys, "failed": [], "results": len(keys), "run": added.run,
        }  # fmt: skip
        run = await flow.run(added.run)
        assert run.gate_opened_at is not None
        assert run.finished_at is not None
        gate = await flow.item(pipeline, f"gate:{added.run}")
        assert gate.state == "completed"
        assert await gates(flow) == 1
        await flow.drain()
        assert await gates(flow) == 1
        await audited(flow)


async def test_items_added_by_the_last_item_keep_the_gate_shut(database: Database) -> None:
    opened_at: list[int] = []

    async def grow(work: Work) -> Done:
        return Done("x", children=[f"{work.key}+"] if work.depth < 5 else [])

    async def gate(work: Work) -> int:
        opened_at.append(len([item async for item in work.finished_items()]))
        return 1

    pipeline = one_stage(grow, after_all=gate)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        await flow.drain()
        assert opened_at == [6]
        await audited(flow)


async def test_failed_items_are_in_the_digest_when_the_gate_asks_for_settled(
    database: Database,
) -> None:
    async def half(work: Work) -> str:
        if work.key == "bad":
            raise Permanent("no")
        return "x"

    pipeline = one_stage(half, after_all=digest)
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["good", "bad"])
        await flow.drain()
        assert (await digest_of(flow, added.run))["failed"] == [["bad", "no"]]
        assert (await flow.run(added.run)).failed == 1
        await audited(flow)


async def test_a_gate_that_asks_for_completed_waits_for_the_failed_ones(
    database: Database,
) -> None:
    broken = True

    async def half(work: Work) -> str:
        if work.key == "bad" and broken:
            raise Permanent("no")
        return "x"

    pipeline = one_stage(half, after_all=digest, gate="completed")
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["good", "bad"])
        await flow.drain()
        assert await gates(flow) == 0
        await audited(flow)
        broken = False
        assert await flow.retry(pipeline, run=added.run) == 1
        await flow.drain()
        assert (await digest_of(flow, added.run))["done"] == ["bad", "good"]
        assert await gates(flow) == 1
        await audited(flow)


async def test_the_gates_item_is_tried_again_like_any_other(database: Database) -> None:
    attempts: list[int] = []

    async def gate(work: Work) -> str:
        attempts.append(work.attempt)
        if work.attempt < 3:
            raise Transient("not yet")
        return "digest"

    pipeline = one_stage(after_all=gate)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        await flow.drain()
        assert attempts == [1, 2, 3]
        assert await gates(flow) == 1
        await audited(flow)


async def test_two_runs_that_share_an_item_have_a_gate_each(database: Database) -> None:
    pipeline = one_stage(after_all=digest)
    async with database.flow(pipeline) as flow:
        one = await flow.add(pipeline, ["a", "b"])
        other = await flow.add(pipeline, ["b", "c"])
        await flow.drain()
        assert (await digest_of(flow, one.run))["done"] == ["a", "b"]
        assert (await digest_of(flow, other.run))["done"] == ["b", "c"]
        assert await gates(flow) == 2
        await audited(flow)


async def test_F19_the_last_two_items_committed_at_the_same_moment_open_the_gate_once(
    database: Database,
) -> None:
    """Two managers each finish one of the last two items, again and again."""
    pipeline = one_stage(after_all=ok, processors=1, limit=2, batch=1)
    async with working(database.flow(pipeline)) as one, working(database.flow(pipeline)) as other:
        for at in range(10):
            added = await one.add(pipeline, [f"a{at}", f"b{at}"])
            await until_state(one, pipeline, f"gate:{added.run}", "completed") if await _there(
                one, pipeline, added.run
            ) else None
        await one.stop()
        await other.stop()
        assert await gates(one) == 10
        await audited(one)


async def _there(flow: Any, pipeline: Pipeline, run: str) -> bool:
    async def gate_item() -> bool:
        return (await flow.run(run)).gate_item is not None

    return await until(flow, gate_item)


# --- generations ---


def three(first: Any = ok, second: Any = ok, third: Any = ok) -> Pipeline:
    return Pipeline(
        "three", Stage("a", first), Stage("b", second), Stage("c", third), backoff_seconds=0
    )


async def test_a_retry_from_a_stage_keeps_the_earlier_results_and_opens_a_generation(
    database: Database,
) -> None:
    count = 0

    async def counted(work: Work) -> Any:
        nonlocal count
        count += 1
        return {"n": count, "stage": work.stage, "generation": work.generation}

    pipeline = three(counted, counted, counted)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["x"])
        await flow.drain()
        assert await flow.retry(pipeline, keys=["x"], from_stage="b") == 1
        item = await only(flow, pipeline)
        assert (item.stage, item.phase, item.generation, item.attempt) == ("b", "ready", 2, 0)
        await flow.drain()
        results = [
            (row["stage"], row["generation"], row["body"]["n"])
            for row in await flow.results(item.id)
        ]
        assert sorted(results) == [("a", 1, 1), ("b", 1, 2), ("b", 2, 4), ("c", 1, 3), ("c", 2, 5)]
        assert (await flow.result(item.id, "b"))["generation"] == 2, "the newest counts"
        assert (await kinds(flow, item.id)).count("reopened") == 1
        await audited(flow)
        with pytest.raises(PipelineError, match="no stage 'z'"):
            await flow.retry(pipeline, keys=["x"], from_stage="z")


async def test_failed_items_go_on_from_the_stage_where_they_failed(database: Database) -> None:
    broken = True
    seen: list[str] = []

    async def sometimes(work: Work) -> str:
        seen.append(work.stage)
        if broken and work.stage == "b":
            raise Permanent("no", code="gone" if work.key == "x" else "other")
        return work.stage

    pipeline = three(sometimes, sometimes, sometimes)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["x", "y"])
        await flow.drain()
        broken = False
        seen.clear()
        assert await flow.retry(pipeline, error_code="gone", dry_run=True) == 1
        assert await flow.retry(pipeline, permanent=False) == 0, "they failed for good"
        assert await flow.retry(pipeline, error_code="gone") == 1
        await flow.drain()
        assert seen == ["b", "c"]
        assert await flow.counts() == {"completed": 1, "failed": 1}
        assert await flow.retry(pipeline, state="failed") == 1
        await flow.drain()
        assert await flow.counts() == {"completed": 2}
        await audited(flow)


async def test_what_backs_off_is_ready_at_once_after_a_retry(
    database: Database, clock: FakeClock
) -> None:
    async def flaky(work: Work) -> str:
        if work.attempt == 1 and work.generation == 1 and not clock_was_moved:
            raise Transient("not now", retry_after=600)
        return "x"

    clock_was_moved = False
    pipeline = Pipeline("p", Stage("work", flaky))
    async with working(database.flow(pipeline, clock=clock)) as flow:
        await flow.add(pipeline, ["a"])
        item = await until_phase(flow, pipeline, "waiting")
        assert item.due_at is not None
        clock_was_moved = True
        assert await flow.retry(pipeline, keys=["a"]) == 1
        done = await until_state(flow, pipeline, "a", "completed")
        assert done.generation == 1, "it had not settled"
        await flow.stop()
        await audited(flow)


async def test_nothing_is_retried_from_where_it_never_was(database: Database) -> None:
    """A stage would work without what the one before it makes, or on what a gate has added."""

    async def first(work: Work) -> str:
        if work.key == "bad":
            raise Permanent("gone", code="gone")
        return work.key

    async def gate(work: Work) -> Any:
        return sorted([item.result async for item in work.finished_items()])

    pipeline = Pipeline("p", Stage("a", first), Stage("b", ok), after_all=gate)
    async with database.flow(pipeline) as flow:
        added = await flow.add(pipeline, ["x", "bad"])
        await flow.drain()
        for keys in (["bad"], [f"gate:{added.run}"]):
            assert await flow.retry(pipeline, keys=keys, from_stage="b") == 0
        assert await flow.retry(pipeline, keys=["x"], from_stage="digest") == 0
        assert await flow.retry(pipeline, state="completed", from_stage="a") == 1
        await flow.drain()
        assert (await flow.item(pipeline, f"gate:{added.run}")).stage == "digest"
        assert await flow.retry(pipeline, keys=[f"gate:{added.run}"], from_stage="digest") == 1
        await flow.drain()
        await audited(flow)
    async with database.flow() as bare:  # without the program, what is stored decides
        assert await bare.retry("p", keys=["bad", f"gate:{added.run}"], from_stage="b") == 0
        assert await bare.retry("p", keys=["x", "bad"], from_stage="a") == 2


async def until_phase(flow: Any, pipeline: Pipeline, phase: str) -> Any:
    async def question() -> Any:
        item = await only(flow, pipeline)
        return item if item.phase == phase else None

    return await until(flow, question)


async def test_refresh_opens_a_new_generation_and_the_gate_waits_for_it(
    database: Database,
) -> None:
    async def generation(work: Work) -> int:
        return work.generation

    async def gate(work: Work) -> Any:
        return sorted([item.result async for item in work.finished_items()])

    pipeline = one_stage(generation, after_all=gate)
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["a", "b"])
        await until_state(flow, pipeline, "b", "completed")
        await until_state(flow, pipeline, "a", "completed")
        again = await flow.add(pipeline, ["a", "b", "c"], refresh=True)
        assert (again.new, again.known) == (1, 2)
        assert await _there(flow, pipeline, again.run)
        await until_state(flow, pipeline, f"gate:{again.run}", "completed")
        assert await digest_of(flow, again.run) == [1, 2, 2]
        await flow.stop()
        await audited(flow)


# --- why ---


async def test_why_says_in_one_line_what_an_item_waits_for(
    database: Database, clock: FakeClock
) -> None:
    """Every situation an item can be in, one after the other."""
    flaky = Transient("the site is slow", retry_after=90)

    async def handler(work: Work) -> Done:
        if work.key == "flaky":
            raise flaky
        if work.key == "bad":
            raise Permanent("gone", code="gone")
        return Done("x")

    pipeline = Pipeline(
        "p", Stage("fetch", handler, limit=1), Stage("make", ok, held=True), done="SAVED"
    )
    lanes = Pipeline("lanes", Stage("fetch", ok, lane=Lane(lambda key: "a.test")))
    plain = Pipeline("plain", Stage("fetch", ok))
    async with database.flow(pipeline, lanes, plain, clock=clock) as flow:

        async def why(key: str, whose: Pipeline = pipeline) -> str:
            text = await flow.why(whose, key)
            assert "\n" not in text
            return text

        await flow.add(plain, ["x"])
        assert await why("x", plain) == (
            "fetch-ready: ready, but no worker lives; start one with `onceflow worker`"
        )
        await flow.add(pipeline, ["flaky", "bad", "good"])
        await drain_but_backing_off(flow)
        assert re.fullmatch(
            r"fetch-ready: backing off for 1 min \d+ s more after attempt 1 of 3: the site is slow",
            await why("flaky"),
        )
        assert await why("bad") == ("failed: gone (code gone); `onceflow retry` opens it again")
        assert await why("good") == "make-ready: held until somebody triggers stage 'make'"
        assert await why("x", plain) == "completed: it is done, there is nothing left to do"
        await flow.cancel(keys=["flaky"], why="not wanted")
        assert await why("flaky") == "cancelled: not wanted; `onceflow retry` opens it again"

        await flow.pause(pipeline, "fetch", why="the key is wrong")
        await flow.add(pipeline, ["p1", "p2"])
        clock.advance(61)
        assert await why("p1") == (
            "fetch-ready: stage 'fetch' is paused since 1 min 1 s (the key is wrong); "
            "`onceflow resume`"
        )
        await flow.resume(pipeline, "fetch")
        await flow.pause(plain, "fetch")
        await flow.add(plain, ["y"])
        assert "stage 'fetch' is paused since 0 s; `onceflow resume`" in await why("y", plain)
        await flow.resume(plain, "fetch")

        [lease] = await claim_as(flow.store, pipeline, count=1)
        waiting = "p2" if lease.key == "p1" else "p1"
        clock.advance(5)
        assert await why(lease.key) == (
            "fetch-active: attempt 1 is being worked on by elsewhere.test pid 4242, heartbeat "
            "5 s ago"
        )
        assert await why(waiting) == (
            "fetch-ready: ready, but 1 of 1 places of stage 'fetch' are taken"
        )
        assert await why("y", plain) == (
            "fetch-ready: ready, the next free processor takes it in its turn"
        )
        await flow.add(lanes, ["z"])
        assert await why("z", lanes) == "fetch-ready: ready, waiting for its turn in lane 'a.test'"
        clock.advance(4000)
        assert await why(lease.key) == (
            "fetch-active: its worker (elsewhere.test pid 4242) is silent for 1 h 6 min; "
            "the next sweep takes it back"
        )
        await flow.store.leave("dead")
        assert await why(lease.key) == (
            "fetch-active: its worker dead is gone; the next sweep takes it back"
        )


async def drain_but_backing_off(flow: Any) -> None:
    """Work until nothing moves but what backs off, which under a fake clock is never due."""
    flow.start()

    async def rest() -> bool:
        rows = await flow.store.read("activity")
        return not any(row["ready"] or row["active"] for row in rows)

    await until(flow, rest)
    await flow.stop()


async def test_why_names_a_halted_run(database: Database, clock: FakeClock) -> None:
    from onceflow import Usage

    async def spend(work: Work) -> Done:
        return Done("x", usage=Usage(5))

    pipeline = one_stage(spend, limit=1)
    async with database.flow(pipeline, clock=clock) as flow:
        added = await flow.add(pipeline, ["a", "b"], max_tokens=5)
        await flow.drain()
        [left] = await flow.items(phase="ready")
        assert await flow.why(pipeline, left.key) == (
            f"work-ready: run {added.run} is halted: its token ceiling is reached"
        )


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0 s"), (499, "0 s"), (1500, "2 s"), (59_000, "59 s"), (60_000, "1 min 0 s"),
     (3_599_000, "59 min 59 s"), (3_600_000, "1 h 0 min"), (90_000_000, "25 h 0 min")],
)  # fmt: skip
def test_a_duration_is_said_for_people(ms: int, text: str) -> None:
    assert seconds(ms) == text


async def test_a_burst_of_gates_and_children_leaves_nothing_behind(database: Database) -> None:
    """Several runs of growing items at once, on two managers."""
    pipeline = one_stage(tree(2), after_all=ok)
    async with database.flow(pipeline) as one, database.flow(pipeline) as other:
        for at in range(5):
            await one.add(pipeline, [f"root{at}"], max_items=10 + at)
        await asyncio.gather(one.drain(), other.drain())
        assert await gates(one) == 5
        assert sorted(run.accepted for run in await one.runs()) == [10, 11, 12, 13, 14]
        await audited(one)


async def test_a_stop_leaves_no_gate_shut(database: Database) -> None:
    """The last item of a run is finished within the grace time, and nobody else is there."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def last(work: Work) -> str:
        begun.set()
        await go.wait()
        return "x"

    pipeline = one_stage(last, after_all=digest)
    async with working(database.flow(pipeline)) as flow:
        added = await flow.add(pipeline, ["a"])
        await begun.wait()
        flow.stop_soon()
        go.set()
        await flow.stop()
        assert (await flow.run(added.run)).gate_opened_at is not None
        assert await gates(flow) == 1
        await flow.drain()
        assert (await digest_of(flow, added.run))["done"] == ["a"]
        await audited(flow)


async def test_a_drain_opens_the_gate_of_what_another_worker_finished_last(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one commits after the sweep and before the look at what is left, and ends."""
    pipeline = one_stage(after_all=digest)
    async with database.flow(pipeline) as flow, database.flow(pipeline) as elsewhere:
        added = await flow.add(pipeline, ["a"])
        [lease] = await claim_as(elsewhere.store, pipeline)
        look = flow.store.read
        looks = 0

        async def read(query: str, **parameters: Any) -> Any:
            nonlocal looks
            if query == "activity":
                looks += 1
                if looks == 1:
                    change = decide(pipeline, lease, Done("x"))
                    await elsewhere.store.exchange("dead", 0, [Finish(lease, change)], [])
            return await look(query, **parameters)

        monkeypatch.setattr(flow.store, "read", read)
        await flow.drain()
        assert looks > 1
        assert (await digest_of(flow, added.run))["done"] == ["a"]
        assert await gates(flow) == 1
        await audited(flow)
