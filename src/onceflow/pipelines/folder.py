"""A folder of output files: each is there whole or not at all, and one process at a time writes it.

What a file should hold is worked out while its lock is held, so a slow process cannot put an older
state over a newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

from onceflow.core.errors import SettingsError

LOCK = ".onceflow.lock"
LEFT = re.compile(r"\.(?P<name>[\w.-]+)\.new")
"""What a process that was killed in the middle of writing leaves behind."""


RUN_LOCK = (1 << 62) + 1
WAIT_SECONDS = 30.0


@contextlib.asynccontextmanager
async def alone(path: Path) -> AsyncIterator[None]:
    """Nobody else who has this folder for output does the same at the same time. Who waits for too
    long goes on: it is a courtesy, nothing depends on it for being right."""
    folder = Folder(path)
    folder.open()
    try:
        until = asyncio.get_running_loop().time() + WAIT_SECONDS
        while True:
            with folder.holding([RUN_LOCK]) as got:
                if got or asyncio.get_running_loop().time() > until:
                    yield
                    return
            await asyncio.sleep(0.05)
    finally:
        folder.close()


class Folder:
    """Files in one folder. Names are ours, never somebody's text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def open(self) -> None:
        """Make the folder if need be, and see that files can be written there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(
                self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
            )
        except OSError as error:
            why = "it is not a folder" if self.path.is_file() else error.strerror
            raise SettingsError(
                f"the output folder {self.path} cannot be used: {why}; name another with --out"
            ) from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextlib.contextmanager
    def holding(self, numbers: list[int]) -> Iterator[list[int]]:
        """Those of these locks that nobody else has, for a while."""
        assert self._lock is not None
        got: list[int] = []
        try:
            for number in numbers:
                with contextlib.suppress(BlockingIOError, PermissionError):
                    fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                    got.append(number)
            yield got
        finally:
            for number in got:
                fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, number)

    def put(self, files: Mapping[str, bytes]) -> dict[str, OSError]:
        """Write what is not there already, byte for byte; what could not be written, and why."""
        failed: dict[str, OSError] = {}
        for name, body in files.items():
            try:
                if self.read(name) != body:
                    self._write(name, body)
            except OSError as error:
                failed[name] = error
        return failed

    def read(self, name: str) -> bytes | None:
        """What a file holds; None if there is no such file, or something else in its place."""
        try:
            opened = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with os.fdopen(opened, "rb") as file:
            try:
                return file.read()
            except OSError:
                return None

    def _write(self, name: str, body: bytes) -> None:
        new = self.path / f".{name}.new"
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        opened = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise

    def left_behind(self) -> list[str]:
        """The names whose writing was cut off."""
        with os.scandir(self.path) as entries:
            found = [LEFT.fullmatch(entry.name) for entry in entries]
        return sorted(match["name"] for match in found if match)

    def forget(self, name: str) -> None:
        """Remove what a killed process left of a file; the caller holds its lock."""
        with contextlib.suppress(OSError):
            (self.path / f".{name}.new").unlink()
