"""The files of a SQLite database, looked at without being opened.

POSIX locks belong to a process and a file, not to who took them: when any part of a process opens
and closes a file, the system drops all locks that the process has on it. Another program then takes
itself for the last one that uses the database, and removes the log that we still write to. So
nobody here opens a database file but SQLite itself, which keeps such a close until its locks are
gone; a header is read through its own file object.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import NamedTuple

import apsw

from onceflow.core.errors import WrongDatabase

MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100

Place = tuple[int, int]
"""What tells a file from every other that is there, whatever its name: its device and inode."""

_logs: dict[Place, tuple[Place, int]] = {}
"""Of each database that this process has open: which log it has, and how many writers use it."""
_lock = threading.Lock()


class Header(NamedTuple):
    """What the first bytes of a database say."""

    is_sqlite: bool
    changes: int
    """Grows whenever the file does, and never gets less."""
    application: int


def place_of(path: str) -> Place | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - half the time of a Path, before every commit
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def read_header(path: str) -> Header | None:
    """The header of a file as it is on the disk, without its log; None if it has none."""
    file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        text = bytes(file.xRead(HEADER_BYTES, 0))
    finally:
        file.xClose()
    if len(text) < HEADER_BYTES:
        return None
    changes, application = (struct.unpack_from(">I", text, at)[0] for at in (24, 68))
    return Header(text.startswith(MAGIC), changes, application)


class Files:
    """A database file and its log, from the moment they were opened: are they still the same?"""

    def __init__(self, path: str, log: str) -> None:
        self._path = path
        self._log_path = log
        self._place = place_of(path)
        self._log = place_of(log)
        self._bytes = 0
        self._touched = 0
        self._header: Header | None = None
        self._lost: str | None = None
        """Why they cannot become ours again, whatever is put back."""
        if self._place is None or self._log is None:
            raise WrongDatabase(f"{path} was deleted or moved while it was opened; open it again")
        with _lock:
            # SQLite has one view of a log in a process, whoever opens it again.
            self._log, writers = _logs.get(self._place, (self._log, 0))
            _logs[self._place] = self._log, writers + 1

    def close(self) -> None:
        """A writer is gone."""
        assert self._place is not None
        with _lock:
            log, writers = _logs.pop(self._place)
            if writers > 1:
                _logs[self._place] = log, writers - 1

    def look(self) -> None:
        """Raise if what is written now would not be found again."""
        if (why := self.fault()) is not None:
            raise WrongDatabase(f"{self._path} {why}")

    def fault(self) -> str | None:
        """Why they are not ours at the moment; None if all is well."""
        if self._lost is not None:
            return self._lost
        try:
            found = os.stat(self._path)  # noqa: PTH116 - as above
        except FileNotFoundError:
            return _gone("deleted or moved")
        if (found.st_dev, found.st_ino) != self._place:
            return _gone("replaced by another file")
        if found.st_mtime_ns != self._touched or found.st_size != self._bytes:
            if self._is_overwritten(found.st_size):
                self._lost = OVERWRITTEN
                return self._lost
            self._bytes, self._touched = found.st_size, found.st_mtime_ns
        if place_of(self._log_path) != self._log:
            self._lost = LOG_GONE
        return self._lost

    def _is_overwritten(self, size: int) -> bool:
        """A copy that was made earlier has seen fewer changes. (VACUUM makes a file smaller, but it
        is a change.)"""
        before, self._header = self._header, read_header(self._path)
        now = self._header
        if now is None or not now.is_sqlite:
            return True
        if before is None:
            return False
        return now.changes < before.changes or (
            size < self._bytes and now.changes == before.changes
        )


OVERWRITTEN = (
    "was overwritten in place while it was open, so nothing is written to it any more; end every "
    "process that uses it, put the copy there once more, without a -wal or -shm file beside it, "
    "and start again"
)
LOG_GONE = (
    "has lost its -wal file while it was open, since another program removed or replaced it, so "
    "nothing is written to it any more; end every process that uses it and start again"
)


def _gone(what: str) -> str:
    return (
        f"was {what} while it was open, so nothing is written to it any more; put it back, or end "
        "this process and start it again"
    )
