"""The pages: rendered here, alive where there is JavaScript, whole where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Depends, Query, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, Response

import onceflow
from onceflow import Flow, Permanent
from onceflow.core.transition import canonical_key
from onceflow.web.guard import COOKIE, Rules
from onceflow.web.jobs import At, JobId, add, find, ingest_of, job_of
from onceflow.web.problems import Problem
from onceflow.web.shapes import ID_MAX, Job, masked

HERE = Path(__file__).parent
STATIC = HERE / "static"
URLS_MAX = 500
SHOWN_MAX = 50
REFUSED_SHOWN_MAX = 10
LATEST = 20
WAY = ("QUEUED", "FETCHING", "EXTRACTING", "READY_TO_GENERATE", "GENERATING", "SAVED")
NAV = (
    ("Board", "/"),
    ("Items", "/items"),
    ("Runs", "/runs"),
    ("Failures", "/failures"),
    ("Processors", "/processors"),
    ("Add article", "/admin/add-article"),
    ("Analyze a site", "/analysis"),
    ("Graph", "/graph"),
)
"""The pages there are, in the order of the rail."""

router = APIRouter(include_in_schema=False)
templates = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined
)


@dataclass(frozen=True, slots=True)
class Step:
    """One state on an article's way."""

    name: str
    is_past: bool
    is_here: bool


@dataclass(frozen=True, slots=True)
class Card:
    """An article as a page shows it."""

    job: Job
    steps: tuple[Step, ...]
    glyph: str
    mood: str
    note: str

    @property
    def is_settled(self) -> bool:
        return self.job.phase in ("done", "failed", "cancelled")

    @property
    def moves_by_itself(self) -> bool:
        return not self.is_settled and self.job.state != "READY_TO_GENERATE"


GLYPHS = {
    "waiting": ("○", "waits"),
    "ready": ("○", "waits"),
    "active": ("◐", "works"),
    "done": ("✓", "done"),
    "failed": ("✗", "failed"),
    "cancelled": ("■", "cancelled"),
}


def card_of(job: Job) -> Card:
    """Where a job is on its way. One that failed stands where it failed."""
    at = job.state
    if job.phase in ("failed", "cancelled"):
        at = {"fetch": "FETCHING", "extract": "EXTRACTING", "generate": "GENERATING"}[job.stage]
    index = WAY.index(at)
    ended = job.phase == "done"
    steps = tuple(
        Step(name, number < index or ended, number == index and not ended)
        for number, name in enumerate(WAY)
    )
    glyph, mood = GLYPHS[job.phase]
    note = ""
    if job.phase == "waiting" and job.error is not None:
        glyph, mood = "↺", "waits"
        note = f"It will be tried again by itself; attempt {job.attempt} failed."
    return Card(job, steps, glyph, mood, note)


def page(request: Request, name: str, **values: Any) -> HTMLResponse:
    root = str(request.scope.get("root_path", "")).rstrip("/")
    path = request.url.path.removeprefix(root)
    rules: Rules = request.app.state.rules
    text = templates.get_template(name).render(
        root=root,
        path=path,
        nav=NAV,
        version=onceflow.__version__,
        has_token=rules.token is not None,
        **values,
    )
    return HTMLResponse(text)


def back(request: Request, path: str, **query: Any) -> RedirectResponse:
    root = str(request.scope.get("root_path", "")).rstrip("/")
    asked = f"?{urlencode(query, doseq=True)}" if query else ""
    return RedirectResponse(f"{root}{path}{asked}", 303)


async def the_form(request: Request) -> dict[str, str]:
    """The fields of a plain form."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qs(body, max_num_fields=100)
    except ValueError:
        raise Problem(422, "invalid", "the form has too many fields") from None
    return {name: values[0] for name, values in fields.items()}


Form = Annotated[dict[str, str], Depends(the_form)]
Ids = Annotated[str, Query(pattern=r"^[0-9,]*$", max_length=2000)]


@router.get("/admin/add-article")
async def add_article(
    request: Request,
    desk: At,
    ids: Ids = "",
    added: Annotated[int, Query(ge=0, le=URLS_MAX)] = 0,
    known: Annotated[int, Query(ge=0, le=URLS_MAX)] = 0,
    refused: Annotated[list[str] | None, Query(max_length=REFUSED_SHOWN_MAX)] = None,
) -> Response:
    """The form, what became of the last submission, and the articles on their way."""
    flow = desk.flow
    chosen = _ids(ids)
    cards = await _cards(flow, chosen or await _latest(flow))
    refusals = [(masked(line[:300]), why) for line in refused or () if (why := _why(flow, line))]
    return page(
        request,
        "add_article.html",
        cards=cards,
        chosen=bool(chosen),
        ids=",".join(str(card.job.id) for card in cards),
        added=added,
        known=known,
        refusals=refusals,
        alive=any(card.moves_by_itself for card in cards),
    )


@router.post("/admin/add-article")
async def add_articles(request: Request, desk: At, form: Form) -> Response:
    """Accept each line that is a URL, then show them. Sending it twice changes nothing."""
    lines = [line.strip() for line in form.get("urls", "").splitlines() if line.strip()]
    lines = list(dict.fromkeys(lines))
    if len(lines) > URLS_MAX:
        raise Problem(422, "too-many", f"{len(lines):,} lines; at most {URLS_MAX} at once")
    ids: list[int] = []
    new = 0
    refused: list[str] = []
    for line in lines:
        try:
            item, is_new = await add(desk.flow, line)
        except Permanent:
            refused.append(masked(line[:300]))
            continue
        ids += [item.id] if item.id not in ids else []
        new += is_new
    query: dict[str, Any] = {"ids": ",".join(map(str, ids[:SHOWN_MAX]))} if ids else {}
    if ids:
        query |= {"added": new, "known": len(ids) - new}
    if refused:
        query["refused"] = refused[:REFUSED_SHOWN_MAX]
    return back(request, "/admin/add-article", **query)


@router.get("/admin/cards")
async def cards(request: Request, desk: At, ids: Ids) -> Response:
    """The articles alone, for a page that is open already."""
    found = await _cards(desk.flow, _ids(ids))
    text = ",".join(str(card.job.id) for card in found)
    return page(request, "cards.html", cards=found, ids=text)


@router.post("/admin/jobs/{id}/{command}")
async def act(
    request: Request, id: JobId, command: Literal["generate", "retry"], desk: At, form: Form
) -> Response:
    """The buttons. What another tab has done already is done."""
    flow = desk.flow
    item = await find(flow, id)
    if command == "generate":
        await flow.trigger(item.pipeline, item.key, "generate", wait_seconds=0)
    else:
        await flow.act("retry", item.pipeline, keys=[id], why="on the page")
    ids = form.get("ids", "")
    chosen = ",".join(map(str, _ids(ids))) if ids.replace(",", "").isdecimal() else str(id)
    return back(request, "/admin/add-article", ids=chosen)


@router.get("/login")
async def login(request: Request) -> Response:
    return page(request, "login.html", wrong=False)


@router.post("/login")
async def log_in(request: Request, form: Form) -> Response:
    """A browser keeps a mark that only the token can make, not the token."""
    rules: Rules = request.app.state.rules
    if rules.token is None:
        return back(request, "/admin/add-article")
    if not rules.knows(form.get("token", "").strip()):
        answer = page(request, "login.html", wrong=True)
        answer.status_code = 401
        return answer
    done = back(request, "/admin/add-article")
    root = str(request.scope.get("root_path", "")) or "/"
    done.set_cookie(
        COOKIE, rules.session, path=root, httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return done


# --- what they show ---


def _ids(text: str) -> list[int]:
    parts = [part for part in text.split(",") if part and len(part) <= 18]
    numbers = [int(part) for part in parts[:SHOWN_MAX]]
    return [number for number in dict.fromkeys(numbers) if 1 <= number <= ID_MAX]


async def _cards(flow: Flow, ids: list[int]) -> list[Card]:
    found: list[Card] = []
    for id in ids:
        try:
            item = await find(flow, id)
        except Problem:
            continue
        found.append(card_of(await job_of(flow, item)))
    return found


async def _latest(flow: Flow) -> list[int]:
    """The newest articles, the newest first: the runs are listed so."""
    ids: list[int] = []
    for run in await flow.runs(ingest_of(flow), limit=LATEST):
        for item in await flow.items("ingest", run=run.id, limit=LATEST - len(ids)):
            if item.id not in ids and not item.key.startswith("gate:"):
                ids.append(item.id)
        if len(ids) >= LATEST:
            break
    return sorted(ids, reverse=True)


def _why(flow: Flow, line: str) -> str:
    """Why a line was refused; empty if it would be accepted now."""
    try:
        canonical_key(ingest_of(flow), line)
    except Permanent as error:
        return masked(str(error))
    return ""
