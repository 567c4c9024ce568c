"""Four-way stage calls: performed, skipped, joined, not yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from onceflow.core.item import SETTLED, Item, Json, Phase
from onceflow.core.pipeline import Pipeline, Stage
from onceflow.engine.listing import known_states, to_item
from onceflow.store.base import Target

if TYPE_CHECKING:
    from onceflow.engine.flow import Flow
    from onceflow.engine.manager import Manager


@dataclass(frozen=True, slots=True)
class Triggered:
    """How a stage call ended.

    `performed`: this call had it done. `skipped`: it was done before, here is the stored result.
    `joined`: somebody is at it; `result` is there if it ended within the wait. `not_yet`: there is
    nothing to work on, and `reason` says what is missing.
    """

    how: Literal["performed", "skipped", "joined", "not_yet"]
    item: Item
    result: Json = None
    reason: str = ""

    @property
    def finished(self) -> bool:
        """Whether the stage has its result."""
        return self.how == "skipped" or (self.how != "not_yet" and not self.reason)


async def trigger(
    flow: Flow,
    manager: Manager | None,
    pipeline: Pipeline,
    key: str,
    stage: Stage,
    wait_seconds: float,
) -> Triggered:
    """Have an item's stage done once, whoever asks and however often."""
    row = await flow._row(pipeline, key)
    place = _place(pipeline, row, stage)
    if place == "past":
        return await _answer(flow, row, stage, "skipped")
    if place == "before":
        reason = f"it is at {row['stage']}/{row['phase']}, {stage.name!r} comes later"
        return await _not_yet(flow, row, reason)
    if row["phase"] in SETTLED:
        return await _not_yet(flow, row, f"it is {row['phase']}: {row['error']}; retry it first")
    mine = False
    if row["phase"] in (Phase.READY, Phase.WAITING) and row["due_at"] is None:
        if manager is not None:
            mine = await manager.perform(row["id"], (pipeline.name, stage.name))
        if not mine and row["phase"] == Phase.WAITING:
            target = Target(row["id"], row["version"])
            mine = bool(await flow.store.act("trigger", [target]))
            flow._told()
    elif row["phase"] == Phase.ACTIVE:
        swept = await flow.store.sweep()  # a lease that was lost is taken over here and now
        if swept.reclaimed and manager is not None:
            mine = await manager.perform(row["id"], (pipeline.name, stage.name))
    return await _wait(flow, pipeline, row, stage, "performed" if mine else "joined", wait_seconds)


async def _wait(
    flow: Flow,
    pipeline: Pipeline,
    row: Any,
    stage: Stage,
    how: Literal["performed", "joined"],
    seconds: float,
) -> Triggered:
    """Until the stage is over for this item, or the caller's patience is."""
    subscription = flow.bus.subscribe()
    flow.store.watch(flow._told)
    until = asyncio.get_running_loop().time() + seconds
    try:
        while True:
            [row] = await flow.store.read("item", id=row["id"])
            if _place(pipeline, row, stage) == "past":
                return await _answer(flow, row, stage, how)
            if row["phase"] in SETTLED:
                return await _not_yet(flow, row, f"it is {row['phase']}: {row['error']}")
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                states = await known_states(flow.store, row)
                return Triggered(how, to_item(row, states), None, "it is still being worked on")
            await subscription.wait(min(left, flow.settings.poll_seconds))
    finally:
        flow.bus.unsubscribe(subscription)


def _place(pipeline: Pipeline, row: Any, stage: Stage) -> Literal["before", "at", "past"]:
    here, there = pipeline.order(row["stage"]), pipeline.order(stage.name)
    if here > there or (here == there and row["phase"] == Phase.DONE):
        return "past"
    return "at" if here == there else "before"


async def _answer(
    flow: Flow, row: Any, stage: Stage, how: Literal["performed", "skipped", "joined"]
) -> Triggered:
    states = await known_states(flow.store, row)
    return Triggered(how, to_item(row, states), await flow.result(row["id"], stage.name))


async def _not_yet(flow: Flow, row: Any, reason: str) -> Triggered:
    return Triggered("not_yet", to_item(row, await known_states(flow.store, row)), None, reason)
