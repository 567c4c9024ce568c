"""The profile as a model sees it: one call, its answer checked field by field."""

from __future__ import annotations

import json
from typing import Any

from onceflow.clients import Llm
from onceflow.clients.llm import Usage
from onceflow.pipelines.analyze.shapes import Info, SiteAnalysis, Topic

MATERIAL_CHARS_MAX = 12_000
PASSAGES_SHOWN = 20
TOPICS_MAX = 20
PROMPT = (
    "Below is what a program found on a website: a draft of its profile, and passages of its pages."
    " Mend the draft. Keep to what the passages say, in the language of the site; add nothing that"
    ' is not there. Answer with one JSON object and nothing else: {"name": what the site or its'
    ' owner is called, "tagline": one sentence, "offers": up to 12 short noun phrases, "audience":'
    ' up to 6 short noun phrases, "topics": up to 20 objects {"topic": a short noun phrase as a'
    ' customer would say it, "weight": 0 to 1}, the weightiest first}.'
)


def material(site: SiteAnalysis) -> str:
    """What the model is given."""
    info = site["extractedInfo"]
    draft = {
        "name": info["name"],
        "tagline": info["tagline"],
        "offers": info["offers"],
        "audience": info["audience"],
        "topics": info["topics"],
        "pages": [page["title"] for page in info["pages"]],
    }
    step = max(1, len(site["passages"]) // PASSAGES_SHOWN)
    shown = [one["text"] for one in site["passages"][::step]][:PASSAGES_SHOWN]
    text = json.dumps(draft, ensure_ascii=False) + "\n\n" + "\n\n".join(shown)
    return text[:MATERIAL_CHARS_MAX]


async def refined(
    site: SiteAnalysis, llm: Llm, *, idempotency_key: str
) -> tuple[SiteAnalysis, Usage]:
    """The analysis with the model's fields in it, and what that cost."""
    fields, usage = await llm.json(
        PROMPT, data=material(site), check=checked, idempotency_key=idempotency_key
    )
    info: Info = {**site["extractedInfo"], **fields}  # type: ignore[typeddict-item]  # checked
    return {
        **site,
        "extractedInfo": info,
        "method": f"rules+{llm.name}",
        "tokens": usage.tokens,
        "cost": usage.cost,
    }, usage


def checked(answer: Any) -> dict[str, Any]:
    """The fields of a profile; ValueError says what does not fit."""
    if not isinstance(answer, dict):
        raise ValueError("it must be one JSON object")
    return {
        "name": _text(answer, "name", 80),
        "tagline": _text(answer, "tagline", 300),
        "offers": _texts(answer, "offers", 12),
        "audience": _texts(answer, "audience", 6),
        "topics": _topics(answer.get("topics")),
    }


def _text(answer: dict[str, Any], name: str, most: int) -> str:
    value = answer.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is missing or empty")
    if len(value) > most:
        raise ValueError(f"{name} has {len(value):,} characters; at most {most}")
    return " ".join(value.split())


def _texts(answer: dict[str, Any], name: str, most: int) -> list[str]:
    value = answer.get(name)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{name} must be a list of texts")
    if any(len(one) > 100 for one in value):
        raise ValueError(f"{name} must be short noun phrases, of at most 100 characters")
    return list(dict.fromkeys(" ".join(one.split()) for one in value if one.strip()))[:most]


def _topics(value: Any) -> list[Topic]:
    if not isinstance(value, list) or not value:
        raise ValueError("topics must be a list with at least one topic")
    found: dict[str, Topic] = {}
    for one in value:
        if not isinstance(one, dict) or not isinstance(one.get("topic"), str):
            raise ValueError('each topic must be an object with "topic" and "weight"')
        weight = one.get("weight")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise ValueError("each weight must be a number from 0 to 1")
        name = " ".join(one["topic"].split())
        if not name or len(name) > 100:
            raise ValueError("each topic must be a short noun phrase, of at most 100 characters")
        found.setdefault(name.lower(), {"topic": name, "weight": round(float(weight), 3)})
    ordered = sorted(found.values(), key=lambda one: -one["weight"])
    return ordered[:TOPICS_MAX]
