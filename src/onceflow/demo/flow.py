"""The demo's pipeline: `summarize` as it is, at a pace to be watched and with short leases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

import onceflow
from onceflow import Flow, Pipeline, Settings
from onceflow.clients import FetchSettings, Http, Llm
from onceflow.clients.embedded import EmbeddedModel
from onceflow.clients.llm import Finish, Request, Usage
from onceflow.demo.site import NETWORK
from onceflow.pipelines.same import Pages
from onceflow.pipelines.summarize import Summarize

ATTEMPTS = 5
"""Two 503 and a killed worker may all meet the same page."""
SETTINGS = Settings(cleanup_seconds=0.5, poll_seconds=0.2, grace_seconds=5.0, partial_seconds=0.1)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the demo goes. Nothing here changes what comes out."""

    spacing_seconds: float = 0.55
    """Between two requests to the site: politeness, held by all workers together."""
    word_seconds: float = 0.04
    """The embedded model is done in milliseconds; this is about as fast as one can read."""
    summary_seconds_max: float = 2.5
    slow_seconds: float = 2.5
    backoff_seconds: float = 0.8
    lease_seconds: float = 3.0

    @classmethod
    def at(cls, speed: float) -> Pace:
        """So many times as fast. A lease must outlast a busy machine and stays as it is."""
        usual = cls()
        return cls(
            usual.spacing_seconds / speed,
            usual.word_seconds / speed,
            usual.summary_seconds_max / speed,
            usual.slow_seconds / speed,
            usual.backoff_seconds / speed,
        )

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Pace:
        return cls(**json.loads(text))


class ReadAlong(EmbeddedModel):
    """The embedded model's own answer, word by word."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    async def stream(self, request: Request) -> AsyncIterator[str | Usage | Finish]:
        known: list[str | Usage | Finish] = [part async for part in super().stream(request)]
        words = sum(part.count(" ") + 1 for part in known if isinstance(part, str))
        pause = min(self._pace.word_seconds, self._pace.summary_seconds_max / max(1, words))
        for part in known:
            if not isinstance(part, str):
                yield part
                continue
            for word in part.replace(" ", "\0 ").split("\0"):
                yield word
                await asyncio.sleep(pause)


def open_flow(database: Path, pace: Pace) -> Flow:
    """A flow on the demo's database, for a worker or for whoever watches."""
    pages = Pages()
    usual = Summarize(
        http=Http(settings=FetchSettings(allow_networks=(NETWORK,))),  # loopback, here only
        llm=Llm(ReadAlong(pace)),
        host_limit=2,
        host_spacing_seconds=pace.spacing_seconds,
        pages=pages,
    ).pipeline()
    pipeline = Pipeline(
        usual.name,
        *usual.stages,
        done=usual.done,
        failed=usual.failed,
        after_all=usual.gate_stage,
        canonical=usual.canonical,
        lease_seconds=pace.lease_seconds,
        backoff_seconds=pace.backoff_seconds,
        attempts=ATTEMPTS,
    )
    flow = onceflow.open(database, pipeline, settings=SETTINGS)
    pages.flow = flow
    return flow
