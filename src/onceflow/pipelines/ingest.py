"""Read articles, keep their pages, find their text, and write a story from it when asked to.

`QUEUED` -> `FETCHING` -> `EXTRACTING` -> `READY_TO_GENERATE` -> `GENERATING` -> `SAVED`. Extraction
follows the fetch by itself, once; generation waits for its trigger, unless `auto_generate`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from onceflow import Done, Lane, Permanent, Pipeline, Stage, Usage, Work
from onceflow.clients import Extractor, Http, Llm, Page, canonical
from onceflow.clients.http import Headers
from onceflow.clients.llm import Usage as LlmUsage
from onceflow.pipelines.summarize import pause_for

NAME = "ingest"
FETCHES_MAX = 8
PAGE_CHARS_MAX = 12_000_000
"""A longer page is refused: it would not fit into one stored result."""
HEADLINE_CHARS_MAX = 200
SUMMARY_CHARS_MAX = 2_000
BODY_CHARS_MAX = 50_000
TAGS_MAX = 10
TAG_CHARS_MAX = 40
TEXT_CHARS_MAX = 60_000
"""How much of an article a model that writes is given."""
TEXT_CHARS_LEAST = 1_000
SUMMARY_WORDS = 60
BODY_WORDS = 300
STORY_PROMPT = (
    "Write a news story from the article below. Keep to what it says and add nothing. Answer with"
    ' one JSON object and nothing else: {"headline": text of at most 120 characters, "summary":'
    ' two or three sentences, "body": the story in a few paragraphs, "tags": a list of three to'
    " six short lower-case subjects}."
)

_WORD = re.compile(r"[^\W\d_]{4,}")
_COMMON = re.compile(
    r"about|after|again|also|although|always|among|another|because|been|before|being|below"
    r"|between|both|could|does|doing|down|during|each|even|every|from|further|have|having"
    r"|here|into|itself|just|less|made|make|makes|many|matter|more|most|much|must|never"
    r"|nothing|only|other|over|same|says|should|since|some|such|than|that|their|them|then"
    r"|there|these|they|this|those|through|under|until|upon|very|well|were|what|when|where"
    r"|which|while|will|with|within|without|would|your"
)


@dataclass(frozen=True)
class Ingest:
    """The handlers, and what they need from outside."""

    http: Http = field(default_factory=Http)
    extractor: Extractor = field(default_factory=Extractor)
    llm: Llm = field(default_factory=Llm)
    auto_generate: bool = False
    prompt: str = STORY_PROMPT
    host_limit: int = 2
    host_spacing_seconds: float = 0.5
    lease_seconds: float = 60.0
    backoff_seconds: float = 5.0

    async def fetch(self, work: Work) -> Done:
        """The page as it came. Its text is found by the next stage, which follows by itself."""
        page = await self.http.page(work.key)
        raw = page.text
        if len(raw) > PAGE_CHARS_MAX:
            raise Permanent(
                f"the page has {len(raw):,} characters; at most {PAGE_CHARS_MAX:,} are kept",
                code="too_large",
            )
        others = dict.fromkeys(url for url in (*page.redirects, page.url) if url != work.key)
        result = {"url": page.url, "contentType": page.content_type, "rawHtml": raw}
        return Done(result, aliases=list(others))

    async def extract(self, work: Work) -> dict[str, Any]:
        """The article's text and what the page says about itself."""
        fetched: dict[str, Any] = work.input
        url, raw = fetched["url"], fetched["rawHtml"]
        known: dict[str, Any] = {"url": url}
        if fetched.get("contentType") == "text/plain":
            text = raw.strip()
            known |= {"title": "", "author": "", "date": "", "language": "", "method": "plain"}
        else:
            headers = Headers({"Content-Type": "text/html; charset=utf-8"})
            page = Page(url, 200, headers, raw.encode("utf-8", "replace"))
            found = await self.extractor.extract(page)
            text = found.text
            known |= {
                "title": found.title,
                "author": found.author,
                "date": found.date,
                "language": found.language,
                "method": found.method,
            }
        if not text:
            raise Permanent("the page has no text to write a story from", code="no_text")
        return {**known, "extractedText": text}

    async def generate(self, work: Work) -> Done:
        """The story. A model that writes is asked for one; the embedded one picks sentences."""
        article: dict[str, Any] = work.input
        try:
            if self.llm.writes:
                story, usage = await self._written(work, article)
            else:
                story, usage = await self._picked(work, article)
        except Permanent as error:
            pause_for(error)
            raise
        result = {
            **story,
            "url": article["url"],
            "model": self.llm.name,
            "extractive": not self.llm.writes,
            "tokens": usage.tokens,
            "cost": usage.cost,
        }
        return Done(result, usage=Usage(usage.tokens, usage.cost or 0.0))

    async def _written(
        self, work: Work, article: Mapping[str, Any]
    ) -> tuple[dict[str, Any], LlmUsage]:
        """A story by a model that follows instructions; an article too long for it is cut."""
        whole = str(article["extractedText"])
        text = whole[:TEXT_CHARS_MAX]
        while True:
            try:
                story, usage = await self.llm.json(
                    self.prompt,
                    data=text,
                    check=checked_story,
                    idempotency_key=work.idempotency_key,
                )
            except Permanent as error:
                if error.code != "context_too_long" or len(text) < 2 * TEXT_CHARS_LEAST:
                    raise
                text = text[: len(text) // 2]
                continue
            return {**story, "cut": len(text) < len(whole)}, usage

    async def _picked(
        self, work: Work, article: Mapping[str, Any]
    ) -> tuple[dict[str, Any], LlmUsage]:
        """A story of the article's own sentences: nothing in it is invented."""
        text = str(article["extractedText"])
        key = work.idempotency_key
        summary = self.llm.summarize(text, words=SUMMARY_WORDS, idempotency_key=key)
        await summary.read()
        body = self.llm.summarize(text, words=BODY_WORDS, idempotency_key=key)
        await body.read()
        headline = str(article.get("title") or "") or summary.text.partition(". ")[0]
        story = {
            "headline": _line(headline, HEADLINE_CHARS_MAX),
            "summary": summary.text[:SUMMARY_CHARS_MAX],
            "body": body.text[:BODY_CHARS_MAX],
            "tags": subjects(f"{headline} {headline} {text}"),
        }
        return {**checked_story(story), "cut": False}, summary.usage + body.usage

    def pipeline(self) -> Pipeline:
        return Pipeline(
            NAME,
            Stage(
                "fetch",
                self.fetch,
                ready="QUEUED",
                active="FETCHING",
                limit=FETCHES_MAX,
                lane=Lane(_host, self.host_limit, self.host_spacing_seconds),
            ),
            Stage("extract", self.extract, ready="FETCHING", active="EXTRACTING"),
            Stage(
                "generate",
                self.generate,
                ready="READY_TO_GENERATE",
                active="GENERATING",
                held=not self.auto_generate,
            ),
            done="SAVED",
            failed="FAILED",
            cancelled="CANCELLED",
            canonical=canonical,
            lease_seconds=self.lease_seconds,
            backoff_seconds=self.backoff_seconds,
        )


def checked_story(answer: Any) -> dict[str, Any]:
    """A story as it is stored; ValueError says what does not fit."""
    if not isinstance(answer, dict):
        raise ValueError("it must be one JSON object")
    story: dict[str, Any] = {}
    for name, most in (
        ("headline", HEADLINE_CHARS_MAX),
        ("summary", SUMMARY_CHARS_MAX),
        ("body", BODY_CHARS_MAX),
    ):
        text = answer.get(name)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name} is missing or empty")
        text = _line(text, most + 1) if name == "headline" else text.strip()
        if len(text) > most:
            raise ValueError(f"{name} has {len(text):,} characters; at most {most:,}")
        story[name] = text
    tags = answer.get("tags")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError("tags must be a list of texts")
    lines = dict.fromkeys(_line(tag, TAG_CHARS_MAX + 1) for tag in tags)
    story["tags"] = [tag for tag in lines if tag]
    if len(story["tags"]) > TAGS_MAX or any(len(tag) > TAG_CHARS_MAX for tag in story["tags"]):
        raise ValueError(f"at most {TAGS_MAX} tags of at most {TAG_CHARS_MAX} characters")
    return story


def subjects(text: str, most: int = 5) -> list[str]:
    """The words an article repeats most, which is all that can be said without a model."""
    words = (word.lower() for word in _WORD.findall(text[:TEXT_CHARS_MAX]))
    counts = Counter(
        word for word in words if not _COMMON.fullmatch(word) and len(word) <= TAG_CHARS_MAX
    )
    return [word for word, count in counts.most_common(most) if count > 1]


def _line(text: str, most: int) -> str:
    return " ".join(text.split())[:most]


def _host(url: str) -> str:
    return urlsplit(url).netloc
