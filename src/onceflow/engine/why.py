"""Why an item does not move, in one line, and when it will."""

from __future__ import annotations

import json
from typing import Any

from onceflow.core.item import Phase
from onceflow.engine.listing import States, state_name
from onceflow.engine.neighbours import ended_here, living
from onceflow.store.base import Row, Store


async def why(store: Store, item: Row, states: States, attempts: int | None = None) -> str:
    """One line for one item. `attempts`: how many end it if each fails, where that is known; the
    store's own number counts attempts whose workers died as well."""
    now = (await store.read("now"))[0]["now"]
    stages = {(row["pipeline"], row["stage"]): row for row in await store.read("stages")}
    stage = stages.get((item["pipeline"], item["stage"]))
    state = state_name(states, item["pipeline"], item["stage"], item["phase"])
    phase = Phase(item["phase"])
    if phase is Phase.DONE:
        return f"{state}: it is done, there is nothing left to do"
    if phase is Phase.FAILED:
        return (
            f"{state}: {item['error']} (code {item['error_code']}); `onceflow retry` opens it again"
        )
    if phase is Phase.CANCELLED:
        return f"{state}: {item['error']}; `onceflow retry` opens it again"
    for row in await store.read("moved"):
        return f"{state}: the whole database was moved to {row['place']}; it goes on there"
    if phase is Phase.WAITING:
        if item["due_at"] is None:
            return f"{state}: held until somebody triggers stage {item['stage']!r}"
        left = seconds(item["due_at"] - now)
        of = "" if attempts is None else f" of {attempts}"
        # None was used up where nothing could be tried.
        after = f" after attempt {item['attempt']}{of}" if item["attempt"] else ""
        return f"{state}: backing off for {left} more{after}: {item['error']}"
    workers = await store.read("workers")
    if phase is Phase.ACTIVE:
        return _active(item, state, stage, workers, now)
    return await _ready(store, item, state, stage, workers, now)


def _active(item: Row, state: str, stage: Row | None, workers: list[Row], now: int) -> str:
    holder = next((row for row in workers if row["id"] == item["worker"]), None)
    if holder is None:
        return f"{state}: its worker {item['worker']} is gone; the next sweep takes it back"
    silent = now - holder["beat_at"]
    lease_ms = stage["lease_ms"] if stage else 0
    where = f"{holder['host']} pid {holder['pid']}"
    if holder["id"] in ended_here([holder]):
        return (
            f"{state}: its worker ({where}) has ended without a word; one that lives here takes it "
            "back at its next health check, one that starts here at once"
        )
    if silent > lease_ms:
        return (
            f"{state}: its worker ({where}) is silent for {seconds(silent)}; "
            "the next sweep takes it back"
        )
    return (
        f"{state}: attempt {item['attempt']} is being worked on by {where}, heartbeat "
        f"{seconds(silent)} ago"
    )


async def _ready(
    store: Store, item: Row, state: str, stage: Row | None, workers: list[Row], now: int
) -> str:
    if stage is not None and stage["paused_at"] is not None:
        since = seconds(now - stage["paused_at"])
        because = f" ({stage['paused_why']})" if stage["paused_why"] else ""
        return (
            f"{state}: stage {item['stage']!r} is paused since {since}{because}; `onceflow resume`"
        )
    run = await store.read("run", id=item["run"])
    if run and run[0]["halted"]:
        return f"{state}: run {item['run']} is halted: {run[0]['halted']}"
    alive = living(workers, now, _patience_ms(stage))
    if not alive:
        return f"{state}: ready, but no worker lives; start one with `onceflow worker`"
    if not any(_works_on(worker, item) for worker in alive):
        return (
            f"{state}: ready, but no worker that lives has stage {item['stage']!r} of pipeline "
            f"{item['pipeline']!r}; start the program that has it, or put the stage back"
        )
    limit = None if stage is None else stage["chosen_limit"] or stage["declared_limit"]
    if stage is not None and limit is not None and stage["active"] >= limit:
        return (
            f"{state}: ready, but {stage['active']} of {limit} places of stage "
            f"{item['stage']!r} are taken"
        )
    if item["lane"]:
        return f"{state}: ready, waiting for its turn in lane {item['lane']!r}"
    return f"{state}: ready, the next free processor takes it in its turn"


def _works_on(worker: Row, item: Row) -> bool:
    """Whether a worker has an item's stage, as far as its last report says."""
    report = json.loads(worker["report"] or "{}")
    return f"{item['pipeline']}/{item['stage']}" in report.get("pools", [None]) or not report


def _patience_ms(stage: Row | None) -> int:
    patience: Any = 300_000 if stage is None else stage["lease_ms"]
    return int(patience)


def seconds(ms: int) -> str:
    """A duration for people."""
    whole = max(0, round(ms / 1000))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
