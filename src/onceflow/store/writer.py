"""One writer thread per process: every write of a SQLite store waits in its queue.

Operations that are queued together are committed together, each in a savepoint of its own so that
one that fails does not sink the rest. A future resolves only after COMMIT, when the disk has it;
who wants to hear of it earlier is told between the two. Heartbeats go first.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import apsw

from onceflow.core.errors import StoreError, StoreUnavailable, WrongDatabase

T = TypeVar("T")
GROUP_MAX = 256
"""How many operations one commit takes; more wait for the next."""

SYNC: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
"""As SQLite does it: what the file's length and its bytes need, not its times."""

Work: TypeAlias = Callable[[apsw.Connection], Any]
Answer: TypeAlias = tuple[Any, BaseException | None]
"""What an operation gave, or why it was refused."""


class Operation:
    """A write that waits for its turn."""

    __slots__ = ("early", "future", "work")

    def __init__(self, work: Work, early: Callable[[Any], None] | None = None) -> None:
        self.work = work
        self.early = early
        """Told when it is committed: others see it, and it outlives the process, but not a power
        cut before it is durable."""
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Writer:
    """The owner of the one connection that writes."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        committed: Callable[[], None],
        others_committed: Callable[[], None],
        *,
        early: bool = False,
    ) -> None:
        """`early`: commits wait for the disk unless somebody wants to be told before that."""
        self._connect = connect
        self._committed = committed
        self._others_committed = others_committed
        self._early = early
        self._waiting: deque[Operation] = deque()
        self._closed = False
        self._wal: int | None = None
        """The file that SQLite commits to, which it keeps while a connection is open."""
        self._holed = False
        self._place: tuple[int, int] | None = None
        """Which file it is, whatever its name."""
        self._commits_wait = True
        """Whether SQLite's commits wait for the disk at the moment."""
        self._lock = threading.Lock()
        # The writer sleeps on this one until somebody rings. A Condition does the same in ten times
        # as many steps, all of which are in the way of a single item.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._thread = threading.Thread(target=self._run, name="onceflow-writer", daemon=True)
        self._thread.start()

    def submit(
        self,
        work: Callable[[apsw.Connection], T],
        *,
        first: bool = False,
        early: Callable[[T], None] | None = None,
    ) -> asyncio.Future[T]:
        """Queue a write; its future, of the running loop, has the value once it is durable, and
        `early` may be called with it in that loop when it is committed."""
        operation = Operation(work, early)
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the database is closed")
            if first:
                self._waiting.appendleft(operation)
            else:
                self._waiting.append(operation)
        self._ring()
        return operation.future

    def peek(self) -> None:
        """See whether another process has committed; a hint came in that one may have."""
        self._ring()

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        with self._lock:
            self._closed = True
        self._ring()
        self._thread.join()

    def _ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._bell.release()

    def _run(self) -> None:
        connection = self._connect()
        seen = connection.pragma("data_version")
        with suppress(OSError):  # a database in memory has none
            self._place = place_of(connection.filename)
        if self._early:
            with suppress(OSError):  # then nobody is
                self._wal = os.open(connection.filename_wal, os.O_RDWR)
        try:
            while self._waiting or not self._closed:
                self._bell.acquire()
                while self._waiting:
                    if group := self._take_group():
                        self._write(connection, group)
                # Our own commits leave this number as it is, those of others change it.
                version = connection.pragma("data_version")
                if version != seen:
                    seen = version
                    self._others_committed()
        finally:
            if self._wal is not None:
                os.close(self._wal)
            connection.close()

    def _take_group(self) -> list[Operation]:
        with self._lock:
            count = min(len(self._waiting), GROUP_MAX)
            group = [self._waiting.popleft() for _ in range(count)]
        # One whose caller was cancelled is not done.
        return [operation for operation in group if not operation.future.cancelled()]

    def _write(self, connection: apsw.Connection, group: list[Operation]) -> None:
        works = [operation.work for operation in group]
        # What others finish beside it must not be seen before the disk has it.
        early = self._wal is not None and all(operation.early for operation in group)
        try:
            self._look(connection.filename)
            self._mend(connection)
            self._switch(connection, waits=not early)
            answers = write_group(connection, works)
        except BaseException as error:  # nothing of the group was committed: everyone is told
            reason = as_unavailable(error, connection.filename)
            for operation in group:
                _tell(operation.future, None, reason)
            return
        failed = self._tell_early(connection.filename, group, answers) if early else None
        for operation, (value, refused) in zip(group, answers, strict=True):
            _tell(operation.future, value, refused or failed)
        self._committed()
        if not self._waiting:
            with suppress(apsw.Error):  # the next one does it, then
                self._switch(connection, waits=False)

    def _tell_early(
        self, where: str, group: list[Operation], answers: list[Answer]
    ) -> StoreUnavailable | None:
        """Say what was committed, then wait for the disk; why it may not have it."""
        for operation, (value, refused) in zip(group, answers, strict=True):
            if operation.early is not None and refused is None:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    operation.future.get_loop().call_soon_threadsafe(operation.early, value)
        return self._sync(where)

    def _switch(self, connection: apsw.Connection, *, waits: bool) -> None:
        """Have SQLite's commits wait for the disk, or not."""
        if self._wal is not None and self._commits_wait != waits:
            level = "FULL" if waits else "NORMAL"
            # It obeys when it prepares this: a prepared one that is run again does nothing.
            connection.execute(f"PRAGMA synchronous={level}", can_cache=False)
            self._commits_wait = waits

    def _look(self, where: str) -> None:
        """Nothing is written into a file that nobody will find again."""
        if self._place is None:
            return
        try:
            found = place_of(where)
        except FileNotFoundError:
            found = None
        if found != self._place:
            what = "deleted or moved" if found is None else "replaced by another file"
            raise WrongDatabase(
                f"{where} was {what} while it was open, so nothing is written to it any more; put "
                "it back, or end this process and start it again"
            )

    def _mend(self, connection: apsw.Connection) -> None:
        """The disk may have dropped what it once failed to write, and a hole in the log hides all
        that follows: nothing is committed until the database itself has the whole log."""
        if self._holed:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").get
            if busy:
                raise apsw.BusyError("the log cannot be carried over while others read")
            self._holed = False

    def _sync(self, where: str) -> StoreUnavailable | None:
        """Wait until the disk has what was committed; why it may not have it."""
        try:
            assert self._wal is not None
            SYNC(self._wal)
        except OSError as error:
            self._holed = True
            return StoreUnavailable(
                f"{where}: the disk did not confirm the last write ({error}); whether it was "
                "stored is not known; check the disk and it goes on"
            )
        return None


def place_of(path: str) -> tuple[int, int]:
    """What tells a file from every other that is there."""
    found = os.stat(path)  # noqa: PTH116 - half the time of a Path, before every commit
    return found.st_dev, found.st_ino


def _tell(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Resolve a future in its own loop."""
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        future.get_loop().call_soon_threadsafe(_resolve, future, value, error)


def _resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return  # the caller has gone away meanwhile
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def write_group(connection: apsw.Connection, group: Sequence[Work]) -> list[Answer]:
    """Run operations in one transaction. IMMEDIATE: a deferred one that turns into a write can
    fail at once without waiting for its turn."""
    answers: list[Answer] = []
    alone = len(group) == 1  # then the transaction is all there is to undo
    connection.execute("BEGIN IMMEDIATE")
    try:
        for work in group:
            if not alone:
                connection.execute("SAVEPOINT operation")
            try:
                answers.append((work(connection), None))
            except (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.BusyError):
                raise
            except Exception as error:  # reported to the one who asked
                connection.execute("ROLLBACK" if alone else "ROLLBACK TO operation")
                answers.append((None, as_refusal(error)))
            if not alone:
                connection.execute("RELEASE operation")
        if not connection.in_transaction:  # it was refused
            return answers
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return answers


def as_refusal(error: Exception) -> Exception:
    """What a refused operation means to its caller."""
    if isinstance(error, apsw.ConstraintError):
        return StoreError(f"the database refused a write: {error}")
    return error


def as_unavailable(error: BaseException, where: str) -> BaseException:
    """What a failed transaction on this file means to its callers."""
    if isinstance(error, apsw.FullError):
        return StoreUnavailable(
            f"{where}: the disk of the database is full; nothing accepted is lost, free some space "
            "on it and it goes on"
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailable(
            f"{where}: another program has held the database's write lock for too long; end it and "
            "it goes on"
        )
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return WrongDatabase(
            f"{where} is damaged ({error}); keep a copy of it, then name another file or go back "
            "to a backup"
        )
    if isinstance(error, apsw.Error):
        return StoreUnavailable(f"{where}: the database could not be written: {error}")
    return error
