"""A real PgBouncer in transaction mode between several workers and the server."""

import asyncio

import pytest

import onceflow
from onceflow import Pipeline, Stage, Work
from tests.engine.kit import QUICK, audited, until, working
from tests.support import pgbouncer

needs_pgbouncer = pytest.mark.skipif(
    not pgbouncer.there(), reason="no pgbouncer: on Debian, apt-get install pgbouncer"
)


async def echo(work: Work) -> str:
    await asyncio.sleep(0.01)
    return work.key


@needs_pgbouncer
async def test_F29_two_workers_share_the_work_through_a_pooler_with_its_defaults(
    postgres_url: str,
) -> None:
    pipeline = Pipeline("pooled", Stage("one", echo), Stage("two", echo, limit=5))
    with pgbouncer.pooled(postgres_url) as url:
        async with (
            working(onceflow.open(url, pipeline, settings=QUICK)) as one,
            working(onceflow.open(url, pipeline, settings=QUICK)) as two,
        ):
            for number in range(5):
                await one.add(pipeline, [f"{number} {at}" for at in range(50)])

            async def done() -> bool:
                return await one.counts(pipeline) == {"completed": 250}

            await until(one, done)
            for item in await one.items(pipeline):
                assert await one.result(item.id, "two") == item.key
            await one.stop()
            await two.stop()
            await audited(one)
