"""Websites over HTTP: submit one, see how far it is, read its report."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import HTMLResponse, PlainTextResponse

from onceflow import Flow, Item, Pipeline
from onceflow.core.errors import UnknownItem
from onceflow.core.item import Phase
from onceflow.pipelines.analyze.files import (
    NAME,
    STAGES,
    document,
    encoded,
    report_from,
    results_of,
)
from onceflow.pipelines.analyze.report import Report
from onceflow.pipelines.analyze.report_html import CONTENT_POLICY, html
from onceflow.pipelines.analyze.report_md import markdown
from onceflow.pipelines.files import as_bytes
from onceflow.web.desk import Desk
from onceflow.web.jobs import At, IdempotencyKey, JobId, add_one, brief_of, find_in, next_page
from onceflow.web.problems import Problem
from onceflow.web.shapes import (
    AnalysesPage,
    Analysis,
    AnalysisBrief,
    JobsAsked,
    NewJob,
    ReportLinks,
    masked,
    moment,
)

ROUTE = "analysis-jobs"

router = APIRouter(prefix=f"/api/{ROUTE}", tags=["analysis jobs"])


@router.post(
    "",
    status_code=201,
    response_model=Analysis,
    responses={200: {"description": "The job was there already", "model": Analysis}},
)
async def submit(
    new: NewJob, desk: At, request: Request, response: Response, key: IdempotencyKey = None
) -> Analysis:
    """Accept a website. One that is known already keeps the work and the report it has."""
    item, is_new = await add(desk.flow, new.url, key)
    response.status_code = 201 if is_new else 200
    root = request.scope.get("root_path", "")
    response.headers["Location"] = f"{root}{router.prefix}/{item.id}"
    return await analysis_of(desk.flow, item, root)


@router.get("", response_model=AnalysesPage)
async def listing(
    asked: Annotated[JobsAsked, Query()], desk: At, request: Request, response: Response
) -> AnalysesPage:
    """A page of jobs in the order they came. `next` is the address of the next page."""
    try:
        items = await desk.flow.items(
            analyze_of(desk.flow), state=asked.state, after=asked.after, limit=asked.limit
        )
    except UnknownItem as error:
        raise Problem(422, "no-such-state", str(error)) from None
    jobs = [AnalysisBrief(**await brief(desk.flow, item)) for item in items]
    following = next_page(request, response, str(items[-1].id) if items else "", len(items), asked)
    return AnalysesPage(jobs=jobs, next=following)


@router.get("/{id}", response_model=Analysis)
async def one(id: JobId, desk: At, request: Request) -> Analysis:
    """A job, with what its phases found so far."""
    return await analysis_of(
        desk.flow, await find(desk.flow, id), request.scope.get("root_path", "")
    )


@router.get(
    "/{id}/report.html",
    response_class=HTMLResponse,
    responses={200: {"description": "The report as one page that asks for nothing else"}},
)
async def report_html(id: JobId, desk: At) -> Response:
    """The report as one HTML page with its charts; 409 until the job is completed."""
    report = await _report(desk, id)
    policy = f"{CONTENT_POLICY}; frame-ancestors 'none'"
    return HTMLResponse(encoded(html(report)), headers={"Content-Security-Policy": policy})


@router.get(
    "/{id}/report.md",
    response_class=PlainTextResponse,
    responses={200: {"description": "The report as Markdown"}},
)
async def report_md(id: JobId, desk: At) -> Response:
    """The report as Markdown; 409 until the job is completed."""
    return PlainTextResponse(encoded(markdown(await _report(desk, id))))


@router.get("/{id}/report.json", responses={200: {"description": "Everything that is known"}})
async def report_json(id: JobId, desk: At) -> Response:
    """Everything that the report is made from; 409 until the job is completed."""
    item = await find(desk.flow, id)
    bodies, times = await results_of(desk.flow, item)
    if report_from(item, bodies, times) is None:
        raise _no_report(item)
    return Response(as_bytes(document(item, bodies, times)), media_type="application/json")


async def _report(desk: Desk, id: int) -> Report:
    item = await find(desk.flow, id)
    bodies, times = await results_of(desk.flow, item)
    report = report_from(item, bodies, times)
    if report is None:
        raise _no_report(item)
    return report


def _no_report(item: Item) -> Problem:
    if item.phase in (Phase.FAILED, Phase.CANCELLED):
        why = f"it is {item.state} at {item.stage}: {masked(item.error or '')}; retry it"
        kind = item.phase.value
    else:
        why, kind = f"no report yet: it is at {item.stage}", "no-report-yet"
    more: dict[str, Any] = {"item": item.id, "state": item.state, "stage": item.stage}
    return Problem(409, kind, why, phase=item.phase.value, **more)


# --- shared with the pages ---


def analyze_of(flow: Flow) -> Pipeline:
    if NAME not in flow.pipelines:
        raise Problem(404, "no-analyze", "this server has no analyze pipeline")
    return flow.pipelines[NAME]


async def add(flow: Flow, url: str, key: str | None = None) -> tuple[Item, bool]:
    """The item of a site, and whether this call (or an earlier one with the same key) made it."""
    return await add_one(flow, analyze_of(flow), url, ROUTE, key)


async def find(flow: Flow, id: int) -> Item:
    return await find_in(flow, analyze_of(flow), id, "analysis job")


async def brief(flow: Flow, item: Item) -> dict[str, Any]:
    return {**await brief_of(flow, item), "retryCount": max(0, item.attempt - 1)}


async def analysis_of(flow: Flow, item: Item, root: str) -> Analysis:
    """A job with what its finished phases left."""
    bodies, times = await results_of(flow, item)
    site, prompts, analysis = (bodies.get(stage) or {} for stage in STAGES)
    at = {stage: moment(ms) for stage, ms in times.items()}
    links = None
    if item.phase is Phase.DONE and len(bodies) == len(STAGES):
        place = f"{root}{router.prefix}/{item.id}/report"
        links = ReportLinks(html=f"{place}.html", md=f"{place}.md", json_=f"{place}.json")
    return Analysis(
        **await brief(flow, item),
        websiteAnalyzedAt=at.get(STAGES[0]),
        promptsFormedAt=at.get(STAGES[1]),
        completedAt=at.get(STAGES[2]),
        extractedInfo=site.get("extractedInfo"),
        prompts=prompts.get("prompts"),
        scores=analysis.get("scores"),
        todo=analysis.get("todo"),
        asked=analysis.get("asked"),
        notes=[note for body in (site, prompts, analysis) for note in body.get("notes") or ()],
        report=links,
    )
