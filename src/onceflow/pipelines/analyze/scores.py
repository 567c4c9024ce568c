"""How well a site's own pages answer the prompts, how visible it is, and what to mend next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from onceflow.clients import Embedder
from onceflow.pipelines.analyze.languages import language
from onceflow.pipelines.analyze.mentions import tally
from onceflow.pipelines.analyze.shapes import (
    INTENTS,
    Answer,
    Coverage,
    Prompt,
    Score,
    ScoreOf,
    Scores,
    SiteAnalysis,
    Todo,
)
from onceflow.pipelines.analyze.words import fold, words_of

HOW_WEIGHT = {"brand": 1.0, "domain": 1.0, "link": 0.4, "none": 0.0}
TONE_WEIGHT = {"positive": 1.0, "neutral": 0.9, "negative": 0.4, None: 0.9}
POSITION_WEIGHT = 0.5
"""What is named at the very end counts half of what is named at the beginning."""
BRANDED_WEIGHT = 0.5
"""Who asks for the site by name makes it easy to name it."""

NEAR, FAR = 0.62, 0.12
"""Cosines of the embedded model between which a passage goes from answering to having nothing to do
with a question; measured on the sites of the tests."""
MEANING_SHARE, WORDS_SHARE, KIND_SHARE = 0.6, 0.3, 0.1
WEAK, FAIR = 0.35, 0.6
"""Below the first nothing answers a question, below the second something does in part."""
TODO_MAX = 12
PASSAGE_CHARS_MAX = 600
_FITTING = {
    "learn": ("article", "documentation", "about", "home"),
    "compare": ("product", "article", "pricing", "documentation"),
    "choose": ("product", "article", "pricing", "home", "documentation"),
    "buy": ("pricing", "product"),
    "help": ("help", "contact", "documentation"),
}


async def coverage(
    site: SiteAnalysis, prompts: Sequence[Prompt], embedder: Embedder
) -> list[Coverage]:
    """For each prompt the passage that answers it best, and how well it does."""
    passages = site["passages"]
    pages = site["extractedInfo"]["pages"]
    if not passages or not prompts:
        return [{"prompt": one["n"], "score": 0.0, "page": None, "passage": ""} for one in prompts]
    said = await embedder.embed([one["text"] for one in passages])
    # The words of the question are the same for every subject: what is asked about counts as much.
    asked = await embedder.embed([one["text"] for one in prompts])
    subjects = await embedder.embed([one["topic"] for one in prompts])
    words = [{fold(word) for word in words_of(one["text"])} for one in passages]
    texts = [one["text"].lower() for one in passages]
    found: list[Coverage] = []
    for at, prompt in enumerate(prompts):
        near = 0.35 * (said @ asked[at]) + 0.65 * (said @ subjects[at])
        stop = language(prompt["language"]).stop
        wanted = {fold(word) for word in words_of(prompt["topic"]) if word.lower() not in stop}
        best, best_score = 0, -1.0
        for number, passage in enumerate(passages):
            meaning = min(1.0, max(0.0, (float(near[number]) - FAR) / (NEAR - FAR)))
            common = _share(wanted, words[number], texts[number])
            kind = float(pages[passage["page"]]["kind"] in _FITTING[prompt["intent"]])
            score = MEANING_SHARE * meaning + WORDS_SHARE * common + KIND_SHARE * kind
            if score > best_score:
                best, best_score = number, score
        text = passages[best]["text"][:PASSAGE_CHARS_MAX]
        found.append(
            {
                "prompt": prompt["n"],
                "score": round(best_score, 3),
                "page": passages[best]["page"],
                "passage": text,
            }
        )
    return found


def _share(wanted: set[str], words: set[str], text: str) -> float:
    """How many of a subject's words a passage has. Without spaces between words: of its text."""
    if not wanted:
        return 0.0
    return sum(word in words or (not word.isascii() and word in text) for word in wanted) / len(
        wanted
    )


def visibility_of(answer: Answer) -> float:
    """How visible the site is in one answer, 0 to 1."""
    position = 1.0 - POSITION_WEIGHT * (answer["position"] or 0.0)
    return HOW_WEIGHT[answer["how"]] * position * TONE_WEIGHT[answer["tone"]]


def scores(
    prompts: Sequence[Prompt], answers: Sequence[Answer], covered: Sequence[Coverage]
) -> Scores:
    """The tables, and the one number."""
    by_number = {one["n"]: one for one in prompts}
    topics = list(dict.fromkeys(one["topic"] for one in prompts))
    models = list(dict.fromkeys(one["model"] for one in answers))

    def visible(of: Iterable[Answer]) -> float | None:
        total = weights = 0.0
        for answer in of:
            weight = BRANDED_WEIGHT if by_number[answer["prompt"]]["branded"] else 1.0
            total += weight * visibility_of(answer)
            weights += weight
        return round(100 * total / weights, 1) if weights else None

    def line(of: ScoreOf, fits: Callable[[Prompt], bool], model: str | None = None) -> Score:
        mine = {one["n"] for one in prompts if fits(one)}
        said = [one for one in answers if one["prompt"] in mine and model in (None, one["model"])]
        return {
            **of,
            "prompts": len(mine),
            "visibility": visible(said),
            "coverage": _mean(one["score"] for one in covered if one["prompt"] in mine),
            "mentioned": sum(one["mentioned"] for one in said),
            "answers": len(said),
        }

    by_model: list[Score] = []
    for model in models:
        of_model = [one for one in answers if one["model"] == model]
        costs = [one["cost"] for one in of_model if one["cost"] is not None]
        of: ScoreOf = {"model": model, "tokens": sum(one["tokens"] for one in of_model)}
        of["cost"] = round(sum(costs), 6) if costs else None
        by_model.append(line(of, lambda one: True, model))
    intents = {one["intent"] for one in prompts}
    return {
        "visibility": visible(answers),
        "coverage": _mean(one["score"] for one in covered),
        "byTopic": [line({"topic": one}, _of_topic(one)) for one in topics],
        "byIntent": [line({"intent": one}, _of_intent(one)) for one in INTENTS if one in intents],
        "byModel": by_model,
    }


def _of_topic(topic: str) -> Callable[[Prompt], bool]:
    return lambda one: one["topic"] == topic


def _of_intent(intent: str) -> Callable[[Prompt], bool]:
    return lambda one: one["intent"] == intent


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return round(100 * sum(found) / len(found), 1) if found else 0.0


# --- what to do ---


def todo(
    site: SiteAnalysis,
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    covered: Sequence[Coverage],
) -> list[Todo]:
    """What to write or mend next, what helps most questions first."""
    score = {one["prompt"]: one for one in covered}
    named = {one["prompt"] for one in answers if one["mentioned"]}
    asked = {one["prompt"] for one in answers}
    weak: dict[str, list[Prompt]] = {}
    fair: dict[int, list[Prompt]] = {}
    unseen: dict[int, list[Prompt]] = {}
    for prompt in prompts:
        found = score.get(prompt["n"])
        if found is None or found["page"] is None or found["score"] < WEAK:
            weak.setdefault(prompt["topic"], []).append(prompt)
        elif found["score"] < FAIR:
            fair.setdefault(found["page"], []).append(prompt)
        elif prompt["n"] in asked and prompt["n"] not in named and not prompt["branded"]:
            unseen.setdefault(found["page"], []).append(prompt)
    made: list[tuple[float, Todo]] = []
    pages = site["extractedInfo"]["pages"]
    for topic, mine in weak.items():
        best = max((score[one["n"]]["score"] for one in mine if one["n"] in score), default=0.0)
        made.append(
            (
                3.0 * len(mine),
                {
                    "what": f"Write a page about {topic}",
                    "why": f"{_many(len(mine), 'question')} about it, and no page answers "
                    f"{'it' if len(mine) == 1 else 'them'}: the best passage fits to "
                    f"{best:.0%}",
                    "prompts": [one["n"] for one in mine],
                    "pages": _near(mine),
                },
            )
        )
    for page, mine in fair.items():
        title = pages[page]["title"]
        least = min(mine, key=lambda one: score[one["n"]]["score"])
        topics = " and ".join(dict.fromkeys(one["topic"] for one in mine[:3]))
        made.append(
            (
                1.5 * len(mine),
                {
                    "what": f"Say more about {topics} on “{title}”",
                    "why": f"the page answers {_many(len(mine), 'question')} only in part, least "
                    f"well ({score[least['n']]['score']:.0%}): {least['text']}",
                    "prompts": [one["n"] for one in mine],
                    "pages": [page],
                },
            )
        )
    for page, mine in unseen.items():
        numbers = {one["n"] for one in mine}
        others = tally(one["others"] for one in answers if one["prompt"] in numbers)[:3]
        instead = ", ".join(one["name"] for one in others)
        made.append(
            (
                2.0 * len(mine),
                {
                    "what": f"Make “{pages[page]['title']}” known: it has the answer, and nobody "
                    "names it",
                    "why": f"{_many(len(mine), 'question')} that it answers, asked without the "
                    "name, and no assistant named the site"
                    + (f"; named instead: {instead}" if instead else ""),
                    "prompts": [one["n"] for one in mine],
                    "pages": [page],
                },
            )
        )
    made += _upkeep(site)
    made.sort(key=lambda one: -one[0])
    return [one for _, one in made[:TODO_MAX]]


def _near(prompts: Sequence[Prompt]) -> list[int]:
    return list(dict.fromkeys(page for one in prompts for page in one["pages"]))[:3]


def _upkeep(site: SiteAnalysis) -> list[tuple[float, Todo]]:
    """What every question gains from."""
    info = site["extractedInfo"]
    pages = info["pages"]
    made: list[tuple[float, Todo]] = []

    def add(weight: float, what: str, why: str, mine: Sequence[int] = ()) -> None:
        made.append((weight, {"what": what, "why": why, "prompts": [], "pages": list(mine)[:20]}))

    if not info["structuredData"]["types"]:
        add(2.5, "Describe the site in JSON-LD (schema.org): its organization, offers and articles",
            "no page has structured data, which programs read before they read sentences",
            range(len(pages)))  # fmt: skip
    if not info["tagline"]:
        add(2.0, "Give the home page a description",
            "it says nowhere in one sentence what the site is for", [0])  # fmt: skip
    undated = [
        at for at, page in enumerate(pages) if page["kind"] == "article" and not page["date"]
    ]
    if undated:
        add(1.0 + 0.2 * len(undated), f"Date {_many(len(undated), 'article')}",
            "what is known to be current is preferred", undated)  # fmt: skip
    thin = [at for at, page in enumerate(pages) if page["words"] < 80 and page["kind"] != "contact"]
    if thin:
        add(0.8 + 0.15 * len(thin), f"Say more on {_many(len(thin), 'page')} with hardly any text",
            "fewer than 80 words that a program can read", thin)  # fmt: skip
    contacts = info["contacts"]
    if not any(contacts.values()):
        add(0.9, "Say on the site how you can be reached",
            "no e-mail address, telephone number or address was found")  # fmt: skip
    return made


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
