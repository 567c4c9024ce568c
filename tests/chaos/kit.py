"""Real workers to kill, the clock of their database, and what must hold when all is over."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import chaos_common
import chaos_load

from onceflow import Flow
from onceflow.core.transition import decode
from tests.chaos import PROGRAMS

SWEEP_SECONDS = 0.5
SHORT = (
    "--cleanup-seconds", SWEEP_SECONDS, "--health-seconds", 1, "--scan-seconds", 1,
    "--poll-seconds", 0.1, "--patience-seconds", 0.5, "--grace-seconds", 20,
)  # fmt: skip
"""A worker's settings, as short as its lease."""
RECLAIM_SECONDS = chaos_common.LEASE_SECONDS + SWEEP_SECONDS + 1
"""A lease is at the most so old when it is taken back: what is promised."""
ALLOWANCE_SECONDS = float(os.environ.get("CHAOS_ALLOWANCE", "3"))
"""What we allow on top before a scenario fails: a machine with more processes than cores may not
run a sweep in the moment it is due. How many were later than promised is printed."""
END_SECONDS_MAX = float(os.environ.get("CHAOS_END_SECONDS", "100"))
"""How long the rest of the work may take once nobody is killed any more."""
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.randrange(1, 2**31)

Rows = list[tuple[Any, ...]]


SAID: list[str] = []
"""What the scenarios of this run said, for the end of its report."""


def say(scenario: str, database: str, **figures: Any) -> None:
    """The one line of figures that a scenario gives."""
    store = "postgres" if "://" in database else "sqlite"
    words = (
        f"{name.replace('_', ' ')} {value:.3g}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in figures.items()
    )
    SAID.append(f"{scenario} on {store}: {', '.join(words)} (seed {SEED})")
    sys.stdout.write(f"\n{SAID[-1]}\n")


# --- processes ---


@dataclass(frozen=True)
class Kill:
    """A worker that was ended, when, by the clock of its database."""

    worker: str
    at_ms: int


@dataclass
class Crew:
    """The workers of one scenario. Every process is ended by its id when the scenario ends."""

    program: str
    database: str
    folder: Path
    settings: Sequence[object] = SHORT
    again_seconds: float = 0.0
    """How long an attempt takes at the least if it is not an item's first."""
    everyone: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def side(self) -> Path:
        """Where the handlers write down what they return."""
        return self.folder / "side"

    @property
    def file(self) -> Path:
        return PROGRAMS / f"{self.program}.py"

    def __enter__(self) -> "Crew":
        self.side.mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.everyone:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.everyone:
            process.wait(30)
            if process.stdin is not None:
                process.stdin.close()

    def command(self, *arguments: object) -> "subprocess.Popen[bytes]":
        """The real program on this scenario's database."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("ONCEFLOW_")
        }
        environment = {
            **kept,
            "ONCEFLOW_DB": self.database,  # not an argument: those are seen by everybody
            "CHAOS_SIDE": str(self.side),
            "CHAOS_GUARD": "1",
            "CHAOS_AGAIN_SECONDS": str(self.again_seconds),
        }
        with (self.folder / f"log-{len(self.everyone):04}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "onceflow", *map(str, arguments)],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.everyone.append(process)
        return process

    def start(self, count: int = 1) -> None:
        for _ in range(count):
            self.command("worker", self.file, *self.settings)

    @property
    def living(self) -> dict[int, "subprocess.Popen[bytes]"]:
        return {process.pid: process for process in self.everyone if process.poll() is None}

    def kill(self, pids: Iterable[int], number: int = signal.SIGKILL) -> None:
        """End these at the same moment, and wait until they have ended."""
        ended = [self.living[pid] for pid in pids]
        for process in ended:
            process.send_signal(number)
        for process in ended:
            process.wait(60)

    def stop(self) -> list[int]:
        """End everybody as an operator would; their exit codes."""
        living = list(self.living.values())
        self.kill(self.living, signal.SIGTERM)
        return [process.returncode for process in living]

    def logs(self) -> Iterator[str]:
        for path in sorted(self.folder.glob("log-*")):
            yield path.read_text(errors="replace")

    def check_logs(self, codes: Iterable[int] = (0, -signal.SIGKILL)) -> None:
        """Nobody but a killed one ended by itself, and nobody saw what he cannot explain. One who
        was told to stop before he had begun may just end: he had nothing to give back."""
        for process, text in zip(self.everyone, self.logs(), strict=True):
            assert "Traceback" not in text, text[-3000:]
            begun = "works on" in text
            early = process.returncode == -signal.SIGTERM and not begun
            assert early or process.returncode in codes, f"{process.returncode}: {text[-1500:]}"


async def holders(flow: Flow, crew: Crew) -> dict[str, tuple[int, int]]:
    """The living workers that have begun: their ids, with their processes and leases."""
    living = crew.living
    return {
        row["id"]: (row["pid"], row["leases"])
        for row in await flow.store.read("workers")
        if row["pid"] in living
    }


async def all_have_begun(flow: Flow, crew: Crew, count: int) -> None:
    await until(lambda: _at_least(flow, crew, count), f"{count} workers have begun", crew)


async def _at_least(flow: Flow, crew: Crew, count: int) -> bool:
    return len(await holders(flow, crew)) >= count


async def until(
    met: Callable[[], Awaitable[bool]], what: str, crew: Crew, seconds: float = END_SECONDS_MAX
) -> None:
    """Wait for something that must come; if it does not, say what the workers said."""
    end = time.monotonic() + seconds
    while not await met():
        if time.monotonic() > end:
            tails = "\n".join(text[-1500:] for text in list(crew.logs())[-6:])
            raise AssertionError(f"not in {seconds:.0f} s: {what}\n{tails}")
        await asyncio.sleep(0.1)


# --- the database, past the store ---


async def rows(database: str, text: str) -> Rows:
    """What a statement gives, on a connection of its own."""
    if "://" not in database:
        connection = apsw.Connection(database)
        connection.set_busy_timeout(60_000)
        try:
            return list(connection.execute(text))
        finally:
            connection.close()
    other = await asyncpg.connect(database, server_settings={"search_path": "onceflow"})
    try:
        return [tuple(row) for row in await other.fetch(text)]
    finally:
        await other.close()


class Sampler(threading.Thread):
    """Asks for one number again and again, from a thread and a connection of its own."""

    def __init__(self, database: str, text: str, every_seconds: float) -> None:
        super().__init__(name="chaos-sampler", daemon=True)
        self._database = database
        self._text = text
        self._every = every_seconds
        self._over = threading.Event()
        self.seen: dict[int, int] = defaultdict(int)
        self.error: BaseException | None = None

    @property
    def samples(self) -> int:
        return sum(self.seen.values())

    @property
    def most(self) -> int:
        return max(self.seen, default=0)

    def run(self) -> None:
        try:
            asyncio.run(self._ask())
        except BaseException as error:
            self.error = error

    async def _ask(self) -> None:
        if "://" in self._database:
            other = await asyncpg.connect(
                self._database, server_settings={"search_path": "onceflow"}
            )
            try:
                statement = await other.prepare(self._text)
                await self._loop(statement.fetchval)
            finally:
                await other.close()
            return
        connection = apsw.Connection(self._database, flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(60_000)

        async def ask() -> int:
            value: int = connection.execute(self._text).get
            return value

        try:
            await self._loop(ask)
        finally:
            connection.close()

    async def _loop(self, ask: Callable[[], Awaitable[int]]) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            self.seen[await ask()] += 1
            await asyncio.sleep(max(0.0, began + self._every - time.monotonic()))

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        if self.error is not None:
            raise self.error


@contextmanager
def sampling(database: str, text: str, every_seconds: float = 0.01) -> Iterator[Sampler]:
    sampler = Sampler(database, text, every_seconds)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


class StoreClock:
    """What time it is for a database, without asking it each time."""

    def __init__(self, offset_ms: float) -> None:
        self._offset_ms = offset_ms

    @classmethod
    async def of(cls, flow: Flow) -> "StoreClock":
        """The best of several looks: the one whose answer came soonest."""
        looks: list[tuple[float, float]] = []
        for _ in range(9):
            before = time.monotonic() * 1000
            [row] = await flow.store.read("now")
            after = time.monotonic() * 1000
            looks.append((after - before, row["now"] - (before + after) / 2))
        return cls(min(looks)[1])

    def now_ms(self) -> int:
        return int(time.monotonic() * 1000 + self._offset_ms)


# --- what must hold ---

EVENTS = """
SELECT e.item, e.n, e.at, e.kind, e.stage, e.next_stage, e.phase, e.fence, e.attempt, e.worker,
       e.run, i.key, i.lane
  FROM event AS e JOIN item AS i ON i.id = e.item ORDER BY e.item, e.n"""


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of an item."""

    item: int
    n: int
    at: int
    kind: str
    stage: str
    next_stage: str | None
    phase: str
    fence: int
    attempt: int
    worker: str | None
    run: str
    key: str
    lane: str


async def histories(database: str) -> dict[int, list[Happening]]:
    """Every item's history."""
    found: dict[int, list[Happening]] = defaultdict(list)
    for row in await rows(database, EVENTS):
        found[row[0]].append(Happening(*row))
    return found


@dataclass
class Reclaims:
    """How long the leases of killed workers lived on."""

    seconds: list[float] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    @property
    def slowest(self) -> float:
        return max(self.seconds, default=0.0)

    @property
    def in_time(self) -> int:
        return sum(each <= RECLAIM_SECONDS for each in self.seconds)

    def check(self) -> None:
        """All were taken back in the promised time and the allowance for a busy machine."""
        assert self.slowest <= RECLAIM_SECONDS + ALLOWANCE_SECONDS, self.late


def reclaims(found: dict[int, list[Happening]], kills: Iterable[Kill]) -> Reclaims:
    """For each lease of a killed worker: when it was taken back, measured from the kill."""
    killed = {kill.worker: kill.at_ms for kill in kills}
    answer = Reclaims()
    for history in found.values():
        for event, after in zip(history, [*history[1:], None], strict=True):
            if event.kind != "claimed" or event.worker not in killed:
                continue
            assert after is not None, f"{event.key}: claimed by a dead worker, and never again"
            if after.worker == event.worker or after.at <= killed[event.worker]:
                continue  # finished before, or lost while it lived
            assert after.kind == "reclaimed", f"{event.key}: {after.kind} after its worker died"
            seconds = (after.at - killed[event.worker]) / 1000
            answer.seconds.append(seconds)
            if seconds > RECLAIM_SECONDS:
                answer.late.append(f"{event.key} of {event.worker} after {seconds:.2f} s")
    return answer


@dataclass
class Said:
    """What the handlers wrote down, past the database."""

    returned: dict[str, dict[str, Any]]
    notes: list[dict[str, Any]]

    @classmethod
    def of(cls, side: Path) -> "Said":
        notes: list[dict[str, Any]] = []
        for path in side.glob("*.jsonl"):
            for line in path.read_text().splitlines():
                notes.append({**json.loads(line), "pid": int(path.stem)})
        returned = [each for each in notes if each["what"] == "returned"]
        by_nonce = {each["nonce"]: each for each in returned}
        assert len(by_nonce) == len(returned)
        return cls(by_nonce, notes)


RESULTS = """
SELECT r.item, i.key, r.stage, r.generation, r.body
  FROM result AS r JOIN item AS i ON i.id = r.item"""


async def check_results(database: str, said: Said) -> dict[str, dict[str, dict[str, Any]]]:
    """Every stored result was returned by exactly one attempt of that stage, and each stage
    worked on what the one before it had stored; key -> stage -> result."""
    bodies: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for _, key, stage, generation, raw in await rows(database, RESULTS):
        assert generation == 1
        body: Any = decode(raw)
        bodies[key][stage] = body
        returned = said.returned[body["nonce"]]
        assert (returned["key"], returned["stage"]) == (key, stage)
        assert returned["value"] == body["value"]
    return bodies


async def check_load(flow: Flow, crew: Crew, runs: dict[str, list[str]]) -> tuple[int, int]:
    """All that must be true of the `load` pipeline when everything is over: nothing lost, nothing
    done twice, each result the expected one, each gate opened once. Items, and attempts made."""
    violations = await flow.audit(grace_seconds=0)
    assert violations == []
    said = Said.of(crew.side)
    bodies = await check_results(crew.database, said)
    found = await histories(crew.database)
    for run, seeds in runs.items():
        keys = [*seeds, *[child for seed in seeds for child in chaos_load.children_of(seed)]]
        for key in keys:
            got = {stage: body["value"] for stage, body in bodies[key].items()}
            assert got == chaos_load.expected(key)
            stages = bodies.pop(key)
            assert stages["expand"]["from"] == stages["fetch"]["nonce"]
            assert stages["weigh"]["from"] == stages["expand"]["nonce"]
        gate = bodies.pop(f"gate:{run}")["digest"]["value"]
        total = sum(sum(key.encode()) for key in keys)
        assert gate == {"items": len(keys), "total": total}
    assert not bodies, f"results of items that nobody added: {list(bodies)[:5]}"
    opened: dict[str, int] = defaultdict(int)
    for history in found.values():
        assert history[-1].phase == "done", f"{history[-1].key} is {history[-1].phase}"
        finished = [event.stage for event in history if event.kind == "stage_finished"]
        gates = [event.run for event in history if event.kind == "gate_opened"]
        assert finished == (["digest"] if gates else ["fetch", "expand", "weigh"])
        for run in gates:
            opened[run] += 1
    assert opened == dict.fromkeys(runs, 1)
    return len(found), len(said.returned)


def most_at_once(spans: Iterable[tuple[int, int]]) -> int:
    """The most intervals [from, to) that overlap anywhere."""
    steps = sorted(step for begin, end in spans for step in ((begin, 1), (end, -1)))
    most = live = 0
    for _, change in steps:
        live += change
        most = max(most, live)
    return most
