"""The dashboard's pages: what the API says, drawn; whole without JavaScript, under any prefix."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

import onceflow
from onceflow import Flow, Permanent, Pipeline, Stage, Work
from onceflow.web import create_app
from onceflow.web.diagram import diagram
from tests.engine.kit import until
from tests.pipelines.test_analyze_report import Page
from tests.web.conftest import Fresh

ORIGIN = {"Origin": "http://127.0.0.1"}
EVIL = "<script>alert(1)</script>"
PATHS = ("/", "/items", "/runs", "/failures", "/processors")


class Desk:
    """A pipeline of two stages whose first can be held up."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()

    async def look(self, work: Work) -> dict[str, str]:
        await self.go.wait()
        if "gone" in work.key:
            raise Permanent(f"the page is gone {EVIL}", code="gone")
        said = "" if "long" not in work.key else " in words that make a text for people to read"
        return {"text": f"{EVIL} of {work.key}{said}"}

    def pipeline(self) -> Pipeline:
        return Pipeline(
            "desk",
            Stage("look", self.look, ready="unseen", active="looking", processors=2),
            Stage("tell", self.look, ready="seen", active="telling", processors=2),
        )


@asynccontextmanager
async def serving(
    database: str, desk: Desk, *, worker: bool = False, root: str = ""
) -> AsyncIterator[tuple[httpx2.AsyncClient, Flow]]:
    flow = onceflow.open(database, desk.pipeline())
    app = create_app(flow, worker=worker)
    transport = httpx2.ASGITransport(app, root_path=root)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        yield client, flow


@pytest.fixture(params=["sqlite", "postgres"])
async def either(request: pytest.FixtureRequest, fresh: Fresh) -> AsyncIterator[Any]:
    """On each store in turn: what asks for what only a store can tell."""
    with fresh(request.param) as (_, database):
        async with serving(database, Desk()) as found:
            yield found


@pytest.fixture
async def place(fresh: Fresh) -> AsyncIterator[Any]:
    with fresh("sqlite") as (_, database):
        async with serving(database, Desk()) as found:
            yield found


async def filled(flow: Flow) -> dict[str, int]:
    """One that is done, one that failed, one that is still to be done; their ids."""
    await flow.add("desk", ["a-done", "b-gone"])
    await flow.drain()
    await flow.add("desk", [f"c-{EVIL}"])
    return {item.key[0]: item.id for item in await flow.items("desk")}


async def shown(client: httpx2.AsyncClient, path: str) -> Page:
    answer = await client.get(path)
    assert answer.status_code == 200, (path, answer.text)
    page = Page(answer.text)
    assert page.open == []
    scripts = [attrs for name, attrs in page.elements if name == "script"]
    assert all(
        str(attrs.get("src", "")).startswith(("/static/", "/flow/static/")) for attrs in scripts
    )
    return page


async def test_every_page_is_there_when_there_is_nothing(place: Any) -> None:
    client, _ = place
    for path in PATHS:
        await shown(client, path)
    assert "Nothing has failed" in (await shown(client, "/failures")).text
    assert "No worker is at work" in (await shown(client, "/")).text


async def test_the_board_counts_by_stage_and_phase(either: Any) -> None:
    client, flow = either
    await filled(flow)
    page = await shown(client, "/")

    assert "desk 3 items" in page.text
    assert "1 failed" in page.text
    [label] = [attrs["aria-label"] for name, attrs in page.elements if name == "svg"]
    assert label == "the states of desk: look 1 waiting, 0 at work; tell 0 waiting, 0 at work"
    links = {attrs["href"] for name, attrs in page.elements if name == "a"}
    assert "/items?pipeline=desk&state=unseen" in links
    assert "/items?pipeline=desk&state=completed" in links
    part = await shown(client, "/board/part")
    assert part.text in page.text


async def test_items_are_listed_by_state_and_by_error(place: Any) -> None:
    client, flow = place
    await filled(flow)
    everything = (await shown(client, "/items")).text
    assert all(key in everything for key in ("a-done", "b-gone", f"c-{EVIL}"))
    failed = (await shown(client, "/items?pipeline=desk&state=failed&error_code=gone")).text
    assert "b-gone" in failed
    assert "a-done" not in failed
    assert "nope" in (await shown(client, "/items?state=nope")).text


async def test_an_items_page_has_its_attempts_results_timeline_and_buttons(place: Any) -> None:
    client, flow = place
    ids = await filled(flow)
    done = (await shown(client, f"/items/{ids['a']}")).text
    for words in ("a-done", "completed", "stage_finished", f"{EVIL} of a-done", "Try again"):
        assert words in done, words
    gone = (await shown(client, f"/items/{ids['b']}")).text
    assert f"the page is gone {EVIL}" in gone
    waiting = (await shown(client, f"/items/{ids['c']}/part")).text
    assert "Cancel" in waiting
    assert "Try again" not in waiting
    assert (await client.get("/items/9999")).status_code == 404

    for _ in range(2):
        answer = await client.post(f"/items/{ids['c']}/cancel", headers=ORIGIN)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/items/{ids['c']}")
    assert (await flow.item(None, ids["c"])).phase == "cancelled"


async def test_what_came_out_is_shown_as_text_and_once(place: Any) -> None:
    client, flow = place
    await flow.add("desk", ["long"])
    await flow.drain()
    page = await shown(client, "/items/1")
    prose = [attrs for name, attrs in page.elements if "prose" in str(attrs.get("class"))]
    assert [attrs["dir"] for attrs in prose] == ["auto"]  # of the last stage alone
    assert f"{EVIL} of long in words that make a text for people to read" in page.text


async def test_failures_are_grouped_and_tried_again_together(either: Any) -> None:
    client, flow = either
    await flow.add("desk", ["gone-1", "gone-2", "fine"])
    await flow.drain()
    page = await shown(client, "/failures")
    assert "2 items of desk / look" in page.text
    assert f"the page is gone {EVIL}" in page.text
    await client.post("/failures/desk/gone/retry", headers=ORIGIN)
    assert await flow.counts("desk") == {"unseen": 2, "completed": 1}
    assert (await client.post("/failures/nope/gone/retry", headers=ORIGIN)).status_code == 404


async def test_a_runs_page_says_how_far_it_is(place: Any) -> None:
    client, flow = place
    await filled(flow)
    [newest, first] = await flow.runs()
    listed = (await shown(client, "/runs")).text
    assert first.id in listed
    assert newest.id in listed
    page = (await shown(client, f"/runs/{first.id}")).text
    assert "2 of 2 settled" in page
    assert "1 failed" in page
    assert "0 of 1 settled" in (await shown(client, f"/runs/{newest.id}/part")).text
    assert (await client.get("/runs/nope")).status_code == 404


async def test_processors_at_work_are_drawn_with_what_they_work_on(fresh: Fresh) -> None:
    with fresh("sqlite") as (_, database):
        desk = Desk()
        desk.go.clear()
        async with serving(database, desk, worker=True) as (client, flow):
            await flow.add("desk", ["a"])

            async def drawn() -> Page | None:
                page = await shown(client, "/processors/part")
                return page if "1 idle, 1 busy, 0 error" in page.text else None

            page = await until(flow, drawn)
            assert "look-processor-1, busy a" in page.text
            marks = [attrs["class"] for name, attrs in page.elements if name == "i"]
            assert marks == ["busy", "idle", "idle", "idle"]
            for part in ("JobScheduler", "JobQueue", "JobCoordinator", "ProcessorPool"):
                assert part in page.text
            assert "✓ ok" in page.text
            desk.go.set()


async def test_under_a_path_prefix_every_link_of_every_page_keeps_it(fresh: Fresh) -> None:
    with fresh("sqlite") as (_, database):
        async with serving(database, Desk(), root="/flow") as (client, flow):
            ids = await filled(flow)
            [run, _] = await flow.runs()
            for path in (*PATHS, f"/items/{ids['b']}", f"/runs/{run.id}"):
                page = await shown(client, f"/flow{path}")
                places = [
                    str(attrs[key])
                    for _, attrs in page.elements
                    for key in ("href", "src", "action", "data-part", "data-events")
                    if key in attrs
                ]
                ours = ("/flow", "data:", "#")
                assert [place for place in places if not place.startswith(ours)] == []


def test_a_diagram_takes_names_of_any_length_and_escapes_them() -> None:
    counts = dict.fromkeys(("waiting", "ready", "active", "done", "failed", "cancelled"), 7)
    states = dict.fromkeys(counts, EVIL * 5)
    drawn = diagram(EVIL, [("x" * 60, states, counts), ("b", states, counts)])

    assert "<script" not in drawn
    assert "…" in drawn
    assert drawn.count("<rect") == 2
