"""PostgreSQL: the order in which events are read, who holds it up, what a failover does to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

import onceflow
from onceflow import Pipeline, Stage, Work
from onceflow.core.item import Seed
from onceflow.store import postgres_write
from onceflow.store.base import Add, Claim, Worker
from onceflow.store.postgres import PostgresStore
from onceflow.testing.rig import NEWS
from tests.engine.kit import until
from tests.store.conftest import Raw

ANY_EVENT = {"item": None, "run": None, "pipeline": None, "kinds": None, "most": 1000}


async def add(store: PostgresStore, key: str) -> None:
    await store.add(Add(NEWS, f"run of {key}", [Seed(key)]))


async def listed(store: PostgresStore, after: int = 0) -> list[Any]:
    return list(await store.read("events", after=after, **ANY_EVENT))


@asynccontextmanager
async def under_way(store: PostgresStore, key: str) -> AsyncIterator[None]:
    """An item is added by a transaction that has written its event, and commits at the end."""
    wrote, commit = asyncio.Event(), asyncio.Event()

    async def work(db: Any) -> None:
        await db.rows("insert_event", kind="added", pipeline="news", run=key, stage=None, data=None)
        wrote.set()
        await commit.wait()

    task = asyncio.create_task(store._write(work))
    await wrote.wait()
    yield
    commit.set()
    await task


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same database", "another database"])
async def test_F28_an_open_transaction_of_a_stranger_holds_up_nobody(
    store: PostgresStore, raw: Raw, postgres_server_url: str, elsewhere: bool
) -> None:
    stranger = await asyncpg.connect(postgres_server_url) if elsewhere else await raw()
    try:
        await stranger.execute("BEGIN; CREATE TEMP TABLE mine (n int); INSERT INTO mine VALUES (1)")

        for key in "abc":
            await add(store, key)

        assert [row["key"] for row in await listed(store)] == ["a", "b", "c"]
        assert (await store.read("holders", ms=0)) == []
    finally:
        stranger.terminate()


async def test_what_is_committed_late_with_a_lower_number_is_not_missed(
    store: PostgresStore,
) -> None:
    await add(store, "before")
    async with under_way(store, "late"):
        await add(store, "after")

        [before] = await listed(store)
        assert before["key"] == "before"
        assert (await store.read("last_event"))[0]["seq"] == before["seq"]
        [holder] = await store.read("holders", ms=0)
        assert (holder["program"], holder["state"]) == ("onceflow", "idle in transaction")

    late, after = await listed(store, before["seq"])
    assert (late["run"], after["key"]) == ("late", "after")


async def test_events_of_one_item_are_listed_by_their_own_numbers(
    store: PostgresStore, raw: Raw
) -> None:
    """A transaction that began earlier, and so has the lower id, may come to the item later."""
    await store.beat(Worker("w", "host.test", 1))
    early = await raw()
    await early.execute("BEGIN; SELECT onceflow.hold_history(); SELECT pg_current_xact_id()")
    await add(store, "a")
    await store.exchange("w", 1, [], [Claim("news", "scrape", "", 1)])
    await early.execute(
        "UPDATE item SET version = version + 1 WHERE key = 'a';"
        "INSERT INTO event (at, kind, item, n) SELECT 0, 'released', id, version FROM item;"
        "COMMIT"
    )

    rows = await listed(store)

    assert [(row["n"], row["kind"]) for row in rows] == [
        (1, "added"), (2, "claimed"), (3, "released"),
    ]  # fmt: skip


async def test_readers_beside_many_writers_miss_nothing_and_see_each_item_in_its_order(
    store: PostgresStore, postgres_url: str
) -> None:
    other = PostgresStore(postgres_url)
    await other.open([NEWS])
    stores = (store, other)
    for number, one in enumerate(stores):
        await one.beat(Worker(f"w{number}", "host.test", 1))
    seen: list[Any] = []
    written = asyncio.Event()

    async def follow() -> None:
        while True:
            over = written.is_set()
            page = await listed(other, seen[-1]["seq"] if seen else 0)
            seen.extend(page)
            if over and not page:
                return

    async def write(at: int) -> None:
        one = stores[at % 2]
        for number in range(20):
            await add(one, f"{at}-{number}")
            await one.exchange(
                f"w{at % 2}", 1000 * at + number, [], [Claim("news", "scrape", "", 1)]
            )

    following = asyncio.create_task(follow())
    await asyncio.gather(*[write(at) for at in range(6)])
    written.set()
    await following
    await other.close()

    assert [row["seq"] for row in seen] == sorted({row["seq"] for row in seen})
    assert [row["seq"] for row in seen] == [row["seq"] for row in await listed(store)]
    numbers: dict[int, int] = {}
    for row in seen:
        assert row["n"] == numbers.get(row["item"], 0) + 1
        numbers[row["item"]] = row["n"]


async def test_a_sweep_that_finds_nothing_to_do_holds_up_nobody(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, go = asyncio.Event(), asyncio.Event()
    settle = postgres_write._settle_runs

    async def slow(*arguments: Any) -> Any:
        looked.set()
        await go.wait()
        return await settle(*arguments)

    monkeypatch.setattr(postgres_write, "_settle_runs", slow)
    sweeping = asyncio.create_task(store.sweep())
    await looked.wait()
    await add(store, "a")

    assert [row["key"] for row in await listed(store)] == ["a"]
    go.set()
    await sweeping


async def test_the_end_of_a_run_waits_for_what_is_held_up(store: PostgresStore) -> None:
    async def handler(work: Work) -> None:
        pass

    solo = Pipeline("solo", Stage("work", handler))
    async with onceflow.open(store.dsn, solo) as flow:
        await flow.add(solo, ["a"])
        held = under_way(store, "held up")
        await held.__aenter__()
        kinds: list[str] = []

        async def run() -> None:
            async for event in flow.run_until_idle():
                kinds.append(event.kind)

        running = asyncio.create_task(run())

        async def done() -> bool:
            return await flow.counts(solo) == {"completed": 1}

        await until(flow, done)
        await held.__aexit__(None, None, None)
        await running

    assert {"claimed", "stage_finished", "run_finished"} <= set(kinds)


async def test_a_cursor_beyond_what_is_held_up_is_not_taken_for_lost_history(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    """One item's events are never held up, so whoever reads them may be ahead of the others."""
    async with onceflow.open(store.dsn, NEWS) as flow, under_way(store, "held up"):
        await flow.add(NEWS, ["a"])
        item = await flow.item(NEWS, "a")
        [added] = [event async for event in flow.events(item=item.id)]
        again = [event async for event in flow.events(item=item.id, after=added.seq)]

    assert again == []
    assert "was lost" not in caplog.text


async def test_numbers_do_not_come_again_on_another_timeline(
    store: PostgresStore, raw: Raw, postgres_url: str
) -> None:
    await add(store, "a")
    [before] = await listed(store)
    connection = await raw()
    await connection.execute("UPDATE meta SET value = 'another/00000001' WHERE name = 'history'")

    again = PostgresStore(postgres_url)
    await again.open([NEWS])
    await add(again, "b")
    changed, added = await listed(again, before["seq"])
    once_more = PostgresStore(postgres_url)
    await once_more.open([NEWS])
    rows = await listed(once_more, added["seq"])
    await again.close()
    await once_more.close()

    assert (changed["kind"], added["key"], rows) == ("server_changed", "b", [])
    assert "another/00000001" in changed["data"]
    assert changed["seq"] >= before["seq"] + 2**31


async def test_whoever_may_not_ask_for_the_server_works_all_the_same(
    postgres_url: str, raw: Raw
) -> None:
    """The functions that say where a history is written may be taken from a role."""
    connection = await raw()
    await connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    name = "restricted_" + postgres_url.rpartition("_")[2]
    await connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'p'")
    database = postgres_url.rpartition("/")[2]
    await connection.execute(f'GRANT CREATE ON DATABASE "{database}" TO {name}')
    at = postgres_url.rpartition("@")[2]
    store = PostgresStore(f"postgresql://{name}:p@{at}")
    try:
        await store.open([NEWS])
        await add(store, "a")
        assert [row["key"] for row in await listed(store)] == ["a"]
    finally:
        await store.close()
        await connection.execute(f"DROP OWNED BY {name} CASCADE")
        await connection.execute(f"DROP ROLE {name}")
