"""Runs the contests: a fresh database and a process of its own for each measurement."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import machine
from bench.child import NOT_INSTALLED
from bench.plan import Entry, Row, Setting, Store
from tests.support import postgres

REPEATS = 3
SLOW_SECONDS = 20.0
"""What takes longer than this is not measured again in the same row."""
HEAT_SHARE = 0.1
"""Settings of one contestant are first tried on this share of the items..."""
HEAT_KEEPS = 0.7
"""...and those that reach this share of the best one's figure are measured on all of them."""
CONTEST_SECONDS_MAX = 400.0
GROWTH_SECONDS_MAX = 1800.0

# As a server has them that nobody tuned; fsync and synchronous_commit are on.
STOCK: Mapping[str, str | int] = {"shared_buffers": "128MB", "max_connections": 100}

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement, and the weather when it began."""

    contestant: str
    setting: Setting
    n: int
    answer: dict[str, Any]
    took_seconds: float
    weather: machine.Weather


@dataclass(slots=True)
class Outcome:
    """All that one row of the plan gave."""

    row: Row
    runs: list[Run] = field(default_factory=list)
    heats: list[Run] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Contestants without a figure, and why."""

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.row.title,
            "store": self.row.store,
            "measure": self.row.measure,
            "runs": [asdict(run) for run in self.runs],
            "heats": [asdict(run) for run in self.heats],
            "missing": self.missing,
        }


class Missing(Exception):
    """A contestant that could not be measured; the message says why."""


class Bench:
    """A folder and a PostgreSQL server for the time of one bench."""

    def __init__(
        self, folder: Path, say: Callable[[str], None], beside: Path | None = None
    ) -> None:
        self.folder = folder
        self.say = say
        self.beside = beside
        """The checkout of Onceflow that is measured as `before`."""
        self.server: postgres.Server | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """PostgreSQL is up inside. Without one, its rows are reported as missing."""
        try:
            self.server = postgres.start(settings=STOCK)
        except postgres.Unavailable as error:
            self.say(f"no PostgreSQL: {error}")
        try:
            yield
        finally:
            if self.server is not None:
                self.server.stop()

    @contextmanager
    def database(self, store: Store) -> Iterator[str]:
        """The address of a new, empty database, gone afterwards."""
        name = f"bench_{secrets.token_hex(6)}"
        if store == "sqlite":
            place = self.folder / name
            place.mkdir()
            try:
                yield str(place / "bench.db")
            finally:
                shutil.rmtree(place, ignore_errors=True)
            return
        if self.server is None:
            raise Missing("no PostgreSQL server")
        self.server.execute(f"CREATE DATABASE {name}")
        try:
            yield self.server.url_of(name)
        finally:
            self.server.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def measure(
        self,
        contestant: str,
        measure: str,
        url: str,
        n: int,
        setting: Setting,
        **more: Any,
    ) -> Run:
        """One measurement in a child process. Raises Missing with the reason if it fails."""
        growth = contestant == "onceflow_only"
        seconds_max = GROWTH_SECONDS_MAX if growth else CONTEST_SECONDS_MAX
        weather = machine.weather(self.folder)
        task = {
            "contestant": contestant,
            "measure": measure,
            "url": url,
            "n": n,
            "setting": dict(setting),
            **more,
        }
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "bench.child", json.dumps(task)],
                cwd=ROOT,
                env=self._environment(contestant),
                capture_output=True,
                text=True,
                timeout=seconds_max,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"not finished after {seconds_max:.0f} s") from None
        took = time.perf_counter() - began
        if done.returncode == NOT_INSTALLED:
            raise Missing(f"not installed ({_last_line(done.stderr)})")
        if done.returncode:
            raise Missing(f"failed: {_last_line(done.stderr)}")
        answer = json.loads(_last_line(done.stdout))
        return Run(contestant, setting, n, answer, took, weather)

    def _environment(self, contestant: str) -> dict[str, str]:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        if contestant == "before":
            assert self.beside is not None
            environment["PYTHONPATH"] = str(self.beside / "src")
        return environment

    def contest(self, row: Row, quick: bool, repeats: int) -> Outcome:
        """All entries of a row take turns, so that a change of the weather meets all of them."""
        outcome = Outcome(row)
        n = row.n_quick if quick else row.n
        entries = [
            (entry, setting)
            for entry in row.entries
            for setting in self._best_settings(entry, row, n, outcome)
        ]
        slow: set[int] = set()
        for _ in range(repeats):
            for index, (entry, setting) in enumerate(entries):
                if entry.contestant in outcome.missing or index in slow:
                    continue
                run = self._run(outcome, entry.contestant, setting, n)
                if run is not None:
                    outcome.runs.append(run)
                    if run.took_seconds > SLOW_SECONDS:
                        slow.add(index)
        return outcome

    def claim_sizes(self, store: Store, rows: tuple[int, int]) -> Run:
        """Claims in a small table and in a large one, timed in turns."""
        with self.database(store) as small, self.database(store) as large:
            for url, n in zip((small, large), rows, strict=True):
                self.say(f"claim time, {store}: growing a table of {n:,} items")
                self.measure("onceflow_only", "grown", url, n, {})
            self.say(f"claim time, {store}: claiming")
            return self.measure(
                "onceflow_only", "claim_times", large, rows[1], {}, url_small=small, rows=rows
            )

    def memory(self, store: Store, n: int) -> Run:
        """The memory of a worker while it works off n items that another process added."""
        with self.database(store) as url:
            self.say(f"memory, {store}: adding {n:,} items")
            self.measure("onceflow_only", "filled", url, n, {})
            self.say(f"memory, {store}: working them off")
            return self.measure("onceflow_only", "memory", url, n, {})

    def _best_settings(
        self, entry: Entry, row: Row, n: int, outcome: Outcome
    ) -> tuple[Setting, ...]:
        if len(entry.settings) == 1 or not row.more_is_better:
            return entry.settings
        figures: list[tuple[float, Setting]] = []
        for setting in entry.settings:
            run = self._run(outcome, entry.contestant, setting, max(int(n * HEAT_SHARE), 500))
            if run is None:
                return ()
            outcome.heats.append(run)
            figures.append((figure(row, run.answer), setting))
        bar = HEAT_KEEPS * max(value for value, _ in figures)
        return tuple(setting for value, setting in figures if value >= bar)

    def _run(self, outcome: Outcome, contestant: str, setting: Setting, n: int) -> Run | None:
        row = outcome.row
        self.say(f"{row.title}, {row.store}: {contestant} {describe(setting)}, n = {n}")
        try:
            with self.database(row.store) as url:
                return self.measure(contestant, row.measure, url, n, setting)
        except Missing as reason:
            outcome.missing[contestant] = str(reason)
            self.say(f"  {contestant}: {reason}")
            return None


def figure(row: Row, answer: Mapping[str, Any]) -> float:
    """The one number of an answer that a row compares."""
    if row.more_is_better:
        return float(answer["items"] / answer["seconds"])
    if row.measure == "idle":
        return float(100 * answer["cpu_share"])
    return 1000 * float(sorted(answer["seconds"])[len(answer["seconds"]) // 2])


def describe(setting: Setting) -> str:
    return ", ".join(f"{name} {value}" for name, value in setting.items()) or "at defaults"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"
