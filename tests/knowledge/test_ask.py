"""Answers: from the sections found, cited, never invented."""

import asyncio

from onceflow import Flow
from onceflow.clients import Llm
from onceflow.knowledge.ask import NONE_LOADED, NOTHING, ask
from onceflow.knowledge.search import Search
from onceflow.testing.llm import ScriptedLlm
from tests.cli.conftest import Answer, Call
from tests.knowledge.kit import Page


async def test_the_embedded_model_answers_with_sentences_that_are_there(
    flow: Flow, world: dict[str, Page]
) -> None:
    async with Search(flow) as search:
        await search.catch_up()
        answer = await ask(search, "What does yeast make from sugar?", Llm())
    assert answer.text.startswith("It turns sugar into alcohol and carbon dioxide gas. [1]")
    assert (answer.citations[0].title, answer.citations[0].section) == ("Yeast", "Fermentation")
    said = [text for page in world.values() for _, text in page.sections]
    for number in range(1, len(answer.citations) + 1):
        sentence = answer.text.split(f" [{number}]")[0].split("] ")[-1]
        assert sentence in said


async def test_what_has_nothing_to_do_with_it_is_no_answer(flow: Flow) -> None:
    async with Search(flow) as search:
        await search.catch_up()
        answer = await ask(search, "Who won the football world cup in 1998?", Llm())
    assert (answer.text, answer.citations, answer.is_found) == (NOTHING, (), False)


async def test_an_empty_database_has_no_answer(flow: Flow) -> None:
    async with Search(flow) as search:  # nothing was taken in yet
        assert (await ask(search, "bread?", Llm())).text == NONE_LOADED


async def test_a_model_that_writes_gets_the_passages_as_data_and_its_citations_are_checked(
    flow: Flow,
) -> None:
    llm = ScriptedLlm("Gas and alcohol [1]. Also a lie [77]. More [2, 1][0].")
    async with Search(flow) as search:
        await search.catch_up()
        found = await search.find("what does yeast do to sugar?", most=8)
        answer = await ask(search, "what does yeast do to sugar?", llm)
    assert answer.text == "Gas and alcohol [1]. Also a lie. More [2][1]."
    assert [one.title for one in answer.citations] == [found[0].title, found[1].title]
    assert answer.note == ("2 citations of passages that scripted was not given were taken out")
    [request] = llm.scripted.requests
    assert request.prompt.endswith("Question: what does yeast do to sugar?")
    assert "It turns sugar into alcohol" not in request.prompt
    assert "[1] Yeast: Fermentation\nIt turns sugar into alcohol" in request.data


async def test_an_answer_without_citations_is_not_shown(flow: Flow) -> None:
    async with Search(flow) as search:
        await search.catch_up()
        answer = await ask(search, "what is flour made of?", ScriptedLlm("Of moon dust."))
        assert answer.text.startswith("Flour is a powder made by grinding")
        assert "moon" not in answer.text
        assert "cited none of the passages" in answer.note
        answer = await ask(search, "what is flour made of?", ScriptedLlm("NOT FOUND"))
        assert (answer.text, answer.is_found) == (NOTHING, False)


# --- the commands ---


async def test_search_and_ask_on_the_command_line(flow: Flow, database: str, call: Call) -> None:
    """In threads of their own: a command has an event loop of its own."""

    def said(*words: str) -> Answer:
        return call(*words, "--db", database)

    found = await asyncio.to_thread(said, "search", "fungi with one cell", "--limit", "2")
    assert found.code == 0
    assert " Yeast" in found.out.splitlines()[0]
    assert "Yeasts are microorganisms" in found.out
    found = await asyncio.to_thread(said, "search", "fungi with one cell", "--json", "--rebuild")
    assert found.lines[0]["title"] == "Yeast"
    assert set(found.lines[0]) == {
        "title", "section", "n", "score", "passage", "url", "item", "revision"
    }  # fmt: skip
    asked = await asyncio.to_thread(said, "ask", "How is bread baked?")
    assert asked.code == 0
    assert "[1] Bread" in asked.out
    asked = await asyncio.to_thread(said, "ask", "Who won the football world cup?")
    assert (asked.code, asked.out) == (1, f"{NOTHING}\n")
    asked = await asyncio.to_thread(said, "ask", "How is bread baked?", "--json")
    assert asked.object["citations"][0]["title"] == "Bread"


def test_a_command_says_what_is_wrong(call: Call) -> None:
    assert call("search", "x", "--limit", "0").err.startswith("onceflow: --limit is 0;")
    assert "there is no database" in call("search", "x").err
    assert call("ask", " ").err == "onceflow: the question is empty\n"
    assert "unknown model" in call("ask", "x", "--model", "nonsense").err
