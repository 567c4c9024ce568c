"""The SQLite store: one file, any number of processes of one machine.

WAL with `synchronous=FULL` unless the caller chose otherwise. Writes go through one thread
(`writer.py`) and are listed in `sqlite_write.py`; reads have short connections of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw

from onceflow.core.errors import StoreUnavailable, WrongDatabase
from onceflow.core.item import Lease, Mark
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import Part
from onceflow.store import sqlite_write as write
from onceflow.store.base import (
    DEATHS_MAX,
    Accepted,
    Add,
    Claim,
    Command,
    Exchanged,
    Finish,
    Row,
    Swept,
    Target,
    Worker,
)
from onceflow.store.clock import Clock, boot_id, ticks_ms, wall_ms
from onceflow.store.files import read_header
from onceflow.store.queries import migrations, sql
from onceflow.store.rules import befores, others_may_act, others_may_claim
from onceflow.store.wake import FileWatch, touch
from onceflow.store.writer import Writer, as_unavailable, write_group

T = TypeVar("T")
APPLICATION_ID = 0x4F4E4345  # "ONCE": how a file is known to be ours
MEMORY = ":memory:"
LOCK_WAIT_SECONDS = 60.0
READERS_MAX = 2
"""Reads at once. A count of a million items shall not hold up those that look at one."""
CACHE_KIB = 16_384
"""What a connection keeps of the file at most: SQLite's own 2 MiB do not hold the indexes of a few
thousand items beside their results."""


class SqliteStore:
    """A database file. `inline` runs everything in the caller's thread, for simulation."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        boot: str | None = None,
        durability: Literal["full", "normal"] = "full",
        inline: bool = False,
    ) -> None:
        self.path = Path(path)
        self.url = str(path)
        self._file = path if str(path) == MEMORY else Path(path).absolute()
        """Where it is whatever the process's folder will be: it is opened again for each reader."""
        self._clock = clock
        self._boot = boot or boot_id()
        self._durability = durability
        self._pipelines: dict[str, Pipeline] = {}
        self._offset_ms = 0
        self._run_page = ""
        self._inline: apsw.Connection | None = self._connect() if inline else None
        self._writer: Writer | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._local = threading.local()
        self._watch: FileWatch | None = None
        self._wake: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._touch = False
        self._stamp = 0
        """What we touched the file with last."""

    # --- open and close ---

    async def open(self, pipelines: Iterable[Pipeline] = ()) -> None:
        self._pipelines |= {pipeline.name: pipeline for pipeline in pipelines}
        if self._inline is not None:
            _migrate(self._inline, self.url)
        elif self._writer is None:
            await asyncio.to_thread(self._prepare)
            self._writer = Writer(
                str(self.path), self._connect, self._committed, self._others_committed
            )
            self._readers = ThreadPoolExecutor(READERS_MAX, "onceflow-reader")
            try:
                await self._write(self._settle_in)
            except BaseException:
                await self.close()
                raise
            return
        await self._write(self._settle_in)

    def _prepare(self) -> None:
        check_file(self.path)
        check_leftovers(self.path)
        if not self.path.exists():
            create(self.path)
        connection = self._connect()
        try:
            _migrate(connection, self.url)
        finally:
            connection.close()

    def _settle_in(self, db: apsw.Connection) -> None:
        for pipeline in self._pipelines.values():
            write.register(db, pipeline)
        if self._clock is not None:
            return
        boot = write.run(db, "meta_get", name="boot").get
        if boot == self._boot:
            self._offset_ms = int(write.run(db, "meta_get", name="clock_offset").get)
            return
        latest = write.run(db, "last_time").get
        self._offset_ms = max(wall_ms(), latest) - ticks_ms()
        write.run(db, "meta_set", name="boot", value=self._boot)
        write.run(db, "meta_set", name="clock_offset", value=str(self._offset_ms))

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._readers is not None:
            readers, self._readers = self._readers, None
            await asyncio.to_thread(readers.shutdown)
        if self._writer is not None:  # the last one: it carries the log over and removes it
            await asyncio.to_thread(self._writer.close)
            self._writer = None
        if self._inline is not None:
            self._inline.close()
            self._inline = None

    # --- the protocol's writes ---

    async def add(
        self, add: Add, worker: str = "", number: int = 0, claims: Sequence[Claim] = ()
    ) -> Accepted:
        def work(db: apsw.Connection) -> Accepted:
            added, claimed = write.add(db, add, worker, number, claims, self.now())
            self._touch |= others_may_claim(add, added, claimed)
            return Accepted(added, claimed)

        return await self._write(work)

    async def exchange(
        self,
        worker: str,
        number: int,
        finishes: Sequence[Finish],
        claims: Sequence[Claim],
        begins: Sequence[Lease] = (),
    ) -> Exchanged:
        def work(db: apsw.Connection) -> Exchanged:
            reply = write.exchange(
                db, worker, number, finishes, claims, begins, self._pipelines, self.now()
            )
            self._touch |= others_may_act(finishes, reply.continued, self._pipelines)
            return reply

        return await self._write(work)

    async def held(self, worker: str) -> set[Mark]:
        rows = await self.read("held", worker=worker)
        return {(row["id"], row["fence"], row["ticket"]) for row in rows}

    async def leases(self, worker: str, items: Collection[int]) -> list[Lease]:
        if not items:
            return []
        rows = await self.read(
            "leases", worker=worker, items=json.dumps([*items]),
            befores=json.dumps(befores(self._pipelines)), deaths_max=DEATHS_MAX,
        )  # fmt: skip
        return [Lease(*row.values())._replace(alone=bool(row["alone"])) for row in rows]

    async def renew(self, lease: Lease, text: str | None = None, part: Part | None = None) -> bool:
        def work(db: apsw.Connection) -> bool:
            self._touch |= text is not None
            return write.renew(db, lease, text, part, self.now())

        return await self._write(work)

    async def beat(self, worker: Worker, report: str | None = None) -> bool:
        return await self._write(
            lambda db: write.beat(db, worker, self._boot, report, self.now()), first=True
        )

    async def leave(self, worker: str, *, release: bool = False) -> None:
        def work(db: apsw.Connection) -> None:
            self._touch |= write.leave(db, worker, release, self.now())

        await self._write(work)

    async def sweep(self, runs: Sequence[str] = ()) -> Swept:
        def work(db: apsw.Connection) -> Swept:
            now = self.now()
            reclaimed = write.reclaim(db, self._boot, now)
            promoted, due_in_ms = write.promote(db, now)
            promoted += write.relane(db, self._pipelines)
            swept, self._run_page = write.settle_runs(db, runs, self._run_page, now)
            whole = Swept(
                reclaimed, promoted, swept.settled, swept.finished, due_in_ms,
                bool(self._run_page),
            )  # fmt: skip
            self._touch |= whole.moved
            return whole

        return await self._write(work)

    async def act(
        self, command: Command, targets: Sequence[Target], stage: str = "", why: str = ""
    ) -> list[int]:
        def work(db: apsw.Connection) -> list[int]:
            self._touch = True
            return write.act(db, command, targets, stage, why, self.now())

        return await self._write(work)

    async def tune(
        self,
        pipeline: str,
        stage: str,
        *,
        limit: int | None = None,
        paused: bool | None = None,
        why: str = "",
    ) -> None:
        def work(db: apsw.Connection) -> None:
            self._touch = True
            write.tune(db, pipeline, stage, limit, paused, why, self.now())

        await self._write(work)

    async def prune(self, before_ms: int) -> int:
        return await self._write(lambda db: write.prune(db, before_ms))

    # --- the rest ---

    async def read(self, query: str, **parameters: Any) -> list[Row]:
        text = sql("sqlite", f"read_{query}")
        parameters["now"] = self.now()
        if self._inline is not None:
            return _rows(self._inline, text, parameters)
        if self._readers is None:
            raise StoreUnavailable(f"{self.url}: the database is closed")
        work = self._readers.submit(self._read, text, parameters)
        return await asyncio.wrap_future(work)

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        if self._inline is None and self._watch is None and self._writer is not None:
            self._loop = asyncio.get_running_loop()
            self._watch = FileWatch(Path(self._file), self._told)

    def for_thread(self) -> SqliteStore:
        return self  # its writes happen in a thread of their own anyway

    def now(self) -> int:
        """What time it is for this database."""
        return ticks_ms() + self._offset_ms if self._clock is None else self._clock()

    def _committed(self) -> None:
        if self._touch:
            self._touch = False
            self._stamp = time.time_ns()
            touch(Path(self._file), self._stamp)

    def _told(self, stamp: int) -> None:
        """The file was touched. If we were the last, there is nothing to see: after it touches, the
        writer looks whether others have committed."""
        if stamp != self._stamp and self._writer is not None:
            self._writer.peek()

    def _others_committed(self) -> None:
        if self._wake is not None and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody is there to wake
                self._loop.call_soon_threadsafe(self._wake)

    async def _write(self, work: Callable[[apsw.Connection], T], *, first: bool = False) -> T:
        if self._inline is not None:
            return _write_inline(self._inline, work)
        return await self._require_writer().submit(work, first=first)

    def _require_writer(self) -> Writer:
        if self._writer is None:
            raise StoreUnavailable(f"{self.url}: the database is closed")
        return self._writer

    def _read(self, text: str, parameters: dict[str, Any]) -> list[Row]:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            # Whether the files are still ours to change only the writer knows.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        try:
            return _rows(connection, text, parameters)
        except apsw.Error as error:
            if isinstance(
                error, apsw.IOError
            ):  # it may be the connection: the next read has another
                self._local.connection = None
            raise as_unavailable(error, str(self.path)) from error

    def _connect(self) -> apsw.Connection:
        try:
            connection = apsw.Connection(
                str(self._file),
                flags=apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE * self._is_memory),
                statementcachesize=200,
            )
            # Otherwise a statement is prepared again whenever a value bound to it changes, which
            # takes several times as long as running it: 83 us instead of 4 for `turn_ends`.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            connection.set_busy_handler(_wait_for_lock())
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={self._durability.upper()}")
            connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        except apsw.Error as error:
            raise _refusal(self.path, error) from error
        return connection

    @property
    def _is_memory(self) -> bool:
        return self.url == MEMORY


def _write_inline(db: apsw.Connection, work: Callable[[apsw.Connection], T]) -> T:
    try:
        [(value, error)] = write_group(db, [work])
    except apsw.Error as failed:
        raise as_unavailable(failed, db.filename) from failed
    if error is not None:
        raise error
    answer: T = value
    return answer


def _rows(db: apsw.Connection, text: str, parameters: dict[str, Any]) -> list[Row]:
    cursor = db.cursor()
    cursor.row_trace = _as_dict
    rows: list[Any] = cursor.execute(text, parameters).fetchall()
    return rows


def _as_dict(cursor: apsw.Cursor, row: apsw.SQLiteValues) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.get_description(), row, strict=True)}


def _wait_for_lock() -> Callable[[int], bool]:
    """Short random waits: SQLite's own grow to 100 ms, and a process can starve meanwhile."""
    began = 0.0

    def wait(times: int) -> bool:
        nonlocal began
        if times == 0:
            began = time.monotonic()
        elif time.monotonic() - began > LOCK_WAIT_SECONDS:
            return False
        time.sleep(random.uniform(0.0003, 0.003))
        return True

    return wait


# --- files ---


def check_file(path: Path) -> None:
    """Refuse what is not ours, before anything touches it."""
    if not path.exists():
        parent = path.parent
        if not parent.is_dir():
            raise WrongDatabase(f"{path}: the folder {parent} does not exist; create it first")
        return
    if path.is_dir():
        raise WrongDatabase(f"{path} is a folder; name a file for the database")
    try:
        header = read_header(str(path)) if path.is_file() else None
    except apsw.Error as error:
        raise WrongDatabase(f"{path} cannot be read; check the file's rights ({error})") from error
    if not path.is_file():
        raise WrongDatabase(f"{path} cannot be read: it is not a file")
    if header is None or not header.is_sqlite:
        what = "is not a SQLite database" if path.stat().st_size else "is empty"
        raise WrongDatabase(f"{path} {what}; it was left untouched, name another file")
    if header.application != APPLICATION_ID:
        raise WrongDatabase(
            f"{path} is another program's SQLite database; it was left untouched, name another file"
        )
    if not path.stat().st_mode & 0o222:
        raise WrongDatabase(f"{path} is read-only; make it writable with: chmod u+w {path}")


def check_leftovers(path: Path) -> None:
    """Refuse a place where only the log of a deleted database is: SQLite would take it for the new
    one's, and mix the two."""
    for leftover in (Path(f"{path}-wal"), Path(f"{path}-journal")):
        if leftover.exists() and not path.exists():  # in this order: another may just create it
            raise WrongDatabase(
                f"{leftover} is left of a database that was deleted or moved without it; put the "
                f"database back beside it, or delete {leftover.name} as well, or name another file"
            )


def create(path: Path) -> None:
    """A new database appears whole or not at all: made beside its place, then linked there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{random.getrandbits(32):08x}.new")
    try:
        connection = apsw.Connection(str(draft))
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("PRAGMA journal_mode=WAL")
        _migrate(connection, str(path))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        with suppress(FileExistsError):  # another process was quicker: its file is as good
            os.link(draft, path)
    except (apsw.Error, OSError) as error:
        raise _refusal(path, error) from error
    finally:
        for leftover in path.parent.glob(f"{draft.name}*"):
            leftover.unlink()


def _migrate(db: apsw.Connection, where: str) -> None:
    """Bring the schema up to this program's version; refuse a newer one."""
    steps = migrations("sqlite")
    try:
        if db.pragma("user_version") == len(steps):
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            version = db.pragma("user_version")
            if version > len(steps):
                raise WrongDatabase(
                    f"{where} was written by a newer Onceflow (schema {version}, this program "
                    f"knows {len(steps)}); it was left untouched, upgrade this program"
                )
            for step in steps[version:]:
                db.execute(step)
            db.pragma("user_version", len(steps))
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
    except apsw.Error as error:
        raise _refusal(Path(where), error) from error


def _refusal(path: Path, error: Exception) -> WrongDatabase | StoreUnavailable:
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return WrongDatabase(f"{path} is not a whole SQLite database ({error}); name another file")
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | PermissionError):
        return WrongDatabase(f"{path} cannot be written; check the file's and folder's rights")
    return StoreUnavailable(f"{path}: {error}")
