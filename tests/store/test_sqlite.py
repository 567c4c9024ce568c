"""What only the SQLite store has: files that are not ours, its clock, its writer thread."""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from onceflow.core.errors import OnceflowError, StoreError, StoreUnavailable, WrongDatabase
from onceflow.core.item import Seed
from onceflow.store import sqlite as sqlite_module
from onceflow.store import wake
from onceflow.store.base import Add, Worker
from onceflow.store.clock import boot_id, ticks_ms, wall_ms
from onceflow.store.queries import migrations, numbered, sql
from onceflow.store.sqlite import APPLICATION_ID, SqliteStore, create
from onceflow.testing.rig import NEWS, Rig, pipeline, refused
from tests.store.conftest import Database


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


async def assert_refused(path: Path, *words: str) -> None:
    """Opening is refused with these words, and nothing in the folder changed."""
    before = snapshot(path.parent) if path.parent.is_dir() else {}
    with refused(WrongDatabase, str(path), *words):
        await SqliteStore(path).open([NEWS])
    assert (snapshot(path.parent) if path.parent.is_dir() else {}) == before


# --- files that are not ours (C05) ---


async def test_a_folder_is_refused(tmp_path: Path) -> None:
    await assert_refused(tmp_path, "folder")


async def test_a_file_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    await assert_refused(tmp_path / "nowhere" / "x.db", "nowhere", "create it")


async def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    create(path)
    path.chmod(0o444)

    await assert_refused(path, "read-only", "chmod u+w")


async def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.touch()

    await assert_refused(path, "empty", "untouched")


@pytest.mark.parametrize("size", [1, 99, 100, 50_000])
async def test_random_bytes_are_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(os.urandom(size))

    await assert_refused(path, "not a SQLite database", "untouched")


async def test_the_log_of_a_database_that_was_deleted_is_not_taken_for_a_new_ones(
    tmp_path: Path,
) -> None:
    path, aside = tmp_path / "x.db", tmp_path / "aside.db"
    store = SqliteStore(path)
    await store.open([NEWS])
    await store.add(Add(NEWS, "r1", [Seed("a")]))
    copied = {name: (tmp_path / name).read_bytes() for name in ("x.db", "x.db-wal")}
    await store.close()
    path.unlink()
    (tmp_path / "x.db-wal").write_bytes(copied["x.db-wal"])  # as kill -9 leaves it

    with refused(WrongDatabase, "x.db-wal", "deleted or moved without it", "put the database back"):
        await SqliteStore(path).open([NEWS])
    assert not path.exists()

    (tmp_path / "x.db-wal").rename(tmp_path / "aside.db-wal")
    aside.write_bytes(copied["x.db"])
    again = SqliteStore(aside)
    await again.open([NEWS])
    assert len(await again.read("item_by_key", pipeline="news", key="a")) == 1
    await again.close()


@pytest.mark.parametrize("fate", ["deleted or moved", "replaced by another file"])
async def test_nothing_is_accepted_into_a_file_that_is_gone(tmp_path: Path, fate: str) -> None:
    path = tmp_path / "x.db"
    store = SqliteStore(path)
    await store.open([NEWS])
    await store.add(Add(NEWS, "r1", [Seed("a")]))
    path.rename(tmp_path / "aside.db")
    if fate.startswith("replaced"):
        create(tmp_path / "other.db")
        (tmp_path / "other.db").rename(path)

    with refused(WrongDatabase, str(path), fate, "start it again"):
        await store.add(Add(NEWS, "r1", [Seed("b")]))

    (tmp_path / "aside.db").rename(path)
    assert (await store.add(Add(NEWS, "r2", [Seed("b")]))).added.new == 1
    await store.close()


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE bookmark (url TEXT); INSERT INTO bookmark VALUES ('x')")
    connection.close()

    await assert_refused(path, "another program's", "untouched")


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    create(path)
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", len(migrations("sqlite")) + 1)
    connection.pragma("journal_mode", "delete")  # so that the file is all there is
    connection.close()
    before = path.read_bytes()

    with refused(WrongDatabase, str(path), "newer", "upgrade"):
        await SqliteStore(path).open([NEWS])
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == len(migrations("sqlite")) + 1
    connection.close()
    assert path.read_bytes()[100:] == before[100:]


async def test_a_damaged_database_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    create(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + os.urandom(len(whole) - 100))

    with refused(WrongDatabase, str(path), "not a whole SQLite database"):
        await SqliteStore(path).open([NEWS])


async def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))

        await assert_refused(path, "cannot be read")


async def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: object, target: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "link", link)

    await assert_refused(tmp_path / "x.db", "rights")


async def test_another_trouble_with_the_disk_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", link)

    with refused(StoreUnavailable, "No space left"):
        await SqliteStore(tmp_path / "x.db").open([NEWS])
    assert snapshot(tmp_path) == {}


def test_a_database_that_another_process_made_first_is_as_good(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    create(path)
    create(path)

    assert [each.name for each in tmp_path.iterdir()] == ["x.db"]
    connection = apsw.Connection(str(path))
    assert connection.pragma("application_id") == APPLICATION_ID
    connection.close()


# --- time ---


async def test_the_wall_clock_may_step_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.db"
    first = SqliteStore(path)
    await first.open([NEWS])
    try:
        assert abs(first.now() - wall_ms()) < 60_000
        monkeypatch.setattr(sqlite_module, "wall_ms", lambda: wall_ms() + 3_600_000)
        second = SqliteStore(path)
        await second.open([NEWS])
        assert abs(second.now() - first.now()) < 60_000, "one boot, one offset"
        await second.close()
    finally:
        await first.close()


async def test_time_never_turns_back_after_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.db"
    monkeypatch.setattr(sqlite_module, "wall_ms", lambda: wall_ms() + 86_400_000)
    first = SqliteStore(path, boot="boot-1")
    await first.open([NEWS])
    await first.beat(Worker("w", "host.test", 1))
    latest = first.now()
    await first.close()
    monkeypatch.undo()

    second = SqliteStore(path, boot="boot-2")
    await second.open([NEWS])
    try:
        assert second.now() >= latest - 60_000
        assert second.now() > wall_ms() + 80_000_000
    finally:
        await second.close()


async def test_a_worker_of_an_earlier_boot_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    first = SqliteStore(path, boot="boot-1")
    await first.open([NEWS])
    await first.beat(Worker("w", "host.test", 1))
    await first.add(Add(NEWS, "r", [Seed("a")]))
    wish = Rig(lambda clock: first).wish("scrape")
    reply = await first.exchange("w", 1, [], [wish])
    assert len(reply.claimed[0].leases) == 1
    assert (await first.sweep()).reclaimed == 0
    await first.close()

    second = SqliteStore(path, boot="boot-2")
    await second.open([NEWS])
    assert (await second.sweep()).reclaimed == 1
    assert await second.read("workers") == []
    await second.close()


def test_where_there_is_no_boot_id_the_boots_time_stands_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(self: Path, *arguments: object) -> str:
        raise FileNotFoundError(2, "no such file")

    monkeypatch.setattr(Path, "read_text", missing)
    boot_id.cache_clear()
    try:
        assert boot_id().startswith("boot-")
    finally:
        boot_id.cache_clear()
    assert ticks_ms() <= ticks_ms()


# --- the writer ---


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "x.db")
    await opened.open([NEWS])
    yield opened
    await opened.close()


async def test_an_operation_that_is_refused_does_not_sink_those_beside_it(
    store: SqliteStore,
) -> None:
    await store.add(Add(NEWS, "sealed", [Seed("z")]))
    requests = [Add(NEWS, "sealed" if at == 3 else f"r{at}", [Seed(f"k{at}")]) for at in range(6)]

    answers = await asyncio.gather(*[store.add(each) for each in requests], return_exceptions=True)

    assert [isinstance(each, OnceflowError) for each in answers] == [at == 3 for at in range(6)]
    assert isinstance(answers[3], StoreError)
    items = await store.read("counts", pipeline="news")
    assert items[0]["items"] == 6


async def test_a_full_disk_loses_nothing_and_goes_on(store: SqliteStore) -> None:
    await store.add(Add(NEWS, "r0", [Seed("before")]))
    await store._write(lambda db: db.pragma("max_page_count", db.pragma("page_count")))
    large = [Seed(f"k{at}", "x" * 1000) for at in range(500)]

    with refused(StoreUnavailable, f"{store.path}: the disk of the database is full"):
        await store.add(Add(NEWS, "r1", large))
    await store._write(lambda db: db.pragma("max_page_count", 1_000_000))

    added = (await store.add(Add(NEWS, "r1", large))).added
    assert added.new == 500


async def test_a_foreign_program_with_the_write_lock_is_waited_for(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = threading.Event()
    monkeypatch.setattr("time.sleep", lambda seconds: waited.set())
    foreign = apsw.Connection(str(store.path))
    foreign.execute("BEGIN IMMEDIATE")
    adding = asyncio.create_task(store.add(Add(NEWS, "r1", [Seed("a")])))
    await asyncio.to_thread(waited.wait)
    assert not adding.done()
    foreign.execute("COMMIT")
    foreign.close()

    added = (await adding).added
    assert added.new == 1


async def test_a_write_lock_that_is_never_given_up_is_named(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "LOCK_WAIT_SECONDS", 0.0)
    foreign = apsw.Connection(str(store.path))
    foreign.execute("BEGIN IMMEDIATE")

    with refused(StoreUnavailable, "another program", "write lock"):
        await store.add(Add(NEWS, "r1", [Seed("a")]))

    foreign.execute("ROLLBACK")
    foreign.close()
    assert (await store.add(Add(NEWS, "r1", [Seed("a")])))[0].new == 1


async def test_heartbeats_go_before_everything_that_waits(store: SqliteStore) -> None:
    writer = store._writer
    assert writer is not None
    begin, go = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(db: apsw.Connection) -> None:
        begin.set()
        go.wait()

    futures = [writer.submit(slow)]
    await asyncio.to_thread(begin.wait)
    futures.append(writer.submit(lambda db: order.append("add")))
    futures.append(writer.submit(lambda db: order.append("beat"), first=True))
    go.set()
    for future in futures:
        await future

    assert order == ["beat", "add"]


async def test_a_read_that_fails_is_told_as_a_store_error(store: SqliteStore) -> None:
    await store._write(lambda db: db.execute("DROP TABLE partial").fetchall())

    with refused(StoreUnavailable, "partial"):
        await store.read("partial", item=1)


@pytest.mark.parametrize(("durability", "pragma"), [("full", 2), ("normal", 1)])
async def test_durability_is_full_unless_somebody_chose_otherwise(
    tmp_path: Path, durability: str, pragma: int
) -> None:
    opened = SqliteStore(tmp_path / "x.db", durability=durability)  # type: ignore[arg-type]
    await opened.open([NEWS])

    synchronous = await opened._write(lambda db: db.pragma("synchronous"))
    await opened.close()

    assert synchronous == pragma


async def test_a_store_in_the_callers_thread_behaves_the_same() -> None:
    async with Rig(lambda clock: SqliteStore(":memory:", clock=clock, inline=True)) as rig:
        rig.store.watch(lambda: None)
        await rig.add(["a", "b"])
        await rig.work_off("scrape", "summarize")

        assert await rig.phases() == {"done": 2}
        with refused(StoreError, "sealed"):
            await rig.add(["c"])
        assert rig.store.for_thread() is rig.store


async def test_a_store_in_the_callers_thread_says_what_went_wrong() -> None:
    store = SqliteStore(":memory:", inline=True)
    await store.open([NEWS])
    await store._write(lambda db: db.pragma("max_page_count", db.pragma("page_count")))

    with refused(StoreUnavailable, "full"):
        await store.add(Add(NEWS, "r1", [Seed(f"k{at}", "x" * 1000) for at in range(500)]))
    await store.close()


# --- waking ---


async def test_without_inotify_the_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "_inotify", lambda path: None)
    monkeypatch.setattr(wake, "POLL_SECONDS", 0.0)
    path = tmp_path / "x"
    path.touch()
    stamps: asyncio.Queue[int] = asyncio.Queue()
    watch = wake.FileWatch(path, stamps.put_nowait)
    try:
        wake.touch(path, 1_000)
        assert await asyncio.wait_for(stamps.get(), 60) == 1_000
        path.unlink()
        assert await asyncio.wait_for(stamps.get(), 60) == 0
        wake.touch(path, 2_000)  # a hint that cannot be given is only late
    finally:
        watch.close()


async def test_a_process_is_not_woken_by_its_own_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: asyncio.Queue[int] = asyncio.Queue()
    peeked: list[None] = []
    ours, theirs = SqliteStore(tmp_path / "x.db"), SqliteStore(tmp_path / "x.db")
    await ours.open([NEWS])
    await theirs.open([NEWS])
    try:
        answer = ours._told
        monkeypatch.setattr(ours, "_told", lambda stamp: (answer(stamp), told.put_nowait(stamp)))
        assert ours._writer is not None
        monkeypatch.setattr(ours._writer, "peek", lambda: peeked.append(None))
        ours.watch(lambda: None)

        await ours.add(Add(NEWS, "r", [Seed("a")]))
        await asyncio.wait_for(told.get(), 60)
        assert not peeked

        await theirs.add(Add(NEWS, "s", [Seed("b")]))
        await asyncio.wait_for(told.get(), 60)
        assert peeked
    finally:
        await ours.close()
        await theirs.close()


def test_inotify_is_not_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wake._inotify(tmp_path / "nowhere") is None

    class Bare:
        def inotify_init1(self, flags: int) -> int:
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: Bare())
    assert wake._inotify(tmp_path) is None
    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: object())
    assert wake._inotify(tmp_path) is None


# --- statements ---


def test_a_statement_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="nothing_like_it"):
        sql("sqlite", "nothing_like_it")


def test_parameters_are_numbered_in_the_order_they_come() -> None:
    text, names = numbered("postgres", "finish_known")

    assert names == ("places", "items", "fences", "pipelines", "keys", "worker")
    assert "$1" in text
    assert ":" not in text.replace("::", "")


async def test_who_waits_already_is_not_overtaken_by_what_is_added(
    sqlite_database: Database,
) -> None:
    async with Rig(sqlite_database.make) as rig:
        await rig.add(["first"], "r0")
        request = Add(rig.pipeline, "r1", [Seed("second")])

        _, claimed = await rig.add_and_claim(request, rig.wish("scrape", 1))

        assert [lease.key for lease in claimed.leases] == ["first"]
        assert claimed.more


async def test_an_operation_that_is_refused_alone_leaves_nothing_behind(
    sqlite_database: Database,
) -> None:
    async with Rig(sqlite_database.make) as rig:
        with refused(StoreError, "belongs to pipeline"):
            await rig.add(["a"], "r1")
            await rig.add(["b"], "r1", of=pipeline("scrape", name="other"))
        assert {row["key"] for row in await rig.items()} == {"a"}
        await rig.add(["c"], "r2")
        assert await rig.phases() == {"ready": 2}
