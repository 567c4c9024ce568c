"""The articles of the bundled site: text files in this package, made into pages with navigation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files

SITE = "The Small Almanac"


@dataclass(frozen=True, slots=True)
class Article:
    """One text of the site."""

    name: str
    title: str
    date: str
    topic: str
    body: str

    @property
    def path(self) -> str:
        return f"/articles/{self.name}"


@cache
def articles() -> dict[str, Article]:
    """All of them by name, the oldest first."""
    folder = files(__package__) / "articles"
    found = [
        _parse(file.name.removesuffix(".md"), file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".md")
    ]
    return {article.name: article for article in sorted(found, key=lambda one: one.date)}


def _parse(name: str, text: str) -> Article:
    head, _, body = text.partition("\n\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    return Article(name, fields["title"], fields["date"], fields["topic"], body.strip())


def article_page(article: Article, *, canonical: str | None = None) -> str:
    """An article between a menu, a list of others and a footer, as such pages are."""
    others = [one for one in articles().values() if one.name != article.name][:6]
    links = "".join(f'<li><a href="{one.path}">{escape(one.title)}</a></li>' for one in others)
    main = (
        f"<article><h1>{escape(article.title)}</h1>"
        f'<p class="byline"><time datetime="{article.date}">{article.date}</time></p>'
        f"{_html(article.body)}</article>"
        f"<aside><h2>Also in the Almanac</h2><ul>{links}</ul></aside>"
    )
    return _page(article.title, main, canonical=canonical, date=article.date)


def print_page(article: Article, *, canonical: str) -> str:
    """The same article for the printer: without the menu, and saying where it really lives."""
    main = f"<article><h1>{escape(article.title)}</h1>{_html(article.body)}</article>"
    return _document(article.title, main, canonical=canonical, date=article.date)


def front_page() -> str:
    """All articles by topic."""
    parts = []
    for topic in dict.fromkeys(one.topic for one in articles().values()):
        listed = "".join(
            f'<li><a href="{one.path}">{escape(one.title)}</a></li>'
            for one in articles().values()
            if one.topic == topic
        )
        parts.append(f"<h2>{escape(topic)}</h2><ul>{listed}</ul>")
    return _page(SITE, f"<h1>{SITE}</h1>{''.join(parts)}")


def missing_page() -> str:
    return _page("Not found", "<h1>Not found</h1><p>There is no such page.</p>")


def _page(title: str, main: str, *, canonical: str | None = None, date: str = "") -> str:
    topics = dict.fromkeys(one.topic for one in articles().values())
    menu = "".join(f'<li><a href="/#{escape(topic)}">{escape(topic)}</a></li>' for topic in topics)
    inside = (
        f'<header><p><a href="/">{SITE}</a></p><nav><ul><li><a href="/">Home</a></li>{menu}</ul>'
        f"</nav></header><main>{main}</main><footer><p>{SITE} is bundled with Onceflow.</p>"
        "</footer>"
    )
    return _document(title, inside, canonical=canonical, date=date)


def _document(title: str, inside: str, *, canonical: str | None, date: str) -> str:
    link = f'<link rel="canonical" href="{escape(canonical)}">' if canonical else ""
    when = f'<meta name="date" content="{date}">' if date else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>{link}{when}</head><body>{inside}</body></html>\n"
    )


def _html(body: str) -> str:
    blocks = []
    for block in body.split("\n\n"):
        text = re.sub(r"\*(.+?)\*", r"<em>\1</em>", escape(" ".join(block.split())))
        heading = text.removeprefix("## ")
        blocks.append(f"<h2>{heading}</h2>" if heading != text else f"<p>{text}</p>")
    return "\n".join(blocks)
