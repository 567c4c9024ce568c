"""A small world of articles, and a pipeline of the shape of `expand` that loads them from it."""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onceflow
from onceflow import Done, Flow, Permanent, Pipeline, Stage, Transient, Work
from onceflow.clients.embed import word_vectors


@dataclass
class Page:
    """One article of the world."""

    sections: list[tuple[str, str]]
    links: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    redirects: list[str] = field(default_factory=list)
    revision: int = 1
    fails: bool = False


def bread() -> dict[str, Page]:
    """A few articles that are about different things."""
    return {
        "Bread": Page(
            [
                ("", "Bread is a staple food prepared from a dough of flour and water."),
                ("History", "Egyptian bakers leavened dough with wild yeast five thousand "
                 "years ago."),
                ("Baking", "A loaf is baked in a hot oven until its crust is brown."),
                ("Gallery", ""),
            ],
            links=["Yeast", "Oven", "Flour (food)", "Nowhere"],
            categories=["Foods", "Baking"],
            redirects=["Breads"],
        ),
        "Yeast": Page(
            [
                ("", "Yeasts are microorganisms of the fungus kingdom with a single cell."),
                ("Fermentation", "It turns sugar into alcohol and carbon dioxide gas."),
            ],
            links=["Breads", "Fungus"],
            categories=["Fungi", "Baking"],
        ),
        "Oven": Page(
            [("", "An oven is a heated chamber for cooking, baking and roasting.")],
            links=["Bread"],
            categories=["Kitchen"],
        ),
        "Flour": Page(
            [("", "Flour is a powder made by grinding raw grains such as wheat.")],
            links=["Bread", "Flour"],
            categories=["Foods"],
            redirects=["Flour (food)"],
        ),
        "Fungus": Page([("", "Fungi include mushrooms, moulds and yeasts.")], links=["Yeast"]),
    }  # fmt: skip


def body_of(title: str, page: Page) -> dict[str, Any]:
    """What `load` commits for an article."""
    return {
        "title": title,
        "page_id": sum(title.encode()),
        "revision": page.revision,
        "url": f"https://wiki.test/wiki/{title.replace(' ', '_')}",
        "redirects": page.redirects,
        "categories": page.categories,
        "sections": [
            {
                "n": n,
                "level": 1 if heading == "" else 2,
                "heading": heading,
                "anchor": heading.replace(" ", "_"),
                "text": text,
                "vector": vector_of(text),
            }
            for n, (heading, text) in enumerate(page.sections)
        ],
        "links": page.links,
        "embed_model": "embedded",
    }


def vector_of(text: str) -> str:
    if not text:
        return ""
    return base64.b64encode(word_vectors([text])[0].astype("<f4").tobytes()).decode()


def expand(world: dict[str, Page], body: Callable[[str, Page], Any] = body_of) -> Pipeline:
    """The pipeline: a title that is not in the world is not found."""
    known = {name: title for title, page in world.items() for name in [title, *page.redirects]}

    async def load(work: Work) -> Done:
        page = world.get(work.key)
        if page is None:
            raise Permanent(f"there is no article {work.key}", code="not_found")
        if page.fails:
            raise Transient("the wiki is away", code="timeout")
        return Done(body(work.key, page), aliases=page.redirects)

    async def link(work: Work) -> Done:
        links = [known.get(name, name) for name in work.input["links"]]
        return Done({"links": len(links), "new": 0, "depth": work.depth}, children=links)

    return Pipeline(
        "expand",
        Stage("load", load, ready="discovered", active="claimed"),
        Stage("link", link, ready="loaded", active="loaded"),
        done="processed",
        failed="failed",
    )


async def grown(database: str, world: dict[str, Page], *seeds: str) -> Flow:
    """A flow, open, in whose database everything that the seeds lead to is loaded."""
    flow = onceflow.open(database, expand(world))
    await flow.__aenter__()
    await flow.add("expand", seeds or list(world)[:1])
    await flow.drain()
    return flow


def changed(file: Path, what: str, to: str) -> None:
    """Put something else into a file."""
    text, count = re.subn(what, to, file.read_text())
    assert count
    file.write_text(text)
