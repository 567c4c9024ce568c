"""Articles over HTTP: submit, look, and have a stage done. Asking again is always harmless."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.responses import PlainTextResponse

from onceflow import Flow, Item, Pipeline
from onceflow.core.errors import UnknownItem
from onceflow.core.item import Phase
from onceflow.core.transition import canonical_key, decode
from onceflow.pipelines.ingest import NAME
from onceflow.web.desk import Desk
from onceflow.web.problems import Problem
from onceflow.web.shapes import (
    ID_MAX,
    Failure,
    Job,
    JobBrief,
    JobsAsked,
    JobsPage,
    NewJob,
    StageAnswer,
    Story,
    masked,
    moment,
)

MISSING = {
    "extract": ("no-page-yet", "no page yet: its fetch has to finish first"),
    "generate": ("no-text-yet", "no text yet: its extraction has to finish first"),
}
HISTORY_MAX = 1000

router = APIRouter(prefix="/api/ingestion-jobs", tags=["ingestion jobs"])


async def the_desk(request: Request) -> Desk:  # async: else each request waits for a thread
    found: Desk = request.app.state.desk
    return found


At = Annotated[Desk, Depends(the_desk)]
JobId = Annotated[int, Path(ge=1, le=ID_MAX, examples=[1])]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{1,200}$",
        description="The same key with the same body gives the same answer; with another, 422.",
    ),
]
Stage = Literal["fetch", "extract", "generate"]


@router.post(
    "",
    status_code=201,
    response_model=Job,
    responses={200: {"description": "The job was there already", "model": Job}},
)
async def submit(
    new: NewJob, desk: At, request: Request, response: Response, key: IdempotencyKey = None
) -> Job:
    """Accept an article. One that is known already keeps the work and the result it has."""
    item, is_new = await add(desk.flow, new.url, key)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"{request.scope.get('root_path', '')}{router.prefix}/{item.id}"
    return await job_of(desk.flow, item)


async def add(flow: Flow, url: str, key: str | None = None) -> tuple[Item, bool]:
    """The item of a URL, and whether this call (or an earlier one with the same key) made it."""
    return await add_one(flow, ingest_of(flow), url, "ingestion-jobs", key)


async def add_one(
    flow: Flow, pipeline: Pipeline, url: str, route: str, key: str | None
) -> tuple[Item, bool]:
    """The item of a URL in a pipeline, made if need be. `key` is the caller's Idempotency-Key."""
    spelled = canonical_key(pipeline, url)
    if key is not None:
        return await _add_by_key(flow, pipeline, spelled, run_of_key(route, key))
    try:
        return await flow.item(pipeline, spelled), False
    except UnknownItem:
        added = await flow.add(pipeline, [spelled])
        return await flow.item(pipeline, spelled), added.new == 1


async def _add_by_key(flow: Flow, pipeline: Pipeline, url: str, run: str) -> tuple[Item, bool]:
    """The key makes the run's id, so every process on this database knows what it was used for."""
    before = await flow.items(pipeline, run=run, limit=1)
    if before and before[0].key != (await _known_key(flow, pipeline, url)):
        raise key_used()
    if not before:
        await flow.add(pipeline, [url], run=run)
        before = await flow.items(pipeline, run=run, limit=1)
        if before[0].key != (await _known_key(flow, pipeline, url)):  # two at once with one key
            raise key_used()
    return before[0], before[0].run == run


async def _known_key(flow: Flow, pipeline: Pipeline, url: str) -> str:
    try:
        return (await flow.item(pipeline, url)).key
    except UnknownItem:
        return url


def run_of_key(route: str, key: str) -> str:
    return "k" + blake2b(f"{route}\n{key}".encode(), digest_size=12).hexdigest()


def key_used() -> Problem:
    return Problem(
        422,
        "idempotency-key-used",
        "this Idempotency-Key was used with another body; use a new one",
    )


@router.get("", response_model=JobsPage)
async def listing(
    asked: Annotated[JobsAsked, Query()], desk: At, request: Request, response: Response
) -> JobsPage:
    """A page of jobs in the order they came. `next` is the address of the next page."""
    try:
        items = await desk.flow.items(
            ingest_of(desk.flow), state=asked.state, after=asked.after, limit=asked.limit
        )
    except UnknownItem as error:
        raise Problem(422, "no-such-state", str(error)) from None
    jobs = [JobBrief(**await brief_of(desk.flow, item)) for item in items]
    following = next_page(request, response, str(items[-1].id) if items else "", len(items), asked)
    return JobsPage(jobs=jobs, next=following)


@router.get("/{id}", response_model=Job)
async def one(id: JobId, desk: At) -> Job:
    """A job, with everything it has so far except the raw page."""
    return await job_of(desk.flow, await find(desk.flow, id))


@router.get(
    "/{id}/raw-html",
    response_class=PlainTextResponse,
    responses={200: {"description": "The page as it was fetched, as plain text"}},
)
async def raw_html(id: JobId, desk: At) -> PlainTextResponse:
    """The page as it was fetched. As plain text: a stranger's page is not shown as one of ours."""
    item = await find(desk.flow, id)
    result = await desk.flow.result(item.id, "fetch")
    if result is None:
        raise not_yet(item, "fetch", "no-page-yet", "no page yet: it is not fetched")
    text = str(result["rawHtml"]).encode("utf-8", "replace")
    return PlainTextResponse(text)


@router.post(
    "/{id}/{stage}",
    response_model=StageAnswer,
    responses={202: {"description": "It is still being worked on", "model": StageAnswer}},
)
async def perform(
    id: JobId,
    stage: Stage,
    desk: At,
    response: Response,
    wait: Annotated[
        float | None, Query(ge=0, le=60, description="Seconds before it answers 202")
    ] = None,
) -> StageAnswer:
    """Have a stage done: performed now, or `skipped` because it is done or somebody was at it.

    409 says what is missing. The work goes on if the caller goes away."""
    item = await find(desk.flow, id)
    seconds = desk.wait_seconds if wait is None else wait
    answer = await desk.flow.trigger(NAME, item.key, stage, wait_seconds=seconds)
    if answer.how == "not_yet":
        raise _refusal(answer.item, stage)
    if not answer.finished:
        response.status_code = 202
        response.headers["Retry-After"] = "1"
    job = await job_of(desk.flow, answer.item)
    return StageAnswer(success=True, skipped=answer.how != "performed", job=job)


def _refusal(item: Item, stage: str) -> Problem:
    if item.phase in (Phase.FAILED, Phase.CANCELLED):
        kind = "failed" if item.phase is Phase.FAILED else "cancelled"
        why = masked(item.error or "")
        return not_yet(item, stage, kind, f"it is {item.state} at {item.stage}: {why}; retry it")
    kind, detail = MISSING.get(stage, ("not-yet", "it is not there yet"))
    return not_yet(item, stage, kind, detail)


def not_yet(item: Item, stage: str, kind: str, detail: str) -> Problem:
    more: dict[str, Any] = {"item": item.id, "state": item.state, "stage": item.stage}
    more |= {"phase": item.phase.value, "asked": stage, "code": item.error_code}
    return Problem(409, kind, detail, **more)


# --- shared with the pages ---


def ingest_of(flow: Flow) -> Pipeline:
    if NAME not in flow.pipelines:
        raise Problem(404, "no-ingest", "this server has no ingest pipeline")
    return flow.pipelines[NAME]


async def find(flow: Flow, id: int) -> Item:
    """The job of that id; an item of another pipeline is none."""
    return await find_in(flow, ingest_of(flow), id, "ingestion job")


async def find_in(flow: Flow, pipeline: Pipeline, id: int, noun: str) -> Item:
    """The item of that id, if it is one of this pipeline's."""
    try:
        item = await flow.item(None, id)
    except UnknownItem:
        item = None
    if item is None or item.pipeline != pipeline.name or item.key.startswith("gate:"):
        raise Problem(404, "no-such-job", f"there is no {noun} {id}", item=id)
    return item


async def brief_of(flow: Flow, item: Item) -> dict[str, Any]:
    """What every job says of itself, whatever its pipeline."""
    return {
        "id": item.id,
        "url": masked(item.key),
        "state": item.state,
        "stage": item.stage,
        "phase": item.phase.value,
        "inProgress": item.phase is Phase.ACTIVE,
        "attempt": item.attempt,
        "createdAt": moment(item.created_at),
        "updatedAt": moment(item.updated_at),
        "error": await failure_of(flow, item),
    }


async def failure_of(flow: Flow, item: Item) -> Failure | None:
    """Why it failed, or why it backs off."""
    if item.error is None:
        return None
    permanent = False
    if item.phase is Phase.FAILED:
        rows = await flow.store.read("history", item=item.id, after=0, most=HISTORY_MAX)
        told = [row["data"] for row in rows if row["kind"] == "failed" and row["data"]]
        permanent = bool(told) and json.loads(told[-1]).get("permanent") is True
    return Failure(
        stage=item.stage,
        reason=masked(item.error),
        code=item.error_code or "failed",
        failure_class="permanent" if permanent else "transient",
    )


async def job_of(flow: Flow, item: Item) -> Job:
    """A job with what its finished stages left. What an earlier generation left is not shown
    while it is being made anew."""
    pipeline = flow.pipelines[NAME]
    past = {
        stage.name
        for stage in pipeline.stages
        if pipeline.order(stage.name) < pipeline.order(item.stage) or item.phase is Phase.DONE
    }
    rows = {row["stage"]: row for row in await flow.store.read("results", item=item.id)}
    at = {stage: moment(row["at"]) for stage, row in rows.items() if stage in past}
    extracted = decode(bytes(rows["extract"]["body"])) if "extract" in at else {}
    story = decode(bytes(rows["generate"]["body"])) if "generate" in at else None
    return Job(
        **await brief_of(flow, item),
        fetchedAt=at.get("fetch"),
        extractedAt=at.get("extract"),
        generatedAt=at.get("generate"),
        savedAt=at.get("generate"),
        title=extracted.get("title"),
        author=extracted.get("author"),
        date=extracted.get("date"),
        language=extracted.get("language"),
        extractedText=extracted.get("extractedText"),
        story=None if story is None else Story(**{n: story[n] for n in Story.model_fields}),
    )


def next_page(
    request: Request, response: Response, after: str, found: int, asked: Any
) -> str | None:
    """The address of the next page, in the body and as a Link."""
    if found < asked.limit:
        return None
    url = request.url.include_query_params(after=after)
    path = f"{url.path}?{url.query}"
    response.headers["Link"] = f'<{path}>; rel="next"'
    return path
