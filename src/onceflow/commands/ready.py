"""The ready pipelines, made from flags and settings."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from cyclopts import Group, Parameter

from onceflow import Flow, Pipeline
from onceflow.commands.common import READY_NAMES, Common, Engine
from onceflow.commands.config import Config, LlmSettings, SummarizeSettings
from onceflow.commands.output import UsageError
from onceflow.commands.text import plain
from onceflow.core.errors import SettingsError, pip_install

if TYPE_CHECKING:
    from onceflow.pipelines.summarize import Summarize

PROMPT_BYTES_MAX = 100_000
PAGES_NEED = ("aiohttp", "ada_url", "protego", "trafilatura", "lxml")
MODELS_NEED = {
    "embedded": ("numpy", "wordllama"), "openai": ("openai",), "local": ("xllamacpp",),
}  # fmt: skip
READY = Group(
    "Summaries and pages", sort_key=80, help="Also in onceflow.toml, see docs/settings.md."
)


@Parameter(name="*", group=READY)
@dataclass(frozen=True, slots=True)
class Options:
    """What a summary is like, who writes it, and how pages are read."""

    model: Annotated[list[str] | None, Parameter(negative=())] = None
    """embedded (the default), openai:MODEL, local:smollm2 or local:PATH.gguf; one for summaries."""
    base_url: str | None = None
    """The OpenAI-compatible server of openai:MODEL, such as http://localhost:11434/v1."""
    words: int | None = None
    """About how many words a summary has."""
    language: str | None = None
    """The language of the summaries, for models that write."""
    prompt: Path | None = None
    """A file with your own instructions; {words} and {language} are filled in."""
    contact: str | None = None
    """Whom a site's owner may write to: goes into the User-Agent."""
    allow_network: Annotated[list[str] | None, Parameter(negative=())] = None
    """Addresses that may be read though they are not public, as CIDR; repeatable."""

    @property
    def given(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]


def summarize_job(common: Common, options: Options) -> Summarize:
    """The summarize pipeline as flags, variables and file want it."""
    from onceflow.clients import Extractor, Http, Llm, LlmLimits, Price
    from onceflow.clients.addresses import networks
    from onceflow.clients.llm import SUMMARY_PROMPT
    from onceflow.pipelines.summarize import Summarize

    config = Config(common.config)
    wish: SummarizeSettings = config.made(
        "summarize", words=options.words, language=options.language, prompt=_prompt(options.prompt)
    )[0]
    llm: LlmSettings = config.made("llm", base_url=options.base_url)[0]
    fetch = config.made("fetch", allow_networks=options.allow_network)[0]
    networks(fetch.allow_networks)  # refused here, not at each page
    price = None
    if llm.price_input is not None and llm.price_output is not None:
        price = Price(llm.price_input, llm.price_output)
    if options.model is not None and len(options.model) > 1:
        raise UsageError("summaries are written by one model: give --model once")
    name, source = config.place("model", options.model[0] if options.model else None)
    try:
        model = Llm(
            name or "",
            base_url=llm.base_url,
            context_tokens=llm.context_tokens,
            price=price,
            limits=LlmLimits(llm.call_seconds, llm.idle_seconds, llm.answer_chars_max),
        )
    except SettingsError as error:
        raise UsageError(f"{source}: {error}; `onceflow models` lists them") from None
    return Summarize(
        Http(settings=fetch, contact=config.place("contact", options.contact)[0]),
        Extractor(config.made("extract")[0]),
        model,
        words=wish.words,
        language=wish.language,
        prompt=wish.prompt or SUMMARY_PROMPT,
        host_limit=wish.host_limit,
        host_spacing_seconds=wish.host_spacing_seconds,
        lease_seconds=wish.lease_seconds,
    )


def check_installed(model: str) -> None:
    """Refuse to claim what cannot be done here: it would fail for everybody who shares the work."""
    kind = model.partition(":")[0]
    needs: dict[str, str] = {}
    for what, needed, extra in (
        ("reading pages", PAGES_NEED, "clients"),
        (f"the model {model}", MODELS_NEED.get(kind, ()), kind),
    ):
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            needs[extra] = f"{what} needs {', '.join(missing)}"
    if needs:
        raise UsageError(
            f"{', '.join(needs.values())}: {pip_install(','.join(needs))}; nothing was claimed"
        )


def ready_flow(
    common: Common, options: Options, settings: Any, *, works: bool = True
) -> tuple[Summarize, Flow]:
    """The summarize pipeline's handlers, and a flow with it that tells them which item has which
    page. Who `works` must be able to."""
    job = summarize_job(common, options)
    if works:
        check_installed(job.llm.name)
    for remark in _unheard(job):
        common.out.say(f"onceflow: {remark}")
    flow = common.flow(job.pipeline(), settings=settings)
    job.pages.flow = flow
    return job, flow


def worker_flow(
    name: str, common: Common, options: Options, settings: Any, *, auto_generate: bool
) -> Flow:
    """A flow that works on one of the ready pipelines."""
    if name == "summarize":
        return ready_flow(common, options, settings)[1]
    from onceflow.commands.ingest import Reading, ingest_jobs

    refuse_others("ingest", options, [field.name for field in fields(Reading)])
    job, _ = ingest_jobs(common, options, auto_generate=auto_generate)
    check_installed(job.llm.name)
    return common.flow(job.pipeline(), settings=settings)


def _unheard(job: Summarize) -> Iterator[str]:
    """What was asked for and the chosen model is never told."""
    from onceflow.clients.llm import SUMMARY_PROMPT

    own = job.prompt != SUMMARY_PROMPT
    asked = [name for name, value in (("prompt", own), ("language", job.language)) if value]
    if not job.llm.writes and asked:
        what, has = " and ".join(asked), "have" if len(asked) > 1 else "has"
        yield (
            f"{what} {has} no effect: the model {job.llm.name} picks sentences of the page as they "
            "are; choose one that writes with --model, `onceflow models` lists them"
        )
    elif job.llm.writes and own:
        for name, value in (("language", job.language), ("words", job.words)):
            if value is not None and f"{{{name}}}" not in job.prompt:
                yield (
                    f"{name} is told for the digest only: the prompt has no {{{name}}} where "
                    f"{plain(value, 40)!r} would stand"
                )


def ready_pipelines(common: Common, names: Collection[str]) -> list[Pipeline]:
    """Those of the ready pipelines that are named."""
    from onceflow.commands.ingest import ingest_jobs

    found: list[Pipeline] = []
    if {"summarize", "ingest"}.intersection(names):
        ingest, summarize = ingest_jobs(common, Options(), auto_generate=False)
        found += [summarize.pipeline(), ingest.pipeline()]
    if "analyze" in names:
        from onceflow.commands.analyze import Asking, Assistants, analyze_job

        found.append(analyze_job(common, Asking(), Assistants(), works=False).pipeline())
    if "expand" in names:
        from onceflow.commands.expand import Reach, Subject, expand_job

        found.append(expand_job(common, Subject(), Reach(), works=False).pipeline())
    return [each for each in found if each.name in names]


def helper_command(common: Common, options: Options, engine: Engine) -> list[str]:
    """The command of a worker with the same flags; its database comes by the environment, since
    an address may hold a password and everybody can read a command line."""
    command = [sys.executable, "-m", "onceflow", "worker", "summarize", "--until-eof", "--quiet"]
    return command + flags_of(common, options, engine)


def flags_of(common: Common, *groups: Any) -> list[str]:
    """The flags that were given, but for the database, as another command takes them."""
    flags = [] if common.config is None else ["--config", str(common.config)]
    for one in groups:
        for field in fields(one):
            value = getattr(one, field.name)
            for each in value if isinstance(value, list) else [value]:
                if each is not None:
                    flags += [f"--{field.name.replace('_', '-')}", str(each)]
    return flags


def out_folder(common: Common, given: Path | None) -> Path:
    text, source = Config(common.config).place("out", None if given is None else str(given))
    if not text:
        raise UsageError(f"{source}: out is empty; name a folder")
    return Path(text)


def _prompt(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            raw = opened.read(PROMPT_BYTES_MAX + 1)
        text = raw.decode("utf-8-sig").strip()
    except OSError as error:
        raise UsageError(f"--prompt: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--prompt: {file} is not UTF-8 text") from None
    if len(raw) > PROMPT_BYTES_MAX:
        raise UsageError(f"--prompt: {file} is larger than {PROMPT_BYTES_MAX:,} bytes")
    if not text:
        raise UsageError(f"--prompt: {file} is empty")
    return text


class Given(Protocol):
    """Flags of which some were given."""

    @property
    def given(self) -> list[str]: ...


def refuse_others(name: str, options: Given, known: Collection[str] = ()) -> None:
    """A flag of another ready pipeline would have no effect."""
    for flag in options.given:
        if flag not in known:
            raise UsageError(f"--{flag.replace('_', '-')} has no effect on {name}; leave it out")


def refuse_unless_ready(options: Given, *, auto_generate: bool = False) -> None:
    """A FILE.py makes its own clients: flags for them would have no effect."""
    given = [*options.given, *["auto_generate"] * auto_generate]
    if given:
        name = given[0].replace("_", "-")
        raise UsageError(
            f"--{name} is for the ready pipelines ({', '.join(READY_NAMES)}), not FILE.py"
        )
