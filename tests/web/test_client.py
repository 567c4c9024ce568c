"""The clients: sync and async, retries of what is safe, events that resume by themselves."""

import json
from typing import Any

import httpx2
import pytest

import onceflow
from onceflow import OnceflowError
from onceflow.client import ApiError, AsyncClient, Client
from tests.web.conftest import Place


def test_an_article_from_its_url_to_its_story(busy: Place, url: str) -> None:
    with onceflow.Client(busy.server.url) as client:
        job = client.submit(url)
        assert client.extract(job["id"])["job"]["state"] == "READY_TO_GENERATE"
        story = client.generate(job["id"])["job"]["story"]
        assert story["headline"] == "Bread"
        assert client.generate(job["id"])["skipped"] is True
        assert client.fetch(job["id"])["skipped"] is True
        assert client.job(job["id"])["state"] == "SAVED"
        kinds = [event["kind"] for event in client.events(item=job["id"], follow=False)]
        assert kinds.count("stage_finished") == 3
        assert client.health()["ok"] is True
        assert client.stats()["states"]["ingest"]["SAVED"] >= 1
        assert job["id"] in [one["id"] for one in client.jobs(state="SAVED", limit=1)]


async def test_the_same_for_asyncio(busy: Place, url: str) -> None:
    async with onceflow.AsyncClient(busy.server.url) as client:
        job = await client.submit(url)
        assert (await client.extract(job["id"]))["success"] is True
        assert (await client.generate(job["id"]))["job"]["state"] == "SAVED"
        assert (await client.fetch(job["id"]))["skipped"] is True
        added = await client.add("ingest", [url])
        assert (added["new"], added["known"]) == (0, 1)
        assert (await client.run(added["run"]))["run"]["accepted"] == 1
        found = [one["id"] async for one in client.items(run=added["run"])]
        assert found == [job["id"]]
        assert (await client.item(job["id"]))["item"]["state"] == "SAVED"
        states = []
        async for event in client.events(item=job["id"], after=0):
            states.append(event["state"])
            if event["state"] == "SAVED":
                break
        assert states[0] == "QUEUED"
        with pytest.raises(ApiError) as refused:
            await client.cancel(job["id"])
        assert (refused.value.status, refused.value.kind) == (409, "not-fitting")
        assert (await client.health())["ok"] is True
        assert "ingest" in (await client.stats())["states"]
        assert (await client.job(job["id"]))["id"] == job["id"]
        assert [one["id"] async for one in client.jobs(limit=1000)]


def test_operators_commands(quiet: Place, url: str) -> None:
    with onceflow.Client(quiet.server.url) as client:
        run = client.add("ingest", [url])
        [item] = client.items(run=run["run"])
        assert client.cancel(item["id"], why="a test")["item"]["state"] == "CANCELLED"
        assert client.retry(item["id"])["item"]["state"] == "QUEUED"
        with pytest.raises(ApiError, match="not-fitting"):
            client.release(item["id"])
        assert client.item(item["id"])["item"]["key"] == url
        assert client.run(run["run"])["run"]["accepted"] == 1
        with pytest.raises(ApiError, match="404 no-such-job"):
            client.job(123456789)


class Script(httpx2.BaseTransport):
    """A server's answers, in turn."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class AsyncScript(httpx2.AsyncBaseTransport):
    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.sync = Script(*answers)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.sync.handle_request(request)


def busy_now(seconds: str = "3") -> httpx2.Response:
    return httpx2.Response(503, json={"detail": "busy"}, headers={"Retry-After": seconds})


def test_what_is_safe_is_tried_again_with_the_same_key() -> None:
    job = {"id": 1}
    script = Script(
        httpx2.ReadError("cut"), busy_now(), httpx2.ConnectError("gone"),
        httpx2.Response(201, json=job),
    )  # fmt: skip
    slept: list[float] = []
    client = Client("http://a.test", transport=script, sleep=slept.append, pause_seconds=0.5)
    assert client.submit("https://a.test/") == job
    assert len({request.headers["idempotency-key"] for request in script.requests}) == 1
    assert slept == [0.5, 3.0, 2.0]  # Retry-After is a floor


def test_a_command_that_may_have_been_done_is_not_repeated() -> None:
    script = Script(httpx2.ConnectError("refused"), httpx2.ReadError("cut"))
    client = Client("http://a.test", transport=script, sleep=lambda _: None)
    with pytest.raises(OnceflowError, match="cannot be reached"):
        client.cancel(1)
    assert len(script.requests) == 2  # the first was never sent


def test_after_so_many_tries_it_gives_up() -> None:
    script = Script(*(busy_now() for _ in range(3)))
    client = Client("http://a.test", transport=script, sleep=lambda _: None, tries=3)
    with pytest.raises(ApiError) as error:
        client.health()
    assert error.value.status == 503


def test_an_answer_that_is_no_json_is_an_error_too() -> None:
    script = Script(httpx2.Response(200, text="<html>"))
    client = Client("http://a.test", transport=script, sleep=lambda _: None)
    with pytest.raises(ApiError, match="no JSON"):
        client.health()


def test_pages_go_on_under_a_path_too() -> None:
    first = {"items": [{"id": 1}], "next": "/once/api/items?limit=1&after=1"}
    script = Script(
        httpx2.Response(200, json=first), httpx2.Response(200, json={"items": [], "next": None})
    )
    client = Client("http://a.test/once", transport=script, sleep=lambda _: None)
    assert [item["id"] for item in client.items(limit=1)] == [1]
    asked = [str(request.url) for request in script.requests]
    assert asked == [
        "http://a.test/once/api/items?limit=1", "http://a.test/once/api/items?limit=1&after=1",
    ]  # fmt: skip


def lines(*seqs: int) -> str:
    return "".join(json.dumps({"seq": seq}) + "\n" for seq in seqs) + "\n"


def broken(*seqs: int) -> httpx2.Response:
    """A stream that breaks off after some events."""

    class Breaks(httpx2.SyncByteStream):
        def __iter__(self) -> Any:
            yield lines(*seqs).encode()
            raise httpx2.ReadError("cut")

    return httpx2.Response(200, stream=Breaks())


def test_events_resume_where_they_broke_off() -> None:
    script = Script(
        broken(1, 2), httpx2.ConnectError("restarting"), busy_now(),
        httpx2.Response(200, text=lines(3)), httpx2.Response(200, text=lines(4, 5)),
    )  # fmt: skip
    client = Client("http://a.test", transport=script, sleep=lambda _: None)
    seen = []
    for event in client.events():
        seen.append(event["seq"])
        if len(seen) == 5:
            break
    assert seen == [1, 2, 3, 4, 5]
    resumed = [request.headers.get("last-event-id") for request in script.requests]
    assert resumed == [None, "2", "2", "2", "3"]


async def test_events_resume_for_asyncio_too() -> None:
    async def no_sleep(_: float) -> None: ...

    script = AsyncScript(
        httpx2.Response(200, text=lines(1)), httpx2.ConnectError("restarting"), busy_now(),
        httpx2.Response(200, text=lines(2)),
    )  # fmt: skip
    client = AsyncClient("http://a.test", transport=script, sleep=no_sleep)
    seen = []
    async for event in client.events(after=0):
        seen.append(event["seq"])
        if len(seen) == 2:
            break
    assert seen == [1, 2]
    gone = AsyncScript(*(httpx2.ConnectError("refused") for _ in range(2)))
    client = AsyncClient("http://a.test", transport=gone, sleep=no_sleep, tries=2)
    with pytest.raises(OnceflowError, match="is `onceflow serve` running"):
        await client.health()
    refused = AsyncScript(httpx2.Response(410, json={"type": "urn:onceflow:problem:gone"}))
    client = AsyncClient("http://a.test", transport=refused, sleep=no_sleep)
    with pytest.raises(ApiError, match="gone"):
        async for _ in client.events(after=99):
            pass
