"""Failovers of a real server with its standby, while work is under way."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onceflow
from onceflow import Flow, Pipeline, Settings, Stage, StoreUnavailable, Work
from tests.chaos.kit import say
from tests.engine.kit import audited, until
from tests.engine.proxy import Proxy
from tests.support import postgres

SETTINGS = Settings(
    poll_seconds=0.05, patience_seconds=0.2, health_seconds=0.5, cleanup_seconds=1, grace_seconds=5
)
PLACES = 10
MORE = 40


@dataclass(frozen=True)
class Failover:
    """What was seen of one."""

    acknowledged: int
    lost: int
    """Of what was acknowledged, how much the new server did not know."""
    refused: int
    """Leases of before the failover whose outcomes were refused."""
    setbacks: int
    """Times that a worker noticed, and said, that history was lost."""


@contextmanager
def pair(synchronous: bool) -> Iterator[tuple[postgres.Server, postgres.Server]]:
    """A server and its standby, which has all that the server has."""
    settings = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
    with postgres.start(settings=settings) as primary, primary.standby() as standby:
        if synchronous:
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.execute("SELECT pg_reload_conf()")
        yield primary, standby


async def echo(work: Work) -> str:
    """Long enough that every place has an attempt under way at any moment."""
    await asyncio.sleep(0.3)
    return work.key


async def fail_over(synchronous: bool) -> Failover:
    """Let two workers lose their server in the middle, and go on with its standby. Whatever was
    lost is added again; then every item must have the result of its own key, once."""
    pipeline = Pipeline("echo", Stage("work", echo, processors=PLACES), backoff_seconds=0)
    with pair(synchronous) as (primary, standby):
        async with (
            Proxy(primary.url) as proxy,
            onceflow.open(proxy.url, pipeline, settings=SETTINGS) as one,
            onceflow.open(proxy.url, pipeline, settings=SETTINGS) as other,
            onceflow.open(proxy.url, pipeline, settings=SETTINGS) as client,
        ):
            told: list[tuple[str, str | None]] = []
            following = asyncio.create_task(_follow(client, told))
            flows = [one, other]
            for flow in flows:
                flow.start()
            wanted = [f"early {at}" for at in range(PLACES)]
            await client.add(pipeline, wanted)
            await until(client, lambda: _active(client, 1))
            if not synchronous:
                await asyncio.sleep(0.3)  # let it have what was added until now
                standby.fall_behind()
            late = [f"late {at}" for at in range(MORE)]
            await client.add(pipeline, late)
            wanted += late
            await until(client, lambda: _active(client, PLACES))

            await until(client, lambda: _heard(told, set(wanted)))
            primary.halt("immediate")
            heard = len(told)
            standby.promote()
            proxy.lead_to(standby.url)
            # Others come first: they get the ids, and the fences, that those that are lost had.
            wanted += (others := [f"other {at}" for at in range(MORE)])
            await _insist(client, pipeline, others)
            known = {item.key for item in await client.items(pipeline)}
            lost = sorted(set(wanted) - known)
            await _insist(client, pipeline, wanted)
            await until(client, lambda: _completed(client, len(wanted)))

            await until(client, lambda: _heard(told[heard:], {*others, *lost}))
            assert ("server_changed", None) in told[heard:]
            following.cancel()
            for item in await client.items(pipeline):
                assert await client.result(item.id, "work") == item.key
                kinds = [event.kind async for event in client.events(item=item.id)]
                assert kinds.count("stage_finished") == 1, (item.key, kinds)
            for flow in flows:
                await flow.stop()
            await audited(client)
            tallies = [flow.last_health.tally for flow in flows if flow.last_health is not None]
            return Failover(
                len(wanted),
                len(lost),
                sum(tally["lost"] for tally in tallies),
                sum(tally["setbacks"] for tally in tallies),
            )


async def _follow(flow: Flow, told: list[tuple[str, str | None]]) -> None:
    """Read the history as it grows, and go on where it was cut off."""
    after = 0
    while True:
        try:
            async for event in flow.events(after=after, follow=True):
                after = event.seq
                told.append((event.kind, event.key))
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def _heard(told: list[tuple[str, str | None]], keys: set[str]) -> bool:
    return keys <= {key for kind, key in told if kind == "added" and key is not None}


async def _active(flow: Flow, count: int) -> bool:
    return len(await flow.items("echo", phase="active")) >= count


async def _completed(flow: Flow, count: int) -> bool:
    try:
        return (await flow.counts("echo")).get("completed", 0) == count
    except StoreUnavailable:
        return False


async def _insist(flow: Flow, pipeline: Pipeline, keys: list[str]) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await flow.add(pipeline, keys)
                return
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def failovers(count: int, synchronous: bool) -> None:
    """F27: one after the other. A standby that lagged behind loses what was acknowledged last, and
    nothing else happens to it; one that was waited for loses nothing."""
    found = [await fail_over(synchronous) for _ in range(count)]
    lost, refused = sum(one.lost for one in found), sum(one.refused for one in found)
    say(
        "F27", "postgresql://", failovers=count, synchronous=synchronous,
        items=sum(one.acknowledged for one in found), lost=lost, stale_leases_refused=refused,
    )  # fmt: skip
    for one in found:
        assert bool(one.lost) is not synchronous
        assert bool(one.setbacks) is not synchronous, "it is said, and only then"
        assert synchronous or one.refused >= PLACES
