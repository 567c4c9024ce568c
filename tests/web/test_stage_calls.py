"""The idempotency table, cell by cell, through real HTTP, on both stores.

In `quiet` nobody works, so every state stays as the test puts it. In `busy` the server works:
a cell that performs is shown there, and what is counted is that it was performed once.
"""

import asyncio
from typing import Any

import pytest

from tests.cli.loopback import Loopback
from tests.pipelines.conftest import article
from tests.web.conftest import Fresh, Place
from tests.web.kit import STAGES, Puppet, Server, puppet_flow, served

STATES = (
    "QUEUED", "FETCHING, no page", "FETCHING, page", "EXTRACTING", "READY_TO_GENERATE",
    "GENERATING", "SAVED",
)  # fmt: skip
DONE = {"QUEUED": 0, "FETCHING, no page": 0, "FETCHING, page": 1, "EXTRACTING": 1}
DONE |= {"READY_TO_GENERATE": 2, "GENERATING": 2, "SAVED": 3}
HELD = ("FETCHING, no page", "EXTRACTING", "GENERATING")
PUBLIC = {"FETCHING, no page": "FETCHING", "FETCHING, page": "FETCHING"}
CELLS = [(state, stage) for state in STATES for stage in STAGES]
SKIPPED = [cell for cell in CELLS if DONE[cell[0]] > STAGES.index(cell[1])]
TOO_EARLY = [cell for cell in CELLS if DONE[cell[0]] < STAGES.index(cell[1])]
AT_IT = [cell for cell in CELLS if DONE[cell[0]] == STAGES.index(cell[1]) and cell[0] in HELD]
OPEN = [cell for cell in CELLS if DONE[cell[0]] == STAGES.index(cell[1]) and cell[0] not in HELD]


def test_every_cell_of_the_table_is_in_one_of_the_four_lists() -> None:
    assert sorted(SKIPPED + TOO_EARLY + AT_IT + OPEN) == sorted(CELLS)
    assert (len(SKIPPED), len(TOO_EARLY), len(AT_IT), len(OPEN)) == (9, 6, 3, 3)


async def call(place: Place | Server, item: int, stage: str, **query: Any) -> Any:
    def post() -> Any:
        with place.client() as client:
            return client.post(f"/api/ingestion-jobs/{item}/{stage}", params=query)

    return await asyncio.to_thread(post)


async def history(puppet: Puppet, item: int) -> list[tuple[str, str | None]]:
    rows = await puppet.flow.store.read("history", item=item, after=0, most=1000)
    return [(row["kind"], row["stage"]) for row in rows]


@pytest.mark.parametrize(("state", "stage"), SKIPPED)
async def test_what_is_past_is_skipped_with_its_result_and_nothing_changes(
    quiet: Place, puppet: Puppet, url: str, state: str, stage: str
) -> None:
    item = await puppet.add(url)
    await puppet.put(item, state)
    before = await history(puppet, item)
    answer = await call(quiet, item, stage)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["success"], body["skipped"]) == (True, True)
    assert body["job"]["state"] == PUBLIC.get(state, state)
    assert body["job"]["fetchedAt"] is not None
    if stage == "extract":
        assert body["job"]["extractedText"] == "Bread is baked."
    if stage == "generate":
        assert body["job"]["story"]["headline"] == "Bread"
        assert body["job"]["savedAt"] == body["job"]["generatedAt"] is not None
    assert await history(puppet, item) == before


@pytest.mark.parametrize(("state", "stage"), TOO_EARLY)
async def test_what_cannot_be_yet_is_409_and_says_what_is_missing(
    quiet: Place, puppet: Puppet, url: str, state: str, stage: str
) -> None:
    item = await puppet.add(url)
    await puppet.put(item, state)
    before = await history(puppet, item)
    answer = await call(quiet, item, stage)
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    wanted = {"extract": "no page yet", "generate": "no text yet"}[stage]
    assert body["detail"].startswith(wanted)
    assert body["type"] == f"urn:onceflow:problem:{wanted.replace(' ', '-')}"
    assert (body["item"], body["state"]) == (item, PUBLIC.get(state, state))
    assert await history(puppet, item) == before


@pytest.mark.parametrize(("state", "stage"), AT_IT)
async def test_what_somebody_is_at_is_joined_and_then_skipped(
    quiet: Place, puppet: Puppet, url: str, state: str, stage: str
) -> None:
    item = await puppet.add(url)
    lease = await puppet.put(item, state)
    assert lease is not None
    at_once = await call(quiet, item, stage, wait=0)
    assert at_once.status_code == 202
    assert at_once.headers["retry-after"] == "1"
    assert at_once.json()["job"]["inProgress"] is True
    joined = asyncio.create_task(call(quiet, item, stage))
    await puppet.finish(lease)
    answer = await joined
    assert answer.status_code == 200
    assert answer.json()["skipped"] is True
    assert (await history(puppet, item)).count(("claimed", stage)) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_lost_lease_is_taken_over_and_the_stage_performed_once(
    kind: str, fresh: Fresh, world: Loopback
) -> None:
    with fresh(kind) as (folder, database):
        async with puppet_flow(database) as flow:
            puppets: list[tuple[Puppet, int, str]] = []
            for number, (state, stage) in enumerate(AT_IT):
                puppet = Puppet(flow, flow.pipelines["ingest"])
                item = await puppet.add(world.articles(3)[number])
                await puppet.put(item, state)
                puppets.append((puppet, item, stage))
            with served(folder, database, world=world) as server:
                for puppet, item, stage in puppets:
                    alive = await call(server, item, stage, wait=0)
                    assert alive.status_code == 202, "its lease is alive"
                    await puppet.die()
                    answer = await call(server, item, stage)
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["success"] is True
                    told = await history(puppet, item)
                    assert told.count(("reclaimed", stage)) == 1
                    assert told.count(("claimed", stage)) == 2
                    assert told.count(("stage_finished", stage)) == 1
            assert await flow.audit() == []


async def test_queued_fetch_is_performed(busy: Place, busy_puppet: Puppet, url: str) -> None:
    with busy.client() as client:
        job = client.post("/api/ingestion-jobs", json={"url": url}).json()
        answer = client.post(f"/api/ingestion-jobs/{job['id']}/fetch")
    assert answer.status_code == 200
    assert answer.json()["job"]["fetchedAt"] is not None
    assert busy.world.site.paths().count(url.removeprefix(busy.world.site.url(""))) == 1
    told = await history(busy_puppet, job["id"])
    assert told.count(("claimed", "fetch")) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_page_stored_extract_is_performed(kind: str, fresh: Fresh, world: Loopback) -> None:
    with fresh(kind) as (folder, database):
        async with puppet_flow(database) as flow:
            puppet = Puppet(flow, flow.pipelines["ingest"])
            item = await puppet.add(world.articles(1)[0])
            await puppet.put(item, "FETCHING, page")
            await flow.pause("ingest", "extract")
            with served(folder, database, world=world) as server:
                assert (await call(server, item, "extract", wait=0)).status_code == 202
                calling = asyncio.create_task(call(server, item, "extract"))
                await flow.resume("ingest", "extract")
                answer = await calling
            assert answer.status_code == 200
            assert answer.json()["job"]["state"] == "READY_TO_GENERATE"
            told = await history(puppet, item)
            assert told.count(("claimed", "extract")) == 1
            assert told.count(("stage_finished", "extract")) == 1


async def test_ready_generate_is_performed_and_again_is_skipped(
    busy: Place, busy_puppet: Puppet, url: str
) -> None:
    asked = busy.world.summarized["story"]
    with busy.client() as client:
        job = client.post("/api/ingestion-jobs", json={"url": url}).json()
        assert client.post(f"/api/ingestion-jobs/{job['id']}/fetch").status_code == 200
        assert client.post(f"/api/ingestion-jobs/{job['id']}/extract").status_code == 200
        first = client.post(f"/api/ingestion-jobs/{job['id']}/generate")
        again = client.post(f"/api/ingestion-jobs/{job['id']}/generate")
    assert (first.status_code, first.json()["skipped"]) == (200, False)
    assert (again.status_code, again.json()["skipped"]) == (200, True)
    assert first.json()["job"] == again.json()["job"]
    assert first.json()["job"]["story"]["headline"] == "Bread"
    assert busy.world.summarized["story"] == asked + 1


async def test_a_call_for_an_unknown_id_is_404(quiet: Place) -> None:
    for stage in STAGES:
        answer = await call(quiet, 999_999_999, stage)
        assert (answer.status_code, answer.json()["type"]) == (
            404,
            "urn:onceflow:problem:no-such-job",
        )


async def test_a_failed_article_says_stage_reason_and_class_and_can_be_retried(
    busy: Place,
) -> None:
    with busy.client() as client:
        url = busy.world.site.url(f"/missing-{busy.kind}")
        job = client.post("/api/ingestion-jobs", json={"url": url}).json()
        answer = client.post(f"/api/ingestion-jobs/{job['id']}/fetch")
        assert answer.status_code == 409
        assert answer.json()["type"] == "urn:onceflow:problem:failed"
        shown = client.get(f"/api/ingestion-jobs/{job['id']}").json()
        assert shown["state"] == "FAILED"
        assert shown["error"] == {
            "stage": "fetch", "reason": f"{url} answered 404", "code": "http_404",
            "class": "permanent",
        }  # fmt: skip
        busy.world.site.answer(f"/missing-{busy.kind}", article("bread"))
        retried = client.post(f"/api/items/{job['id']}/retry")
        assert retried.status_code == 200
        assert client.post(f"/api/ingestion-jobs/{job['id']}/extract").status_code in (200, 409)
        assert client.post(f"/api/ingestion-jobs/{job['id']}/fetch").status_code == 200
