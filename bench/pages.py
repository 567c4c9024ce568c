"""`python -m bench.pages`: pages a second, beside bare aiohttp, Scrapy and a plain loop.

    fetch     2 kB pages from nginx: `Http.page` (robots.txt, limits, address rules and all) beside
              bare aiohttp and Scrapy, the same number at once
    whole     documentation pages of real length: fetch, extract, summarize with the embedded model,
              then one digest. The pipeline on SQLite (all cores), beside one process that does the
              same in a loop
    share     how much CPU the whole takes beyond the same handlers called without an engine, in one
              process, all pages in one way and then in the other

Each figure comes from a process of its own. The contestants take turns, every second time in the
other order, and the median of the turns' ratios counts: a machine that others use changes its pace
from one minute to the next, and only neighbours in time can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.child import NOT_INSTALLED
from tests.support import docs, nginx

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 8
FETCHES = 20_000
SITE_PAGES = 5_000
WHOLE_PAGES = 300
TURNS = 7
SECONDS_MAX = 600.0

WORDS = "The harbour master counts the boats at dawn, and writes the number into a long book. "


@dataclass(frozen=True, slots=True)
class Figure:
    """What one contestant did in one turn."""

    name: str
    pages_per_second: float
    cpu_ms: float  # of a page, in all its processes
    load: float  # before it
    others: float  # cores that everybody else used during it, nginx among them
    engine_ms: float = 0.0  # of a page's CPU, where that was measured


Figures = dict[str, list[Figure]]
"""By contestant, a figure for each turn."""


def main() -> int:
    options = _options()
    share = 10 if options.quick else 1
    figures: Figures = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="onceflow-pages-") as text:
        folder = Path(text)
        try:
            if "fetch" in options.only:
                site = _small_site(folder / "small")
                with nginx.serving(
                    site, folder / "nginx", host="127.0.0.1", logged=False
                ) as server:
                    task = {"base": server.url(), "pages": SITE_PAGES, "n": FETCHES // share}
                    names = ("fetch_aiohttp", "fetch_onceflow", "fetch_scrapy")
                    _turns(names, task, options.turns, figures, missing)
            if "whole" in options.only:
                with nginx.serving(docs.folder(), folder / "docs", host="127.0.0.1") as server:
                    paths = [str(path) for path in docs.pages()]
                    step = max(1, len(paths) * share // WHOLE_PAGES)
                    task = {"base": server.url(), "paths": paths[::step], "folder": text}
                    names = ("whole_loop", "whole_onceflow", "whole_share")
                    _turns(names, task, options.turns, figures, missing)
        except (nginx.Unavailable, docs.Unavailable) as reason:
            print(reason, file=sys.stderr)
            return NOT_INSTALLED
    print(_report(figures, missing))
    if options.json:
        rows = {name: [asdict(one) for one in turns] for name, turns in figures.items()}
        options.json.write_text(
            json.dumps({"machine": machine.description(), "rows": rows}, indent=1)
        )
    return 0


def _small_site(folder: Path) -> Path:
    folder.mkdir()
    for number in range(SITE_PAGES):
        body = f"<p>{WORDS * 22}</p><a href='/{(number + 1) % SITE_PAGES}.html'>next</a>"
        head = f"<html><head><title>Page {number}</title></head>"
        (folder / f"{number}.html").write_text(f"{head}<body>{body}</body></html>")
    return folder


def _turns(
    names: tuple[str, ...],
    task: dict[str, Any],
    turns: int,
    figures: Figures,
    missing: dict[str, str],
) -> None:
    for turn in range(turns):
        for name in names if turn % 2 == 0 else reversed(names):
            if name in missing:
                continue
            load, began, busy = os.getloadavg()[0], time.perf_counter(), _busy_seconds()
            done = subprocess.run(
                [sys.executable, "-m", "bench.page_child",
                 json.dumps({**task, "name": name, "turn": turn})],
                cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                missing[name] = (done.stderr.strip().splitlines() or ["it failed"])[-1]
                print(f"{name}: {missing[name]}", file=sys.stderr)
                continue
            answer = json.loads(done.stdout.strip().splitlines()[-1])
            others = _busy_seconds() - busy - answer["cpu_seconds"]
            others = max(0.0, others / (time.perf_counter() - began))
            found = Figure(
                name, answer["pages_per_second"], answer["cpu_ms"], load, others,
                answer.get("engine_ms", 0.0),
            )  # fmt: skip
            print(
                f"turn {turn + 1}: {name:15} {found.pages_per_second:8,.1f} pages/s,"
                f" {found.cpu_ms:7.3f} ms CPU a page, load {load:.1f},"
                f" others used {others:.1f} cores",
                file=sys.stderr,
            )
            figures.setdefault(name, []).append(found)


def _busy_seconds() -> float:
    """CPU time that all processes of this machine have used since it started."""
    user, nice, system, _, _, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _report(figures: Figures, missing: dict[str, str]) -> str:
    lines = ["| | Onceflow | beside | ratio | wanted | |", "|---|---|---|---|---|---|"]

    def pairs(ours: str, other: str) -> list[tuple[Figure, Figure]]:
        return list(zip(figures.get(ours, ()), figures.get(other, ()), strict=False))

    def row(title: str, ours: str, other: str, wanted: float) -> None:
        turns = pairs(ours, other)
        if not turns or {ours, other} & missing.keys():
            why = missing.get(ours) or missing.get(other) or "not run"
            lines.append(f"| {title} | | | | {wanted:.3g} x | missing: {why} |")
            return
        a = median(one.pages_per_second for one, _ in turns)
        b = median(one.pages_per_second for _, one in turns)
        ratio = median(one.pages_per_second / two.pages_per_second for one, two in turns)
        met = "met" if ratio >= wanted else "not met"
        lines.append(
            f"| {title} | {a:,.0f}/s | {b:,.0f}/s | {ratio:.2f} x | {wanted:.3g} x | {met} |"
        )

    row(f"fetch, {AT_ONCE} at once: bare aiohttp", "fetch_onceflow", "fetch_aiohttp", 0.8)
    row(f"fetch, {AT_ONCE} at once: Scrapy", "fetch_onceflow", "fetch_scrapy", 10)
    row("fetch, extract, summarize: a loop", "whole_onceflow", "whole_loop", 1.7)
    if turns := figures.get("whole_share"):
        whole = median(one.cpu_ms for one in turns)
        engine = median(one.engine_ms for one in turns)
        shares = sorted(one.engine_ms / one.cpu_ms for one in turns)
        share = median(shares)
        met = "met" if share < 0.05 else "not met"
        lines.append(
            f"| engine's share of the CPU | {engine:.2f} ms | of {whole:.1f} ms | {share:.1%}"
            f" ({shares[0]:.1%} to {shares[-1]:.1%}) | < 5 % | {met} |"
        )
    every = [one for turns in figures.values() for one in turns]
    loads = [one.load for one in every] or [0.0]
    most = max((one.others for one in every), default=0.0)
    weather = f"load {min(loads):.1f} to {max(loads):.1f} before the turns"
    weather += f", others used up to {most:.1f} cores in them"
    return "\n".join([*lines, "", f"{weather}; {machine.description()}"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description="Pages a second.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the pages")
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N")
    parser.add_argument("--only", nargs="+", choices=("fetch", "whole"), default=("fetch", "whole"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
