"""Grow a graph of articles from seed titles: load each one, then follow its links.

`discovered` -> `claimed` -> `loaded` -> `processed`, claimed by depth, then age. Seeds have depth
0, the articles they link to depth 1, and so on; a shorter way that is found later counts. A
redirect costs no depth and makes no article of its own.
"""

from __future__ import annotations

import asyncio
import base64
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from onceflow import Done, Pause, Permanent, Pipeline, Stage, Transient, Work
from onceflow.clients import Article, Embedder
from onceflow.clients._batches import Batches
from onceflow.clients.text import clean
from onceflow.core.pipeline import GATE_KEY
from onceflow.core.transition import KEY_CHARS_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "expand"
LOAD = "load"
LINK = "link"
AT_ONCE = 100
"""Articles that one process has under way: two requests of 50 titles."""
TEXT_BYTES_MAX = 8_000_000
LINK_BYTES_MAX = 4_000_000
"""What is kept of one article, so that it fits into one stored result."""
CALM_SECONDS_MAX = 60.0
RELEVANCE = 0.15
OF_A_TITLE = frozenset(
    ("not_found", "invalid_title", "not_an_article", "disambiguation", "redirect_loop",
     "wiki_error", "too_large")
)  # fmt: skip
"""Failures that another title would not meet; all others pause the stage instead of failing it."""
WAY_ON = {
    "not_installed": "then go on",
    "wiki_refused": "the wiki must let this client read, or choose another with --wiki",
    "blocked_address": "",  # the error says it itself
    "name_not_found": "is there a network, and is --wiki the address of its api.php?",
}


_PLAIN = re.compile(r"[A-Za-z0-9(),.'!&-]+(?: [A-Za-z0-9(),.'!&-]+)*")


class Wiki(Protocol):
    """What gives articles: `onceflow.clients.Wikipedia`, or a script of your own."""

    async def load(self, title: str) -> Article: ...

    async def revisions(self, titles: Iterable[str]) -> dict[str, int | None]: ...


class NoWiki:
    """For programs that only look at articles, or work on other pipelines."""

    async def load(self, title: str) -> Article:
        raise Pause("this program was started without a wiki; stop it, or give it a --contact")

    async def revisions(self, titles: Iterable[str]) -> dict[str, int | None]:
        return dict.fromkeys(titles)


@dataclass(frozen=True)
class Expand:
    """The handlers, and what they need from outside.

    `categories` and `about` keep an expansion on its subject: the links of an article that has none
    of these categories, or is not like this text (`relevance`: -1 to 1), are not followed. The
    seeds' always are.
    """

    wiki: Wiki = field(default_factory=NoWiki)
    embedder: Embedder = field(default_factory=Embedder)
    categories: Sequence[str] = ()
    about: str | None = None
    relevance: float = RELEVANCE
    lease_seconds: float = 300.0
    backoff_seconds: float = 5.0
    at_once: int = AT_ONCE
    _state: _State = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_state", _State(self.wiki))

    async def load(self, work: Work) -> Done:
        """The article with its sections, their vectors, its categories and links: one result."""
        before = await work.result(LOAD) if work.generation > 1 else None
        state = self._state
        try:
            await state.calm()
            if isinstance(before, dict) and await self._is_unchanged(work.key, before):
                return Done({**before, "unchanged": True})
            article = await self.wiki.load(work.key)
        except Transient as error:
            state.hold(error.hold_lane_seconds)  # it means all titles, not this one
            raise
        except Permanent as error:
            if error.code in OF_A_TITLE:
                raise
            what = str(error).rstrip(".")
            way = WAY_ON.get(error.code, "is --wiki the address of its api.php?")
            raise Pause(f"{what}; {way}" if way else what, code=error.code) from error
        title = titled(article.title)
        names = [name for name in possible(article.redirects) if name != title]
        whole = await self._whole(article, title, names)
        if title == work.key:
            return Done(whole, aliases=names)
        # A title that leads elsewhere: the article takes it in, or is there already.
        led = [name for name in dict.fromkeys((work.key, *names)) if name != title]
        return Done(
            {**whole, "redirects": led},
            aliases=names,
            key=title,
            taken=Done({"title": title, "same_as": title, "redirects": led, "links": []}),
        )

    async def link(self, work: Work) -> Done:
        """Its links are new articles, one deeper, within the run's budgets."""
        article = work.input if isinstance(work.input, dict) else {}
        if same := article.get("same_as"):
            return Done({"links": 0, "followed": 0, "depth": work.depth, "same_as": same},
                        peers=[same])  # fmt: skip
        links = possible(article.get("links"))
        result: dict[str, Any] = {"links": len(links), "followed": len(links), "depth": work.depth}
        if work.depth and (off := await self._off_subject(article)):
            return Done({**result, "followed": 0, "off_subject": off})
        return Done(result, children=links)

    async def _is_unchanged(self, key: str, before: Mapping[str, Any]) -> bool:
        """Whether the wiki still has the revision that is stored, and its vectors are this
        model's. A title that leads elsewhere is always looked at anew."""
        if before.get("embed_model") != self.embedder.name:
            return False
        newest = await self._state.newest(key)
        return newest is not None and newest == before.get("revision")

    async def _whole(self, article: Article, title: str, names: list[str]) -> dict[str, Any]:
        cut = set(article.cut)
        sections: list[dict[str, Any]] = []
        room = TEXT_BYTES_MAX
        for n, one in enumerate(article.sections):
            text = clean(one.text)
            room -= len(text.encode()) + len(one.heading)
            if room < 0:
                cut.add("sections")
                break
            sections.append({"n": n, "level": one.level, "heading": one.heading,
                             "anchor": one.anchor, "text": text, "vector": ""})  # fmt: skip
        said = [one for one in sections if one["text"].strip()]
        texts = ["\n".join(filter(None, (title, one["heading"], one["text"]))) for one in said]
        if texts:
            vectors = await self.embedder.embed(texts)
            for each, vector in zip(said, vectors, strict=True):
                each["vector"] = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        links: list[str] = []
        room = LINK_BYTES_MAX
        for link in possible(article.links):
            room -= len(link.encode())
            if room < 0:
                cut.add("links")
                break
            links.append(link)
        return {
            "title": title,
            "page_id": article.page_id,
            "revision": article.revision,
            "url": article.url,
            "redirects": names,
            "categories": [clean(name) for name in article.categories],
            "sections": sections,
            "links": links,
            "embed_model": self.embedder.name,
            **({"cut": sorted(cut)} if cut else {}),
        }

    async def _off_subject(self, article: Mapping[str, Any]) -> str:
        """Why the links of an article are not followed; empty if they are."""
        if self.categories:
            names = [_category(name) for name in article.get("categories") or ()]
            wanted = [_category(name) for name in self.categories]
            if not any(fnmatchcase(name, each) for name in names for each in wanted):
                return f"in none of the categories {', '.join(self.categories)}"
        if self.about:
            score = await self._relevance(article, self.about)
            if score < self.relevance:
                return f"relevance {score:.2f}, below {self.relevance:g}"
        return ""

    async def _relevance(self, article: Mapping[str, Any], about: str) -> float:
        """How near the nearest section of an article is to a text: its cosine."""
        import numpy as np

        sections = article.get("sections") or ()
        if article.get("embed_model") == self.embedder.name:
            rows = [np.frombuffer(base64.b64decode(one["vector"]), "<f4") for one in sections
                    if one.get("vector")]  # fmt: skip
        else:
            texts = [one["text"] for one in sections if one.get("text")]
            rows = list(await self.embedder.embed(texts)) if texts else []
        if not rows:
            return -1.0
        target = await self._state.vector(self.embedder, about)
        return float((np.vstack(rows) @ target).max())

    def pipeline(self) -> Pipeline:
        return Pipeline(
            NAME,
            Stage(
                LOAD,
                self.load,
                ready="discovered",
                active="claimed",
                processors=self.at_once,
            ),
            Stage(LINK, self.link, ready="loaded", active="loaded", spreads=True),
            done="processed",
            failed="failed",
            lease_seconds=self.lease_seconds,
            backoff_seconds=self.backoff_seconds,
            canonical=titled,
        )


class _State:
    """What the handlers of one process share."""

    def __init__(self, wiki: Wiki) -> None:
        self._calm_until = 0.0
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._newest: Batches[str, int | None] = Batches(
            wiki.revisions, at_once=2, wait_seconds=0.002
        )

    async def newest(self, title: str) -> int | None:
        return await self._newest.get(title)

    def hold(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        if seconds > 0:
            self._calm_until = max(self._calm_until, now + min(seconds, CALM_SECONDS_MAX))

    async def calm(self) -> None:
        """Ask a wiki that wants to be left alone for a while no sooner."""
        await asyncio.sleep(max(0.0, self._calm_until - asyncio.get_running_loop().time()))

    async def vector(self, embedder: Embedder, text: str) -> NDArray[np.float32]:
        if text not in self._vectors:
            self._vectors[text] = (await embedder.embed([text]))[0]
        return self._vectors[text]


def titled(text: str) -> str:
    """A title as a wiki spells it, of a title or of the address of its page. The first letter stays
    as it is: what it should be the wiki says when the article is loaded."""
    if _PLAIN.fullmatch(text):  # most are, and every link of every article comes through here
        return text
    if text.strip().startswith(("https://", "http://")) and "/wiki/" in text:
        text = unquote(text.partition("/wiki/")[2].partition("?")[0])
    text = unicodedata.normalize("NFC", clean(text)).partition("#")[0]
    return " ".join(text.replace("_", " ").split())


def possible(titles: Any) -> list[str]:
    """Those that can be items, each once: one odd link must not keep an article from the others."""
    given = titles if isinstance(titles, list | tuple) else ()
    spelled = dict.fromkeys(titled(each) for each in given if isinstance(each, str))
    return [
        title
        for title in spelled
        if 0 < len(title) <= KEY_CHARS_MAX and not title.startswith(GATE_KEY)
    ]


def _category(name: str) -> str:
    name = titled(name)
    return (name.partition(":")[2] if name.lower().startswith("category:") else name).casefold()
