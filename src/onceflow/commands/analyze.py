"""`analyze`: from the addresses of websites to reports on how assistants see them."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from onceflow import Flow
from onceflow.commands.common import Common, Engine, Flag
from onceflow.commands.config import AnalyzeSettings, Config, LlmSettings
from onceflow.commands.output import SOME_FAILED, UsageError
from onceflow.commands.seeds import source_of
from onceflow.commands.text import many, plain
from onceflow.core.errors import HandlerError, SettingsError

if TYPE_CHECKING:
    from onceflow.commands.work import Beside
    from onceflow.pipelines.analyze import Analyze

WORKERS_MAX = 64
OUT_DEFAULT = "reports"
SITES = Group("Sites and assistants", sort_key=80, help="Also in onceflow.toml: docs/analyze.md.")
HOST = re.compile(r"(?:[^\s/:@.]+\.)+[^\s/:@.]{2,}(?::\d+)?(?:/\S*)?|localhost(?::\d+)?(?:/\S*)?")


@Parameter(name="*", group=SITES)
@dataclass(frozen=True, slots=True)
class Asking:
    """How much of a site is read, and how many questions are asked."""

    pages: int | None = None
    """Read at most so many pages of each site; else 20."""
    prompts: int | None = None
    """Form so many questions for each site, 10 to 50; else 20."""

    @property
    def given(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]


@Parameter(name="*", group=SITES)
@dataclass(frozen=True, slots=True)
class Assistants:
    """Who is asked, and how sites are read."""

    model: Annotated[list[str] | None, Parameter(negative=())] = None
    """An assistant to ask: openai:MODEL, local:smollm2 or local:PATH.gguf; repeatable."""
    base_url: str | None = None
    """The OpenAI-compatible server of openai:MODEL, such as http://localhost:11434/v1."""
    contact: str | None = None
    """Whom a site's owner may write to: goes into the User-Agent."""
    allow_network: Annotated[list[str] | None, Parameter(negative=())] = None
    """Addresses that may be read though they are not public, as CIDR; repeatable."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use up at the most."""

    max_tokens: int | None = None
    """Ask no assistant any more when so many tokens are used."""
    max_cost: float | None = None
    """Ask no assistant any more when so much is spent; the price is in onceflow.toml."""


def analyze_job(
    common: Common, asking: Asking, assistants: Assistants, *, works: bool = True
) -> Analyze:
    """The analyze pipeline as flags, variables and file want it. Who `works` must be able to."""
    from onceflow.clients import Extractor, Http, Llm, LlmLimits, Price
    from onceflow.clients.addresses import networks
    from onceflow.commands.ready import check_installed
    from onceflow.pipelines.analyze import Analyze

    config = Config(common.config)
    wish: AnalyzeSettings = config.made("analyze", pages=asking.pages, prompts=asking.prompts)[0]
    llm: LlmSettings = config.made("llm", base_url=assistants.base_url)[0]
    fetch = config.made("fetch", allow_networks=assistants.allow_network)[0]
    networks(fetch.allow_networks)  # refused here, not at each page
    price = None
    if llm.price_input is not None and llm.price_output is not None:
        price = Price(llm.price_input, llm.price_output)
    names: Sequence[str] = assistants.model or wish.models or [config.place("model")[0] or ""]
    models: list[Llm] = []
    for name in names:
        try:
            models.append(
                Llm(
                    name,
                    base_url=llm.base_url,
                    context_tokens=llm.context_tokens,
                    price=price,
                    limits=LlmLimits(llm.call_seconds, llm.idle_seconds, llm.answer_chars_max),
                )
            )
        except SettingsError as error:
            raise UsageError(f"--model {plain(name, 80)}: {error}; see `onceflow models`") from None
    if works:
        check_installed("embedded")
        for name in names:
            check_installed(name)
    return Analyze(
        Http(settings=fetch, contact=config.place("contact", assistants.contact)[0]),
        Extractor(config.made("extract")[0]),
        models,
        pages=wish.pages,
        prompts=wish.prompts,
        at_once=wish.at_once,
        refine=wish.refine,
        host_spacing_seconds=wish.host_spacing_seconds,
        lease_seconds=wish.lease_seconds,
    )


def analyze(
    *sites: Annotated[str, Parameter(allow_leading_hyphen=True)],
    dry_run: Annotated[bool, Flag] = False,
    out: Path | None = None,
    workers: int = 1,
    follow: Annotated[bool, Flag] = False,
    add_only: Annotated[bool, Flag] = False,
    refresh: Annotated[bool, Flag] = False,
    new_run: Annotated[bool, Flag] = False,
    verbose: Annotated[bool, Flag] = False,
    asking: Asking | None = None,
    assistants: Assistants | None = None,
    limits: Limits | None = None,
    engine: Engine | None = None,
    common: Common | None = None,
) -> int:
    """Find out how assistants see websites, and what to write or mend next.

    Each site is read politely; questions are formed that its customers would ask an
    assistant; every assistant named with --model is asked every one. The report says
    where the site is named, who else is, and how well its own pages answer. Without an
    assistant it says the last part only. Run it again to go on where it was stopped:
    what was paid for is not asked again.

    Parameters
    ----------
    sites
        Addresses, or one file with one a line (# begins a comment), or - for stdin.
        Without any, whatever is open is worked on.
    dry_run
        Read the sites, show the questions and what they would cost; ask nobody.
    out
        The folder for the files; else ONCEFLOW_OUT, onceflow.toml, reports.
    workers
        How many processes work, this one included.
    follow
        Do not work: watch what other workers do, and write the files.
    add_only
        Only add; workers do the rest.
    refresh
        Analyze known sites again, from the start.
    new_run
        Begin a new run even if these sites were added before.
    verbose
        Log every transition, and the tracebacks of handlers.
    """
    from onceflow.commands.ready import flags_of
    from onceflow.commands.work import Ceilings, Wishes, check_urls, submit

    common = common or Common()
    asking, assistants = asking or Asking(), assistants or Assistants()
    limits, engine = limits or Limits(), engine or Engine()
    check_urls("analyze", sites, needed=refresh or new_run or add_only or dry_run)
    if not 1 <= workers <= WORKERS_MAX:
        raise UsageError(f"--workers is {workers}; it must be between 1 and {WORKERS_MAX}")
    if follow and add_only:
        raise UsageError("--follow watches and --add-only does not; choose one")
    named = tuple(_with_scheme(site) for site in sites)
    job = analyze_job(common, asking, assistants, works=not (follow or add_only))
    if dry_run:
        return _previewed(job, named, common)
    settings = engine.settings(common)
    folder = _out_folder(common, out)
    pipeline = job.pipeline()
    flow = common.flow(pipeline, settings=settings)
    path = getattr(flow.store, "path", None)
    if not sites and path is not None and not path.exists():
        raise UsageError(
            "name sites, a file with one a line, or - for stdin; without any, what is open in the "
            f"database is worked on, and there is no database {path} yet"
        )
    from onceflow.pipelines.folder import alone

    flags = flags_of(common, asking, assistants, engine)
    helper = [sys.executable, "-m", "onceflow", "worker", "analyze", "--until-eof", "--quiet"]
    wishes = Wishes(
        Ceilings(None, None, limits.max_tokens, limits.max_cost),
        refresh=refresh,
        new_run=new_run,
        add_only=add_only,
        verbose=verbose,
        follow_only=follow,
        beside=lambda flow, run, warn: _files(flow, folder, run, warn),
        alone=None if add_only else lambda: alone(folder),
        check=None if add_only else lambda flow: _check_folder(flow, folder),
        flags="".join(f" {shlex.quote(word)}" for word in flags),
        helpers=[[*helper, *flags]] * (workers - 1),
        environment={"ONCEFLOW_DB": common.database()[0]},
    )
    with source_of(named, urls=True) as source:
        return submit(pipeline, flow, source, wishes, common)


def _with_scheme(site: str) -> str:
    """`example.org` is a site, unless there is a file of that name."""
    text = site.strip()
    if "://" in text or text == "-" or not HOST.fullmatch(text) or Path(text).exists():
        return site
    return f"https://{text}"


def _out_folder(common: Common, given: Path | None) -> Path:
    text, source = Config(common.config).place("out", None if given is None else str(given))
    if source == "default":
        text = OUT_DEFAULT
    if not text:
        raise UsageError(f"{source}: out is empty; name a folder")
    return Path(text)


async def _check_folder(flow: Flow, folder: Path) -> None:
    """Refuse a folder that cannot be used, or is another database's."""
    from onceflow.pipelines.analyze.files import report_files

    async with report_files(flow, folder):
        pass


def _files(flow: Flow, folder: Path, run: str | None, warn: Callable[[str], None]) -> Beside:
    from onceflow.pipelines.analyze.files import report_files

    return report_files(flow, folder, run=run, warn=warn)


# --- before anything is paid ---


def _previewed(job: Analyze, named: tuple[str, ...], common: Common) -> int:
    from onceflow.commands.seeds import Survey, keys_of

    pipeline = job.pipeline()
    with source_of(named, urls=True) as source:
        assert source is not None
        survey = Survey()
        sites = list(dict.fromkeys(keys_of(pipeline, source, survey)))
    for one in survey.refusals:
        common.out.say(f"onceflow: {source.unit} {one.line}: {plain(one.why, 240)}")
    if not sites:
        raise UsageError(f"{source.name} has no usable site in it")
    failed = asyncio.run(_preview(job, sites, common))
    return SOME_FAILED if failed or survey.refused else 0


async def _preview(job: Analyze, sites: Sequence[str], common: Common) -> int:
    """Show each site's questions; how many sites could not be read."""
    failed = 0
    tokens, cost = 0, 0.0
    priced = True
    async with job.http, job.extractor:
        for site in sites:
            common.out.say(f"reading {plain(site, 200)} …")
            try:
                body, prompts, estimate = await job.preview(site)
            except HandlerError as error:
                failed += 1
                common.out.say(f"onceflow: {plain(str(error), 400)}")
                if common.json:
                    common.out.emit(
                        {"site": site, "error": {"code": error.code, "message": str(error)}}
                    )
                continue
            tokens += estimate.tokens
            cost += estimate.cost or 0.0
            priced &= estimate.cost is not None
            if common.json:
                expected = {
                    "calls": estimate.calls,
                    "tokens": estimate.tokens,
                    "cost": estimate.cost,
                }
                common.out.emit({**body, **prompts, "expected": expected})
                continue
            for line in _shown(body, prompts):
                common.out.line(line)
    if not common.json and failed < len(sites):
        common.out.line(_cost_line(job, len(sites) - failed, tokens, cost if priced else None))
    return failed


def _shown(body: Any, prompts: Any) -> Iterator[str]:
    info = body["extractedInfo"]
    yield f"{plain(info['name'], 80)}: {plain(info['tagline'], 160)}"
    topics = ", ".join(plain(one["topic"], 40) for one in info["topics"][:8])
    yield f"  {many(body['limits']['read'], 'page')} read; about {topics or 'nothing'}"
    for note in (*body["notes"], *prompts["notes"]):
        yield f"  note: {plain(note, 240)}"
    for one in prompts["prompts"]:
        yield f"  {one['n']:>2} {one['intent']:<7} {plain(one['text'], 200)}"
        yield f"             {plain(one['reason'], 160)}"


def _cost_line(job: Analyze, sites: int, tokens: int, cost: float | None) -> str:
    names = ", ".join(llm.name for llm in job.assistants)
    if not names:
        return (
            f"{many(sites, 'site')}: no assistant would be asked and nothing would be paid; name "
            "assistants with --model"
        )
    money = f"about {cost:,.2g}" if cost is not None else "its price is not known: docs/analyze.md"
    return f"{many(sites, 'site')}, {names}: about {tokens:,} tokens; {money}. Nothing was asked."
