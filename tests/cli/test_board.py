"""What a live view shows, worked out from counts and drawn at any width."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import onceflow
from onceflow import StoreUnavailable
from onceflow.commands import follow
from onceflow.commands.board import (
    ActiveView,
    Board,
    Rate,
    StageView,
    segments,
    stage_views,
    totals,
)
from onceflow.commands.follow import Follower, Scope, Watcher

STAGES = [
    {"pipeline": "news", "stage": name, "position": position, "is_gate": name == "digest",
     "paused_at": None}
    for position, name in enumerate(("fetch", "parse", "write", "digest"))
]  # fmt: skip


def counts(*rows: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [
        {"pipeline": "news", "stage": stage, "phase": phase, "items": items}
        for stage, phase, items in rows
    ]


def views(*rows: tuple[str, str, int]) -> list[StageView]:
    return stage_views(counts(*rows), STAGES, {}, ["news"])


FULL = (
    ("fetch", "ready", 10), ("fetch", "active", 4), ("fetch", "failed", 6), ("parse", "waiting", 2),
    ("parse", "active", 3), ("write", "ready", 5), ("write", "done", 30), ("digest", "ready", 1),
)  # fmt: skip


def test_a_stage_knows_what_is_past_in_and_before_it() -> None:
    fetch, parse, write, digest = views(*FULL)

    assert (fetch.passed, fetch.coming, fetch.total) == (40, 0, 60)
    assert (parse.passed, parse.coming, parse.total) == (35, 14, 54)
    assert (write.passed, write.coming, write.total) == (30, 19, 54)
    assert (digest.passed, digest.coming, digest.total) == (0, 0, 1)


def test_the_gate_is_not_counted_as_an_item() -> None:
    sums = totals(views(*FULL))

    assert (sums.items, sums.done, sums.failed, sums.open, sums.settled) == (60, 30, 6, 24, 36)
    assert sums.part == (30 + 6 + 5 * (1 / 3) + 5 * (2 / 3)) / 60


def test_stages_stand_in_the_order_of_the_way() -> None:
    ordered = stage_views([], STAGES, {"news": ["write", "fetch", "parse"]}, ["news"])

    assert [view.name for view in ordered] == ["write", "fetch", "parse", "digest"]


def test_the_time_left_is_that_of_the_slowest_stage() -> None:
    rate = Rate()

    assert rate.left_seconds(0, views(("fetch", "ready", 100))) is None
    begun = (("fetch", "ready", 60), ("parse", "ready", 20), ("write", "ready", 20))
    assert rate.left_seconds(10, views(*begun)) is None, "write has finished none yet"
    later = (("fetch", "ready", 20), ("parse", "ready", 50), ("write", "done", 30))
    assert rate.left_seconds(20, views(*later)) == pytest.approx(70 * 20 / 30)
    assert rate.left_seconds(21, views(("write", "done", 100))) == 0


@pytest.mark.parametrize(
    ("shares", "total", "width", "cells"),
    [((0, 0, 0), 0, 10, [0, 0, 0]), ((10, 0, 0), 10, 10, [10, 0, 0]),
     ((999, 1, 0), 1000, 10, [9, 1, 0]), ((1, 1, 1), 1000, 10, [0, 1, 1]),
     ((5, 5, 5), 15, 8, [2, 2, 2])],
)  # fmt: skip
def test_a_bar_shows_the_few_and_never_looks_finished_early(
    shares: tuple[int, ...], total: int, width: int, cells: list[int]
) -> None:
    assert segments(shares, total, width) == cells


def drawn(board: Board, width: int, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    console.print(board)
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(encoding).splitlines()


def full_board() -> Board:
    stages = views(*FULL)
    active = [
        ActiveView(n, f"https://a.test/{'long/' * 20}page-{n}\x1b[31m", "write", 3.2, "漢字 " * 50)
        for n in range(12)
    ]
    return Board(
        "news", "01abc", stages, totals(stages), active, 12, 61.4, 12.3, notes=["something\x07"]
    )


@pytest.mark.parametrize("width", [20, 40, 60, 100, 200])
@pytest.mark.parametrize("board", [full_board(), Board("news")], ids=["full", "empty"])
def test_every_row_fits_its_line_at_any_width(board: Board, width: int) -> None:
    from rich.cells import cell_len

    lines = drawn(board, width)

    assert max(cell_len(line) for line in lines) <= width
    assert len(lines) == 1 + (4 + 8 + 1 + 1 if board.stages else 0)
    assert not any("\x1b" in line or "\x07" in line for line in lines)


def test_a_full_board_names_what_matters() -> None:
    text = "\n".join(drawn(full_board(), 100))

    assert "news 01abc · 30 of 60 done · 6 failed · 1 min 2 s · about 13 s left" in text
    assert "40/60  4 active  6 failed  10 ready" in text
    assert "page-3" in text
    assert "…漢字" in text or "字 漢字" in text
    assert "and 4 more" in text


def test_a_terminal_without_unicode_gets_ascii() -> None:
    "\n".join(drawn(Board("news", "", views(*FULL), totals(views(*FULL))), 80, "ascii")).encode(
        "ascii"
    )


def test_the_total_of_a_run_that_is_still_added_to_is_marked() -> None:
    stages = views(("fetch", "ready", 5))

    assert "0 of 5+ done" in drawn(Board("news", "", stages, totals(stages), sealed=False), 80)[0]


def test_the_plain_line_says_it_all() -> None:
    assert full_board().line() == (
        "news 01abc: 36 of 60 settled, 68 % of the way, 6 failed, 7 active, 15 ready, 2 waiting, "
        "1 min 1 s, about 13 s left, something"
    )


async def test_a_database_that_cannot_be_seen_is_said_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = onceflow.open(tmp_path / "onceflow.db")
    watcher = Watcher(flow, Scope(), "news")
    follower = Follower(flow, watcher, quiet=False)
    now = [1000.0]
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def unseen() -> None:
        raise StoreUnavailable("nobody answers")

    async def said(seconds: float) -> int:
        for _ in range(int(seconds * 4)):
            await follower._look()
            now[0] += 0.25
        return capsys.readouterr().err.count("no progress to show at the moment: nobody answers")

    monkeypatch.setattr(watcher, "look", unseen)
    assert await said(12) == 2, "at once, and after ten seconds"
    assert await said(24) == 2

    async def seen() -> None: ...

    async def no_failures() -> list[str]:
        return []

    monkeypatch.setattr(watcher, "look", seen)
    monkeypatch.setattr(watcher, "failures", no_failures)
    assert await said(1) == 0
    monkeypatch.setattr(watcher, "look", unseen)
    assert await said(1) == 1, "it is gone again"
