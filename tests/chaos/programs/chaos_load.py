"""Three stages, children and a gate: a coroutine, a thread, and a coroutine again."""

import asyncio
import time

from chaos_common import (
    ATTEMPTS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    Body,
    end_with_the_scenario,
    seconds_for,
    told,
)

from onceflow import Done, Pipeline, Stage, Work

CHILDREN = 2


def children_of(key: str) -> list[str]:
    return [] if "/" in key else [f"{key}/{number}" for number in range(CHILDREN)]


def expected(key: str) -> dict[str, object]:
    """What each stage gives for a key, whoever does it and how often it was tried."""
    return {"fetch": f"page {key}", "expand": len(children_of(key)), "weigh": sum(key.encode())}


async def fetch(work: Work) -> Body:
    await asyncio.sleep(seconds_for(work, 0.02, 0.1))
    return told(work, expected(work.key)["fetch"])


def expand(work: Work) -> Done:
    time.sleep(seconds_for(work, 0.01, 0.06))
    children = children_of(work.key)
    return Done(told(work, len(children)), children=children)


async def weigh(work: Work) -> Body:
    await asyncio.sleep(seconds_for(work, 0.02, 0.1))
    return told(work, sum(work.key.encode()))


async def digest(work: Work) -> Body:
    total = items = 0
    async for item in work.finished_items():
        assert isinstance(item.result, dict)
        items += 1
        total += item.result["value"]
    return told(work, {"items": items, "total": total})


load = Pipeline(
    "load",
    Stage("fetch", fetch, processors=4),
    Stage("expand", expand, processors=4),
    Stage("weigh", weigh, processors=4),
    after_all=digest,
    lease_seconds=LEASE_SECONDS,
    heartbeat_seconds=HEARTBEAT_SECONDS,
    attempts=ATTEMPTS,
    backoff_seconds=0.1,
)

end_with_the_scenario()
