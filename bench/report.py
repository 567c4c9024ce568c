"""Turns runs into figures, figures into ratios, ratios into a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.measures import Rate
from bench.plan import KINDS, Kind, Row, Setting, Store
from bench.run import Outcome, Run, describe, figure

CPU_MS_MAX = 0.1
CLAIM_GROWTH_MAX = 1.3
IDLE_PERCENT_MAX = 1.0
MEMORY_GROWTH_MAX_MB = 5.0
WARM_UP_SHARE = 0.2
"""Memory is judged after this share of the items: pools, caches and statements are made by then."""

HEAD = ("measure", "store", "Onceflow", "best peer", "ratio", "wanted", "", "raw SQL", "ratio")


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of a contestant's runs with its best setting."""

    contestant: str
    setting: Setting
    value: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table, with everything as text, and whether a goal was met."""

    cells: tuple[str, ...]
    met: bool | None = None


def best_figures(outcome: Outcome) -> list[Figure]:
    """Each contestant's figure with the setting that was best for it, the best first."""
    values: dict[tuple[str, str], list[float]] = {}
    settings: dict[tuple[str, str], Setting] = {}
    for run in outcome.runs:
        key = (run.contestant, describe(run.setting))
        values.setdefault(key, []).append(figure(outcome.row, run.answer))
        settings[key] = run.setting
    figures = [
        Figure(key[0], settings[key], statistics.median(each), min(each), max(each), len(each))
        for key, each in values.items()
    ]
    figures.sort(key=lambda one: one.value, reverse=outcome.row.more_is_better)
    best: dict[str, Figure] = {}
    for one in figures:
        best.setdefault(one.contestant, one)
    return list(best.values())


def contest_line(outcome: Outcome) -> Line:
    row = outcome.row
    figures = best_figures(outcome)
    own = _first(figures, "onceflow")
    peer = _first(figures, "peer")
    raw = _first(figures, "raw")
    ratio = own.value / peer.value if own and peer else None
    met = row.goal.met(ratio) if row.goal and ratio is not None else None
    wanted = str(row.goal) if row.goal else ""
    if row.measure == "idle":
        wanted = f"≤ {IDLE_PERCENT_MAX:g} %"
        met = own.value <= IDLE_PERCENT_MAX if own else None
    return Line(
        (
            row.title,
            row.store,
            _cell(own, row, with_name=False) if own else _why_missing(outcome),
            _cell(peer, row) if peer else "none",
            _ratio(ratio),
            wanted,
            _verdict(met),
            _cell(raw, row, with_name=False) if raw else "",
            _ratio(own.value / raw.value if own and raw else None),
        ),
        met,
    )


def cpu_line(outcome: Outcome) -> Line:
    """Python CPU per transition, taken from the runs of a rate."""
    row = outcome.row
    figures = best_figures(outcome)
    own = _first(figures, "onceflow")
    spent = {one.contestant: _cpu(outcome, one) for one in figures}
    peers = [one for one in figures if KINDS[one.contestant] == "peer"]
    least = min(peers, key=lambda one: spent[one.contestant], default=None)
    met = spent["onceflow"] <= CPU_MS_MAX if own else None
    return Line(
        (
            f"CPU per transition, {row.title.split()[0]}",
            row.store,
            f"{spent['onceflow']:.3f} ms" if own else _why_missing(outcome),
            f"{spent[least.contestant]:.3f} ms ({least.contestant})" if least else "none",
            _ratio(spent["onceflow"] / spent[least.contestant] if own and least else None),
            f"≤ {CPU_MS_MAX} ms",
            _verdict(met),
            "",
            "",
        ),
        met,
    )


def claim_line(store: Store, run: Run) -> Line:
    small, large = run.answer["small"], run.answer["large"]
    times = [1000 * statistics.median(one["seconds"]) for one in (small, large)]
    growth = times[1] / times[0]
    met = growth <= CLAIM_GROWTH_MAX
    return Line(
        (
            f"claim p50, {large['rows']:,} : {small['rows']:,} items",
            store,
            f"{times[1]:.2f} : {times[0]:.2f} ms",
            "",
            _ratio(growth),
            f"≤ {CLAIM_GROWTH_MAX} x",
            _verdict(met),
            "",
            "",
        ),
        met,
    )


def memory_line(store: Store, run: Run) -> Line:
    items, rss = run.answer["items"], run.answer["rss_bytes"]
    growth_mb, per_item = memory_growth(items, rss)
    met = growth_mb <= MEMORY_GROWTH_MAX_MB
    return Line(
        (
            f"memory over {run.n:,} items",
            store,
            f"{rss[-1] / 1e6:.0f} MB, {growth_mb:+.1f} MB ({per_item:+.1f} B/item)",
            "",
            "",
            f"≤ {MEMORY_GROWTH_MAX_MB:+g} MB",
            _verdict(met),
            "",
            "",
        ),
        met,
    )


def memory_growth(items: Sequence[int], rss: Sequence[int]) -> tuple[float, float]:
    """By the line of best fit after the warm-up: MB in all, and bytes per item."""
    warm = [
        (at, size) for at, size in zip(items, rss, strict=True) if at >= WARM_UP_SHARE * items[-1]
    ]
    slope = statistics.linear_regression([at for at, _ in warm], [size for _, size in warm]).slope
    return slope * (warm[-1][0] - warm[0][0]) / 1e6, slope


def missing_line(title: str, store: Store, why: str) -> Line:
    return Line((title, store, why, "", "", "", "not measured", "", ""))


def table(lines: Sequence[Line]) -> str:
    cells = [HEAD, *(line.cells for line in lines)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
    texts = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([texts[0], rule, *texts[1:]])


def details(outcomes: Sequence[Outcome]) -> str:
    """Every contestant's figure, so that nobody has to trust the choice of the best."""
    blocks = []
    for outcome in outcomes:
        row = outcome.row
        lines = [f"{row.title}, {row.store} ({row.unit})"]
        for one in best_figures(outcome):
            spread = f"{_number(one.low)} to {_number(one.high)}" if one.runs > 1 else "one run"
            note = " (a bare queue)" if KINDS[one.contestant] == "queue" else ""
            lines.append(
                f"  {one.contestant + note:<28}{_number(one.value):>10}   {spread:<20} "
                f"{describe(one.setting)}"
            )
        lines += [f"  {name:<28}{why}" for name, why in outcome.missing.items()]
        lines += _beside(outcome)
        lines += _heats(outcome)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _beside(outcome: Outcome) -> list[str]:
    """This checkout's figure, and the CPU it takes, by those of the other one."""
    figures = best_figures(outcome)
    own, before = _first(figures, "onceflow"), _first(figures, "before")
    if own is None or before is None:
        return []
    text = f"  beside the other checkout: {_ratio(own.value / before.value)}"
    if outcome.row.more_is_better:
        spent = [_cpu(outcome, one) for one in (own, before)]
        text += f", CPU a transition {_ratio(spent[0] / spent[1])}"
    return [text]


def _cpu(outcome: Outcome, one: Figure) -> float:
    """Python CPU a transition, in ms, over a contestant's runs with its best setting."""
    return statistics.median(
        Rate(**run.answer).cpu_ms_per_transition
        for run in outcome.runs
        if (run.contestant, run.setting) == (one.contestant, one.setting)
    )


def _heats(outcome: Outcome) -> list[str]:
    """The settings that were tried on fewer items, to find each contestant's best."""
    tried: dict[str, list[str]] = {}
    for run in outcome.heats:
        text = f"{describe(run.setting)}: {_number(figure(outcome.row, run.answer))}"
        tried.setdefault(f"{run.contestant}, n = {run.n:,}", []).append(text)
    return [f"  tried: {whose}: {'; '.join(texts)}" for whose, texts in tried.items()]


def weather_line(runs: Sequence[Run]) -> str:
    if not runs:
        return "nothing was measured"
    loads = [run.weather.load for run in runs]
    flushes = [run.weather.fsync_ms for run in runs]
    return (
        f"load {min(loads):.1f} to {max(loads):.1f}, "
        f"fsync {statistics.median(flushes):.2f} ms ({min(flushes):.2f} to {max(flushes):.2f})"
    )


def as_json(lines: Sequence[Line]) -> list[Mapping[str, Any]]:
    names = ("measure", "store", "onceflow", "peer", "peer_ratio", "wanted", "verdict", "raw")
    return [
        {**dict(zip((*names, "raw_ratio"), line.cells, strict=True)), "met": line.met}
        for line in lines
    ]


def _first(figures: Sequence[Figure], kind: Kind) -> Figure | None:
    return next((one for one in figures if KINDS[one.contestant] == kind), None)


def _cell(one: Figure, row: Row, with_name: bool = True) -> str:
    text = f"{_number(one.value)} {row.unit}" if row.measure != "idle" else f"{one.value:.2g} %"
    if not with_name:
        return text
    setting = describe(one.setting) if one.setting else ""
    return f"{text} ({one.contestant}{', ' + setting if setting else ''})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} x"


def _verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "NOT MET"


def _why_missing(outcome: Outcome) -> str:
    return outcome.missing.get("onceflow", "not measured")
