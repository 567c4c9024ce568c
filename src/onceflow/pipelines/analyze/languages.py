"""What is known of languages: their plainest words, and the questions of customers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FALLBACK = "en"


@dataclass(frozen=True, slots=True)
class Language:
    """One language. Empty lists where nothing is known of it."""

    code: str
    stop: frozenset[str]
    articles: frozenset[str]
    """What stands before nouns; empty where that tells nothing."""
    audience: tuple[str, ...]
    audience_after: str
    positive: frozenset[str]
    negative: frozenset[str]
    negation: frozenset[str]
    templates: Mapping[str, Sequence[str]]


@cache
def _file() -> dict[str, dict[str, object]]:
    text = (files("onceflow.pipelines.analyze") / "languages.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def generic() -> frozenset[str]:
    """What every site has, and no site is about."""
    return frozenset(str(_file()["every"]["generic"]).split())


@cache
def common() -> frozenset[str]:
    """Words that begin with a large letter and are no names."""
    return frozenset(str(_file()["every"]["common"]).split())


@cache
def codes() -> tuple[str, ...]:
    """The languages that are known."""
    return tuple(code for code in _file() if code != "every")


@cache
def language(code: str) -> Language:
    """A language; one that is not known has no words of its own."""
    found = _file().get(code, {})

    def words(name: str) -> list[str]:
        return str(found.get(name, "")).split()

    templates = found.get("templates", {})
    assert isinstance(templates, dict)
    return Language(
        code,
        frozenset(words("stop")),
        frozenset(words("articles")),
        tuple(dict.fromkeys(words("audience"))),
        str(found.get("audience_after", "")),
        frozenset(words("positive")),
        frozenset(words("negative")),
        frozenset(words("negation")),
        templates,
    )
