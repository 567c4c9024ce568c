"""Several addresses of one page are one summary (U25, U26), whichever is read first."""

import asyncio
from typing import Any

import pytest

import onceflow
from onceflow import Flow, Item
from onceflow.clients import Extractor, Page
from onceflow.clients.http import Headers
from onceflow.pipelines.same import address_of, alike
from onceflow.pipelines.summarize import Summarize
from onceflow.testing.llm import ScriptedLlm
from tests.pipelines.conftest import article, summarize

HTML = Headers({"Content-Type": "text/html"})


def moved(to: str, text: str, *by: str) -> Page:
    """A page that was found at another address."""
    return Page(to, 200, HTML, text.encode(), redirects=by)


def told(job: Summarize, flow: Flow) -> Flow:
    job.pages.flow = flow
    return flow


async def outcome(flow: Flow) -> dict[str, dict[str, Any]]:
    """Key -> the result of its last stage."""
    items: list[Item] = await flow.items("summarize", stage="summarize", phase="done")
    return {item.key: await flow.result(item.id, "summarize") for item in items}


@pytest.mark.parametrize("first", ["old", "new"])
async def test_a_redirect_to_another_item_is_one_summary(
    database: str, extractor: Extractor, first: str
) -> None:
    old, new = "https://a.test/old", "https://a.test/new"
    text = article("bread")
    llm = ScriptedLlm("One summary.")
    job = summarize({old: moved(new, text, old), new: text}, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        told(job, flow)
        keys = [old, new] if first == "old" else [new, old]
        added = await flow.add("summarize", keys[:1], seal=False)
        await flow.drain()
        await flow.add("summarize", keys[1:], run=added.run)
        await flow.drain()
        found = await outcome(flow)
        run = await flow.run(added.run)
        digest = await flow.result(run.gate_item or 0, "digest")
    if first == "old":  # the second address is known for an alias when it is added
        assert list(found) == [old]
    else:
        assert found[old]["same_as"] == new
        assert [(one["url"], one["same_as"]) for one in digest["same"]] == [(old, new)]
    assert len(llm.scripted.requests) == 2  # one page, one digest
    assert digest["counts"]["completed"] == 1


@pytest.mark.parametrize("turn", range(4))
async def test_items_accepted_together_end_as_one_summary_whoever_is_read_first(
    database: str, extractor: Extractor, turn: int
) -> None:
    """Four addresses at once; each in turn is the one whose scrape ends first."""
    page = "https://a.test/page"
    keys = [page, "https://a.test/old", "https://a.test/page?from=mail", "https://a.test/p"]
    text = article("bread", canonical=page)
    llm = ScriptedLlm("One summary.")
    pages = dict.fromkeys(keys, text) | {keys[1]: moved(page, text, keys[1])}
    job = summarize(pages, llm, extractor)
    gate = asyncio.Event()
    fetch = job.http.page

    async def slow(url: str, **more: Any) -> Page:
        if url != keys[turn]:
            await gate.wait()
        return await fetch(url, **more)

    object.__setattr__(job.http, "page", slow)
    async with onceflow.open(database, job.pipeline()) as flow:
        told(job, flow)
        added = await flow.add("summarize", keys)
        async for event in flow.run_until_idle():
            if event.kind == "scrape_finished":
                gate.set()
        found = await outcome(flow)
        assert len(found) == 4
        own = [key for key, result in found.items() if "same_as" not in result]
        assert own == [keys[turn]]
        assert {result.get("same_as") for result in found.values()} == {None, keys[turn]}
        assert len(llm.scripted.requests) == 2
        run = await flow.run(added.run)
        digest = await flow.result(run.gate_item or 0, "digest")
        assert digest["counts"] == {"completed": 1, "same": 3, "failed": 0, "unlisted": 0}
        assert await flow.audit() == []


async def test_pages_that_name_one_address_but_say_different_things_are_all_summarized(
    database: str, extractor: Extractor
) -> None:
    """A common mistake of sites: every page has the canonical address of one of them."""
    llm = ScriptedLlm("A summary.")
    pages = {f"https://a.test/{name}": article(name, canonical="https://a.test/bread")
             for name in ("bread", "cheese", "wine")}  # fmt: skip
    job = summarize(pages, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        told(job, flow)
        await flow.add("summarize", pages)
        await flow.drain()
        found = await outcome(flow)
    assert [key for key, result in found.items() if "same_as" in result] == []
    assert len(llm.scripted.requests) == 4


async def test_two_pages_that_each_name_the_other_are_not_both_left_out(
    database: str, extractor: Extractor
) -> None:
    one, two = "https://a.test/one", "https://a.test/two"
    text = article("bread", canonical=two)
    llm = ScriptedLlm("A summary.")
    job = summarize({one: text, two: text.replace(two, one)}, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        told(job, flow)
        await flow.add("summarize", [one, two])
        await flow.drain()
        found = await outcome(flow)
    assert [key for key, result in found.items() if result["summary"]] != []


async def test_a_page_whose_owner_failed_is_summarized_itself(
    database: str, extractor: Extractor
) -> None:
    one, two = "https://a.test/one", "https://a.test/two"
    text = article("bread", canonical=two)
    refused = onceflow.Permanent("the model refuses", code="refused")
    llm = ScriptedLlm(refused, "A summary.")
    job = summarize({one: text, two: text}, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        told(job, flow)
        added = await flow.add("summarize", [one], seal=False)
        await flow.drain()
        # It was an item before anybody knew that it is the same page.
        await flow.add("summarize", ["https://a.test/two?x=1"], run=added.run, seal=False)
        assert (await flow.item("summarize", one)).state == "failed"
    job = summarize({"https://a.test/two?x=1": text}, llm, extractor)
    async with onceflow.open(database, job.pipeline()) as flow:
        told(job, flow)
        await flow.drain()
        found = await outcome(flow)
    assert found["https://a.test/two?x=1"]["summary"] == "A summary."


async def test_u25_every_spelling_of_an_address_is_one_item(
    database: str, extractor: Extractor
) -> None:
    job = summarize({}, ScriptedLlm("x"), extractor)
    forms = ["HTTP://Example.test:80/a/../b?x=1#f", "http://example.test/b?x=1"]
    async with onceflow.open(database, job.pipeline()) as flow:
        added = [await flow.add("summarize", [form]) for form in forms]
    assert [(one.new, one.known) for one in added] == [(1, 0), (0, 1)]


async def test_u26_fifty_at_once_are_one_item(database: str, extractor: Extractor) -> None:
    job = summarize({}, ScriptedLlm("x"), extractor)
    forms = ["HTTP://Example.test:80/a/../b?x=1#f", "http://example.test/b?x=1"]
    async with onceflow.open(database, job.pipeline()) as flow:
        added = await asyncio.gather(
            *(flow.add("summarize", [forms[n % 2]], run=f"run-{n}") for n in range(50))
        )
        assert sum(one.new for one in added) == 1
        assert sum(one.known for one in added) == 49
        assert len(await flow.items("summarize")) == 1


def test_a_front_page_is_not_believed_to_be_every_page() -> None:
    page = "https://a.test/news/1"
    assert address_of(page, "https://a.test/") == page
    assert address_of(page, "https://a.test/news/one") == "https://a.test/news/one"
    assert address_of("https://a.test/?from=mail", "https://a.test/") == "https://a.test/?from=mail"
    assert address_of("https://www.a.test/", "https://a.test/") == "https://a.test/"
    assert address_of(page, None) == page


def test_texts_are_alike_but_for_details() -> None:
    text = " ".join(f"word{n}" for n in range(400))
    assert alike(text, f"{text} Read at 12:03.")
    assert not alike(text, " ".join(f"other{n}" for n in range(400)))
    assert not alike(text, "")
    assert alike("", "")
