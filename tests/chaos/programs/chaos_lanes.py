"""One stage in lanes, each with a limit and a spacing."""

import asyncio

from chaos_common import (
    ATTEMPTS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    Body,
    end_with_the_scenario,
    seconds_for,
    told,
)

from onceflow import Lane, Pipeline, Stage, Work

LANE_LIMIT = 2
SPACING_SECONDS = 0.2


def lane_of(key: str) -> str:
    return key.partition("/")[0]


async def fetch(work: Work) -> Body:
    await asyncio.sleep(seconds_for(work, 0.2, 0.7))
    return told(work, work.key)


lanes = Pipeline(
    "lanes",
    Stage(
        "fetch",
        fetch,
        lane=Lane(lane_of, limit=LANE_LIMIT, spacing_seconds=SPACING_SECONDS),
        processors=10,
    ),
    lease_seconds=LEASE_SECONDS,
    heartbeat_seconds=HEARTBEAT_SECONDS,
    attempts=ATTEMPTS,
)

end_with_the_scenario()
