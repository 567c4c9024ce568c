"""Answers from the sections found, with citations to article and section.

A model that only picks sentences answers with sentences as they stand there: it cannot invent. One
that writes gets the passages as data and has to cite them; a citation of what it was not given is
taken out, and an answer that cites nothing is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onceflow.clients import Llm
from onceflow.clients.sentences import sentences
from onceflow.knowledge.search import Found, Search

PASSAGES = 8
PASSAGE_CHARS_MAX = 1200
SENTENCES_PICKED = 4
SENTENCES_MAX = 400
SENTENCE_CHARS_MAX = 600
RELEVANT = 0.25
"""The least cosine of a sentence that has to do with the question."""
NEAR_BEST = 0.7
"""Of the best sentence's score: what is further off is left out."""
SAME = 0.9
"""Two sentences nearer than this say the same."""
NOTHING = "Nothing in the loaded articles answers this."
NONE_LOADED = "No article is loaded yet; `onceflow expand TITLE…` loads some."
NOT_FOUND = "NOT FOUND"
PROMPT = """Answer the question from the numbered passages below and from nothing else.
Put the number of the passage behind each statement, like this: [2]. Add nothing that they do not
say. If they do not answer the question, answer with the two words NOT FOUND alone.

Question: {question}"""
CITED = re.compile(r"\s?\[(\d{1,4}(?:\s?,\s?\d{1,4})*)\]")


@dataclass(frozen=True, slots=True)
class Citation:
    """Where a statement of an answer is from."""

    number: int
    title: str
    section: str
    url: str
    revision: int
    score: float
    passage: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found out. Without citations it says that nothing was."""

    question: str
    text: str
    citations: tuple[Citation, ...]
    model: str
    note: str = ""
    """What the reader should know about how it came about."""

    @property
    def is_found(self) -> bool:
        return bool(self.citations)


async def ask(search: Search, question: str, llm: Llm, *, passages: int = PASSAGES) -> Answer:
    """Answer a question from what is in the index."""
    found = await search.find(question, most=passages)
    if not found:
        return Answer(question, NONE_LOADED, (), llm.name)
    found = [one for one in found if one.score > 0]
    if not found:
        return Answer(question, NOTHING, (), llm.name)
    if not llm.writes:
        return await _extracted(search, question, found, llm.name)
    listed = "\n\n".join(
        f"[{number}] {_place(one)}\n{one.text[:PASSAGE_CHARS_MAX]}"
        for number, one in enumerate(found, start=1)
    )
    text = await llm.stream(PROMPT.replace("{question}", question), data=listed).read()
    return await _checked(search, question, found, llm.name, text)


async def _checked(
    search: Search, question: str, found: Sequence[Found], model: str, text: str
) -> Answer:
    """Only citations of passages that were given stay, numbered as they come."""
    if NOT_FOUND in text and len(text) < 40:
        return Answer(question, NOTHING, (), model)
    order: dict[int, int] = {}
    wrong = 0

    def renumbered(match: re.Match[str]) -> str:
        nonlocal wrong
        kept: list[str] = []
        for part in match[1].split(","):
            number = int(part)
            if not 1 <= number <= len(found):
                wrong += 1
                continue
            kept.append(f"[{order.setdefault(number, len(order) + 1)}]")
        return f" {''.join(dict.fromkeys(kept))}" if kept else ""

    told = CITED.sub(renumbered, text).strip()
    if not order:
        answer = await _extracted(search, question, found, model)
        note = f"{model} cited none of the passages: these are sentences from them instead"
        return Answer(question, answer.text, answer.citations, model, note)
    note = f"{wrong} citations of passages that {model} was not given were taken out"
    return Answer(
        question,
        told,
        tuple(_citation(at, found[number - 1]) for number, at in order.items()),
        model,
        note if wrong else "",
    )


async def _extracted(search: Search, question: str, found: Sequence[Found], model: str) -> Answer:
    """The sentences nearest to the question, as they stand there."""
    places: list[int] = []
    texts: list[str] = []
    for at, one in enumerate(found):
        for sentence in sentences(one.text, count_max=SENTENCES_MAX // len(found)):
            if sentence not in texts and len(sentence) <= SENTENCE_CHARS_MAX:
                texts.append(sentence)
                places.append(at)
    if not texts:
        return Answer(question, NOTHING, (), model)
    vectors = await search.embed("embedded", [question, *texts])
    scores = vectors[1:] @ vectors[0]
    bound = max(RELEVANT, NEAR_BEST * float(scores.max()))
    picked: list[int] = []
    for index in scores.argsort()[::-1].tolist():
        if scores[index] < bound or len(picked) == SENTENCES_PICKED:
            break
        if all(float(vectors[1 + index] @ vectors[1 + other]) < SAME for other in picked):
            picked.append(index)
    if not picked:
        return Answer(question, NOTHING, (), model)
    order: dict[int, int] = {}
    parts = [f"{texts[at]} [{order.setdefault(places[at], len(order) + 1)}]" for at in picked]
    citations = tuple(_citation(number, found[at]) for at, number in order.items())
    return Answer(question, " ".join(parts), citations, model)


def _citation(number: int, one: Found) -> Citation:
    return Citation(number, one.title, one.section, one.url, one.revision, one.score, one.passage)


def _place(one: Found) -> str:
    return f"{one.title}: {one.section}" if one.section else one.title
