"""The questions that a customer would ask an assistant, for which the site ought to be part of the
answer: by intent and topic, with and without the brand, in the site's language."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onceflow.clients import Embedder
from onceflow.pipelines.analyze.languages import FALLBACK, language
from onceflow.pipelines.analyze.profile import sells
from onceflow.pipelines.analyze.shapes import INTENTS, Info, Intent, Prompt, Prompts, SiteAnalysis
from onceflow.pipelines.analyze.words import fold, words_of

PROMPTS_LEAST, PROMPTS_MOST = 10, 50
BRANDED_SHARE = 0.25
SAME = 0.97
"""Two questions nearer than this ask the same."""
ALIKE = 0.35
"""From here on two subjects are of one kind, and can be compared."""
PAGES_NAMED = 3

_SHARES: dict[Intent, float] = {
    "learn": 0.3, "compare": 0.15, "choose": 0.2, "buy": 0.15, "help": 0.2,
}  # fmt: skip
_FITTING: dict[Intent, tuple[str, ...]] = {
    "learn": ("article", "documentation", "about"),
    "compare": ("product", "article", "pricing"),
    "choose": ("product", "article", "pricing"),
    "buy": ("pricing", "product"),
    "help": ("help", "contact", "documentation"),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    text: str
    intent: Intent
    topic: str
    branded: bool
    is_offer: bool


async def form(site: SiteAnalysis, *, count: int, embedder: Embedder) -> Prompts:
    """The prompts for a site: the weightiest topics first, spread over the intents."""
    info = site["extractedInfo"]
    code = info["languages"][0]["code"] if info["languages"] else FALLBACK
    known = language(code)
    fallback = not known.templates
    notes = []
    if fallback:
        known = language(FALLBACK)
        notes.append(
            f"there are no questions in the site's language ({code}) yet: these are in English"
        )
    near = await _siblings([one["topic"] for one in info["topics"]], embedder)
    said = "\n".join(one["text"] for one in site["passages"])
    spoken = Spoken(said, known.code)
    candidates = list(dict.fromkeys(_candidates(info, known.templates, near, spoken)))
    chosen = _spread(await _without_same(candidates, embedder), count)
    prompts: list[Prompt] = [
        {
            "n": number,
            "text": one.text,
            "intent": one.intent,
            "topic": one.topic,
            "branded": one.branded,
            "language": known.code,
            "reason": _reason(one, info),
            "pages": _pages(one, site),
        }
        for number, one in enumerate(chosen, start=1)
    ]
    if len(prompts) < count:
        notes.append(
            f"the site has too few subjects for {count} different questions: {len(prompts)} were "
            "formed"
        )
    return {
        "prompts": prompts,
        "settings": {"prompts": count, "language": known.code, "fallback": fallback},
        "method": "templates",
        "notes": notes,
        "tokens": 0,
        "cost": None,
    }


def _candidates(
    info: Info, templates: Mapping[str, Sequence[str]], near: Mapping[str, str], spoken: Spoken
) -> Iterator[Candidate]:
    """Every question that the templates give, in the order of their subjects' weight."""
    brand = info["name"]
    topics = [one["topic"] for one in info["topics"]]
    sold = sells(info)
    way = "sells" if sold else "tells"
    offers = [_inside(offer) for offer in info["offers"]] if sold else []
    subjects = list(dict.fromkeys([*offers, *topics]))
    # Where nobody is helped, asking for help is idle.
    kinds = {page["kind"] for page in info["pages"]}
    helps = bool(kinds & {"help", "documentation", "product", "pricing"})

    def filled(text: str, intent: Intent, topic: str) -> Candidate:
        as_said = spoken.form(topic)
        said = text.replace("{topic}", as_said).replace("{brand}", brand)
        said = said.replace("{other}", spoken.form(near.get(topic, "")))
        return Candidate(said, intent, topic, "{brand}" in text, topic in offers)

    for at in range(max(len(subjects), 1)):
        for intent in INTENTS:
            wanted = offers if intent in ("buy", "choose") and offers else subjects
            for name in (intent, f"{intent}_{way}") if helps or intent != "help" else ():
                for text in templates.get(name, ()) if at < len(wanted) else ():
                    if "{other}" not in text or wanted[at] in near:
                        yield filled(text, intent, wanted[at])
            for name in (f"{intent}_brand", f"{intent}_brand_{way}"):
                for text in templates.get(name, ()):
                    if "{topic}" not in text:
                        if at == 0:
                            yield filled(text, intent, brand)
                    elif at < len(subjects):
                        yield filled(text, intent, subjects[at])


class Spoken:
    """How a subject stands in a sentence: English wants an article before one thing."""

    def __init__(self, text: str, code: str) -> None:
        self._text = text.lower() if code == "en" else ""

    def form(self, topic: str) -> str:
        if not self._text or topic != topic.lower() or not topic.isascii() or not topic:
            return topic
        last = topic.rpartition(" ")[2]
        if last.endswith(("s", "ing")) and not last.endswith(("ss", "us", "is")):
            return topic
        plural = f"{topic[:-1]}ies" if re.search(r"[^aeiou]y$", topic) else f"{topic}s"
        if re.search(r"(?:ch|sh|x|ss)$", topic):
            plural = f"{topic}es"
        word = re.escape(topic)
        counts = {
            before: len(re.findall(rf"\b{before} (?:\w+ )?{word}\b", self._text))
            for before in ("the", "a", "an")
        }
        ones = counts["a"] + counts["an"]
        plurals = len(re.findall(rf"\b{re.escape(plural)}\b", self._text))
        every = len(re.findall(rf"\b{word}\b", self._text)) + plurals
        if plurals * 4 >= every > 0:
            return plural
        if (counts["the"] + ones) * 2 >= every > 0:
            return f"the {topic}"
        return topic  # used without an article: water, sourdough


async def _siblings(topics: Sequence[str], embedder: Embedder) -> dict[str, str]:
    """For each topic the one it could be compared with: near in meaning, and not the same."""
    if len(topics) < 2:
        return {}
    vectors = await embedder.embed(topics)
    near = vectors @ vectors.T
    found: dict[str, str] = {}
    for at, topic in enumerate(topics):
        fitting = [
            (float(near[at, other]), -other)
            for other in range(len(topics))
            if other != at and ALIKE <= near[at, other] < SAME and _differ(topic, topics[other])
        ]
        if fitting:
            found[topic] = topics[-max(fitting)[1]]
    return found


def _inside(offer: str) -> str:
    """An offer as it stands within a sentence: a title's large letters go, a name's stay."""
    words = offer.split()
    if len(words) > 1 and all(word[:1].isupper() and word[1:].islower() for word in words):
        return offer  # as the shop writes the name of its product
    if words and words[0][:1].isupper() and words[0][1:].islower() and len(words) > 1:
        return offer[:1].lower() + offer[1:]
    return offer


def _differ(one: str, other: str) -> bool:
    mine, theirs = ({fold(word) for word in words_of(text)} for text in (one, other))
    return not mine & theirs


async def _without_same(candidates: Sequence[Candidate], embedder: Embedder) -> list[Candidate]:
    """Those of which none asks what an earlier one asks."""
    if not candidates:
        return []
    vectors = await embedder.embed([one.text for one in candidates])
    kept: list[int] = []
    for at in range(len(candidates)):
        near = [
            before
            for before in kept
            if candidates[before].intent == candidates[at].intent
            and candidates[before].branded == candidates[at].branded
        ]
        if near and vectors[at].any() and float((vectors[near] @ vectors[at]).max()) > SAME:
            continue
        kept.append(at)
    return [candidates[at] for at in kept]


def _spread(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """As many as wanted: each intent its share, a quarter with the brand, subjects taking turns."""
    branded_most = max(1, round(count * BRANDED_SHARE))
    left = {intent: max(1, round(count * share)) for intent, share in _SHARES.items()}
    chosen: list[Candidate] = []
    topics: Counter[str] = Counter()

    def fill(rest: list[Candidate], most: int, *, strict: bool) -> None:
        while rest and len(chosen) < count and most > 0:
            fitting = [
                (topics[one.topic], at)
                for at, one in enumerate(rest)
                if not strict or left[one.intent] > 0
            ]
            if not fitting:
                return
            one = rest.pop(min(fitting)[1])
            left[one.intent] -= 1
            most -= 1
            chosen.append(one)
            topics[one.topic] += not one.branded

    named = [one for one in candidates if one.branded]
    # With the name: one of each intent first, then more.
    firsts = [next(one for one in named if one.intent == intent) for intent in INTENTS
              if any(one.intent == intent for one in named)]  # fmt: skip
    fill(firsts, branded_most, strict=True)
    fill([one for one in named if one not in chosen], branded_most - len(chosen), strict=True)
    free = [one for one in candidates if not one.branded]
    fill(list(free), count, strict=True)
    fill([one for one in free if one not in chosen], count, strict=False)
    fill([one for one in named if one not in chosen], count, strict=False)
    order = {intent: at for at, intent in enumerate(INTENTS)}
    return sorted(chosen, key=lambda one: (one.branded, order[one.intent]))[:count]


def _reason(one: Candidate, info: Info) -> str:
    if one.branded and one.topic == info["name"]:
        return {
            "learn": "whoever hears the name asks this first",
            "compare": "whoever knows the site asks what else there is",
            "choose": "the question before a decision",
            "buy": "the question before an order",
            "help": "whoever is a customer already asks this",
        }[one.intent]
    if one.branded:
        return f"whoever knows the site connects it with {one.topic}"
    if one.is_offer:
        return f"{one.topic} is what the site offers"
    weight = next((t["weight"] for t in info["topics"] if t["topic"] == one.topic), 0.0)
    if weight >= 0.5:
        return f"{one.topic} is one of the main subjects of the site"
    return f"the site writes about {one.topic}"


def _pages(one: Candidate, site: SiteAnalysis) -> list[int]:
    """The pages it rests on: where the subject is said most, those that fit the intent first."""
    info = site["extractedInfo"]
    wanted = {fold(word) for word in words_of(one.topic)}
    counts: Counter[int] = Counter()
    for passage in site["passages"]:
        folded = passage["text"].lower()
        counts[passage["page"]] += sum(word in folded for word in wanted)
    for number, page in enumerate(info["pages"]):
        title = {fold(word) for word in words_of(page["title"])}
        counts[number] += 5 * len(wanted & title)
        if counts[number] and page["kind"] in _FITTING[one.intent]:
            counts[number] += 3
    best = [number for number, n in counts.most_common() if n > 0][:PAGES_NAMED]
    return best or ([0] if info["pages"] else [])
