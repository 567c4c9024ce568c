"""Keys from the command line, a file or stdin: streamed, counted, and refused by line."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Protocol

from onceflow import Permanent, Pipeline
from onceflow.commands.output import UsageError
from onceflow.commands.text import plain
from onceflow.core.transition import KEY_CHARS_MAX, canonical_key

LINE_BYTES_MAX = 4 * KEY_CHARS_MAX + 2
READ_BYTES = 64 * 1024
REFUSALS_KEPT = 20
SPOOL_BYTES = 8 * 1024 * 1024
SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.\-]*:")
COMMENT = re.compile(r"\s+#")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that is no key, and why."""

    line: int
    why: str


@dataclass(slots=True)
class Survey:
    """What one look through all keys found."""

    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    """The first few of the refused."""
    first: str = ""
    fingerprint: str = ""
    """The same for the same set of keys, in whatever order and however often."""

    def refuse(self, line: int, why: str) -> None:
        self.refused += 1
        if len(self.refusals) < REFUSALS_KEPT:
            self.refusals.append(Refusal(line, why))


class Source(Protocol):
    """Where keys come from. It can be read more than once."""

    name: str
    unit: str
    """What one key is there: a line, or an argument."""
    word: str
    """What the user calls a key: key, or URL."""

    def lines(self) -> Iterator[tuple[int, str | Refusal]]:
        """Each line that is not blank or a comment, with its number from 1."""


class Arguments:
    """Keys as they were given on the command line."""

    name = "the command line"
    unit = "argument"

    def __init__(self, keys: Sequence[str], word: str = "key") -> None:
        self._keys = keys
        self.word = word

    def lines(self) -> Iterator[tuple[int, str | Refusal]]:
        yield from enumerate(self._keys, start=1)


class File:
    """Lines of a file; stdin is spooled, so that it can be read again."""

    unit = "line"

    def __init__(self, name: str, opened: IO[bytes], word: str = "key") -> None:
        self.name = name
        self.word = word
        self._opened = opened

    def lines(self) -> Iterator[tuple[int, str | Refusal]]:
        self._opened.seek(0)
        for number, raw in _bounded_lines(self._opened):
            if raw is None:
                yield number, Refusal(number, f"longer than {LINE_BYTES_MAX:,} bytes")
                continue
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            try:
                text = raw.decode().strip()
            except UnicodeDecodeError:
                yield number, Refusal(number, "it is not UTF-8 text")
                continue
            if self.word == "URL":  # which has no space in it
                text = COMMENT.split(text, 1)[0]
            if text and not text.startswith("#"):
                yield number, text


@contextmanager
def source_of(
    arguments: Sequence[str], *, as_keys: bool = False, urls: bool = False
) -> Iterator[Source | None]:
    """What KEY…, FILE or - stand for; None for nothing at all. Keys that are URLs are told from
    files by their scheme."""
    word = "URL" if urls else "key"
    if not arguments:
        yield None
    elif list(arguments) == ["-"] and not as_keys:
        with _spooled(sys.stdin.buffer) as spooled:
            yield File("stdin", spooled, word)
    elif len(arguments) == 1 and not as_keys and _is_there(path := Path(arguments[0])):
        with _open(path, word) as opened:
            yield File(str(path), opened, word)
    else:
        if urls:
            _check_files(arguments)
        yield Arguments(arguments, word)


def _check_files(arguments: Sequence[str]) -> None:
    """Refuse what was meant as a file of URLs and cannot be one."""
    for argument in arguments:
        if SCHEME.match(argument):
            continue
        if len(arguments) == 1:
            raise UsageError(
                f"there is no file {plain(argument, 200)}; if it is a URL, write https:// before it"
            )
        if _is_there(Path(argument)):
            raise UsageError(
                f"{plain(argument, 200)} is a file, and only one is read, alone; several together: "
                "cat FILE… | onceflow … -"
            )


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long for any file: it is a key
        return False


def _open(path: Path, word: str) -> IO[bytes]:
    is_key = ", or use --as-keys if its name is the key" if word == "key" else ""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file with one {word} a line{is_key}")
    try:
        opened = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        start = opened.read(4096)
        if start[:2] in BOMS:
            raise UsageError(
                f"{path} is {BOMS[start[:2]]} text; save it as UTF-8, one {word} a line"
            )
        if b"\x00" in start:
            raise UsageError(
                f"{path} is a binary file, not a list of {word}s; name a text file with one "
                f"{word} a line{is_key}"
            )
        if opened.seekable():
            return opened
        spooled = _spooled(opened, start)  # a pipe can be read only once
    except BaseException:
        opened.close()
        raise
    opened.close()
    return spooled


def _spooled(stream: IO[bytes], start: bytes = b"") -> IO[bytes]:
    """What can be read only once, kept beside: a little in memory, more in a temporary file."""
    spooled = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - till the end
    spooled.write(start)
    shutil.copyfileobj(stream, spooled)
    return spooled


def keys_of(pipeline: Pipeline, source: Source, survey: Survey | None = None) -> Iterator[str]:
    """Every line that is a key, in its one spelling."""
    for number, line in source.lines():
        if isinstance(line, Refusal):
            if survey is not None:
                survey.refuse(number, line.why)
            continue
        try:
            if CONTROL.search(line):
                raise Permanent("it has control characters in it")
            yield canonical_key(pipeline, line)
        except Permanent as refused:
            if survey is not None:
                survey.refuse(number, str(refused))


def survey(pipeline: Pipeline, source: Source) -> Survey:
    """Look through all keys once, in little memory: count them, and know the set again."""
    found = Survey()
    seen = Seen()
    total = 0
    for key in keys_of(pipeline, source, found):
        digest = blake2b(key.encode(), digest_size=16).digest()
        if seen.add(int.from_bytes(digest[:8], "big")):
            found.first = found.first or key
            found.accepted += 1
            total += int.from_bytes(digest, "big")
        else:
            found.duplicate += 1
    total %= 1 << 128
    whole = f"{pipeline.name}\n{found.accepted}\n{total:032x}"
    found.fingerprint = blake2b(whole.encode(), digest_size=6).hexdigest()
    return found


class Seen:
    """A set of 64-bit numbers in 12 to 24 bytes each, where a Python set takes some 90.

    It counts duplicates only; what is added twice is told apart by the database, never by this.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._count = 0

    def add(self, number: int) -> bool:
        """Whether it is new."""
        number = number or 1  # 0 is an empty slot
        if self._count * 3 >= len(self._slots) * 2:
            self._grow()
        if not _put(self._slots, number):
            return False
        self._count += 1
        return True

    def _grow(self) -> None:
        old = self._slots
        self._slots = array("Q", bytes(16 * len(old)))
        for number in old:
            if number:
                _put(self._slots, number)


def _put(slots: array[int], number: int) -> bool:
    mask = len(slots) - 1
    at = number & mask
    while slots[at]:
        if slots[at] == number:
            return False
        at = (at + 1) & mask
    slots[at] = number
    return True


def _bounded_lines(opened: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines; None for one that is too long, which is never held in memory as a whole."""
    number = 0
    while line := opened.readline(LINE_BYTES_MAX):
        number += 1
        if line.endswith(b"\n") or len(line) < LINE_BYTES_MAX:
            yield number, line
            continue
        while (rest := opened.readline(READ_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield number, None
