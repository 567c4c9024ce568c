"""The process that reads a page. It is started by path, alone, and may be killed at any moment.

It gets one request after another on stdin, each a 4-byte length, JSON, and the page's bytes, and
answers on stdout with a length and JSON. It limits its own memory and time, ends when its parent
does, and knows no other file of ours but `text.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, BinaryIO

HREFS_MAX = 5_000
HREF_CHARS_MAX = 2_048
FIELD_CHARS_MAX = 4_000
METAS_MAX = 500
ABOUT_MAX = 100
ABOUT_CHARS_MAX = 500
SCRIPTS_MAX = 50
SCRIPT_CHARS_MAX = 100_000
SHORT_CHARS = 250  # less text than this, and the thorough mode gets its turn
CAREFUL_CHARS_MAX = 4_000_000  # of a longer page only the beginning is looked at closely
GLANCE_CHARS = 300_000
CAREFUL_SHARE = 0.5  # of the time limit, in CPU time; then all text is taken as it is
NODES_MAX = 100_000  # a larger or deeper tree would only use up the time limit
DEPTH_MAX = 400
ATTRIBUTES_MAX = 5_000
RECURSION_MAX = 5_000
NICE = 10  # the worker, which answers requests and keeps its leases, goes first

REGEXP_NS = "http://exslt.org/regular-expressions"
_PATTERN_TEST = re.compile(r"re:test\((@[^,]+), '([^']*)'\)")
_LONG_TAG = re.compile(r"<[^<>]{10000,}")
_HIDDEN_STYLE = ("display:none", "visibility:hidden", "font-size:0;", "font-size:0px", "opacity:0;")

# The page's own words about itself, as publishers spell the names; trafilatura's search for them
# took as long as finding the text.
_META_NAMES = {
    "author": ("author", "article:author", "dc.creator", "dcterms.creator", "parsely-author"),
    "date": (
        *("article:published_time", "datepublished", "date", "dc.date", "dcterms.created"),
        *("dc.date.issued", "pubdate", "publish-date", "parsely-pub-date", "og:published_time"),
    ),
    "description": ("description", "og:description", "dc.description"),
    "sitename": ("og:site_name", "application-name"),
}

Work = Callable[[dict[str, Any]], dict[str, Any]]


class TooSlow(BaseException):
    """The careful ways have used up their share of the time. Not for a library to catch."""


def extract(request: dict[str, Any]) -> dict[str, Any]:
    """`html`, `url` -> text, markdown, title, author, date, language, canonical, hrefs, method."""
    html: str = request["html"]
    found: dict[str, Any] = {"text": "", "markdown": "", "method": "none"}
    found["doubtful"] = request.get("doubtful", False)
    if request.get("plain"):
        text = html[: request.get("chars_max")].strip()
        return found | {"text": text, "method": "plain" if text else "none"}
    whole = not _is_too_much(html)
    tree, sound = _parse(html if whole else html[:GLANCE_CHARS])
    if tree is not None:
        found |= _about(tree)
        if request.get("about"):
            with contextlib.suppress(Exception):  # a stranger's page: what can be had is enough
                found["about"] = _more_about(tree)
    sound = sound and whole
    if sound:
        import trafilatura  # noqa: F401 - a missing library is not the page's fault: see serve()

        # Whatever goes wrong in a stranger's page inside a stranger's library, the plain text is
        # still there to be had.
        with contextlib.suppress(TooSlow), _at_most(request.get("seconds")):
            with contextlib.suppress(Exception):
                found |= _main_text(tree, request, fast=True)
            if len(found["text"]) < SHORT_CHARS:
                with contextlib.suppress(Exception):
                    again = _main_text(_parse(html)[0], request, fast=False)
                    if len(again["text"]) > len(found["text"]):
                        found |= again
    if not found["text"]:
        # The careful ways take the tree apart, so where they were stopped it has to be read again.
        tree = _parse(html)[0] if sound else None
        plain = _plain(html, tree, request.get("chars_max"))
        if plain:
            found |= {"text": plain, "method": "plain"}
            if request.get("markdown"):
                found["markdown"] = plain
    return found


def _is_too_much(html: str) -> bool:
    """Would building its tree alone use up the limits? An element's attributes are compared with
    each other, so a hundred thousand of them take longer than the largest honest page."""
    if len(html) > CAREFUL_CHARS_MAX or html.count("<") > 2 * NODES_MAX:
        return True
    return any(tag.group().count("=") > ATTRIBUTES_MAX for tag in _LONG_TAG.finditer(html))


@contextlib.contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Raise `TooSlow` in what runs inside, once it has used its share of `seconds` of CPU time."""

    def stop(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, (seconds or 0.0) * CAREFUL_SHARE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _plain(html: str, tree: Any, chars_max: int | None) -> str:
    """All text there is. From the tree where there is one: hidden parts are gone from it."""
    if tree is not None:
        from lxml import etree  # type: ignore[import-untyped]  # has no types

        html = etree.tostring(tree, encoding="unicode", method="html")
    return str(_text_module().strip_markup(html, is_html=True, chars_max=chars_max)).strip()


def _parse(html: str) -> tuple[Any, bool]:
    """The tree, hidden parts dropped, and whether it is fit for more than a glance.

    It is not if it is too deep or too large: what the page says of itself can still be read.
    """
    data = html.encode("utf-8", "replace")
    tree, whole = _tree(data, huge=False)
    if not whole:
        # Deeper than 256, or a text of 10 MB: seldom, and then its depth has to be looked at.
        tree, whole = _tree(data, huge=True)
        if tree is None or not whole or _is_deep(tree):
            return tree, False
    suspects, count = _paths()
    if count(tree) > NODES_MAX:
        return tree, False
    for element in [element for element in suspects(tree) if _is_hidden(element)]:
        _drop(element)
    return tree, len(tree) > 0


def _tree(data: bytes, *, huge: bool) -> tuple[Any, bool]:
    """The tree, and whether all of the page is in it: the parser gives up at some depth."""
    from lxml import etree
    from lxml.html import (  # type: ignore[import-untyped]  # has no types
        HtmlElement,
        document_fromstring,
    )

    # Entities of a DOCTYPE mean nothing to an HTML parser.
    parser = etree.HTMLParser(
        huge_tree=huge, remove_comments=True, remove_pis=True, no_network=True, encoding="utf-8"
    )
    # lxml.html's own parser asks a Python function for the class of each element it hands out.
    parser.set_element_class_lookup(etree.ElementDefaultClassLookup(element=HtmlElement))
    try:
        tree = document_fromstring(data, parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError, AssertionError):
        return None, False
    return tree, not any(error.level_name == "FATAL" for error in parser.error_log)


def _is_deep(tree: Any) -> bool:
    from lxml import etree

    depth = 0
    for event, _ in etree.iterwalk(tree, events=("start", "end")):
        depth += 1 if event == "start" else -1
        if depth > DEPTH_MAX:
            return True
    return False


@lru_cache(maxsize=1)
def _paths() -> tuple[Callable[[Any], list[Any]], Callable[[Any], float]]:
    """What may be hidden, and how many elements there are: asked of the library, not in a loop."""
    from lxml import etree

    suspects = etree.XPath(
        "//template | //noscript | //style | //*[@hidden] | //*[@aria-hidden] | //*[@style]"
    )
    return suspects, etree.XPath("count(//*)")


def _is_hidden(element: Any) -> bool:
    if element.tag in ("template", "noscript", "style") or "hidden" in element.attrib:
        return True
    if element.get("aria-hidden", "").strip().lower() == "true":
        return True
    style = element.get("style")
    if not style or len(style) > 2_000:
        return False
    style = "".join(style.lower().split()) + ";"
    if any(mark in style for mark in _HIDDEN_STYLE):
        return True
    values = {name: value for name, _, value in (pair.partition(":") for pair in style.split(";"))}
    back = values.get("background-color") or values.get("background")
    return bool(back) and values.get("color") == back  # white on white


def _drop(element: Any) -> None:
    parent = element.getparent()
    if parent is None or element.tag in ("html", "body"):
        return
    if element.tail:
        before = element.getprevious()
        if before is not None:
            before.tail = (before.tail or "") + element.tail
        else:
            parent.text = (parent.text or "") + element.tail
    parent.remove(element)


def _about(tree: Any) -> dict[str, Any]:
    """What the page says of itself, whatever becomes of its text."""
    metas: dict[str, str] = {}
    for meta in tree.iter("meta"):
        name = meta.get("property") or meta.get("name") or meta.get("itemprop") or ""
        content = meta.get("content", "").strip()
        if name and content and len(metas) < METAS_MAX:
            metas.setdefault(name.lower()[:64], content[:FIELD_CHARS_MAX])
    links = {
        rel: link.get("href", "")
        for link in tree.iter("link")
        for rel in link.get("rel", "").lower().split()
        if rel == "canonical"
    }
    hrefs: dict[str, None] = {}
    for anchor in tree.iter("a"):
        href = anchor.get("href", "").strip()
        if href and not href.startswith("#") and len(href) <= HREF_CHARS_MAX:
            hrefs[href] = None
            if len(hrefs) == HREFS_MAX:
                break
    found = _structured(tree)
    for field, names in _META_NAMES.items():
        found[field] = next((metas[n] for n in names if n in metas), found.get(field, ""))
    found["title"] = metas.get("og:title") or _first(tree, "title") or _first(tree, "h1")
    if not found["date"]:
        found["date"] = next((t.get("datetime", "") for t in tree.iter("time")), "")
    return {
        **{name: str(value)[:FIELD_CHARS_MAX] for name, value in found.items()},
        "language": tree.get("lang", tree.get("xml:lang", "")),
        "canonical": links.get("canonical", "")[:HREF_CHARS_MAX],
        "base": next((b.get("href", "") for b in tree.iter("base")), "")[:HREF_CHARS_MAX],
        "hrefs": list(hrefs),
    }


def _more_about(tree: Any) -> dict[str, Any]:
    """What a page shows of the site it belongs to: names, headings, menus, scripts, feeds."""
    metas: dict[str, str] = {}
    for meta in tree.iter("meta"):
        name = (meta.get("property") or meta.get("name") or "").lower()[:64]
        content = " ".join(meta.get("content", "").split())
        if name and content and len(metas) < ABOUT_MAX:
            metas.setdefault(name, content[:ABOUT_CHARS_MAX])
    feeds, languages, sheets, canonical = [], [], [], ""
    for link in tree.iter("link"):
        rels, href = link.get("rel", "").lower().split(), link.get("href", "").strip()
        if not href or len(href) > HREF_CHARS_MAX:
            continue
        if "alternate" in rels and link.get("hreflang"):
            languages.append(link.get("hreflang").lower()[:35])
        elif "alternate" in rels and re.search("rss|atom", link.get("type", "").lower()):
            feeds.append(href)
        elif "stylesheet" in rels:
            sheets.append(href)
        elif "canonical" in rels:
            canonical = canonical or href
    return {
        "metas": metas,
        "canonical": canonical,
        "feeds": feeds[:10],
        "languages": languages[:ABOUT_MAX],
        "sources": [*_sources(tree), *sheets][:ABOUT_MAX],
        "headings": _headings(tree),
        "menu": _menu(tree),
        "things": _things(tree),
        "images": sum(1 for _ in tree.iter("img")),
    }


def _sources(tree: Any) -> list[str]:
    found = (script.get("src", "") for script in tree.iter("script"))
    return [source[:HREF_CHARS_MAX] for source in found if source][:ABOUT_MAX]


def _headings(tree: Any) -> list[list[Any]]:
    found: list[list[Any]] = []
    for element in tree.iter("h1", "h2", "h3"):
        text = " ".join(str(element.text_content()).split())[:ABOUT_CHARS_MAX]
        if text:
            found.append([int(element.tag[1]), text])
        if len(found) == ABOUT_MAX:
            break
    return found


def _menu(tree: Any) -> list[list[str]]:
    """The links of menus: what a site thinks its visitors look for, in its own words."""
    found: dict[str, str] = {}
    for part in tree.iter("nav", "header"):
        for anchor in part.iter("a"):
            href, text = anchor.get("href", "").strip(), " ".join(anchor.text_content().split())
            if href and text and len(href) <= HREF_CHARS_MAX and not href.startswith("#"):
                found.setdefault(href, text[:ABOUT_CHARS_MAX])
            if len(found) == ABOUT_MAX:
                return [[href, text] for href, text in found.items()]
    return [[href, text] for href, text in found.items()]


def _things(tree: Any) -> list[dict[str, Any]]:
    """What JSON-LD describes: the plain fields of each thing, and its type."""
    found: list[dict[str, Any]] = []
    for script in list(tree.iter("script"))[:SCRIPTS_MAX]:
        text = script.text or ""
        if script.get("type") != "application/ld+json" or len(text) > SCRIPT_CHARS_MAX:
            continue
        with contextlib.suppress(ValueError, RecursionError):
            todo = [json.loads(text)]
            while todo and len(found) < ABOUT_MAX:
                thing = todo.pop(0)
                if isinstance(thing, list):
                    todo = [*thing[:ABOUT_MAX], *todo]
                elif isinstance(thing, dict):
                    if "@type" in thing:
                        found.append(_fields_of(thing))
                    inner = [value for value in thing.values() if isinstance(value, dict | list)]
                    todo += inner[:ABOUT_MAX]
    return found


def _fields_of(thing: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in list(thing.items())[:ABOUT_MAX]:
        values = value if isinstance(value, list) else [value]
        texts = [" ".join(one.split())[:ABOUT_CHARS_MAX] for one in values if isinstance(one, str)]
        if texts:
            kept[name[:64]] = texts[:20] if isinstance(value, list) else texts[0]
    return kept


def _first(tree: Any, tag: str) -> str:
    # A <title> inside an SVG is not the page's.
    found = (e for e in tree.iter(tag) if tag != "title" or e.getparent().tag == "head")
    element = next(found, None)
    return "" if element is None else str(element.text_content())[:FIELD_CHARS_MAX].strip()


def _structured(tree: Any) -> dict[str, str]:
    """Author and date from JSON-LD, which news sites use."""
    for script in list(tree.iter("script"))[:SCRIPTS_MAX]:
        text = script.text or ""
        if script.get("type") != "application/ld+json" or len(text) > SCRIPT_CHARS_MAX:
            continue
        with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
            data = json.loads(text)
            things = data if isinstance(data, list) else data.get("@graph", [data])
            for thing in things[:20]:
                author, date = thing.get("author"), thing.get("datePublished")
                if not (author or date):
                    continue
                people = author if isinstance(author, list) else [author]
                names = [p.get("name") if isinstance(p, dict) else p for p in people[:10]]
                return {"author": ", ".join(str(n) for n in names if n), "date": str(date or "")}
    return {}


def _main_text(tree: Any, request: dict[str, Any], *, fast: bool) -> dict[str, Any]:
    from trafilatura import bare_extraction
    from trafilatura.xml import xmltotxt

    _quicken_rules()
    with_markdown = bool(request.get("markdown"))
    document: Any = bare_extraction(
        tree,
        url=request.get("url"),
        fast=fast,
        include_comments=False,
        include_formatting=with_markdown,
    )
    if document is None:
        return {"text": ""}
    text = (document.text or "").strip()
    found = {"method": "fast" if fast else "thorough", "text": text}
    if with_markdown:
        found |= {"markdown": text, "text": xmltotxt(document.body, False).strip()}
    return found


@lru_cache(maxsize=1)
def _quicken_rules() -> None:
    """Have trafilatura's rules ask for an attribute before they try a pattern on it. The patterns
    are tried in Python, on every element of a page, and most have no such attribute: a tenth of
    the time went into looking for words in nothing."""
    from lxml import etree
    from trafilatura import xpaths

    for rules in [value for value in vars(xpaths).values() if isinstance(value, list)]:
        for at, rule in enumerate(rules):
            if isinstance(rule, etree.XPath) and (quick := _quickened(rule.path)) != rule.path:
                rules[at] = etree.XPath(quick, namespaces={"re": REGEXP_NS})


def _quickened(rule: str) -> str:
    def ask_first(test: re.Match[str]) -> str:
        where, pattern = test.groups()
        # One that finds something in nothing stays as it is.
        return test[0] if re.search(pattern, "") else f"({where} and {test[0]})"

    return _PATTERN_TEST.sub(ask_first, rule)


def serve(work: Work = extract) -> None:
    """Answer requests until stdin ends."""
    _die_with_the_parent()
    os.nice(NICE)
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # A library that prints must not write into the answers.
    os.dup2(2, 1)
    settings = _read(source)
    if settings is None:
        return
    limit = int(settings["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(RECURSION_MAX)
    while (request := _read(source)) is not None:
        # Should the parent be stopped or gone, the alarm ends us all the same.
        signal.setitimer(signal.ITIMER_REAL, float(settings["seconds_max"]) + 1)
        try:
            answer = work(_decoded(request) | {"seconds": settings["seconds"]})
        except MemoryError:
            answer = {"failure": "it needs too much memory"}
        except ImportError as error:
            answer = {"missing": error.name or str(error)}
        except RecursionError:
            answer = {"failure": "it is nested too deeply"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            data = json.dumps(answer, ensure_ascii=False).encode(errors="replace")
        except MemoryError:
            data = b'{"failure": "it needs too much memory"}'
        sink.write(struct.pack("!I", len(data)) + data)
        sink.flush()


def _read(source: BinaryIO) -> dict[str, Any] | None:
    head = source.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack("!I", head)
    body = source.read(length)
    if len(body) < length:
        return None
    request: dict[str, Any] = json.loads(body)
    page = source.read(request.get("bytes", 0))
    return None if len(page) < request.get("bytes", 0) else {**request, "body": page}


def _decoded(request: dict[str, Any]) -> dict[str, Any]:
    """A request with `html`: decoded by the page's own rules, unless it came as text."""
    body: bytes = request.pop("body")
    if "charset" not in request:
        return {**request, "html": body.decode()}
    found = _text_module().decode(body, request["charset"])
    return {**request, "html": found.text, "doubtful": found.doubtful}


def _die_with_the_parent() -> None:
    if sys.platform == "linux":
        set_parent_death_signal = 1
        with contextlib.suppress(OSError):
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _text_module() -> Any:
    known = sys.modules.get("_onceflow_text")
    if known is None:
        spec = spec_from_file_location("_onceflow_text", Path(__file__).with_name("text.py"))
        assert spec is not None
        assert spec.loader is not None
        known = module_from_spec(spec)
        sys.modules["_onceflow_text"] = known
        spec.loader.exec_module(known)
    return known


if __name__ == "__main__":
    serve()
