"""Text from outside, made fit for a terminal; times and durations for people."""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
import unicodedata
from datetime import datetime
from pathlib import Path

from onceflow.core.transition import words_of

CHARS_SHOWN_MAX = 300
ESCAPE = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f]).{0,2000}?(?:\x07|\x1b\\|\x9c)"  # OSC and its kin
    r"|(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"  # CSI: colours, cursor
    r"|\x1b.?",
    re.DOTALL,
)
SECRET = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s/:@?#]*:)[^\s/?#]*@", re.IGNORECASE)
SECRET_FIELD = re.compile(r"(?P<before>\b\w*passw(?:or)?d=)[^&\s\"']+", re.IGNORECASE)
UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))
"""Control and format characters (right-to-left marks too), surrogates, unassigned ones."""
UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def plain(text: object, most: int = CHARS_SHOWN_MAX) -> str:
    """One bounded line of visible characters, whatever a page, a key or an error contains."""
    raw = str(text)[: most * 20 + 1000]
    shown = "".join(
        " " if unicodedata.category(c) in ("Zl", "Zp") or c in "\t\n\r\v\f" else c
        for c in ESCAPE.sub("", raw)
        if c in "\t\n\r\v\f" or unicodedata.category(c) not in UNSEEN
    )
    return cut(" ".join(shown.split()), most)


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"


def cut_middle(text: str, most: int) -> str:
    """The beginning and the end, which tell addresses apart."""
    if len(text) <= most:
        return text
    end = max(0, (most - 1) // 2)
    return text[: most - 1 - end] + "…" + text[len(text) - end :]


def masked(text: str) -> str:
    """Without the password of any address in it."""
    return SECRET_FIELD.sub(r"\g<before>***", SECRET.sub(r"\g<before>***@", text))


def raised(error: BaseException) -> str:
    """What an exception says, and the line of the handler's own code where it came from."""
    words = words_of(error)
    not_its_own = (
        "<", sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), f"{sys.base_prefix}/lib",
        str(Path(__file__).parents[1]),
    )  # fmt: skip
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(not_its_own)
    ]  # fmt: skip
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{words and f': {words}'}{where}"


def clock(ms: int | None) -> str:
    """A time of the database, in the local time zone."""
    if ms is None:
        return "-"
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """A duration in at most two units."""
    if seconds < 0.0005:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, length, below, small in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= length:
            rest = whole % length // small
            return (
                f"{whole // length} {unit} {rest} {below}" if rest else f"{whole // length} {unit}"
            )
    return f"{whole} s"


def ago(now: int, then: int | None) -> str:
    return "-" if then is None else f"{span(max(0, now - then) / 1000)} ago"


def seconds_of(text: str) -> float:
    """The seconds of a duration such as `90`, `90s`, `15 min`, `12h`, `30d`; ValueError if none."""
    found = DURATION.fullmatch(text)
    if found is None or (found[2] and found[2].lower() not in UNITS):
        raise ValueError(text)
    return float(found[1]) * UNITS.get(found[2].lower(), 1)


def many(count: int, noun: str) -> str:
    """`1 item`, `1,200 items`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
