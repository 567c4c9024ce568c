"""The API's conventions: problems, pages, idempotency keys, events, health and metrics."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from tests.web.conftest import Place
from tests.web.kit import Puppet

PROBLEM = "application/problem+json"


@pytest.fixture
def client(quiet: Place) -> Iterator[httpx2.Client]:
    with quiet.client() as client:
        yield client


def is_problem(answer: httpx2.Response, status: int, kind: str) -> bool:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    body = answer.json()
    assert body["type"] == f"urn:onceflow:problem:{kind}"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    return True


def test_every_error_is_a_problem(client: httpx2.Client) -> None:
    assert is_problem(client.get("/nowhere"), 404, "not-found")
    assert is_problem(client.get("/api/ingestion-jobs/7777777"), 404, "no-such-job")
    assert is_problem(client.get("/api/items/7777777"), 404, "no-such-item")
    assert is_problem(client.get("/api/runs/nonesuch"), 404, "no-such-run")
    wrong = client.request("DELETE", "/api/items/1")
    assert is_problem(wrong, 405, "method-not-allowed")
    assert "GET" in wrong.headers["allow"]
    assert is_problem(client.get("/api/items/x"), 422, "invalid")
    assert is_problem(client.post("/api/ingestion-jobs", json={}), 422, "invalid")
    assert is_problem(client.post("/api/ingestion-jobs", json={"url": "x"}), 422, "bad-url")
    refused = client.post("/api/ingestion-jobs", json={"url": "ftp://a.test/"})
    assert is_problem(refused, 422, "refused-scheme")
    unknown = client.post("/api/ingestion-jobs", json={"url": "https://a.test/", "more": 1})
    assert is_problem(unknown, 422, "invalid")


def test_a_new_job_is_201_and_a_known_one_200_in_any_spelling(
    client: httpx2.Client, url: str
) -> None:
    first = client.post("/api/ingestion-jobs", json={"url": url})
    assert first.status_code == 201
    assert first.headers["location"] == f"/api/ingestion-jobs/{first.json()['id']}"
    assert (first.json()["state"], first.json()["stage"], first.json()["phase"]) == (
        "QUEUED",
        "fetch",
        "ready",
    )
    again = client.post("/api/ingestion-jobs", json={"url": f"{url}#part"})
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert client.get(first.headers["location"]).json() == again.json()


def test_an_idempotency_key_gives_the_same_answer_and_refuses_another_body(
    client: httpx2.Client, url: str
) -> None:
    key = {"Idempotency-Key": f"key-{url}"}
    first = client.post("/api/ingestion-jobs", json={"url": url}, headers=key)
    again = client.post("/api/ingestion-jobs", json={"url": url}, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    other = client.post("/api/ingestion-jobs", json={"url": f"{url}?2"}, headers=key)
    assert is_problem(other, 422, "idempotency-key-used")
    known = {"Idempotency-Key": f"other-{url}"}
    assert client.post("/api/ingestion-jobs", json={"url": url}, headers=known).status_code == 200


def test_a_run_is_added_once_for_its_idempotency_key(client: httpx2.Client, url: str) -> None:
    key = {"Idempotency-Key": f"run-{url}"}
    body = {"pipeline": "ingest", "keys": [f"{url}?a", f"{url}?b"]}
    first = client.post("/api/runs", json=body, headers=key)
    assert (first.status_code, first.json()["new"]) == (201, 2)
    again = client.post("/api/runs", json=body, headers=key)
    assert again.json()["run"] == first.json()["run"]
    other = client.post("/api/runs", json={**body, "keys": [url]}, headers=key)
    assert is_problem(other, 422, "idempotency-key-used")
    run = client.get(first.headers["location"]).json()
    assert (run["run"]["accepted"], run["states"]) == (2, {"QUEUED": 2})
    assert is_problem(
        client.post("/api/runs", json={**body, "pipeline": "nope"}), 422, "no-such-pipeline"
    )


def test_pages_are_stable_while_items_come_in(client: httpx2.Client, url: str) -> None:
    keys = [f"{url}?page={number}" for number in range(25)]
    added = client.post("/api/runs", json={"pipeline": "ingest", "keys": keys}).json()
    seen: list[str] = []
    address: str | None = f"/api/items?run={added['run']}&limit=10"
    while address:
        answer = client.get(address)
        page = answer.json()
        seen += [item["key"] for item in page["items"]]
        address = page["next"]
        if address:
            assert answer.headers["link"] == f'<{address}>; rel="next"'
        client.post("/api/ingestion-jobs", json={"url": f"{url}?late={len(seen)}"})
    assert seen == keys
    runs = client.get("/api/runs?limit=1").json()
    assert (len(runs["runs"]), client.get(runs["next"]).status_code) == (1, 200)
    jobs = client.get("/api/ingestion-jobs?limit=1&state=QUEUED").json()
    assert [job["state"] for job in jobs["jobs"]] == ["QUEUED"]
    assert jobs["next"]


async def test_an_item_comes_with_its_results_history_and_why(
    quiet: Place, puppet: Puppet, url: str
) -> None:
    item = await puppet.add(url)
    await puppet.put(item, "READY_TO_GENERATE")
    with quiet.client() as client:
        found = client.get(f"/api/items/{item}").json()
        assert found["item"]["state"] == "READY_TO_GENERATE"
        assert [result["stage"] for result in found["results"]] == ["fetch", "extract"]
        assert found["events"][0]["kind"] == "added"
        assert "held until somebody triggers" in found["why"]
        raw = client.get(f"/api/ingestion-jobs/{item}/raw-html")
        assert raw.headers["content-type"] == "text/plain; charset=utf-8"
        assert raw.text.startswith("<html>")
        assert is_problem(client.post(f"/api/items/{item}/release"), 409, "not-fitting")
        cancelled = client.post(f"/api/items/{item}/cancel", json={"why": "not wanted"})
        assert cancelled.json()["item"]["state"] == "CANCELLED"
        assert is_problem(client.post(f"/api/items/{item}/cancel"), 409, "not-fitting")
        assert is_problem(client.post(f"/api/ingestion-jobs/{item}/generate"), 409, "cancelled")
        unknown = client.post(f"/api/items/{item}/retry", json={"from_stage": "nope"})
        assert is_problem(unknown, 422, "invalid")
        again = client.post(f"/api/items/{item}/retry", json={"from_stage": "extract"})
        assert again.json()["item"]["stage"] == "extract"


def test_health_stats_processors_and_metrics(client: httpx2.Client, url: str) -> None:
    client.post("/api/ingestion-jobs", json={"url": url})
    health = client.get("/health").json()
    assert (health["ok"], health["worker"]) == (True, False)
    stats = client.get("/api/stats").json()
    states = stats["states"]["ingest"]
    assert sum(states.values()) == sum(
        row["items"] for row in stats["phases"] if row["pipeline"] == "ingest"
    )
    assert stats["depths"] == {"expand": {}}
    assert client.get("/api/processors").json()["here"] is None
    text = client.get("/metrics").text
    assert re.search(r'^onceflow_items\{pipeline="ingest",state="QUEUED"\} \d+$', text, re.M)
    assert re.search(r'^onceflow_http_answers_total\{status="200"\} \d+$', text, re.M)


def test_a_server_that_works_says_so(busy: Place) -> None:
    with busy.client() as client:
        assert client.get("/health").json()["worker"] is True
        while not (processors := client.get("/api/processors").json())["workers"]:
            time.sleep(0.1)  # its first heartbeat is on its way
        assert {one["stage"] for one in processors["here"]["processors"]} >= {"fetch", "generate"}
        [worker] = processors["workers"]
        assert (worker["ended"], worker["report"]["healthy"]) == (False, True)
        parts = processors["parts"]
        assert set(parts) == set(client.get("/api/stats").json()["parts"])
        scheduler, queue = parts["JobScheduler"], parts["JobQueue"]
        assert (scheduler["scan_seconds"], scheduler["batch"]["ingest/fetch"]) == (60.0, 10)
        assert queue["queue_max"] == 1000
        assert set(queue["refused"]) == {
            "already queued", "being processed", "queued in another stage", "queue full"
        }  # fmt: skip
        coordinator, pool = parts["JobCoordinator"], parts["ProcessorPool"]
        assert (coordinator["assign_seconds"], coordinator["health_seconds"]) == (5.0, 30.0)
        assert coordinator["order"][:3] == ["ingest/fetch", "ingest/extract", "ingest/generate"]
        assert set(pool["states"]["ingest/fetch"]) == {"idle", "busy", "error"}
        text = client.get("/metrics").text
        assert re.search(r'^onceflow_contested_total\{worker="[^"]+:\d+"\} \d+$', text, re.M)
        assert 'onceflow_processors{stage="ingest/fetch",state="error"} 0\n' in text
        assert 'onceflow_queue_items{stage="ingest/fetch"} 0\n' in text
        assert "\nonceflow_workers 1\n" in text


# --- events ---


@contextmanager
def stream(client: httpx2.Client, **options: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """The messages of an event stream, as a browser would take them apart."""

    def messages(answer: httpx2.Response) -> Iterator[dict[str, Any]]:
        one: dict[str, Any] = {}
        for line in answer.iter_lines():
            if not line and "data" in one:
                yield one
                one = {}
            elif line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                one[name] = json.loads(value) if name == "data" else value

    with client.stream("GET", "/api/events", **options) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield messages(answer)


def test_a_stream_begins_with_a_snapshot_and_goes_on_with_each_event(
    quiet: Place, client: httpx2.Client, url: str
) -> None:
    job = client.post("/api/ingestion-jobs", json={"url": url}).json()
    with quiet.client() as reader, stream(reader, params={"item": job["id"]}) as messages:
        first = next(messages)
        assert (first["event"], first["data"]["item"]["state"]) == ("snapshot", "QUEUED")
        assert first["id"] == str(first["data"]["seq"])
        client.post(f"/api/items/{job['id']}/cancel")
        second = next(messages)
        assert (second["event"], second["data"]["state"]) == ("cancelled", "CANCELLED")
        assert int(second["id"]) == second["data"]["seq"] > int(first["id"])


def test_a_stream_resumes_after_the_last_event_without_gap_or_repetition(
    quiet: Place, client: httpx2.Client, url: str
) -> None:
    job = client.post("/api/ingestion-jobs", json={"url": url}).json()
    for command in ("cancel", "retry", "cancel", "retry", "cancel"):
        assert client.post(f"/api/items/{job['id']}/{command}").status_code == 200
    wanted = client.get(f"/api/items/{job['id']}").json()["events"]
    seen: list[int] = []
    last = str(wanted[0]["seq"] - 1)
    while len(seen) < len(wanted):  # dropped after every second event
        headers = {"Last-Event-ID": last}
        with (
            quiet.client() as reader,
            stream(reader, params={"item": job["id"]}, headers=headers) as messages,
        ):
            for message, _ in zip(messages, range(2), strict=False):
                seen.append(message["data"]["seq"])
                last = message["id"]
                if len(seen) == len(wanted):
                    break
    assert seen == [event["seq"] for event in wanted]


def test_a_stored_history_as_lines(client: httpx2.Client, url: str) -> None:
    job = client.post("/api/ingestion-jobs", json={"url": url}).json()
    answer = client.get(
        "/api/events",
        params={"item": job["id"], "follow": "false", "kinds": "added"},
        headers={"Accept": "application/x-ndjson"},
    )
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    [line] = answer.text.splitlines()
    assert json.loads(line)["key"] == url


def test_an_event_id_from_elsewhere_is_refused(client: httpx2.Client) -> None:
    far = client.get("/api/events", headers={"Last-Event-ID": "99999999999"})
    assert is_problem(far, 410, "gone")
    bad = client.get("/api/events", headers={"Last-Event-ID": "x"})
    assert is_problem(bad, 400, "bad-event-id")


def test_many_readers_get_every_event_in_order(quiet: Place, client: httpx2.Client) -> None:
    """Eight readers, from before the first of forty events: nobody misses one or gets it twice."""
    job = client.post("/api/ingestion-jobs", json={"url": "https://many-readers.test/"}).json()
    ready = threading.Barrier(9)
    got: list[list[int]] = [[] for _ in range(8)]

    def read(at: int) -> None:
        with quiet.client() as reader, stream(reader, params={"item": job["id"]}) as messages:
            next(messages)
            ready.wait(30)
            for message in messages:
                got[at].append(message["data"]["seq"])
                if len(got[at]) == 40:
                    return

    threads = [threading.Thread(target=read, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    ready.wait(30)
    for _ in range(20):
        client.post(f"/api/items/{job['id']}/cancel")
        client.post(f"/api/items/{job['id']}/retry")
    for thread in threads:
        thread.join(60)
    events = client.get(f"/api/items/{job['id']}").json()["events"]
    wanted = [event["seq"] for event in events][-40:]
    assert got == [wanted] * 8
