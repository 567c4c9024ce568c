"""From a wiki page's source to sections of plain text."""

import pytest

from onceflow.clients import wikitext as module
from onceflow.clients.wikitext import Section, sections, tells_apart


def text(source: str) -> str:
    parts, _ = sections(source)
    return "\n\n".join(part.text for part in parts)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'''Bold''' and ''italic'' and '''''both'''''.", "Bold and italic and both."),
        ("A [[link]], [[target|words]], [[a|b]]s.", "A link, words, bs."),
        ("See [[:Category:Things]].", "See Category:Things."),
        ("Fact.<ref name=a>Source [[x]]</ref> More.<ref name=a />", "Fact. More."),
        ("Born {{birth date|1900|1|1}} ({{lang|de|Wort}}).", "Born (Wort)."),
        ("It is {{convert|5|km}} long.", "It is 5 km long."),
        ("Name ({{IPA|x}}, {{IPA|y}}) is.", "Name is."),
        ("{{Infobox\n| name = {{nested|[[x]]}}\n| b = 2\n}}\nProse.", "Prose."),
        ("Before\n{| class=x\n! a\n|-\n| {{b}} || [[c]]\n|}\nafter", "Before\nafter"),
        ("x\n{|\n|\n{|\n| inner\n|}\n| outer\n|}\ny", "x\ny"),
        ("[[File:A.jpg|thumb|A [[caption]] here]]Text", "Text"),
        ("[[Datei:B.png|mini|Bild]]Text", "Text"),
        ("Text\n[[Category:Things]]\n[[Kategorie:Dinge]]", "Text"),
        ("See [https://a.example the site] and [https://b.example].", "See the site and."),
        ("1 &lt; 2 &amp; 3&nbsp;m", "1 < 2 & 3 m"),
        ("one<br>two<br/>three", "one\ntwo\nthree"),
        ("<div style='x'>In <b>a</b> box</div>", "In a box"),
        ("a<!-- secret -->b\n<!-- line -->\nc <!-- unclosed", "ab\nc"),
        ("* one\n** two\n# three\n: four", "one\ntwo\nthree\nfour"),
        ("<gallery>\nA.jpg|x\n</gallery>Text<math>x^2</math>", "Text"),
        ("__NOTOC__ Text [1] in brackets", "Text [1] in brackets"),
        ("a\n\n\n\nb", "a\n\nb"),
        ("\x1b[31mred\x1b[0m \x00nul", "red nul"),
        ("<script>alert(1)</script>x", "x"),
    ],
)
def test_plain_text(source: str, expected: str) -> None:
    assert text(source) == expected


def test_sections_with_their_levels_and_anchors() -> None:
    source = (
        "Lead.\n"
        "== First ==\none\n"
        "=== Of ''it'' [[x|y]] ===\ntwo\n"
        "==First== <!-- again -->\nthree\n"
        "=Top=\n"
        "== first ==\n"
        "<nowiki>\n== No heading ==\n</nowiki>\n"
        "== A == B ==\nfour\n"
        "==  ==\n"
    )
    parts, cut = sections(source)
    assert [(one.level, one.heading, one.anchor) for one in parts] == [
        (0, "", ""),
        (2, "First", "First"),
        (3, "Of it y", "Of_it_y"),
        (2, "First", "First_2"),
        (1, "Top", "Top"),
        (2, "first", "first_3"),
        (2, "A == B", "A_==_B"),
    ]
    assert parts[0] == Section(0, "", "", "Lead.")
    assert not cut


def test_a_category_prefix_of_the_wiki_is_known_from_its_categories() -> None:
    parts, _ = sections("Text [[Luokka:Asiat]]", category_prefixes=["Luokka"])
    assert parts[0].text == "Text"


def test_a_page_that_tells_articles_apart() -> None:
    for source in (
        "{{Disambig}}",
        "x {{ disambiguation |geo}}",
        "{{Begriffsklärung}}",
        "__DISAMBIG__",
    ):
        assert tells_apart(source), source
    assert tells_apart("", ["Disambiguation pages"])
    assert not tells_apart(
        "{{Disambiguation needed}} {{About|x}}", ["Pages that need disambiguation"]
    )


# Repeated up to 40,000 characters.
HOSTILE = {
    "templates": "{{",
    "template arguments": "{{a|",
    "arguments": "{{{",
    "links": "[[",
    "link texts": "[[a|",
    "both": "{{[[",
    "references": "<ref>",
    "tags": "<b><i>",
    "cut tags": "<b <i ",
    "attributes": "<a b='",
    "tables": "{|\n|",
    "web links": "[http://a ",
    "addresses": "http://a ",
    "quotes": "'",
    "entities": "&amp",
    "comments": "<!--",
    "closed comments": "<!---->",
    "headings": "=a",
    "empty headings": "==\n",
    "definitions": ";a:",
    "spaces": " \n",
    "brackets": "(",
    "converters": "-{",
    "nowiki": "<nowiki>",
    "crossed": "{{a|[[b|}}",
    "empty": "{{}}[[]]",
    "lines": "{{a\n|b=[[c\n]]\n}}",
}
WHOLE = {
    "nested": "{{a|" * 3000 + "x" + "}}" * 3000,
    "deep": "{{a|[[b|" * 3000 + "]]}}" * 3000,
    "equals": "{{a" + "=b" * 20_000 + "}}",
    "bars": "{{a" + "|" * 10_000 + "}}",
    "triples": "{{{a|" * 4000 + "}}}" * 4000,
    "web": "[[http://a [[b]] ]]" * 2000,
    **{name: part * (40_000 // len(part)) for name, part in HOSTILE.items()},
}


@pytest.mark.parametrize("name", WHOLE)
def test_no_source_takes_endless_time(name: str) -> None:
    """Each takes a fraction of a second; the parser alone takes minutes for some."""
    parts, _ = sections(WHOLE[name])
    assert parts


def test_what_is_too_much_is_cut_and_said() -> None:
    parts, cut = sections("".join(f"== S{number} ==\n" for number in range(5000)))
    assert len(parts) == module.SECTIONS_MAX
    assert cut
    parts, cut = sections("word " * 100_000)
    assert len(parts[0].text) <= module.SECTION_CHARS_MAX
    assert cut


def test_past_its_time_the_rest_is_read_without_the_parser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PARSE_SECONDS_MAX", -1.0)
    monkeypatch.setattr(module, "_parse", None)
    assert text("'''A''' [[link|word]] and [[other]] {{gone}}") == "A word and other gone"
