"""The articles of `expand` as they are committed, and which of them changed since."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceflow import Flow
from onceflow.core.item import Phase
from onceflow.core.transition import clean, decode

NAME = "expand"
LOAD, LINK = "load", "link"
BATCH = 200
"""Articles that are read and stored at once."""
EVENTS_MAX = 5000
"""Events that one batch of changes is gathered from."""
LAG_MAX = 100_000
"""Events behind are counted up to here."""
NUMBER_MAX = 2**63 - 1
SECTIONS_MAX = 2**31 - 1
DIMENSIONS_MAX = 16_000
"""The most that pgvector takes."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a loaded article; number 0 is the lead."""

    n: int
    level: int
    heading: str
    anchor: str
    text: str
    vector: bytes = b""
    """Little-endian float32; empty where there is no text."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded of an article, in one generation of it."""

    item: int
    generation: int
    at: int
    title: str
    page_id: int
    revision: int
    url: str
    names: tuple[str, ...]
    """Every title that leads here."""
    categories: tuple[str, ...]
    sections: tuple[Section, ...]
    links: tuple[str, ...]
    embed_model: str
    same_as: str = ""
    """The article whose name this title turned out to be: it is none of its own."""
    unchanged: bool = False
    """It was looked at again, and is as it was in the generation before."""


@dataclass(frozen=True, slots=True)
class Article:
    """Where an article is on its way."""

    id: int
    title: str
    stage: str
    phase: str
    state: str
    depth: int
    claimed_at: int | None
    updated_at: int
    retry_count: int
    """How many of its attempts failed, at the stage where it is."""
    error: str | None


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a projection is behind what is committed."""

    events: int = 0
    seconds: float = 0.0
    """How long ago the oldest of them was committed."""
    more: bool = False
    """There are more than were counted."""


@dataclass(frozen=True, slots=True)
class Change:
    """The articles that changed up to an event; those that were loaded among them."""

    seq: int
    items: tuple[int, ...]
    loaded: tuple[int, ...]


async def changes(flow: Flow, after: int) -> AsyncGenerator[Change, None]:
    """What changed after a `seq`, in batches, in the order of the commits."""
    items: dict[int, None] = {}
    loaded: dict[int, None] = {}
    seq = count = 0
    async for event in flow.events(after=after, pipeline=NAME):
        seq = event.seq
        count += 1
        if event.item is not None and not (event.key or "").startswith("gate:"):
            items[event.item] = None
            if event.stage == LOAD and event.kind not in ("added", "claimed"):
                loaded[event.item] = None
        if len(loaded) >= BATCH or count >= EVENTS_MAX:
            yield Change(seq, tuple(items), tuple(loaded))
            items, loaded, count = {}, {}, 0
    if count:
        yield Change(seq, tuple(items), tuple(loaded))


async def lag_after(flow: Flow, seq: int) -> Lag:
    """How many events a projection that has seen `seq` has not seen yet."""
    now = (await flow.store.read("now"))[0]["now"]
    first: int | None = None
    count = 0
    async for event in flow.events(after=seq, pipeline=NAME):
        first = event.at if first is None else first
        count += 1
        if count >= LAG_MAX:
            break
    seconds = 0.0 if first is None else max(0, now - first) / 1000
    return Lag(count, seconds, count >= LAG_MAX)


async def articles(flow: Flow, ids: Iterable[int]) -> list[Article]:
    """Where these articles are now."""
    states = await states_of(flow)
    rows = await flow.store.read("items_by_id", ids=json.dumps(list(ids)))
    return [article_of(row, states) for row in rows if row["pipeline"] == NAME]


async def states_of(flow: Flow) -> Mapping[str, Mapping[str, str]]:
    """The public name of each (stage, phase)."""
    for row in await flow.store.read("pipelines"):
        if row["name"] == NAME:
            found: dict[str, dict[str, str]] = json.loads(row["states"])
            return found
    return {}


def state_of(states: Mapping[str, Mapping[str, str]], row: Mapping[str, Any]) -> str | None:
    """The state of articles at a (stage, phase); None for what is no article."""
    stage, phase = row["stage"], row["phase"]
    if stage not in (LOAD, LINK):
        return None
    return states.get(stage, {}).get(phase) or f"{stage}/{phase}"


def article_of(row: Mapping[str, Any], states: Mapping[str, Mapping[str, str]]) -> Article:
    stage, phase = row["stage"], row["phase"]
    is_claimed = stage == LOAD and phase == Phase.ACTIVE
    tried = row["attempt"] - (phase in (Phase.ACTIVE, Phase.DONE))
    return Article(
        id=row["id"],
        title=row["key"],
        stage=stage,
        phase=phase,
        state=state_of(states, row) or f"{stage}/{phase}",
        depth=row["depth"],
        claimed_at=row["claimed_at"] if is_claimed else None,
        updated_at=row["updated_at"],
        retry_count=max(0, tried),
        error=row["error"],
    )


async def loaded(flow: Flow, ids: Sequence[int]) -> list[Loaded]:
    """What was loaded of these articles, the newest generation of each; some may have nothing."""
    found: list[Loaded] = []
    if not ids:
        return found
    keys = {
        row["id"]: row["key"]
        for row in await flow.store.read("items_by_id", ids=json.dumps(list(ids)))
        if row["pipeline"] == NAME
    }
    wanted = json.dumps(list(keys))
    for row in await flow.store.read("results_by_id", ids=wanted, stage=LOAD):
        body = decode(bytes(row["body"]))
        if isinstance(body, dict):
            found.append(_loaded(row, keys[row["item"]], body))
    return found


def _loaded(row: Mapping[str, Any], key: str, body: Mapping[str, Any]) -> Loaded:
    """Bodies come from programs of all kinds: what is not of the shape is passed over, so that no
    article keeps the others out of search and graph."""
    same_as = _text(body.get("same_as"))
    own = [key] if same_as else [key, _text(body.get("title")) or key]
    names = dict.fromkeys([*own, *texts(body.get("redirects"))])
    sections = {
        one.n: one for one in map(_section, listed(body.get("sections"))) if one is not None
    }
    return Loaded(
        item=row["item"],
        generation=row["generation"],
        at=row["at"],
        title=key,
        page_id=number(body.get("page_id")) or 0,
        revision=number(body.get("revision")) or 0,
        url=_text(body.get("url")),
        names=tuple(names),
        categories=tuple(dict.fromkeys(texts(body.get("categories")))),
        sections=tuple(sections.values()),
        links=tuple(dict.fromkeys(texts(body.get("links")))),
        embed_model=_text(body.get("embed_model")) or "embedded",
        same_as=same_as,
        unchanged=bool(body.get("unchanged")),
    )


def _section(one: Any) -> Section | None:
    n = number(one.get("n"), SECTIONS_MAX) if isinstance(one, dict) else None
    if n is None:
        return None
    return Section(
        n=n,
        level=number(one.get("level"), SECTIONS_MAX) or 0,
        heading=_text(one.get("heading")),
        anchor=_text(one.get("anchor")),
        text=_text(one.get("text")),
        vector=_vector(one.get("vector")),
    )


def _vector(value: Any) -> bytes:
    """Nothing, if it is not a vector of numbers."""
    try:
        found = base64.b64decode(value or "", validate=True)
        numbers = struct.unpack(f"<{len(found) // 4}f", found)
    except (TypeError, ValueError, struct.error):
        return b""
    return found if len(numbers) <= DIMENSIONS_MAX and math.isfinite(sum(numbers)) else b""


def number(value: Any, most: int = NUMBER_MAX) -> int | None:
    """A number of a stored result; None if it is none."""
    return value if type(value) is int and 0 <= value <= most else None


def _text(value: Any) -> str:
    return clean(value) if isinstance(value, str) else ""


def texts(values: Any) -> list[str]:
    """The texts in a list of a stored result."""
    return [text for text in map(_text, listed(values)) if text]


def listed(values: Any) -> list[Any]:
    """A list of a stored result; empty if it is none."""
    return values if isinstance(values, list) else []
