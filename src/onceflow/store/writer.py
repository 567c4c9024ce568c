"""One writer thread per process: every write of a SQLite store waits in its queue.

Operations that are queued together are committed together, each in a savepoint of its own so that
one that fails does not sink the rest. A future resolves only after COMMIT. Heartbeats go first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import apsw

from onceflow.core.errors import StoreError, StoreUnavailable

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

    def tell(self, value: Any, error: BaseException | None) -> None:
        """In its own loop: the caller may have gone away meanwhile."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class Writer:
    """The owner of the one connection that writes."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        committed: Callable[[], None],
        others_committed: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._committed = committed
        self._others_committed = others_committed
        self._waiting: deque[Operation] = deque()
        self._closed = False
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

    def _run(self) -> None:
        connection = self._connect()
        seen = connection.pragma("data_version")
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
            connection.close()

    def _take_group(self) -> list[Operation]:
        with self._lock:
            count = min(len(self._waiting), GROUP_MAX)
            group = [self._waiting.popleft() for _ in range(count)]
        # One whose caller was cancelled is not done.
        return [operation for operation in group if not operation.future.cancelled()]

    def _write(self, connection: apsw.Connection, group: list[Operation]) -> None:
        try:
            answers = write_group(connection, [operation.work for operation in group])
        except BaseException as error:  # nothing of the group was committed: everyone is told
            _tell(group, [(None, as_unavailable(error, connection.filename))] * len(group))
            return
        _tell(group, answers)
        self._committed()


def _tell(group: Sequence[Operation], answers: Sequence[Answer]) -> None:
    """Resolve futures, each in its own loop."""
    for operation, (value, error) in zip(group, answers, strict=True):
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            operation.future.get_loop().call_soon_threadsafe(operation.tell, value, error)


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
    if isinstance(error, apsw.Error):
        return StoreUnavailable(f"{where}: the database could not be written: {error}")
    return error
