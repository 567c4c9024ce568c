"""`ingest`: articles from their URLs to texts, and to stories when they are asked for."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from onceflow import Flow
from onceflow.commands.common import Common, Engine, Flag
from onceflow.commands.ready import Options, check_installed, flags_of, summarize_job
from onceflow.commands.seeds import source_of
from onceflow.commands.work import Ceilings, Wishes, check_urls, submit

if TYPE_CHECKING:
    from onceflow.pipelines.ingest import Ingest
    from onceflow.pipelines.summarize import Summarize

READING = Group(
    "Articles and stories", sort_key=80, help="Also in onceflow.toml, see docs/settings.md."
)
PAGE = 500


@Parameter(name="*", group=READING)
@dataclass(frozen=True, slots=True)
class Reading:
    """Who writes the stories, and how pages are read."""

    model: str | None = None
    """embedded (the default), openai:MODEL, local:smollm2 or local:PATH.gguf."""
    base_url: str | None = None
    """The OpenAI-compatible server of openai:MODEL, such as http://localhost:11434/v1."""
    contact: str | None = None
    """Whom a site's owner may write to: goes into the User-Agent."""
    allow_network: Annotated[list[str] | None, Parameter(negative=())] = None
    """Addresses that may be read though they are not public, as CIDR; repeatable."""

    def options(self) -> Options:
        """The same, as summaries and workers are told it."""
        model = None if self.model is None else [self.model]
        return Options(model, self.base_url, contact=self.contact, allow_network=self.allow_network)


def ingest_jobs(
    common: Common, options: Options, *, auto_generate: bool
) -> tuple[Ingest, Summarize]:
    """The ingest pipeline as flags, variables and file want it, and the one it shares clients
    with."""
    from onceflow.pipelines.ingest import Ingest

    shared = summarize_job(common, options)
    job = Ingest(
        shared.http,
        shared.extractor,
        shared.llm,
        auto_generate=auto_generate,
        host_limit=shared.host_limit,
        host_spacing_seconds=shared.host_spacing_seconds,
        lease_seconds=shared.lease_seconds,
    )
    return job, shared


def ingest(
    *urls: Annotated[str, Parameter(allow_leading_hyphen=True)],
    generate: Annotated[bool, Flag] = False,
    follow: Annotated[bool, Flag] = False,
    add_only: Annotated[bool, Flag] = False,
    refresh: Annotated[bool, Flag] = False,
    new_run: Annotated[bool, Flag] = False,
    verbose: Annotated[bool, Flag] = False,
    reading: Reading | None = None,
    engine: Engine | None = None,
    common: Common | None = None,
) -> int:
    """Fetch articles, find their texts, and write stories from them when asked to.

    Each article's page is kept and its text found. With --generate a story is written
    too; without, the article waits until somebody asks for it, here or at `onceflow
    serve`. Run it again to go on where it was stopped; adding known URLs is harmless.

    Parameters
    ----------
    urls
        URLs, or one file with a URL a line (# begins a comment), or - for stdin.
        Without any, whatever is open is worked on.
    generate
        Write the stories too, also of articles that wait for it.
    follow
        Do not work: watch what other workers do.
    add_only
        Only add; workers do the rest.
    refresh
        Fetch known articles again.
    new_run
        Begin a new run even if these URLs were added before.
    verbose
        Log every transition, and the tracebacks of handlers.
    """
    common = common or Common()
    check_urls("ingest", urls, needed=refresh or new_run or add_only)
    reading, engine = reading or Reading(), engine or Engine()
    settings = engine.settings(common)
    job, _ = ingest_jobs(common, reading.options(), auto_generate=generate)
    if not follow and not add_only:
        check_installed(job.llm.name)
    pipeline = job.pipeline()
    flow = common.flow(pipeline, settings=settings)
    wishes = Wishes(
        Ceilings(),
        refresh=refresh,
        new_run=new_run,
        add_only=add_only,
        verbose=verbose,
        follow_only=follow,
        flags="".join(f" {shlex.quote(word)}" for word in flags_of(common, reading, engine))
        + (" --auto-generate" if generate else ""),
        held="the text is there; a story is written by onceflow ingest --generate",
        look=("onceflow export --pipeline ingest", "onceflow serve"),
        beside=(lambda flow, run, warn: Triggers(flow, run)) if generate else None,
    )
    with source_of(urls, urls=True) as source:
        return submit(pipeline, flow, source, wishes, common)


class Triggers:
    """Goes along with the work: has the stories of waiting articles written."""

    def __init__(self, flow: Flow, run: str | None) -> None:
        self._flow = flow
        self._run = run

    async def begin(self) -> None:
        await self._trigger()

    async def follow(self, over: asyncio.Event, added: asyncio.Event | None = None) -> None:
        if added is not None and not added.is_set():
            await added.wait()
            await self._trigger()

    def close(self) -> None: ...

    def report(self) -> tuple[str | None, str | None]:
        return None, None

    async def _trigger(self) -> None:
        after = 0
        while page := await self._flow.items(
            "ingest", run=self._run, stage="generate", phase="waiting", after=after, limit=PAGE
        ):
            after = page[-1].id
            for item in page:
                if item.due_at is None:
                    await self._flow.trigger("ingest", item.key, "generate", wait_seconds=0)
