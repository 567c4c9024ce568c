"""Data on stdout, everything else on stderr; a reader that goes away is no error."""

from __future__ import annotations

import json
import os
import select
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TextIO

from onceflow.commands.text import masked, plain

OK, SOME_FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
EPILOGUE = "Exit codes: 0 done, 1 some failed, 2 usage, 3 not reachable, 130 interrupted."


class UsageError(Exception):
    """The command cannot be done as it was given; the message says what to do instead."""


class ReaderGone(Exception):
    """Whoever read our stdout (`| head`) has seen enough."""


def prepare_streams() -> None:
    """Streams that can be written to, whatever the shell gave us and whatever the locale is."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed by the shell: >&-
            stream = open(os.devnull, "w")  # noqa: PTH123, SIM115 - it stands in for a stream
            setattr(sys, name, stream)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def forget(stream: TextIO) -> None:
    """Send what is still buffered for a reader that is gone nowhere, so that exiting is silent."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        return  # not a real file: nothing will be flushed at exit either


def is_fancy(stream: TextIO) -> bool:
    """Whether a live display is welcome: a terminal, and nobody said otherwise."""
    if os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:
        return False


def speaks_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") in ("utf8", "utf16")


class Out:
    """Where one command writes."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    # --- data ---

    def line(self, text: str = "") -> None:
        """One line of data for people."""
        self._write(f"{text}\n")

    def emit(self, value: Any) -> None:
        """One JSON object on one line, in plain ASCII: safe for any terminal, parser and locale."""
        self._write(json.dumps(as_json(value), separators=(", ", ": ")) + "\n")

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        spare: Sequence[str] = (),
    ) -> None:
        """Columns as wide as their contents; those to spare are left out, the first first, where a
        terminal is too narrow."""
        cells = [list(columns), *([plain(cell) for cell in row] for row in rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
        room = terminal_width(sys.stdout)
        for name in spare:
            if room is None or sum(widths) + 2 * (len(widths) - 1) <= room:
                break
            at = cells[0].index(name)
            for row in cells:
                del row[at]
            del widths[at]
        self.rows(cells, widths)

    def hanging(self, head: str, text: str) -> None:
        """A text behind its head, in a terminal broken at its edge."""
        room = terminal_width(sys.stdout)
        if room is None:
            self.line(head + text)
            return
        indent = " " * (len(head) if len(head) <= room // 2 else 2)
        for line in textwrap.wrap(
            text, room, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
        ) or [head.rstrip()]:
            self.line(line)

    def rows(self, cells: Iterable[Sequence[str]], widths: Sequence[int]) -> None:
        """Rows in columns of these widths, cut at the edge of a terminal."""
        room = terminal_width(sys.stdout)
        for row in cells:
            text = "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            self.line(text if room is None or len(text) <= room else text[: room - 1] + self.dots)

    @property
    def dots(self) -> str:
        return "…" if speaks_unicode(sys.stdout) else "~"

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
        except BrokenPipeError:
            forget(sys.stdout)
            raise ReaderGone from None

    def check_reader(self) -> None:
        """Notice that whoever read our stdout is gone, also while there is nothing to write."""
        try:
            poll = select.poll()
            poll.register(sys.stdout.fileno(), 0)  # errors are told without being asked for
            gone = any(what & select.POLLERR for _, what in poll.poll(0))
        except (OSError, ValueError, AttributeError):  # no real file, or a system without poll
            return
        if gone:
            forget(sys.stdout)
            raise ReaderGone

    def flush(self) -> None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            forget(sys.stdout)
            raise ReaderGone from None

    # --- remarks ---

    def say(self, text: str) -> None:
        """A remark for people, not for programs."""
        if not self.quiet:
            remark(text)


def remark(text: str) -> None:
    """A line on stderr. If nobody can read it, it is not worth failing for."""
    try:
        for line in _wrapped(masked(text)):
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        forget(sys.stderr)


def _wrapped(text: str) -> Iterator[str]:
    """Lines as a terminal shows them whole. What is to be typed next stays on one line, so that it
    can be copied."""
    room = terminal_width(sys.stderr)
    for line in text.split("\n"):
        if room is None or len(line) <= room or line.lstrip().startswith("next: "):
            yield line
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        yield from textwrap.wrap(
            line, room, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False,
            drop_whitespace=True,
        )  # fmt: skip


def complain(text: str) -> None:
    """An error in one or two lines."""
    remark(f"onceflow: {plain(text, 1000)}")


def terminal_width(stream: TextIO) -> int | None:
    """How wide a line may be; None where there is no terminal and a line may be of any length."""
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns) if stream.isatty() else None
    except (OSError, ValueError, AttributeError):
        return None


def as_json(value: Any) -> Any:
    """A value as `json.dumps` takes it."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value
