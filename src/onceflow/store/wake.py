"""How one process learns at once that another one has committed to the same SQLite file.

After each commit that may matter to others, the file's times are touched; inotify tells the
others. Where there is no inotify the file's data version is asked for a few times a second. Either
way it is a hint: the safety scan finds the same a little later.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

IN_ATTRIB = 0x4
POLL_SECONDS = 0.05


def touch(path: Path, stamp: int) -> None:
    """Tell the others. By the stamp, in ns, whoever touched knows it again."""
    try:
        os.utime(path, ns=(stamp, stamp))
    except OSError:  # a hint that cannot be given is only late
        return


class FileWatch:
    """Calls `wake` in the loop, with the file's stamp, when somebody touched the file."""

    def __init__(self, path: Path, wake: Callable[[int], None]) -> None:
        self._path = path
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._fd = _inotify(path)
        self._timer: asyncio.TimerHandle | None = None
        self._seen = self._stamp()
        if self._fd is None:
            self._poll()
        else:
            self._loop.add_reader(self._fd, self._told)

    def close(self) -> None:
        self._give_up()
        if self._timer is not None:
            self._timer.cancel()

    def _told(self) -> None:
        assert self._fd is not None
        try:
            os.read(self._fd, 64 * struct.calcsize("iIII"))
        except BlockingIOError:
            return
        except OSError:  # it tells nothing any more: look by ourselves
            self._give_up()
            self._poll()
            return
        self._wake(self._stamp())

    def _give_up(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _stamp(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0

    def _poll(self) -> None:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._wake(stamp)
        self._timer = self._loop.call_later(POLL_SECONDS, self._poll)


def _inotify(path: Path) -> int | None:
    """A descriptor that becomes readable when the file is touched; None where there is none."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return None
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(path), IN_ATTRIB) < 0:
        os.close(fd)
        return None
    return fd
