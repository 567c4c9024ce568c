"""What happens to the files of a SQLite database while it is open, and to those who wait for it."""

import asyncio
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from onceflow.core.errors import StoreUnavailable, WrongDatabase
from onceflow.core.item import Seed
from onceflow.store import sqlite as sqlite_module
from onceflow.store import wake
from onceflow.store.base import Add, Kept
from onceflow.store.files import Files, read_header
from onceflow.store.sqlite import SqliteStore, check_file, create
from onceflow.testing.rig import NEWS, Rig, refused

SECONDS_MAX = 60
"""What hangs is a defect: no test waits for ever to say so."""

SYSTEM_PYTHON = "/usr/bin/python3"
PROGRAMS = [sys.executable, *([SYSTEM_PYTHON] if Path(SYSTEM_PYTHON).exists() else [])]
COUNT = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("SELECT count(*) FROM item").fetchone()[0])
db.close()
"""


def count_by(program: str, path: Path) -> int:
    """How many items another SQLite program sees, which opens the file and closes it again."""
    done = subprocess.run(
        [program, "-c", COUNT, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


def move(log: Path) -> None:
    log.rename(f"{log}.aside")


def create_empty(log: Path) -> None:
    log.touch()


def read_aside(path: Path) -> bytes:
    """In another process: this one would drop its locks."""
    done = subprocess.run(["cat", str(path)], capture_output=True, check=True, timeout=60)
    return done.stdout


def overwrite(path: Path, text: bytes) -> None:
    """As `cp` does it."""
    program = f"import sys; open({str(path)!r}, 'wb').write(sys.stdin.buffer.read())"
    subprocess.run([sys.executable, "-c", program], input=text, check=True, timeout=60)


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open([NEWS])
    return store


async def add(store: SqliteStore, key: str) -> None:
    assert (await store.add(Add(NEWS, f"run of {key}", [Seed(key)]))).added.new == 1


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await opened(tmp_path / "x.db")
    yield store
    async with asyncio.timeout(SECONDS_MAX):
        await store.close()


# --- the writer's thread ---


class Failing(apsw.Connection):
    """A connection to a disk that fails where it is told to, so often."""

    left: dict[str, int] = {}  # noqa: RUF012 - the test sets it

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._fail("open")
        super().__init__(*arguments, **options)

    def pragma(self, name: str, *rest: Any, **options: Any) -> Any:
        self._fail(name)
        return super().pragma(name, *rest, **options)

    def execute(self, statements: Any, *rest: Any, **options: Any) -> Any:
        self._fail(str(statements))
        return super().execute(statements, *rest, **options)

    def _fail(self, what: str) -> None:
        if self.left.get(what, 0) > 0:
            self.left[what] -= 1
            raise apsw.IOError("disk I/O error")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    monkeypatch.setattr(Failing, "left", {})
    monkeypatch.setattr(apsw, "Connection", Failing)
    return Failing.left


@pytest.mark.parametrize("what", ["data_version", "COMMIT", "ROLLBACK", "BEGIN IMMEDIATE"])
async def test_a_disk_that_fails_once_does_not_end_the_writer(
    tmp_path: Path, failing: dict[str, int], what: str
) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        store = await opened(tmp_path / "x.db")
        failing[what] = 1
        if what == "ROLLBACK":
            failing["COMMIT"] = 1
        answers = await asyncio.gather(*[add(store, key) for key in "abc"], return_exceptions=True)
        for answer in answers:
            assert answer is None or isinstance(answer, StoreUnavailable)
            assert answer is None or "disk I/O error" in str(answer)

        await add(store, "later")

        kept = sum(answer is None for answer in answers)
        rows = await store.read("counts", pipeline="news")
        assert sum(row["items"] for row in rows) == kept + 1
        await store.close()
        assert failing[what] == 0


async def test_while_the_disk_fails_everybody_is_told_and_closing_comes_to_an_end(
    tmp_path: Path, failing: dict[str, int]
) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        store = await opened(tmp_path / "x.db")
        failing.update(dict.fromkeys(("data_version", "open", "BEGIN IMMEDIATE"), 10**6))
        for key in "abc":
            with refused(StoreUnavailable, str(store.path), "disk I/O error"):
                await add(store, key)

        failing.clear()
        await add(store, "d")
        failing.update(dict.fromkeys(("data_version", "open", "BEGIN IMMEDIATE"), 10**6))
        last = asyncio.create_task(add(store, "e"))
        await store.close()
        with refused(StoreUnavailable, "disk I/O error"):
            await last


async def test_a_store_that_cannot_be_opened_leaves_nothing_behind(
    tmp_path: Path, failing: dict[str, int]
) -> None:
    path = tmp_path / "x.db"
    create(path)
    failing["data_version"] = 10**6
    async with asyncio.timeout(SECONDS_MAX):
        store = SqliteStore(path)
        with refused(StoreUnavailable, "disk I/O error"):
            await store.open([NEWS])
        with refused(StoreUnavailable, "closed"):
            await add(store, "a")
        failing.clear()
        await store.open([NEWS])
        await add(store, "a")
        await store.close()


async def test_a_read_after_a_disk_failed_has_a_connection_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise apsw.IOError("disk I/O error")

    monkeypatch.setattr(sqlite_module, "READERS_MAX", 1)
    store = await opened(tmp_path / "x.db")
    [row] = await store.read("now")
    connect, connected = store._connect, []

    def counting() -> apsw.Connection:
        connected.append(1)
        return connect()

    monkeypatch.setattr(store, "_connect", counting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_module, "_rows", broken)
        with refused(StoreUnavailable, "disk I/O error"):
            await store.read("now")

    assert (await store.read("now"))[0]["now"] >= row["now"]

    assert len(connected) == 1
    await store.close()


async def test_a_watch_that_tells_nothing_any_more_looks_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.touch()
    stamps: asyncio.Queue[int] = asyncio.Queue()
    watch = wake.FileWatch(path, stamps.put_nowait)
    try:

        def broken(fd: int, size: int) -> bytes:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("os.read", broken)
        for stamp in (1_000, 2_000):
            wake.touch(path, stamp)
            assert await asyncio.wait_for(stamps.get(), SECONDS_MAX) == stamp
    finally:
        watch.close()


async def test_a_file_stays_the_same_when_the_process_goes_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = await opened(Path("x.db"))
    store.watch(lambda: None)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    await add(store, "a")

    assert len(await store.read("item_by_key", pipeline="news", key="a")) == 1
    await store.close()


# --- a file that is not the same any more ---


async def test_a_file_that_a_backup_was_copied_over_takes_nothing_more(
    tmp_path: Path, store: SqliteStore
) -> None:
    await add(store, "a")
    await store.close()
    shutil.copy(store.path, tmp_path / "backup.db")
    await store.open([NEWS])
    await store.add(Add(NEWS, "r2", [Seed(f"k{at:04}", "x" * 500) for at in range(2000)]))
    tool = apsw.Connection(str(store.path))
    tool.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    tool.close()
    await add(store, "b")

    overwrite(store.path, (tmp_path / "backup.db").read_bytes())

    for key in "cd":
        with refused(WrongDatabase, str(store.path), "overwritten", "-wal", "start again"):
            await add(store, key)
    await store.close()
    assert (tmp_path / "x.db").read_bytes() == (tmp_path / "backup.db").read_bytes()


@pytest.mark.parametrize("copied", ["nothing yet", "half of it", "something else"])
async def test_a_file_that_is_being_overwritten_takes_nothing_more(
    store: SqliteStore, copied: str
) -> None:
    await add(store, "a")
    tool = apsw.Connection(str(store.path))
    tool.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    tool.close()
    await add(store, "b")
    whole = read_aside(store.path)
    parts = {"nothing yet": b"", "half of it": whole[: len(whole) // 2]}

    overwrite(store.path, parts.get(copied, b"-" * len(whole)))

    with refused(WrongDatabase, str(store.path), "overwritten"):
        await add(store, "c")
    overwrite(store.path, whole)
    with refused(WrongDatabase, str(store.path), "overwritten"):
        await add(store, "c")


async def test_a_file_that_is_made_smaller_by_its_own_means_is_the_same(
    store: SqliteStore,
) -> None:
    await store.add(Add(NEWS, "r", [Seed(f"k{at:04}", "x" * 500) for at in range(2000)]))
    tool = apsw.Connection(str(store.path))
    tool.execute("DELETE FROM result")
    tool.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    await add(store, "a")
    before = store.path.stat().st_size
    tool.execute("VACUUM")
    tool.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    tool.close()
    assert store.path.stat().st_size < before

    await add(store, "b")


@pytest.mark.parametrize("how", ["in place", "by rename"])
async def test_a_lease_of_a_file_that_went_back_to_its_backup_is_void(
    tmp_path: Path, how: str
) -> None:
    """The worker goes on with what it knows; ids and fences come once more, for other keys."""
    path, backup = tmp_path / "x.db", tmp_path / "backup.db"
    store = await opened(path)
    async with Rig(lambda clock: store, NEWS, audit=False) as rig:
        await rig.add(["a"])
        await store.close()
        shutil.copy(path, backup)
        await store.open([NEWS])
        await rig.add(["b"], "r2")
        old = (await rig.claim("scrape")).leases
        assert [lease.key for lease in old] == ["a", "b"]
        await store.close()
        if how == "in place":
            shutil.copy(backup, path)
        else:
            backup.replace(path)

        await store.open([NEWS])
        await rig.beat("w")
        await rig.add(["c"], "r3")
        new = (await rig.claim("scrape")).leases
        assert [(one.item, one.fence) for one in new] == [(one.item, one.fence) for one in old]

        for lease in old:
            assert not await store.renew(lease, "its text")
        reply = await rig.exchange([rig.finishing(lease) for lease in old])
        assert list(reply.kept) == [Kept.LOST, Kept.LOST]
        assert await rig.kinds("c") == ["added", "claimed"]
        assert all(await rig.finish(new))
        reply = await rig.exchange([rig.finishing(old[1])])
        assert list(reply.kept) == [Kept.LOST], "it was kept for another key"
        assert await rig.audit() == []


async def test_a_log_that_another_program_took_away_is_noticed_before_anything_is_acknowledged(
    tmp_path: Path, store: SqliteStore
) -> None:
    await add(store, "a")
    log = Path(f"{store.path}-wal")
    move(log)

    for key in "bc":
        with refused(WrongDatabase, str(store.path), "-wal", "start again"):
            await add(store, key)

    create_empty(log)
    with refused(WrongDatabase, "-wal"):
        await add(store, "d")
    another = SqliteStore(store.path)
    with refused(WrongDatabase, "-wal"):
        await another.open([NEWS])
    await store.close()
    assert f"{store.path.name}-wal" in names(tmp_path), "it is not ours to remove"


async def test_a_log_that_goes_during_a_commit_is_noticed_before_that_is_acknowledged(
    store: SqliteStore,
) -> None:
    await add(store, "a")
    log = Path(f"{store.path}-wal")

    with refused(WrongDatabase, str(store.path), "-wal"):
        await store._write(lambda db: move(log))


def test_a_file_that_goes_while_it_is_opened_is_named(tmp_path: Path) -> None:
    with refused(WrongDatabase, "x.db", "open it again"):
        Files(str(tmp_path / "x.db"), str(tmp_path / "x.db-wal"))


# --- beside another SQLite program ---


def test_looking_at_a_header_drops_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    create(path)
    ours = apsw.Connection(str(path))
    ours.execute("SELECT count(*) FROM item").fetchall()
    check_file(path)
    assert read_header(str(path)) is not None

    count_by(sys.executable, path)

    assert Path(f"{path}-wal").exists(), "the other one did not take itself for the last"
    ours.close()


@pytest.mark.parametrize("program", PROGRAMS)
async def test_another_program_may_look_while_the_file_is_opened_more_than_once(
    tmp_path: Path, program: str
) -> None:
    path = tmp_path / "x.db"
    first = await opened(path)
    await add(first, "a")
    second = await opened(path)
    await add(second, "b")
    assert await asyncio.to_thread(count_by, program, path) == 2
    await add(first, "c")
    await second.close()
    assert await asyncio.to_thread(count_by, program, path) == 3
    third = await opened(path)
    await add(third, "d")
    await first.close()
    assert await asyncio.to_thread(count_by, program, path) == 4
    await add(third, "e")
    await third.close()
    assert await asyncio.to_thread(count_by, program, path) == 5


WORKER = """
import asyncio, sys
from onceflow.core.item import Seed
from onceflow.store.base import Add
from onceflow.store.sqlite import SqliteStore, check_file
from onceflow.testing.rig import NEWS
from pathlib import Path

async def main():
    path, name = Path(sys.argv[1]), sys.argv[2]
    stores = []
    for number in range(10**6):
        if number % 3 == 0:
            stores.append(SqliteStore(path))
            await stores[-1].open([NEWS])
        if number % 7 == 6:
            await stores.pop(0).close()
        key = f"{name}-{number}"
        await stores[-1].add(Add(NEWS, key, [Seed(key)]))
        print(key, flush=True)

asyncio.run(main())
"""


def rounds(path: Path, count: int) -> None:
    """Processes that open the file again and again are killed, while other programs open and close
    it: all that they have acknowledged is there."""
    chance = random.Random(7)
    acknowledged: set[str] = set()
    for number in range(count):
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(path), f"{number}-{each}"],
                stdout=subprocess.PIPE, text=True,
            )
            for each in range(chance.choice([1, 2]))
        ]  # fmt: skip
        said: list[str] = []
        try:
            for worker in workers:
                assert worker.stdout is not None
                said += [worker.stdout.readline() for _ in range(chance.randrange(1, 12))]
                if path.exists():
                    count_by(chance.choice(PROGRAMS), path)
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
                rest, _ = worker.communicate(timeout=60)
                said += rest.splitlines(keepends=True)
        assert all(said), "a worker ended by itself"
        acknowledged |= {line.strip() for line in said if line.endswith("\n")}
        if chance.random() < 0.5:
            count_by(chance.choice(PROGRAMS), path)
        looked = apsw.Connection(str(path))
        there = {key for (key,) in looked.execute("SELECT key FROM item")}
        assert looked.pragma("integrity_check") == "ok"
        looked.close()
        assert acknowledged <= there, sorted(acknowledged - there)[:5]


def test_what_was_acknowledged_is_on_the_disk_whoever_opens_the_file_beside_it(
    tmp_path: Path,
) -> None:
    rounds(tmp_path / "x.db", 30)


@pytest.mark.chaos
def test_a_thousand_times_what_was_acknowledged_is_on_the_disk(tmp_path: Path) -> None:
    rounds(tmp_path / "x.db", 1000)
