"""The history as a stream: SSE for browsers, NDJSON for programs. It resumes after any `seq`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onceflow import Event
from onceflow.web.desk import Desk
from onceflow.web.feed import Feed, Wanted
from onceflow.web.items import find_item
from onceflow.web.jobs import At
from onceflow.web.problems import Problem
from onceflow.web.shapes import EventsAsked, ItemOut
from onceflow.web.texts import Partial

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
RETRY_MS = 1000
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

router = APIRouter(prefix="/api", tags=["events"])


@router.get(
    "/events",
    response_class=Response,
    responses={
        200: {
            "description": "First a `snapshot` unless the reader resumes, then each event once",
            "content": {
                SSE: {"schema": {"type": "string"}},
                NDJSON: {"schema": {"type": "string"}},
            },
        }
    },
)
async def events(
    asked: Annotated[EventsAsked, Query()],
    desk: At,
    request: Request,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """The history, live. `Last-Event-ID` (or `after`) resumes without a gap or a repetition. With
    `partials` also texts in progress, which have no `seq`: a piece goes at its `offset` into the
    text of its `epoch`."""
    feed = desk.feed
    if feed.readers >= desk.streams_max:
        raise Problem(
            503, "too-many-streams", f"{desk.streams_max} streams are open, which is the limit",
            headers={"Retry-After": "5"},
        )  # fmt: skip
    after = _resume(asked, last_event_id)
    seen = after is not None and after <= feed.newest
    last = feed.newest if seen else await feed.last()
    if after is not None and after > last:
        raise Problem(
            410, "gone", f"event {after} is not in this database, whose last is {last}; begin anew"
        )
    kinds = None if asked.kinds is None else frozenset(asked.kinds.split(","))
    wanted = Wanted(asked.pipeline, asked.item, asked.run, kinds, asked.partials and asked.follow)
    as_lines = NDJSON in request.headers.get("accept", "")
    snapshot = None if after is not None else await _snapshot(desk, wanted, last)
    begin = 0 if after is None and not asked.follow else last if after is None else after
    chunks = _chunks(desk, wanted, begin, _Form(feed, as_lines), snapshot, follow=asked.follow)
    feed.readers += 1
    return Stream(chunks, NDJSON if as_lines else SSE, feed)


def _resume(asked: EventsAsked, header: str | None) -> int | None:
    """Where to go on; the header is the newer, a browser sends it when it reconnects."""
    if header is None or not header.strip():
        return asked.after
    text = header.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise Problem(400, "bad-event-id", "Last-Event-ID is not the id of an event")
    return int(text)


async def _snapshot(desk: Desk, wanted: Wanted, seq: int) -> dict[str, Any]:
    """How things stand, at least as new as `seq`: the events after it go on from here."""
    found: dict[str, Any] = {"seq": seq, "states": await desk.states()}
    if wanted.item is not None:
        found["item"] = ItemOut.of(await find_item(desk, wanted.item)).model_dump()
        partial = await desk.flow.partial(wanted.item)
        found["text"] = None if partial is None else partial[1]
    return found


@dataclass(frozen=True, slots=True)
class _Form:
    feed: Feed
    as_lines: bool

    def one(self, one: Event | Partial) -> bytes:
        return self.partial(one) if isinstance(one, Partial) else self.event(one)

    def partial(self, partial: Partial) -> bytes:
        body = partial.body()
        return (
            f"{body}\n".encode() if self.as_lines else f"event: partial\ndata: {body}\n\n".encode()
        )

    def event(self, event: Event) -> bytes:
        body = self.feed.body(event)
        if self.as_lines:
            return f"{body}\n".encode()
        return f"id: {event.seq}\nevent: {event.kind}\ndata: {body}\n\n".encode()

    def snapshot(self, found: dict[str, Any]) -> bytes:
        if self.as_lines:
            return (
                json.dumps({"kind": "snapshot", **found}, separators=(",", ":")) + "\n"
            ).encode()
        body = json.dumps(found, separators=(",", ":"))
        return f"retry: {RETRY_MS}\nid: {found['seq']}\nevent: snapshot\ndata: {body}\n\n".encode()

    def ping(self) -> bytes:
        return b"\n" if self.as_lines else b": ping\n\n"


async def _chunks(
    desk: Desk,
    wanted: Wanted,
    after: int,
    form: _Form,
    snapshot: dict[str, Any] | None,
    *,
    follow: bool,
) -> AsyncIterator[bytes]:
    if snapshot is not None and follow:
        yield form.snapshot(snapshot)
    elif not form.as_lines:
        yield f"retry: {RETRY_MS}\n\n".encode()
    if wanted.partials:
        desk.feed.texts.listeners += 1
    batches = (
        desk.feed.follow(after, wanted, ping_seconds=desk.ping_seconds)
        if follow
        else desk.feed.stored(after, wanted)
    )
    try:
        async for batch in batches:
            yield b"".join(form.one(one) for one in batch) or form.ping()
    finally:
        if wanted.partials:
            desk.feed.texts.listeners -= 1


class Stream(Response):
    """Chunks until they end or the reader is gone, whichever is first."""

    def __init__(self, chunks: AsyncIterator[bytes], media_type: str, feed: Any) -> None:
        super().__init__(None, 200, HEADERS, media_type)
        self._chunks = chunks
        self._feed = feed
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_gone(receive))
        sending = asyncio.create_task(self._send(send, leaving))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.readers -= 1
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled() and sending.exception() is not None:
            raise sending.exception()  # type: ignore[misc]  # it is not None

    async def _send(self, send: Send, leaving: asyncio.Task[None]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await asyncio.sleep(0)
                if leaving.done():  # not one more page is read for who is gone
                    return
        finally:
            await self._chunks.aclose()  # type: ignore[attr-defined]  # a generator
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
