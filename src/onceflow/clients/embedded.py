"""The embedded model: picks the sentences that say most of a text. It cannot invent.

Each sentence is scored by how near its vector is to the mean of all (what the text is about), plus
a bonus for standing early that a short line does not get in full; the best are given in their
order. Both weights were chosen on news with reference summaries: more bonus comes ever nearer to
"the first three sentences", less of it misses what a headline would say.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from onceflow.clients.embed import word_vectors
from onceflow.clients.sentences import sentences
from onceflow.clients.text import strip_markup

if TYPE_CHECKING:
    from onceflow.clients.llm import Finish, Request, Usage

CHARS_MAX = 400_000
SENTENCE_CHARS_MAX = 1_000
SENTENCES_DEFAULT = 3
EARLY_WEIGHT = 0.6
EARLY_SENTENCES = 3.0
FULL_WORDS = 25  # a sentence of this many words gets the whole bonus
SAME = 0.95  # two sentences nearer than this say the same

_CODE = re.compile(r"[{}]|->|[=<>!]=|::|&&|\|\||[;]$|\w\(\)$")
_INSTRUCTION = re.compile(r"^[^\n]{0,400}:[ \t]*\n")


class EmbeddedModel:
    """Answers every request with sentences of the given text; it takes no other instruction."""

    name = "embedded"
    context_tokens: int | None = None
    writes = False

    async def stream(self, request: Request) -> AsyncIterator[str | Usage | Finish]:
        from onceflow.clients.llm import Finish, Usage, tokens_about

        text = request.data or _without_instruction(request.prompt)
        loop = asyncio.get_running_loop()
        picked = await loop.run_in_executor(_thread(), summary, text, request.words)
        said = 0
        for number, sentence in enumerate(picked):
            part = sentence if number == 0 else f" {sentence}"
            said += len(part)
            yield part
            await asyncio.sleep(0)  # a watcher gets each sentence as it comes
        yield Usage(tokens_about(len(text)), tokens_about(said), estimated=True, cost=0.0)
        yield Finish("stop")

    async def close(self) -> None:
        return None


@cache
def _thread() -> ThreadPoolExecutor:
    """One text at a time: two would only fight over the interpreter lock."""
    return ThreadPoolExecutor(1, thread_name_prefix="embedded-model")


def summary(text: str, words: int | None = None) -> list[str]:
    """The sentences that say most of `text`, in its order: three, or about `words` words."""
    import numpy as np

    candidates = list(_candidates(strip_markup(text[:CHARS_MAX])))
    if len(candidates) <= 1:
        return candidates
    vectors = word_vectors(candidates)
    middle = vectors.mean(axis=0)
    central = vectors @ middle
    counts = np.array([len(sentence.split()) for sentence in candidates])
    early = np.exp(-np.arange(len(candidates)) / EARLY_SENTENCES)
    bonus = early * np.minimum(1.0, counts / FULL_WORDS)
    scores = central / max(float(central.max()), 1e-9) + EARLY_WEIGHT * bonus
    picked: list[int] = []
    total = 0
    for index in np.argsort(-scores, kind="stable").tolist():
        if words is None and len(picked) == SENTENCES_DEFAULT:
            break
        if words is not None and picked and total + counts[index] > words:
            continue
        if picked and float((vectors[picked] @ vectors[index]).max()) > SAME:
            continue
        picked.append(index)
        total += int(counts[index])
    return [candidates[index] for index in sorted(picked)]


def _candidates(text: str) -> Iterator[str]:
    """Whole sentences first of all, those that begin as one and are no code; lines without an end
    (headings, menus) only if nothing else."""
    found = [s[:SENTENCE_CHARS_MAX].strip() for s in sentences(text)]
    found = list(dict.fromkeys(s for s in found if re.search(r"\w", s)))
    whole = [s for s in found if s[-1] in ".!?…。！？\"'”’»)" and _long_enough(s)]  # noqa: RUF001
    clean = [s for s in whole if not s[0].islower() and not _CODE.search(s)]
    for some in (clean, whole):
        if len(some) >= SENTENCES_DEFAULT:
            return iter(some)
    return iter(found)


def _long_enough(sentence: str) -> bool:
    return len(sentence.split()) >= 4 or (not sentence.isascii() and len(sentence) >= 12)


def _without_instruction(prompt: str) -> str:
    """`Summarize:\\n<text>` asks about the text, not about the word."""
    match = _INSTRUCTION.match(prompt)
    return prompt[match.end() :] if match else prompt
