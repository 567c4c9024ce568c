"""Figures for people and monitors: how the newest attempts ended, and who works.

Nothing is counted while the work is done: times and rates come from the end of the stored history,
processors and queues from what each process says at its heartbeats. Both are bounded.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import mean, quantiles
from typing import TYPE_CHECKING, Any

from onceflow.core.pipeline import Pipeline
from onceflow.engine.book import Refusal
from onceflow.engine.neighbours import ended
from onceflow.engine.pool import ProcessorState
from onceflow.engine.settings import Settings
from onceflow.store.base import Row, Store
from onceflow.store.clock import boot_id

if TYPE_CHECKING:
    from onceflow.engine.flow import Flow

HELD_MS_MAX = 5_000
"""A transaction that holds up the readers of events for longer is named."""

RECENT_EVENTS = 5_000
"""How much of the end of the history the times and rates are taken from."""
WINDOW_MS = 300_000
"""What is finished a minute is taken from the last five, or from as far back as was looked."""
NOT_FINISHED = frozenset({"retried", "failed", "reclaimed"})


async def stage_figures(store: Store, most: int = RECENT_EVENTS) -> dict[str, dict[str, Any]]:
    """Of each `pipeline/stage`: how its newest attempts ended, how long they took, how often an
    item had to be tried again."""
    now = (await store.read("now"))[0]["now"]
    return figures_of(await store.read("recent", most=most), now)


def figures_of(rows: Sequence[Row], now: int) -> dict[str, dict[str, Any]]:
    since = max(now - WINDOW_MS, min((row["at"] for row in rows), default=now) - 1)
    lately: Counter[str] = Counter()
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, list[float]] = defaultdict(list)
    retries: dict[str, list[int]] = defaultdict(list)
    finished: set[tuple[int, int]] = set()
    for row in rows:
        name = f"{row['pipeline']}/{row['stage']}"
        kind = row["kind"] if row["kind"] in NOT_FINISHED else "finished"
        if kind == "finished":
            lease = (row["item"], row["fence"])
            if lease in finished:
                continue  # a pipeline's own kind beside the general one
            finished.add(lease)
            lately[name] += row["at"] > since
        ends[name][kind] += 1
        if kind == "finished" and row["ms"] is not None:
            seconds[name].append(row["ms"] / 1000)
        if kind in ("finished", "failed") and row["attempt"]:
            retries[name].append(row["attempt"] - 1)
    minutes = max(now - since, 60_000) / 60_000
    return {
        name: {
            **_of_stage(ends[name], seconds[name], retries[name]),
            "per_minute": round(lately[name] / minutes, 1),
        }
        for name in sorted(ends)
    }


def _of_stage(ends: Counter[str], seconds: list[float], retries: list[int]) -> dict[str, Any]:
    settled = ends["finished"] + ends["failed"]
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else seconds * 19
    return {
        "finished": ends["finished"],
        "failed": ends["failed"],
        "retried": ends["retried"],
        "reclaimed": ends["reclaimed"],
        "success_rate": ends["finished"] / settled if settled else None,
        "failure_rate": ends["failed"] / settled if settled else None,
        "p50_seconds": round(cuts[9], 3) if cuts else None,
        "p95_seconds": round(cuts[18], 3) if cuts else None,
        "retries_per_item": round(mean(retries), 3) if retries else None,
        "retries_max": max(retries, default=None),
    }


# --- who works ---


async def workers(flow: Flow) -> list[dict[str, Any]]:
    """Every worker with what it said last; of this process, what is so now. One of this machine
    whose process is gone is `ended`: it does not count, and what it held is reclaimed soon."""
    rows = await flow.store.read("workers")
    now = (await flow.store.read("now"))[0]["now"]
    gone = set(ended(rows, boot_id()))
    here = flow.health()
    found = []
    for row in rows:
        report = json.loads(row["report"]) if row["report"] else None
        if here is not None and row["id"] == flow.worker_id:
            report = asdict(here)
        found.append(
            {
                **{name: row[name] for name in ("id", "host", "pid", "started_at", "leases")},
                "beat_at": row["beat_at"],
                "silent_seconds": max(0, now - row["beat_at"]) / 1000,
                "ended": row["id"] in gone,
                "report": report,
            }
        )
    return found


def in_service(found: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [worker for worker in found if not worker["ended"]]


def totals(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Queues, processors by state, refusals and tallies over all workers that are there."""
    queues: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    tally: Counter[str] = Counter()
    pools: dict[str, Counter[str]] = defaultdict(Counter)
    for worker in in_service(found):
        report = worker["report"] or {}
        queues.update(report.get("queues", {}))
        refused.update(report.get("refused", {}))
        tally.update(report.get("tally", {}))
        for name, states in report.get("pools", {}).items():
            pools[name].update(states)
    return {
        "queues": dict(queues),
        "processors": {
            name: {state.value: states[state.value] for state in ProcessorState}
            for name, states in pools.items()
        },
        "refused": {reason.value: refused[reason.value] for reason in Refusal},
        "tally": dict(tally),
    }


def parts(
    settings: Settings, pipelines: Iterable[Pipeline], total: Mapping[str, Any]
) -> dict[str, Any]:
    """The four parts of the background system by their names, each with its settings and what it
    has done in the workers that are there."""
    stages = [(pipeline, stage) for pipeline in pipelines for stage in pipeline.every_stage]
    names = [f"{pipeline.name}/{stage.name}" for pipeline, stage in stages]
    tally = total["tally"]

    def count(*wanted: str) -> dict[str, int]:
        return {name: tally.get(name, 0) for name in wanted}

    return {
        "JobScheduler": {
            "scan_seconds": settings.scan_seconds,
            "cleanup_seconds": settings.cleanup_seconds,
            "batch": {name: stage.batch for name, (_, stage) in zip(names, stages, strict=True)},
            "stuck_seconds": {
                name: pipeline.lease_seconds
                for name, (pipeline, _) in zip(names, stages, strict=True)
            },
            "attempts_max": {
                name: pipeline.attempts_of(stage)
                for name, (pipeline, stage) in zip(names, stages, strict=True)
            },
            **count("claimed", "contested", "adopted", "reclaimed"),
        },
        "JobQueue": {
            "queue_max": settings.queue_max,
            "items": {name: total["queues"].get(name, 0) for name in names},
            "refused": total["refused"],
        },
        "JobCoordinator": {
            "assign_seconds": settings.assign_seconds,
            "cycle_seconds": settings.cycle_seconds,
            "health_seconds": settings.health_seconds,
            "order": names,
            "assign_max": {
                name: stage.assign_max for name, (_, stage) in zip(names, stages, strict=True)
            },
            **count("checks", "finished", "retried", "failed", "released", "lost"),
        },
        "ProcessorPool": {
            "processors": {
                name: stage.processors for name, (_, stage) in zip(names, stages, strict=True)
            },
            "deadline_seconds": {
                name: stage.deadline_seconds for name, (_, stage) in zip(names, stages, strict=True)
            },
            "states": total["processors"],
            **count("expired", "replaced"),
        },
    }
