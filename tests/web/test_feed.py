"""One reader of the database for many readers of events: when they are told, and what of."""

import asyncio
from pathlib import Path

import onceflow
from onceflow import Event, Flow, Pipeline, Stage
from onceflow.web.feed import Feed, Wanted

TABLE = Pipeline("stored", Stage("wait", lambda work: None, held=True))


async def added(flow: Flow, feed: Feed, *keys: str) -> list[Event]:
    """Add items, one by one, and let the feed take their events."""
    for key in keys:
        await flow.add(TABLE, [key])
    events = [event async for event in flow.events(after=feed.newest)]
    for event in events:
        feed._take(event)
    return events


async def next_batch(feed: Feed, after: int) -> list[int]:
    async for batch in feed.follow(after, Wanted(), ping_seconds=60):
        return [event.seq for event in batch if isinstance(event, Event)]
    raise AssertionError("the feed ended")


async def test_few_readers_are_told_of_each_event_at_once(tmp_path: Path) -> None:
    async with onceflow.open(str(tmp_path / "a.db"), TABLE) as flow:
        feed = Feed(flow)
        await feed.start()
        waiting = asyncio.create_task(next_batch(feed, feed.newest))
        await asyncio.sleep(0)
        [event, *_] = await added(flow, feed, "one")
        await asyncio.sleep(0)
        await added(flow, feed, "two")
        assert (await waiting)[0] == event.seq
        assert event.seq < feed.newest


async def test_what_happens_while_many_are_told_goes_out_together(tmp_path: Path) -> None:
    async with onceflow.open(str(tmp_path / "a.db"), TABLE) as flow:
        feed = Feed(flow)
        feed.readers = 10_000
        await feed.start()
        waiting = asyncio.create_task(next_batch(feed, feed.newest))
        await asyncio.sleep(0)
        events = await added(flow, feed, "one", "two", "three")
        assert await waiting == [event.seq for event in events]
        assert len(events) >= 3


async def test_a_feed_that_is_closed_lets_readers_go_though_it_was_silent(tmp_path: Path) -> None:
    async with onceflow.open(str(tmp_path / "a.db"), TABLE) as flow:
        feed = Feed(flow)
        feed.readers = 10_000
        await feed.start()
        await added(flow, feed, "one")

        async def read() -> list[int]:
            follow = feed.follow(feed.newest, Wanted(), ping_seconds=60)
            return [len(batch) async for batch in follow]

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        await added(flow, feed, "two")
        feed.close()
        assert sum(await reading) <= 1
