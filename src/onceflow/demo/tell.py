"""How the demo tells its story: plain lines, or lines above a live board in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from onceflow.commands.board import Board
from onceflow.commands.follow import DRAW_SECONDS, Watcher
from onceflow.commands.output import is_fancy
from onceflow.commands.text import plain

WIDTH_MAX = 88
DRAWN_PER_LOOK = 2
LINES = 5
"""How many lines tell the whole progress where there is no live board."""


class Teller:
    """Everything the demo says goes through here, so that it stays in order."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self._console = Console(stderr=as_json, highlight=False, markup=False, emoji=False)
        self._fancy = is_fancy(sys.stderr if as_json else sys.stdout) and not quiet
        self._quiet = quiet
        self._began = time.monotonic()

    @property
    def _width(self) -> int:
        return max(30, min(self._console.width, WIDTH_MAX))

    def line(self, text: str | Text = "", style: str = "") -> None:
        self._console.print(Text(text, style) if isinstance(text, str) else text, soft_wrap=True)
        self._console.file.flush()

    def head(self, text: str) -> None:
        self.line()
        for line in wrapped(text, self._width):
            self.line(line, "bold")

    def say(self, text: str, style: str = "") -> None:
        for line in wrapped(text, self._width - 2):
            self.line(f"  {line}", style)

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        """Names and what they are: beside each other, or below each other where that is narrow."""
        wide = max(len(name) for name, _ in rows) + 2
        beside = wide <= self._width // 3
        for name, text in rows:
            if not beside:
                self.line(f"  {name}", "cyan")
            room = self._width - 2 - (wide if beside else 2)
            for number, line in enumerate(wrapped(text, room)):
                label = (name if number == 0 else "").ljust(wide) if beside else "  "
                self.line(Text("  ").append(label, style="cyan").append(line))

    def titles(self, rows: Sequence[tuple[str, str]]) -> None:
        """A line each: the title, and as much of the text as fits."""
        wide = max(cell_len(title) for title, _ in rows) + 2
        room = self._width - 2 - wide
        for title, text in rows:
            line = Text("  ").append(set_cell_size(title, wide), style="cyan")
            if room >= 24:
                line.append(plain(text, room))
            self.line(line)

    def happened(self, text: str, style: str = "") -> None:
        """A line of the story, with its time."""
        mark = f"{time.monotonic() - self._began:5.1f} s  "
        for number, line in enumerate(wrapped(text, self._width - len(mark))):
            self.line((mark if number == 0 else " " * len(mark)) + line, style)

    async def follow(self, watcher: Watcher, over: asyncio.Event) -> None:
        """Show how far everything is, until then: a live board, or a line now and then."""
        self._began = time.monotonic()
        live: Live | None = None
        told = -1
        if self._fancy:
            live = Live(
                watcher.board, console=self._console, auto_refresh=False, transient=True,
                redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop",
            )  # fmt: skip
            live.start()
        try:
            while not over.is_set():
                board = await watcher.look()
                part = int(board.totals.part * LINES)
                if live is None and not self._quiet and part > told:
                    told = part
                    self.happened(in_one_line(board))
                for _ in range(DRAWN_PER_LOOK):
                    if live is not None:
                        live.update(Group("", watcher.redrawn()), refresh=True)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(over.wait(), DRAW_SECONDS)
        finally:
            if live is not None:
                live.stop()


def in_one_line(board: Board) -> str:
    sums = board.totals
    counts = {"failed": sums.failed, "active": sums.active, "ready": sums.ready,
              "waiting": sums.waiting}  # fmt: skip
    rest = [f"{count} {name}" for name, count in counts.items() if count]
    return ", ".join([f"{sums.settled} of {sums.items} settled", *rest])


def wrapped(text: str, room: int) -> list[str]:
    """Lines of whole words; one that is too long, such as an address, stays whole."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append(word)
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines
