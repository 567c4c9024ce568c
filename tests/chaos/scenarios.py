"""The faults, and how much of each is wanted: a little in the ordinary run, all in `make chaos`."""

import asyncio
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import chaos_lanes
import chaos_limit
import chaos_load
import chaos_pages
from chaos_common import LEASE_SECONDS

import onceflow
from onceflow import Flow, Pipeline, Seed
from onceflow.core.transition import Done, decide
from onceflow.engine.audit import audit
from onceflow.store import open_store
from onceflow.store.base import DEATHS_MAX, Add, Claim, Finish, Store, Worker
from tests.chaos import PROGRAMS
from tests.chaos.kit import (
    RECLAIM_SECONDS,
    SEED,
    SWEEP_SECONDS,
    Crew,
    Kill,
    Said,
    StoreClock,
    all_have_begun,
    check_load,
    histories,
    holders,
    most_at_once,
    reclaims,
    rows,
    sampling,
    say,
    until,
)
from tests.engine.kit import NUMBERS
from tests.support import postgres
from tests.support.locks import others_can_write

OPEN = "SELECT count(*) FROM item WHERE phase IN ('waiting', 'ready', 'active')"
UNFINISHED = "SELECT count(*) FROM run WHERE finished_at IS NULL"
ACTIVE = "SELECT count(*) FROM item WHERE phase = 'active'"


@dataclass
class Feed:
    """Keeps enough to do in the database, a run at a time."""

    flow: Flow
    pipeline: Pipeline
    database: str
    seeds: int = 30
    least_open: int = 150
    runs: dict[str, list[str]] = field(default_factory=dict)

    async def top_up(self) -> None:
        [(left,)] = await rows(self.database, OPEN)
        while left < self.least_open:
            number = len(self.runs)
            keys = [f"k{number:04}x{seed:03}" for seed in range(self.seeds)]
            added = await self.flow.add(self.pipeline, keys)
            self.runs[added.run] = keys
            left += len(keys)

    async def eaten(self) -> bool:
        return await rows(self.database, UNFINISHED) == [(0,)]


@dataclass
class Killer:
    """Kills workers that hold leases, and starts others in their places."""

    flow: Flow
    crew: Crew
    clock: StoreClock
    random: random.Random
    spared: int = 2
    kills: list[Kill] = field(default_factory=list)

    async def one(self) -> None:
        """Kill one, if enough are left who have begun: somebody must be there to sweep."""
        begun = await holders(self.flow, self.crew)
        busy = sorted(worker for worker, (_, leases) in begun.items() if leases)
        if not busy or len(begun) <= self.spared:
            return
        worker = self.random.choice(busy)
        at_ms = self.clock.now_ms()
        self.crew.kill([begun[worker][0]])
        self.kills.append(Kill(worker, at_ms))
        self.crew.start()


async def kills_under_load(
    database: str,
    folder: Path,
    kills: int,
    workers: int = 4,
    *,
    least_open: int = 150,
    timed: bool = True,
) -> None:
    """F01: workers die at random under load. Nothing is lost, nothing is done twice, and what
    they held is taken back in time."""
    with Crew("chaos_load", database, folder) as crew:
        async with onceflow.open(database, chaos_load.load) as flow:
            killer = Killer(flow, crew, await StoreClock.of(flow), random.Random(SEED))
            feed = Feed(flow, chaos_load.load, database, least_open=least_open)
            await feed.top_up()
            crew.start(workers)
            await all_have_begun(flow, crew, workers)
            began = time.monotonic()
            while len(killer.kills) < kills:
                await feed.top_up()
                await killer.one()
                await asyncio.sleep(killer.random.uniform(0.02, 0.3))
            seconds = time.monotonic() - began
            await until(feed.eaten, "every run is finished", crew)
            crew.stop()
            items, attempts = await check_load(flow, crew, feed.runs)
            found = reclaims(await histories(database), killer.kills)
    crew.check_logs()
    assert found.seconds, "nobody held anything when he was killed: the scenario proves nothing"
    say(
        "F01", database, kills=len(killer.kills), workers=workers, seconds=seconds, items=items,
        runs=len(feed.runs), attempts=attempts, reclaims=len(found.seconds),
        in_time=found.in_time, slowest_reclaim=found.slowest, promised=RECLAIM_SECONDS,
    )  # fmt: skip
    if timed:
        found.check()


async def pauses_under_load(
    database: str,
    folder: Path,
    pauses: int,
    workers: int = 3,
    *,
    least_open: int = 150,
    timed: bool = True,
) -> None:
    """F05: a worker is stopped for two leases and goes on. What it held is somebody else's by
    then, and what it still wants to store is refused."""
    rng = random.Random(SEED)
    stopped: list[tuple[str, int, int, int]] = []
    lost_meanwhile = 0
    # The second attempt is still under way when the first one comes back.
    again = 2 * LEASE_SECONDS
    with Crew("chaos_load", database, folder, again_seconds=again) as crew:
        async with onceflow.open(database, chaos_load.load) as flow:
            clock = await StoreClock.of(flow)
            feed = Feed(flow, chaos_load.load, database, least_open=least_open)
            await feed.top_up()
            crew.start(workers)
            await all_have_begun(flow, crew, workers)
            while len(stopped) < pauses:
                await asyncio.sleep(rng.uniform(0, 0.1))
                await feed.top_up()
                begun = await holders(flow, crew)
                busy = sorted(worker for worker, (_, leases) in begun.items() if leases)
                if not busy:
                    continue
                worker = rng.choice(busy)
                pid = begun[worker][0]
                os.kill(pid, signal.SIGSTOP)
                stopped_ms = clock.now_ms()
                writable = await others_can_write(database)
                if not writable or not await flow.store.read("held", worker=worker):
                    # It was just writing, and all others would wait; or it has nothing any more.
                    os.kill(pid, signal.SIGCONT)
                    continue
                await asyncio.sleep(2 * LEASE_SECONDS + SWEEP_SECONDS)
                gone_on_ms = clock.now_ms()
                os.kill(pid, signal.SIGCONT)
                stopped.append((worker, pid, stopped_ms, gone_on_ms))
                await asyncio.sleep(1)
            await until(feed.eaten, "every run is finished", crew)
            assert {pid for _, pid, _, _ in stopped} <= set(crew.living), "a paused worker ended"
            crew.stop()
            items, _ = await check_load(flow, crew, feed.runs)
            found = await histories(database)
    crew.check_logs()
    for worker, _, stopped_ms, gone_on_ms in stopped:
        for history in found.values():
            for event, after in pairwise(history):
                taken = event.kind == "claimed" and event.worker == worker
                if taken and event.at < stopped_ms < after.at < gone_on_ms:
                    assert after.kind == "reclaimed"
                    lost_meanwhile += 1
    say("F05", database, pauses=pauses, items=items, leases_lost_meanwhile=lost_meanwhile)
    if timed:  # whether others sweep within two leases depends on the machine
        held = [
            f"{event} -> {after}"
            for worker, _, stopped_ms, gone_on_ms in stopped
            for history in found.values()
            for event, after in pairwise(history)
            if event.worker == worker and event.at < gone_on_ms and after.at > stopped_ms
        ]
        assert lost_meanwhile, ["nobody took anything over", stopped, held]


async def limit_holds(
    database: str,
    folder: Path,
    workers: int,
    seconds: float,
    kill_every: float = 1.0,
    seeds: int = 200,
) -> None:
    """F20, F21: many workers start together and are killed; the limit over all of them holds."""
    text = f"{ACTIVE} AND pipeline = 'limited' AND stage = 'fetch'"
    with Crew("chaos_limit", database, folder) as crew:
        async with onceflow.open(database, chaos_limit.limited) as flow:
            killer = Killer(flow, crew, await StoreClock.of(flow), random.Random(SEED))
            feed = Feed(flow, chaos_limit.limited, database, seeds=seeds, least_open=seeds)
            await feed.top_up()
            with sampling(database, text) as sampler:
                crew.start(workers)
                await all_have_begun(flow, crew, workers)
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    await feed.top_up()
                    await killer.one()
                    await asyncio.sleep(killer.random.uniform(0.5, 1.5) * kill_every)
                await until(feed.eaten, "every run is finished", crew)
            crew.stop()
            assert await flow.audit(grace_seconds=0) == []
            found = await histories(database)
    crew.check_logs()
    spans = [
        (event.at, after.at)
        for history in found.values()
        for event, after in pairwise(history)
        if event.kind == "claimed"
    ]
    assert all(history[-1].phase == "done" for history in found.values())
    full = sampler.seen[chaos_limit.LIMIT] / sampler.samples
    say(
        "F21", database, workers=workers, seconds=seconds, kills=len(killer.kills),
        items=len(found), samples=sampler.samples, most_live=sampler.most,
        share_at_the_limit=full, most_live_by_events=most_at_once(spans),
        handlers_at_once=_handlers_at_once(crew, killer.kills, found),
    )  # fmt: skip
    assert sampler.most <= chaos_limit.LIMIT, dict(sampler.seen)
    assert sampler.most == chaos_limit.LIMIT, "the limit was never reached: it proves nothing"
    assert most_at_once(spans) <= chaos_limit.LIMIT


def _handlers_at_once(crew: Crew, kills: list[Kill], found: object) -> int:
    """How many handlers really ran at once, by what they wrote down themselves."""
    ends: dict[tuple[int, str, int], int] = {}
    begins: dict[tuple[int, str, int], int] = {}
    for each in Said.of(crew.side).notes:
        place = ends if each["what"] == "returned" else begins
        place[each["pid"], each["key"], each["attempt"]] = each["at"]
    return most_at_once((at, ends[who]) for who, at in begins.items() if who in ends)


async def lanes_hold(
    database: str, folder: Path, lanes: int, each: int, workers: int, kills: int
) -> None:
    """Each lane has at most two live leases and its spacing between two starts, over all workers
    and while they are killed."""
    with Crew("chaos_lanes", database, folder) as crew:
        async with onceflow.open(database, chaos_lanes.lanes) as flow:
            killer = Killer(flow, crew, await StoreClock.of(flow), random.Random(SEED))
            keys = [f"lane{lane:02}/{item}" for item in range(each) for lane in range(lanes)]
            await flow.add(chaos_lanes.lanes, keys)
            crew.start(workers)
            await all_have_begun(flow, crew, workers)
            began = time.monotonic()
            while len(killer.kills) < kills and (await rows(database, UNFINISHED))[0][0]:
                await killer.one()
                await asyncio.sleep(killer.random.uniform(0.1, 0.8))

            async def over() -> bool:
                return await rows(database, UNFINISHED) == [(0,)]

            await until(over, "every run is finished", crew)
            seconds = time.monotonic() - began
            crew.stop()
            assert await flow.audit(grace_seconds=0) == []
            found = await histories(database)
    crew.check_logs()
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for history in found.values():
        assert history[-1].phase == "done"
        for event, after in pairwise(history):
            if event.kind == "claimed":
                spans[chaos_lanes.lane_of(event.key)].append((event.at, after.at))
    most = {lane: most_at_once(live) for lane, live in spans.items()}
    starts = {lane: sorted(begin for begin, _ in live) for lane, live in spans.items()}
    gaps = {
        lane: min((b - a for a, b in pairwise(each)), default=10**9)
        for lane, each in starts.items()
    }
    say(
        "lanes", database, lanes=len(spans), workers=workers, kills=len(killer.kills),
        seconds=seconds, items=len(found), claims=sum(map(len, starts.values())),
        most_live=max(most.values()), closest_starts_ms=min(gaps.values()),
    )  # fmt: skip
    assert len(spans) == lanes
    assert max(most.values()) <= chaos_lanes.LANE_LIMIT, most
    assert max(most.values()) == chaos_lanes.LANE_LIMIT, "no lane was ever full"
    assert min(gaps.values()) >= chaos_lanes.SPACING_SECONDS * 1000, gaps
    assert len(killer.kills) == kills, "all was done before all were killed: add items"


# --- a lane with a million ---

FILL = {
    "sqlite": """
WITH RECURSIVE n (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n WHERE n < {last})
INSERT INTO item (pipeline, key, stage, phase, run, lane, created_at, updated_at)
SELECT 'lanes', 'lane05/full' || n, 'fetch', 'ready', '{run}', 'lane05', 0, 0 FROM n""",
    "postgres": """
INSERT INTO item (pipeline, key, stage, phase, run, lane, created_at, updated_at)
SELECT 'lanes', 'lane05/full' || n, 'fetch', 'ready', '{run}', 'lane05', 0, 0
  FROM generate_series({first}, {last}) AS n""",
}


async def full_lane_costs_nothing(
    database: str, few: int, many: int, claims: int, ratio_max: float
) -> None:
    """A closed lane with very many ready items does not make the claims of others slower."""
    store = open_store(database)
    pipeline = Pipeline(
        "lanes",
        onceflow.Stage(
            "fetch", chaos_lanes.fetch, lane=onceflow.Lane(chaos_lanes.lane_of, limit=2)
        ),
    )
    await store.open([pipeline])
    try:
        worker = Worker(secrets.token_hex(8), "host.test", os.getpid())
        await store.beat(worker)
        await store.add(Add(pipeline, "full", [Seed(f"lane05/held{n}") for n in range(2)]))
        held = await store.exchange(worker.id, next(NUMBERS), [], [Claim("lanes", "fetch", "", 10)])
        assert [len(one.leases) for one in held.claimed] == [2]  # as many as the lane may have
        medians: dict[int, float] = {}
        before = 1
        for size in (few, many):
            await _fill(database, before, size)
            before = size + 1
            medians[size] = await _time_claims(store, pipeline, worker.id, f"at{size}", claims)
    finally:
        await store.close()
    ratio = medians[many] / medians[few]
    say(
        "full lane", database, claims=claims, few=few, many=many,
        median_few_ms=medians[few] * 1000, median_many_ms=medians[many] * 1000, ratio=ratio,
    )  # fmt: skip
    assert ratio < ratio_max, medians


async def _fill(database: str, first: int, last: int) -> None:
    kind = "postgres" if "://" in database else "sqlite"
    await rows(database, FILL[kind].format(first=first, last=last, run="full"))


async def _time_claims(
    store: Store, pipeline: Pipeline, worker: str, run: str, claims: int
) -> float:
    """The median time of a claim of ten out of twenty open lanes, and of its finish."""
    lanes = [number for number in range(21) if number != 5]
    keys = [f"lane{lane:02}/{run}{n}" for n in range(claims // 2 + 1) for lane in lanes]
    await store.add(Add(pipeline, run, [Seed(key) for key in keys]))
    times: list[float] = []
    lane = ""
    for turn in range(claims):
        wish = Claim("lanes", "fetch", "", 10, turn, lane)
        began = time.perf_counter()
        reply = await store.exchange(worker, next(NUMBERS), [], [wish])
        times.append(time.perf_counter() - began)
        [claimed] = reply.claimed
        lane = claimed.lane
        assert len(claimed.leases) == 10
        assert all(not lease.key.startswith("lane05") for lease in claimed.leases)
        finishes = [Finish(lease, decide(pipeline, lease, Done(None))) for lease in claimed.leases]
        assert all((await store.exchange(worker, next(NUMBERS), finishes, [])).kept)
    return statistics.median(times)


# --- the gate ---


async def gate_opens_once(database: str, rounds: int) -> None:
    """F19: the last two items of a run are committed at the same moment by two stores, and both
    ask for the gate."""
    stores = [open_store(database), open_store(database)]
    pipeline = Pipeline("load", *chaos_load.load.stages[2:], after_all=chaos_load.digest)
    workers = [f"{number}{secrets.token_hex(7)}" for number in range(2)]
    late = 0
    try:
        for store, worker in zip(stores, workers, strict=True):
            await store.open([pipeline])
            await store.beat(Worker(worker, "host.test", os.getpid()))
        for number in range(rounds):
            if number % 50 == 0:
                for store, worker in zip(stores, workers, strict=True):
                    await store.beat(Worker(worker, "host.test", os.getpid()))
            run = f"round{number:05}"
            await stores[0].add(Add(pipeline, run, [Seed(f"{run}-a"), Seed(f"{run}-b")]))
            finishes: list[Finish] = []
            for store, worker in zip(stores, workers, strict=True):
                wish = Claim("load", "weigh", "", 1)
                reply = await store.exchange(worker, next(NUMBERS), [], [wish])
                [lease] = reply.claimed[0].leases
                finishes.append(Finish(lease, decide(pipeline, lease, Done(run))))

            async def last_words(at: int, finish: Finish, run: str) -> int:
                reply = await stores[at].exchange(workers[at], next(NUMBERS), [finish], [])
                assert list(reply.kept) == [True]
                return (await stores[at].sweep([run])).missed

            missed = await asyncio.gather(*[last_words(at, finishes[at], run) for at in range(2)])
            if await _not_open_yet(stores[0], run):
                assert any(missed), "neither of the two knows that it has to ask again"
                late += 1
        found = await rows(
            database, "SELECT run, count(*) FROM event WHERE kind = 'gate_opened' GROUP BY run"
        )
        items = await rows(database, "SELECT count(*) FROM item WHERE key LIKE 'gate:%'")
        assert await audit(stores[0], grace_seconds=0) == []
    finally:
        for store in stores:
            await store.close()
    say("F19", database, rounds=rounds, gates=len(found), opened_by_the_next_sweep=late)
    assert sorted(found) == [(f"round{number:05}", 1) for number in range(rounds)]
    assert items == [(rounds,)]


async def _not_open_yet(store: Store, run: str) -> bool:
    """Neither of the two may have seen that it was over, if each looked while the other still
    held the run: then whoever asks next opens it."""
    [row] = await store.read("run", id=run)
    if row["settled_at"] is not None:
        return False
    await store.sweep([run])
    return True


async def gate_opens_once_between_processes(database: str, rounds: int) -> None:
    """F19 again with two processes, let go at one moment of the machine's clock."""
    pipeline = Pipeline("load", *chaos_load.load.stages[2:], after_all=chaos_load.digest)
    store = open_store(database)
    await store.open([pipeline])
    command = [sys.executable, str(PROGRAMS / "chaos_finisher.py"), database]
    pair = [
        await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]

    async def tell(process: asyncio.subprocess.Process, line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{line}\n".encode())
        await process.stdin.drain()

    async def hear(process: asyncio.subprocess.Process) -> str:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            return (await process.stdout.readline()).decode().strip()

    late = 0
    try:
        assert [await hear(process) for process in pair] == ["begun", "begun"]
        for number in range(rounds):
            run = f"round{number:05}"
            await store.add(Add(pipeline, run, [Seed(f"{run}-a"), Seed(f"{run}-b")]))
            for process in pair:
                await tell(process, f"claim {run}")
                assert await hear(process) == "claimed"
            go_at = time.monotonic_ns() + 3_000_000
            for process in pair:
                await tell(process, f"finish {go_at}")
            assert [await hear(process) for process in pair] == ["kept", "kept"]
            late += await _not_open_yet(store, run)
        found = await rows(
            database, "SELECT run, count(*) FROM event WHERE kind = 'gate_opened' GROUP BY run"
        )
        assert await audit(store, grace_seconds=0) == []
    finally:
        for process in pair:
            assert process.stdin is not None
            process.stdin.close()
        for process in pair:
            await asyncio.wait_for(process.wait(), 60)
        await store.close()
    say("F19, two processes", database, rounds=rounds, opened_by_the_next_sweep=late)
    assert sorted(found) == [(f"round{number:05}", 1) for number in range(rounds)]


async def one_process_killed(
    database: str, folder: Path, kills: int, pages: int = 25, rests: tuple[float, float] = (0.2, 2)
) -> None:
    """F30: one process works on pages and is killed at random moments. No page is to blame, so none
    may be failed for it. F18: afterwards one that ends its process each time is failed as poison,
    and the others beside it are done."""
    rng = random.Random(SEED)
    keys = [f"page{number:02}" for number in range(pages)]
    done = 0
    with Crew("chaos_pages", database, folder) as crew:
        async with onceflow.open(database, chaos_pages.pages) as flow:
            added = await flow.add("pages", keys)
            for _ in range(kills):
                if await rows(database, OPEN) == [(0,)]:  # all done: the next generation
                    done += 1
                    await flow.retry("pages", keys=keys, from_stage="summarize")
                crew.start()
                await until(partial(_any_active, database), "it has begun", crew)
                await asyncio.sleep(rng.uniform(*rests))
                crew.kill(crew.living)
            crew.start()
            await until(partial(_none_open, database), "every page is done", crew)
            assert await flow.counts("pages") == {"completed": pages}
            calls = Counter(said["key"] for said in _said(crew, "called"))
            most = max(calls[key] for key in keys)

            await flow.add("pages", ["deadly", *[f"beside{number}" for number in range(9)]])
            deaths = 0
            while await rows(database, OPEN) != [(0,)]:
                if not crew.living:
                    deaths += 1
                    crew.start()
                await asyncio.sleep(0.1)
            crew.stop()
            item = await flow.item("pages", "deadly")
            assert item.error_code == "poison"
            assert item.attempt == 3, "so often it was alone"
            assert deaths <= 3 + DEATHS_MAX, "and at the most so often beside others"
            assert await flow.counts("pages") == {"completed": pages + 9, "failed": 1}
            await flow.store.sweep([added.run])
            assert await flow.audit(grace_seconds=60) == []
    crew.check_logs((0, 137, -signal.SIGKILL))
    say(
        "F30, F18", database, kills=kills, calls_of_a_page=most, generations=done + 1, deaths=deaths
    )


async def _any_active(database: str) -> bool:
    return await rows(database, ACTIVE) != [(0,)]


async def _none_open(database: str) -> bool:
    return await rows(database, OPEN) == [(0,)]


def _said(crew: Crew, what: str) -> list[dict[str, object]]:
    lines = (line for path in crew.side.iterdir() for line in path.read_text().splitlines())
    return [said for line in lines if (said := json.loads(line))["what"] == what]


# --- everything at once, signals, the server ---


async def all_killed_at_once(
    database: str,
    folder: Path,
    rounds: int,
    seeds: int,
    workers: int = 3,
    crash_server: Callable[[], None] | None = None,
) -> None:
    """F04: who adds, who works and (PostgreSQL) the server die at the same moment. The same
    command again goes on with the same run."""
    rng = random.Random(SEED)
    keys = [f"k{number:05}" for number in range(seeds)]
    folder.joinpath("seeds.txt").write_text("\n".join(keys))
    left: list[int] = []
    with Crew("chaos_load", database, folder) as crew:

        def begin() -> "subprocess.Popen[bytes]":
            adder = crew.command("run", crew.file, "seeds.txt", *crew.settings)
            crew.start(workers)
            return adder

        async with onceflow.open(database, chaos_load.load) as flow:
            for number in range(rounds):
                begin()
                goal = seeds * (number + 1) // (rounds + 1)
                await until(partial(_done, database, goal), f"{goal} are done", crew)
                await asyncio.sleep(rng.uniform(0, 0.5))
                crew.kill(crew.living)
                if crash_server is not None:
                    await asyncio.to_thread(crash_server)
                left.append((await rows(database, ACTIVE))[0][0])
            last = begin()

            async def over() -> bool:
                return last.poll() is not None

            await until(over, "the same command again comes to its end", crew)
            assert last.returncode == 0
            crew.stop()
            runs = await flow.runs()
            assert len(runs) == 1, "the same command again must go on with the same run"
            items, _ = await check_load(flow, crew, {runs[0].id: keys})
    crew.check_logs()
    say("F04", database, rounds=rounds, items=items, leases_left_behind=sum(left))
    assert sum(left), "nobody held anything: the scenario proves nothing"


async def _done(database: str, count: int) -> bool:
    [(done,)] = await rows(database, "SELECT count(*) FROM item WHERE phase = 'done'")
    return bool(done >= count)


async def stopped_under_load(
    database: str, folder: Path, rounds: int, workers: int = 4, least_open: int = 150
) -> None:
    """F17: SIGTERM under load, then twice in a row. Nothing stays active, no attempt is lost."""
    rng = random.Random(SEED)
    released = 0
    with Crew("chaos_load", database, folder) as crew:
        async with onceflow.open(database, chaos_load.load) as flow:
            feed = Feed(flow, chaos_load.load, database, least_open=least_open)
            for number in range(rounds):
                await feed.top_up()
                crew.start(workers)
                await all_have_begun(flow, crew, workers)
                await asyncio.sleep(rng.uniform(0.1, 0.6))
                await feed.top_up()
                twice = number % 2 == 1
                living = list(crew.living.values())
                for process in living:
                    process.send_signal(signal.SIGTERM)
                if twice:
                    await asyncio.sleep(0.05)
                    for process in living:
                        process.send_signal(signal.SIGTERM)
                for process in living:
                    await asyncio.to_thread(process.wait, 60)
                codes = {process.returncode for process in living}
                # The second signal may come when the first has ended all: then it kills, at
                # worst in the moment after everything was given back.
                assert codes <= ({0, 130, -signal.SIGTERM} if twice else {0}), codes
                assert await rows(database, ACTIVE) == [(0,)]
                assert await rows(database, "SELECT count(*) FROM worker") == [(0,)]
                used = await rows(
                    database,
                    "SELECT count(*) FROM item WHERE attempt > 0 AND phase IN ('ready', 'waiting')",
                )
                assert used == [(0,)], "a graceful stop cost an attempt"
            crew.start(workers)
            await until(feed.eaten, "every run is finished", crew)
            crew.stop()
            items, _ = await check_load(flow, crew, feed.runs)
            found = await histories(database)
    crew.check_logs((0, 130, -signal.SIGTERM))
    for history in found.values():
        for event in history:
            assert event.kind not in ("reclaimed", "retried", "failed"), event
            released += event.kind == "released"
    say("F17", database, stops=rounds * workers, items=items, released=released)


async def server_restarts(
    server: postgres.Server,
    folder: Path,
    seconds: float,
    every: tuple[float, float],
    workers: int,
    least_open: int = 150,
) -> None:
    """F08: PostgreSQL crashes again and again under load; every item ends."""
    rng = random.Random(SEED)
    restarts = 0
    with Crew("chaos_load", server.url, folder) as crew:
        async with onceflow.open(server.url, chaos_load.load) as flow:
            feed = Feed(flow, chaos_load.load, server.url, least_open=least_open)
            await feed.top_up()
            crew.start(workers)
            await all_have_begun(flow, crew, workers)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pause_until = time.monotonic() + rng.uniform(*every)
                while time.monotonic() < pause_until:
                    await feed.top_up()
                    await asyncio.sleep(0.2)
                await asyncio.to_thread(server.restart, "immediate")
                restarts += 1
                assert len(crew.living) == workers, "a worker ended because the server did"
            await until(feed.eaten, "every run is finished", crew)
            crew.stop()
            items, attempts = await check_load(flow, crew, feed.runs)
            found = await histories(server.url)
    crew.check_logs()
    taken = sum(event.kind == "reclaimed" for each in found.values() for event in each)
    say(
        "F08", server.url, restarts=restarts, seconds=seconds, items=items, attempts=attempts,
        reclaims=taken,
    )  # fmt: skip
    assert restarts


async def idle_worker(database: str, folder: Path, seconds: float, share_max: float | None) -> None:
    """A worker that has nothing to do does nothing."""
    with Crew("chaos_load", database, folder, settings=()) as crew:
        async with onceflow.open(database, chaos_load.load) as flow:
            crew.start()
            await all_have_begun(flow, crew, 1)
        [pid] = crew.living
        await asyncio.sleep(min(seconds, 3))  # what it does at its start does not count
        before, began = _cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(seconds)
        share = (_cpu_seconds(pid) - before) / (time.monotonic() - began)
        assert crew.stop() == [0]
    crew.check_logs()
    say("idle worker", database, seconds=seconds, share_of_a_core_percent=share * 100)
    if share_max is not None:
        assert share < share_max


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
