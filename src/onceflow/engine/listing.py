"""Rows of the store as the values a caller gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from onceflow.core.item import Event, Item, Phase, Run
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import decode
from onceflow.store.base import Row, Store

PAGE = 500
States = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Pipeline -> stage -> phase -> state, as the database knows it."""
KEPT_SECONDS = 1.0
_KEPT: WeakKeyDictionary[Store, tuple[float, States]] = WeakKeyDictionary()


async def known_states(store: Store, *rows: Row) -> States:
    """The state names of every pipeline in the database. For rows whose stages were known a moment
    ago, they are not read again."""
    now = asyncio.get_running_loop().time()
    read_at, states = _KEPT.get(store, (float("-inf"), {}))
    known = all(row["stage"] in states.get(row["pipeline"], ()) for row in rows)
    if rows and known and now < read_at + KEPT_SECONDS:
        return states
    states = {row["name"]: _names(row["states"]) for row in await store.read("pipelines")}
    _KEPT[store] = now, states
    return states


@lru_cache
def _names(text: str) -> Mapping[str, Mapping[str, str]]:
    names: Mapping[str, Mapping[str, str]] = json.loads(text)
    return names


def state_name(states: States, pipeline: str, stage: str | None, phase: str | None) -> str:
    """The public name of a (stage, phase); their plain names if the database knows no better."""
    known = states.get(pipeline, {}).get(stage or "", {}).get(phase or "")
    return known or f"{stage}/{phase}"


def to_item(row: Row, states: States, *, result: Any = None) -> Item:
    names = Item.__dataclass_fields__.keys() - {"state", "result", "phase"}
    return Item(
        **{name: row[name] for name in names},
        phase=Phase(row["phase"]),
        state=state_name(states, row["pipeline"], row["stage"], row["phase"]),
        result=result,
    )


def to_event(row: Row, states: States) -> Event:
    place = row["next_stage"] or row["stage"]
    return Event(
        seq=row["seq"],
        at=row["at"],
        kind=row["kind"],
        pipeline=row["pipeline"],
        key=row["key"],
        item=row["item"],
        n=row["n"],
        run=row["run"],
        stage=row["stage"],
        phase=row["phase"],
        state=state_name(states, row["pipeline"], place, row["phase"]) if row["phase"] else None,
        generation=row["generation"],
        fence=row["fence"],
        attempt=row["attempt"],
        worker=row["worker"],
        seconds=None if row["ms"] is None else row["ms"] / 1000,
        data=json.loads(row["data"]) if row["data"] else {},
    )


def to_run(row: Row) -> Run:
    return Run(
        id=row["id"],
        pipeline=row["pipeline"],
        created_at=row["created_at"],
        sealed=bool(row["sealed"]),
        accepted=row["accepted"],
        open=row["open_items"],
        failed=row["failed_items"],
        max_items=row["max_items"],
        tokens=row["tokens"],
        cost=row["cost"],
        halted=row["halted"],
        gate_opened_at=row["settled_at"] if row["gate_item"] is not None else None,
        gate_item=row["gate_item"],
        finished_at=row["finished_at"],
    )


async def run_items(
    store: Store, pipelines: Mapping[str, Pipeline], run: str, phase: str
) -> AsyncIterator[Item]:
    """The items of a run in one phase, page by page, with the result of the last stage."""
    states = await known_states(store)
    rows = await store.read("run", id=run)
    pipeline = pipelines[rows[0]["pipeline"]]
    last = pipeline.last.name
    after = 0
    while page := await store.read(
        "run_items", run=run, phase=phase, after=after, most=PAGE, result_stage=last
    ):
        for row in page:
            body = row["body"]
            yield to_item(row, states, result=None if body is None else decode(bytes(body)))
        after = page[-1]["id"]
