"""One stage with a limit over all processes."""

import asyncio

from chaos_common import (
    ATTEMPTS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    Body,
    end_with_the_scenario,
    note,
    seconds_for,
    told,
)

from onceflow import Pipeline, Stage, Work

LIMIT = 8


async def fetch(work: Work) -> Body:
    note("began", work)
    await asyncio.sleep(seconds_for(work, 0.05, 0.3))
    return told(work, work.key)


limited = Pipeline(
    "limited",
    Stage("fetch", fetch, limit=LIMIT, processors=4),
    lease_seconds=LEASE_SECONDS,
    heartbeat_seconds=HEARTBEAT_SECONDS,
    attempts=ATTEMPTS,
)

end_with_the_scenario()
