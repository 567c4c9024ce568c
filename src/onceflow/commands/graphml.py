"""Articles and the links among them as GraphML, however many there are."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from onceflow import Item
from onceflow.knowledge.articles import listed, number, texts

Rows = Callable[[], AsyncIterator[tuple[Item, dict[str, Any]]]]
"""Every item with the results of its stages, to be read more than once."""

FIELDS = {
    "title": "string", "depth": "int", "state": "string", "url": "string", "page_id": "long",
    "revision": "long", "categories": "string", "sections": "int",
}  # fmt: skip
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
)


async def graphml(rows: Rows, write: Callable[[str], None]) -> int:
    """Write the graph; how many articles there are. A title that only leads to an article is none,
    and a link through it is a link to the article. Links count among articles that are loaded."""
    names: dict[str, int] = {}
    others: dict[str, str] = {}
    write(HEAD)
    for name, kind in FIELDS.items():
        write(f'  <key id="{name}" for="node" attr.name="{name}" attr.type="{kind}"/>\n')
    write('  <graph id="articles" edgedefault="directed">\n')
    async for item, results in rows():
        body = _loaded(results)
        if body is None:
            continue
        title = body["title"] or item.key
        for other in (item.key, *body["redirects"]):
            others.setdefault(other, title)
        if "same_as" not in body:
            names[title] = item.id
            write(_node(item, body))
    edges = 0
    async for item, results in rows():
        body = _loaded(results)
        if body is None or "same_as" in body:
            continue
        ends = [names.get(link) or names.get(others.get(link, "")) for link in body["links"]]
        for end in dict.fromkeys(ends):
            if end is not None:
                write(f'    <edge id="e{edges}" source="n{item.id}" target="n{end}"/>\n')
                edges += 1
    write("  </graph>\n</graphml>\n")
    return len(names)


def _loaded(results: Mapping[str, Any]) -> Mapping[str, Any] | None:
    body = results.get("load")
    if not isinstance(body, dict) or not isinstance(body.get("links"), list):
        return None
    return {
        **body,
        "title": "".join(texts([body.get("title")])),
        **{name: texts(body.get(name)) for name in ("redirects", "categories", "links")},
        **{name: number(body.get(name)) for name in ("page_id", "revision")},
    }


def _node(item: Item, body: Mapping[str, Any]) -> str:
    values = {
        "title": body["title"] or item.key,
        "depth": item.depth,
        "state": item.state,
        "url": body.get("url"),
        "page_id": body["page_id"],
        "revision": body["revision"],
        "categories": "; ".join(body["categories"]),
        "sections": len(listed(body.get("sections"))),
    }
    data = "".join(
        f"<data key={quoteattr(name)}>{escape(NOT_XML.sub('', str(value)))}</data>"
        for name, value in values.items()
        if value is not None
    )
    return f'    <node id="n{item.id}">{data}</node>\n'
