"""Four-way stage calls: performed, skipped, joined, not yet; of n identical calls one works."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from onceflow import Lane, Permanent, Pipeline, Stage, Transient, Work
from onceflow.testing.clock import FakeClock
from tests.engine.kit import (
    Database,
    audited,
    claim_as,
    kinds,
    ok,
    until_state,
    working,
)


def ingest(fetch: Any = ok, generate: Any = ok, **rules: Any) -> Pipeline:
    return Pipeline(
        "ingest",
        Stage("fetch", fetch, ready="QUEUED", active="FETCHING", held=True),
        Stage("extract", ok, ready="FETCHING", active="EXTRACTING"),
        Stage("generate", generate, ready="READY_TO_GENERATE", active="GENERATING", held=True,
              **rules),
        done="SAVED",
        failed="FAILED",
        backoff_seconds=0,
    )  # fmt: skip


async def test_a_held_stage_waits_until_it_is_triggered_and_is_then_performed(
    database: Database,
) -> None:
    pipeline = ingest()
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["a"])
        early = await flow.trigger(pipeline, "a", "generate")
        assert (early.how, early.finished) == ("not_yet", False)
        assert "comes later" in early.reason
        assert early.item.state == "QUEUED"

        fetched = await flow.trigger(pipeline, "a", "fetch")
        assert (fetched.how, fetched.finished, fetched.result) == (
            "performed",
            True,
            {"key": "a", "stage": "fetch"},
        )
        await until_state(flow, pipeline, "a", "READY_TO_GENERATE")

        saved = await flow.trigger(pipeline, "a", "generate")
        assert (saved.how, saved.item.state) == ("performed", "SAVED")

        again = await flow.trigger(pipeline, "a", "generate")
        assert (again.how, again.finished, again.result) == ("skipped", True, saved.result)
        past = await flow.trigger(pipeline, "a", "fetch")
        assert (past.how, past.result) == ("skipped", fetched.result)
        assert (await kinds(flow, saved.item.id)).count("claimed") == 3
        await flow.stop()
        await audited(flow)


async def test_I14_twenty_identical_calls_perform_the_stage_once(database: Database) -> None:
    runs: list[str] = []
    began, go = asyncio.Event(), asyncio.Event()

    async def fetch(work: Work) -> str:
        runs.append(work.key)
        began.set()
        await go.wait()
        return "page"

    pipeline = ingest(fetch)
    async with (
        working(database.flow(pipeline)) as one,
        working(database.flow(pipeline)) as other,
    ):
        await one.add(pipeline, ["a"])
        calls = [
            asyncio.create_task((one if at % 2 else other).trigger(pipeline, "a", "fetch"))
            for at in range(20)
        ]
        await began.wait()
        go.set()
        answers = await asyncio.gather(*calls)
        how = Counter(answer.how for answer in answers)
        assert how["performed"] == 1
        assert how["performed"] + how["joined"] + how["skipped"] == 20
        assert {answer.result for answer in answers} == {"page"}
        assert runs == ["a"]
        await one.stop()
        await other.stop()
        await audited(one)


async def test_a_call_that_joins_waits_only_so_long(database: Database) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def fetch(work: Work) -> str:
        began.set()
        await go.wait()
        return "page"

    pipeline = ingest(fetch)
    async with working(database.flow(pipeline)) as flow, database.flow(pipeline) as client:
        await flow.add(pipeline, ["a"])
        first = asyncio.create_task(flow.trigger(pipeline, "a", "fetch"))
        await began.wait()
        joined = await client.trigger(pipeline, "a", "fetch", wait_seconds=0)
        assert (joined.how, joined.finished, joined.result) == ("joined", False, None)
        assert joined.reason == "it is still being worked on"
        waiting = asyncio.create_task(client.trigger(pipeline, "a", "fetch"))
        go.set()
        assert (await first).how == "performed"
        answer = await waiting
        assert (answer.how in ("joined", "skipped"), answer.result) == (True, "page")


async def test_a_client_that_does_not_work_itself_triggers_for_others(database: Database) -> None:
    pipeline = ingest()
    async with database.flow(pipeline) as client, working(database.flow(pipeline)):
        await client.add(pipeline, ["a"])
        answer = await client.trigger(pipeline, "a", "fetch")
        assert (answer.how, answer.result) == ("performed", {"key": "a", "stage": "fetch"})
        assert "triggered" in await kinds(client, answer.item.id)
        await audited(client)


async def test_a_lost_lease_is_taken_over_by_the_call(database: Database, clock: FakeClock) -> None:
    pipeline = Pipeline("plain", Stage("fetch", ok))
    async with database.flow(pipeline, clock=clock) as flow:
        await flow.add(pipeline, ["a"])
        await claim_as(flow.store, pipeline)
        flow.start()
        joined = await flow.trigger(pipeline, "a", "fetch", wait_seconds=0)
        assert joined.how == "joined", "its lease is alive"
        clock.advance(301)
        # By this clock our own worker has been silent for as long: a late sweep would bury it too.
        assert flow._manager is not None
        await flow.store.beat(flow._manager.worker)
        answer = await flow.trigger(pipeline, "a", "fetch")
        # The manager may be woken by the reclaim and be quicker than the call that caused it.
        assert (answer.how in ("performed", "joined"), answer.item.state) == (True, "completed")
        assert answer.result == {"key": "a", "stage": "fetch"}
        assert await kinds(flow, answer.item.id) == [
            "added", "claimed", "reclaimed", "claimed", "stage_finished",
        ]  # fmt: skip
        await flow.stop()
        await audited(flow)


async def test_a_stage_that_fails_for_good_says_so(database: Database) -> None:
    async def gone(work: Work) -> None:
        raise Permanent("the page is gone")

    pipeline = ingest(gone)
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["a"])
        answer = await flow.trigger(pipeline, "a", "fetch")
        assert (answer.how, answer.reason) == ("not_yet", "it is failed: the page is gone")
        again = await flow.trigger(pipeline, "a", "fetch")
        assert again.reason == "it is failed: the page is gone; retry it first"


async def test_a_stage_that_backs_off_is_joined(database: Database) -> None:
    async def flaky(work: Work) -> str:
        if work.attempt == 1:
            raise Transient("not now")
        return "page"

    pipeline = Pipeline("plain", Stage("fetch", flaky, held=True), backoff_seconds=0.05)
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["a"])
        answer = await flow.trigger(pipeline, "a", "fetch")
        assert (answer.how, answer.result, answer.item.attempt) == ("performed", "page", 2)


@pytest.mark.parametrize("rules", [{"limit": 1}, {"lane": Lane(lambda key: "one")}])
async def test_a_call_does_not_go_beyond_a_limit_or_a_lane(
    database: Database, rules: dict[str, Any]
) -> None:
    began, go = asyncio.Event(), asyncio.Event()
    live: list[str] = []
    most = 0

    async def fetch(work: Work) -> str:
        nonlocal most
        live.append(work.key)
        most = max(most, len(live))
        began.set()
        await go.wait()
        live.remove(work.key)
        return work.key

    pipeline = Pipeline("plain", Stage("fetch", fetch, held=True, **rules))
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["a", "b"])
        first = asyncio.create_task(flow.trigger(pipeline, "a", "fetch"))
        await began.wait()
        second = asyncio.create_task(flow.trigger(pipeline, "b", "fetch"))
        await until_state(flow, pipeline, "b", "fetch-ready")
        go.set()
        assert [(await call).result for call in (first, second)] == ["a", "b"]
        assert most == 1
        await flow.stop()
        await audited(flow)


async def test_a_call_on_a_bounded_stage_without_a_free_processor_waits_its_turn(
    database: Database,
) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def fetch(work: Work) -> str:
        began.set()
        await go.wait()
        return work.key

    pipeline = Pipeline("plain", Stage("fetch", fetch, held=True, limit=5, processors=1))
    async with working(database.flow(pipeline)) as flow:
        await flow.add(pipeline, ["a", "b"])
        first = asyncio.create_task(flow.trigger(pipeline, "a", "fetch"))
        await began.wait()
        second = asyncio.create_task(flow.trigger(pipeline, "b", "fetch"))
        await until_state(flow, pipeline, "b", "fetch-ready")
        health = flow.health()
        assert health is not None
        assert health.queues == {"plain/fetch": 0}, "no lease waits while it uses up the limit"
        go.set()
        assert [(await call).result for call in (first, second)] == ["a", "b"]
