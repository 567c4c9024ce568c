"""Text into sentences, by rules that hold for most languages with punctuation."""

from __future__ import annotations

import re

# A sentence ends at . ! ? … (and closing quotes), white space, and something that can begin one;
# or at the full-width marks, which need no space behind them.
_END = re.compile(
    r"(?<=[.!?…])[\"'”’»)\]]{0,3}[ \t]+(?=[\"'“‘«(\[¿¡]{0,3}[^\W_a-zà-öø-ÿа-яё])|(?<=[。！？])"  # noqa: RUF001 - the marks themselves
)
# Not an end: titles, common abbreviations, single initials; and before a number, "No." and such.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[\"'“])(?:Mr|Mrs|Ms|Dr|Prof|Rev|Hon|Gen|Col|Capt|Lt|Sgt|Sr|Jr|St|Mt|vs|etc|cf"
    r"|approx|Inc|Ltd|Corp|Co|Bros|Jan|Feb|Apr|Aug|Sept?|Oct|Nov|Dec|Abs|Bd|bzw|ca|Hr|Fr|Sra?|Mme"
    r"|Mlle|e\.g|i\.e|z\.B|d\.h|u\.a|(?:[A-Z]\.)*[A-Z])\.$"
)
_NUMBERED = re.compile(r"(?:^|[\s(])(?:Nos?|Nr|Art|Figs?|Sec|Ch|Vol|Eq|pp?)\.$")
_LIST_MARK = re.compile(r"^\s{0,8}(?:[-*+•]|#{1,6}|>|\d{1,3}[.)])\s+")


def sentences(text: str, *, count_max: int = 5000) -> list[str]:
    """The sentences of a text in order. A line break ends a sentence: a heading is one."""
    found: list[str] = []
    for line in text.split("\n"):
        line = " ".join(_LIST_MARK.sub("", line).split())
        if not line:
            continue
        start = 0
        for end in _END.finditer(line):
            before = max(start, end.start() - 16), end.start()
            if _ABBREVIATION.search(line, *before):
                continue
            if line[end.end() : end.end() + 1].isdigit() and _NUMBERED.search(line, *before):
                continue
            found.append(line[start : end.end()].strip())
            start = end.end()
        if line[start:].strip():
            found.append(line[start:].strip())
        if len(found) >= count_max:
            return found[:count_max]
    return found
