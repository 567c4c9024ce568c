"""`python -m bench`: everything in one run. See `docs/benchmarks.md`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench import machine, report
from bench.plan import KINDS, ROWS, STORES, Row
from bench.report import Line
from bench.run import REPEATS, Bench, Missing, Outcome, Run

CLAIM_ROWS = (10_000, 5_000_000)
MEMORY_ITEMS = 1_000_000
QUICK_SHARE = 10

MEASURES = ("rate", "pipeline3", "pickup", "pickup_other", "idle", "claim", "memory")


def main() -> int:
    options = _options()
    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    outcomes: list[Outcome] = []
    lines: list[Line] = []
    others: list[Run] = []
    # Whoever stops a long run wants to see what it found so far.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="onceflow-bench-") as folder:
            bench = Bench(Path(folder), say, options.beside)
            with bench.running():
                for row in ROWS:
                    if row.measure in options.only and row.store in options.stores:
                        row = _without(row, options.without)
                        row = _beside(row) if options.beside else row
                        outcomes.append(bench.contest(row, options.quick, options.repeat))
                        lines.append(report.contest_line(outcomes[-1]))
                rates = [outcome for outcome in outcomes if outcome.row.more_is_better]
                lines += [report.cpu_line(outcome) for outcome in rates]
                for line in _growth(bench, options, others):
                    lines.append(line)
    except KeyboardInterrupt:
        say("stopped; this is what was measured until then")
    runs = [run for outcome in outcomes for run in outcome.runs] + others
    minutes = (time.perf_counter() - began) / 60
    print(report.details(outcomes))
    print()
    print(report.table(lines))
    print()
    print(f"{report.weather_line(runs)}; {minutes:.0f} min; {machine.description()}")
    if options.without:
        print(f"left out: {', '.join(options.without)}")
    if options.json:
        options.json.write_text(json.dumps(_document(options, outcomes, others, lines), indent=1))
    return 0


def _without(row: Row, left_out: list[str]) -> Row:
    entries = tuple(entry for entry in row.entries if entry.contestant not in left_out)
    return replace(row, entries=entries)


def _beside(row: Row) -> Row:
    """The other checkout comes right after this one, with the same settings."""
    own = next(entry for entry in row.entries if entry.kind == "onceflow")
    others = (entry for entry in row.entries if entry is not own)
    return replace(row, entries=(own, replace(own, contestant="before"), *others))


def _growth(bench: Bench, options: argparse.Namespace, others: list[Run]) -> Iterator[Line]:
    """What must not grow: claim time with the table, memory with the items."""
    share = QUICK_SHARE if options.quick else 1
    rows = (CLAIM_ROWS[0], CLAIM_ROWS[1] // share)
    items = MEMORY_ITEMS // share
    for store in options.stores:
        try:
            if "claim" in options.only:
                others.append(bench.claim_sizes(store, rows))
                yield report.claim_line(store, others[-1])
            if "memory" in options.only:
                others.append(bench.memory(store, items))
                yield report.memory_line(store, others[-1])
        except Missing as reason:
            bench.say(f"  {reason}")
            yield report.missing_line("claim p50, memory", store, str(reason))


def _document(
    options: argparse.Namespace,
    outcomes: list[Outcome],
    others: list[Run],
    lines: list[Line],
) -> dict[str, Any]:
    return {
        "machine": machine.description(),
        "quick": options.quick,
        "table": report.as_json(lines),
        "contests": [outcome.as_json() for outcome in outcomes],
        "growth": [asdict(run) for run in others],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Onceflow beside raw SQL and its peers."
    )
    parser.add_argument("--quick", action="store_true", help="about a tenth of the items")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every single figure, as JSON")
    parser.add_argument("--repeat", type=int, default=REPEATS, metavar="N", help="runs of each")
    parser.add_argument(
        *("--only", "-o"), nargs="+", choices=MEASURES, default=MEASURES, help="these rows only"
    )
    others = [name for name, kind in KINDS.items() if kind not in ("onceflow", "before")]
    parser.add_argument(
        "--without", nargs="+", choices=others, default=[], metavar="NAME",
        help=f"leave out some of {', '.join(others)}",
    )  # fmt: skip
    parser.add_argument(
        "--beside", type=Path, metavar="DIR",
        help="measure another checkout of Onceflow, too (git worktree add DIR COMMIT)",
    )  # fmt: skip
    parser.add_argument(
        "--stores", nargs="+", choices=STORES, default=STORES, help="these stores only"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
