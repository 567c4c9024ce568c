"""Read pages, summarize each one with streaming, then write one digest over them all.

`idle` -> `scraping` -> `scraped` -> `summarizing` -> `completed`, at most 8 scrapes at once in the
whole system, and each host at its own pace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from onceflow import Done, Item, Lane, Pause, Permanent, Pipeline, Stage, Transient, Usage, Work
from onceflow.clients import Extracted, Extractor, Http, Llm, Page, canonical
from onceflow.clients.llm import STAGE_CODES, SUMMARY_PROMPT, Stream
from onceflow.clients.llm import Usage as LlmUsage
from onceflow.clients.text import clean
from onceflow.core.errors import HandlerError
from onceflow.pipelines.same import Pages, address_of, mark_of

NAME = "summarize"
SCRAPES_MAX = 8
DIGEST_WORDS = 200
DIGEST_CHARS_MAX = 200_000
LISTED_CHARS_MAX = 4_000_000
"""How much of summaries and reasons one digest lists; of the rest it has the addresses."""
ADDRESSES_CHARS_MAX = 8_000_000
PLAIN_CHARS_MAX = 5_000_000
HOLD_SECONDS_MAX = 60.0
"""For how long one answer of a host keeps all its pages waiting."""
NOTHING = "nothing to summarize: the page has no text"
WAY_ON = {
    "wrong_key": "set OPENAI_API_KEY to a key that the provider takes",
    "no_quota": "see to the account at the provider, or choose another --model",
    "no_model": "`onceflow models` lists what there is",
    "not_installed": "then go on",
}
"""What to do about a failure that every item would meet, before the stage is resumed."""


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
    lease_seconds: float = 60.0
    pages: Pages = field(default_factory=Pages)

    async def scrape(self, work: Work) -> Done:
        """Fetch the page (only if it changed since the last time) and find its text."""
        before: dict[str, Any] | None = await work.result("scrape")
        known = before or {}
        try:
            page = await self.http.page(
                work.key, etag=known.get("etag"), last_modified=known.get("last_modified")
            )
        except Transient as error:
            if error.code == "http_429" and error.retry_after:  # it means the host, not this page
                error.hold_lane_seconds = min(error.retry_after, HOLD_SECONDS_MAX)
            raise
        hold = await self._crawl_delay(page.url)
        if page.status == 304 and before is not None:
            again = {**before, "unchanged": True}
            return Done(again, events=["scrape_finished"], hold_lane_seconds=hold)
        extracted = await self._extracted(page)
        return Done(
            _scraped(page, extracted),
            events=["scrape_finished"],
            aliases=_aliases(work.key, page, extracted),
            hold_lane_seconds=hold,
        )

    async def _extracted(self, page: Page) -> Extracted:
        if page.content_type == "text/plain":  # all of it is the text
            return Extracted(text=clean(page.text).strip()[:PLAIN_CHARS_MAX], method="plain")
        return await self.extractor.extract(page)

    async def _crawl_delay(self, url: str) -> float:
        """For how long nobody may ask this host again: as many may at once, so much longer."""
        if not self.http.settings.robots:
            return 0.0
        try:
            delay = (await self.http.robots(url)).crawl_delay  # known since the page was fetched
        except HandlerError:
            return 0.0
        return (delay or 0.0) * self.host_limit

    async def summarize(self, work: Work) -> Done:
        """Summarize the text, telling the watchers each part as it comes."""
        known = {"url": work.input["url"], "title": work.input["title"]}
        text = work.input["text"]
        if not text:
            return _unasked(known, note=NOTHING)
        if owner := await self.pages.owner(work):
            return _unasked(
                known, note=f"the same page as {owner.key}", same_as=owner.key, same_as_id=owner.id
            )
        if work.input.get("unchanged"):
            before = await work.result("summarize")
            if isinstance(before, dict) and before.get("asked") == self.asked:
                return Done({**before, "unchanged": True}, events=["summary_finished"])
        stream = self.llm.summarize(
            text,
            words=self.words,
            language=self.language,
            prompt=self.prompt,
            idempotency_key=work.idempotency_key,
        )
        usage = await _told(stream, work)
        return Done(
            {
                **known,
                "summary": stream.text,
                "model": stream.model,
                "tokens": usage.tokens,
                "tokens_estimated": usage.estimated,
                "cost": usage.cost,
                "asked": self.asked,
            },
            events=["summary_finished"],
            usage=Usage(usage.tokens, usage.cost or 0.0),
        )

    async def digest(self, work: Work) -> Done:
        """One digest over every summary of the run, and what failed and why."""
        listing = _Listing()
        parts: list[str] = []
        room = DIGEST_CHARS_MAX
        async for item in work.finished_items():
            listing.finished(item)
            summary = (item.result or {}).get("summary", "")
            if summary and room > 0:
                parts.append(summary[:room])
                room -= len(summary) + 2
        async for item in work.failed_items():
            listing.failed(item)
        result: dict[str, Any] = {"digest": "", "model": None, "tokens": 0, "cost": None}
        spent = Usage()
        if parts:
            stream = self.llm.summarize(
                "\n\n".join(parts),
                words=self.words or DIGEST_WORDS,
                language=self.language,
                idempotency_key=work.idempotency_key,
            )
            usage = await _told(stream, work)
            result = {"digest": stream.text, "model": stream.model}
            result |= {"tokens": usage.tokens, "cost": usage.cost}
            spent = Usage(usage.tokens, usage.cost or 0.0)
        return Done(result | listing.as_dict(), usage=spent)

    @property
    def asked(self) -> str:
        """What a summary was asked for: the same again need not be asked again."""
        asked = json.dumps([self.llm.name, self.words, self.language, self.prompt])
        return blake2b(asked.encode(), digest_size=8).hexdigest()

    def pipeline(self) -> Pipeline:
        return Pipeline(
            NAME,
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
            lease_seconds=self.lease_seconds,
        )


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _scraped(page: Page, extracted: Extracted) -> dict[str, Any]:
    return {
        "url": page.url,
        "address": address_of(page.url, extracted.canonical),
        "title": extracted.title,
        "author": extracted.author,
        "date": extracted.date,
        "language": extracted.language,
        "text": extracted.text,
        "method": extracted.method,
        "etag": page.etag,
        "last_modified": page.last_modified,
    }


def _aliases(key: str, page: Page, extracted: Extracted) -> list[str]:
    """Where redirects led, what the page calls itself, and the mark of who has the page."""
    address = address_of(page.url, extracted.canonical)
    others = dict.fromkeys([*page.redirects, page.url, address])
    return [*(url for url in others if url != key), mark_of(address)]


def _unasked(known: dict[str, Any], **more: Any) -> Done:
    """The end of an item for which no model was asked."""
    nothing = {"summary": "", "model": None, "tokens": 0, "cost": None}
    return Done({**known, **nothing, **more}, events=["summary_finished"])


async def _told(stream: Stream, work: Work) -> LlmUsage:
    """Read a stream to its end, telling the watchers. What every item would meet pauses all."""
    try:
        async for part in stream:
            work.emit("summary_partial", text=part)
    except Permanent as error:
        pause_for(error)
        raise
    return stream.usage


def pause_for(error: Permanent) -> None:
    """What every item would meet pauses the stage."""
    if error.code in STAGE_CODES:
        what, way = str(error).rstrip("."), WAY_ON[error.code]
        told = what if what.endswith(way) else f"{what}; {way}"
        raise Pause(told, code=error.code) from error


class _Listing:
    """The pages of a run, as its digest lists them: bounded, whatever their number."""

    def __init__(self) -> None:
        self._articles: list[dict[str, Any]] = []
        self._same: list[dict[str, Any]] = []
        self._failed: list[dict[str, Any]] = []
        self._counts = {"completed": 0, "same": 0, "failed": 0, "unlisted": 0}
        self._room = LISTED_CHARS_MAX
        self._room_for_addresses = ADDRESSES_CHARS_MAX

    def finished(self, item: Item) -> None:
        result = item.result or {}
        if "same_as" in result:
            self._counts["same"] += 1
            self._put(self._same, item, {"same_as": result["same_as"]})
            return
        self._counts["completed"] += 1
        fields = {"title": result.get("title") or "", "summary": result.get("summary", "")}
        if result.get("note"):
            fields["note"] = result["note"]
        self._put(self._articles, item, fields)

    def failed(self, item: Item) -> None:
        self._counts["failed"] += 1
        self._put(self._failed, item, {"code": item.error_code, "reason": item.error})

    def _put(self, listed: list[dict[str, Any]], item: Item, fields: dict[str, Any]) -> None:
        self._room -= sum(len(str(value)) for value in fields.values())
        self._room_for_addresses -= len(item.key) + 40
        if self._room_for_addresses < 0:
            self._counts["unlisted"] += 1
            return
        listed.append({"id": item.id, "url": item.key, **(fields if self._room >= 0 else {})})

    def as_dict(self) -> dict[str, Any]:
        return {
            "counts": self._counts,
            "articles": self._articles,
            "failed": self._failed,
            "same": self._same,
        }
