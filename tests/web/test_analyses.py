"""Analysis jobs over HTTP: submit, look, read the report; and their pages."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx2
import pytest

import onceflow
from onceflow import AsyncClient, Flow
from onceflow.client import ApiError
from onceflow.web import create_app
from tests.pipelines.test_analyze_files import BODIES, GONE, SITE, scripted
from tests.pipelines.test_analyze_report import Page
from tests.web.conftest import Fresh


@asynccontextmanager
async def serving(
    database: str, *, worker: bool = False, root: str = ""
) -> AsyncIterator[tuple[httpx2.AsyncClient, Flow]]:
    """The app in this process, asked without a socket."""
    flow = onceflow.open(database, scripted())
    app = create_app(flow, worker=worker)
    transport = httpx2.ASGITransport(app, root_path=root)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        yield client, flow


@pytest.fixture(params=["sqlite", "postgres"])
async def either(request: pytest.FixtureRequest, fresh: Fresh) -> AsyncIterator[Any]:
    """On each store in turn: what writes, or asks for what only a store can tell."""
    with fresh(request.param) as (_, database):
        async with serving(database) as found:
            yield found


@pytest.fixture
async def place(fresh: Fresh) -> AsyncIterator[Any]:
    with fresh("sqlite") as (_, database):
        async with serving(database) as found:
            yield found


async def finished(flow: Flow, *sites: str) -> list[int]:
    """Have sites analyzed to their end."""
    await flow.add("analyze", sites)
    await flow.drain()
    return [(await flow.item("analyze", site)).id for site in sites]


def kind_of(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


async def test_a_site_is_accepted_once(either: Any) -> None:
    client, flow = either
    first = await client.post("/api/analysis-jobs", json={"url": SITE})
    again = await client.post("/api/analysis-jobs", json={"url": SITE})

    assert (first.status_code, again.status_code) == (201, 200)
    job = first.json()
    assert first.headers["location"] == f"/api/analysis-jobs/{job['id']}"
    assert (job["url"], job["stage"], job["phase"]) == (SITE, "website-analysis", "ready")
    assert (job["inProgress"], job["retryCount"], job["report"]) == (False, 0, None)
    assert again.json()["id"] == job["id"]
    assert len(await flow.items("analyze")) == 1


async def test_a_key_gives_the_same_answer_again_and_is_for_one_body(either: Any) -> None:
    client, _ = either
    headers = {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(
        *(client.post("/api/analysis-jobs", json={"url": SITE}, headers=headers) for _ in range(4))
    )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = await client.post("/api/analysis-jobs", json={"url": GONE}, headers=headers)
    assert kind_of(other) == (422, "idempotency-key-used")


async def test_a_finished_job_has_everything_and_its_report_in_three_forms(place: Any) -> None:
    client, flow = place
    [id] = await finished(flow, SITE)
    job = (await client.get(f"/api/analysis-jobs/{id}")).json()

    assert job["extractedInfo"] == BODIES["website-analysis"]["extractedInfo"]
    assert job["prompts"] == BODIES["prompt-forming"]["prompts"]
    assert job["scores"] == BODIES["model-analysis"]["scores"]
    assert job["todo"] == BODIES["model-analysis"]["todo"]
    times = [job["websiteAnalyzedAt"], job["promptsFormedAt"], job["completedAt"]]
    assert sorted(times, key=datetime.fromisoformat) == times
    report = job["report"]
    page = await client.get(report["html"])
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "script-src" not in policy
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "Alder Bikes is named in 8 of 20 answers" in Page(page.text).text
    written = await client.get(report["md"])
    assert written.headers["content-type"] == "text/plain; charset=utf-8"
    assert written.text.startswith("# How assistants see Alder Bikes")
    assert (await client.get(report["json"])).json()["results"] == BODIES


async def test_a_job_without_a_report_says_why(place: Any) -> None:
    client, flow = place
    [gone] = await finished(flow, GONE)
    await client.post("/api/analysis-jobs", json={"url": SITE})
    waiting = (await flow.item("analyze", SITE)).id

    for form in ("html", "md", "json"):
        failed = await client.get(f"/api/analysis-jobs/{gone}/report.{form}")
        assert kind_of(failed) == (409, "failed")
        assert "403 to everything" in failed.json()["detail"]
        early = await client.get(f"/api/analysis-jobs/{waiting}/report.{form}")
        assert kind_of(early) == (409, "no-report-yet")
    assert kind_of(await client.get("/api/analysis-jobs/999")) == (404, "no-such-job")
    job = (await client.get(f"/api/analysis-jobs/{gone}")).json()
    assert job["error"]["class"] == "permanent"


async def test_jobs_are_listed_by_state_page_by_page(either: Any) -> None:
    client, flow = either
    await finished(flow, GONE, *(f"https://{at}.test/" for at in range(3)))
    page = (
        await client.get("/api/analysis-jobs", params={"state": "completed", "limit": 2})
    ).json()
    following = (await client.get(page["next"])).json()

    assert [len(page["jobs"]), len(following["jobs"])] == [2, 1]
    assert following["next"] is None
    wrong = await client.get("/api/analysis-jobs", params={"state": "nope"})
    assert kind_of(wrong) == (422, "no-such-state")


async def test_the_client_has_all_of_it(place: Any) -> None:
    plain, flow = place
    client = AsyncClient("http://127.0.0.1", transport=plain._transport)
    job = await client.analyze(SITE)
    with pytest.raises(ApiError, match="no report yet"):
        await client.report(job["id"])
    await flow.drain()

    assert (await client.analysis(job["id"]))["state"] == "completed"
    assert [one["id"] async for one in client.analyses(state="completed")] == [job["id"]]
    assert (await client.report(job["id"])).startswith("# How assistants see")
    assert (await client.report(job["id"], "html")).startswith("<!doctype html>")
    assert json.loads(await client.report(job["id"], "json"))["results"] == BODIES


# --- pages ---


async def test_the_page_takes_sites_and_shows_them(place: Any) -> None:
    client, flow = place
    assert "There are none yet" in Page((await client.get("/analysis")).text).text
    headers = {"Origin": "http://127.0.0.1"}
    one = await client.post("/analysis", data={"sites": SITE}, headers=headers)
    id = (await flow.item("analyze", SITE)).id
    assert (one.status_code, one.headers["location"]) == (303, f"/analysis/{id}")
    two = await client.post("/analysis", data={"sites": f"{SITE}\n{GONE}"}, headers=headers)
    assert two.headers["location"] == "/analysis"

    page = (await client.get("/analysis")).text
    assert SITE in page
    assert GONE in page
    assert '<noscript><meta http-equiv="refresh"' in page, "it is alive without a script"
    assert Page((await client.get("/analysis/rows")).text).text in Page(page).text


async def test_a_jobs_page_shows_its_way_its_findings_and_its_report(place: Any) -> None:
    client, flow = place
    done, gone = await finished(flow, SITE, GONE)
    text = (await client.get(f"/analysis/{done}")).text
    page = Page(text)

    assert page.open == []
    for words in ("Alder Bikes is named in 8 of 20 answers", "What to write or mend next",
                  "website-analysis", "stage_finished", "Analyze anew"):  # fmt: skip
        assert words in page.text, words
    links = [attrs["href"] for name, attrs in page.elements if name == "a"]
    assert f"/api/analysis-jobs/{done}/report.html" in links
    assert "refresh" not in text, "nothing more will happen"

    failed = Page((await client.get(f"/analysis/{gone}/part")).text)
    assert "403 to everything" in failed.text
    assert "Try again" in failed.text


async def test_the_buttons_do_what_they_say_once(place: Any) -> None:
    client, flow = place
    headers = {"Origin": "http://127.0.0.1"}
    done, gone = await finished(flow, SITE, GONE)
    for id, stage in ((done, "website-analysis"), (gone, "website-analysis")):
        for _ in range(2):
            answer = await client.post(f"/analysis/{id}/retry", headers=headers)
            assert answer.status_code == 303
        item = await flow.item(None, id)
        assert (item.stage, item.phase, item.generation) == (stage, "ready", 2)
    await client.post(f"/analysis/{done}/cancel", headers=headers)
    assert (await flow.item(None, done)).state == "cancelled"


async def test_under_a_path_prefix_every_link_keeps_it(fresh: Fresh) -> None:
    with fresh("sqlite") as (_, database):
        async with serving(database, root="/flow") as (client, flow):
            [id] = await finished(flow, SITE)
            for path in ("/flow/analysis", f"/flow/analysis/{id}"):
                page = Page((await client.get(path)).text)
                places = [
                    str(attrs.get(key))
                    for _, attrs in page.elements
                    for key in ("href", "src", "action", "data-part", "data-events")
                    if key in attrs
                ]
                assert [
                    place for place in places if not place.startswith(("/flow", "data:", "#"))
                ] == []


async def test_a_server_without_the_pipeline_says_so(fresh: Fresh) -> None:
    with fresh("sqlite") as (_, database):
        app = create_app(database, worker=False)
        transport = httpx2.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            assert kind_of(await client.get("/api/analysis-jobs")) == (404, "no-analyze")
            answer = await client.post("/api/analysis-jobs", json={"url": SITE})
            assert kind_of(answer) == (404, "no-analyze")
