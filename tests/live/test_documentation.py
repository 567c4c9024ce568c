"""A thousand real pages, four workers, and somebody who kills one of them every few seconds."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

import onceflow
from onceflow.pipelines.summaries import document
from onceflow.pipelines.summarize import Summarize
from tests.support import docs, nginx

pytestmark = [pytest.mark.live, pytest.mark.timeout(1500)]

PAGES = 1000
WORKERS = 4
KILL_SECONDS = (3.0, 6.0)
SCRAPES_MAX = 8
SECONDS_MAX = 1200.0

CONFIG = """
[summarize]
host_limit = 8
host_spacing_seconds = 0
lease_seconds = 8

[engine]
cleanup_seconds = 1
scan_seconds = 2

[fetch]
allow_networks = ["127.0.0.2/32"]

[extract]
processes = 1
"""


class Workers:
    """Worker processes, killed at random and replaced."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._processes = [self._start() for _ in range(WORKERS)]
        self.killed = 0

    def kill_one(self) -> None:
        at = self._chance.randrange(len(self._processes))
        self._processes[at].kill()
        self._processes[at].wait()
        self._processes[at] = self._start()
        self.killed += 1

    def pause(self) -> float:
        return self._chance.uniform(*KILL_SECONDS)

    def pids(self) -> set[int]:
        return {process.pid for process in self._processes}

    def stop(self) -> list[int]:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(timeout=60) for process in self._processes]

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._folder / "workers.log").open("ab") as log:
            return subprocess.Popen(
                command("worker", "summarize", "--quiet"), cwd=self._folder, stderr=log,
                stdout=log, stdin=subprocess.DEVNULL, env=environment(),
            )  # fmt: skip


def environment() -> dict[str, str]:
    """Without settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if "ONCEFLOW" not in name}
    return {**kept, "OMP_NUM_THREADS": "1"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "onceflow", *words]


def said(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        command(*words), cwd=folder, capture_output=True, text=True, env=environment(),
        timeout=300, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


@contextmanager
def working(folder: Path, seed: int) -> Iterator[Workers]:
    workers = Workers(folder, seed)
    try:
        yield workers
    finally:
        for process in workers._processes:
            process.kill()
            process.wait()


async def is_over(flow: onceflow.Flow) -> bool:
    (run,) = await flow.runs("summarize")
    return run.finished_at is not None


async def all_have_begun(flow: onceflow.Flow, workers: Workers) -> None:
    until = time.monotonic() + 60
    while not workers.pids() <= {row["pid"] for row in await flow.store.read("workers")}:
        assert time.monotonic() < until, "a worker does not begin"
        time.sleep(0.05)  # noqa: ASYNC251 - as above


async def test_a_thousand_pages_with_workers_killed(
    site: nginx.Server, documentation: Path, tmp_path: Path
) -> None:
    paths = [f"/{path}" for path in docs.pages(bytes_max=120_000)]
    paths = random.Random(7).sample(paths, PAGES)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "onceflow.toml").write_text(CONFIG)
    (folder / "urls.txt").write_text("\n".join(site.url(path) for path in paths))
    code, added = said(folder, "summarize", "urls.txt", "--add-only", "--json")
    assert (code, json.loads(added)["new"]) == (0, PAGES)

    table = Summarize().pipeline()
    busiest = 0
    async with onceflow.open(folder / "onceflow.db", table) as flow:
        with working(folder, seed=3) as workers:
            until = time.monotonic() + SECONDS_MAX
            kill_at = time.monotonic() + workers.pause()
            while not await is_over(flow):
                assert time.monotonic() < until, "it does not come to an end"
                if time.monotonic() >= kill_at:
                    workers.kill_one()
                    kill_at = time.monotonic() + workers.pause()
                busiest = max(busiest, at_once(site))
                time.sleep(0.02)  # noqa: ASYNC251 - real processes at work; nothing else to do
            await all_have_begun(flow, workers)  # before that, a signal ends them like any program
            exit_codes = workers.stop()
        await looked_at(flow, site, paths, folder, workers.killed)
    assert busiest <= SCRAPES_MAX + 1  # and the one that asks
    assert exit_codes == [0] * WORKERS


def at_once(site: nginx.Server) -> int:
    """How many requests nginx is answering, by its own count: ours for this page among them."""
    with urlopen(site.url("/now")) as answer:
        text = answer.read().decode()
    return int(text.partition("Writing: ")[2].split()[0])


async def looked_at(
    flow: onceflow.Flow, site: nginx.Server, paths: list[str], folder: Path, killed: int
) -> None:
    items = [one for one in await flow.items("summarize", limit=10_000) if one.stage != "digest"]
    assert Counter(item.state for item in items) == {"completed": PAGES}

    claims: Counter[str] = Counter()
    unfinished: Counter[str] = Counter()
    finished: Counter[str] = Counter()
    gates = 0
    async for event in flow.events():
        if event.kind == "claimed" and event.stage == "scrape":
            claims[event.key or ""] += 1
        if event.stage == "scrape" and event.kind in ("reclaimed", "released", "retried"):
            unfinished[f"{event.kind} {event.data.get('code') or ''}".strip()] += 1
        finished[event.key or ""] += event.kind == "summary_finished"
        gates += event.kind == "gate_opened"
    assert gates == 1
    assert {finished[site.url(path)] for path in paths} == {1}

    log = [line for line in site.lines() if line.path in set(paths)]
    assert {line.status for line in log} == {200}, "nginx refuses the ninth at once with 503"
    fetches = Counter(line.path for line in log)
    assert set(fetches) == set(paths)
    for path in paths:
        assert fetches[path] <= claims[site.url(path)], "never twice in one attempt"
    extra = sum(fetches.values()) - PAGES
    assert extra <= sum(unfinished.values()), "once more for an attempt that did not finish"
    # An attempt that was killed is taken back by others. On a machine that is busy beyond measure
    # one may also have run out of its time; nothing else may have happened.
    assert set(unfinished) <= {"reclaimed", "released", "retried timeout", "retried extract_failed"}

    code, _ = said(folder, "summarize", "urls.txt", "--out", "out", "--json")
    assert code == 0
    for item in items:
        stored = json.loads((folder / "out" / f"{item.id}.json").read_text())
        assert stored == await document(flow, item)
        assert stored["summary"] or stored["note"]
    digest = json.loads((folder / "out" / "digest.json").read_text())
    assert len(digest["articles"]) + len(digest.get("same", [])) == PAGES
    assert digest["failed"] == []
    assert len([one for one in await flow.items("summarize", limit=10_000)
                if one.stage == "digest"]) == 1  # fmt: skip
    code, _ = said(folder, "audit")
    assert code == 0
    asked = sum(line.path == "/robots.txt" for line in site.lines())
    assert asked <= WORKERS + killed + 1  # once for each process that fetches
    print(f"{killed} workers killed, attempts: {dict(unfinished)}, {extra} pages fetched again")  # noqa: T201 - for who watches
