"""The app: every route, every error as a problem, and the flow that lives as long as it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import onceflow
from onceflow import (
    Flow,
    OnceflowError,
    Permanent,
    Pipeline,
    PipelineError,
    Settings,
    StoreUnavailable,
)
from onceflow.core.errors import UnknownItem
from onceflow.web import (
    analyses,
    analysis_pages,
    dashboard,
    events,
    graph,
    items,
    jobs,
    pages,
    stats,
)
from onceflow.web.desk import Desk
from onceflow.web.feed import Feed
from onceflow.web.guard import LOOPBACK, Guard, Rules
from onceflow.web.problems import MEDIA_TYPE, Problem
from onceflow.web.shapes import ProblemOut, masked

STOP_SECONDS = 1.5
"""How long attempts under way have when the server stops; the rest is given back, uncounted."""
ABOUT = """Articles and other items through staged pipelines, every item through every stage once.

Every call may be repeated. Every error is `application/problem+json`."""


def create_app(
    database: str | os.PathLike[str] | Flow,
    *pipelines: Pipeline,
    settings: Settings | None = None,
    worker: bool = True,
    token: str | None = None,
    hosts: Sequence[str] = (),
    wait_seconds: float = 30.0,
    ping_seconds: float = 15.0,
    streams_max: int = 500,
    body_seconds: float = 10.0,
    knowledge: Path | None = None,
) -> FastAPI:
    """An app over a database, or over a flow that is not open yet. With `worker` it also works."""
    flow = (
        database
        if isinstance(database, Flow)
        else onceflow.open(database, *pipelines, settings=settings)
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with flow:
            feed = Feed(flow)
            await feed.start()
            app.state.desk = Desk(flow, feed, wait_seconds, ping_seconds, streams_max)
            reading = asyncio.gather(feed.run(), feed.texts.run())
            if worker:
                flow.start()
            app.state.knowledge = graph.Knowledge(flow, knowledge)
            try:
                async with app.state.knowledge.kept():
                    yield
            finally:
                feed.close()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                await flow.stop(STOP_SECONDS)

    app = FastAPI(
        title="Onceflow",
        version=onceflow.__version__,
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"description": "A problem", "model": ProblemOut}},
    )
    for module in (jobs, analyses, items, events, stats, graph, pages, analysis_pages, dashboard):
        app.include_router(module.router)
    app.mount("/static", StaticFiles(directory=pages.STATIC), name="static")
    _answer_errors(app)
    rules = Rules((*LOOPBACK, *(host.lower() for host in hosts)), token, body_seconds=body_seconds)
    app.add_middleware(_Counted)
    app.add_middleware(Guard, rules=rules)
    app.state.rules = rules
    plain = app.openapi
    app.openapi = lambda: _described(plain())  # type: ignore[method-assign]  # FastAPI's own way
    return app


def stop_streams(app: FastAPI) -> None:
    """The server is about to stop: let the readers of events go, and claim no more."""
    desk: Desk | None = getattr(app.state, "desk", None)
    if desk is not None:
        desk.feed.close()
        desk.flow.stop_soon(STOP_SECONDS)


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """Every problem is documented under its own media type."""
    for path in schema["paths"].values():
        for operation in path.values():
            content = operation["responses"].get("default", {}).get("content", {})
            for other in [name for name in content if name != MEDIA_TYPE]:
                content[MEDIA_TYPE] = content.pop(other)
    return schema


class _Counted:
    """Counts answers by their status."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["app"].state.desk.answers[message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)


def _answer_errors(app: FastAPI) -> None:
    async def problem(request: Request, error: Exception) -> Response:
        root = str(request.scope.get("root_path", "")).rstrip("/")
        return to_problem(error).response(request.headers.get("accept", ""), root)

    for kind in (Problem, HTTPException, RequestValidationError, OnceflowError):
        app.add_exception_handler(kind, problem)


def to_problem(error: Exception) -> Problem:
    """What an error is to the caller."""
    match error:
        case Problem():
            return error
        case RequestValidationError():
            errors = [
                {"at": ".".join(str(part)[:100] for part in one["loc"]), "why": one["msg"][:300]}
                for one in error.errors()[:20]
            ]
            detail = "; ".join(f"{one['at']}: {one['why']}" for one in errors[:3])
            return Problem(422, "invalid", detail or "it does not fit", errors=errors)
        case HTTPException(status_code=status):
            headers = dict(error.headers or {})
            return Problem(status, _KINDS.get(status, "http"), _DETAILS.get(status, error.detail),
                           headers=headers)  # fmt: skip
        case StoreUnavailable():
            detail = "the database cannot be reached at the moment; nothing accepted is lost"
            return Problem(503, "unavailable", detail, headers={"Retry-After": "1"})
        case UnknownItem():
            return Problem(404, "not-found", masked(str(error)))
        case Permanent():
            return Problem(422, error.code.replace("_", "-"), masked(str(error)))
        case PipelineError():
            return Problem(422, "invalid", masked(str(error)))
        case _:
            return Problem(500, "internal", "something went wrong here; the log says what")


_KINDS = {404: "not-found", 405: "method-not-allowed"}
_DETAILS = {
    404: "there is nothing at this address; /openapi.json lists what there is",
    405: "this address does not take that method",
}
