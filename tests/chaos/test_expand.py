"""An expansion whose workers are killed: exactly the reachable articles, at their true depths."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow import Flow
from onceflow.pipelines.expand import Expand
from onceflow.testing.wiki import depths, edges, ends, graph
from tests.chaos.kit import SEED, SHORT, Crew, all_have_begun, holders, say, until

LEASE_SECONDS = 4.0
KILL_SECONDS = (0.5, 1.5)


@contextmanager
def wiki_process(folder: Path, **shape: int) -> Iterator[str]:
    """The API double in a process of its own; its URL."""
    words = [f"--{name}={value}" for name, value in shape.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "onceflow.testing.wiki", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def configure(folder: Path, wiki: str) -> None:
    (folder / "onceflow.toml").write_text(
        f'contact = "tests@example.org"\n[fetch]\nallow_networks = ["127.0.0.2/32"]\n'
        f"[expand]\nwiki = {json.dumps(wiki)}\nlease_seconds = {LEASE_SECONDS}\nconnections = 1\n",
        encoding="utf-8",
    )


async def nodes(flow: Flow, run: str) -> dict[str, dict[str, Any]]:
    """Every loaded article of a run, each once, under its own title."""
    found: dict[str, dict[str, Any]] = {}
    after = 0
    while page := await flow.items("expand", run=run, after=after, limit=500):
        after = page[-1].id
        for item in page:
            assert item.state == "processed", (item.key, item.state, item.error)
            body = await flow.result(item.id, "load")
            if "same_as" in body:
                continue
            assert body["title"] == item.key
            assert item.key not in found
            found[item.key] = {"links": body["links"], "depth": item.depth}
    return found


async def expand_under_kills(
    database: str,
    folder: Path,
    *,
    shape: dict[str, int],
    kills: int | None,
    max_articles: int | None = None,
    workers: int = 4,
    least: int = 1,
) -> None:
    """Several workers; one of them that has at least some leases is killed now and then (`kills`
    times, or until all is done) and another one started."""
    chance = random.Random(SEED)
    pages = graph(**shape)
    pipeline = Expand(lease_seconds=LEASE_SECONDS).pipeline()
    with wiki_process(folder, **shape) as wiki, Crew("expand", database, folder) as crew:
        configure(folder, wiki)
        async with onceflow.open(database, pipeline) as flow:
            added = await flow.add("expand", ["Topic 0"], max_items=max_articles)

            async def over() -> bool:
                run = await flow.run(added.run)
                return run.finished_at is not None and run.open == 0

            for _ in range(workers):
                crew.command("worker", "expand", *SHORT)
            await all_have_begun(flow, crew, workers)
            killed = held = settled = 0
            while not await over() and (kills is None or killed < kills):
                busy = [
                    (pid, leases)
                    for pid, leases in (await holders(flow, crew)).values()
                    if leases >= least
                ]
                done = (await flow.counts("expand")).get("processed", 0)
                # A crew that is killed faster than it can load anything proves nothing.
                if busy and (kills is not None or done >= settled + least):
                    settled = done
                    pid, leases = chance.choice(busy)
                    crew.kill([pid])
                    killed, held = killed + 1, held + leases
                    crew.command("worker", "expand", *SHORT)
                await asyncio.sleep(0.02 if kills else chance.uniform(*KILL_SECONDS))
            await until(over, "every article is processed", crew, seconds=600)
            crew.stop()
            found = await nodes(flow, added.run)
            accepted = (await flow.run(added.run)).accepted
            assert await flow.audit() == []
            again = 0
            async for event in flow.events(pipeline="expand", kinds=["reopened"]):
                again += "shorter" in str(event.data)
    crew.check_logs()
    true = depths(pages, ["Topic 0"])
    if max_articles is None:
        assert {title: body["depth"] for title, body in found.items()} == true
    else:
        assert accepted == max_articles
        assert found.keys() <= true.keys()
        inside = {title: page for title, page in pages.items() if title in found or page.redirect}
        assert {title: body["depth"] for title, body in found.items()} == depths(
            inside, ["Topic 0"]
        )
    links = [
        (title, end)
        for title, body in found.items()
        for end in dict.fromkeys(ends(pages, link) for link in body["links"])
        if end in found
    ]
    assert len(links) == len(set(links))
    assert set(links) == edges(pages, found)
    say(
        "expand", database, kills=killed, leases_lost=held, articles=len(found),
        links=len(links), shorter_ways_found_late=again,
    )  # fmt: skip


async def test_an_expansion_with_killed_workers(database: str, tmp_path: Path) -> None:
    shape = {"articles": 200, "links": 1600, "seed": 2, "redirects": 20}
    await expand_under_kills(database, tmp_path, shape=shape, kills=2, workers=2, least=5)


LARGE = {"articles": 5000, "links": 120_000, "seed": 11}


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_a_large_expansion_with_kills(database: str, tmp_path: Path) -> None:
    await expand_under_kills(database, tmp_path, shape=LARGE, kills=None, least=20)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_a_large_expansion_with_a_budget_and_kills(database: str, tmp_path: Path) -> None:
    await expand_under_kills(
        database,
        tmp_path,
        shape=LARGE | {"redirects": 300},
        kills=None,
        max_articles=1234,
        least=20,
    )
