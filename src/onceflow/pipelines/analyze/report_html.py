"""A report as one HTML page: everything is in it, nothing is asked for, nothing runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from onceflow.pipelines.analyze.charts import bar, ring, shares
from onceflow.pipelines.analyze.report import (
    INTENT_WORDS,
    METHOD,
    PAGES_MAX,
    Question,
    Report,
    excerpt,
    host_of,
    many,
    page_at,
    verdict,
)
from onceflow.pipelines.analyze.shapes import Answer, Score
from onceflow.pipelines.html import Html, outside, safe, tag, web_link

CONTENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
"""What the page may do: nothing but have its own styles."""
TITLES = {"model": "By assistant", "intent": "By what the customer wants", "topic": "By topic"}
TONES = {"positive": "in a friendly tone", "negative": "in a critical tone", "neutral": ""}


def html(report: Report) -> str:
    """The whole page."""
    title = f"How assistants see {report.name}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=CONTENT_POLICY),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        Html(f"<style>{_styles()}</style>"),
    )
    main = tag(
        "main", _cover(report), _notes(report), _todo(report), _visibility(report),
        _competitors(report), _questions(report), _profile(report), _method(report),
        tag("footer", "Made with Onceflow. The same results give the same page."),
    )  # fmt: skip
    return f"<!doctype html>\n{tag('html', head, tag('body', main), lang='en')}\n"


@cache
def _styles() -> str:
    return (files("onceflow.pipelines.analyze") / "report.css").read_text(encoding="utf-8")


def _cover(report: Report) -> Html:
    where: list[object] = [web_link(host_of(report.site["site"]), report.site["site"])]
    where += [f" · {report.when}"] if report.when else []
    words = [
        tag("p", "How assistants see this website", class_="over"),
        outside(report.name, "h1"),
        outside(report.info["tagline"], "p", class_="tagline outside")
        if report.info["tagline"]
        else None,
        tag("p", where, class_="soft"),
    ]
    dials = tag(
        "div",
        _dial(report.visibility, "Visibility", "in assistants' answers"),
        _dial(report.coverage, "Coverage", "by the site's own pages"),
        class_="dials",
    )
    findings = tag("ul", [outside(line, "li") for line in report.findings], class_="findings")
    return tag("header", tag("div", tag("div", words), dials, class_="cover"), findings)


def _dial(score: float | None, label: str, about: str) -> Html:
    what = "no assistant was asked" if score is None else f"{verdict(score)}, {about}"
    caption = tag("figcaption", label, tag("small", what))
    return tag("figure", ring(score, label), caption, class_="dial")


def _notes(report: Report) -> Html | None:
    if not report.notes:
        return None
    lines = [outside(note, "li") for note in report.notes]
    return tag("aside", tag("strong", "To know first"), tag("ul", lines), class_="box notes")


def _section(title: str, *inside: object) -> Html:
    return tag("section", tag("h2", title), *inside)


def _todo(report: Report) -> Html | None:
    if not report.analysis["todo"]:
        return None
    lines = []
    for one in report.analysis["todo"]:
        pages = [page for at in one["pages"] if (page := page_at(report.info["pages"], at))]
        more: list[object] = []
        if one["prompts"]:
            numbers = ", ".join(str(number) for number in one["prompts"])
            more.append(f"Question{'s' if len(one['prompts']) > 1 else ''} {numbers}")
        for page in pages[:PAGES_MAX]:
            more += [" · " if more else "", web_link(page["title"], page["url"])]
        if len(pages) > PAGES_MAX:
            more.append(f" and {len(pages) - PAGES_MAX} more")
        lines.append(
            tag("li", outside(one["what"], "strong"), tag("br"), outside(one["why"]),
                tag("div", more, class_="soft") if more else None)
        )  # fmt: skip
    return _section("What to write or mend next", tag("ol", lines, class_="todo"))


# --- scores ---


def _visibility(report: Report) -> Html:
    parts: list[object] = []
    if not report.asked:
        parts.append(
            tag("p", "No assistant was asked. The bars show how well the site's own pages answer.",
                class_="box")
        )  # fmt: skip
    for key, title in TITLES.items():
        if report.tables[key]:
            parts += [tag("h3", title), _scores(report.tables[key], asked=report.asked)]
    return _section("Visibility and coverage" if report.asked else "Coverage", *parts)


def _scores(lines: Sequence[tuple[str, Score]], *, asked: bool) -> Html:
    heads = ["", "Visibility", "", "Named in", "Coverage", ""] if asked else ["", "Coverage", ""]
    kinds = {"Named in": "num"}
    head = tag("tr", [tag("th", head, scope="col", class_=kinds.get(head)) for head in heads])
    rows: list[Html] = []
    for name, line in lines:
        cells = [outside(name, "td")]
        if asked:
            visible = line["visibility"]
            cells += [
                _bar_cell(visible, f"visibility of {name}"),
                tag("td", "" if visible is None else f"{visible:.0f}", class_="num"),
                tag("td", f"{line['mentioned']} of {line['answers']}", class_="num"),
            ]
        cells += [
            _bar_cell(line["coverage"], f"coverage of {name}"),
            tag("td", f"{line['coverage']:.0f}", class_="num"),
        ]
        rows.append(tag("tr", cells))
    return tag("table", tag("thead", head), tag("tbody", rows), class_="chart")


def _bar_cell(score: float | None, what: str) -> Html:
    said = f"{what}: {'not asked' if score is None else f'{score:.0f} of 100'}"
    return tag("td", bar(score, 100, said, verdict(score) if score is not None else "plain"))


def _competitors(report: Report) -> Html | None:
    if not report.asked:
        return None
    if not report.competitors:
        return _section("Named beside it", tag("p", "The answers name nobody else."))
    total = len(report.analysis["answers"])
    own = sum(answer["mentioned"] for answer in report.analysis["answers"])
    lines = [(report.name, own, True)] + [
        (one.name, one.answers, False) for one in report.competitors
    ]
    rows = [
        tag(
            "tr",
            tag("td", outside(name, "strong" if is_own else "span")),
            tag("td", bar(count, total, f"{name}: {count} of {total} answers",
                          "good" if is_own else "plain")),
            tag("td", f"{count} of {total}", class_="num"),
        )
        for name, count, is_own in sorted(lines, key=lambda line: (-line[1], not line[2]))
    ]  # fmt: skip
    about = tag("p", "How many answers name the site, and whom else they name.", class_="soft")
    return _section("Named beside it", about, tag("table", rows, class_="chart"))


# --- questions ---


def _questions(report: Report) -> Html:
    if not report.questions:
        return _section("Questions", tag("p", "There are none: the site has too little text."))
    brand = report.analysis["brand"]
    names = [*brand["names"], *brand["domains"]]
    overview = _overview(report) if report.asked else None
    parts = [_question(one, names) for one in report.questions]
    what = "Questions, answers" if report.asked else "Questions"
    return _section(f"{what} and best passages", overview, *parts)


def _overview(report: Report) -> Html:
    """Questions and assistants at a glance."""
    models = report.analysis["models"]
    heads = [tag("th", "", scope="col"), tag("th", "Question", scope="col")]
    heads += [outside(model, "th", scope="col") for model in models]
    heads.append(tag("th", "Coverage", scope="col", class_="num"))
    rows: list[Html] = []
    for one in report.questions:
        by_model = {answer["model"]: answer for answer in one.answers}
        cells = [tag("td", one.prompt["n"]), _asked(one, "td")]
        for model in models:
            answer = by_model.get(model)
            cells.append(tag("td", _glyph(answer)))
        cells.append(tag("td", f"{one.covered:.0f}", class_="num"))
        rows.append(tag("tr", cells))
    return tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))


def _glyph(answer: Answer | None) -> Html:
    if answer is None:
        return tag("span", "no answer", class_="soft")
    if not answer["mentioned"]:
        return tag("span", tag("span", "○", class_="glyph", aria_hidden="true"), " no", class_="no")
    place = f" no. {answer['rank']}" if answer["rank"] is not None else " yes"
    return tag("span", tag("span", "●", class_="glyph", aria_hidden="true"), place, class_="yes")


def _asked(one: Question, element: str) -> Html:
    return outside(one.prompt["text"], element, lang=one.prompt["language"] or None)


def _question(one: Question, names: Sequence[str]) -> Html:
    prompt = one.prompt
    about: list[object] = [INTENT_WORDS.get(prompt["intent"], prompt["intent"]), " · "]
    about.append(outside(prompt["topic"]))
    about += [" · names the site"] if prompt["branded"] else []
    about += [" · ", outside(prompt["reason"])] if prompt["reason"] else []
    parts: list[object] = [
        tag("h3", tag("span", f"{prompt['n']}."), _asked(one, "span")),
        tag("p", about, class_="meta"),
    ]
    if one.answers:
        lines = [_answer(answer, names) for answer in one.answers]
        parts.append(tag("ul", lines, class_="answers"))
    if one.coverage is not None:
        said = f"the site's own pages answer question {prompt['n']}: {one.covered:.0f} of 100"
        where = web_link(one.page["title"], one.page["url"]) if one.page else "no page answers it"
        parts.append(
            tag(
                "div",
                tag("div", bar(one.covered, 100, said, verdict(one.covered))),
                tag("div", f"The site itself: {one.covered:.0f} of 100 · ", where),
                class_="own",
            )
        )
        if one.coverage["passage"]:
            parts.append(outside(one.coverage["passage"], "blockquote"))
    return tag("article", parts, class_="question")


def _answer(answer: Answer, names: Sequence[str]) -> Html:
    found = answer["mentioned"]
    words = {"brand": "names it", "domain": "names its domain", "link": "only links to it"}
    said = words.get(answer["how"], "names it") if found else "does not name it"
    if found and answer["rank"] is not None:
        said += f", as number {answer['rank']}"
    if found and answer["tone"] and TONES[answer["tone"]]:
        said += f", {TONES[answer['tone']]}"
    others = [other["name"] for other in answer["others"][:6]]
    body: list[object] = [outside(answer["model"], "strong"), f" {said}"]
    if others:
        body += ["; names ", outside(", ".join(others))]
    short = excerpt(answer)
    body.append(outside(_marked(short, names) if found else short, "div", class_="said outside"))
    if len(answer["text"]) > len(short):
        whole = outside(answer["text"], "div", class_="whole outside")
        body.append(tag("details", tag("summary", "The whole answer"), whole))
    glyph = tag("span", "●" if found else "○", class_="glyph", aria_hidden="true")
    return tag("li", glyph, tag("div", body), class_="yes" if found else "no")


def _marked(text: str, names: Sequence[str]) -> Html:
    """The site's names in a text, marked."""
    known = sorted((name for name in names if name.strip()), key=len, reverse=True)
    if not known:
        return safe(text)
    pattern = re.compile("|".join(re.escape(name) for name in known), re.IGNORECASE)
    parts: list[Html] = []
    at = 0
    for match in pattern.finditer(text):
        parts += [safe(text[at : match.start()]), tag("mark", match[0])]
        at = match.end()
    return Html("".join([*parts, safe(text[at:])]))


# --- the site ---


def _profile(report: Report) -> Html:
    info = report.info
    rows: list[tuple[str, Html]] = [
        ("Offers", _tags(info["offers"])),
        ("Audience", _tags(info["audience"])),
        ("Countries", _tags(info["countries"])),
        ("E-mail", _tags(info["contacts"]["emails"])),
        ("Telephone", _tags(info["contacts"]["phones"])),
        ("Address", _tags(info["contacts"]["addresses"])),
        ("Profiles", Html("".join(
            tag("div", one["network"], ": ", web_link(one["url"], one["url"]))
            for one in info["social"]))),
        ("Technologies", _tags(info["technologies"])),
        ("Structured data", _tags(
            f"{one['type']} x {one['count']}" for one in info["structuredData"]["types"])),
    ]  # fmt: skip
    fresh = info["freshness"]
    if fresh["newest"]:
        dates = f"newest {fresh['newest']}, oldest {fresh['oldest'] or fresh['newest']}"
        rows.append(("Dates", outside(f"{dates}; {many(fresh['dated'], 'page')} dated")))
    terms = [(tag("dt", name), tag("dd", value)) for name, value in rows if value]
    parts: list[object] = [tag("dl", [part for term in terms for part in term])]
    if info["topics"]:
        lines = [
            tag("tr", outside(one["topic"], "td"),
                tag("td", bar(one["weight"], 1, f"weight of {one['topic']}: {one['weight']:.2f}")))
            for one in info["topics"]
        ]  # fmt: skip
        parts += [tag("h3", "Topics"), tag("table", lines, class_="chart")]
    if info["languages"]:
        said = ", ".join(f"{one['code']} {one['share']:.0%}" for one in info["languages"])
        drawn = shares([(one["code"], one["share"]) for one in info["languages"]], said)
        parts += [tag("h3", "Languages"), drawn, tag("p", said, class_="soft")]
    if info["pages"]:
        parts += [tag("h3", f"Pages that were read: {len(info['pages'])}"), _pages(report)]
    return _section("The site", *parts)


def _pages(report: Report) -> Html:
    heads = [tag("th", head, scope="col", class_=kind) for head, kind in
             (("Page", None), ("Kind", None), ("Date", "wide"), ("Words", "num"))]  # fmt: skip
    rows: list[Html] = []
    for page in report.info["pages"]:
        rows.append(
            tag(
                "tr",
                tag("td", web_link(page["title"], page["url"])),
                tag("td", page["kind"]),
                tag("td", page["date"] or "", class_="wide"),
                tag("td", f"{page['words']:,}", class_="num"),
            )
        )
    return tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))


def _tags(values: Iterable[str]) -> Html:
    lines = [outside(value, "li") for value in values]
    return tag("ul", lines, class_="tags") if lines else Html("")


def _method(report: Report) -> Html:
    made = f"Profile by {report.site['method']}, questions by {report.prompts['method']}"
    made += f"; asked: {', '.join(report.analysis['models'])}." if report.asked else "."
    return tag(
        "div",
        _section(
            "Method and limits",
            tag("ul", [tag("li", line) for line in METHOD]),
            outside(made, "p"),
            tag("h3", "What this report does not know"),
            tag("ul", [tag("li", line) for line in report.limits]),
        ),
    )
