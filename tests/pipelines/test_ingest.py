"""The ingest pipeline: its states, what each stage keeps, what starts by itself, what waits."""

import json
from typing import Any

import pytest

import onceflow
from onceflow import Permanent, Transient
from onceflow.clients import Extractor, Page
from onceflow.clients.http import Headers
from onceflow.pipelines import ingest as module
from onceflow.pipelines.ingest import Ingest, checked_story, subjects
from onceflow.testing.llm import ScriptedLlm
from onceflow.testing.site import FakeHttp
from tests.pipelines.conftest import article

URL = "https://a.test/story"
STORY = {"headline": "Bread", "summary": "It is baked.", "body": "It rises.", "tags": ["bread"]}


def job(
    extractor: Extractor, *answers: Any, pages: dict[str, object] | None = None, **more: Any
) -> Ingest:
    pages = {URL: article("bread")} if pages is None else pages
    llm = ScriptedLlm(*(answers or (json.dumps(STORY),)))
    return Ingest(
        FakeHttp(pages), extractor, llm, host_limit=8, host_spacing_seconds=0, backoff_seconds=0,
        **more,
    )  # fmt: skip


def test_the_states_are_those_of_the_original() -> None:
    table = Ingest().pipeline().states
    assert [
        table[place]
        for place in (
            ("fetch", "ready"), ("fetch", "active"), ("extract", "ready"), ("extract", "active"),
            ("generate", "waiting"), ("generate", "ready"), ("generate", "active"),
            ("generate", "done"), ("fetch", "failed"), ("generate", "cancelled"),
        )
    ] == [
        "QUEUED", "FETCHING", "FETCHING", "EXTRACTING", "READY_TO_GENERATE", "READY_TO_GENERATE",
        "GENERATING", "SAVED", "FAILED", "CANCELLED",
    ]  # fmt: skip


async def test_extraction_follows_the_fetch_and_generation_waits_for_its_trigger(
    database: str, extractor: Extractor
) -> None:
    ingest = job(extractor)
    async with onceflow.open(database, ingest.pipeline()) as flow:
        await flow.add("ingest", [URL])
        await flow.drain()
        item = await flow.item("ingest", URL)
        assert item.state == "READY_TO_GENERATE"
        kinds = [(event.kind, event.stage) async for event in flow.events(item=item.id)]
        assert kinds.count(("stage_finished", "extract")) == 1
        fetched = await flow.result(item.id, "fetch")
        assert fetched["rawHtml"] == article("bread")
        extracted = await flow.result(item.id, "extract")
        assert extracted["title"] == "All about bread"
        assert "bread matters for reason 3" in extracted["extractedText"]

        flow.start()
        answer = await flow.trigger("ingest", URL, "generate")
        assert (answer.how, answer.item.state) == ("performed", "SAVED")
        assert {name: answer.result[name] for name in STORY} == STORY
        assert answer.result["extractive"] is False
        await flow.stop()
        assert await flow.audit() == []


async def test_with_auto_generate_the_story_follows_by_itself(
    database: str, extractor: Extractor
) -> None:
    ingest = job(extractor, auto_generate=True)
    async with onceflow.open(database, ingest.pipeline()) as flow:
        await flow.add("ingest", [URL])
        await flow.drain()
        assert (await flow.item("ingest", URL)).state == "SAVED"
        assert await flow.audit() == []


async def test_a_failure_keeps_its_stage_reason_and_class(
    database: str, extractor: Extractor
) -> None:
    pages = {
        URL: Page(URL, 404),
        "https://a.test/empty": "<html><body></body></html>",
        "https://a.test/busy": Transient("the site is busy", code="http_503"),
    }
    ingest = job(extractor, pages=pages)
    async with onceflow.open(database, ingest.pipeline()) as flow:
        await flow.add("ingest", pages)
        await flow.drain()
        found = {
            item.key: (item.state, item.stage, item.error_code, item.attempt)
            for item in await flow.items("ingest")
        }
    assert found == {
        URL: ("FAILED", "fetch", "http_404", 1),
        "https://a.test/empty": ("FAILED", "extract", "no_text", 1),
        "https://a.test/busy": ("FAILED", "fetch", "http_503", 3),
    }


async def test_five_spellings_of_one_url_are_one_item(database: str, extractor: Extractor) -> None:
    spellings = [
        URL, "HTTPS://A.test/story", "https://a.test:443/story", "https://a.test/x/../story",
        "https://a.test/st%6Fry#part",
    ]  # fmt: skip
    ingest = job(extractor)
    async with onceflow.open(database, ingest.pipeline()) as flow:
        for spelling in spellings:
            await flow.add("ingest", [spelling])
        assert [item.key for item in await flow.items("ingest")] == [URL]


async def test_where_redirects_led_is_the_same_item(database: str, extractor: Extractor) -> None:
    final = "https://a.test/final"
    headers = Headers({"Content-Type": "text/html"})
    page = Page(final, 200, headers, article("bread").encode(), redirects=(URL,))
    ingest = job(extractor, pages={URL: page})
    async with onceflow.open(database, ingest.pipeline()) as flow:
        await flow.add("ingest", [URL])
        await flow.drain()
        assert (await flow.item("ingest", final)).key == URL


async def test_plain_text_is_kept_as_it_is(database: str, extractor: Extractor) -> None:
    headers = Headers({"Content-Type": "text/plain"})
    ingest = job(extractor, pages={URL: Page(URL, 200, headers, b"Bread <b>is</b> baked.\n")})
    async with onceflow.open(database, ingest.pipeline()) as flow:
        await flow.add("ingest", [URL])
        await flow.drain()
        result = await flow.result(1, "extract")
    assert result["extractedText"] == "Bread <b>is</b> baked."


async def test_a_wrong_key_pauses_generation_for_all(database: str, extractor: Extractor) -> None:
    ingest = job(extractor, Permanent("401: wrong key", code="wrong_key"), auto_generate=True)
    async with onceflow.open(database, ingest.pipeline()) as flow:
        await flow.add("ingest", [URL])
        await flow.drain()
        assert (await flow.item("ingest", URL)).state == "READY_TO_GENERATE"
        assert "wrong key; set OPENAI_API_KEY" in await flow.why("ingest", URL)


async def test_an_answer_that_is_no_story_is_asked_for_again_then_fails(
    database: str, extractor: Extractor
) -> None:
    ingest = job(extractor, "no JSON at all", auto_generate=True)
    async with onceflow.open(database, ingest.pipeline()) as flow:
        await flow.add("ingest", [URL])
        await flow.drain()
        item = await flow.item("ingest", URL)
    assert (item.state, item.stage, item.error_code) == ("FAILED", "generate", "bad_answer")


async def test_an_article_too_long_for_the_model_is_cut_and_says_so(extractor: Extractor) -> None:
    too_long = Permanent("too long", code="context_too_long")
    ingest = job(extractor, too_long, too_long, json.dumps(STORY))
    text = "Bread is baked. " * 1000
    work = onceflow.Work(URL, {"url": URL, "extractedText": text}, "ingest", "generate")
    done = await ingest.generate(work)
    assert done.result["cut"] is True
    requests = ingest.llm.scripted.requests  # type: ignore[attr-defined]  # a ScriptedLlm
    assert [len(request.data) for request in requests] == [16_000, 8_000, 4_000]


async def test_the_embedded_model_picks_sentences_of_the_article(
    database: str, extractor: Extractor
) -> None:
    ingest = Ingest(
        FakeHttp({URL: article("bread")}), extractor, auto_generate=True, host_spacing_seconds=0
    )
    async with onceflow.open(database, ingest.pipeline()) as flow:
        await flow.add("ingest", [URL])
        await flow.drain()
        story = await flow.result(1, "generate")
        text = (await flow.result(1, "extract"))["extractedText"]
    assert story["extractive"] is True
    assert story["headline"] == "All about bread"
    assert story["summary"].split(". ")[0] in text
    assert "bread" in story["tags"]


async def test_a_page_too_large_to_keep_is_refused(
    database: str, extractor: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_CHARS_MAX", 100)
    ingest = job(extractor)
    async with onceflow.open(database, ingest.pipeline()) as flow:
        await flow.add("ingest", [URL])
        await flow.drain()
        assert (await flow.item("ingest", URL)).error_code == "too_large"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"headline": " "}, "headline is missing"),
        ({"headline": "x" * 201}, "headline has 201 characters"),
        ({"summary": 7}, "summary is missing"),
        ({"body": "x" * 50_001}, "body has 50,001 characters"),
        ({"tags": "bread"}, "tags must be a list"),
        ({"tags": [1]}, "tags must be a list"),
        ({"tags": ["x" * 41]}, "at most 10 tags"),
        ({"tags": [str(n) for n in range(11)]}, "at most 10 tags"),
    ],
)
def test_a_story_is_checked(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        checked_story({**STORY, **change})


def test_a_story_is_one_object_with_clean_lines() -> None:
    with pytest.raises(ValueError, match="one JSON object"):
        checked_story([STORY])
    story = checked_story({**STORY, "headline": "two\n lines", "tags": ["a", "", "a", " b "]})
    assert (story["headline"], story["tags"]) == ("two lines", ["a", "b"])


def test_subjects_are_words_that_come_again() -> None:
    assert subjects("Bread and flour. Bread with flour and bread. Water.") == ["bread", "flour"]
