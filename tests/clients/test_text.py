"""Bytes to text (rule R8, cases D01 to D05, D13)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.clients.http import Headers, Page
from onceflow.clients.text import charset_of, clean, decode, is_text, one_line, strip_markup


def test_D01_utf7_is_not_decoded() -> None:
    found = decode(b"+ADw-script+AD4-", "utf-7")
    assert (found.text, found.charset) == ("+ADw-script+AD4-", "utf-8")


@pytest.mark.parametrize(
    "name",
    ["unicode_escape", "rot13", "undefined", "hex", "../../x", "x" * 10_000, "idna", "zip", "\x00"],
)
@pytest.mark.parametrize("where", ["header", "meta"])
def test_D02_odd_charsets_fall_back_to_utf8(name: str, where: str) -> None:
    body = "<p>gr\u00fc\u00df \\u0041</p>".encode()
    if where == "meta":
        body = f'<meta charset="{name}">'.encode() + body
    found = decode(body, name if where == "header" else "")
    assert found.text.endswith("<p>gr\u00fc\u00df \\u0041</p>")
    assert found.charset == "utf-8"


RUSSIAN = "Привет, мир. Это проверка кодировки."


def test_D03_precedence() -> None:
    body = b"<meta charset='utf-8'><p>" + RUSSIAN.encode("cp1251")
    wrong = decode(body, "latin-1")
    assert (wrong.charset, wrong.doubtful) == ("cp1252", True)  # the header counts; it is marked
    right = decode(body, "windows-1251")
    assert right.text.endswith(RUSSIAN)
    from_meta = decode(b"<meta charset=windows-1251><p>" + RUSSIAN.encode("cp1251"))
    assert from_meta.text.endswith(RUSSIAN)
    assert not from_meta.doubtful
    utf8 = decode(RUSSIAN.encode(), "iso-8859-1")
    assert (utf8.text, utf8.doubtful) == (RUSSIAN, False)  # valid UTF-8 is not an accident
    xml = decode(b"<?xml version='1.0' encoding='koi8-r'?>" + RUSSIAN.encode("koi8-r"))
    assert xml.text.endswith(RUSSIAN)


@pytest.mark.parametrize(
    ("body", "declared"),
    [
        ("\ufeffzażółć".encode(), ""),
        ("\ufeff<p>zażółć</p>".encode("utf-16-le"), ""),
        ("\ufeff<p>zażółć</p>".encode("utf-16-be"), ""),
        ("\ufeff<p>zażółć</p>".encode("utf-16-be"), "iso-8859-1"),
        ("<html><p>zażółć</p></html>".encode("utf-16-le"), ""),
        ("<html><p>zażółć</p></html>".encode("utf-16-be"), ""),
        ("<p>zażółć</p>".encode("utf-16-le"), "utf-16"),
        ("<p>zażółć</p>".encode("utf-16-be"), "UTF-16BE"),
    ],
)
def test_D04_utf16_and_marks(body: bytes, declared: str) -> None:
    found = decode(body, declared)
    assert "zażółć" in found.text
    assert not found.text.startswith("\ufeff")
    assert is_text(body)


def test_D05_dirt_is_removed() -> None:
    body = b"a\x00b \xff\xfe overlong \xc0\xaf surrogate \xed\xa0\x80 "
    body += b"end\x7f\x85\r\nnext\rlast\ttab"
    found = decode(body, "utf-8")
    assert found.doubtful
    assert found.text.startswith("ab \ufffd")
    assert found.text.endswith("end\ufffd\nnext\nlast\ttab")
    assert clean("a\ud800b\udfff\x00\u2028c\x9b31mred") == "ab\ncred"


@given(st.binary(max_size=300), st.sampled_from(["", "utf-8", "latin-1", "utf-16", "gbk", "x"]))
def test_D05_any_bytes_give_text_that_both_databases_hold(body: bytes, declared: str) -> None:
    text = decode(body, declared).text
    text.encode()
    assert "\x00" not in text
    assert all(c in "\t\n" or c.isprintable() or ord(c) >= 0xA0 for c in text)


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=200))
def test_cleaning_twice_changes_nothing(text: str) -> None:
    once = clean(text)
    once.encode()
    assert clean(once) == once


def test_D13_terminal_codes_are_removed() -> None:
    assert clean("\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J\x1b[1;1Hdone") == "red done"
    assert one_line("  a\x1b[5m\n b\tc  " + "x" * 600, chars_max=500).startswith("a b c xxx")


def test_D11_titles_are_cut() -> None:
    assert len(one_line("t" * 5_000_000, chars_max=500)) == 500


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("text/html; charset=utf-8", "utf-8"),
        ('text/html;CHARSET="iso-8859-2" ; x=y', "iso-8859-2"),
        ("text/html; charset=", ""),
        ("text/html", ""),
        ("text/html; xcharset=a", ""),
    ],
)
def test_the_charset_of_a_header(header: str, wanted: str) -> None:
    assert charset_of(header) == wanted


def test_a_page_is_decoded_by_its_header() -> None:
    headers = Headers({"Content-Type": "text/html; charset=windows-1251"})
    assert Page("http://a.test/", 200, headers, RUSSIAN.encode("cp1251")).text == RUSSIAN


def test_markup_is_stripped_in_one_pass() -> None:
    page = (
        "<!doctype html><head><title>T</title><style>p{}</style></head><body><h1>A &amp; B</h1>"
        "<SCRIPT>if (a<b) {}</SCRIPT><!-- <p>no</p> --><p>One<br>two</p><p hidden-not>Three</p>"
    )
    assert strip_markup(page) == "A & B\n\nOne\n\ntwo\n\nThree"
    assert strip_markup("a < b and c > d") == "a < b and c > d"
