"""Many callers at once, from several processes, against two servers on one database."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cli.loopback import Loopback
from tests.pipelines.conftest import article
from tests.web.conftest import Fresh
from tests.web.kit import STAGES, Server, puppet_flow, served

ROOT = Path(__file__).parents[2]
WATCHFUL = {"ONCEFLOW_HEALTH_SECONDS": "0.5"}
"""Killed neighbours are found at each health check, long before their leases are over."""
NUMBERS = count(1)


class Callers:
    """Client processes that wait for a word, then all call at once."""

    def __init__(
        self, path: str, servers: list[Server], *, processes: int, calls: int, bodies: Any = ()
    ) -> None:
        urls = [server.url for server in servers]
        more = ["--json", *map(json.dumps, bodies)] if bodies else []
        command = [sys.executable, "-m", "tests.web.caller", str(calls // processes), path, *urls]
        self._running = [
            subprocess.Popen([*command, *more], cwd=ROOT, text=True, stdin=-1, stdout=-1)
            for _ in range(processes)
        ]
        for process in self._running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def go(self) -> None:
        for process in self._running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def answers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for process in self._running:
            out, _ = process.communicate(timeout=280)
            found += json.loads(out)
        return found


@pytest.fixture
def two(fresh: Fresh, world: Loopback) -> Callable[..., Any]:
    """Two servers that work on one database."""

    @contextmanager
    def make(kind: str, **env: Any) -> Iterator[tuple[list[Server], str]]:
        with fresh(kind) as (folder, database), ExitStack() as stack:
            servers = [
                stack.enter_context(served(folder, database, world=world, **env)) for _ in range(2)
            ]
            yield servers, database

    return make


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_I14_a_hundred_simultaneous_calls_perform_each_stage_once(
    kind: str, two: Callable[..., Any], world: Loopback
) -> None:
    number = next(NUMBERS)
    path = f"/hundred{number}"
    world.site.answer(path, article("bread"))
    asked = world.summarized["story"]
    with two(kind) as (servers, database):
        async with puppet_flow(database) as flow:
            await flow.pause("ingest", "fetch")
            await flow.pause("ingest", "extract")
            with servers[0].client() as client:
                job = client.post("/api/ingestion-jobs", json={"url": world.site.url(path)}).json()
            for stage in STAGES:
                place = f"/api/ingestion-jobs/{job['id']}/{stage}"
                callers = Callers(place, servers, processes=4, calls=100)
                callers.go()
                if stage != "generate":
                    await flow.resume("ingest", stage)
                answers = await asyncio.to_thread(callers.answers)
                assert Counter(one["status"] for one in answers) == {200: 100}
                performed = [one for one in answers if not one["body"]["skipped"]]
                assert len(performed) <= 1  # none if the worker began it before any call
                if stage == "generate":
                    assert len(performed) == 1
            told = [(event.kind, event.stage) async for event in flow.events(item=job["id"])]
            for stage in STAGES:
                assert told.count(("claimed", stage)) == 1
                assert told.count(("stage_finished", stage)) == 1
            assert await flow.audit() == []
    assert world.site.paths().count(path) == 1
    assert world.summarized["story"] == asked + 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_server_killed_in_the_middle_of_a_hundred_calls_costs_one_more_attempt(
    kind: str, two: Callable[..., Any], world: Loopback
) -> None:
    path = f"/killed{next(NUMBERS)}"
    world.site.answer(path, article("bread"))
    begun = world.hang(path)
    with two(kind, **WATCHFUL) as (servers, database):
        async with puppet_flow(database) as flow:
            with servers[0].client() as client:
                job = client.post("/api/ingestion-jobs", json={"url": world.site.url(path)}).json()
            place = f"/api/ingestion-jobs/{job['id']}/fetch"
            callers = Callers(place, servers, processes=4, calls=100)
            callers.go()
            assert await asyncio.to_thread(begun.wait, 180)
            item = await flow.item("ingest", job["url"])
            pids = {row["id"]: row["pid"] for row in await flow.store.read("workers")}
            os.kill(pids[item.worker], signal.SIGKILL)
            answers = await asyncio.to_thread(callers.answers)
            assert Counter(one["status"] for one in answers) == {200: 100}
            told = [(event.kind, event.stage) async for event in flow.events(item=job["id"])]
            assert told.count(("claimed", "fetch")) == 2
            assert told.count(("stage_finished", "fetch")) == 1
            assert await flow.audit() == []
    assert world.site.paths().count(path) == 2


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_I15_a_hundred_submissions_of_one_url_in_five_spellings_are_one_job(
    kind: str, two: Callable[..., Any], world: Loopback
) -> None:
    path = f"/five{next(NUMBERS)}"
    world.site.answer(path, article("bread"))
    host = f"{world.site.host}:{world.site.port}"
    spellings = [
        f"http://{host}{path}", f"HTTP://{host}{path}", f"http://{host}/x/..{path}",
        f"http://{host}/%66ive{path[5:]}", f"  http://{host}{path}#part ",
    ]  # fmt: skip
    bodies = [{"url": spelling} for spelling in spellings]
    with two(kind) as (servers, _):
        callers = Callers("/api/ingestion-jobs", servers, processes=4, calls=100, bodies=bodies)
        callers.go()
        answers = callers.answers()
        with servers[0].client() as client:
            listed = client.get("/api/ingestion-jobs").json()["jobs"]
    assert Counter(one["status"] for one in answers) == {201: 1, 200: 99}
    assert len({one["body"]["id"] for one in answers}) == len(listed) == 1


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        ("sqlite", 500),
        ("postgres", 100),
        pytest.param("postgres", 500, marks=pytest.mark.chaos),  # half a minute
    ],
)
async def test_the_race_of_the_original_fetch_then_at_once_extract(
    kind: str, rounds: int, fresh: Fresh, world: Loopback
) -> None:
    """The fetch starts the extraction by itself and the caller asks for it too: never an error,
    and one extraction each."""
    world.site.answer("/race", article("bread"))
    urls = [world.site.url(f"/race?{kind}={number}") for number in range(rounds)]

    def race(server: Server, mine: list[str]) -> list[tuple[int, int, int, str]]:
        found = []
        with server.client() as client:
            for url in mine:
                job = client.post("/api/ingestion-jobs", json={"url": url})
                place = f"/api/ingestion-jobs/{job.json()['id']}"
                fetched = client.post(f"{place}/fetch")
                extracted = client.post(f"{place}/extract")
                state = extracted.json()["job"]["state"]
                found.append((job.status_code, fetched.status_code, extracted.status_code, state))
        return found

    with fresh(kind) as (folder, database), served(folder, database, world=world) as server:
        with ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(race, [server] * 4, [urls[at::4] for at in range(4)]))
        async with puppet_flow(database) as flow:
            told = Counter([(event.kind, event.stage, event.item) async for event in flow.events()])
            extractions = [told["claimed", "extract", item] for item in range(1, rounds + 1)]
            finished = [told["stage_finished", "extract", item] for item in range(1, rounds + 1)]
            assert await flow.audit() == []
    answers = Counter(answer for part in parts for answer in part)
    assert answers == {(201, 200, 200, "READY_TO_GENERATE"): rounds}
    assert extractions == finished == [1] * rounds
