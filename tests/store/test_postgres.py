"""What only the PostgreSQL store has: a server that goes away, a sequence that is not the order of
the commits, poolers, passwords, schemas."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import md5
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from asyncpg import exceptions as pg
from asyncpg.prepared_stmt import PreparedStatement

from onceflow.core.errors import StoreError, StoreUnavailable, WrongDatabase
from onceflow.core.item import Seed
from onceflow.core.pipeline import Lane, Stage
from onceflow.core.transition import Done
from onceflow.store import open_store, postgres_connect, postgres_write
from onceflow.store import postgres as postgres_module
from onceflow.store.base import Add, Claim, Store, Worker
from onceflow.store.postgres import PostgresStore
from onceflow.store.postgres_connect import Address, Transaction
from onceflow.store.queries import migrations
from onceflow.testing.clock import FakeClock
from onceflow.testing.rig import DIGEST, NEWS, Rig, handler, pipeline, refused
from tests.support import postgres

SECRET = "s3cret!"
LIMITED = pipeline(Stage("scrape", handler, limit=3), "summarize")
CLAIM = Claim(NEWS.name, NEWS.first.name, "", 1)
ANY_EVENT = {"item": None, "run": None, "pipeline": None, "kinds": None, "most": 1000}


def rig(url: str, *pipelines: Any, **options: Any) -> Rig:
    def make(clock: FakeClock) -> Store:
        return PostgresStore(url, clock=clock)

    return Rig(make, *pipelines, **options)


def only_connection(store: PostgresStore) -> Any:
    """The connection that the store will use next."""
    assert store._pool is not None
    return store._pool._idle[-1]


# --- addresses and passwords (C04) ---


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://db.test/news", "postgresql://db.test/news"),
        (f"postgresql://ada:{SECRET}@db.test:5433/news", "postgresql://ada@db.test:5433/news"),
        ("postgresql://ada:p%40%2Fx@db.test/news", "postgresql://ada@db.test/news"),
        (
            f"postgresql:///news?host=/run&user=ada&password={SECRET}&sslmode=require",
            "postgresql:///news?host=%2Frun&user=ada&sslmode=require",
        ),
        (f"postgresql://db.test/news?sslpassword={SECRET}", "postgresql://db.test/news"),
        ("postgresql://a,b:5432/news?statement_cache_size=0", "postgresql://a,b:5432/news"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    store = PostgresStore(url)

    assert store.url == shown
    assert PostgresStore(url).for_thread().url == shown


def test_a_password_is_taken_out_of_any_text() -> None:
    address = Address("postgresql://ada:p%40ss@db.test/news?password=other")

    assert address.clean("p%40ss p@ss other ada") == "*** *** *** ada"


def test_a_statement_cache_size_that_is_no_number_is_refused() -> None:
    with refused(StoreError, "statement_cache_size", "whole number"):
        PostgresStore("postgresql://db.test/news?statement_cache_size=few")


async def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    url = f"postgresql://ada:{SECRET}@127.0.0.1:1/news"
    store = PostgresStore(url)

    with pytest.raises(StoreUnavailable) as caught:
        await store.open([NEWS])

    message = str(caught.value)
    assert "ada@127.0.0.1:1/news" in message
    assert "check that the server runs" in message
    assert SECRET not in message
    with refused(StoreUnavailable, "closed"):
        await store.sweep()


async def test_a_wrong_password_is_not_shown_either(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    wrong = parts._replace(netloc=f"postgres:{SECRET}@{parts.hostname}:{parts.port}")
    if await _accepts_any_password(urlunsplit(wrong)):
        pytest.skip("this server asks for no password")

    with pytest.raises(StoreUnavailable) as caught:
        await PostgresStore(urlunsplit(wrong)).open()

    assert "check the user and the password" in str(caught.value)
    assert SECRET not in str(caught.value)


async def _accepts_any_password(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url)
    except pg.InvalidAuthorizationSpecificationError:
        return False
    await connection.close()
    return True


async def test_a_database_that_is_not_there_is_named(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    store = PostgresStore(urlunsplit(parts._replace(path="/nowhere")))

    with refused(StoreUnavailable, "nowhere", "create it"):
        await store.open()


async def test_an_address_that_makes_no_sense_is_named_without_the_password() -> None:
    store = PostgresStore(f"postgresql://ada:{SECRET}@db.test:x{SECRET}/news")

    with pytest.raises(StoreError) as caught:
        await store.open()

    assert "is not a database address" in str(caught.value)
    assert SECRET not in str(caught.value).replace(store.url, "")


# --- schemas ---


async def test_a_schema_of_our_name_without_our_tables_is_refused(postgres_url: str) -> None:
    postgres.execute(postgres_url, "CREATE SCHEMA onceflow CREATE TABLE bookmark (url text)")

    with refused(WrongDatabase, "not ours", "untouched"):
        await PostgresStore(postgres_url).open([NEWS])
    postgres.execute(postgres_url, "CREATE TABLE onceflow.meta (name text, value text)")
    with refused(WrongDatabase, "not ours", "untouched"):
        await PostgresStore(postgres_url).open([NEWS])


async def test_a_newer_schema_is_refused_and_left_alone(
    store: PostgresStore, postgres_url: str
) -> None:
    newer = len(migrations("postgres")) + 1
    postgres.execute(postgres_url, f"UPDATE onceflow.meta SET value = '{newer}'")

    with refused(WrongDatabase, "newer", "upgrade"):
        await PostgresStore(postgres_url).open([DIGEST])

    names = [row["name"] for row in await store.read("pipelines")]
    assert names == ["news"]


async def test_an_old_server_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_module, "SERVER_VERSION_MIN", 99)

    with refused(WrongDatabase, "99", "upgrade the server"):
        await PostgresStore(postgres_url).open()


async def test_a_database_that_cannot_hold_every_text_is_refused(postgres_url: str) -> None:
    name = urlsplit(postgres_url).path[1:]
    other = f"{name}_ascii"
    postgres.execute(
        postgres_url,
        f"CREATE DATABASE {other} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0",
    )
    try:
        with refused(WrongDatabase, "SQL_ASCII", "UTF8"):
            await PostgresStore(
                urlunsplit(urlsplit(postgres_url)._replace(path=f"/{other}"))
            ).open()
    finally:
        postgres.execute(postgres_url, f"DROP DATABASE {other} WITH (FORCE)")


async def test_a_user_that_may_not_create_a_schema_is_told_so(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    name = f"u{parts.path[-12:]}"
    postgres.execute(postgres_url, f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    try:
        url = parts._replace(netloc=f"{name}:{SECRET}@{parts.hostname}:{parts.port}")
        with refused(WrongDatabase, "permission denied", "grant"):
            await PostgresStore(urlunsplit(url)).open()
    finally:
        postgres.execute(postgres_url, f"DROP ROLE {name}")


# --- the history is in the order of the commits ---


async def test_an_event_that_commits_late_is_not_missed(
    store: PostgresStore, raw: Callable[[], Awaitable[Any]]
) -> None:
    slow, quick = await raw(), await raw()
    insert = "INSERT INTO event (at, kind, run) VALUES (1, $1, 'r')"

    async def kinds(after: int) -> tuple[list[str], int]:
        rows = await store.read("events", after=after, **ANY_EVENT)
        return [row["kind"] for row in rows], rows[-1]["seq"] if rows else after

    await quick.execute(insert, "first")
    seen, cursor = await kinds(0)
    assert seen == ["first"]

    late = slow.transaction()
    await late.start()
    await slow.execute("SELECT hold_history()")
    await slow.execute(insert, "late")
    await quick.execute(insert, "early")
    await quick.execute(insert, "earlier")
    assert await kinds(cursor) == ([], cursor), "a lower number may still be committed"
    assert (await store.read("last_event"))[0]["seq"] == cursor

    await late.commit()
    seen, cursor = await kinds(cursor)
    assert seen == ["late", "early", "earlier"]
    assert await kinds(cursor) == ([], cursor)
    assert (await store.read("last_event"))[0]["seq"] == cursor


async def test_numbers_and_transactions_may_cross_and_nothing_is_seen_twice(
    store: PostgresStore, raw: Callable[[], Awaitable[Any]]
) -> None:
    one, two = await raw(), await raw()
    insert = "INSERT INTO event (at, kind, run) VALUES (1, $1, 'r') RETURNING seq"
    first, second = one.transaction(), two.transaction()
    await first.start()
    await second.start()
    await two.fetchval("SELECT hold_history()")
    await two.fetchval("SELECT pg_current_xact_id()")  # the older transaction ...
    await one.fetchval("SELECT hold_history()")
    await one.fetchval(insert, "a1")
    await two.fetchval(insert, "b1")  # ... has the higher numbers
    await one.fetchval(insert, "a2")
    await first.commit()
    assert await store.read("events", after=0, **ANY_EVENT) == []
    await two.fetchval(insert, "b2")
    await second.commit()

    after, seen = 0, []
    while page := await store.read("events", after=after, **{**ANY_EVENT, "most": 1}):
        seen.append(page[0]["kind"])
        after = page[0]["seq"]

    assert seen == ["a1", "b1", "a2", "b2"]


async def test_a_reader_who_comes_back_goes_on_where_he_was(
    store: PostgresStore, postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    connection = await raw()
    for number in range(20):
        await connection.execute(
            "INSERT INTO event (at, kind, run) VALUES (1, $1, 'r')", f"e{number}"
        )
    other = PostgresStore(postgres_url)  # another process: it never saw the cursor
    await other.open([NEWS])
    for most in (1, 7, 19):
        page = await store.read("events", after=0, **{**ANY_EVENT, "most": most})
        for reader in (store, other):
            rest = await reader.read("events", after=page[-1]["seq"], **ANY_EVENT)
            assert [row["kind"] for row in rest] == [f"e{at}" for at in range(most, 20)]
    await other.close()


@pytest.mark.parametrize(
    ("request_", "new"),
    [
        (Add(NEWS, "r1", [Seed("b")], seal=False), 1),  # the run is there already
        (Add(NEWS, "r2", [Seed("a")]), 0),  # the key is
        (Add(NEWS, "r2", [Seed("b", {"some": "data"})]), 1),
        (Add(NEWS, "r2", [Seed("b")], max_items=1), 1),
        (Add(NEWS, "r2", [Seed("b"), Seed("c")]), 2),
    ],
    ids=["run", "known", "data", "budget", "several"],
)
async def test_whatever_is_not_the_simplest_case_goes_the_longer_way(
    store: PostgresStore, request_: Add, new: int
) -> None:
    await store.beat(Worker("w", "host.test", 7))
    await store.add(Add(NEWS, "r1", [Seed("a")], seal=False))

    accepted = await store.add(request_, "w", 1, [replace(CLAIM, count=max(new, 1))])

    assert accepted.added.new == new
    assert sum(len(one.leases) for one in accepted.claimed) == 1 or new != 1


async def test_after_a_cursor_that_was_pruned_nothing_is_missed(
    store: PostgresStore, raw: Callable[[], Awaitable[Any]]
) -> None:
    connection = await raw()
    for number in range(5):
        await connection.execute(
            "INSERT INTO event (at, kind, run) VALUES (1, $1, 'r')", f"e{number}"
        )
    whole = await store.read("events", after=0, **ANY_EVENT)
    await connection.execute("DELETE FROM event WHERE seq = $1", whole[2]["seq"])

    rest = await store.read("events", after=whole[2]["seq"], **ANY_EVENT)

    kinds = [row["kind"] for row in rest]
    assert kinds[-2:] == ["e3", "e4"], "some before it may be seen again, none after it is lost"
    assert "e0" not in kinds


# --- a server that goes away ---


async def test_the_pool_heals_after_the_server_crashed(own_server: postgres.Server) -> None:
    store = PostgresStore(own_server.url)
    await store.open([NEWS])
    await asyncio.gather(*[store.read("workers") for _ in range(4)])

    await asyncio.to_thread(own_server.restart)

    added = (await store.add(Add(NEWS, "r1", [Seed("a")]))).added
    assert added.new == 1
    assert [row["name"] for row in await store.read("pipelines")] == ["news"]
    await store.close()


async def test_a_server_that_is_down_is_named_and_comes_back(own_server: postgres.Server) -> None:
    store = PostgresStore(own_server.url)
    await store.open([NEWS])
    woken = asyncio.Event()
    store.watch(woken.set)
    await asyncio.wait_for(woken.wait(), 60)
    woken.clear()
    password = urlsplit(own_server.url).password
    assert password is not None

    await asyncio.to_thread(own_server.halt)
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as caught:
            await store.add(Add(NEWS, "r1", [Seed("a")]))
        assert "nothing accepted is lost" in str(caught.value)
        assert password not in str(caught.value)
    with refused(StoreUnavailable):
        await store.read("workers")
    await asyncio.to_thread(own_server.resume)

    added = (await store.add(Add(NEWS, "r1", [Seed("a")]))).added
    assert added.new == 1
    await asyncio.wait_for(woken.wait(), 60)  # it listens again, and looks what it missed
    await store.close()


async def test_a_connection_that_died_unnoticed_is_replaced(
    store: PostgresStore, raw: Callable[[], Awaitable[Any]]
) -> None:
    admin = await raw()
    for _ in range(3):
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'onceflow' AND datname = current_database()"
        )
        await store.sweep()
        await store.exchange("w", 1, [], [])


async def test_a_commit_whose_answer_was_lost_is_asked_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(postgres_url) as r:
        await r.add(["a"])
        lease = await r.lease("scrape")
        execute = asyncpg.Connection.execute
        lost = 0

        async def lose_the_answer(self: Any, text: str, *arguments: Any, **options: Any) -> str:
            nonlocal lost
            answer: str = await execute(self, text, *arguments, **options)
            if text.endswith("COMMIT"):
                lost += 1
                self.terminate()
                raise pg.ConnectionDoesNotExistError("connection was closed in the middle")
            return answer

        monkeypatch.setattr(asyncpg.Connection, "execute", lose_the_answer)
        with refused(StoreUnavailable, "is not known"):
            await r.finish(lease, Done({"text": "t"}, children=["b"]))
        monkeypatch.undo()
        assert lost == 1, "an unclear commit is not tried again by itself"

        assert await r.finish(lease, Done({"text": "t"}, children=["b"])) == [True]
        assert await r.kinds("a") == ["added", "claimed", "stage_finished"]
        assert (await r.run())["accepted"] == 2


async def test_an_add_whose_answer_was_lost_is_asked_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(postgres_url) as r:
        fetch = PreparedStatement.fetch

        async def lose_the_answer(self: Any, *arguments: Any, **options: Any) -> Any:
            await fetch(self, *arguments, **options)
            self._connection.terminate()
            raise pg.ConnectionDoesNotExistError("connection was closed in the middle")

        monkeypatch.setattr(PreparedStatement, "fetch", lose_the_answer)
        with refused(StoreUnavailable, "is not known"):
            await r.add(["a", "b"])
        monkeypatch.undo()

        added = await r.add(["a", "b"])
        assert (added.new, added.known) == (0, 2)
        assert (await r.run())["accepted"] == 2


async def test_what_was_rolled_back_for_sure_is_tried_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(postgres_url) as r:
        await r.add(["a"])
        lease = await r.lease("scrape")
        finish = postgres_write.finish
        troubles = iter([
            pg.DeadlockDetectedError("deadlock detected"),
            pg.ConnectionDoesNotExistError("gone"),
            pg.SerializationError("could not serialize"),
            pg.InvalidCachedStatementError("cached plan must not change result type"),
        ])  # fmt: skip

        async def trouble(*arguments: Any) -> Any:
            answer = await finish(*arguments)
            error = next(troubles, None)
            if error is not None:
                raise error
            return answer

        monkeypatch.setattr(postgres_write, "finish", trouble)

        with_child = Done({"text": "t"}, children=["b"])  # takes several statements
        assert await r.finish(lease, with_child) == [True]
        assert next(troubles, None) is None


async def test_circles_without_end_are_named(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def circle(*arguments: Any) -> Any:
        raise pg.DeadlockDetectedError("deadlock detected")

    monkeypatch.setattr(postgres_write, "sweep", circle)

    with refused(StoreUnavailable, "circle", "rolled back"):
        await store.sweep()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (pg.DiskFullError("could not extend file"), ["disk", "full", "free some space"]),
        (pg.ReadOnlySQLTransactionError("cannot execute INSERT"), ["primary"]),
        (pg.TooManyConnectionsError("sorry, too many clients"), ["too many clients", "check"]),
        (TimeoutError(), ["TimeoutError"]),
        (pg.InternalServerError("could not open relation"), ["fault of its own", "server's log"]),
    ],
)
async def test_what_keeps_the_server_from_answering_is_told(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, error: Exception, words: list[str]
) -> None:
    async def fail(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(postgres_write, "sweep", fail)

    with refused(StoreUnavailable, *words):
        await store.sweep()
    monkeypatch.undo()
    await store.sweep()


async def test_a_statement_that_is_refused_is_a_store_error(store: PostgresStore) -> None:
    async def break_a_rule(db: Transaction) -> None:
        await db.rows("run_accept", id="r1", count=1, seal=0)

    await store.add(Add(NEWS, "r1", [Seed("a")], max_items=1))

    with refused(StoreError, "refused", "run_check"):
        await store._write(break_a_rule)
    assert (await store.read("run", id="r1"))[0]["accepted"] == 1


async def test_a_value_of_a_wrong_type_does_not_cost_the_connection(store: PostgresStore) -> None:
    await store.read("workers")
    connection = only_connection(store)

    with refused(StoreError, "integer"):
        await store.read("item", id="one")

    await store.read("workers")
    assert only_connection(store) is connection


async def test_a_cancelled_caller_leaves_nothing_behind(
    store: PostgresStore, raw: Callable[[], Awaitable[Any]]
) -> None:
    await store.add(Add(NEWS, "r1", [Seed("a")], seal=False))
    holder, watcher = await raw(), await raw()
    hold = holder.transaction()
    await hold.start()
    await holder.execute("SELECT 1 FROM run WHERE id = 'r1' FOR UPDATE")
    adding = asyncio.create_task(store.add(Add(NEWS, "r1", [Seed("b")], max_items=5)))
    await _until_somebody_waits(watcher)

    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    await hold.rollback()

    assert (await store.add(Add(NEWS, "r1", [Seed("c")])))[0].new == 1
    assert (await store.read("run", id="r1"))[0]["accepted"] == 2


async def _until_somebody_waits(connection: Any, count: int = 1) -> None:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND datname = current_database()"
    )
    while await connection.fetchval(query) < count:
        continue


async def test_the_store_uses_few_connections(
    store: PostgresStore, raw: Callable[[], Awaitable[Any]]
) -> None:
    await store.add(Add(NEWS, "r1", [Seed(f"k{number}") for number in range(100)]))
    wish = Rig(lambda clock: store).wish("scrape", 1)

    await asyncio.gather(*[store.exchange("w", at, [], [wish]) for at in range(60)])

    used = await (await raw()).fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onceflow' "
        "AND datname = current_database()"
    )
    assert 1 < used <= postgres_module.CONNECTIONS_MAX


async def test_a_closed_store_lets_go_of_its_connections(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    store = PostgresStore(postgres_url)
    await store.open([NEWS])
    thread = store.for_thread()
    await thread.sweep()
    running = asyncio.create_task(store.sweep())
    await asyncio.sleep(0)
    await store.close()
    await thread.close()
    await asyncio.gather(running, return_exceptions=True)

    with refused(StoreUnavailable, "closed"):
        await thread.sweep()
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onceflow' "
        "AND datname = current_database()"
    )
    watcher = await raw()
    while await watcher.fetchval(query):
        continue


# --- others at the same moment ---


async def test_a_key_that_somebody_makes_at_the_same_moment_is_joined(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    async with rig(postgres_url, audit=False) as r:
        other, watcher = await raw(), await raw()
        making = other.transaction()
        await making.start()
        await other.execute(
            "INSERT INTO item (pipeline, key, stage, phase, run, depth, version, created_at, "
            "updated_at) VALUES ('news', 'c', 'scrape', 'ready', 'theirs', 7, 1, 0, 0)"
        )
        await other.execute(
            "INSERT INTO alias (pipeline, short_key, item) SELECT 'news', 'c', max(id) FROM item"
        )
        adding = asyncio.create_task(r.add(["d", "c", "b", "a"], max_items=4))
        await _until_somebody_waits(watcher)
        await making.commit()
        added = await adding

        assert (added.new, added.known, added.over_budget) == (3, 1, 0)
        assert (await r.run())["accepted"] == 4
        row = await r.item("c")
        assert (row["run"], row["depth"]) == ("theirs", 0)


async def test_a_run_that_somebody_begins_at_the_same_moment_is_joined(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    async with rig(postgres_url) as r:
        other, watcher = await raw(), await raw()
        beginning = other.transaction()
        await beginning.start()
        await other.execute(
            "INSERT INTO run (id, pipeline, created_at) VALUES ('run-1', 'news', 0)"
        )
        adding = asyncio.create_task(r.add(["a", "b"]))
        await _until_somebody_waits(watcher)
        await beginning.commit()

        assert (await adding).new == 2
        assert (await r.run())["accepted"] == 2


async def test_a_known_item_that_is_locked_is_waited_for_with_nothing_locked(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    async with rig(postgres_url) as r:
        await r.add([Seed("deep", depth=5)], "r0")
        await r.add(["a"], "r1", seal=False)
        other, watcher = await raw(), await raw()
        moving = other.transaction()
        await moving.start()
        await other.execute("SELECT 1 FROM item WHERE key = 'deep' FOR UPDATE")
        adding = asyncio.create_task(r.add(["deep", "b"], "r1"))
        await _until_somebody_waits(watcher)
        # Whoever has the item gets at the run, because the one who waits for it let go of the run.
        await other.execute("SELECT 1 FROM run WHERE id = 'r1' FOR UPDATE NOWAIT")
        await moving.commit()

        assert (await adding).new == 1
        assert (await r.item("deep"))["depth"] == 0


async def test_a_stage_that_vanished_is_named(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    async with rig(postgres_url, LIMITED) as r:
        await r.claim("scrape")
        await (await raw()).execute("DELETE FROM stage")

        with refused(StoreError, "news/scrape"):
            await r.claim("scrape")


def short_form_of(key: str) -> str:
    raw = key.encode()
    digests = [md5(each, usedforsecurity=False).hexdigest() for each in (raw, "…".encode() + raw)]
    return f"{key[:100]}…{len(raw)}{''.join(digests)}"


async def test_a_short_key_cannot_be_the_short_form_of_a_long_one(postgres_url: str) -> None:
    async with rig(postgres_url) as r:
        long = "https://site.test/" + "x" * 2000
        crafted = short_form_of(long)
        for key in (crafted, long, "and … again"):
            assert (await r.add([key], f"run of {key[:50]} {len(key)}")).new == 1
        for key in (crafted, long, "and … again"):
            assert (await r.item(key))["key"] == key
            assert (await r.add([key], "again", seal=False)).known == 1


# --- poolers ---


async def test_a_pooler_that_drops_our_settings_is_noticed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = asyncpg.connect

    async def forgetful(*arguments: Any, **options: Any) -> Any:
        options["server_settings"] = {"application_name": "onceflow"}
        return await connect(*arguments, **options)

    monkeypatch.setattr(asyncpg, "connect", forgetful)
    async with rig(postgres_url, LIMITED) as r:
        await r.add("abcdef")
        await r.work_off("scrape", "summarize")

        assert await r.phases() == {"done": 6}


async def test_a_pooler_that_refuses_our_settings_is_noticed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = asyncpg.connect

    async def strict(*arguments: Any, **options: Any) -> Any:
        if set(options["server_settings"]) - {"application_name"}:
            raise pg.ProtocolViolationError("unsupported startup parameter: search_path")
        return await connect(*arguments, **options)

    monkeypatch.setattr(asyncpg, "connect", strict)
    async with rig(postgres_url) as r:
        await r.add("abc")
        await r.work_off("scrape", "summarize")

        assert await r.phases() == {"done": 3}


async def test_a_pooler_that_understands_nothing_is_named(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*arguments: Any, **options: Any) -> Any:
        raise pg.ProtocolViolationError("unexpected message")

    monkeypatch.setattr(asyncpg, "connect", broken)

    with refused(StoreUnavailable, "unexpected message"):
        await PostgresStore(postgres_url).open([NEWS])


async def test_a_connection_that_breaks_while_it_is_rolled_back_is_dropped(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = asyncpg.Connection.execute

    async def break_off(self: Any, text: str, *arguments: Any, **options: Any) -> str:
        if text == "ROLLBACK":
            raise pg.ConnectionDoesNotExistError("gone")
        answer: str = await execute(self, text, *arguments, **options)
        return answer

    monkeypatch.setattr(asyncpg.Connection, "execute", break_off)
    with refused(StoreError, "no stage"):
        await store.tune("news", "nowhere", paused=True)
    monkeypatch.undo()
    await store.sweep()


async def test_without_a_statement_cache_everything_works(postgres_url: str) -> None:
    async with rig(f"{postgres_url}?statement_cache_size=0", LIMITED) as r:
        await r.add("abcdef")
        await r.work_off("scrape", "summarize")

        assert await r.phases() == {"done": 6}


async def test_a_pooler_that_loses_prepared_statements_is_noticed(postgres_url: str) -> None:
    async with rig(postgres_url) as r:
        store = r.store
        assert isinstance(store, PostgresStore)
        await r.add("abc")
        await r.lease("scrape")
        await only_connection(store).execute("DEALLOCATE ALL")  # as another server connection would

        await r.lease("scrape")

        assert store._pool is not None
        assert store._pool.statements_kept == 0
        await r.lease("scrape")


async def test_F29_several_connections_may_find_out_at_once_that_there_is_a_pooler(
    store: PostgresStore,
) -> None:
    async def all_at_once() -> None:
        workers = [Worker(f"w{at}", "host.test", at) for at in range(6)]
        await asyncio.gather(*[store.beat(worker) for worker in workers])

    await all_at_once()
    assert store._pool is not None
    assert len(store._pool._idle) > 1, "otherwise this shows nothing"
    for link in store._pool._idle:
        await link.execute("DEALLOCATE ALL")  # as other server connections would be

    await all_at_once()

    assert store._pool.statements_kept == 0
    await all_at_once()


async def test_every_transaction_brings_its_own_settings_behind_a_pooler(
    postgres_url: str,
) -> None:
    async with rig(f"{postgres_url}?statement_cache_size=0") as r:
        store = r.store
        assert isinstance(store, PostgresStore)
        await only_connection(store).execute("DISCARD ALL")

        await r.add("abc")
        await r.work_off("scrape", "summarize")
        assert await only_connection(store).fetchval("SHOW search_path") != "onceflow"


# --- notifications ---


async def test_nobody_is_woken_by_what_he_did_himself(
    store: PostgresStore, postgres_url: str
) -> None:
    other = PostgresStore(postgres_url)
    await other.open([NEWS])
    wakes: asyncio.Queue[None] = asyncio.Queue()
    store.watch(lambda: wakes.put_nowait(None))
    await asyncio.wait_for(wakes.get(), 60)  # it listens now

    await store.add(Add(NEWS, "mine", [Seed("a"), Seed("b")]))
    await other.add(Add(NEWS, "theirs", [Seed("c")]))
    await asyncio.wait_for(wakes.get(), 60)
    await other.add(Add(NEWS, "theirs-2", [Seed("d")]))
    await asyncio.wait_for(wakes.get(), 60)
    assert wakes.empty(), "their two commits, and not our own before them"
    await other.close()


# --- large statements, time, locks ---


async def test_what_one_statement_cannot_carry_goes_in_several(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_write, "STATEMENT_ROWS_MAX", 3)
    monkeypatch.setattr(postgres_write, "STATEMENT_BYTES_MAX", 5000)
    async with rig(postgres_url) as r:
        keys = [f"k{number}" for number in (5, 3, 9, 1, 7, 2, 8, 0, 6, 4)]
        await r.add([Seed(key, "x" * 400 if key > "k5" else None) for key in keys])
        assert [row["key"] for row in await r.items()] == keys

        leases = (await r.claim("scrape", 10)).leases
        finishes = [r.finishing(lease, Done("y" * 100_000)) for lease in leases]
        finishes[4] = finishes[4]._replace(lease=leases[4]._replace(fence=0))
        reply = await r.exchange(finishes)

        assert list(reply.kept) == [at != 4 for at in range(10)]


async def test_time_is_the_databases(
    store: PostgresStore, raw: Callable[[], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    connection = await raw()

    before = await connection.fetchval(clock)
    await store.add(Add(NEWS, "r1", [Seed("a")]))
    after = await connection.fetchval(clock)

    [item] = await store.read("item_by_key", pipeline="news", key="a")
    assert before - 1 <= item["created_at"] <= after
    [now] = await store.read("now")
    assert now["now"] >= after - 1
    assert await store.read("audit_i8", grace_ms=0) == []


async def test_a_limit_is_not_changed_while_a_claim_is_under_way(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    async with rig(postgres_url) as r:
        await r.add("abc")
        claimer, watcher = await raw(), await raw()
        under_way = claimer.transaction()
        await under_way.start()
        await claimer.execute(postgres_write.share_stages([r.wish("scrape")]).lstrip("; "))

        tuning = asyncio.create_task(r.store.tune("news", "scrape", limit=1))
        await _until_somebody_waits(watcher)
        assert not tuning.done()
        await under_way.commit()
        await tuning

        assert len((await r.claim("scrape")).leases) == 1


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_a_claim_of_one_statement_sees_the_limit_it_had_to_wait_for(
    postgres_url: str, raw: Callable[[], Awaitable[Any]], isolation: str
) -> None:
    operator, watcher = await raw(), await raw()
    await by_default(operator, "default_transaction_isolation", isolation)
    async with rig(postgres_url) as r:
        await r.add("abc")
        tuning = operator.transaction()
        await tuning.start()
        await operator.execute(postgres_write.own_stages([("news", "scrape")]).lstrip("; "))

        claiming = asyncio.create_task(r.claim("scrape"))
        await _until_somebody_waits(watcher)
        await operator.execute("UPDATE stage SET chosen_limit = 1 WHERE stage = 'scrape'")
        await tuning.commit()

        assert len((await claiming).leases) == 1


async def test_a_database_that_is_read_only_by_default_is_written_to(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    await by_default(await raw(), "default_transaction_read_only", "on")
    async with rig(postgres_url) as r:
        await r.add("ab")
        assert len((await r.claim("scrape")).leases) == 2


async def test_a_lock_is_waited_for_however_short_the_databases_patience_is(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    holder, watcher = await raw(), await raw()
    await by_default(holder, "lock_timeout", "1ms")
    await by_default(holder, "statement_timeout", "1ms")
    async with rig(postgres_url) as r:
        await r.add("a")
        lease = await r.lease("scrape")
        holding = holder.transaction()
        await holding.start()
        await holder.execute(
            "UPDATE onceflow.item SET priority = priority WHERE id = $1", lease.item
        )
        finishing = asyncio.create_task(r.finish(lease))
        await _until_somebody_waits(watcher)
        await watcher.execute("SELECT pg_sleep(0.02)")
        await holding.commit()
        assert await finishing == [True]


async def by_default(connection: Any, name: str, value: str) -> None:
    """Whoever connects to this database from now on has this setting."""
    database = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {database} SET {name} TO '{value}'")


async def test_what_a_worker_asked_for_before_it_signed_off_is_not_claimed_after_it(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    """Its words wait on the server for somebody's lock, and go on when nobody hears the answer."""
    async with rig(postgres_url) as r:
        await r.add("ab")
        await r.beat("gone")
        lease = await r.lease("scrape", worker="gone")
        store = await r.another()
        operator, watcher = await raw(), await raw()
        tuning = operator.transaction()
        await tuning.start()
        both = [("news", "scrape"), ("news", "summarize")]
        await operator.execute(postgres_write.own_stages(both).lstrip("; "))

        finishing = r.finishing(lease)._replace(claim_next=True)
        last_word = asyncio.create_task(store.exchange("gone", 71, [finishing], [r.wish("scrape")]))
        adding = asyncio.create_task(store.add(Add(NEWS, "r2", [Seed("c")]), "gone", 72, [CLAIM]))
        await _until_somebody_waits(watcher, 2)
        last_word.cancel()
        adding.cancel()
        await asyncio.wait([last_word, adding])
        await r.store.leave("gone")
        await tuning.commit()
        await _until_nobody_is_at_work(watcher)

        assert await r.store.held("gone") == set()
        assert await r.place("a") == ("summarize", "ready"), "what it had done is kept"
        assert (await r.store.sweep()).reclaimed == 0


async def _until_nobody_is_at_work(connection: Any) -> None:
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()"
    )
    while await connection.fetchval(query):
        continue


async def test_what_is_simple_is_one_word_to_the_server(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(postgres_url) as r:
        await r.add("abc", "r1")
        words = spoken(monkeypatch)

        leases = (await r.claim("scrape", 2)).leases
        await r.finish(leases)
        both = [r.wish("scrape"), r.wish("summarize")]
        reply = await r.exchange([], both)

        assert words == ["exchange"] * 3
        assert [len(one.leases) for one in reply.claimed] == [1, 2]


@pytest.mark.parametrize("bounds", ["limit", "lanes", "turns", "name", "prefetch"])
async def test_a_claim_is_one_word_whatever_bounds_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, bounds: str
) -> None:
    lane = Lane(lambda key: key[0], 2)
    stage = Stage("scrape", handler, limit=3 if bounds == "limit" else None,
                  lane=lane if bounds == "lanes" else None)  # fmt: skip
    async with rig(postgres_url, pipeline(stage)) as r:
        await r.add(["a1", "a2", "b1"], "r1")
        await r.add(["x1"], "r2")
        item = (await r.item("b1"))["id"] if bounds == "name" else None
        words = spoken(monkeypatch)

        claimed = await r.claim("scrape", 3, item=item, prefetch=bounds == "prefetch")

        assert len(claimed.leases) == (1 if item else 3)
        assert words == ["exchange"]


async def test_new_keys_and_their_claim_are_one_word(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(postgres_url, LIMITED) as r:
        words = spoken(monkeypatch)
        for number, seeds in enumerate([[Seed("a")], [Seed("b", {"some": "data"}), Seed("c")]]):
            added, claimed = await r.add_and_claim(
                Add(LIMITED, f"r{number}", seeds), r.wish("scrape", 5)
            )
            assert (added.new, len(claimed.leases)) == (len(seeds), len(seeds))

        assert words == ["add", "add"]


async def test_an_add_with_known_keys_is_one_transaction(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut between two, it would leave a run that nobody can seal."""
    async with rig(postgres_url) as r:
        await r.add(["a"], "r1")
        words = spoken(monkeypatch)

        added, claimed = await r.add_and_claim(
            Add(NEWS, "r2", [Seed("a"), Seed("b")]), r.wish("scrape", 5)
        )

        assert (added.new, added.known, len(claimed.leases)) == (1, 1, 2)
        assert words[0] == "add", "it has done nothing"
        assert [word for word in words if word.startswith(("BEGIN", "COMMIT", "NOTIFY"))] == [
            words[1], words[-1],
        ]  # fmt: skip


def spoken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said to the server from now on: names of statements, or their texts."""
    words: list[str] = []
    rows, execute = Transaction.rows, postgres_connect.Link.execute

    async def _rows(self: Transaction, name: str, *rest: Any, **parameters: Any) -> Any:
        words.append(name)
        return await rows(self, name, *rest, **parameters)

    async def _execute(self: Any, text: str, **named: Any) -> Any:
        words.append(text)
        return await execute(self, text, **named)

    monkeypatch.setattr(Transaction, "rows", _rows)
    monkeypatch.setattr(postgres_connect.Link, "execute", _execute)
    return words


async def test_a_claim_waits_for_the_lock_of_a_bounded_stage(
    postgres_url: str, raw: Callable[[], Awaitable[Any]]
) -> None:
    async with rig(postgres_url, LIMITED) as r:
        await r.add("abcdef")
        other, watcher = await raw(), await raw()
        hold = other.transaction()
        await hold.start()
        await other.execute("SELECT 1 FROM stage WHERE stage = 'scrape' FOR UPDATE")
        claiming = asyncio.create_task(r.claim("scrape"))
        await _until_somebody_waits(watcher)
        await other.execute(
            "UPDATE item SET phase = 'active', worker = 'v', deadline = 1, fence = 1, attempt = 1, "
            "version = 2 WHERE key IN ('a', 'b')"
        )
        await other.execute(
            "INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, "
            "worker) SELECT 1, 'claimed', id, 2, run, stage, 'active', 1, 1, 1, 'v' FROM item "
            "WHERE key IN ('a', 'b')"
        )
        await hold.commit()

        assert [lease.key for lease in (await claiming).leases] == ["c"]


async def test_a_worker_that_has_signed_on_is_known_after_a_crash_of_the_server(
    own_server: postgres.Server,
) -> None:
    """Otherwise the next sweep would take away what it claims until its next heartbeat."""
    store = PostgresStore(own_server.url)
    await store.open([NEWS])
    await store.beat(Worker("w", "host", 1))

    await asyncio.to_thread(own_server.restart)

    assert [row["id"] for row in await store.read("workers")] == ["w"]
    await store.close()


async def test_what_was_accepted_survives_a_server_that_is_killed(
    own_server: postgres.Server,
) -> None:
    store = open_store(own_server.url, durability="normal")
    await store.open([NEWS])
    for number in range(20):
        await store.add(Add(NEWS, f"r{number}", [Seed(f"k{number}")], max_items=number % 2 or None))

    await asyncio.to_thread(own_server.restart, "immediate")

    [counted] = await store.read("counts", pipeline="news")
    assert counted["items"] == 20
    await store.close()


def test_the_locks_of_two_stages_are_taken_in_one_order() -> None:
    r = Rig(lambda clock: PostgresStore("postgresql://db.test/x"))
    there = postgres_write.share_stages([r.wish("scrape"), r.wish("summarize")])
    back = postgres_write.share_stages([r.wish("summarize"), r.wish("scrape"), r.wish("scrape")])

    assert there == back
    assert there.count("pg_advisory_xact_lock_shared") == 2
    assert postgres_connect.inlined("-- why\nSELECT :n", n=3) == "SELECT 3"


@pytest.mark.parametrize("few", [1, 1000], ids=["the run is asked", "the open items are asked"])
async def test_a_gate_opens_whatever_else_is_open(
    postgres_url: str, raw: Callable[[], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    async def witness() -> int:
        seen: int = await (await raw()).fetchval("SELECT witness FROM run WHERE id = 'run-1'")
        return seen

    monkeypatch.setattr(postgres_write, "OPEN_MAX", few)
    async with rig(postgres_url, DIGEST) as r:
        await r.add(["a", "b", "c"])
        first, second, third = (await r.claim("scrape")).leases
        await r.add(["x", "y"], "other")
        await r.finish(second)
        assert (await r.store.sweep(["run-1"])).settled == 0, "the last one is open"
        assert await witness() == 0
        await r.finish(third)
        for _ in range(2):
            assert (await r.store.sweep(["run-1"])).settled == 0, "the first one is open"
        assert await witness() == first.item - 1
        await r.finish(first)

        assert (await r.store.sweep(["run-1"])).settled == 1
        assert (await r.run("other"))["settled_at"] is None
