"""The dashboard: the board, items, runs, failures and processors. All of it is what the API says,
drawn; every page is whole without JavaScript."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from starlette.responses import Response

from onceflow import Event, Item
from onceflow.core.errors import UnknownItem
from onceflow.core.item import Phase
from onceflow.engine.figures import in_service, parts, totals
from onceflow.engine.listing import known_states, state_name, to_event
from onceflow.web.desk import Desk
from onceflow.web.diagram import diagram
from onceflow.web.items import Command, find_item
from onceflow.web.jobs import HISTORY_MAX, At, JobId
from onceflow.web.pages import GLYPHS, back, page
from onceflow.web.problems import Problem
from onceflow.web.shapes import ID_MAX, Name, RunId, masked

PHASES = ("waiting", "ready", "active", "done", "failed", "cancelled")
OPEN = frozenset({"waiting", "ready", "active"})
ITEMS_SHOWN = 50
RUNS_SHOWN = 50
BODY_CHARS_SHOWN = 20_000
PROSE_CHARS_SHOWN = 4000
PROSE_WORDS = 8
PROCESSORS_DRAWN = 100
"""Of one stage; more are a number."""

router = APIRouter(include_in_schema=False)


# --- the board ---


@dataclass(slots=True)
class StageRow:
    """A stage on the board."""

    stage: str
    gate: bool
    limit: int | None
    paused: str | None
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    states: dict[str, str] = field(default_factory=dict)
    oldest_at: int | None = None
    recent: dict[str, Any] | None = None


@dataclass(slots=True)
class PipelineBoard:
    name: str
    stages: list[StageRow]
    total: int = 0
    drawn: Markup = field(default_factory=Markup)


@router.get("/")
async def board(request: Request, desk: At) -> Response:
    """Every pipeline: stages by phase, with counts, the oldest, and how fast it goes."""
    return page(request, "board.html", **await _board(desk))


@router.get("/board/part")
async def board_alone(request: Request, desk: At) -> Response:
    return page(request, "board_part.html", **await _board(desk))


async def _board(desk: Desk) -> dict[str, Any]:
    read = desk.flow.store.read
    states = await known_states(desk.flow.store)
    recent = await desk.figures()
    boards: dict[str, PipelineBoard] = {name: PipelineBoard(name, []) for name in states}
    rows: dict[tuple[str, str], StageRow] = {}
    for row in await read("stages"):
        name, stage = row["pipeline"], row["stage"]
        one = StageRow(
            stage,
            bool(row["is_gate"]),
            row["chosen_limit"] or row["declared_limit"],
            masked(row["paused_why"] or "by an operator") if row["paused_at"] is not None else None,
            states={phase: state_name(states, name, stage, phase) for phase in PHASES},
            recent=recent.get(f"{name}/{stage}"),
        )
        rows[name, stage] = one
        boards.setdefault(name, PipelineBoard(name, [])).stages.append(one)
    for row in await desk.counts():
        found = rows.get((row["pipeline"], row["stage"]))
        if found is None:
            continue
        found.counts[row["phase"]] = row["items"]
        boards[row["pipeline"]].total += row["items"]
        if row["phase"] in OPEN:
            found.oldest_at = min(row["oldest_at"], found.oldest_at or row["oldest_at"])
    for each in boards.values():
        shown = [(one.stage, one.states, one.counts) for one in each.stages]
        each.drawn = Markup(diagram(each.name, shown))
    workers = in_service(await desk.workers())
    now = (await read("now"))[0]["now"]
    failed = sum(row["items"] for row in await desk.counts() if row["phase"] == "failed")
    found_boards = sorted(boards.values(), key=lambda one: (not one.total, one.name))
    return {"boards": found_boards, "now": now, "workers": len(workers), "failed": failed}


# --- processors ---


@router.get("/processors")
async def processors(request: Request, desk: At) -> Response:
    """Every processor of every worker, and the parts of the background system."""
    return page(request, "processors.html", **await _processors(desk))


@router.get("/processors/part")
async def processors_alone(request: Request, desk: At) -> Response:
    return page(request, "processors_part.html", **await _processors(desk))


async def _processors(desk: Desk) -> dict[str, Any]:
    workers = await desk.workers()
    total = totals(workers)
    busy: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for worker in in_service(workers):
        for one in (worker["report"] or {}).get("processors", ()):
            if one["state"] != "idle":
                name = f"{one['pipeline']}/{one['stage']}"
                shown = {
                    **one,
                    "key": masked(one["key"] or ""),
                    "error": masked(one["error"] or ""),
                }
                busy[name].append({**shown, "worker": f"{worker['host']}:{worker['pid']}"})
    return {
        "pools": dict(
            sorted(
                total["processors"].items(),
                key=lambda pool: pool[1]["idle"] == sum(pool[1].values()),
            )
        ),
        "queues": total["queues"],
        "busy": busy,
        "workers": workers,
        "parts": parts(desk.flow.settings, desk.flow.pipelines.values(), total),
        "drawn_max": PROCESSORS_DRAWN,
    }


# --- items ---


@router.get("/items")
async def items(
    request: Request,
    desk: At,
    pipeline: Annotated[str, Query(max_length=63)] = "",
    state: Annotated[str, Query(max_length=63)] = "",
    error_code: Annotated[str, Query(max_length=100)] = "",
    run: Annotated[str, Query(max_length=64)] = "",
    after: Annotated[int, Query(ge=0, le=ID_MAX)] = 0,
) -> Response:
    """A page of items by pipeline and state."""
    wanted = {"pipeline": pipeline, "state": state, "error_code": error_code, "run": run}
    asked: dict[str, Any] = {name: value for name, value in wanted.items() if value}
    refused = ""
    try:
        found = await desk.flow.items(**asked, after=after, limit=ITEMS_SHOWN)
    except UnknownItem as error:
        found, refused = [], str(error)
    states = await desk.states()
    last = found[-1].id if len(found) == ITEMS_SHOWN else None
    return page(
        request, "items.html", items=[_shown(item) for item in found], wanted=wanted,
        states=states, after=after, last=last, refused=masked(refused),
    )  # fmt: skip


@router.get("/items/{id}")
async def item(request: Request, id: JobId, desk: At) -> Response:
    """One item: where it is and why, its attempts, its results, its history, its buttons."""
    return page(request, "item.html", **await _item(desk, id))


@router.get("/items/{id}/part")
async def item_alone(request: Request, id: JobId, desk: At) -> Response:
    return page(request, "item_part.html", **await _item(desk, id))


@router.post("/items/{id}/{command}")
async def act(request: Request, id: JobId, command: Command, desk: At) -> Response:
    """The buttons. What another tab has done already is done."""
    found = await find_item(desk, id)
    await desk.flow.act(command, found.pipeline, keys=[id], why="on the page")
    return back(request, f"/items/{id}")


async def _item(desk: Desk, id: int) -> dict[str, Any]:
    flow = desk.flow
    found = await find_item(desk, id)
    states = await known_states(flow.store)
    rows = await flow.store.read("history", item=id, after=0, most=HISTORY_MAX)
    named = {"key": found.key, "pipeline": found.pipeline}
    events = [to_event({**dict(row), **named}, states) for row in rows]
    results = [
        {"stage": row["stage"] or "what came with it", "generation": row["generation"],
         "text": _body(row["body"]), "prose": _prose(row["body"])}
        for row in await flow.results(id)
    ]  # fmt: skip
    return {
        "item": _shown(found),
        "why": masked(await flow.why(None, id)),
        "attempts": _attempts(events),
        "events": [(event, _said(event)) for event in events],
        "began_at": found.created_at,
        "results": results,
        "alive": found.phase.value in OPEN,
    }


def _shown(item: Item) -> dict[str, Any]:
    glyph, mood = GLYPHS[item.phase.value]
    return {
        "id": item.id, "pipeline": item.pipeline, "key": masked(item.key), "stage": item.stage,
        "phase": item.phase.value, "state": item.state, "attempt": item.attempt,
        "generation": item.generation, "fence": item.fence, "depth": item.depth, "run": item.run,
        "worker": item.worker, "created_at": item.created_at, "updated_at": item.updated_at,
        "error": masked(item.error or ""), "error_code": item.error_code, "glyph": glyph,
        "mood": mood,
        "can_retry": item.phase in (Phase.DONE, Phase.FAILED, Phase.CANCELLED)
        or (item.phase is Phase.WAITING and item.due_at is not None),
        "can_cancel": item.phase.value in OPEN, "can_release": item.phase is Phase.ACTIVE,
    }  # fmt: skip


def _attempts(events: list[Event]) -> list[dict[str, Any]]:
    """Each lease with how it ended."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.fence is None:
            continue
        if event.kind == "claimed":
            found[event.fence] = {
                "stage": event.stage, "attempt": event.attempt, "worker": event.worker,
                "ended": "under way", "seconds": None, "said": "",
            }  # fmt: skip
        elif event.fence in found and found[event.fence]["ended"] == "under way":
            found[event.fence] |= {
                "ended": event.kind, "seconds": event.seconds, "said": _said(event)
            }  # fmt: skip
        elif event.kind in ("reclaimed", "cancelled", "released"):
            for one in found.values():
                if one["ended"] == "under way":
                    one |= {"ended": event.kind, "seconds": event.seconds}
    return list(found.values())


def _said(event: Event) -> str:
    words = [str(event.data[name]) for name in ("error", "why", "reason") if event.data.get(name)]
    return masked("; ".join(words))[:500]


def _prose(body: object) -> list[str]:
    """What of a result is text for people, such as a summary."""
    fields = body.values() if isinstance(body, dict) else [body]
    return [
        masked(text if len(text) <= PROSE_CHARS_SHOWN else f"{text[:PROSE_CHARS_SHOWN]}…")
        for text in fields
        if isinstance(text, str) and len(text.split()) >= PROSE_WORDS
    ]


def _body(body: object) -> str:
    text = json.dumps(body, ensure_ascii=False, indent=1)
    if len(text) > BODY_CHARS_SHOWN:
        return f"{text[:BODY_CHARS_SHOWN]}\n… {len(text):,} characters in all"
    return text


# --- failures ---


@router.get("/failures")
async def failures(request: Request, desk: At) -> Response:
    """The failed items by their errors."""
    groups = [
        {**dict(row), "sample": masked(row["sample"] or "")}
        for row in await desk.flow.store.read("failures")
    ]
    states = await known_states(desk.flow.store)
    for one in groups:
        one["state"] = state_name(states, one["pipeline"], one["stage"], "failed")
    now = (await desk.flow.store.read("now"))[0]["now"]
    return page(request, "failures.html", groups=groups, now=now)


@router.post("/failures/{pipeline}/{code}/retry")
async def retry_group(request: Request, pipeline: Name, code: str, desk: At) -> Response:
    """Everything that failed with one error, once more."""
    if pipeline not in desk.flow.pipelines:
        raise Problem(404, "no-such-pipeline", f"this server has no {pipeline!r}")
    await desk.flow.retry(
        pipeline, state=desk.flow.pipelines[pipeline].failed, error_code=code[:100]
    )
    return back(request, "/failures")


# --- runs ---


@router.get("/runs")
async def runs(
    request: Request, desk: At, after: Annotated[str, Query(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = ""
) -> Response:
    """The runs, the newest first."""
    found = await desk.flow.runs(None, before=after or None, limit=RUNS_SHOWN)
    last = found[-1].id if len(found) == RUNS_SHOWN else None
    now = (await desk.flow.store.read("now"))[0]["now"]
    return page(request, "runs.html", runs=found, last=last, now=now)


@router.get("/runs/{id}")
async def run(request: Request, id: RunId, desk: At) -> Response:
    """One run: how far it is, and its items."""
    return page(request, "run.html", **await _run(desk, id))


@router.get("/runs/{id}/part")
async def run_alone(request: Request, id: RunId, desk: At) -> Response:
    return page(request, "run_part.html", **await _run(desk, id))


async def _run(desk: Desk, id: str) -> dict[str, Any]:
    flow = desk.flow
    try:
        found = await flow.run(id)
    except UnknownItem:
        raise Problem(404, "no-such-run", f"there is no run {id}") from None
    members = await flow.items(run=id, limit=ITEMS_SHOWN)
    now = (await flow.store.read("now"))[0]["now"]
    return {
        "run": found,
        "states": await flow.counts(run=id),
        "items": [_shown(one) for one in members],
        "now": now,
        "alive": found.finished_at is None,
        "settled": found.accepted - found.open,
    }
