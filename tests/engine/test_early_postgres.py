"""PostgreSQL: an attempt begins while the server commits its claim. A trigger holds that commit, so
that everything can happen in just that moment."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import onceflow
from onceflow import Flow, StoreUnavailable, Work
from onceflow.core.item import Seed
from onceflow.store import postgres as postgres_module
from onceflow.store.base import Accepted, Add, Claim, Worker
from onceflow.store.postgres import PostgresStore
from onceflow.store.postgres_connect import Pool
from onceflow.testing.rig import NEWS, refused
from tests.engine.kit import (
    QUICK,
    audited,
    kinds,
    next_begins_early,
    one_stage,
    until_state,
    working,
)
from tests.support import postgres

ROOT = Path(__file__).resolve().parent.parent.parent
CLAIM = Claim(NEWS.name, NEWS.first.name, "", 1)
LOCK = 4711

HOLD = f"""
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_advisory_xact_lock({LOCK}); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON item DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION hold();
"""
REFUSE = HOLD.replace("RETURN NULL;", "RAISE EXCEPTION ''not this one''; RETURN NULL;")


class Server:
    """Somebody else's connection, through which commits of new items are held."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def hold_commits(self, trigger: str = HOLD) -> None:
        await self.connection.execute("SELECT pg_advisory_lock($1::bigint)", LOCK)
        await self.connection.execute(trigger)

    async def let_go(self) -> None:
        await self.connection.execute("SELECT pg_advisory_unlock($1::bigint)", LOCK)

    async def committing(self) -> int:
        """The process that waits in its commit."""
        query = (
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted"
        )
        async with asyncio.timeout(30):
            while not (pid := await self.connection.fetchval(query, LOCK)):
                continue
        return int(pid)

    async def waits_for_advisory_locks(self, count: int) -> None:
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        async with asyncio.timeout(30):
            while await self.connection.fetchval(query) < count:
                continue

    async def keys(self) -> list[str]:
        return [row["key"] for row in await self.connection.fetch("SELECT key FROM item")]


@asynccontextmanager
async def outsider(url: str) -> AsyncIterator[Server]:
    connection = await asyncpg.connect(url, server_settings={"search_path": "onceflow"})
    try:
        yield Server(connection)
    finally:
        connection.terminate()


class Adding:
    """An add of one key, and what was told of it early."""

    def __init__(self, store: PostgresStore, key: str) -> None:
        self.told: asyncio.Queue[Accepted] = asyncio.Queue()
        request = Add(NEWS, f"run of {key}", [Seed(key)])
        self.task = asyncio.create_task(store.add(request, "w", [CLAIM], self.told.put_nowait))

    async def early(self) -> Accepted:
        async with asyncio.timeout(30):
            return await self.told.get()


def number(accepted: Accepted) -> int:
    [[lease]] = [one.leases for one in accepted.claimed]
    return lease.item


@asynccontextmanager
async def opened(url: str, key: str = "first") -> AsyncIterator[PostgresStore]:
    """A store that has added an item: only then it has a number for the next."""
    store = PostgresStore(url)
    await store.open([NEWS])
    await store.beat(Worker("w", "host.test", 7))
    first = Adding(store, key)
    await first.task
    assert first.told.empty()
    try:
        yield store
    finally:
        await store.close()


# --- the store ---


async def test_a_claim_is_told_while_the_server_commits_it_and_nobody_sees_it(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, outsider(postgres_url) as server:
        await server.hold_commits()
        adding = Adding(store, "a")
        told = await adding.early()

        await server.committing()
        assert await server.keys() == ["first"]
        assert not adding.task.done()

        await server.let_go()
        assert await adding.task == told
        assert adding.told.empty()
        row = await server.connection.fetchrow("SELECT * FROM item WHERE key = 'a'")
        [lease] = told.claimed[0].leases
        assert (row["id"], row["fence"], row["worker"], row["claimed_at"]) == (
            lease.item, 1, "w", lease.claimed_at,
        )  # fmt: skip


async def test_whoever_adds_the_same_key_waits_for_the_one_that_has_begun(
    postgres_url: str,
) -> None:
    async with (
        opened(postgres_url) as store,
        opened(postgres_url, "second") as other,
        outsider(postgres_url) as server,
    ):
        await server.hold_commits()
        adding = Adding(store, "a")
        told = await adding.early()
        again = Adding(other, "a")
        await server.committing()
        await server.let_go()

        assert await adding.task == told
        accepted = await again.task
        assert (accepted.added.new, accepted.added.known) == (0, 1)
        assert again.told.empty()


async def test_a_known_key_is_not_told_and_its_number_is_used_later(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        known = Adding(store, "first")
        assert (await known.task).added.known == 1
        assert known.told.empty()

        new = Adding(store, "a")
        assert number(await new.task) == number(await new.early())


async def test_a_server_that_crashes_in_its_commit_does_not_give_the_number_away_again(
    own_server: postgres.Server,
) -> None:
    async with opened(own_server.url) as store:
        async with outsider(own_server.url) as server:
            await server.hold_commits()
            adding = Adding(store, "a")
            told = await adding.early()
            await server.committing()

            await asyncio.to_thread(own_server.restart)
            with refused(StoreUnavailable, "is not known"):
                await adding.task

        async with outsider(own_server.url) as server:
            assert await server.keys() == ["first"]
        numbers = set()
        for key in ("a", "b", "c"):
            again = Adding(store, key)
            numbers.add(number(await again.task))
        assert len(numbers) == 3
        assert number(told) not in numbers


@pytest.mark.parametrize("how", ["cancelled", "ended", "refused"])
async def test_a_commit_that_does_not_come_about_is_not_tried_again_by_itself(
    postgres_url: str, how: str
) -> None:
    """What was told has begun: once more would be another attempt."""
    async with opened(postgres_url) as store, outsider(postgres_url) as server:
        await server.hold_commits(REFUSE if how == "refused" else HOLD)
        adding = Adding(store, "a")
        await adding.early()
        pid = await server.committing()
        if how == "refused":
            await server.let_go()
        else:
            end = "pg_cancel_backend" if how == "cancelled" else "pg_terminate_backend"
            await server.connection.execute(f"SELECT {end}($1)", pid)

        with refused(StoreUnavailable, "is not known"):
            await adding.task
        assert adding.told.empty()
        assert await server.keys() == ["first"]
        await server.connection.execute("DROP TRIGGER hold ON item")
        again = Adding(store, "b")
        await again.task
        assert again.told.empty(), "only after one that was durable is the next one told early"


async def test_the_bounds_of_a_stage_are_not_changed_while_one_of_its_items_commits(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, outsider(postgres_url) as server:
        await server.hold_commits()
        adding = Adding(store, "a")
        await adding.early()
        await server.committing()
        tuning = asyncio.create_task(store.tune(NEWS.name, NEWS.first.name, limit=1))
        await server.waits_for_advisory_locks(2)
        assert not tuning.done()

        await server.let_go()
        await asyncio.gather(adding.task, tuning)
        [claimed] = (await store.exchange("w", [], [CLAIM])).claimed
        assert not claimed.leases, "the limit counts the one that was told early"


async def test_what_is_committing_here_is_waited_for_by_who_reads_here_but_not_for_ever(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url) as store, outsider(postgres_url) as server:
        await server.hold_commits()
        adding = Adding(store, "a")
        await adding.early()
        monkeypatch.setattr(postgres_module, "COMMITTING_SECONDS_MAX", 0.01)
        assert await store.read("item_by_key", pipeline=NEWS.name, key="a") == []

        monkeypatch.setattr(postgres_module, "COMMITTING_SECONDS_MAX", 30)
        reading = asyncio.create_task(store.read("item_by_key", pipeline=NEWS.name, key="a"))
        await server.committing()
        assert not reading.done()
        await server.let_go()
        assert len(await reading) == 1
        await adding.task


async def test_numbers_are_forgotten_with_connections_that_died_unnoticed(
    postgres_url: str,
) -> None:
    """Another server may answer next, which knows nothing of them."""
    async with opened(postgres_url) as store, outsider(postgres_url) as server:
        pool = store._pool
        assert pool is not None
        assert pool.numbers
        await server.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'onceflow' AND datname = current_database()"
        )
        async with asyncio.timeout(30):
            while not all(link.is_closed() for link in pool._idle):
                await server.keys()
        adding = Adding(store, "a")
        await adding.task
        assert adding.told.empty()


async def test_behind_a_pooler_nothing_is_told_early(postgres_url: str) -> None:
    """There the commit is a word of its own, and who is killed before it has said nothing."""
    store = PostgresStore(f"{postgres_url}?statement_cache_size=0")
    await store.open([NEWS])
    await store.beat(Worker("w", "host.test", 7))
    for key in "abc":
        adding = Adding(store, key)
        assert (await adding.task).added.new == 1
        assert adding.told.empty()
    await store.close()


# --- the engine ---


async def test_what_a_handler_asks_and_tells_waits_until_its_claim_is_durable(
    postgres_url: str,
) -> None:
    """Before that the database would say that there is no such lease."""
    began = asyncio.Event()
    heard: list[str] = []

    async def handler(work: Work) -> str:
        if work.key == "a":
            work.emit("summary_partial", text="all ")
            began.set()
            heard.append(str(await work.item("a")))
            await work.keep("piece", 1)
            heard.append("kept")
            work.emit("summary_partial", text="of it")
        return work.key

    pipeline = one_stage(handler, events=["summary_partial"])
    settings = onceflow.Settings(poll_seconds=0.05, partial_seconds=0.01)
    async with (
        working(onceflow.open(postgres_url, pipeline, settings=settings)) as flow,
        outsider(postgres_url) as server,
    ):
        async with next_begins_early(flow, pipeline):
            await server.hold_commits()
            adding = asyncio.create_task(flow.add(pipeline, ["a"]))
            await began.wait()
        await server.committing()
        await asyncio.sleep(0.1)  # many times as long as texts wait to be stored
        assert heard == []

        await server.let_go()
        assert (await adding).new == 1
        item = await until_state(flow, pipeline, "a", "completed")
        await flow.stop()
        assert item.attempt == 1
        assert [line[:4] for line in heard] == ["Item", "kept"]
        assert await kinds(flow, item.id) == ["added", "claimed", "stage_finished"]
        await audited(flow)


async def test_an_attempt_whose_server_crashed_in_the_commit_is_ended_and_its_outcome_dropped(
    own_server: postgres.Server,
) -> None:
    began: list[str] = []
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(work: Work) -> str:
        began.append(work.key)
        if work.key == "a" and not begun.is_set():
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
        return work.key

    pipeline = one_stage(handler)
    async with working(onceflow.open(own_server.url, pipeline, settings=QUICK)) as flow:
        async with outsider(own_server.url) as server:
            async with next_begins_early(flow, pipeline):
                began.clear()
                await server.hold_commits()
                adding = asyncio.create_task(flow.add(pipeline, ["a"]))
                await begun.wait()
            await server.committing()
            await asyncio.to_thread(own_server.restart)
        with refused(StoreUnavailable, "is not known"):
            await adding
        async with asyncio.timeout(30):
            await ended.wait()

        await add_when_it_is_back(flow, pipeline, ["b", "a"])
        for key in ("a", "b"):
            assert (await until_state(flow, pipeline, key, "completed")).attempt == 1
        await flow.stop()
        assert sorted(began) == ["a", "a", "b"]
        await audited(flow)


async def test_a_commit_that_shows_long_after_its_connection_was_lost_is_not_begun_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When we first look what the database says, there is no such lease yet."""
    fences: list[int] = []
    begun = asyncio.Event()
    links: list[Any] = []
    take = Pool._take

    async def noted(self: Pool, *, fresh: bool) -> Any:
        links.append(await take(self, fresh=fresh))
        return links[-1]

    async def handler(work: Work) -> None:
        if work.key == "a":
            assert work._lease is not None
            fences.append(work._lease.fence)
            begun.set()
            if work._lease.fence == 1:
                await asyncio.Event().wait()

    pipeline = one_stage(handler)
    async with (
        working(onceflow.open(postgres_url, pipeline, settings=QUICK)) as flow,
        outsider(postgres_url) as server,
    ):
        async with next_begins_early(flow, pipeline):
            await server.hold_commits()
            monkeypatch.setattr(Pool, "_take", noted)
            adding = asyncio.create_task(flow.add(pipeline, ["a"]))
            await begun.wait()
        [cut] = [link for link in links if link.told]
        await server.committing()
        cut.terminate()
        with refused(StoreUnavailable, "is not known"):
            await adding
        manager = flow._manager
        assert manager is not None
        async with asyncio.timeout(30):
            while manager._in_doubt:
                await server.keys()
        assert not (await flow.items(pipeline, state="work-active"))

        await server.let_go()
        async with asyncio.timeout(30):
            while "a" not in await server.keys():
                continue
        manager._health_at = 0.0
        manager.wake()
        item = await until_state(flow, pipeline, "a", "completed")
        await flow.stop()
        assert fences == [1, 2]
        assert item.attempt == 2
        await audited(flow)


async def test_a_handler_finds_its_own_item_through_the_flow(postgres_url: str) -> None:
    flows: list[Flow] = []

    async def handler(work: Work) -> str:
        return (await flows[0].item(work.pipeline, work.key)).state

    pipeline = one_stage(handler)
    async with working(onceflow.open(postgres_url, pipeline, settings=QUICK)) as flow:
        flows.append(flow)
        for at in range(20):
            async with next_begins_early(flow, pipeline):
                await flow.add(pipeline, [f"k{at}"])
            item = await until_state(flow, pipeline, f"k{at}", "completed")
            assert item.attempt == 1
            assert await flow.result(item.id, "work") == "work-active"
        await flow.stop()
        await audited(flow)


async def add_when_it_is_back(flow: Flow, pipeline: onceflow.Pipeline, keys: list[str]) -> None:
    async with asyncio.timeout(60):
        while True:
            with suppress(StoreUnavailable):
                await flow.add(pipeline, keys)
                return
            await asyncio.sleep(0.05)


ADDER = """
import asyncio, sys
import onceflow
from tests.engine.kit import next_begins_early, one_stage

async def handler(work):
    if work.key == "a":
        print("began a", flush=True)
        await asyncio.Event().wait()

async def main():
    pipeline = one_stage(handler)
    async with onceflow.open(sys.argv[1], pipeline) as flow:
        flow.start()
        async with next_begins_early(flow, pipeline):
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            await flow.add(pipeline, ["a"])

asyncio.run(main())
"""


async def test_F01_a_worker_killed_while_the_server_commits_leaves_an_attempt_that_counts(
    postgres_url: str,
) -> None:
    pipeline = one_stage()
    async with onceflow.open(postgres_url, pipeline) as flow, outsider(postgres_url) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ADDER, postgres_url, cwd=ROOT,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"ready\n"
            await server.hold_commits()
            process.stdin.write(b"\n")
            assert await process.stdout.readline() == b"began a\n"
            await server.committing()
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        assert "a" not in await server.keys()

        await server.let_go()
        async with asyncio.timeout(60):
            while "a" not in await server.keys():
                continue
        flow.start()
        item = await until_state(flow, pipeline, "a", "completed")
        await flow.stop()
        assert item.attempt == 2
        assert await kinds(flow, item.id) == [
            "added", "claimed", "reclaimed", "claimed", "stage_finished",
        ]  # fmt: skip
        await audited(flow)
