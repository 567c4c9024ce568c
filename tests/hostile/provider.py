"""A model provider on loopback that answers most calls well and one as badly as it is told to.

A call is known by the text that goes into it: pages whose text has HOSTILE in it meet the script.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceflow.clients import Llm, LlmLimits
from onceflow.clients.openai import OpenAIModel
from onceflow.testing.site import Exchange, Script, Site

KEY = "sk-very-secret-0123456789"
PATH = "/v1/chat/completions"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"
MARK = "HOSTILE"


def event(text: str | None = None, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**body, "choices": [choice], **more}).encode() + b"\n\n"


USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
GOOD = HEAD + event("A short ") + event("summary.") + event(finish="stop", usage=USAGE) + DONE


class Provider:
    """`calls` are the bodies of all calls; `hostile` how many of them met the script."""

    def __init__(self, site: Site, llm: Llm) -> None:
        self.site = site
        self.llm = llm
        self.hostile = 0
        self.script: Script | None = None
        site.script(PATH, self._answer)

    @property
    def calls(self) -> list[str]:
        return [request.body.decode() for request in self.site.requests]

    def says(self, *events: bytes) -> None:
        """The hostile call is answered with these bytes, and the connection is closed."""

        async def send(exchange: Exchange) -> None:
            await exchange.send(b"".join(events))

        self.script = send

    def refuses(self, status: int, body: object, **headers: str) -> None:
        from onceflow.testing.site import reply

        names = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = "application/json"
        self.says(reply(json.dumps(body), status=status, headers=names, content_type=kind))

    async def _answer(self, exchange: Exchange) -> None:
        if MARK in exchange.request.body.decode() and self.script is not None:
            self.hostile += 1
            await self.script(exchange)
        else:
            await exchange.send(GOOD)


@asynccontextmanager
async def provider(limits: LlmLimits | None = None) -> AsyncIterator[Provider]:
    """With the real limits, unless others are given."""
    async with Site() as site:
        model = OpenAIModel("openai:m", base_url=site.url("/v1"), api_key=KEY)
        async with Llm(model, limits=limits) as llm:
            yield Provider(site, llm)
