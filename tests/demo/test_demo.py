"""`onceflow demo` from start to end, in real processes, from a wheel."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import onceflow
from onceflow.demo.articles import articles
from tests.demo.conftest import ended

COMMAND = [sys.executable, "-m", "onceflow", "demo", "--json", "--speed", "8"]
SLOW = "/articles/icetrade"


@dataclass(frozen=True)
class Played:
    """A demo that was played."""

    out: Path
    report: dict[str, Any]
    story: str

    def url(self, path: str) -> str:
        return str(self.report["site"]).rstrip("/") + path


@pytest.fixture(scope="module")
def played(installed: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("played")
    done = subprocess.run(
        COMMAND, cwd=folder, env=installed, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Played(folder / "onceflow-demo", json.loads(done.stdout), done.stderr)


def test_it_ends_well(played: Played) -> None:
    assert played.report["ok"]
    assert played.report["wrong"] == []
    assert "All as it should be" in played.story


async def test_every_article_was_summarized_once(played: Played) -> None:
    async with onceflow.open(played.out / "demo.db") as flow:
        items = await flow.items("summarize", state="completed")
        pages = [item for item in items if not item.key.startswith("gate:")]
        titles: list[str] = []
        for item in pages:
            stages = [row["stage"] for row in await flow.results(item.id)]
            assert stages == ["scrape", "summarize"], item.key
            result: dict[str, Any] = await flow.result(item.id, "summarize")
            titles += [] if "same_as" in result else [result["title"]]
        assert sorted(titles) == sorted(one.title for one in articles().values())
        finished = [event async for event in flow.events(kinds=["summary_finished"])]
        assert sorted(event.key or "" for event in finished) == sorted(item.key for item in pages)


async def test_what_the_killed_worker_held_was_finished_by_the_other(played: Played) -> None:
    report = played.report
    assert SLOW in report["held"]
    assert set(report["held"]) <= set(report["taken_over"])
    assert ended(report["killed_pid"])
    async with onceflow.open(played.out / "demo.db") as flow:
        item = await flow.item("summarize", played.url(SLOW))
        history = [event async for event in flow.events(item=item.id)]
    told = [event.kind for event in history if event.stage == "scrape"]
    assert told[:4] == ["added", "claimed", "reclaimed", "claimed"]
    assert told.count("scrape_finished") == 1
    first, *others = [one for one in history if one.kind == "claimed" and one.stage == "scrape"]
    assert first.worker not in {one.worker for one in others}
    assert (first.fence or 0) < min(one.fence or 0 for one in others)
    assert item.state == "completed"


async def test_the_audit_is_clean(played: Played) -> None:
    assert "no violation" in played.report["audit"]
    async with onceflow.open(played.out / "demo.db") as flow:
        assert await flow.audit(grace_seconds=0) == []


async def test_the_server_saw_each_page_once_but_for_what_failed_and_what_was_killed(
    played: Played,
) -> None:
    requests: dict[str, list[str]] = played.report["requests"]
    most = Counter(requests.keys())
    async with onceflow.open(played.out / "demo.db") as flow:
        async for event in flow.events(kinds=["retried", "reclaimed"]):
            most[urlsplit(event.key or "").path] += 1
    most["/articles/sourdough"] = most["/2019/sourdough"]  # where it leads to
    assert {path: how for path, how in requests.items() if len(how) > most[path]} == {}
    assert [requests[SLOW][0], requests[SLOW][-1]] == ["cut off by the kill", "200"]
    assert requests["/articles/lighthouses"].count("503") == 2
    assert requests["/articles/perpetual-motion"] == ["404"]
    assert "/drafts/unfinished" not in requests


def test_there_is_a_file_for_each_page_and_one_digest(played: Played) -> None:
    folder = played.out / "summaries"
    digest = json.loads((folder / "digest.json").read_text())
    text = (folder / "digest.md").read_text()
    assert len(list(folder.glob("[0-9]*.json"))) == played.report["items"] == 18
    assert [one["title"] in text for one in digest["articles"]] == [True] * len(articles())
    assert {one["code"] for one in digest["failed"]} == {"http_404", "robots_disallowed"}


def test_the_worker_that_was_left_ended_without_a_complaint(played: Played) -> None:
    number = 1 if played.report["killed"] == "worker 2" else 2
    log = (played.out / f"worker-{number}.log").read_text()
    assert "summary_finished: completed" in log
    assert "Traceback" not in log
    assert "Fatal" not in log


def test_adding_everything_again_adds_nothing(played: Played) -> None:
    assert played.report["added_again"] == {"new": 0, "known": 19}


def test_its_story_reads_well_in_sixty_columns_and_without_a_terminal(played: Played) -> None:
    lines = played.story.splitlines()
    assert "\x1b" not in played.story
    assert [line for line in lines if len(line) > 60 and len(line.split()) > 4] == []
    for part in (
        r"KILLED worker [12] \(pid \d+\) with kill -9", rf"It held .*{SLOW} \(scraping\)",
        rf"lease over: {SLOW}", rf"worker [12] takes over {SLOW}", "What the server itself saw",
        r"\$ onceflow audit --db", "Where to look next",
    ):  # fmt: skip
        assert re.search(part, " ".join(played.story.split())), part


@contextmanager
def _started(folder: Path, environment: dict[str, str]) -> Iterator[tuple[Any, list[int]]]:
    """A demo under way that has killed its worker, and the ids of its workers."""
    demo = subprocess.Popen(
        COMMAND, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert demo.stderr is not None
    told = ""
    try:
        while "KILLED" not in told:
            line = demo.stderr.readline()
            assert line, told
            told += line
        yield demo, [int(pid) for pid in re.findall(r"\(pid\s+(\d+)\)", told.partition("model")[0])]
    finally:
        demo.kill()
        demo.communicate()


def test_an_interrupted_demo_leaves_no_worker_behind(
    installed: dict[str, str], tmp_path: Path
) -> None:
    with _started(tmp_path, installed) as (demo, workers):
        demo.send_signal(signal.SIGINT)
        assert demo.wait(180) == 130
        assert len(workers) == 2
        assert all(ended(pid) for pid in workers)


def test_a_killed_demo_leaves_no_worker_behind(installed: dict[str, str], tmp_path: Path) -> None:
    with _started(tmp_path, installed) as (demo, workers):
        [alive] = [pid for pid in workers if not ended(pid)]
        handle = os.pidfd_open(alive)
        demo.kill()
        gone, _, _ = select.select([handle], [], [], 180)
        os.close(handle)
        assert gone
