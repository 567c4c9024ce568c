"""A web site and a model's server on loopback, in a thread of their own."""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from onceflow.testing.site import Exchange, Script, Site, reply
from tests.pipelines.conftest import article

ALLOW = ("--allow-network", "127.0.0.2/32")
GENTLE = {"ONCEFLOW_SUMMARIZE_HOST_SPACING_SECONDS": "0", "ONCEFLOW_SUMMARIZE_HOST_LIMIT": "8"}
MODEL_PATH = "/v1/chat/completions"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class Loopback:
    """Articles at /a1, /a2, …, and an OpenAI-compatible model that says which page it got."""

    def __init__(self) -> None:
        self.site = Site()
        self.summarized: Counter[str] = Counter()
        """Which pages the model was asked about, and how often."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reached: dict[str, threading.Event] = {}

    @property
    def model(self) -> tuple[str, ...]:
        """The flags that choose it."""
        return ("--model", "openai:m", "--base-url", self.site.url("/v1"))

    def articles(self, count: int) -> list[str]:
        """So many articles; their addresses."""
        for n in range(1, count + 1):
            self.site.answer(f"/a{n}", article(f"subject{n} of {n * 7919} kinds"))
        return [self.site.url(f"/a{n}") for n in range(1, count + 1)]

    def model_answers(self, *, status: int = 200, stop_at: str | None = None) -> None:
        """A model; with `stop_at` it stops in the middle of its answer about one page, and says so
        with `reached`."""
        if stop_at is not None:
            self._reached[stop_at] = threading.Event()
        script = self._model(status, stop_at)
        self.site._scripts[MODEL_PATH] = [script]

    def hang(self, path: str) -> threading.Event:
        """The first who asks for this page gets no answer; tells when that happens."""
        begun = threading.Event()

        async def never(exchange: Exchange) -> None:
            begun.set()
            await exchange.gone()

        self.site._scripts[path].insert(0, never)
        return begun

    def reached(self, name: str) -> threading.Event:
        return self._reached[name]

    def _model(self, status: int, stop_at: str | None) -> Script:
        async def answer(exchange: Exchange) -> None:
            asked = json.loads(exchange.request.body)["messages"][-1]["content"]
            names = sorted(set(re.findall(r"subject\d+", asked)))
            name = names[0] if len(names) == 1 else "digest"
            self.summarized[name] += 1
            if status != 200:
                wrong = {"error": {"message": "Incorrect API key provided", "code": "wrong"}}
                await exchange.send(reply(json.dumps(wrong), status=status))
                return
            await exchange.send(HEAD + _chunk(f"About {name}: "))
            if name == stop_at:
                self._reached[name].set()
                await exchange.gone()
                return
            await exchange.send(_chunk("it matters.") + _chunk(None, "stop") + _usage())
            await exchange.send(b"data: [DONE]\n\n")

        return answer

    @contextmanager
    def served(self) -> Iterator["Loopback"]:
        ready = threading.Event()
        over: asyncio.Event | None = None

        async def serve() -> None:
            nonlocal over
            self._loop = asyncio.get_running_loop()
            over = asyncio.Event()
            async with self.site:
                ready.set()
                await over.wait()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        assert ready.wait(60)
        try:
            yield self
        finally:
            assert self._loop is not None
            assert over is not None
            self._loop.call_soon_threadsafe(over.set)
            thread.join(60)


def _chunk(text: str | None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return _event({"choices": [choice]})


def _usage() -> bytes:
    counts = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return _event({"choices": [], "usage": counts})


def _event(more: dict[str, object]) -> bytes:
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"
