"""A wiki page's text: its sections as plain text, and whether it only tells others apart.

`mwparserfromhell` reads templates and links, section by section. What it goes
back from (tags, tables, braces and brackets that nothing closes: minutes for 100 kB) is taken out
before, in linear time, and past `PARSE_SECONDS_MAX` the rest of an article is read without it.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from onceflow.clients._missing import not_installed
from onceflow.clients.text import clean

WIKITEXT_CHARS_MAX = 4_000_000
SECTIONS_MAX = 1000
SECTION_CHARS_MAX = 50_000
"""Of its source without tables and elements; the rest of a longer one is not read."""
HEADING_CHARS_MAX = 500
APART_CHARS_MAX = 100_000
PARSE_SECONDS_MAX = 5.0
DEPTH_MAX = 20
NESTED_MAX = 40

_HEADING = re.compile(r"^(={1,6})([^\n]{1,4000}?)(={1,6})[ \t]*$", re.MULTILINE)
# Elements whose content is not prose. `pre` and `nowiki` are text, but no markup counts in them.
_DROPPED = (
    "ref", "references", "gallery", "math", "chem", "timeline", "score", "imagemap", "graph",
    "syntaxhighlight", "source", "script", "style", "templatestyles", "mapframe", "hiero",
)  # fmt: skip
_LITERAL = ("nowiki", "pre")
_LINE_END = re.compile(r"[ \t]*(?:\n|$)")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,1000}>")
_BREAK = re.compile(r"<(?:br|p|/p|li|/li|div|/div)\b[^<>]{0,200}>", re.IGNORECASE)
_WEB_LINK = re.compile(
    r"(?<!\[)\[(?:https?:|ftp:|mailto:)?//[^\s\[\]<>]{1,2000}[ \t]*([^\[\]\n]{0,1000})\]"
)
# Stand for a "<" and a "[" that the parser is not to look at.
_LESS, _BRACKET = "\ufdd0", "\ufdd1"
_BRACE = re.compile(r"\{\{|\}\}|\[\[|\]\]")
_SINGLE = re.compile(r"(?<!\[)\[(?!\[)")
_STYLE = re.compile(r"'{2,5}")
_MAGIC = re.compile(r"__[A-Z]{3,30}__")
_LIST = re.compile(r"^[*#:;]+[ \t]*", re.MULTILINE)
_HOLLOW = re.compile(r"\([\s,;:/\u2013-]{0,20}\)|\[\s{0,20}\]")
# Written so that what needs no change is not matched: single spaces, single line ends.
_SPACES = re.compile(r"[ \t\u00a0]{2,}|[\t\u00a0]")
_LINES = re.compile(r"\n[ \n]*\n")
_BEFORE_STOP = re.compile(r" (?=[,.;:!?)])")
# A link without any other markup in it: no parser is needed to find its words.
_LINK = re.compile(r"\[\[([^\[\]{}|\n]{1,300})(?:\|([^\[\]{}|\n]{0,1000}))?\]\]")
_PLAIN = re.compile(r"[\w ,.()-]*")
_MARKS = re.compile(r"\{\{|\}\}|\[\[(?:[^\[\]|]{0,300}\|)?|\]\]")
_FILE = re.compile(
    r"\.(?:jpe?g|png|svg|gif|webp|tiff?|xcf|pdf|djvu|og[agv]|opus|webm|mp[34]|mid|wav|flac|stl)$",
    re.IGNORECASE,
)

_APART = (
    "disambig", "disambiguation", "disamb", "dab", "hndis", "geodis", "numberdis", "schooldis",
    "roaddis", "begriffsklärung", "bkl", "homonymie", "desambiguación", "desambig",
    "disambigua", "desambiguação", "doorverwijspagina", "dp", "неоднозначность", "曖昧さ回避",
    "ujednoznacznienie", "förgrening", "消歧义", "동음이의",
)  # fmt: skip
_APART_WORD = re.compile(r"\{\{\s*([^{}|\n]{1,60}?)\s*(?:\||\}\})")
_APART_CATEGORIES = re.compile(
    r"^(?:all (?:article )?)?disambiguation(?: pages)?$|^begriffsklärung$|^homonymie$|^disambigua$"
    r"|^wikipedia:desambiguación$|^desambiguação$",
    re.IGNORECASE,
)
_PREFIXES = frozenset({
    "file", "image", "media", "category", "datei", "bild", "kategorie", "fichier", "catégorie",
    "archivo", "imagen", "categoría", "immagine", "categoria", "ficheiro", "imagem", "bestand",
    "afbeelding", "categorie", "plik", "grafika", "kategoria", "файл", "изображение", "категория",
    "ファイル", "画像", "カテゴリ", "文件", "分类", "檔案", "分類",
})  # fmt: skip
# Templates that stand for their own words: the arguments that are read, by number.
_SPOKEN = {
    **dict.fromkeys(["nowrap", "nobr", "small", "abbr", "em", "strong"], (1,)),
    "lang": (2,),
    "convert": (1, 2),
    "cvt": (1, 2),
}


@dataclass(frozen=True, slots=True)
class Section:
    """A section without its subsections. The first is the lead: level 0, no heading."""

    level: int
    heading: str
    anchor: str
    text: str


def sections(
    wikitext: str, *, category_prefixes: Iterable[str] = ()
) -> tuple[tuple[Section, ...], bool]:
    """The sections with their plain text, and whether something was left out for its size."""
    cut = len(wikitext) > WIKITEXT_CHARS_MAX
    text = _without_comments(clean(wikitext[:WIKITEXT_CHARS_MAX]))
    prefixes = _PREFIXES | {prefix.lower() for prefix in category_prefixes}
    until = time.thread_time() + PARSE_SECONDS_MAX
    found: list[Section] = []
    anchors: dict[str, int] = {}
    for level, title, body in _split(text):
        if len(found) >= SECTIONS_MAX:
            return tuple(found), True
        body = _tame(body)
        cut = cut or len(body) > SECTION_CHARS_MAX
        careful = time.thread_time() < until
        heading = _heading(title, prefixes, careful=careful)
        plain = _LIST.sub("", _plain(body[:SECTION_CHARS_MAX], prefixes, careful=careful))
        anchor = _anchor(heading, anchors) if level else ""
        found.append(Section(level, heading, anchor, plain))
    return tuple(found), cut


def tells_apart(wikitext: str, categories: Iterable[str] = ()) -> bool:
    """Whether a page looks like a disambiguation page, where the wiki itself does not say so."""
    if any(_APART_CATEGORIES.match(name) for name in categories):
        return True
    text = wikitext[:APART_CHARS_MAX]
    return "__DISAMBIG__" in text or any(
        match.group(1).replace("_", " ").lower() in _APART for match in _APART_WORD.finditer(text)
    )


def _without_comments(text: str) -> str:
    """As the wiki does it: a line with nothing but a comment goes as a whole."""
    parts: list[str] = []
    at = 0
    while (start := text.find("<!--", at)) >= 0:
        close = text.find("-->", start + 4)
        end = len(text) if close < 0 else close + 3
        line = max(text.rfind("\n", at, start) + 1, at)
        alone = (line == 0 or text[line - 1] == "\n") and not text[line:start].strip()
        rest = _LINE_END.match(text, end) if alone else None
        parts.append(text[at : line if rest else start])
        at = rest.end() if rest else end
    parts.append(text[at:])
    return "".join(parts)


def _split(text: str) -> Iterator[tuple[int, str, str]]:
    """(level, heading, body): the lead first. What is literal holds no headings."""
    literal = _spans(text, (*_LITERAL, *_DROPPED))
    level, title, start, at = 0, "", 0, 0
    for match in _HEADING.finditer(text):
        while at < len(literal) and literal[at][1] <= match.start():
            at += 1
        if at < len(literal) and literal[at][0] <= match.start():
            continue
        if not match.group(2).strip():
            continue
        yield level, title, text[start : match.start()]
        level = min(len(match.group(1)), len(match.group(3)))
        title = match.group(0).strip()[level:-level].strip()
        start = match.end()
    yield level, title, text[start:]


def _spans(text: str, names: tuple[str, ...]) -> list[tuple[int, int]]:
    """Where these elements are, not overlapping; an unclosed one is not counted."""
    found: list[tuple[int, int]] = []
    unclosed: set[str] = set()
    opening = re.compile(rf"<({'|'.join(names)})\b([^<>]{{0,1000}})>", re.IGNORECASE)
    lowered, at = text.lower(), 0
    while match := opening.search(text, at):
        name, at = match.group(1).lower(), match.end()
        if match.group(2).endswith("/"):
            found.append(match.span())
            continue
        if name in unclosed:
            continue
        end = lowered.find(f"</{name}", at)
        if end < 0:
            unclosed.add(name)
            continue
        close = text.find(">", end)
        at = len(text) if close < 0 else close + 1
        found.append((match.start(), at))
    return found


def _heading(title: str, prefixes: frozenset[str], *, careful: bool) -> str:
    text = title if _PLAIN.fullmatch(title) else _plain(_tame(title), prefixes, careful=careful)
    return " ".join(text.split())[:HEADING_CHARS_MAX]


def _plain(text: str, prefixes: frozenset[str], *, careful: bool) -> str:
    if "[[" in text:
        text = _LINK.sub(lambda link: _link_words(link[1], link[2], prefixes), text)
    if careful and ("{{" in text or "[[" in text):
        text = _spoken(_parse(_balanced(text)).nodes, prefixes, 0)
    else:
        text = html.unescape(_MARKS.sub("", text))
    text = text.replace(_LESS, "<").replace(_BRACKET, "[")
    text = _STYLE.sub("", _MAGIC.sub("", text))
    text = _HOLLOW.sub("", text)
    text = _BEFORE_STOP.sub("", _SPACES.sub(" ", text))
    text = _LINES.sub("\n\n", text)
    return clean("\n".join(line.strip() for line in text.split("\n"))).strip()


def _tame(text: str) -> str:
    """Without elements, tables and web links; what is left of their marks is harmless text."""
    if "<" in text:
        parts: list[str] = []
        at = 0
        for start, end in _spans(text, _DROPPED):
            parts.append(text[at:start])
            at = end
        text = "".join([*parts, text[at:]])
        text = _TAG.sub("", _BREAK.sub("\n", text)).replace("<", _LESS)
    if "[" in text:
        text = _SINGLE.sub(_BRACKET, _WEB_LINK.sub(r"\1", text))
    if "{|" not in text:
        return text
    kept: list[str] = []
    depth = 0
    for line in text.split("\n"):
        bare = line.lstrip(" \t:")
        if bare.startswith("{|"):
            depth += 1
        elif depth and bare.startswith("|}"):
            depth -= 1
            if bare[2:].strip():
                kept.append(bare[2:])
        elif not depth:
            kept.append(line)
    return "\n".join(kept)


def _balanced(text: str) -> str:
    """Without the braces and brackets that nothing closes, which the parser goes back from."""
    dropped: list[int] = []
    opened: list[tuple[str, int]] = []
    count = {"{{": 0, "[[": 0}
    for match in _BRACE.finditer(text):
        mark, at = match.group(), match.start()
        if mark in count:
            if len(opened) >= NESTED_MAX:
                dropped.append(at)
                continue
            opened.append((mark, at))
            count[mark] += 1
            continue
        opening = "{{" if mark == "}}" else "[["
        if not count[opening]:
            dropped.append(at)
            continue
        while True:
            last, start = opened.pop()
            count[last] -= 1
            if last == opening:
                break
            dropped.append(start)
    dropped += [at for _, at in opened]
    if not dropped:
        return text
    parts: list[str] = []
    at = 0
    for start in sorted(dropped):
        parts.append(text[at:start])
        at = start + 2
    return "".join([*parts, text[at:]])


@lru_cache(maxsize=1)
def _parser() -> Any:
    try:
        import mwparserfromhell
    except ImportError as error:
        raise not_installed("reading wiki pages", error, "expand") from None
    return mwparserfromhell


def _parse(text: str) -> Any:
    return _parser().parse(text, skip_style_tags=True)


def _spoken(nodes: Any, prefixes: frozenset[str], depth: int) -> str:
    if depth > DEPTH_MAX:
        return ""
    kinds = _parser().nodes
    parts: list[str] = []
    for node in nodes:
        if isinstance(node, kinds.Text):
            parts.append(node.value)
        elif isinstance(node, kinds.Wikilink):
            words = None if node.text is None else _spoken(node.text.nodes, prefixes, depth + 1)
            parts.append(_link_words(str(node.title), words, prefixes))
        elif isinstance(node, kinds.HTMLEntity):
            parts.append(node.normalize())
        elif isinstance(node, kinds.Template):
            parts.append(_template_words(node, prefixes, depth))
        elif isinstance(node, kinds.ExternalLink):
            inner = node.title if node.title is not None else node.url
            parts.append(_spoken(inner.nodes, prefixes, depth + 1))
        elif isinstance(node, kinds.Tag) and node.contents is not None:
            parts.append(_spoken(node.contents.nodes, prefixes, depth + 1))
        elif isinstance(node, kinds.Heading):
            parts.append(_spoken(node.title.nodes, prefixes, depth + 1))
    return "".join(parts)


def _link_words(title: str, words: str | None, prefixes: frozenset[str]) -> str:
    title = title.strip()
    prefix, colon, rest = title.partition(":")
    if colon and prefix and (prefix.strip().lower() in prefixes or _FILE.search(rest)):
        return ""
    return title.removeprefix(":") if words is None else words


def _template_words(template: Any, prefixes: frozenset[str], depth: int) -> str:
    said = _SPOKEN.get(str(template.name).strip().lower(), ())
    words = [
        _spoken(template.get(number).value.nodes, prefixes, depth + 1).strip()
        for number in said
        if template.has(number)
    ]
    return " ".join(words)


def _anchor(heading: str, known: dict[str, int]) -> str:
    """As the wiki's own: spaces are underscores, a second one of the same name gets `_2`."""
    base = heading.replace(" ", "_")
    count = known.get(base.lower(), 0) + 1
    known[base.lower()] = count
    if count == 1:
        return base
    while (numbered := f"{base}_{count}").lower() in known:
        count += 1
    known[base.lower()] = count
    known[numbered.lower()] = 1
    return numbered
