"""The pages of websites: add one and see them all, and a page for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from starlette.responses import Response

from onceflow import Flow, Item, Permanent
from onceflow.core.item import Phase
from onceflow.core.transition import canonical_key
from onceflow.engine.listing import known_states, to_event
from onceflow.pipelines.analyze.charts import ring
from onceflow.pipelines.analyze.files import NAME, STAGES, report_from, results_of
from onceflow.pipelines.analyze.report import Report, verdict
from onceflow.web.analyses import add, analysis_of, analyze_of, brief, find
from onceflow.web.jobs import At, JobId
from onceflow.web.pages import GLYPHS, Form, Step, back, page
from onceflow.web.problems import Problem
from onceflow.web.shapes import Analysis, AnalysisBrief, masked

LATEST = 30
HISTORY_SHOWN = 100
SITES_MAX = 100
WAY = (*STAGES, "completed")

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Row:
    """A site in the list."""

    job: AnalysisBrief
    glyph: str
    mood: str


def way_of(stage: str, phase: str) -> tuple[Step, ...]:
    """Where a job is on its way. One that failed stands where it failed."""
    done = phase == Phase.DONE
    index = len(STAGES) if done else STAGES.index(stage)
    return tuple(
        Step(name, number < index or done, number == index and not done)
        for number, name in enumerate(WAY)
    )


def look_of(job: AnalysisBrief) -> tuple[str, str]:
    if job.phase == "waiting" and job.error is not None:
        return "↺", "waits"
    return GLYPHS[job.phase]


@router.get("/analysis")
async def sites(
    request: Request,
    desk: At,
    refused: Annotated[list[str] | None, Query(max_length=10)] = None,
) -> Response:
    """The form, and the newest sites."""
    analyze = analyze_of(desk.flow)
    refusals = []
    for line in refused or ():
        try:
            canonical_key(analyze, line[:300])
        except Permanent as error:
            refusals.append((masked(line[:300]), masked(str(error))))
    rows = await _latest(desk.flow)
    return page(request, "analysis.html", rows=rows, refusals=refusals, alive=_any_moves(rows))


@router.get("/analysis/rows")
async def rows_alone(request: Request, desk: At) -> Response:
    """The list alone, for a page that is open already."""
    return page(request, "analysis_rows.html", rows=await _latest(desk.flow))


@router.post("/analysis")
async def add_sites(request: Request, desk: At, form: Form) -> Response:
    """Accept each line that is a site. Sending it twice changes nothing."""
    lines = [line.strip() for line in form.get("sites", "").splitlines() if line.strip()]
    lines = list(dict.fromkeys(lines))
    if len(lines) > SITES_MAX:
        raise Problem(422, "too-many", f"{len(lines):,} lines; at most {SITES_MAX} at once")
    added: list[int] = []
    refused: list[str] = []
    for line in lines:
        try:
            item, _ = await add(desk.flow, line)
            added.append(item.id)
        except Permanent:
            refused.append(masked(line[:300]))
    if len(added) == 1 and not refused:
        return back(request, f"/analysis/{added[0]}")
    return back(request, "/analysis", **({"refused": refused[:10]} if refused else {}))


@router.get("/analysis/{id}")
async def site(request: Request, id: JobId, desk: At) -> Response:
    """One site: how far it is, and what came of it."""
    values = await _site(desk.flow, await find(desk.flow, id), request)
    return page(request, "analysis_one.html", **values)


@router.get("/analysis/{id}/part")
async def site_alone(request: Request, id: JobId, desk: At) -> Response:
    """The same without the frame, for a page that is open already."""
    values = await _site(desk.flow, await find(desk.flow, id), request)
    return page(request, "analysis_part.html", **values)


@router.post("/analysis/{id}/{command}")
async def act(
    request: Request, id: JobId, command: Literal["retry", "cancel"], desk: At
) -> Response:
    """The buttons. What another tab has done already is done."""
    item = await find(desk.flow, id)
    from_stage = STAGES[0] if command == "retry" and item.phase is Phase.DONE else ""
    await desk.flow.act(command, item.pipeline, keys=[id], why="on the page", from_stage=from_stage)
    return back(request, f"/analysis/{id}")


# --- what they show ---


def _any_moves(rows: list[Row]) -> bool:
    return any(row.job.phase in ("waiting", "ready", "active") for row in rows)


async def _latest(flow: Flow) -> list[Row]:
    """The newest sites, the newest first: the runs are listed so."""
    found: dict[int, Item] = {}
    for run in await flow.runs(analyze_of(flow), limit=LATEST):
        for item in await flow.items(NAME, run=run.id, limit=LATEST):
            if not item.key.startswith("gate:"):
                found[item.id] = item
        if len(found) >= LATEST:
            break
    newest = sorted(found, reverse=True)[:LATEST]
    jobs = [AnalysisBrief(**await brief(flow, found[id])) for id in newest]
    return [Row(job, *look_of(job)) for job in jobs]


async def _site(flow: Flow, item: Item, request: Request) -> dict[str, Any]:
    root = str(request.scope.get("root_path", "")).rstrip("/")
    job: Analysis = await analysis_of(flow, item, root)
    report: Report | None = None
    if job.report is not None:
        report = report_from(item, *await results_of(flow, item))
    states = await known_states(flow.store)
    rows = await flow.store.read("history", item=item.id, after=0, most=HISTORY_SHOWN)
    named = {"key": item.key, "pipeline": item.pipeline}
    events = [to_event({**dict(row), **named}, states) for row in rows]
    glyph, mood = look_of(job)
    return {
        "job": job,
        "glyph": glyph,
        "mood": mood,
        "steps": way_of(item.stage, item.phase),
        "alive": job.phase in ("waiting", "ready", "active"),
        "report": report,
        "dials": _dials(report),
        "events": events,
        "began_at": item.created_at,
        "why": masked(await flow.why(None, item.id)),
    }


def _dials(report: Report | None) -> list[tuple[Markup, str, str]]:
    if report is None:
        return []
    return [
        (Markup(ring(score, name)), name, about if score is None else f"{verdict(score)}, {about}")
        for score, name, about in (
            (
                report.visibility,
                "Visibility",
                "in assistants' answers" if report.asked else "no assistant was asked",
            ),
            (report.coverage, "Coverage", "by the site's own pages"),
        )
    ]
