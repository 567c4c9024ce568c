"""What the engine's tests share: databases, a clock to move, a loop whose time is virtual."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import onceflow
from onceflow import Flow, Item, Pipeline, Settings, Stage, Work
from onceflow.engine.heart import LoopHeart
from onceflow.store import open_store
from onceflow.store.base import Claim, Store, Worker
from onceflow.store.sqlite import SqliteStore, create

T = TypeVar("T")
START_MS = 1_700_000_000_000

QUICK = Settings(poll_seconds=0.05, patience_seconds=0.05, grace_seconds=20, durability="normal")
"""The wake-ups do the work; only what has to be polled for is polled for sooner."""


@dataclass(frozen=True)
class Database:
    """One database, and as many doors to it as a test needs."""

    kind: str
    url: str

    def store(self, clock: Callable[[], int] | None = None) -> Store:
        options: dict[str, Any] = {"durability": "normal"}
        return open_store(self.url, clock=clock, **options)

    def flow(
        self,
        *pipelines: Pipeline,
        settings: Settings = QUICK,
        clock: Callable[[], int] | None = None,
        **options: Any,
    ) -> Flow:
        return onceflow.open(self.store(clock), *pipelines, settings=settings, **options)


async def ok(work: Work) -> dict[str, Any]:
    """A handler that succeeds at once."""
    return {"key": work.key, "stage": work.stage}


def one_stage(handler: Any = ok, *, name: str = "solo", **rules: Any) -> Pipeline:
    """A pipeline of one stage; what belongs to the stage is sorted out by its name."""
    of_stage = {key: rules.pop(key) for key in list(rules) if key in Stage.__dataclass_fields__}
    if "attempts" in of_stage:
        rules["attempts"] = of_stage.pop("attempts")
    rules.setdefault("backoff_seconds", 0.0)
    return Pipeline(name, Stage("work", handler, **of_stage), **rules)


async def audited(flow: Flow) -> None:
    """The oracle has nothing to say, once what may still be asked for was asked for."""
    while (await flow.store.sweep()).moved:
        pass
    assert await flow.audit(grace_seconds=0) == []


async def kinds(flow: Flow, item: int | None = None) -> list[str]:
    return [event.kind async for event in flow.events(item=item)]


async def only(flow: Flow, pipeline: Pipeline) -> Item:
    [item] = await flow.items(pipeline)
    return item


async def until(
    flow: Flow, question: Callable[[], Coroutine[Any, Any, T | None]], seconds_max: float = 60
) -> T:
    """The first answer that is true, asked for again at each commit the flow hears of."""
    subscription = flow.bus.subscribe()
    flow.store.watch(flow._told)
    try:
        async with asyncio.timeout(seconds_max):
            while not (answer := await question()):
                await subscription.wait(0.05)
            return answer
    finally:
        flow.bus.unsubscribe(subscription)


async def until_state(flow: Flow, pipeline: Pipeline, key: str, state: str) -> Item:
    async def question() -> Item | None:
        item = await flow.item(pipeline, key)
        return item if item.state == state else None

    return await until(flow, question)


@asynccontextmanager
async def working(flow: Flow) -> AsyncIterator[Flow]:
    """A flow that works in the background."""
    async with flow:
        flow.start()
        yield flow


DEAD = Worker("dead", "elsewhere.test", 4242)
"""A worker that claims and is never heard of again."""


NUMBERS = itertools.count(1)
"""Of the exchanges that tests make themselves."""


async def claim_as(store: Store, pipeline: Pipeline, worker: Worker = DEAD, count: int = 10) -> Any:
    """Leases for a worker that this test plays itself."""
    await store.beat(worker)
    claim = Claim(pipeline.name, pipeline.first.name, "", count)
    reply = await store.exchange(worker.id, next(NUMBERS), [], [claim])
    return list(reply.claimed[0].leases)


# --- virtual time ---


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that does not wait: when nothing can run, its time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 1000.0
        self.jumps: list[float] = []
        """How far each jump went: how often an idle process woke up."""
        selector: Any = self._selector  # type: ignore[attr-defined]  # asyncio's own
        look = selector.select

        def select(timeout: float | None) -> Any:
            found = look(0)
            if not found and timeout is None:
                raise RuntimeError("nothing is left that could happen")
            if not found and timeout is not None and timeout > 0:
                self._virtual += timeout
                self.jumps.append(timeout)
            return found

        selector.select = select

    def time(self) -> float:
        return self._virtual


def virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a loop with virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def loop_ms() -> int:
    """The store's time in virtual time: the loop's."""
    return START_MS + round(asyncio.get_running_loop().time() * 1000)


def virtual_flow(
    path: Path | str, *pipelines: Pipeline, settings: Settings | None = None, **options: Any
) -> Flow:
    """A flow whose store, heartbeat and timers all live in the loop's virtual time. It hears of
    no other process: what others commit is found by the timers only."""
    if path != ":memory:" and not Path(path).exists():
        create(Path(path))
    store = SqliteStore(path, clock=loop_ms, inline=True, durability="normal")
    options.setdefault("heart", LoopHeart)
    return onceflow.open(store, *pipelines, settings=settings or Settings(), **options)


def now() -> float:
    return asyncio.get_running_loop().time()


def rounded(times: Iterable[float]) -> list[float]:
    return [round(time, 3) for time in times]
