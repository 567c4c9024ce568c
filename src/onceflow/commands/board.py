"""What a live view shows, and how it looks: worked out from counts, without a database."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.text import Text

from onceflow.commands.text import plain, span
from onceflow.core.item import SETTLED, Phase

ACTIVE_SHOWN_MAX = 8
RATE_WINDOW_SECONDS = 30.0
RATE_SECONDS_MIN = 2.0


@dataclass(frozen=True, slots=True)
class StageView:
    """One stage: how many items are past it, in it, and still to come."""

    pipeline: str
    name: str
    phases: Mapping[str, int]
    passed: int
    coming: int
    """Items that are at an earlier stage and not settled there."""
    is_gate: bool = False
    paused: bool = False

    def at(self, phase: str) -> int:
        return self.phases.get(phase, 0)

    @property
    def ended(self) -> int:
        """Items this stage is through with, one way or another."""
        return self.passed + self.at(Phase.FAILED) + self.at(Phase.CANCELLED)

    @property
    def total(self) -> int:
        """What this stage has had, has and will have to do."""
        return self.passed + sum(self.phases.values()) + self.coming - self.at(Phase.DONE)


@dataclass(frozen=True, slots=True)
class ActiveView:
    """One item that is being worked on."""

    item: int
    key: str
    stage: str
    seconds: float
    text: str = ""
    """The end of what it has streamed so far."""


@dataclass(frozen=True, slots=True)
class DepthView:
    """The items that are so many steps from the first ones."""

    depth: int
    settled: int
    total: int

    def __str__(self) -> str:
        return f"{self.depth}: {self.settled:,}/{self.total:,}"


def depth_views(counts: Sequence[Mapping[str, Any]]) -> list[DepthView]:
    """How far each depth is."""
    settled: dict[int, int] = {}
    total: dict[int, int] = {}
    for row in counts:
        depth = row["depth"]
        total[depth] = total.get(depth, 0) + row["items"]
        if row["phase"] in SETTLED:
            settled[depth] = settled.get(depth, 0) + row["items"]
    return [DepthView(depth, settled.get(depth, 0), total[depth]) for depth in sorted(total)]


@dataclass(frozen=True, slots=True)
class Totals:
    """How far a whole scope is. The gate's own item is not counted."""

    items: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    waiting: int = 0
    ready: int = 0
    active: int = 0
    steps: float = 0.0
    """Finished (item, stage) pairs; a settled item counts as all of its stages."""
    steps_total: float = 0.0

    @property
    def open(self) -> int:
        return self.waiting + self.ready + self.active

    @property
    def settled(self) -> int:
        return self.done + self.failed + self.cancelled

    @property
    def part(self) -> float:
        return self.steps / self.steps_total if self.steps_total else 0.0


def stage_views(
    counts: Sequence[Mapping[str, Any]],
    stages: Sequence[Mapping[str, Any]],
    orders: Mapping[str, Sequence[str]],
    pipelines: Sequence[str],
) -> list[StageView]:
    """The stages of these pipelines in the order of the way, `orders` where it is known."""
    views: list[StageView] = []
    for pipeline in pipelines:
        known = [row for row in stages if row["pipeline"] == pipeline]
        order = list(orders.get(pipeline, ()))
        known.sort(key=lambda row: _place(row, order))
        phases: dict[str, dict[str, int]] = {row["stage"]: {} for row in known}
        for row in counts:
            if row["pipeline"] == pipeline and row["stage"] in phases:
                phases[row["stage"]][row["phase"]] = row["items"]
        ordinary = [row["stage"] for row in known if not row["is_gate"]]
        for row in known:
            name = row["stage"]
            at = ordinary.index(name) if name in ordinary else len(ordinary)
            later = sum(sum(phases[one].values()) for one in ordinary[at + 1 :])
            coming = sum(
                count
                for one in ordinary[:at]
                for phase, count in phases[one].items()
                if phase not in SETTLED
            )
            views.append(
                StageView(
                    pipeline,
                    name,
                    phases[name],
                    (0 if row["is_gate"] else later) + phases[name].get(Phase.DONE, 0),
                    0 if row["is_gate"] else coming,
                    bool(row["is_gate"]),
                    row["paused_at"] is not None,
                )
            )
    return views


def _place(row: Mapping[str, Any], order: list[str]) -> tuple[bool, int]:
    name = row["stage"]
    return bool(row["is_gate"]), order.index(name) if name in order else int(row["position"])


def totals(views: Sequence[StageView]) -> Totals:
    """The sums over all stages but the gates."""
    by_phase: dict[str, int] = {}
    steps = steps_total = 0.0
    for pipeline in dict.fromkeys(view.pipeline for view in views):
        ordinary = [view for view in views if view.pipeline == pipeline and not view.is_gate]
        for at, view in enumerate(ordinary):
            for phase, count in view.phases.items():
                by_phase[phase] = by_phase.get(phase, 0) + count
                steps += count * (len(ordinary) if phase in SETTLED else at)
                steps_total += count * len(ordinary)
    named = {phase.value: by_phase.get(phase, 0) for phase in Phase}
    return Totals(sum(by_phase.values()), **named, steps=steps, steps_total=steps_total)


class Rate:
    """How fast each stage goes, over the last half minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, tuple[int, ...]]] = deque()

    def per_second(self) -> float | None:
        """How many items the last stage is through with in a second; None while not known."""
        if not self._seen or self._seen[-1][0] - self._seen[0][0] < RATE_SECONDS_MIN:
            return None
        (began, before), (now, after) = self._seen[0], self._seen[-1]
        return max(0, after[-1] - before[-1]) / (now - began) if after and before else None

    def left_seconds(self, now: float, views: Sequence[StageView]) -> float | None:
        """How long the slowest stage will take at its rate; None while that is not known."""
        ordinary = [view for view in views if not view.is_gate]
        self._seen.append((now, tuple(view.ended for view in ordinary)))
        while now - self._seen[0][0] > RATE_WINDOW_SECONDS:
            self._seen.popleft()
        began, before = self._seen[0]
        if now - began < RATE_SECONDS_MIN or len(before) != len(ordinary):
            return None
        longest = 0.0
        for view, ended in zip(ordinary, before, strict=True):
            left = view.total - view.ended
            if left and view.ended <= ended:
                return None
            longest = max(longest, left * (now - began) / max(1, view.ended - ended))
        return longest


@dataclass(frozen=True, slots=True)
class Board:
    """Everything a live view shows at one moment."""

    title: str
    run: str = ""
    stages: Sequence[StageView] = ()
    totals: Totals = field(default_factory=Totals)
    active: Sequence[ActiveView] = ()
    active_total: int = 0
    elapsed: float = 0.0
    left: float | None = None
    sealed: bool = True
    """No more items are coming from outside: the total is known."""
    notes: Sequence[str] = ()
    tick: int = 0
    tokens: int = 0
    """Model tokens that the run has used."""
    cost: float = 0.0
    depths: Sequence[DepthView] = ()
    """Where items lead to items."""
    rate: float | None = None
    """Items settled in a second."""

    def line(self) -> str:
        """All of it in one plain line, for where there is no terminal."""
        sums = self.totals
        words = [f"{sums.settled:,} of {_total(self)} settled"]
        if 0 < sums.part < 1:  # an item that is half through is not settled, but it is half done
            words.append(f"{int(sums.part * 100)} % of the way")
        words += [
            f"{count:,} {name}"
            for count, name in (
                (sums.failed, "failed"),
                (sums.active, "active"),
                (sums.ready, "ready"),
                (sums.waiting, "waiting"),
            )
            if count
        ]
        if self.depths:
            words.append("by depth " + " ".join(map(str, self.depths)))
        if self.depths and self.rate is not None:
            words.append(f"{self.rate:,.3g} a second")
        if self.tokens:
            words.append(self.spent())
        words.append(span(self.elapsed))
        if self.left is not None and sums.open:
            words.append(f"about {rough(self.left)} left")
        whose = f"{self.title} {self.run}" if self.run else self.title
        words += [plain(note) for note in self.notes]
        return f"{plain(whose)}: {', '.join(words)}"

    def spent(self) -> str:
        """What models were used for the run: tokens, and money if they have a price."""
        cost = f" for {self.cost:,.4g}" if self.cost else ""
        return f"{self.tokens:,} tokens{cost}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        draw = Drawing(options.max_width, (options.encoding or "").lower().startswith("utf"))
        yield draw.head(self)
        several = len({view.pipeline for view in self.stages}) > 1
        names = [f"{view.pipeline}/{view.name}" if several else view.name for view in self.stages]
        wide = min(max([cell_len(name) for name in names], default=0), options.max_width // 4)
        yield from draw.stages(names, wide, self.stages)
        if self.depths:
            yield draw.depths(self, wide)
        for one in self.active[:ACTIVE_SHOWN_MAX]:
            yield draw.active(one, wide, self.tick)
        if self.active_total > ACTIVE_SHOWN_MAX:
            yield Text(f"  and {self.active_total - ACTIVE_SHOWN_MAX:,} more", style="dim")
        for note in self.notes:
            yield draw.fit(Text(f"  {plain(note)}", style="yellow"))


SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_SPINNER = "|/-\\"


class Drawing:
    """Rows for a terminal of one width, each exactly one line."""

    def __init__(self, width: int, unicode: bool) -> None:
        self.width = max(20, width)
        self.dot = " · " if unicode else ", "
        self.dots = "…" if unicode else "~"
        self.spinner = SPINNER if unicode else PLAIN_SPINNER
        self.glyphs = ("━", "╍", "x", "─") if unicode else ("=", "+", "x", ".")

    def fit(self, text: Text) -> Text:
        """Cut at the edge: a line that wraps would make the display jump."""
        if text.cell_len > self.width:
            text.truncate(self.width - len(self.dots))
            text.append(self.dots, style="dim")
        text.no_wrap = True
        return text

    def head(self, board: Board) -> Text:
        sums = board.totals
        text = Text(plain(board.title), style="bold")
        if board.run and self.width >= 90:
            text.append(f" {plain(board.run)}", style="not bold dim")
        text.append(f"{self.dot}{sums.done:,} of {_total(board)} done", style="not bold")
        if sums.failed:
            text.append(self.dot, style="not bold").append(f"{sums.failed:,} failed", style="red")
        if sums.cancelled:
            text.append(f"{self.dot}{sums.cancelled:,} cancelled", style="not bold")
        if board.tokens and self.width >= 80:
            text.append(f"{self.dot}{board.spent()}", style="not bold dim")
        text.append(f"{self.dot}{rough(board.elapsed)}", style="not bold")
        if board.left is not None and sums.open:
            text.append(f"{self.dot}about {rough(board.left)} left", style="not bold cyan")
        return self.fit(text)

    def depths(self, board: Board, wide: int) -> Text:
        """One line: how many are settled at each depth, and how fast it goes."""
        text = Text("  ").append(self._cell("depth", max(wide, 5))).append("  ")
        for at, one in enumerate(board.depths):
            style = "green" if one.settled == one.total else "default"
            text.append("   " if at else "").append(str(one), style=style)
        if board.rate is not None:
            text.append(f"   {board.rate:,.3g}/s", style="cyan")
        return self.fit(text)

    def stages(self, names: Sequence[str], wide: int, views: Sequence[StageView]) -> Iterator[Text]:
        """A bar a stage, all of one width."""
        counts = [self._counts(view) for view in views]
        numbers = [f"{view.passed:,}/{view.total:,}" for view in views]
        wide_number = max([len(number) for number in numbers], default=0)
        wide_counts = max([count.cell_len for count in counts], default=0)
        room = self.width - wide - wide_number - wide_counts - 8
        bar = max(8, min(40, room))
        for name, view, number, count in zip(names, views, numbers, counts, strict=True):
            text = Text("  ").append(self._cell(name, wide)).append("  ")
            if view.is_gate and not sum(view.phases.values()):
                text.append("opens once, when all are settled", style="dim")
            else:
                text.append_text(self._bar(view, bar)).append(f"  {number:>{wide_number}}  ")
                text.append_text(count)
            yield self.fit(text)

    def _counts(self, view: StageView) -> Text:
        words = Text()
        for phase, style in (
            (Phase.ACTIVE, "yellow"),
            (Phase.FAILED, "red"),
            (Phase.WAITING, "magenta"),
            (Phase.READY, "dim"),
            (Phase.CANCELLED, "dim"),
        ):
            if view.at(phase):
                gap = "  " if words else ""
                words.append(gap).append(f"{view.at(phase):,} {phase.value}", style=style)
        if view.paused:
            words.append("  paused" if words else "paused", style="bold magenta")
        return words

    def _bar(self, view: StageView, width: int) -> Text:
        shares = (view.passed, view.at(Phase.ACTIVE), view.at(Phase.FAILED) + view.at("cancelled"))
        cells = segments(shares, view.total, width)
        text = Text()
        styles = ("green", "yellow", "red", "bright_black")
        for glyph, count, style in zip(
            self.glyphs, (*cells, width - sum(cells)), styles, strict=True
        ):
            text.append(glyph * count, style=style)
        return text

    def active(self, one: ActiveView, wide: int, tick: int) -> Text:
        spin = self.spinner[tick % len(self.spinner)]
        text = Text(f"{spin} ", style="yellow").append(self._cell(one.stage, wide), style="dim")
        text.append(f"  {brief(one.seconds):>7}  ", style="dim")
        room = self.width - text.cell_len
        key = plain(one.key, 400)
        key_room = room if not one.text else max(12, room * 2 // 5)
        text.append(self._middle(key, key_room), style="default not dim")
        if one.text and (left := self.width - text.cell_len - 2) >= 8:
            text.append("  ").append(self._tail(plain(one.text, 400), left), style="italic cyan")
        return self.fit(text)

    def _middle(self, text: str, room: int) -> str:
        """Both ends of what does not fit: addresses of one site differ at their ends."""
        if cell_len(text) <= room:
            return text
        front = max(1, room // 3)
        return set_cell_size(text, front) + self._tail(text, room - front)

    def _tail(self, text: str, room: int) -> str:
        """The last words that fit."""
        if cell_len(text) <= room:
            return text
        end = text
        while cell_len(end) > room - len(self.dots):
            end = end[1:]
        return self.dots + end

    def _cell(self, text: str, width: int) -> str:
        if cell_len(text) > width:
            return set_cell_size(text, max(1, width - len(self.dots))) + self.dots
        return set_cell_size(text, width)


def segments(shares: Sequence[int], total: int, width: int) -> list[int]:
    """How many cells each share gets. One that is not 0 gets at least one while there is room, and
    nothing looks finished that is not."""
    if total <= 0:
        return [0] * len(shares)
    cells = [min(width, share * width // total) for share in shares]
    for at, share in enumerate(shares):
        if at and share and not cells[at] and sum(cells) < width:
            cells[at] = 1
    return cells


def rough(seconds: float) -> str:
    """A duration in whole units, so that it does not flicker."""
    whole = math.ceil(seconds)
    return f"{whole} s" if whole < 60 else span(whole)


def brief(seconds: float) -> str:
    """A short duration of one form, so that a column of them lines up."""
    return f"{seconds:.1f} s" if seconds < 100 else span(seconds)


def _total(board: Board) -> str:
    return f"{board.totals.items:,}" if board.sealed else f"{board.totals.items:,}+"
