"""One writer thread per process: every write of a SQLite store waits in its queue.

Operations that are queued together are committed together, each in a savepoint of its own so that
one that fails does not sink the rest. A future resolves only after COMMIT, when the disk has it.
Heartbeats go first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import apsw

from onceflow.core.errors import StoreError, StoreUnavailable, WrongDatabase
from onceflow.store.files import Files
from onceflow.store.queries import sql
from onceflow.store.rules import MOVED, moved

T = TypeVar("T")
GROUP_MAX = 256
"""How many operations one commit takes; more wait for the next."""

Work: TypeAlias = Callable[[apsw.Connection], Any]
Answer: TypeAlias = tuple[Any, BaseException | None]
"""What an operation gave, or why it was refused."""


class Operation:
    """A write that waits for its turn."""

    __slots__ = ("future", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Writer:
    """The owner of the one connection that writes.

    Its thread ends only when it is closed. When a connection fails there is a new one for those who
    wait; when that cannot be had either they are told why, and the next operation tries again.
    """

    def __init__(
        self,
        where: str,
        connect: Callable[[], apsw.Connection],
        committed: Callable[[], None],
        others_committed: Callable[[], None],
    ) -> None:
        self._where = where
        self._connect = connect
        self._committed = committed
        self._others_committed = others_committed
        self._waiting: deque[Operation] = deque()
        self._closed = False
        self._tried = False
        """Whether the connection was good for a write, were it one that failed."""
        self._files: Files | None = None
        """What is known of the database file and its log since we have them open."""
        self._lock = threading.Lock()
        # The writer sleeps on this one until somebody rings. A Condition does the same in ten times
        # as many steps, all of which are in the way of a single item.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._thread = threading.Thread(target=self._run, name="onceflow-writer", daemon=True)
        self._thread.start()

    def submit(
        self, work: Callable[[apsw.Connection], T], *, first: bool = False
    ) -> asyncio.Future[T]:
        """Queue a write; its future, of the running loop, has the value once it is durable."""
        operation = Operation(work)
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

    # --- in the thread ---

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while True:
            try:
                # The old one goes after the new one is there: never is the file without any, so
                # SQLite keeps its log, and a log that is another one all the same is noticed.
                newer = self._open(again=connection is not None)
                connection, older = newer, connection
                if older is not None:
                    self._let_go(older)
                    self._others_committed()  # or not: nobody has looked meanwhile
                self._serve(connection)
            except BaseException as error:  # this connection cannot be used any more
                if self._tried:  # those who failed were told; the others have the next one
                    self._tried = False
                    continue
                self._refuse_waiting(error)
            if self._closed and not self._waiting:
                break
            self._bell.acquire()  # nothing is tried before somebody asks for it
        if connection is not None:
            self._let_go(connection)
        if self._files is not None:
            self._files.close()

    def _open(self, *, again: bool) -> apsw.Connection:
        if self._files is not None and again:
            self._files.look()
        connection = self._connect()
        try:
            connection.pragma("data_version")  # it has its log open from now on
            if self._files is None:
                self._files = Files(connection.filename, connection.filename_wal)
            self._files.look()
        except BaseException:
            with suppress(apsw.Error):
                connection.close()
            raise
        return connection

    def _let_go(self, connection: apsw.Connection) -> None:
        with suppress(apsw.Error):
            if self._files is None or self._files.fault() is not None:
                # It would carry what it has over what others have written since.
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()

    def _serve(self, connection: apsw.Connection) -> None:
        """Write with one connection until the writer is closed; raise what makes it useless."""
        seen = connection.pragma("data_version")
        while True:
            while self._waiting:
                if group := self._take_group():
                    self._write(connection, group)
            # Our own commits leave this number as it is, those of others change it.
            version = connection.pragma("data_version")
            if version != seen:
                seen = version
                self._others_committed()
            if self._closed and not self._waiting:
                return
            self._bell.acquire()

    def _refuse_waiting(self, error: BaseException) -> None:
        reason = as_unavailable(error, self._where)
        with self._lock:
            waiting = [*self._waiting]
            self._waiting.clear()
        for operation in waiting:
            _tell(operation.future, None, reason)

    def _take_group(self) -> list[Operation]:
        with self._lock:
            count = min(len(self._waiting), GROUP_MAX)
            group = [self._waiting.popleft() for _ in range(count)]
        # One whose caller was cancelled is not done.
        return [operation for operation in group if not operation.future.cancelled()]

    def _write(self, connection: apsw.Connection, group: list[Operation]) -> None:
        self._tried = True
        works = [operation.work for operation in group]
        assert self._files is not None, "there is a connection"
        try:
            self._files.look()
            answers = write_group(connection, works)
            self._files.look()  # what went into files that are gone meanwhile is not stored
        except BaseException as error:  # nothing of the group was committed: everyone is told
            reason = as_unavailable(error, self._where)
            for operation in group:
                _tell(operation.future, None, reason)
            if connection.in_transaction or isinstance(error, apsw.IOError):
                raise  # what such a connection believes of the file may be wrong from now on
            return
        for operation, (value, refused) in zip(group, answers, strict=True):
            _tell(operation.future, value, refused)
        self._committed()


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
                answers.append((None, as_refusal(error, connection)))
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


def as_refusal(error: Exception, connection: apsw.Connection) -> Exception:
    """What a refused operation means to its caller."""
    if isinstance(error, apsw.ConstraintError) and MOVED in str(error):
        place = connection.execute(sql("sqlite", "read_moved")).get
        return WrongDatabase(moved(connection.filename, place))
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
