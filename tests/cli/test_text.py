"""What comes from outside is shown as harmless, bounded text."""

import json
from collections.abc import Callable

import pytest

from onceflow.commands.text import ago, many, masked, plain, raised, seconds_of, span


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;new title\x07after", "after"),
        ("\x1b]8;;http://evil.test\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("bell\x07 back\x08space", "bell backspace"),
        ("two\nlines\tand\ttabs", "two lines and tabs"),
        ("line\u2028separator", "line separator"),
        ("\u202eright to left\u202c", "right to left"),
        ("zero\u200bwidth", "zerowidth"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("unfinished \x1b[", "unfinished"),
        ("unfinished \x1b]0;title", "unfinished 0;title"),
    ],
)
def test_control_characters_and_escapes_are_removed(raw: str, shown: str) -> None:
    assert plain(raw) == shown


def test_text_is_bounded_however_long_it_is() -> None:
    assert plain("x" * 10_000_000, 10) == "xxxxxxxxx…"
    assert plain("\x1b" * 10_000_000) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("at postgres://me:se:cr@et@host/db!", "at postgres://me:***@host/db!"),
        ("postgresql://host/db?password=secret&x=1", "postgresql://host/db?password=***&x=1"),
        ("https://a.test/a:b@c", "https://a.test/a:b@c"),
    ],
)
def test_a_password_in_an_address_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.25, "250 ms"), (3.21, "3.2 s"), (42, "42 s"), (60, "1 min"),
     (125, "2 min 5 s"), (7384, "2 h 3 min"), (200_000, "2 d 7 h")],
)  # fmt: skip
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert span(seconds) == text
    assert ago(int(seconds * 1000), 0) == f"{text} ago"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5h", 5400), ("15 min", 900), ("30d", 2_592_000), ("2W", 1_209_600)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-5d", "1x", "1d2h", "inf", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller says what is wrong with it
        seconds_of(text)


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_is_told_with_the_line_of_the_handler() -> None:
    def handler(text: str) -> None:
        json.loads(text)  # raises deep inside of somebody else's code

    def told(error: type[Exception], act: Callable[[], object]) -> str:
        with pytest.raises(error) as caught:
            act()
        return raised(caught.value)

    def wordless() -> None:
        raise Wordless

    line = handler.__code__.co_firstlineno + 1
    assert told(ValueError, lambda: handler("{")) == (
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 "
        f"(char 1) (test_text.py, line {line})"
    )
    assert told(Wordless, wordless).startswith("Wordless (test_text.py, line ")
    assert raised(ValueError("bad")) == "ValueError: bad"


def test_nouns_agree_with_their_numbers() -> None:
    assert [many(count, "item") for count in (0, 1, 1200)] == ["0 items", "1 item", "1,200 items"]
