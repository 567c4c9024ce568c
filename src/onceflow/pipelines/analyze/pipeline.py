"""The stages of `analyze`, and what they need from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, cast
from urllib.parse import urlsplit

from onceflow import Done, Halt, Lane, Pause, Permanent, Pipeline, Stage, Transient, Usage, Work
from onceflow.clients import Embedder, Extractor, Http, Llm
from onceflow.clients.llm import Usage as LlmUsage
from onceflow.clients.llm import tokens_about
from onceflow.core.errors import PipelineError
from onceflow.pipelines.analyze import scores as judge
from onceflow.pipelines.analyze.mentions import brand_of, mention
from onceflow.pipelines.analyze.profile import notes, passages, profile
from onceflow.pipelines.analyze.prompts import PROMPTS_LEAST, PROMPTS_MOST, form
from onceflow.pipelines.analyze.read import Reader, Site, site_key
from onceflow.pipelines.analyze.refine import material, refined
from onceflow.pipelines.analyze.shapes import (
    Answer,
    Brand,
    ModelAnalysis,
    Prompt,
    Prompts,
    SiteAnalysis,
)
from onceflow.pipelines.summarize import pause_for

NAME = "analyze"
PAGES_DEFAULT, PAGES_MOST = 20, 500
PROMPTS_DEFAULT = 20
ASKING_SECONDS_MAX = 3600.0
"""How long one attempt may ask: fifty prompts to several models take longer than a page does. What
was answered is kept all the same, and a dead worker is found by its heartbeat."""
ANSWER_TOKENS = 400
"""About how long an assistant's answer is, for what it will cost."""
NOT_ASKED = (
    "no assistant was asked: this is the coverage part only; name assistants with --model to learn "
    "what they say"
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the questions will cost, before any is asked."""

    calls: int
    tokens: int
    cost: float | None


@dataclass(frozen=True)
class Analyze:
    """The handlers. `models` are the assistants; the first of them also refines the profile."""

    http: Http = field(default_factory=Http)
    extractor: Extractor = field(default_factory=Extractor)
    models: Sequence[Llm] = ()
    embedder: Embedder = field(default_factory=Embedder)
    pages: int = PAGES_DEFAULT
    prompts: int = PROMPTS_DEFAULT
    at_once: int = 4
    """How many questions each item has under way at the most."""
    refine: bool = True
    host_limit: int = 1
    host_spacing_seconds: float = 0.5
    lease_seconds: float = 300.0
    backoff_seconds: float = 30.0
    attempts: int = 3

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("pages", self.pages, 1, PAGES_MOST),
            ("prompts", self.prompts, PROMPTS_LEAST, PROMPTS_MOST),
        ):
            if not least <= value <= most:
                raise PipelineError(f"{name} is {value}; it must be between {least} and {most}")

    @property
    def assistants(self) -> list[Llm]:
        """The models that can be asked: the embedded one only picks sentences."""
        found: dict[str, Llm] = {}
        for llm in self.models:
            if llm.writes:
                found.setdefault(llm.name, llm)
        return list(found.values())

    # --- website-analysis ---

    async def analyze_website(self, work: Work) -> Done:
        """Read the site, and say what it is about."""
        kept = await work.kept()
        body = cast(SiteAnalysis | None, kept.get("profile"))
        if body is None:
            body = await self._by_rules(work.key, work)
            # What was read is worth keeping: the next step may fail.
            await work.keep("profile", body)
        spent = Usage()
        if self.refine and self.assistants:
            await _check_left(work)
            body, usage = await self._refined(work, body)
            spent = Usage(usage.tokens, usage.cost or 0.0)
        return Done(body, usage=spent)

    async def _by_rules(self, site: str, work: Work | None = None) -> SiteAnalysis:
        reader = Reader(
            self.http, self.extractor, pages_max=self.pages,
            spacing_seconds=self.host_spacing_seconds,
        )  # fmt: skip
        read = await reader.read(site, work)
        _check_text(read)
        info = await asyncio.to_thread(profile, read)
        return {
            "site": site,
            "extractedInfo": info,
            "method": "rules",
            "notes": notes(read),
            "passages": await asyncio.to_thread(passages, read),
            "limits": {"pages": self.pages, "read": len(read.pages), "refused": read.refused},
            "tokens": 0,
            "cost": None,
        }

    async def _refined(self, work: Work, body: SiteAnalysis) -> tuple[SiteAnalysis, LlmUsage]:
        """The profile as a model sees it; the rules' own where the model's does not fit."""
        llm = self.assistants[0]
        try:
            return await refined(body, llm, idempotency_key=work.idempotency_key)
        except Permanent as error:
            pause_for(error)
            why = str(error)
        except Transient as error:
            if error.code != "bad_answer" and work.attempt < self.attempts:
                raise
            why = str(error)
        note = f"the profile is by rules alone: {why}"
        return {**body, "notes": [*body["notes"], note]}, LlmUsage()

    # --- prompt-forming ---

    async def form_prompts(self, work: Work) -> Prompts:
        """The questions for which the site ought to be part of the answer."""
        return await self._formed(cast(SiteAnalysis, work.input))

    async def _formed(self, site: SiteAnalysis) -> Prompts:
        return await form(site, count=self.prompts, embedder=self.embedder)

    # --- model-analysis ---

    async def analyze_models(self, work: Work) -> Done:
        """Ask every model every question, and judge what they say and what the pages say."""
        site = cast(SiteAnalysis, await work.result("website-analysis"))
        prompts = cast(Prompts, work.input)["prompts"]
        brand = brand_of(site["extractedInfo"], site["site"])
        answers, unanswered = await self._asked(work, prompts, brand)
        covered = await judge.coverage(site, prompts, self.embedder)
        costs = [one["cost"] for one in answers if one["cost"] is not None]
        said: list[str] = [] if self.assistants else [NOT_ASKED]
        if self.assistants and not answers:
            said.append("no assistant gave an answer")
        body: ModelAnalysis = {
            "asked": bool(answers),
            "models": [llm.name for llm in self.assistants],
            "brand": brand,
            "answers": answers,
            "coverage": covered,
            "scores": judge.scores(prompts, answers, covered),
            "todo": judge.todo(site, prompts, answers, covered),
            "notes": [*said, *unanswered],
            "tokens": sum(one["tokens"] for one in answers),
            "cost": round(sum(costs), 6) if costs else None,
        }
        return Done(body)

    async def _asked(
        self, work: Work, prompts: Sequence[Prompt], brand: Brand
    ) -> tuple[list[Answer], list[str]]:
        """Every answer, those that earlier attempts have paid for included; and what was refused.

        The first failure ends the asking, but not the calls under way: they are paid for.
        """
        kept: dict[str, Any] = await work.kept() if self.assistants else {}
        wanted = [(prompt, llm) for llm in self.assistants for prompt in prompts]
        open_calls = [one for one in wanted if _part(*one) not in kept]
        turns = iter(open_calls)
        failures: list[Exception] = []

        async def ask() -> None:
            for prompt, llm in turns:
                if failures:
                    return
                try:
                    await _check_left(work)
                    kept[_part(prompt, llm)] = await self._ask(work, prompt, llm)
                except (Halt, Pause, Permanent, Transient) as error:
                    failures.append(error)
                    return

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self.at_once, len(open_calls))):
                tasks.create_task(ask())
        if failures:
            raise _first_of(failures)
        answers: list[Answer] = []
        refused: list[str] = []
        for prompt, llm in wanted:
            found = kept[_part(prompt, llm)]
            if found["refused"]:
                refused.append(f"{llm.name} did not answer question {prompt['n']}: {found['why']}")
            else:
                answers.append(answer_of(prompt, llm.name, found, brand))
        return answers, refused

    async def _ask(self, work: Work, prompt: Prompt, llm: Llm) -> dict[str, Any]:
        """One answer, stored before anything else happens."""
        name = _part(prompt, llm)
        stream = llm.stream(prompt["text"], idempotency_key=f"{work.idempotency_key}/{name}")
        try:
            await stream.read()
        except Permanent as error:
            pause_for(error)
            refused = {"refused": True, "why": str(error)[:500]}
            await work.keep(name, refused)
            return refused
        usage = stream.usage
        found = {
            "refused": False,
            "text": stream.text,
            "tokens": usage.tokens,
            "cost": usage.cost,
        }
        await work.keep(name, found, Usage(usage.tokens, usage.cost or 0.0))
        return found

    # --- before anything is paid ---

    async def preview(self, site: str) -> tuple[SiteAnalysis, Prompts, Estimate]:
        """What a run would ask, and about what that costs. Reads the site and asks no model."""
        body = await self._by_rules(site_key(site))
        prompts = await self._formed(body)
        return body, prompts, self.estimate(prompts["prompts"], body)

    def estimate(self, prompts: Sequence[Prompt], site: SiteAnalysis) -> Estimate:
        """About what the questions will cost: their own length, and a usual answer's."""
        tokens = 0
        cost: float | None = 0.0
        for at, llm in enumerate(self.assistants):
            usage = LlmUsage(
                sum(tokens_about(len(one["text"])) for one in prompts),
                ANSWER_TOKENS * len(prompts),
            )
            if at == 0 and self.refine:
                usage += LlmUsage(tokens_about(len(material(site))), ANSWER_TOKENS)
            tokens += usage.tokens
            price = llm.price
            cost = None if price is None or cost is None else cost + price.of(usage)
        return Estimate(len(prompts) * len(self.assistants), tokens, cost)

    def pipeline(self) -> Pipeline:
        numbers: Mapping[str, Any] = {"processors": 10, "prefetch": 10, "assign_max": 3}
        return Pipeline(
            NAME,
            Stage(
                "website-analysis",
                self.analyze_website,
                ready="not-started",
                active="not-started",
                lane=Lane(_host, self.host_limit, self.host_spacing_seconds),
                **numbers,
            ),
            Stage(
                "prompt-forming",
                self.form_prompts,
                ready="prompt-forming",
                active="prompt-forming",
                **numbers,
            ),
            Stage(
                "model-analysis",
                self.analyze_models,
                ready="model-analysis",
                active="model-analysis",
                deadline_seconds=ASKING_SECONDS_MAX,
                **numbers,
            ),
            done="completed",
            failed="failed",
            canonical=site_key,
            lease_seconds=self.lease_seconds,
            backoff_seconds=self.backoff_seconds,
            attempts=self.attempts,
        )


def answer_of(prompt: Prompt, model: str, found: Mapping[str, Any], brand: Brand) -> Answer:
    """What one model said, and what of it concerns the site."""
    seen = mention(found["text"], brand, prompt=prompt["text"])
    return {
        "prompt": prompt["n"],
        "model": model,
        "text": found["text"],
        "mentioned": seen.how != "none",
        "how": seen.how,
        "position": seen.position,
        "rank": seen.rank,
        "tone": seen.tone,
        "others": list(seen.others),
        "tokens": found["tokens"],
        "cost": found["cost"],
    }


def _part(prompt: Prompt, llm: Llm) -> str:
    """The name of an answer: of what was asked, and whom."""
    asked = f"{llm.name}\n{prompt['text']}"
    return f"answer {blake2b(asked.encode(errors='replace'), digest_size=12).hexdigest()}"


async def _check_left(work: Work) -> None:
    if (await work.left()).nothing:
        raise Halt("the run's ceiling is reached; raise --max-tokens or --max-cost and go on")


def _first_of(failures: Sequence[Exception]) -> Exception:
    """Of several at once: what everybody should know, then what ends the item, then the first."""
    for kind in (Pause, Halt, Permanent):
        for one in failures:
            if isinstance(one, kind):
                return one
    return failures[0]


def _check_text(site: Site) -> None:
    """Refuse what cannot be analyzed, and say why."""
    home = site.pages[0]
    if any(page.text.strip() for page in site.pages):
        return
    images = int(home.about.get("images") or 0)
    what = "its home page is empty"
    if images:
        what = f"its home page is {'an image' if images == 1 else f'{images} images'} without words"
    raise Permanent(
        f"{site.url} has no text that a program can read: {what}, and so there is nothing that an "
        "assistant could know of it",
        code="no_text",
    )


def _host(url: str) -> str:
    return urlsplit(url).netloc
