"""Deterministic simulation: the real engine, several processes, everything going wrong, by a seed.

    python -m onceflow.testing.simulate --seeds 500
    python -m onceflow.testing.simulate --seed 17 --trace

Managers on one store are played on a loop with virtual time. For a while calls fail, replies get
lost, processes crash, stop and go on, networks part, clocks step, handlers misbehave and operators
interfere. Then all is healed, and within a bounded time everything must have come to rest. The
committed history is judged after every commit, and the whole of it by `audit` at the end.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from onceflow.testing.simcheck import BRANCHES
from onceflow.testing.simloop import LOOP_BEGIN
from onceflow.testing.simworld import World

CHUNK = 25
"""Seeds that one process plays before it reports."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    violations: list[str]
    branches: Counter[str]
    trace: str
    """A hash of everything that happened: the same for the same seed and program."""
    seconds: float
    """How long it was, in virtual time."""


@contextmanager
def _quiet(show: Callable[[str], object] | None) -> Iterator[None]:
    """The engine's log goes into a trace or nowhere."""
    log = logging.getLogger("onceflow")
    before = log.level, log.propagate, log.handlers[:]
    log.handlers[:] = [logging.NullHandler() if show is None else _Shown(show)]
    log.setLevel(logging.CRITICAL if show is None else logging.INFO)
    log.propagate = False
    gc.disable()  # quicker, and nothing is tidied up at a time that the seed did not choose
    try:
        yield
    finally:
        gc.enable()
        log.level, log.propagate, log.handlers[:] = before


class _Shown(logging.Handler):
    def __init__(self, show: Callable[[str], object]) -> None:
        super().__init__()
        self._show_line = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show_line(f"          {record.levelname.lower()}: {record.getMessage()}\n")


def play(
    seed: int,
    *,
    show: Callable[[str], object] | None = None,
    world: Callable[..., World] = World,
) -> Outcome:
    """Simulate one seed from beginning to end."""
    with _quiet(show):
        one = world(seed, show)
        with one.loop.as_the_time():
            try:
                one.loop.run_until_complete(one.run())
            except Exception as error:  # whatever it is, the seed must be told
                one.journal.violate(f"{type(error).__name__}: {error}")
            journal = one.journal
            outcome = Outcome(
                seed, list(journal.violations), Counter(journal.branches), journal.trace,
                one.loop.time() - LOOP_BEGIN,
            )  # fmt: skip
            one.end()
    return outcome


def _play_some(seeds: list[int]) -> list[Outcome]:
    outcomes = [play(seed) for seed in seeds]
    gc.collect()
    return outcomes


def play_many(seeds: range, jobs: int) -> Iterator[Outcome]:
    """Simulate many seeds, in several processes if asked so; in the order of the seeds."""
    chunks = [list(seeds[at : at + CHUNK]) for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield from _play_some(chunk)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for outcomes in pool.map(_play_some, chunks):
            yield from outcomes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m onceflow.testing.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds to play")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, help="play this one, and print its trace's hash")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument(
        "--require-all-branches", action="store_true", help="fail if a rare branch was not reached"
    )
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        outcome = play(chosen.seed, show=sys.stdout.write if chosen.trace else None)
        _complain(outcome)
        print(f"seed {outcome.seed}: trace {outcome.trace}, {outcome.seconds:.0f} virtual seconds")
        return int(bool(outcome.violations))
    began = time.monotonic()
    branches: Counter[str] = Counter()
    broken = virtual = 0
    for outcome in play_many(range(chosen.start, chosen.start + chosen.seeds), chosen.jobs):
        branches += outcome.branches
        virtual += round(outcome.seconds)
        if outcome.violations:
            broken += 1
            _complain(outcome)
    missing = [branch for branch in BRANCHES if not branches[branch]]
    for branch in BRANCHES:
        print(f"{branches[branch]:>9}  {branch}")
    print(
        f"{chosen.seeds} seeds, {broken} with violations; {len(BRANCHES) - len(missing)} of "
        f"{len(BRANCHES)} rare branches reached; {virtual:,} virtual seconds in "
        f"{time.monotonic() - began:.0f} s"
    )
    return int(broken > 0 or (chosen.require_all_branches and bool(missing)))


def _complain(outcome: Outcome) -> None:
    for violation in outcome.violations:
        print(f"seed {outcome.seed}: {violation}")
    if outcome.violations:
        print(f"  replay: python -m onceflow.testing.simulate --seed {outcome.seed} --trace")


if __name__ == "__main__":
    sys.exit(main())
