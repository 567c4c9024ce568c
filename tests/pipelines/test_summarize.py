"""The summarize pipeline: what is paid for once, what pauses, what a person reads about it."""

from dataclasses import replace

import pytest

import onceflow
from onceflow import Json, Permanent, Transient, Work
from onceflow.clients import Extractor, FetchSettings, Http, Page, Price
from onceflow.clients.http import Headers
from onceflow.pipelines import summarize as module
from onceflow.testing.llm import ScriptedLlm
from onceflow.testing.site import ALLOWED, Site
from tests.pipelines.conftest import article, summarize

URLS = [f"https://a.test/{n}" for n in range(1, 6)]
PAGES = {url: article(f"subject {url[-1]}") for url in URLS}


async def test_m09_a_wrong_key_pauses_the_stage_with_one_message_and_fails_nothing(
    database: str, extractor: Extractor
) -> None:
    wrong = Permanent("openai:m answered 401: wrong key", code="wrong_key")
    llm = ScriptedLlm(wrong, wrong, wrong, wrong, wrong, "A summary.")
    job = summarize(PAGES, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        added = await flow.add("summarize", URLS)
        await flow.drain()
        assert await flow.counts("summarize") == {"scraped": 5}
        why = await flow.why("summarize", URLS[0])
        assert "openai:m answered 401: wrong key; set OPENAI_API_KEY" in why
        assert "resume" in why
        asked = len(llm.scripted.requests)
        await flow.resume("summarize", "summarize")
        while len(llm.scripted.requests) < 5:  # one after another meets the wrong key
            await flow.drain()
            await flow.resume("summarize", "summarize")
        await flow.drain()
        counts = await flow.counts("summarize", run=added.run)
        assert counts == {"completed": 5}
        assert asked <= 5
        for item in await flow.items("summarize", stage="summarize"):
            assert item.attempt == 1  # what met the wrong key cost no attempt


async def test_a_wrong_key_at_the_digest_pauses_it_too(database: str, extractor: Extractor) -> None:
    llm = ScriptedLlm("A summary.", Permanent("no key", code="wrong_key"), "The digest.")
    job = summarize(PAGES, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        added = await flow.add("summarize", URLS[:1])
        await flow.drain()
        assert (await flow.run(added.run)).finished_at is None
        await flow.resume("summarize", "digest")
        await flow.drain()
        run = await flow.run(added.run)
        result = await flow.result(run.gate_item or 0, "digest")
    assert result["digest"] == "The digest."


class Alone(Work):
    """Work without an engine, and without an earlier result."""

    async def result(self, stage: str) -> Json:
        return None


@pytest.mark.parametrize(
    ("error", "held"),
    [
        (Transient("429", code="http_429", retry_after=20), 20),
        (Transient("429", code="http_429", retry_after=3600), 60),
        (Transient("429", code="http_429"), 0),
        (Transient("503", code="http_503", retry_after=20), 0),
    ],
)
async def test_a_host_that_asks_for_patience_is_left_alone_by_everybody(
    extractor: Extractor, error: Transient, held: float
) -> None:
    job = summarize({URLS[0]: error}, ScriptedLlm("x"), extractor)
    with pytest.raises(Transient) as raised:
        await job.scrape(Alone(URLS[0]))
    assert raised.value.hold_lane_seconds == held


async def test_a_crawl_delay_is_kept_over_all_workers(extractor: Extractor) -> None:
    """Robots.txt is asked for once; two pages may be fetched at once, so the pause is for both."""
    settings = FetchSettings(allow_networks=ALLOWED)
    async with Site() as site, Http(settings=settings) as http:
        site.answer("/robots.txt", "User-agent: *\nCrawl-delay: 3\n", content_type="text/plain")
        site.answer("/a", article("bread"))
        job = module.Summarize(http, extractor, ScriptedLlm("x"), host_limit=2)
        done = await job.scrape(Alone(site.url("/a")))
        assert done.hold_lane_seconds == 6
        assert [one.path for one in site.requests] == ["/robots.txt", "/a"]
        rude = Http(settings=replace(settings, robots=False))
        job = module.Summarize(rude, extractor, ScriptedLlm("x"))
        assert (await job.scrape(Alone(site.url("/a")))).hold_lane_seconds == 0
        await rude.close()


async def test_plain_text_is_its_own_text(extractor: Extractor) -> None:
    url = URLS[0]
    page = Page(url, 200, Headers({"Content-Type": "text/plain"}), b"\n <p>not a tag</p>\x00 \n")
    job = summarize({url: page}, ScriptedLlm("x"), extractor)
    done = await job.scrape(Alone(url))
    assert done.result["text"] == "<p>not a tag</p>"


async def test_a_retry_does_not_repeat_a_finished_stage(
    database: str, extractor: Extractor
) -> None:
    llm = ScriptedLlm(Permanent("refused", code="refused"), "A summary.", "The digest.")
    job = summarize(PAGES, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        await flow.add("summarize", URLS[:1])
        await flow.drain()
        assert await flow.retry("summarize", state="failed") == 1
        await flow.drain()
        assert (await flow.item("summarize", URLS[0])).state == "completed"
    assert job.http.asked == URLS[:1]  # type: ignore[attr-defined]  # a FakeHttp


async def test_a_page_that_did_not_change_is_not_paid_for_again(
    database: str, extractor: Extractor
) -> None:
    url = URLS[0]
    headers = Headers({"Content-Type": "text/html", "ETag": '"1"'})
    pages = {url: [Page(url, 200, headers, PAGES[url].encode()), Page(url, 304, headers)]}
    llm = ScriptedLlm("A summary.", "The digest.", "Another digest.", "A longer summary.")
    job = summarize(pages, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        await flow.add("summarize", [url])
        await flow.drain()
        await flow.add("summarize", [url], refresh=True)
        await flow.drain()
        again = await flow.result(1, "summarize")
        assert (again["summary"], again["unchanged"]) == ("A summary.", True)
        assert len(llm.scripted.requests) == 3  # the digest of each run is asked for
    longer = module.Summarize(job.http, extractor, llm, words=300, host_spacing_seconds=0)
    async with onceflow.open(database, longer.pipeline()) as flow:
        await flow.add("summarize", [url], refresh=True)
        await flow.drain()
        assert (await flow.result(1, "summarize"))["summary"] == "A longer summary."


async def test_the_ceiling_of_tokens_stops_new_calls_and_keeps_what_is_there(
    database: str, extractor: Extractor
) -> None:
    llm = ScriptedLlm("A summary.", price=Price(1.0, 1.0))
    job = summarize(PAGES, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        added = await flow.add("summarize", URLS, max_tokens=1)
        await flow.drain()
        run = await flow.run(added.run)
        assert run.halted is not None
        assert run.tokens >= 1
        assert run.cost > 0
        assert (await flow.counts("summarize", run=added.run)).get("failed", 0) == 0


async def test_a_transient_failure_of_the_model_is_tried_again(
    database: str, extractor: Extractor
) -> None:
    llm = ScriptedLlm(["Half of ", Transient("cut", code="truncated")], "A whole one.")
    job = summarize(PAGES, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        await flow.add("summarize", URLS[:1])
        await flow.retry("summarize", keys=[URLS[0]])
        working = flow.start()
        async for event in flow.events(follow=True):
            if event.kind == "retried":
                assert "cut" in await flow.why("summarize", URLS[0])
                await flow.retry("summarize", keys=[URLS[0]])
            if event.kind == "summary_finished":
                break
        await flow.stop()
        await working
        assert (await flow.result(1, "summarize"))["summary"] == "A whole one."


async def test_a_digest_of_very_many_is_bounded(
    database: str, extractor: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LISTED_CHARS_MAX", 60)
    monkeypatch.setattr(module, "ADDRESSES_CHARS_MAX", 3 * 56)
    job = summarize(PAGES, ScriptedLlm("A summary."), extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        added = await flow.add("summarize", URLS)
        await flow.drain()
        run = await flow.run(added.run)
        result = await flow.result(run.gate_item or 0, "digest")
    assert result["counts"] == {"completed": 5, "same": 0, "failed": 0, "unlisted": 2}
    assert ["summary" in one for one in result["articles"]] == [True, True, False]
