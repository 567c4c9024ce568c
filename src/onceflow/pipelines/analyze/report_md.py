"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onceflow.pipelines.analyze.report import (
    METHOD,
    PAGES_MAX,
    Report,
    excerpt,
    host_of,
    many,
    page_at,
    verdict,
)
from onceflow.pipelines.analyze.shapes import Answer, Score
from onceflow.pipelines.markdown import link, plain_text


def markdown(report: Report) -> str:
    """The whole report."""
    lines = [f"# How assistants see {plain_text(report.name)}", ""]
    if report.info["tagline"]:
        lines += [f"*{plain_text(report.info['tagline'])}*", ""]
    lines += [_linked(host_of(report.site["site"]), report.site["site"])]
    lines[-1] += f", {plain_text(report.when)}" if report.when else ""
    lines += ["", f"**Visibility: {_points(report.visibility)}**", ""]
    lines += [f"**Coverage: {_points(report.coverage)}**", ""]
    lines += _list(report.findings)
    if report.notes:
        lines += ["## To know first", "", *_list(report.notes)]
    lines += [*_todo(report), *_visibility(report), *_competitors(report), *_questions(report)]
    lines += [*_profile(report), "## Method", "", *_list(METHOD)]
    lines += [_made(report), "", "## What this report does not know", "", *_list(report.limits)]
    return "\n".join(lines).rstrip() + "\n"


def _todo(report: Report) -> Iterable[str]:
    if not report.analysis["todo"]:
        return
    yield from ("## What to write or mend next", "")
    for number, one in enumerate(report.analysis["todo"], 1):
        yield f"{number}. **{plain_text(one['what'])}**: {plain_text(one['why'])}"
        pages = [page for at in one["pages"] if (page := page_at(report.info["pages"], at))]
        if pages:
            links = [_linked(page["title"], page["url"]) for page in pages[:PAGES_MAX]]
            more = len(pages) - len(links)
            yield f"   Pages: {', '.join(links)}" + (f" and {more} more" if more else "")
    yield ""


def _visibility(report: Report) -> Iterable[str]:
    titles = {"model": "assistant", "intent": "intent", "topic": "topic"}
    if not report.asked:
        yield from ("## Visibility", "", "No assistant was asked.", "")
    for key, title in titles.items():
        lines = report.tables[key]
        if not lines:
            continue
        yield from (
            f"## By {title}",
            "",
            f"| {title} | questions | visibility | named | coverage |",
        )
        yield "|---|--:|--:|--:|--:|"
        for name, line in lines:
            yield f"| {plain_text(name)} | {line['prompts']} | {_cells(line)} |"
        yield ""


def _cells(line: Score) -> str:
    visible = "" if line["visibility"] is None else f"{line['visibility']:.0f}"
    named = f"{line['mentioned']} of {line['answers']}" if line["answers"] else ""
    return f"{visible} | {named} | {line['coverage']:.0f}"


def _competitors(report: Report) -> Iterable[str]:
    if not report.competitors:
        return
    total = len(report.analysis["answers"])
    yield from ("## Named beside it", "", "| name | answers | assistants |", "|---|--:|--:|")
    for one in report.competitors:
        yield f"| {plain_text(one.name)} | {one.answers} of {total} | {one.models} |"
    yield ""


def _questions(report: Report) -> Iterable[str]:
    yield from ("## Questions", "")
    if not report.questions:
        yield from ("There are none: the site has too little text.", "")
    for one in report.questions:
        prompt = one.prompt
        yield f"### {prompt['n']}. {plain_text(prompt['text'])}"
        yield ""
        words = [plain_text(prompt["intent"]), plain_text(prompt["topic"])]
        words += ["names the site"] if prompt["branded"] else []
        yield f"{', '.join(words)}. {plain_text(prompt['reason'])}."
        yield ""
        for answer in one.answers:
            yield f"- {plain_text(answer['model'])}: {_said(answer)}"
        if one.coverage is not None:
            where = _linked(one.page["title"], one.page["url"]) if one.page else "no page"
            yield f"- The site itself: {one.covered:.0f} of 100, {where}"
            if one.coverage["passage"]:
                yield f"  > {plain_text(one.coverage['passage'])}"
        yield ""


def _said(answer: Answer) -> str:
    if not answer["mentioned"]:
        others = ", ".join(plain_text(other["name"]) for other in answer["others"][:5])
        return "does not name it" + (f"; names {others}" if others else "")
    words = {"brand": "names it", "domain": "names its domain", "link": "only links to it"}
    found = words.get(answer["how"], "names it")
    if answer["rank"] is not None:
        found += f", as number {answer['rank']}"
    if answer["tone"] is not None:
        found += f", {answer['tone']}"
    return f"{found}: {plain_text(excerpt(answer))}"


def _profile(report: Report) -> Iterable[str]:
    info = report.info
    yield from ("## The site", "")
    rows: list[tuple[str, Sequence[str]]] = [
        ("Offers", info["offers"]),
        ("Audience", info["audience"]),
        ("Topics", [topic["topic"] for topic in info["topics"]]),
        ("Languages", [f"{one['code']} {one['share']:.0%}" for one in info["languages"]]),
        ("Countries", info["countries"]),
        ("E-mail", info["contacts"]["emails"]),
        ("Telephone", info["contacts"]["phones"]),
        ("Address", info["contacts"]["addresses"]),
        ("Profiles", [one["url"] for one in info["social"]]),
        ("Technologies", info["technologies"]),
        ("Structured data", [one["type"] for one in info["structuredData"]["types"]]),
    ]
    for name, values in rows:
        if values:
            yield f"- {name}: {', '.join(plain_text(value) for value in values)}"
    fresh = info["freshness"]
    if fresh["newest"]:
        dated = f"{many(fresh['dated'], 'page')} dated"
        yield f"- Newest page: {plain_text(fresh['newest'])} ({dated})"
    yield ""
    if info["pages"]:
        yield from ("| page | kind | words |", "|---|---|--:|")
        for page in info["pages"]:
            kind = plain_text(page["kind"])
            yield f"| {_linked(page['title'], page['url'])} | {kind} | {page['words']:,} |"
        yield ""


def _made(report: Report) -> str:
    words = f"Profile by {plain_text(report.site['method'])}, questions by "
    words += plain_text(report.prompts["method"])
    if report.asked:
        words += f"; asked: {', '.join(plain_text(name) for name in report.analysis['models'])}"
    return f"{words}."


def _points(score: float | None) -> str:
    return "no assistant was asked" if score is None else f"{score:.0f} of 100, {verdict(score)}"


def _linked(title: str, url: str) -> str:
    web = url.startswith(("http://", "https://"))
    return link(title, url) if web else plain_text(title or url)


def _list(lines: Iterable[str]) -> list[str]:
    found = [f"- {plain_text(line)}" for line in lines]
    return [*found, ""] if found else []
