"""One measurement of `bench.wiki`, in a process of its own. Writes its figures as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onceflow
from bench.grow import grow
from bench.onceflow_only import CLAIMS, WORKER
from onceflow import Work
from onceflow.clients import Article, Embedder, FetchSettings, Wikipedia
from onceflow.pipelines.expand import LINK, LOAD, NAME, Expand
from onceflow.store import open_store
from onceflow.store.base import Claim, Store
from onceflow.testing.wiki import ALLOWED

SEED = "Topic 0"


class NoLinks:
    """A wiki of empty articles, to fill a table with."""

    async def load(self, title: str) -> Article:
        return Article(title, 1, 1, "", (), (), (), ())

    async def revisions(self, titles: object) -> dict[str, int | None]:
        return {}


def _wiki(task: dict[str, Any], **options: Any) -> Wikipedia:
    settings = FetchSettings(allow_networks=ALLOWED)
    return Wikipedia(task["url"], contact="bench@example.org", settings=settings, **options)


async def loop(task: dict[str, Any]) -> int:
    """The plain way: one title after the other, each in a request of its own."""
    wiki = _wiki(task, connections=1, titles_max=1)
    job = Expand(wiki)
    queue, known, done = [SEED], {SEED}, 0
    for title in queue:
        body = await job._whole(await wiki.load(title), title, [])
        done += 1
        if done >= task["n"]:
            break
        new = [link for link in body["links"] if link not in known]
        known.update(new)
        queue += new
    await wiki.close()
    return done


async def handlers(task: dict[str, Any]) -> int:
    """The pipeline's own handlers without the engine: all that is known, then what it links to."""
    wiki = _wiki(task, connections=task["connections"])
    job = Expand(wiki)
    room = asyncio.Semaphore(job.at_once)

    async def one(title: str) -> Sequence[str]:
        async with room:
            loaded = await job.load(Work(title, None, NAME, LOAD))
        linked = await job.link(Work(title, loaded.result, NAME, LINK))
        return [str(child) for child in linked.children]

    wave, known, done = [SEED], {SEED}, 0
    while wave:
        links = await asyncio.gather(*(one(title) for title in wave))
        done += len(links)
        wave = list(dict.fromkeys(link for each in links for link in each if link not in known))
        known.update(wave)
    await wiki.close()
    return done


async def expand(task: dict[str, Any]) -> int:
    """The pipeline on SQLite."""
    wiki = _wiki(task, connections=task["connections"])
    job = Expand(wiki)
    path = Path(task["folder"]) / f"expand-{os.getpid()}.db"
    async with onceflow.open(path, job.pipeline()) as flow:
        await flow.add(NAME, [SEED])
        await flow.drain()
        counts = await flow.counts(NAME)
    await wiki.close()
    assert set(counts) == {"processed"}, counts
    return counts["processed"]


def _deepen(path: str) -> None:
    """The newest are not the deepest: what a claim has to find first lies in between."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE item SET depth = 1 + id * 7 % 4 WHERE phase = 'ready'")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def claims(task: dict[str, Any]) -> dict[str, Any]:
    """Claims in a small table and in a large one, in turns: both meet the same weather."""
    table = Expand(NoLinks()).pipeline()
    folder = Path(task["folder"])
    paths = [str(folder / f"claims-{n}-{os.getpid()}.db") for n in task["rows"]]
    for path, n in zip(paths, task["rows"], strict=True):
        await grow(path, table, 2 * n)  # every second one is processed already
        await asyncio.to_thread(_deepen, path)
    stores: list[Store] = []
    for path in paths:
        store: Store = open_store(path)
        await store.open([table])
        await store.beat(WORKER)
        stores.append(store)
    times: list[list[float]] = [[], []]
    for turn in range(CLAIMS):
        for store, seconds in zip(stores, times, strict=True):
            claim = Claim(NAME, LOAD, before="", count=task["batch"], turn=turn)
            began = time.perf_counter()
            answer = await store.exchange(WORKER.id, [], [claim])
            seconds.append(time.perf_counter() - began)
            if not answer.claimed[0].leases:
                raise RuntimeError("there was nothing left to claim")
    for store in stores:
        await store.close()
    for path in paths:
        for file in Path(path).parent.glob(f"{Path(path).name}*"):
            file.unlink()
    return {"seconds": times}


async def main(task: dict[str, Any]) -> dict[str, Any]:
    if task["name"] == "claims":
        return await claims(task)
    await Embedder().embed(["load the weights before the clock starts"])
    measured = {"loop": loop, "handlers": handlers, "expand": expand}[task["name"]]
    cpu, began = time.process_time(), time.perf_counter()
    done = await measured(task)
    seconds = time.perf_counter() - began
    return {"articles": done, "seconds": seconds, "cpu_seconds": time.process_time() - cpu}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
