"""Texts in progress in the stream of events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from onceflow import Pipeline, Stage, Work
from onceflow.web.app import create_app
from onceflow.web.server import listen, make_server
from tests.web.conftest import Fresh

WORDS = [f"word{number} " for number in range(40)]


class Story:
    """A pipeline whose handler tells its words when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()

    async def write(self, work: Work) -> str:
        for at, word in enumerate(WORDS):
            work.emit("summary_partial", text=word)
            if at == len(WORDS) // 2:
                self.begun.set()
                await self.go.wait()
        return "".join(WORDS)

    def pipeline(self) -> Pipeline:
        return Pipeline("story", Stage("write", self.write))


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[httpx2.AsyncClient]:
    server = make_server(app)
    listening = listen("127.0.0.1", 0)
    started = asyncio.Event()
    server.when_started = started.set
    running = asyncio.create_task(server.serve(sockets=[listening]))
    port = listening.getsockname()[1]
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=180) as client:
        await started.wait()
        yield client
    server.should_exit = True
    await running


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("inside", [True, False], ids=["worker inside", "worker elsewhere"])
async def test_late_readers_get_the_text_so_far_and_then_the_rest(
    kind: str, inside: bool, fresh: Fresh
) -> None:
    story = Story()
    table = story.pipeline()
    with fresh(kind) as (_, database):
        app = create_app(database, table, worker=inside)
        async with AsyncExitStack() as stack:
            client = worker = await stack.enter_async_context(serving(app))
            if not inside:
                worker = await stack.enter_async_context(serving(create_app(database, table)))
            await worker.post("/api/runs", json={"pipeline": "story", "keys": ["a"]})
            await story.begun.wait()
            text, order = "", []
            headers = {"Accept": "application/x-ndjson"}
            address = "/api/events?partials=true&pipeline=story"
            async with client.stream("GET", address, headers=headers) as answer:
                async for line in answer.aiter_lines():
                    one = json.loads(line or "{}")
                    order.append(one.get("kind"))
                    if one.get("kind") == "partial":
                        assert (one["offset"], one["key"]) == (len(text), "a")
                        text += one["text"]
                        story.go.set()
                    if one.get("kind") == "stage_finished":
                        break
            assert order[0] == "snapshot"
            whole = "".join(WORDS)
            if inside:
                assert text == whole, "the last piece comes before the event that ends it"
            else:
                assert whole.startswith(text)
                assert text, "as far as it was stored"


async def test_who_does_not_ask_for_texts_gets_none(fresh: Fresh) -> None:
    story = Story()
    table = story.pipeline()
    with fresh("sqlite") as (_, database):
        async with serving(create_app(database, table)) as client:
            await client.post("/api/runs", json={"pipeline": "story", "keys": ["a"]})
            await story.begun.wait()
            story.go.set()
            kinds = []
            headers = {"Accept": "application/x-ndjson"}
            async with client.stream("GET", "/api/events?after=0", headers=headers) as answer:
                async for line in answer.aiter_lines():
                    kinds.append(json.loads(line)["kind"])
                    if kinds[-1] == "stage_finished":
                        break
            assert "partial" not in kinds
