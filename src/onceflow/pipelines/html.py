"""HTML built from values: whatever is not `Html` already is escaped."""

from __future__ import annotations

import re
from html import escape
from typing import Any

NOT_SHOWN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What no HTML document may hold."""
TITLE_CHARS = 120
OF_SVG = frozenset({"rect", "circle", "path"})
ALONE = OF_SVG | {"meta", "br"}


class Html(str):
    """Text that is HTML, made here."""

    __slots__ = ()


def safe(value: Any) -> Html:
    """A value as HTML."""
    if isinstance(value, Html):
        return value
    if isinstance(value, (list, tuple)):
        return Html("".join(safe(one) for one in value))
    return Html("" if value is None else escape(NOT_SHOWN.sub("\ufffd", str(value))))


def tag(element: str, /, *inside: Any, **attributes: Any) -> Html:
    """One element. `class_` is `class`; a `_` within a name is a `-`; None leaves one out."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if element in ALONE:
        return Html(f"<{element}{words}{'/' if element in OF_SVG else ''}>")
    return Html(f"<{element}{words}>{safe(inside)}</{element}>")


def outside(text: Any, element: str = "span", **attributes: Any) -> Html:
    """Somebody else's text: its direction is its own, and its long words wrap."""
    return tag(element, text, dir="auto", **{"class_": "outside", **attributes})


def web_link(text: str, url: str) -> Html:
    """A link, if it leads to the web; else only its text."""
    text = text if len(text) <= TITLE_CHARS else f"{text[:TITLE_CHARS]}…"
    if not url.startswith(("http://", "https://")):
        return outside(text or url)
    return tag(
        "a", text or url, href=url, rel="noopener noreferrer nofollow", dir="auto", class_="outside"
    )
