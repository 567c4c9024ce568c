"""The report: everything in one page, nothing foreign runs or is asked for, every text is text."""

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from onceflow.pipelines.analyze.charts import bar, ring
from onceflow.pipelines.analyze.report import Report, competitors, excerpt, report_of, verdict
from onceflow.pipelines.analyze.report_html import html
from onceflow.pipelines.analyze.report_md import markdown
from onceflow.pipelines.html import safe, tag, web_link

BODIES = json.loads(Path(__file__).with_name("analyze_bodies.json").read_text())
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\x00\ud800"
ARABIC, JAPANESE = "ما هي أفضل دراجة شحن؟", "家族向けのカーゴバイクはどれが良いですか"


@pytest.fixture
def bodies() -> dict[str, Any]:
    return copy.deepcopy(BODIES)


def reported(bodies: dict[str, Any], when: str | None = "16 November 2026") -> Report:
    return report_of(
        bodies["website-analysis"], bodies["prompt-forming"], bodies["model-analysis"], when
    )


def unasked(bodies: dict[str, Any]) -> dict[str, Any]:
    found = bodies["model-analysis"]
    found |= {"asked": False, "models": [], "answers": []}
    found["scores"] |= {"visibility": None, "byModel": []}
    for line in (*found["scores"]["byTopic"], *found["scores"]["byIntent"]):
        line |= {"visibility": None, "mentioned": 0, "answers": 0}
    return bodies


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def evil(value: Any) -> Any:
    """The same results, each text of them an attack."""
    if isinstance(value, dict):
        return {key: evil(one) for key, one in value.items()}
    if isinstance(value, list):
        return [evil(one) for one in value]
    return f"{EVIL}{value}" if isinstance(value, str) else value


def test_the_page_says_what_there_is(bodies: dict[str, Any]) -> None:
    page = Page(html(reported(bodies)))

    assert page.open == []
    for words in (
        "Alder Bikes", "City and cargo bicycles made in Ghent", "16 November 2026",
        "Alder Bikes is named in 8 of 20 answers", "it is named in 2 of 14",
        "Write a page that compares cargo bikes with city bikes", "By assistant", "By topic",
        "Urban Arrow", "Which cargo bike is best for families?", "no. 3",
        "Children can ride along in the box", "WooCommerce", "29",
        "What this report does not know", "Each question was asked once",
    ):  # fmt: skip
        assert words in page.text, words
    labels = [attrs["aria-label"] for name, attrs in page.elements if name == "svg"]
    assert "Visibility: 29 of 100" in labels
    assert "coverage of Comparing: 44 of 100" in labels


def test_nothing_in_it_runs_or_is_asked_for(bodies: dict[str, Any]) -> None:
    text = html(reported(bodies))
    page = Page(text)

    assert {name for name, _ in page.elements} & {
        "script",
        "img",
        "link",
        "iframe",
        "form",
    } == set()
    for name, attrs in page.elements:
        assert not any(key.startswith("on") or key in ("src", "style") for key in attrs)
        if "href" in attrs:
            assert name == "a"
            assert str(attrs["href"]).startswith(("http://", "https://"))
    assert not re.search(r"url\(|@import", text)


def test_every_text_of_the_results_is_only_text(bodies: dict[str, Any]) -> None:
    attacked = evil(bodies)
    for at, prompt in enumerate(attacked["prompt-forming"]["prompts"]):
        prompt["intent"] = bodies["prompt-forming"]["prompts"][at]["intent"]
    for answer in attacked["model-analysis"]["answers"]:
        answer["tone"], answer["how"] = "positive", "brand"

    text = html(reported(attacked, EVIL))
    page = Page(text)

    assert page.open == []
    assert {name for name, _ in page.elements} & {"script", "img"} == set()
    assert not any(key.startswith("on") for _, attrs in page.elements for key in attrs)
    assert "<script>alert('x')</script>" in page.text
    assert "\x00" not in text
    text.encode()

    written = markdown(reported(attacked, EVIL))
    assert "<script" not in written.replace("\\<script", "")
    assert "<img" not in written.replace("\\<img", "")


def test_a_link_leads_to_the_web_or_is_no_link() -> None:
    assert web_link("a", "https://a.test/?x=1&y=2").startswith('<a href="https://a.test/?x=1&amp;y')
    for url in ("javascript:alert(1)", "data:text/html,x", "//a.test", " https://a.test"):
        assert "href" not in web_link("a", url)
    assert "…" in web_link("x" * 500, "https://a.test/")


def test_without_an_assistant_it_says_so_plainly(bodies: dict[str, Any]) -> None:
    bodies["model-analysis"]["notes"] = ["no assistant was asked: name some", "another note"]
    report = reported(unasked(bodies))
    assert report.notes == ["another note"], "the cover says the other"
    page, written = Page(html(report)), markdown(report)

    for text in (page.text, written):
        assert "No assistant was asked" in text
        assert "does not name it" not in text
        assert "Named beside it" not in text
        assert "Children can ride along in the box" in text
    assert "Visibility: no assistant was asked" in {
        attrs.get("aria-label") for name, attrs in page.elements if name == "svg"
    }
    assert "**Visibility: no assistant was asked**" in written


def test_each_text_has_its_own_direction_and_language(bodies: dict[str, Any]) -> None:
    first, second = bodies["prompt-forming"]["prompts"][:2]
    first |= {"text": ARABIC, "language": "ar"}
    second |= {"text": JAPANESE, "language": "ja"}

    text = html(reported(bodies))

    assert f'<span dir="auto" class="outside" lang="ar">{ARABIC}</span>' in text
    assert f'<span dir="auto" class="outside" lang="ja">{JAPANESE}</span>' in text
    assert "overflow-wrap: anywhere" in text


def test_a_site_without_anything_has_a_report_too(bodies: dict[str, Any]) -> None:
    unasked(bodies)
    info = bodies["website-analysis"]["extractedInfo"]
    for name in ("offers", "audience", "topics", "languages", "countries", "social", "pages",
                 "technologies"):  # fmt: skip
        info[name] = []
    info |= {"name": "", "tagline": "", "contacts": {"emails": [], "phones": [], "addresses": []}}
    info["structuredData"] = {"types": [], "openGraph": {}}
    info["freshness"] = {"newest": None, "oldest": None, "dated": 0}
    bodies["website-analysis"]["notes"] = ["the site has no text"]
    bodies["prompt-forming"]["prompts"] = []
    bodies["model-analysis"] |= {"coverage": [], "todo": []}
    bodies["model-analysis"]["scores"] |= {"coverage": 0.0, "byTopic": [], "byIntent": []}

    report = reported(bodies, None)
    page = Page(html(report))

    assert page.text.startswith("How assistants see alderbikes.test")
    assert "the site has no text" in page.text
    assert "There are none" in page.text
    assert "the site has no text" in markdown(report)


def test_an_excerpt_is_where_the_site_is_named(bodies: dict[str, Any]) -> None:
    answer = bodies["model-analysis"]["answers"][0]
    answer |= {"text": "word " * 200 + "Alder Bikes " + "word " * 200, "position": 0.5}

    assert "Alder Bikes" in excerpt(answer)
    assert excerpt(answer).startswith("… ")
    assert excerpt(answer).endswith(" …")
    assert excerpt(answer | {"position": None}).startswith("word")


def test_names_are_counted_once_an_answer_however_they_are_spelled(bodies: dict[str, Any]) -> None:
    answer = bodies["model-analysis"]["answers"][0]
    one = answer | {"others": [{"name": "Babboe", "count": 3}, {"name": "BABBOE", "count": 1}]}
    two = answer | {"others": [{"name": "Babboe", "count": 1}], "model": "another"}

    [found] = competitors([one, two])

    assert (found.name, found.answers, found.models) == ("Babboe", 2, 2)


def test_the_same_results_give_the_same_bytes(bodies: dict[str, Any]) -> None:
    assert html(reported(bodies)) == html(reported(copy.deepcopy(bodies)))
    assert markdown(reported(bodies)) == markdown(reported(copy.deepcopy(bodies)))


def test_a_verdict_fits_the_number_that_is_printed() -> None:
    assert [verdict(score) for score in (59.6, 59.4, 34.5, 35.4, None)] == [
        "good", "fair", "weak", "fair", "not asked"
    ]  # fmt: skip


@pytest.mark.parametrize("score", [None, 0, 0.4, 50, 99.99, 100, 130])
def test_charts_take_any_score(score: float | None) -> None:
    assert ring(score, "x").count("<svg") == 1
    assert bar(score, 100, "x").count("<svg") == 1
    assert bar(score, 0, "x").count("<rect") == 1


def test_what_is_not_html_is_escaped() -> None:
    assert safe('<a href="x">') == "&lt;a href=&quot;x&quot;&gt;"
    assert tag("p", ["<", tag("b", "&")], title='"') == '<p title="&quot;">&lt;<b>&amp;</b></p>'
    assert tag("br", class_=None) == "<br>"
