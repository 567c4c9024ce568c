"""Streamed text: a late reader misses nothing, a new attempt begins anew, a lost one is refused."""

import asyncio
import threading
from typing import Any

import pytest

from onceflow import Done, Flow, Permanent, Settings, Transient, Work
from onceflow.core.item import Lease
from onceflow.engine.bus import BACKLOG_MAX, Bus, Live
from onceflow.engine.streams import Streams
from tests.engine.kit import Database, audited, kinds, one_stage, only, until, working

OFTEN = Settings(poll_seconds=0.05, partial_seconds=0.01, durability="normal")


class Reader:
    """Joins what it hears of one item, as a watcher would."""

    def __init__(self, flow: Flow) -> None:
        self.heard: list[Live] = []
        self.texts: dict[int, str] = {}
        self.first = asyncio.Event()
        self._task = asyncio.create_task(self._read(flow))

    async def _read(self, flow: Flow) -> None:
        async for live in flow.live():
            self.heard.append(live)
            text = self.texts.get(live.fence, "")
            assert live.offset == len(text), "every delta goes on where the last one ended"
            self.texts[live.fence] = text + live.data["text"]
            self.first.set()

    async def end(self) -> None:
        await asyncio.sleep(0)
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()


async def test_a_late_reader_gets_a_snapshot_then_deltas_that_join_to_the_final_text(
    database: Database,
) -> None:
    half, go = asyncio.Event(), asyncio.Event()

    async def stream(work: Work) -> Done:
        text = ""
        for at in range(20):
            part = f"{at}·"
            text += part
            work.emit("summary_partial", text=part)
            if at == 9:
                half.set()
                await go.wait()
            await asyncio.sleep(0)
        return Done({"summary": text}, events=["summary_finished"])

    pipeline = one_stage(stream)
    async with working(database.flow(pipeline, settings=OFTEN)) as flow:
        early = Reader(flow)
        await asyncio.sleep(0)
        await flow.add(pipeline, ["a"])
        await half.wait()
        late = Reader(flow)
        await late.first.wait()
        assert [live.kind for live in late.heard] == ["snapshot"]
        item = await only(flow, pipeline)

        so_far = "".join(f"{at}·" for at in range(10))

        async def stored() -> bool:
            return await flow.partial(item.id) == (1, so_far)

        await until(flow, stored)
        go.set()

        async def finished() -> bool:
            return "summary_finished" in await kinds(flow, item.id)

        await until(flow, finished)
        final = (await flow.result(item.id, "work"))["summary"]
        for reader in (early, late):
            await reader.end()
            assert reader.texts == {1: final}
        assert await flow.partial(item.id) is None, "the result is there, the draft is gone"
        assert (await kinds(flow, item.id)).count("summary_finished") == 1
        await flow.stop()
        await audited(flow)


async def test_a_new_attempt_starts_a_new_epoch(database: Database) -> None:
    async def stream(work: Work) -> str:
        work.emit("summary_partial", text=f"attempt {work.attempt}")
        await asyncio.sleep(0.02)
        if work.attempt == 1:
            raise Transient("the model stopped")
        return f"attempt {work.attempt}"

    pipeline = one_stage(stream)
    async with database.flow(pipeline, settings=OFTEN) as flow:
        await flow.add(pipeline, ["a"])
        flow.start()
        reader = Reader(flow)
        item = await only(flow, pipeline)

        async def done() -> bool:
            return (await flow.item(pipeline, "a")).state == "completed"

        await until(flow, done)
        await reader.end()
        assert reader.texts == {1: "attempt 1", 2: "attempt 2"}
        assert await flow.result(item.id, "work") == "attempt 2"


async def test_a_thread_that_was_left_behind_cannot_speak_for_the_new_attempt(
    database: Database,
) -> None:
    """The first attempt hangs past its deadline in a thread; it emits while the second one runs."""
    second, told, over = threading.Event(), threading.Event(), threading.Event()

    def stream(work: Work) -> str:
        if work.attempt == 1:
            second.wait(60)
            work.emit("summary_partial", text="from the grave")
            told.set()
            return "too late"
        work.emit("summary_partial", text="one ")
        second.set()
        told.wait(60)
        work.emit("summary_partial", text="two")
        over.set()
        return "one two"

    pipeline = one_stage(stream, deadline_seconds=0.1)
    settings = Settings(poll_seconds=0.05, health_seconds=0.05, partial_seconds=0.01)
    async with working(database.flow(pipeline, settings=settings)) as flow:
        reader = Reader(flow)
        await flow.add(pipeline, ["a"])

        async def done() -> bool:
            return (await flow.item(pipeline, "a")).state in ("completed", "failed")

        await until(flow, done)
        await reader.end()
        final = (await only(flow, pipeline)).fence
        assert reader.texts.get(final) == "one two"
        assert "from the grave" not in "".join(reader.texts.values())
        assert await flow.result((await only(flow, pipeline)).id, "work") == "one two"
        await flow.stop()
        await audited(flow)


async def test_text_that_no_database_takes_is_cleaned_as_it_streams(database: Database) -> None:
    go = asyncio.Event()

    async def stream(work: Work) -> None:
        work.emit("summary_partial", text="a\x00b\ud800c", model="m")
        work.emit("page_read", pages=3)
        await go.wait()

    pipeline = one_stage(stream, events=("page_read",))
    async with working(database.flow(pipeline, settings=OFTEN)) as flow:
        heard: list[Live] = []

        async def read() -> None:
            async for live in flow.live():
                heard.append(live)

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        await flow.add(pipeline, ["a"])

        async def saved() -> Any:
            return await flow.partial((await only(flow, pipeline)).id)

        assert (await until(flow, saved))[1] == "abc"
        go.set()
        reading.cancel()
        assert [(live.kind, live.offset, live.data) for live in heard] == [
            ("summary_partial", 0, {"text": "abc", "model": "m"}),
            ("page_read", 3, {"pages": 3}),
        ]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_unknown_kind_of_partial_is_refused_by_name(
    database: Database, in_thread: bool
) -> None:
    def emit(work: Work) -> None:
        work.emit("summary_partly", text="x")

    async def emit_in_loop(work: Work) -> None:
        emit(work)

    pipeline = one_stage(emit if in_thread else emit_in_loop)
    async with database.flow(pipeline) as flow:
        await flow.add(pipeline, ["a"])
        await flow.drain()
        item = await only(flow, pipeline)
        assert (item.state, item.error_code) == ("failed", "unknown_event")
        assert "unknown event kind 'summary_partly'" in (item.error or "")


async def test_work_made_by_hand_keeps_what_it_emits_and_says_what_it_lacks() -> None:
    work = Work("a", {"text": "x"}, stage="sum")
    work.emit("summary_partial", text="one")

    assert work.emitted == [("summary_partial", {"text": "one"})]
    with pytest.raises(Permanent, match=r"work\.result needs the engine"):
        await work.result("scrape")
    for ask in (work.finished_items, work.failed_items):
        with pytest.raises(Permanent, match="do that in another stage") as refused:
            ask()
        assert refused.value.code == "no_engine"


# --- the bus ---


def live(offset: int = 0) -> Live:
    return Live(1, "p", "k", "s", "summary_partial", 1, offset, {"text": "x"})


async def test_every_watcher_hears_everything_until_it_leaves() -> None:
    bus = Bus()
    one, other = bus.subscribe(), bus.subscribe()
    bus.push(live(1))
    bus.unsubscribe(other)
    bus.push(live(2))

    assert [each.offset for each in one.take()] == [1, 2]
    assert [each.offset for each in other.take()] == [1]
    assert one.take() == []


async def test_a_watcher_waits_for_news_or_for_the_time_to_be_over() -> None:
    bus = Bus()
    watcher = bus.subscribe()
    bus.poke()
    await watcher.wait(60)
    await watcher.wait(0)
    bus.push(live())
    await watcher.wait(60)


async def test_a_watcher_that_never_reads_costs_a_bounded_backlog() -> None:
    bus = Bus()
    slow = bus.subscribe()
    for at in range(BACKLOG_MAX + 10):
        bus.push(live(at))

    taken = slow.take()
    assert len(taken) == BACKLOG_MAX
    assert taken[0].offset == 10


async def test_only_the_beginning_of_a_text_wakes_the_manager() -> None:
    """Otherwise every word of a text would be a cycle of the loop: most of the engine's CPU."""

    class Kept:
        async def renew(self, lease: Lease, text: str | None = None) -> bool:
            return True

    kept: Any = Kept()
    streams = Streams(kept, Bus(), partial_seconds=1.0)
    lease = Lease(1, "solo", "a", "work", 1, 1, 1, "run", 0, 0, None, 7)

    def tell(now: float, **fields: Any) -> float | None:
        return streams.add(lease, "told", fields, now)

    assert [tell(10, text="a"), tell(10, text="b"), tell(10, share=1)] == [11.0, None, None]
    await streams.save(10.5)
    assert list(streams.due_times()) == [11.0]
    await streams.save(11.0)
    assert [tell(11, share=2), tell(11.5, text="c"), tell(11.5, text="d")] == [None, 12.0, None]
    assert list(streams.due_times()) == [12.0]
