"""Load on one machine: steady calls, many readers and a worker, over a full database.

`ONCEFLOW_TEST_LOAD_SECONDS=120 python -m pytest -m chaos tests/web/test_load.py -s` prints the
figures; they are for comparing runs on a quiet machine.
"""

import asyncio
import json
import os
import random
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

import onceflow
from onceflow import Pipeline, Stage
from tests.cli.loopback import Loopback
from tests.web.kit import served

SECONDS = float(os.environ.get("ONCEFLOW_TEST_LOAD_SECONDS", "20"))
ITEMS = int(os.environ.get("ONCEFLOW_TEST_LOAD_ITEMS", "200000"))
RATE = 200
READERS, LAZY = 200, 20
PROGRAM = """
from onceflow import Pipeline, Stage
stored = Pipeline("stored", Stage("wait", lambda work: None, held=True))
"""


async def fill(database: str) -> None:
    table = Pipeline("stored", Stage("wait", lambda work: None, held=True))
    async with onceflow.open(database, table) as flow:
        await flow.add(table, (f"item {number}" for number in range(ITEMS)))


class Load:
    """Calls at a steady rate; each time is kept by its kind."""

    def __init__(self, client: aiohttp.ClientSession, urls: list[str]) -> None:
        self._client = client
        self._urls = urls
        self._chance = random.Random(7)
        self.jobs: list[int] = []
        self.times: dict[str, list[float]] = {}
        self.all: list[tuple[float, float]] = []
        self.wrong: list[Any] = []

    async def call(self, kind: str, method: str, path: str, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            async with self._client.request(method, path, **more) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.wrong.append((path, repr(error)))
            return None
        took = time.perf_counter() - began
        self.times.setdefault(kind, []).append(took)
        self.all.append((began, took))
        if answer.status >= 300:
            self.wrong.append((path, answer.status, text[:200]))
        return text

    async def one(self) -> None:
        chance = self._chance
        job = chance.choice(self.jobs)
        match chance.randrange(10):
            case 0:
                await self.call("health", "GET", "/health")
            case 1 | 2 | 3:
                await self.call("read", "GET", f"/api/ingestion-jobs/{job}")
            case 4 | 5:
                after = chance.randrange(ITEMS)
                await self.call("read", "GET", f"/api/items?limit=20&after={after}")
            case 6:
                await self.call("read", "GET", f"/api/items/{chance.randrange(1, ITEMS)}")
            case 7:
                body = {"url": chance.choice(self._urls)}
                await self.call("submit", "POST", "/api/ingestion-jobs", json=body)
            case _:
                await self.call("stage", "POST", f"/api/ingestion-jobs/{job}/fetch")

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(seconds * RATE)):
                wait = began + number / RATE - loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                tasks.create_task(self.one())


def part(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_steady_load_over_a_full_database(tmp_path: Path, world: Loopback) -> None:
    database = str(tmp_path / "load.db")
    (tmp_path / "stored.py").write_text(PROGRAM)
    await fill(database)
    urls = world.articles(300)
    with served(tmp_path, database, "stored.py", world=world) as server:
        memory = psutil.Process(server.process.pid)
        place = urlsplit(server.url)
        lazy = []
        for _ in range(LAZY):
            wire = socket.create_connection((place.hostname, place.port), timeout=180)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.sendall(b"GET /api/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            lazy.append(wire)
        async with aiohttp.ClientSession(
            server.url, connector=aiohttp.TCPConnector(limit=600)
        ) as client:
            load = Load(client, urls)
            for url in urls[:20]:
                text = await load.call("warm", "POST", "/api/ingestion-jobs", json={"url": url})
                load.jobs.append(json.loads(text)["id"])
            for job in load.jobs:
                await load.call("warm", "POST", f"/api/ingestion-jobs/{job}/fetch")
            seen: list[list[int]] = [[] for _ in range(READERS - LAZY)]
            path = f"/api/events?follow=false&item={load.jobs[-1]}"
            lines = {"Accept": "application/x-ndjson"}
            begun = await load.call("warm", "GET", path, headers=lines)
            last = json.loads(begun.splitlines()[0])["seq"]

            attached = asyncio.Semaphore(0)

            async def read(at: int) -> None:
                headers = {**lines, "Last-Event-ID": str(last)}
                async with client.get("/api/events", headers=headers) as answer:
                    attached.release()
                    async for line in answer.content:
                        if line.strip():
                            seen[at].append(int(line[7 : line.index(b",")]))  # {"seq":N,…

            readers = [asyncio.create_task(read(at)) for at in range(READERS - LAZY)]
            for _ in readers:
                await attached.acquire()
            before = memory.memory_info().rss
            spent = sum(memory.cpu_times()[:2]), sum(psutil.Process().cpu_times()[:2])
            began = time.perf_counter()
            await load.run(SECONDS)
            after = memory.memory_info().rss
            took = time.perf_counter() - began
            cpu = (sum(memory.cpu_times()[:2]) - spent[0]) / took
            mine = (sum(psutil.Process().cpu_times()[:2]) - spent[1]) / took
            path = f"/api/events?follow=false&after={last}"
            text = await load.call("warm", "GET", path, headers=lines)
            wanted = [json.loads(line)["seq"] for line in text.splitlines()]
            for _ in range(600):
                if all(one[-1:] == wanted[-1:] for one in seen):
                    break
                await asyncio.sleep(0.05)
            for task in readers:
                task.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        for wire in lazy:
            wire.close()
    health = part(load.times["health"], 0.5)
    for kind, times in load.times.items():
        shown = f"p50 {part(times, 0.5):.1f} ms, p99 {part(times, 0.99):.1f} ms"
        print(f"\n{kind}: {len(times)} calls, {shown}", end="")  # noqa: T201 - the figures
    print(f"\n{took:.1f} s; cores used: server {cpu:.2f}, client {mine:.2f}", end="")  # noqa: T201
    grown = (after - before) / 2**20
    print(f"\n{len(wanted)} events to {len(seen)} readers; memory {grown:+.0f} MiB")  # noqa: T201
    late = Counter(int(at - began) for at, took in load.all if took * 1000 > 20 * health)
    print("late calls by second:", sorted(late.items()))  # noqa: T201
    kinds = Counter(str(one[1]) for one in load.wrong)
    assert not kinds, (kinds, load.wrong[:5])
    assert all(one == wanted for one in seen)
    assert grown < 256
    assert part(load.times["read"], 0.99) <= 20 * health
