"""Several addresses of one page: which item has the page, and which only point to it.

A redirect or a `rel=canonical` shows that two items are one page, but only after both were
accepted. Each scrape therefore stores a mark of the page's own address as an alias of its item.
The store keeps an alias with the first item that had it, in the transaction that ends the scrape:
that item has the page, in whatever order and in whichever processes the scrapes end.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from onceflow import Flow, Item, Work
from onceflow.core.errors import UnknownItem
from onceflow.core.item import Phase

MARK = "http://page.invalid/"
"""No such host can exist (RFC 2606), so a mark is never the address of a page."""
WORDS_COMPARED = 2000
RUN_OF_WORDS = 4
ALIKE = 0.8
"""The least share of common runs of words that makes two texts one page."""


def mark_of(address: str) -> str:
    """The alias under which the item that has this page is found."""
    return MARK + blake2b(address.encode(errors="replace"), digest_size=16).hexdigest()


def address_of(url: str, named: str | None) -> str:
    """A page's own address: what it calls itself, else where it was found.

    Some sites call every page by the address of their front page; that is not believed.
    """
    if named is None or (_is_front(named) and not _is_front(url)):
        return url
    return named


def _is_front(url: str) -> bool:
    parts = urlsplit(url)
    return parts.path in ("", "/") and not parts.query


@dataclass(slots=True)
class Pages:
    """Asks the database who has a page. Without a flow every item has its own."""

    flow: Flow | None = None

    async def owner(self, work: Work) -> Item | None:
        """Another item that has this work's page, and is not given up; None if this one has it."""
        mine: dict[str, Any] = work.input
        address = mine.get("address")
        if self.flow is None or not address:
            return None
        try:
            item = await self.flow.item(work.pipeline, mark_of(address))
        except UnknownItem:
            return None
        if item.key == work.key or item.phase in (Phase.FAILED, Phase.CANCELLED):
            return None
        other = await self.flow.result(item.id, "scrape")
        # It may have moved since it was found there.
        if not isinstance(other, dict) or other.get("address") != address:
            return None
        return (
            item if other.get("url") == mine["url"] or alike(other["text"], mine["text"]) else None
        )


def alike(one: str, other: str) -> bool:
    """Whether two texts are one page's, but for its date, its advertisements and the like."""
    if one == other:
        return True
    first, second = _runs(one), _runs(other)
    return len(first & second) >= ALIKE * max(1, len(first | second))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = text.split(maxsplit=WORDS_COMPARED)[:WORDS_COMPARED]
    last = max(1, len(words) - RUN_OF_WORDS + 1)
    return {tuple(words[at : at + RUN_OF_WORDS]) for at in range(last)}
