"""Somebody else's text in Markdown of ours."""

from __future__ import annotations

import re
from typing import Any

SPECIAL = re.compile(r"([\\`*_\[\]<>|~&])")
AT_START = re.compile(r"^(\d{0,9})([-+=#.)])")


def plain_text(text: Any) -> str:
    """Somebody else's text as text: nothing in it is taken for Markdown or HTML."""
    return AT_START.sub(r"\1\\\2", SPECIAL.sub(r"\\\1", " ".join(str(text or "").split())))


def link(title: Any, url: str) -> str:
    target = re.sub(r"[\s<>\\]", lambda match: f"%{ord(match[0]):02X}", url)
    return f"[{plain_text(title) or plain_text(url)}](<{target}>)"
