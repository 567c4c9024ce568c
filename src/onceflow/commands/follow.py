"""Progress on stderr while work goes on: a live board in a terminal, a plain line now and then
elsewhere, nothing if nobody wants it."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.live import Live

from onceflow import Flow, OnceflowError, Run
from onceflow.commands.board import (
    ACTIVE_SHOWN_MAX,
    ActiveView,
    Board,
    DepthView,
    Rate,
    StageView,
    depth_views,
    stage_views,
    totals,
)
from onceflow.commands.next import worker_for
from onceflow.commands.output import is_fancy, remark
from onceflow.commands.text import masked, plain, raised, span
from onceflow.engine.neighbours import living

LOOK_SECONDS = 0.25
"""The least time between two looks at the database."""
LOOK_SHARE = 10
"""After a look that took t seconds the next one waits at least this many t."""
DRAW_SECONDS = 0.12
PLAIN_SECONDS = 10.0
BLIND_SECONDS = 10.0
"""How often it is said that the database cannot be seen."""
LINES_MAX = 8
"""Failures and warnings shown for one look; the rest is counted."""
WORKERS_ASKED_MAX = 20
TEXT_KEPT = 400


class Scope:
    """What is followed: one run, one pipeline, or everything in the database."""

    def __init__(self, *, pipeline: str | None = None, run: str | None = None) -> None:
        self.pipeline = pipeline
        self.run = run


class Watcher:
    """Reads what a board shows."""

    def __init__(self, flow: Flow, scope: Scope, title: str, at: str = "") -> None:
        self._flow = flow
        self._at = at
        """How a further command is told which database is meant."""
        self.scope = scope
        self._title = title
        self._rate = Rate()
        self._began = time.monotonic()
        self._texts: dict[int, str] = {}
        self._seen = 0
        self._told: set[tuple[str | None, Any]] = set()
        """The reasons for which something is tried again later, as far as they were said."""
        self._alive = True
        self.sealed = True
        self._spent: tuple[int, float] = (0, 0.0)
        self.finished = asyncio.Event()
        """The run is over, its gate too."""
        self.board = Board(title, scope.run or "")

    def stream(self, item: int, offset: int, text: str) -> None:
        """A handler in this process streamed."""
        before = self._texts.get(item, "") if offset else ""
        self._texts[item] = (before + text)[-TEXT_KEPT:]

    async def look(self) -> Board:
        """Read once how far everything is."""
        read = self._flow.store.read
        scope = self.scope
        names = [row["name"] for row in await read("pipelines")]
        stages = await read("stages")
        if scope.run is None:
            counts = await read("counts", pipeline=scope.pipeline)
        else:
            counts = await read("counts_of_run", run=scope.run) + await self._gate(scope.run)
        if scope.pipeline is not None:
            names = [scope.pipeline]
        orders = {
            name: [stage.name for stage in sorted(known.stages, key=lambda s: known.order(s.name))]
            for name, known in self._flow.pipelines.items()
        }
        views = stage_views(counts, stages, orders, names)
        sums = totals(views)
        lease_ms = max((row["lease_ms"] for row in stages), default=0)
        active, active_total = await self._active(names, lease_ms)
        now = time.monotonic()
        left = self._rate.left_seconds(now, views) if self.sealed else None
        self.board = Board(
            self._title, scope.run or "", views, sums, active, active_total, now - self._began,
            left, self.sealed, _notes(views, self._alive, self._at), int(now / DRAW_SECONDS),
            *self._spent, await self._depths(), self._rate.per_second(),
        )  # fmt: skip
        return self.board

    def redrawn(self) -> Board:
        """The same board a moment later: the clocks go on between two looks."""
        now = time.monotonic()
        board = self.board
        later = max(0.0, now - self._began - board.elapsed)
        active = [
            ActiveView(
                one.item, one.key, one.stage, one.seconds + later,
                self._texts.get(one.item, one.text),
            )
            for one in board.active
        ]  # fmt: skip
        return Board(
            board.title, board.run, board.stages, board.totals, active, board.active_total,
            now - self._began, board.left, board.sealed, board.notes, int(now / DRAW_SECONDS),
            board.tokens, board.cost, board.depths, board.rate,
        )  # fmt: skip

    async def _depths(self) -> list[DepthView]:
        """How far each depth is, if items lead to items and one run or pipeline is followed."""
        name = self.scope.pipeline
        known = None if name is None else self._flow.pipelines.get(name)
        if known is not None and known.spreads is None:
            return []
        read = self._flow.store.read
        if self.scope.run is not None:
            views = depth_views(await read("depths_of_run", run=self.scope.run))
        elif name is not None:
            views = depth_views(await read("counts_by_depth", pipeline=name))
        else:
            return []
        return views if len(views) > 1 else []

    async def begin(self, run: Run | None = None) -> None:
        """What has failed up to now is not news; the clock goes on from when the run began."""
        self._seen = await self._last()
        if run is not None:
            now = (await self._flow.store.read("now"))[0]["now"]
            self._began -= ((run.finished_at or now) - run.created_at) / 1000

    async def _last(self) -> int:
        return int((await self._flow.store.read("last_event"))[0]["seq"])

    async def failures(self) -> list[str]:
        """What failed since the last time, one line each; and what is tried again later, once for
        each reason."""
        last = await self._last()
        lines: list[str] = []
        more = 0
        async for event in self._flow.events(
            after=self._seen, pipeline=self.scope.pipeline, kinds=["failed", "retried", "released"]
        ):
            last = event.seq
            error = plain(event.data.get("error", ""), 200).removeprefix(f"{event.key} ")
            line = f"{event.stage}  {plain(event.key, 120)}: {error}"
            if event.kind == "failed" and len(lines) < LINES_MAX:
                lines.append(f"failed  {line}")
            elif event.kind == "failed":
                more += 1
            elif "delay_ms" in event.data:
                reason = (event.stage, event.data.get("code"))
                if reason not in self._told:
                    self._told.add(reason)
                    seconds = event.data["delay_ms"] / 1000
                    lines.append(f"later   {line} (again in {span(seconds)})")
        self._seen = last
        return [*lines, f"… and {more:,} more failed"] if more else lines

    async def _gate(self, run: str) -> list[Any]:
        """The gate's own item, which is no member of its run, as a row of counts."""
        rows = await self._flow.store.read("run", id=run)
        if not rows:
            return []
        self.sealed = bool(rows[0]["sealed"])
        self._spent = rows[0]["tokens"], rows[0]["cost"]
        if rows[0]["finished_at"] is not None and not rows[0]["open_items"]:
            self.finished.set()
        if rows[0]["gate_item"] is None:
            return []
        items = await self._flow.store.read("item", id=rows[0]["gate_item"])
        return [{**{name: row[name] for name in ("pipeline", "stage", "phase")}, "items": 1}
                for row in items]  # fmt: skip

    async def _active(
        self, pipelines: Sequence[str], lease_ms: int
    ) -> tuple[list[ActiveView], int]:
        """Who is being worked on, longest first, in every process."""
        read = self._flow.store.read
        now = (await read("now"))[0]["now"]
        held: list[Any] = []
        workers = await read("workers")
        working_here = self._flow.health() is not None
        self._alive = working_here or bool(living(workers, now, lease_ms))
        for worker in workers[-WORKERS_ASKED_MAX:]:
            if worker["leases"]:
                held += await read("held", worker=worker["id"])
        held = [row for row in held if row["pipeline"] in pipelines]
        held.sort(key=lambda row: (row["run"] != self.scope.run, row["claimed_at"], row["id"]))
        shown: list[ActiveView] = []
        for row in held[:ACTIVE_SHOWN_MAX]:
            text = self._texts.get(row["id"])
            if text is None:
                partial = await self._flow.partial(row["id"])
                text = "" if partial is None else partial[1][-TEXT_KEPT:]
            seconds = max(0, now - row["claimed_at"]) / 1000
            shown.append(ActiveView(row["id"], row["key"], row["stage"], seconds, text))
        ids = {row["id"] for row in held}
        self._texts = {item: text for item, text in self._texts.items() if item in ids}
        return shown, len(held)


def _notes(views: Sequence[StageView], alive: bool, at: str) -> list[str]:
    if not alive and any(view.at("ready") for view in views):
        return [f"no worker lives; start one: {worker_for({view.pipeline for view in views})}{at}"]
    paused = [view.name for view in views if view.paused and (view.at("ready") or view.coming)]
    return [f"stage {name} is paused; `onceflow resume {name}{at}`" for name in paused]


class Follower:
    """Shows a watcher's board until it is told to stop."""

    def __init__(self, flow: Flow, watcher: Watcher, *, quiet: bool) -> None:
        self._flow = flow
        self._watcher = watcher
        self._quiet = quiet
        self._fancy = not quiet and is_fancy(sys.stderr)
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._lines: list[str] = []
        self._warned = ""
        self._spoken = (-1, float("-inf"))
        self._blind = 0.0
        """When it was last said that the database cannot be seen; 0 while it can."""

    def say(self, text: str, style: str = "") -> None:
        """A line that stays, above the board."""
        if self._quiet:
            return
        text = masked(plain(text, 500))
        if self._live is None:
            remark(text)
        else:
            with suppress(OSError):
                self._console.print(text, style=style or None)

    def say_whole(self, text: str) -> None:
        """Lines that stay, above the board, as long as they are."""
        lines = "\n".join(
            " " * (len(line) - len(line.lstrip(" "))) + plain(line, 10_000)
            for line in masked(text).splitlines()
        )
        if self._live is None:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"{lines}\n")
                sys.stderr.flush()
        else:
            with suppress(OSError):
                self._console.print(lines, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A warning from the engine; too many of them are only counted, one again and again is
        said once."""
        if text != self._warned:
            self._warned = text
            self._lines.append(text)

    async def run(self, until: asyncio.Event) -> None:
        """Follow until then."""
        tasks = [asyncio.create_task(self._follow_texts())] if self._fancy else []
        try:
            if self._fancy:
                self._live = Live(
                    self._watcher.board, console=self._console, auto_refresh=False, transient=True,
                    redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop",
                )  # fmt: skip
                self._guarded(self._live.start)
            while not until.is_set():
                pause = await self._look()
                await self._pause(until, pause)
            await self._look()
        finally:
            for task in tasks:
                task.cancel()
            if self._live is not None:
                self._guarded(self._live.stop)
                self._live = None

    async def _look(self) -> float:
        """Look at the database and show it; how long to wait before the next look."""
        began = time.monotonic()
        try:
            await self._watcher.look()
            lines = [] if self._quiet else await self._watcher.failures()
        except OnceflowError as error:
            lines = []
            self._unseen(error)
        else:
            self._blind = 0.0
        took = time.monotonic() - began
        warnings, self._lines = self._lines, []
        for text in lines:
            self.say(text, "red")
        for text in warnings[:LINES_MAX]:
            self.say(text, "yellow")
        if len(warnings) > LINES_MAX:
            self.say(f"… and {len(warnings) - LINES_MAX:,} more warnings", "yellow")
        if self._fancy:
            self._draw()
        elif not self._quiet:
            self._speak()
        return max(LOOK_SECONDS, took * LOOK_SHARE)

    def _unseen(self, error: OnceflowError) -> None:
        """Say that there is nothing to show: at once, then now and then."""
        now = time.monotonic()
        if not self._blind or now - self._blind >= BLIND_SECONDS:
            self._blind = now
            self._lines.append(f"no progress to show at the moment: {error}")

    async def _pause(self, until: asyncio.Event, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not until.is_set() and (left := end - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, DRAW_SECONDS) if self._fancy else left):
                    await until.wait()
            if self._fancy:
                self._draw()

    def _draw(self) -> None:
        live = self._live
        if live is not None:
            self._guarded(lambda: live.update(self._watcher.redrawn(), refresh=True))

    def _guarded(self, show: Any) -> None:
        """A terminal that went away must not stop the work."""
        try:
            show()
        except (OSError, ValueError):
            self._fancy, self._quiet, self._live = False, True, None

    def _speak(self) -> None:
        """One plain line every 10 % or 10 s, if anything is new."""
        board = self._watcher.board
        tenth, at = int(board.totals.part * 10), time.monotonic()
        if not board.totals.items or (not board.totals.open and self._spoken[0] < 0):
            return
        if tenth > self._spoken[0] or at - self._spoken[1] >= PLAIN_SECONDS:
            self._spoken = (tenth, at)
            remark(board.line())

    async def _follow_texts(self) -> None:
        async for live in self._flow.live():
            text = live.data.get("text")
            if isinstance(text, str):
                self._watcher.stream(live.item, live.offset, text)


class Above(logging.Handler):
    """Log lines above the board, without tracebacks: those are for --verbose."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self._follower = follower

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {raised(record.exc_info[1])}"
        self._follower.warn(text)


class Whole(logging.Handler):
    """The whole log above the board."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self._follower = follower

    def emit(self, record: logging.LogRecord) -> None:
        self._follower.say_whole(self.format(record))
