"""How things are: health, statistics, processors, and the same for Prometheus."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from fastapi import APIRouter
from starlette.responses import PlainTextResponse

from onceflow import __version__
from onceflow.engine.figures import in_service, parts, totals
from onceflow.engine.health import Tally
from onceflow.web.jobs import At
from onceflow.web.shapes import Healthy, masked

router = APIRouter()
RATES = {
    "success_rate": "Finished of all that finished or failed for good, among the newest.",
    "failure_rate": "Failed for good of all that finished or failed, among the newest.",
    "per_minute": "Finished a minute, over the last five.",
    "retries_per_item": "Tries beyond the first that an item needed in a stage, on average.",
}


@router.get("/health", response_model=Healthy, tags=["health"])
async def health(desk: At) -> Healthy:
    """Whether this server answers and reaches its database; 503 if not."""
    await desk.flow.store.read("now")
    return Healthy(ok=True, worker=desk.flow.health() is not None, version=__version__)


@router.get("/api/stats", tags=["health"])
async def stats(desk: At) -> dict[str, Any]:
    """Counts, queues, processors, stage times and rates, over every worker of this database."""
    rows = await desk.counts()
    states = await desk.states()
    total = totals(await desk.workers())
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
        "depths": await desk.depths(),
        **total,
        "parts": parts(desk.flow.settings, desk.flow.pipelines.values(), total),
        "failures": [
            {**dict(row), "sample": masked(row["sample"] or "")} for row in await read("failures")
        ],
        "recent": {"stages": await desk.figures()},
    }


@router.get("/api/processors", tags=["health"])
async def processors(desk: At) -> dict[str, Any]:
    """The processors of this process now, and of every worker as it said at its last heartbeat;
    then `JobScheduler`, `JobQueue`, `JobCoordinator` and `ProcessorPool` with their settings."""
    here = desk.flow.health()
    found = [{**worker, "report": _shown(worker["report"])} for worker in await desk.workers()]
    return {
        "here": None if here is None else _shown(asdict(here)),
        "workers": found,
        "parts": parts(desk.flow.settings, desk.flow.pipelines.values(), totals(found)),
    }


def _shown(report: dict[str, Any] | None) -> dict[str, Any] | None:
    if report is None:
        return None
    processors = [
        {
            name: masked(value) if name in ("key", "error") and value else value
            for name, value in processor.items()
        }
        for processor in report.get("processors", ())
    ]
    return {**report, "processors": processors}


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
            place = f"{name}{{{inside}}}" if inside else name
            lines.append(f"{place} {digits(value)}")

    states = await desk.states()
    put(
        "onceflow_items", "gauge", "Items by pipeline and state.",
        [({"pipeline": pipeline, "state": state}, count)
         for pipeline, counts in states.items() for state, count in counts.items()],
    )  # fmt: skip
    workers = await desk.workers()
    total = totals(workers)
    put(
        "onceflow_queue_items", "gauge", "Leases waiting in the local queues of all workers.",
        [({"stage": name}, size) for name, size in total["queues"].items()],
    )  # fmt: skip
    put(
        "onceflow_processors", "gauge", "Processors of all workers by stage and state.",
        [({"stage": name, "state": state}, count)
         for name, counts in total["processors"].items() for state, count in counts.items()],
    )  # fmt: skip
    there = [(f"{one['host']}:{one['pid']}", one["report"] or {}) for one in in_service(workers)]
    put(
        "onceflow_refused_total", "counter", "Leases that a worker's local queue refused.",
        [({"worker": name, "reason": reason}, count)
         for name, report in there for reason, count in report.get("refused", {}).items()],
    )  # fmt: skip
    for field in (one.name for one in fields(Tally)):
        put(
            f"onceflow_{field}_total", "counter", f"{field} by a worker since it started.",
            [({"worker": name}, report["tally"].get(field, 0))
             for name, report in there if "tally" in report],
        )  # fmt: skip
    put("onceflow_workers", "gauge", "Workers that are there.", [({}, len(in_service(workers)))])
    recent = await desk.figures()
    put(
        "onceflow_stage_seconds", "gauge", "How long the newest finished attempts took.",
        [({"stage": name, "quantile": quantile}, one[field])
         for name, one in recent.items()
         for quantile, field in (("0.5", "p50_seconds"), ("0.95", "p95_seconds"))
         if one[field] is not None],
    )  # fmt: skip
    for field, about in RATES.items():
        put(
            f"onceflow_stage_{field}", "gauge", about,
            [({"stage": name}, one[field]) for name, one in recent.items()
             if one[field] is not None],
        )  # fmt: skip
    put("onceflow_event_seq", "counter", "The newest event.", [({}, desk.feed.newest)])
    put("onceflow_streams", "gauge", "Open event streams.", [({}, desk.feed.readers)])
    put(
        "onceflow_http_answers_total", "counter", "Answers by their status.",
        [({"status": str(status)}, count) for status, count in sorted(desk.answers.items())],
    )  # fmt: skip
    text = "\n".join(lines) + "\n"
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def digits(value: float) -> str:
    """All the digits of a number: a counter that is rounded stands still, and then it jumps."""
    return repr(float(value)) if value % 1 else str(int(value))


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
