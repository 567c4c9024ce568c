"""The results of the three stages, as they are stored and as a report reads them.

Optional fields are absent or None where nothing is known; lists may be empty; nothing else may be
missing. `pages` and `prompts` are referred to by number: a page by its place in
`extractedInfo.pages` (from 0), a prompt by its `n` (from 1). Shares and scores of one thing are 0
to 1, scores that are shown to people 0 to 100.
"""

from __future__ import annotations

from typing import Literal, TypedDict

Intent = Literal["learn", "compare", "choose", "buy", "help"]
INTENTS: tuple[Intent, ...] = ("learn", "compare", "choose", "buy", "help")
How = Literal["brand", "domain", "link", "none"]
Tone = Literal["positive", "neutral", "negative"]


# --- website-analysis ---


class Topic(TypedDict):
    topic: str
    weight: float
    """0 to 1, the heaviest topic is 1."""


class Language(TypedDict):
    code: str
    """As in ISO 639-1: en, de, ja …"""
    share: float
    """Of the words that were read."""


class Contacts(TypedDict):
    emails: list[str]
    phones: list[str]
    addresses: list[str]


class Profile(TypedDict):
    """A profile of the site at a social network."""

    network: str
    url: str


class TypeCount(TypedDict):
    type: str
    count: int


class StructuredData(TypedDict):
    types: list[TypeCount]
    """JSON-LD types, the most frequent first."""
    openGraph: dict[str, str]
    """Of the home page: `title`, `type`, `description`, `site_name`, `image` …"""


class Freshness(TypedDict):
    newest: str | None
    """A date, YYYY-MM-DD."""
    oldest: str | None
    dated: int
    """How many of the pages say when they were written."""


PageKind = Literal[
    "home", "product", "pricing", "article", "documentation", "help", "about", "contact", "legal",
    "listing", "other",
]  # fmt: skip


class SitePage(TypedDict):
    url: str
    title: str
    kind: PageKind
    language: str | None
    words: int
    date: str | None


class Info(TypedDict):
    """`extractedInfo`: what the site says about itself."""

    name: str
    tagline: str
    offers: list[str]
    audience: list[str]
    topics: list[Topic]
    languages: list[Language]
    countries: list[str]
    """As in ISO 3166-1: DE, US …"""
    contacts: Contacts
    social: list[Profile]
    technologies: list[str]
    structuredData: StructuredData
    freshness: Freshness
    pages: list[SitePage]


class Passage(TypedDict):
    """A piece of a page, long enough to answer a question."""

    page: int
    text: str


class Limits(TypedDict):
    pages: int
    """The most that one attempt may ask for."""
    read: int
    """How many pages were read."""
    refused: int
    """How many were asked for and could not be read."""


class SiteAnalysis(TypedDict):
    """What `website-analysis` stores."""

    site: str
    extractedInfo: Info
    method: str
    """`rules`, or `rules+MODEL` where a model refined it."""
    notes: list[str]
    """What a person should know first: "redirects to another site", "no text" …"""
    passages: list[Passage]
    limits: Limits
    tokens: int
    cost: float | None


# --- prompt-forming ---


class Prompt(TypedDict):
    """One question that a customer might ask an assistant."""

    n: int
    text: str
    intent: Intent
    topic: str
    branded: bool
    """Whether the question names the site."""
    language: str
    reason: str
    """Why the site ought to be part of the answer."""
    pages: list[int]


class PromptSettings(TypedDict):
    prompts: int
    """How many were wanted."""
    language: str
    fallback: bool
    """There are no templates for the site's language; English was used."""


class Prompts(TypedDict):
    """What `prompt-forming` stores."""

    prompts: list[Prompt]
    settings: PromptSettings
    method: str
    """`templates`, or `templates+MODEL`."""
    notes: list[str]
    tokens: int
    cost: float | None


# --- model-analysis ---


class Other(TypedDict):
    """Somebody else whom an answer names."""

    name: str
    count: int


class Answer(TypedDict):
    """What one model said to one prompt, and what of it concerns the site."""

    prompt: int
    model: str
    text: str
    mentioned: bool
    how: How
    """How the site is named at best: by its brand, its domain, a link only, or not at all."""
    position: float | None
    """Where it is named first: 0 is the beginning of the answer, 1 its end."""
    rank: int | None
    """Which of the named ones it is: 1 if nobody is named before it."""
    tone: Tone | None
    others: list[Other]
    tokens: int
    cost: float | None


class Coverage(TypedDict):
    """How well the site's own pages answer a prompt."""

    prompt: int
    score: float
    page: int | None
    passage: str


class ScoreOf(TypedDict, total=False):
    """Of what a line of a table is: one of the first three."""

    topic: str
    intent: str
    model: str
    tokens: int
    """With a model only."""
    cost: float | None


class Score(ScoreOf):
    """A line of a table."""

    prompts: int
    visibility: float | None
    """0 to 100; None where no assistant was asked."""
    coverage: float
    mentioned: int
    """In how many answers the site is named."""
    answers: int


class Scores(TypedDict):
    visibility: float | None
    coverage: float
    byTopic: list[Score]
    byIntent: list[Score]
    byModel: list[Score]


class Todo(TypedDict):
    """What to write or mend next, the most useful first."""

    what: str
    why: str
    prompts: list[int]
    pages: list[int]


class Brand(TypedDict):
    """What counts as the site being named."""

    names: list[str]
    domains: list[str]


class ModelAnalysis(TypedDict):
    """What `model-analysis` stores."""

    asked: bool
    """False: no assistant was asked, there is the coverage part only."""
    models: list[str]
    brand: Brand
    answers: list[Answer]
    coverage: list[Coverage]
    scores: Scores
    todo: list[Todo]
    notes: list[str]
    tokens: int
    cost: float | None
