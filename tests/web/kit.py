"""Real servers on loopback, in processes of their own, and a worker that the test plays itself."""

import json
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2

import onceflow
from onceflow import Done, Flow, Pipeline, Seed
from onceflow.core.item import Lease
from onceflow.core.transition import decide
from onceflow.pipelines.ingest import Ingest
from onceflow.store.base import Claim, Finish, Worker
from onceflow.testing.site import Exchange
from tests.cli.conftest import clean_environment, spawn
from tests.cli.loopback import ALLOW, GENTLE, HEAD, MODEL_PATH, Loopback, _chunk, _usage
from tests.engine.kit import NUMBERS
from tests.support import postgres

STORY = {"headline": "Bread", "summary": "It is baked.", "body": "It rises.", "tags": ["bread"]}
RAW = "<html><body><p>Bread is baked.</p></body></html>"
RESULTS: dict[str, Any] = {
    "fetch": {"url": "https://a.test/", "contentType": "text/html", "rawHtml": RAW},
    "extract": {"url": "https://a.test/", "title": "Bread", "extractedText": "Bread is baked."},
    "generate": {**STORY, "model": "m", "extractive": False, "cut": False},
}
STAGES = ("fetch", "extract", "generate")
BEFORE = {"fetch": "", "extract": "fetch", "generate": "extract"}


def stories(world: Loopback) -> None:
    """A model that writes a story about every article, and counts who asks."""

    async def answer(exchange: Exchange) -> None:
        world.summarized["story"] += 1
        text = json.dumps(STORY)
        await exchange.send(HEAD + _chunk(text) + _chunk(None, "stop") + _usage())
        await exchange.send(b"data: [DONE]\n\n")

    world.site._scripts[MODEL_PATH] = [answer]


@contextmanager
def new_database(kind: str, folder: Path, server_url: str) -> Iterator[str]:
    """An empty database, for longer than one test."""
    if kind == "sqlite":
        yield str(folder / f"{secrets.token_hex(4)}.db")
        return
    name = f"onceflow_web_{secrets.token_hex(8)}"
    postgres.execute(server_url, f'CREATE DATABASE "{name}" TEMPLATE template0')
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        postgres.execute(server_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@dataclass
class Server:
    """`onceflow serve`, running."""

    process: subprocess.Popen[str]
    url: str
    errors: Path

    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=180, **options)

    def said(self) -> str:
        return self.errors.read_text()


@contextmanager
def served(
    folder: Path,
    database: str,
    *flags: object,
    world: Loopback | None = None,
    port: int = 0,
    **env: Any,
) -> Iterator[Server]:
    """A server in a process of its own, until the end of the block."""
    errors = folder / f"serve-{secrets.token_hex(4)}.log"
    more: tuple[object, ...] = () if world is None else (*ALLOW, *world.model)
    environment = clean_environment(
        **GENTLE, ONCEFLOW_DB=database, OPENAI_API_KEY="test", ONCEFLOW_DURABILITY="normal", **env
    )
    with errors.open("w") as written:
        process = spawn(
            "serve", "--port", port, "--json", *more, *flags,
            cwd=folder, env=environment, stderr=written,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, errors.read_text()
            yield Server(process, json.loads(line)["url"].rstrip("/"), errors)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=180)


@dataclass
class Puppet:
    """A worker that the test plays: it claims, finishes or dies when it is told to."""

    flow: Flow
    pipeline: Pipeline
    worker: Worker = field(
        default_factory=lambda: Worker(secrets.token_hex(8), "elsewhere.test", 4242)
    )

    async def add(self, url: str, data: Any = None) -> int:
        await self.flow.add(self.pipeline, [Seed(url, data)])
        return (await self.flow.item(self.pipeline, url)).id

    async def hold(self, item: int, stage: str) -> Lease:
        """Claim an item's stage and keep it."""
        await self.flow.store.beat(self.worker)
        claim = Claim("ingest", stage, BEFORE[stage], 1, item=item)
        reply = await self.flow.store.exchange(self.worker.id, next(NUMBERS), [], [claim])
        [lease] = reply.claimed[0].leases
        return lease

    async def finish(self, lease: Lease) -> None:
        change = decide(self.pipeline, lease, Done(RESULTS[lease.stage]))
        reply = await self.flow.store.exchange(
            self.worker.id, next(NUMBERS), [Finish(lease, change)], []
        )
        assert list(reply.kept) == [True]

    async def die(self) -> None:
        """Its heartbeat row goes, and with it every lease it had."""
        await self.flow.store.leave(self.worker.id)

    async def put(self, item: int, state: str) -> Lease | None:
        """Bring a new item to a state; the lease, if somebody is at it."""
        done, held = {
            "QUEUED": (0, False), "FETCHING, no page": (0, True), "FETCHING, page": (1, False),
            "EXTRACTING": (1, True), "READY_TO_GENERATE": (2, False), "GENERATING": (2, True),
            "SAVED": (3, False),
        }[state]  # fmt: skip
        for stage in STAGES[:done]:
            await self.finish(await self.hold(item, stage))
        return await self.hold(item, STAGES[done]) if held else None


def puppet_flow(database: str, *, lease_seconds: float = 60) -> Flow:
    """A door to a database for the test itself, which does not work. The pipeline's rules are the
    database's, the last who opens it sets them: they must be the servers'."""
    table = Ingest(host_limit=8, host_spacing_seconds=0, lease_seconds=lease_seconds).pipeline()
    return onceflow.open(database, table)
