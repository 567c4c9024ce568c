"""Read pages, summarize each one with streaming, then write one digest over them all.

`idle` -> `scraping` -> `scraped` -> `summarizing` -> `completed`, at most 8 scrapes at once in the
whole system, and each host at its own pace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from onceflow import Done, Item, Json, Lane, Pause, Permanent, Pipeline, Stage, Usage, Work
from onceflow.clients import Extracted, Extractor, Http, Llm, Page, canonical
from onceflow.clients.llm import STAGE_CODES, SUMMARY_PROMPT

SCRAPES_MAX = 8
DIGEST_WORDS = 200
DIGEST_CHARS_MAX = 200_000
NOTHING = "nothing to summarize: the page has no text"


@dataclass(frozen=True)
class Summarize:
    """The handlers, and what they need from outside."""

    http: Http = field(default_factory=Http)
    extractor: Extractor = field(default_factory=Extractor)
    llm: Llm = field(default_factory=Llm)
    words: int | None = None
    language: str | None = None
    prompt: str = SUMMARY_PROMPT
    host_limit: int = 2
    host_spacing_seconds: float = 0.5

    async def scrape(self, work: Work) -> Done:
        """Fetch the page (only if it changed since the last time) and find its text."""
        before: dict[str, Any] | None = await work.result("scrape")
        known = before or {}
        page = await self.http.page(
            work.key, etag=known.get("etag"), last_modified=known.get("last_modified")
        )
        if page.status == 304 and before is not None:
            return Done({**before, "unchanged": True}, events=["scrape_finished"])
        extracted = await self.extractor.extract(page.text, url=page.url)
        return Done(
            _scraped(page, extracted),
            events=["scrape_finished"],
            aliases=_other_addresses(work.key, page, extracted),
        )

    async def summarize(self, work: Work) -> Done:
        """Summarize the text, telling the watchers each part as it comes."""
        text = work.input["text"]
        if not text:
            empty = {"summary": "", "note": NOTHING, "model": None, "tokens": 0}
            return Done(empty, events=["summary_finished"])
        stream = self.llm.summarize(
            text,
            words=self.words,
            language=self.language,
            prompt=self.prompt,
            idempotency_key=work.idempotency_key,
        )
        try:
            async for part in stream:
                work.emit("summary_partial", text=part)
        except Permanent as error:
            if error.code in STAGE_CODES:
                raise Pause(str(error), code=error.code) from error
            raise
        usage = stream.usage
        return Done(
            {
                "summary": stream.text,
                "model": stream.model,
                "tokens": usage.tokens,
                "tokens_estimated": usage.estimated,
                "cost": usage.cost,
            },
            events=["summary_finished"],
            usage=Usage(usage.tokens, usage.cost or 0.0),
        )

    async def digest(self, work: Work) -> Json:
        """One digest over every summary of the run, and what failed and why."""
        articles = [_article(item) async for item in work.finished_items()]
        failed = [
            {"url": item.key, "code": item.error_code, "reason": item.error}
            async for item in work.failed_items()
        ]
        text = "\n\n".join(one["summary"] for one in articles if one["summary"])
        digest = ""
        if text:
            stream = self.llm.summarize(
                text[:DIGEST_CHARS_MAX],
                words=self.words or DIGEST_WORDS,
                language=self.language,
                idempotency_key=work.idempotency_key,
            )
            digest = await stream.read()
        return {"digest": digest, "articles": articles, "failed": failed, "model": self.llm.name}

    def pipeline(self) -> Pipeline:
        return Pipeline(
            "summarize",
            Stage(
                "scrape",
                self.scrape,
                ready="idle",
                active="scraping",
                limit=SCRAPES_MAX,
                lane=Lane(_host, self.host_limit, self.host_spacing_seconds),
            ),
            Stage("summarize", self.summarize, ready="scraped", active="summarizing"),
            done="completed",
            failed="failed",
            after_all=Stage("digest", self.digest, ready="digest-ready", active="digesting"),
            canonical=canonical,
        )


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _scraped(page: Page, extracted: Extracted) -> dict[str, Any]:
    return {
        "url": page.url,
        "title": extracted.title,
        "author": extracted.author,
        "date": extracted.date,
        "language": extracted.language,
        "text": extracted.text,
        "method": extracted.method,
        "etag": page.etag,
        "last_modified": page.last_modified,
    }


def _other_addresses(key: str, page: Page, extracted: Extracted) -> list[str]:
    """Where a redirect led, and what the page itself says is its address."""
    others = dict.fromkeys([*page.redirects, page.url])
    if extracted.canonical:
        others[extracted.canonical] = None
    return [url for url in others if url != key]


def _article(item: Item) -> dict[str, Any]:
    result = item.result or {}
    return {"url": item.key, "summary": result.get("summary", ""), "note": result.get("note")}
