"""What each of the engine's optimisations buys: the same work with one of them off.

    python -m bench.parts [--turns 3] [--stores postgresql sqlite]

Seconds and CPU are ratios to the engine as it is, medians over the turns; above 1 is slower
without.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onceflow
from bench.contestants.onceflow import noop
from bench.run import ROOT, Bench
from onceflow import Pipeline, Stage
from onceflow.engine import exchange
from onceflow.engine.scheduler import Plan, Scheduler

ITEMS = {1: 20_000, 3: 5_000}
PROCESSORS = 1000


def _one_slot() -> None:
    exchange.SLOTS = 1


def _not_on_at_once() -> None:
    Scheduler.reserve_next = lambda *_: False  # type: ignore[method-assign]


def _whole_pool() -> None:
    Plan.claim_most = property(lambda plan: len(plan.pool.processors))  # type: ignore[assignment,method-assign]


def _alone_in_add() -> None:
    add = exchange.Exchange.add

    async def plainly(self: exchange.Exchange, request: Any, may_claim: bool) -> Any:
        return await add(self, request, False)

    exchange.Exchange.add = plainly  # type: ignore[method-assign]


PARTS: dict[str, tuple[Callable[[], None] | None, str, object]] = {
    "as it is": (None, "", None),
    "one exchange at a time": (_one_slot, "two under way", exchange.Exchange.turn),
    "no going on": (_not_on_at_once, "on to the next stage in the commit", Scheduler.reserve_next),
    "claims of a whole pool": (_whole_pool, "claims of half a pool", Plan.claim_most.fget),
    "no claim in add": (
        _alone_in_add, "a claim along with an add", exchange.Exchange._add_and_claim,
    ),
}  # fmt: skip
"""By what is off: how, what it is called, and its code."""


async def _work_off(url: str, stages: int) -> tuple[float, float]:
    count = ITEMS[stages]
    pipeline = Pipeline(
        "parts", *[Stage(f"s{at}", noop, processors=PROCESSORS) for at in range(stages)]
    )
    async with onceflow.open(url, pipeline) as flow:
        await flow.add(pipeline, [f"item {at}" for at in range(count)])
        began, cpu = time.perf_counter(), time.process_time()
        await flow.drain()
        took = time.perf_counter() - began, time.process_time() - cpu
        assert await flow.counts(pipeline) == {"completed": count}
        return took


async def _pick_up(url: str) -> tuple[float, float]:
    started = asyncio.Event()

    async def ping(work: onceflow.Work) -> None:
        started.set()

    pipeline = Pipeline("pings", Stage("ping", ping))
    times = []
    async with onceflow.open(url, pipeline) as flow:
        flow.start()
        for at in range(60):
            await asyncio.sleep(0.03)
            started.clear()
            began = time.perf_counter()
            adding = asyncio.create_task(flow.add(pipeline, [f"ping {at}"]))
            await started.wait()
            times.append(time.perf_counter() - began)
            await adding
    return statistics.median(times), 1.0


def _child(part: str, measure: str, url: str) -> None:
    turn_off = PARTS[part][0]
    if turn_off is not None:
        turn_off()
    work = _pick_up(url) if measure == "pick-up" else _work_off(url, int(measure))
    print(json.dumps(asyncio.run(work)))


def main() -> None:
    if sys.argv[1:2] == ["child"]:
        _child(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(prog="python -m bench.parts")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--stores", nargs="+", default=["postgresql", "sqlite"])
    options = parser.parse_args()
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="onceflow-parts-") as folder:
        bench = Bench(Path(folder), lambda text: None)
        with bench.running():
            for _ in range(options.turns):
                for store in options.stores:
                    for measure in ("1", "3", "pick-up"):
                        for part in PARTS:
                            with bench.database(store) as url:
                                answer = _run(part, measure, url)
                            found.setdefault((store, measure, part), []).append(answer)
    for part, (_, name, code) in PARTS.items():
        lines = 0 if code is None else len(inspect.getsource(code).splitlines())  # type: ignore[arg-type]
        cells = [f"{part:<24}", f"{name:<36}", f"{lines:>3} lines"]
        for store in options.stores:
            for measure in ("1", "3", "pick-up"):
                base = found[store, measure, "as it is"]
                own = found[store, measure, part]
                ratios = [
                    statistics.median(one[at] for one in own)
                    / statistics.median(one[at] for one in base)
                    for at in (0, 1)
                ]
                figures = f"{ratios[0]:.2f}" if measure == "pick-up" else "/".join(
                    f"{ratio:.2f}" for ratio in ratios
                )  # fmt: skip
                cells.append(f"{store[:2]} {measure}: {figures}")
        print("  ".join(cells))


def _run(part: str, measure: str, url: str) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.parts", "child", part, measure, url],
        cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True,
        text=True, timeout=120, check=True,
    )  # fmt: skip
    seconds, cpu = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds, cpu


if __name__ == "__main__":
    main()
