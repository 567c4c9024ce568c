"""What is asked of Onceflow alone: does it stay as it is when there is much of everything?"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import onceflow
from bench import grow
from bench.machine import rss_bytes
from bench.measures import ClaimTimes, Memory
from onceflow import Pipeline, Stage, Work
from onceflow.store import open_store
from onceflow.store.base import Claim, Store, Worker

CLAIMS = 300
"""Claims timed in each table."""
SAMPLES = 100
"""How often memory is looked at while a worker works off its items."""
ADD_CHUNK = 50_000

WORKER = Worker("bench-worker", "bench", 0)


async def noop(work: Work) -> None:
    pass


BENCH = Pipeline("bench", Stage("only", noop, processors=500, batch=500))


async def claim_times(task: dict[str, Any]) -> dict[str, Any]:
    """Single claims in a small table and in a large one, in turns: both meet the same weather.

    The tables must have been grown before; every second item in them is ready.
    """
    stores = [await _opened(task["url_small"]), await _opened(task["url"])]
    times: list[list[float]] = [[], []]
    for turn in range(CLAIMS):
        for store, seconds in zip(stores, times, strict=True):
            claim = Claim(BENCH.name, BENCH.first.name, before="", count=1, turn=turn)
            began = time.perf_counter()
            answer = await store.exchange(WORKER.id, [], [claim])
            seconds.append(time.perf_counter() - began)
            if not answer.claimed[0].leases:
                raise RuntimeError("there was nothing left to claim")
    for store in stores:
        await store.close()
    small, large = (ClaimTimes(n, s) for n, s in zip(task["rows"], times, strict=True))
    return {"small": small, "large": large}


async def grown(task: dict[str, Any]) -> dict[str, int]:
    """Fill a database with n items, half of them done."""
    return {"rows": await grow.grow(task["url"], BENCH, task["n"])}


async def filled(task: dict[str, Any]) -> dict[str, int]:
    """Add n items, so that the process that works them off has not."""
    n: int = task["n"]
    async with onceflow.open(task["url"], BENCH) as flow:
        run = None
        for start in range(0, n, ADD_CHUNK):
            end = min(start + ADD_CHUNK, n)
            keys = [f"item {i}" for i in range(start, end)]
            run = (await flow.add(BENCH, keys, run=run, seal=end == n)).run
    return {"rows": n}


async def memory(task: dict[str, Any]) -> Memory:
    """Work off what is there, looking at this process's memory from time to time."""
    n: int = task["n"]
    every = max(n // SAMPLES, 1)
    done = 0
    samples = Memory([], [])

    async def sampled(work: Work) -> None:
        nonlocal done
        done += 1
        if done % every == 0:
            samples.items.append(done)
            samples.rss_bytes.append(rss_bytes())

    pipeline = Pipeline("bench", Stage("only", sampled, processors=500, batch=500))
    async with onceflow.open(task["url"], pipeline) as flow:
        await flow.drain()
    if done != n:
        raise RuntimeError(f"{done} of {n} items were worked on")
    return samples


async def _opened(url: str) -> Store:
    store: Store = open_store(url)
    await store.open([BENCH])
    await store.beat(WORKER)
    return store


MEASURES: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
    "claim_times": claim_times,
    "grown": grown,
    "filled": filled,
    "memory": memory,
}
