"""What a report says, worked out from the three results alone; `report_md` and `report_html`
write it down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onceflow.pipelines.analyze.shapes import (
    INTENTS,
    Answer,
    Coverage,
    Info,
    ModelAnalysis,
    Prompt,
    Prompts,
    Score,
    SiteAnalysis,
    SitePage,
)

EXCERPT_CHARS = 280
COMPETITORS_MAX = 15
PAGES_MAX = 4
"""How many pages are named with one thing to do."""
GOOD, FAIR = 60.0, 35.0
"""From where on a score is good, or fair."""
INTENT_WORDS = {
    "learn": "Learning about it",
    "compare": "Comparing",
    "choose": "Choosing",
    "buy": "Buying",
    "help": "Getting help",
}


@dataclass(frozen=True, slots=True)
class Competitor:
    """Somebody else whom the assistants name."""

    name: str
    answers: int
    """In how many answers."""
    models: int


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with what was said to it and what the site itself says."""

    prompt: Prompt
    answers: Sequence[Answer]
    coverage: Coverage | None
    page: SitePage | None
    """Where the best passage is."""

    @property
    def mentioned(self) -> int:
        return sum(answer["mentioned"] for answer in self.answers)

    @property
    def covered(self) -> float:
        """0 to 100."""
        return 0.0 if self.coverage is None else self.coverage["score"] * 100


@dataclass(frozen=True, slots=True)
class Report:
    site: SiteAnalysis
    prompts: Prompts
    analysis: ModelAnalysis
    when: str | None = None
    """When the last result was stored, for people."""
    questions: Sequence[Question] = ()
    competitors: Sequence[Competitor] = ()
    findings: Sequence[str] = ()
    """What a reader in a hurry should know, as plain sentences."""
    notes: Sequence[str] = ()
    limits: Sequence[str] = ()
    """What this report does not know, said plainly."""
    tables: Mapping[str, Sequence[tuple[str, Score]]] = field(default_factory=dict)
    """By model, intent and topic, each line with its name."""

    @property
    def info(self) -> Info:
        return self.site["extractedInfo"]

    @property
    def name(self) -> str:
        return self.info["name"] or host_of(self.site["site"])

    @property
    def asked(self) -> bool:
        return self.analysis["asked"]

    @property
    def visibility(self) -> float | None:
        return self.analysis["scores"]["visibility"]

    @property
    def coverage(self) -> float:
        return self.analysis["scores"]["coverage"]


def report_of(
    site: SiteAnalysis, prompts: Prompts, analysis: ModelAnalysis, when: str | None = None
) -> Report:
    """The report of one website."""
    pages = site["extractedInfo"]["pages"]
    coverage = {one["prompt"]: one for one in analysis["coverage"]}
    answers: dict[int, list[Answer]] = {}
    for answer in analysis["answers"]:
        answers.setdefault(answer["prompt"], []).append(answer)
    questions = [
        Question(
            prompt,
            answers.get(prompt["n"], ()),
            coverage.get(prompt["n"]),
            page_at(pages, (coverage.get(prompt["n"]) or {"page": None})["page"]),
        )
        for prompt in prompts["prompts"]
    ]
    scores = analysis["scores"]
    tables = {
        "model": [(line.get("model", ""), line) for line in scores["byModel"]],
        "intent": [
            (INTENT_WORDS.get(line.get("intent", ""), line.get("intent", "")), line)
            for line in sorted(scores["byIntent"], key=_place_of_intent)
        ],
        "topic": [(line.get("topic", ""), line) for line in scores["byTopic"]],
    }
    named = competitors(analysis["answers"])
    return Report(
        site,
        prompts,
        analysis,
        when,
        questions,
        named,
        _findings(site, analysis, questions, named, tables),
        _notes(site, prompts, analysis),
        _limits(site, prompts, analysis),
        tables,
    )


def _notes(site: SiteAnalysis, prompts: Prompts, analysis: ModelAnalysis) -> list[str]:
    """What a reader should know first, but for what the cover says anyway."""
    every = dict.fromkeys([*site["notes"], *prompts["notes"], *analysis["notes"]])
    return [note for note in every if not note.lower().startswith("no assistant was asked")]


def _place_of_intent(line: Score) -> int:
    intent = line.get("intent", "")
    return INTENTS.index(intent) if intent in INTENTS else len(INTENTS)


def competitors(answers: Iterable[Answer]) -> list[Competitor]:
    """Whom the answers name beside the site, by how many answers name them."""
    spelled: dict[str, Counter[str]] = {}
    said: Counter[str] = Counter()
    models: dict[str, set[str]] = {}
    for answer in answers:
        for key in {other["name"].casefold() for other in answer["others"]}:
            said[key] += 1
            models.setdefault(key, set()).add(answer["model"])
        for other in answer["others"]:
            spelled.setdefault(other["name"].casefold(), Counter())[other["name"]] += 1
    found = [
        Competitor(spelled[key].most_common(1)[0][0], count, len(models[key]))
        for key, count in said.items()
    ]
    return sorted(found, key=lambda one: (-one.answers, one.name))[:COMPETITORS_MAX]


def _findings(
    site: SiteAnalysis,
    analysis: ModelAnalysis,
    questions: Sequence[Question],
    named: Sequence[Competitor],
    tables: Mapping[str, Sequence[tuple[str, Score]]],
) -> list[str]:
    name = site["extractedInfo"]["name"] or host_of(site["site"])
    found: list[str] = []
    answers = analysis["answers"]
    if analysis["asked"] and answers:
        said = sum(answer["mentioned"] for answer in answers)
        found.append(f"{name} is named in {said} of {many(len(answers), 'answer')}.")
        unbranded = [
            answer for one in questions if not one.prompt["branded"] for answer in one.answers
        ]
        if unbranded and len(unbranded) < len(answers):
            said = sum(answer["mentioned"] for answer in unbranded)
            found.append(
                f"Where the question does not name it, it is named in {said} of {len(unbranded)}."
            )
        if named:
            others = ", ".join(one.name for one in named[:3])
            found.append(f"Named most beside it: {others}.")
    elif not analysis["asked"]:
        found.append(
            "No assistant was asked: this report says how well the site's own pages answer."
        )
    good = [one for one in questions if one.covered >= GOOD]
    if questions:
        found.append(
            f"The site's own pages answer {len(good)} of {many(len(questions), 'question')} well."
        )
    lines = [line for line in tables["intent"] if line[1]["prompts"]]
    if len(lines) > 1:
        best = max(lines, key=lambda line: line[1]["coverage"])
        worst = min(lines, key=lambda line: line[1]["coverage"])
        if best[1]["coverage"] - worst[1]["coverage"] >= 5:
            found.append(
                f"Its texts are strongest on “{best[0].lower()}” ({best[1]['coverage']:.0f}) and "
                f"weakest on “{worst[0].lower()}” ({worst[1]['coverage']:.0f})."
            )
    return found


def _limits(site: SiteAnalysis, prompts: Prompts, analysis: ModelAnalysis) -> list[str]:
    limits = site["limits"]
    found = [
        f"{many(limits['read'], 'page')} were read, {limits['pages']} at the most; "
        "what stands on the others is not known here."
        if limits["read"] != 1
        else "One page was read; what stands on others is not known here."
    ]
    if limits["refused"]:
        found.append(f"{many(limits['refused'], 'page')} could not be read.")
    if not analysis["asked"]:
        found.append(
            "No assistant was asked, so nothing is known about visibility. Name assistants with "
            "--model to ask them."
        )
    else:
        found.append(
            "Each question was asked once. Assistants answer differently from day to day, from "
            "place to place and from version to version: read the numbers as a sample, not as a "
            "rank."
        )
        found.append(
            "Names are found in the answers by rules; a name that is an ordinary word, or a "
            "company that was bought, may be counted wrongly."
        )
    if prompts["settings"]["fallback"]:
        found.append(
            "There are no question templates for the site's language: the questions are English."
        )
    found.append(
        "How well a passage answers is a likeness of meaning, computed; nobody has judged it."
    )
    return found


# --- words ---


def page_at(pages: Sequence[SitePage], at: int | None) -> SitePage | None:
    return pages[at] if at is not None and 0 <= at < len(pages) else None


def host_of(url: str) -> str:
    return url.split("://", 1)[-1].split("/", 1)[0]


def many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def verdict(score: float | None) -> str:
    if score is None:
        return "not asked"
    shown = round(score)  # as it is printed beside
    return "good" if shown >= GOOD else "fair" if shown >= FAIR else "weak"


def excerpt(answer: Answer, chars_max: int = EXCERPT_CHARS) -> str:
    """The part of an answer where the site is named; its beginning if it is not."""
    text = " ".join(answer["text"].split())
    if len(text) <= chars_max:
        return text
    middle = int((answer["position"] or 0.0) * len(text))
    start = max(0, min(middle - chars_max // 3, len(text) - chars_max))
    cut = text[start : start + chars_max]
    return ("… " if start else "") + cut.strip() + ("" if start + chars_max >= len(text) else " …")


METHOD = (
    "The site was read as a visitor reads it, politely: its home page, its sitemap and feeds, and "
    "a bounded choice of pages.",
    "From its texts come its topics, and from these the questions that a customer might ask an "
    "assistant, with and without the name of the site.",
    "Visibility (0 to 100): an answer that names the site counts 1, less the later and the less "
    "kindly it is named, and less if it only links to it; then the average over all answers, in "
    "which questions that name the site count half.",
    "Coverage (0 to 100): how well the best passage on the site answers a question, by meaning, "
    "over all questions.",
)
