"""Items and runs of every pipeline, and what an operator may do to an item."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from onceflow import Item
from onceflow.core.errors import UnknownItem
from onceflow.engine.listing import known_states, to_event
from onceflow.web.desk import Desk
from onceflow.web.jobs import (
    HISTORY_MAX,
    At,
    IdempotencyKey,
    JobId,
    key_used,
    next_page,
    run_of_key,
)
from onceflow.web.problems import Problem
from onceflow.web.shapes import (
    Changed,
    EventOut,
    ItemOut,
    ItemsAsked,
    ItemsPage,
    ItemWhole,
    NewRun,
    ResultOut,
    RunAdded,
    RunId,
    RunOut,
    RunsAsked,
    RunsPage,
    RunWhole,
    Wish,
    masked,
)

Command = Literal["retry", "cancel", "release"]
FITS = {
    "retry": "what is settled or backs off",
    "cancel": "what is not settled",
    "release": "what is being worked on",
}
RESULT_CHARS_SHOWN_MAX = 2_000_000

router = APIRouter(prefix="/api", tags=["items and runs"])


@router.get("/items", response_model=ItemsPage)
async def items(
    asked: Annotated[ItemsAsked, Query()], desk: At, request: Request, response: Response
) -> ItemsPage:
    """A page of items in the order of their ids. `next` is the address of the next page."""
    try:
        found = await desk.flow.items(**asked.model_dump())
    except UnknownItem as error:
        raise Problem(422, "no-such-state", str(error)) from None
    last = str(found[-1].id) if found else ""
    following = next_page(request, response, last, len(found), asked)
    return ItemsPage(items=[ItemOut.of(item) for item in found], next=following)


@router.get("/items/{id}", response_model=ItemWhole)
async def item(id: JobId, desk: At) -> ItemWhole:
    """One item with its results, its history and why it does not move."""
    flow = desk.flow
    found = await find_item(desk, id)
    named = {"key": found.key, "pipeline": found.pipeline}
    history = await flow.store.read("history", item=id, after=0, most=HISTORY_MAX)
    rows = [{**row, **named} for row in history]
    states = await known_states(flow.store, *rows)
    events = [EventOut.of(to_event(row, states)) for row in rows]
    results = [
        ResultOut(stage=row["stage"], generation=row["generation"], at=row["at"],
                  body=_bounded(row["body"]))
        for row in await flow.results(id)
    ]  # fmt: skip
    why = masked(await flow.why(None, id))
    return ItemWhole(item=ItemOut.of(found), why=why, results=results, events=events)


def _bounded(body: object) -> object:
    """A result as it is, unless it is so large that an answer should only say so."""
    size = len(json.dumps(body))
    return body if size <= RESULT_CHARS_SHOWN_MAX else {"left_out": f"{size:,} characters"}


@router.post("/items/{id}/{command}", response_model=Changed)
async def act(id: JobId, command: Command, desk: At, wish: Wish | None = None) -> Changed:
    """Retry, cancel or release one item. 409 if its state does not fit, or changed meanwhile."""
    wish = wish or Wish()
    flow = desk.flow
    found = await find_item(desk, id)
    if wish.from_stage and found.pipeline in flow.pipelines:
        flow.pipelines[found.pipeline].stage(wish.from_stage)  # refused if there is none
    acted = await flow.act(
        command, found.pipeline, keys=[id], why=wish.why or "through the API",
        from_stage=wish.from_stage if command == "retry" else "",
    )  # fmt: skip
    after = await find_item(desk, id)
    if not acted.changed:
        meanwhile = "its state changed meanwhile" if acted.fitting else f"it is {after.state}"
        there = f" and was at stage {wish.from_stage}" if wish.from_stage else ""
        raise Problem(
            409, "not-fitting", f"{meanwhile}; {command} is for {FITS[command]}{there}",
            item=id, state=after.state, stage=after.stage, phase=after.phase.value,
        )  # fmt: skip
    return Changed(changed=True, item=ItemOut.of(after))


async def find_item(desk: Desk, id: int) -> Item:
    try:
        return await desk.flow.item(None, id)
    except UnknownItem:
        raise Problem(404, "no-such-item", f"there is no item {id}", item=id) from None


# --- runs ---


@router.post(
    "/runs",
    status_code=201,
    response_model=RunAdded,
)
async def submit(
    new: NewRun, desk: At, request: Request, response: Response, key: IdempotencyKey = None
) -> RunAdded:
    """Add items to a pipeline as one run. Known keys join with the work and result they have."""
    flow = desk.flow
    if new.pipeline not in flow.pipelines:
        names = ", ".join(flow.pipelines) or "none"
        raise Problem(
            422, "no-such-pipeline", f"this server has no {new.pipeline!r}, it has {names}"
        )
    run = None
    if key is not None:
        # The body is part of the id: the same key with another body meets the first one's mark.
        mark = json.dumps([new.pipeline, sorted(set(new.keys))])
        run = run_of_key("runs", key)
        await _check_key(desk, run, mark)
    added = await flow.add(new.pipeline, new.keys, run=run)
    root = request.scope.get("root_path", "")
    response.headers["Location"] = f"{root}/api/runs/{added.run}"
    return RunAdded(run=added.run, new=added.new, known=added.known)


async def _check_key(desk: Desk, run: str, mark: str) -> None:
    """A run that this key made before must have exactly the items of this body."""
    flow = desk.flow
    try:
        before = await flow.run(run)
    except UnknownItem:
        return
    pipeline, keys = json.loads(mark)
    spelled = set()
    for key in keys:
        try:
            spelled.add((await flow.item(pipeline, key)).key)
        except UnknownItem:
            raise key_used() from None
    had: set[str] = set()
    after = 0
    while page := await flow.items(run=run, after=after, limit=1000):
        after = page[-1].id
        had |= {item.key for item in page}
    if before.pipeline != pipeline or had != spelled:
        raise key_used()


@router.get("/runs", response_model=RunsPage)
async def runs(
    asked: Annotated[RunsAsked, Query()], desk: At, request: Request, response: Response
) -> RunsPage:
    """A page of runs, the newest first."""
    found = await desk.flow.runs(asked.pipeline, before=asked.after, limit=asked.limit)
    last = found[-1].id if found else ""
    following = next_page(request, response, last, len(found), asked)
    return RunsPage(runs=[RunOut.of(run) for run in found], next=following)


@router.get("/runs/{id}", response_model=RunWhole)
async def run(id: RunId, desk: At) -> RunWhole:
    """One run, and how many of its items are in each state."""
    try:
        found = await desk.flow.run(id)
    except UnknownItem:
        raise Problem(404, "no-such-run", f"there is no run {id}") from None
    return RunWhole(run=RunOut.of(found), states=await desk.flow.counts(run=id))
