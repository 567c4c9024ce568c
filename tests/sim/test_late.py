"""A write whose caller was told that it failed is committed later, in whatever order it likes."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import apsw
import pytest

from onceflow import Flow, Pipeline, Settings, Stage, StoreUnavailable, Work
from onceflow.core.item import Seed
from onceflow.engine.heart import LoopHeart
from onceflow.store.base import Add, Claim, Worker
from onceflow.store.sqlite import _migrate
from onceflow.testing.simcheck import Journal, Oracle
from onceflow.testing.simloop import SimLoop
from onceflow.testing.simstore import (
    CALM,
    LATE_SECONDS_MAX,
    Fate,
    Net,
    Process,
    Until,
    Weather,
)


async def handler(work: Work) -> None:
    pass


PIPELINE = Pipeline("late", Stage("work", handler))
ADD = Add(PIPELINE, "run", [Seed("a")])
CLAIM = Claim("late", "work", "", 1)
NUMBERS = count(1)


class Chosen(Random):
    """Chance, but for what a late commit waits for."""

    until = Until.WHILE

    def choice(self, options):  # type: ignore[no-untyped-def]
        return self.until if self.until in options else super().choice(options)


def played(
    body: Callable[[Net, Process], Coroutine[Any, Any, None]],
    until: Until = Until.WHILE,
    pipeline: Pipeline = PIPELINE,
) -> Net:
    """Run a body as a process of its own, until all is committed."""
    loop = SimLoop(1)
    journal = Journal(loop.time)
    db = apsw.Connection(":memory:")
    _migrate(db, "a test")
    random = Chosen(1)
    random.until = until
    net = Net(loop, random, journal, Oracle(db, journal, pipeline), db, 6.0)
    process = Process(net, "p")

    async def whole() -> None:
        task = loop.spawn(process.owner, body(net, process))
        await asyncio.wait([task, process.gone], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(LATE_SECONDS_MAX)
        if task.done():
            task.result()

    with loop.as_the_time():
        try:
            loop.run_until_complete(whole())
        finally:
            loop.bury()
            loop.close()
    assert journal.violations == []
    return net


def is_held(net: Net) -> bool:
    return net.oracle.ask("lease_now", item=1)[0] == "active"


async def claim(process: Process) -> None:
    """Ask for the one item there is; that comes late."""
    store, net = process.store, process.net
    await store.open([PIPELINE])
    await store.beat(Worker("w", "simulated", 1))
    await store.add(ADD)
    net.weather = Weather(late=1.0)
    with pytest.raises(StoreUnavailable):
        await store.exchange("w", next(NUMBERS), [], [CLAIM])
    net.weather = CALM


def test_the_caller_is_told_no_and_the_write_is_committed_later() -> None:
    async def body(net: Net, process: Process) -> None:
        await claim(process)
        assert not is_held(net)

    net = played(body)

    assert is_held(net)
    assert net.journal.branches["a late commit gave leases that nobody waits for"] == 1


def test_it_is_committed_right_after_the_process_has_read_that_it_holds_nothing() -> None:
    async def body(net: Net, process: Process) -> None:
        await claim(process)
        assert await process.store.held("w") == set()
        await asyncio.sleep(0.02)
        assert is_held(net)

    net = played(body, Until.HELD)

    assert net.journal.branches["a late commit came after what is held was read"] == 1


def test_it_is_committed_after_the_process_has_asked_for_the_same_again() -> None:
    async def body(net: Net, process: Process) -> None:
        await claim(process)
        [claimed] = (await process.store.exchange("w", next(NUMBERS), [], [CLAIM])).claimed
        assert [lease.fence for lease in claimed.leases] == [1]
        await asyncio.sleep(0.02)
        assert net.lates == []

    net = played(body, Until.AGAIN)

    assert net.oracle.ask("lease_now", item=1)[1] == 1, "the late one found nothing left to claim"


def test_it_is_committed_after_the_process_has_signed_off() -> None:
    async def body(net: Net, process: Process) -> None:
        await claim(process)
        await process.store.leave("w")

    net = played(body, Until.LEFT)

    assert is_held(net)
    assert net.journal.branches["a late commit came after its process had signed off"] == 1


def test_it_is_committed_after_the_process_was_killed() -> None:
    async def body(net: Net, process: Process) -> None:
        await claim(process)
        await asyncio.sleep(3600)

    net = played(body, Until.CRASH)

    assert is_held(net)
    assert net.journal.branches["a late commit came after its process had crashed"] == 1


def test_reads_and_what_takes_several_transactions_are_never_late() -> None:
    async def body(net: Net, process: Process) -> None:
        await process.store.open([PIPELINE])
        net.weather = Weather(late=1.0)
        for asking in (
            process.store.read("now"), process.store.sweep(), process.store.open([PIPELINE]),
        ):  # fmt: skip
            with pytest.raises(StoreUnavailable):
                await asking
        assert net.lates == []

    played(body)


def test_two_exchanges_are_committed_and_answered_in_an_order_that_chance_draws() -> None:
    async def body(net: Net, process: Process) -> None:
        await process.store.open([PIPELINE])
        net.weather = Weather(overtaken=1.0)
        for _ in range(20):
            await asyncio.gather(
                *[process.store.exchange("w", next(NUMBERS), [], [CLAIM]) for _ in range(2)]
            )

    branches = played(body).journal.branches

    assert 0 < branches["two exchanges were committed in another order than asked"] < 20
    assert 0 < branches["two exchanges were answered in another order than asked"] < 20


@dataclass(frozen=True, slots=True)
class OnceLate(Weather):
    """The next call is late, and nothing else."""

    late: float = 1.0
    fates: list[Fate] = field(default_factory=lambda: [Fate.LATE])

    def fate(self, drawn: float) -> Fate:
        return self.fates.pop() if self.fates else Fate.WELL


class Story:
    """A process that works on two stages, of whose exchanges the first that fits comes late."""

    def __init__(self, until: Until, fits: Callable[[Any, Any], bool]) -> None:
        self.pipeline = Pipeline(
            "story",
            Stage("one", self.work, deadline_seconds=1000),
            Stage("two", self.work, deadline_seconds=1000),
            lease_seconds=1000,
            attempts=5,
        )
        self.until = until
        self.fits = fits
        self.calls: list[tuple[str, int]] = []
        self.kinds: list[str] = []

    async def work(self, work: Work) -> None:
        self.calls.append((work.stage, work.attempt))
        await asyncio.sleep(1)

    def flow(self, process: Process) -> Flow:
        exchange = process.store.exchange
        waiting = [True]

        async def once(
            worker: str, number: int, finishes: Sequence[Any], claims: Any, begins: Any
        ) -> Any:
            if waiting and self.fits(finishes, claims):
                waiting.clear()
                process.net.weather = OnceLate()
            return await exchange(worker, number, finishes, claims, begins)

        process.store.exchange = once  # type: ignore[method-assign]
        worker = Worker(process.name, "simulated", 1)
        settings = Settings(health_seconds=3, cleanup_seconds=5, cycle_seconds=0.1)
        return Flow(process.store, [self.pipeline], settings, LoopHeart, lambda: worker)

    async def play(self, net: Net, process: Process) -> None:
        async with self.flow(Process(net, "client")) as client:
            await client.add(self.pipeline, ["a"])
            async with self.flow(process) as flow:
                working = flow.start()
                await asyncio.sleep(20)
                flow.stop_soon()
                await working
            self.kinds = [event.kind async for event in client.events()]


def is_claim(finishes: Any, claims: Any) -> bool:
    return not finishes and bool(claims)


def is_finish(finishes: Any, claims: Any) -> bool:
    return bool(finishes)


@pytest.mark.parametrize("until", [Until.MOMENT, Until.WHILE, Until.HELD, Until.AGAIN])
@pytest.mark.parametrize("fits", [is_claim, is_finish])
def test_a_late_commit_costs_no_attempt_and_what_it_claimed_is_found(
    until: Until, fits: Callable[[Any, Any], bool]
) -> None:
    story = Story(until, fits)

    net = played(story.play, until, story.pipeline)

    assert net.journal.branches["a write whose caller was told it failed was committed later"] == 1
    assert story.calls == [("one", 1), ("two", 1)]
    assert story.kinds == [
        "added", "claimed", "stage_finished", "claimed", "stage_finished", "run_finished",
    ]  # fmt: skip
