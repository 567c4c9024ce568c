"""One writer thread per process: every write of a SQLite store waits in its queue.

Operations that are queued together are committed together, each in a savepoint of its own so that
one that fails does not sink the rest. A future resolves only after COMMIT. Heartbeats go first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import apsw

from onceflow.core.errors import StoreError, StoreUnavailable

T = TypeVar("T")
GROUP_MAX = 256
"""How many operations one commit takes; more wait for the next."""


class Operation:
    """A write that waits for its turn."""

    __slots__ = ("future", "work")

    def __init__(self, work: Callable[[apsw.Connection], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()


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
        self._peek = False
        self._waiting: deque[Operation] = deque()
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="onceflow-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[apsw.Connection], T], *, first: bool = False) -> Future[T]:
        """Queue a write; its future has the value once it is durable."""
        operation = Operation(work)
        with self._change:
            if self._closed:
                raise StoreUnavailable("the database is closed")
            if first:
                self._waiting.appendleft(operation)
            else:
                self._waiting.append(operation)
            self._change.notify()
        return operation.future

    def peek(self) -> None:
        """See whether another process has committed; a hint came in that one may have."""
        with self._change:
            self._peek = True
            self._change.notify()

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _run(self) -> None:
        connection = self._connect()
        seen = connection.pragma("data_version")
        try:
            while self._next():
                if group := self._take_group():
                    self._write(connection, group)
                # Our own commits leave this number as it is, those of others change it.
                version = connection.pragma("data_version")
                if version != seen:
                    seen = version
                    self._others_committed()
        finally:
            connection.close()

    def _next(self) -> bool:
        """Wait for something to do; False when all is written and the writer is closed."""
        with self._change:
            while not (self._waiting or self._peek or self._closed):
                self._change.wait()
            peek, self._peek = self._peek, False
            return bool(self._waiting or peek)

    def _take_group(self) -> list[Operation]:
        with self._change:
            count = min(len(self._waiting), GROUP_MAX)
            group = [self._waiting.popleft() for _ in range(count)]
        # One whose caller was cancelled is not done; from here on it cannot be cancelled any more.
        return [operation for operation in group if operation.future.set_running_or_notify_cancel()]

    def _write(self, connection: apsw.Connection, group: list[Operation]) -> None:
        answers: list[tuple[Operation, Any, BaseException | None]]
        try:
            answers = write_group(connection, group)
        except BaseException as error:  # nothing of the group was committed: everyone is told
            failed = as_unavailable(error, connection.filename)
            for operation in group:
                operation.future.set_exception(failed)
            return
        for operation, value, refused in answers:
            if refused is None:
                operation.future.set_result(value)
            else:
                operation.future.set_exception(refused)
        self._committed()


def write_group(
    connection: apsw.Connection, group: list[Operation]
) -> list[tuple[Operation, Any, BaseException | None]]:
    """Run operations in one transaction. IMMEDIATE: a deferred one that turns into a write can
    fail at once without waiting for its turn."""
    answers: list[tuple[Operation, Any, BaseException | None]] = []
    alone = len(group) == 1  # then the transaction is all there is to undo
    connection.execute("BEGIN IMMEDIATE")
    try:
        for operation in group:
            if not alone:
                connection.execute("SAVEPOINT operation")
            try:
                answers.append((operation, operation.work(connection), None))
            except (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.BusyError):
                raise
            except Exception as error:  # reported to the one who asked
                connection.execute("ROLLBACK" if alone else "ROLLBACK TO operation")
                answers.append((operation, None, as_refusal(error)))
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
