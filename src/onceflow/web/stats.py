"""How things are: health, statistics, processors, and the same for Prometheus."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from statistics import quantiles
from typing import Any

from fastapi import APIRouter
from starlette.responses import PlainTextResponse

from onceflow import __version__
from onceflow.web.desk import Desk
from onceflow.web.jobs import At
from onceflow.web.shapes import Healthy, masked

RECENT = 5_000
"""How many of the newest events the times and rates are taken from."""
FINISHED = frozenset({"stage_finished", "scrape_finished", "summary_finished"})

router = APIRouter()


@router.get("/health", response_model=Healthy, tags=["health"])
async def health(desk: At) -> Healthy:
    """Whether this server answers and reaches its database; 503 if not."""
    await desk.flow.store.read("now")
    return Healthy(ok=True, worker=desk.flow.health() is not None, version=__version__)


@router.get("/api/stats", tags=["health"])
async def stats(desk: At) -> dict[str, Any]:
    """Counts, queues, processors, stage times and rates."""
    rows = await desk.counts()
    states = await desk.states()
    health = desk.flow.health()
    read = desk.flow.store.read
    stages = [
        {
            "pipeline": row["pipeline"],
            "stage": row["stage"],
            "limit": row["chosen_limit"] or row["declared_limit"],
            "active": row["active"],
            "paused": row["paused_at"] is not None,
            "paused_why": masked(row["paused_why"] or "") or None,
        }
        for row in await read("stages")
    ]
    return {
        "now": (await read("now"))[0]["now"],
        "total": sum(row["items"] for row in rows),
        "states": states,
        "phases": [
            {name: row[name] for name in ("pipeline", "stage", "phase", "items", "oldest_at")}
            for row in rows
        ],
        "stages": stages,
        "queues": {} if health is None else health.queues,
        "tally": {} if health is None else health.tally,
        "failures": [
            {**dict(row), "sample": masked(row["sample"] or "")} for row in await read("failures")
        ],
        "recent": await _recent(desk),
    }


async def _recent(desk: Desk) -> dict[str, Any]:
    """Times and rates of each stage over the newest events."""
    seconds: dict[str, list[float]] = defaultdict(list)
    ends: dict[str, dict[str, int]] = defaultdict(
        lambda: {"finished": 0, "failed": 0, "retried": 0}
    )
    events = desk.feed.recent(RECENT)
    for event in events:
        name = f"{event.pipeline}/{event.stage}"
        if event.kind in FINISHED:
            ends[name]["finished"] += 1
            if event.seconds is not None:
                seconds[name].append(event.seconds)
        elif event.kind in ("failed", "retried"):
            ends[name][event.kind] += 1
    stages: dict[str, Any] = {}
    for name, counts in ends.items():
        settled = counts["finished"] + counts["failed"]
        times = sorted(seconds[name])
        cuts = quantiles(times, n=20) if len(times) > 1 else times * 19
        stages[name] = {
            **counts,
            "success_rate": counts["finished"] / settled if settled else None,
            "p50_seconds": cuts[9] if times else None,
            "p95_seconds": cuts[18] if times else None,
        }
    return {"events": len(events), "stages": stages}


@router.get("/api/processors", tags=["health"])
async def processors(desk: At) -> dict[str, Any]:
    """The processors of this process now, and of every worker as it said at its last heartbeat."""
    here = desk.flow.health()
    read = desk.flow.store.read
    now = (await read("now"))[0]["now"]
    workers = []
    for row in await read("workers"):
        report = json.loads(row["report"]) if row["report"] else None
        workers.append(
            {
                **{name: row[name] for name in ("id", "host", "pid", "started_at", "leases")},
                "silent_seconds": max(0, now - row["beat_at"]) / 1000,
                "report": _shown(report),
            }
        )
    return {"here": None if here is None else _shown(asdict(here)), "workers": workers}


def _shown(report: dict[str, Any] | None) -> dict[str, Any] | None:
    if report is None:
        return None
    for processor in report.get("processors", ()):
        for name in ("key", "error"):
            if processor.get(name):
                processor[name] = masked(str(processor[name]))
    return report


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"description": "Prometheus text"}},
    tags=["health"],
)
async def metrics(desk: At) -> PlainTextResponse:
    """The same for Prometheus."""
    lines: list[str] = []

    def put(name: str, kind: str, about: str, values: list[tuple[dict[str, str], float]]) -> None:
        lines.extend((f"# HELP {name} {about}", f"# TYPE {name} {kind}"))
        for labels, value in values:
            inside = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
            lines.append(f"{name}{{{inside}}} {value:g}" if inside else f"{name} {value:g}")

    states = await desk.states()
    put(
        "onceflow_items", "gauge", "Items by pipeline and state.",
        [({"pipeline": pipeline, "state": state}, count)
         for pipeline, counts in states.items() for state, count in counts.items()],
    )  # fmt: skip
    health = desk.flow.health()
    if health is not None:
        put(
            "onceflow_queue_items", "gauge", "Leases waiting in a local queue.",
            [({"stage": name}, size) for name, size in health.queues.items()],
        )  # fmt: skip
        for name, value in health.tally.items():
            put(f"onceflow_{name}_total", "counter", f"{name} in this process.", [({}, value)])
    put("onceflow_workers", "gauge", "Workers with a heartbeat row.",
        [({}, len(await desk.flow.store.read("workers")))])  # fmt: skip
    put("onceflow_event_seq", "counter", "The newest event.", [({}, desk.feed.newest)])
    put("onceflow_streams", "gauge", "Open event streams.", [({}, desk.feed.readers)])
    put(
        "onceflow_http_answers_total", "counter", "Answers by their status.",
        [({"status": str(status)}, count) for status, count in sorted(desk.answers.items())],
    )  # fmt: skip
    text = "\n".join(lines) + "\n"
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
