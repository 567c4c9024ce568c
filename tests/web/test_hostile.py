"""Hostile callers: each case of the list for the API, by its id, against a real server."""

import asyncio
import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from onceflow.core.item import Seed
from onceflow.pipelines.ingest import Ingest
from onceflow.web import create_app
from onceflow.web.server import listen, make_server
from tests.cli.conftest import clean_environment
from tests.engine.kit import NUMBERS
from tests.web.conftest import Place
from tests.web.kit import Puppet, Server, puppet_flow, served

TOKEN = "a-token-for-tests-0123456789"
PROBLEM = "application/problem+json"
ROUTES = [
    ("GET", "/"), ("GET", "/health"), ("GET", "/metrics"), ("GET", "/openapi.json"),
    ("GET", "/static/onceflow.css"), ("GET", "/admin/add-article"), ("GET", "/login"),
    ("GET", "/api/items"), ("GET", "/api/items/1"), ("GET", "/api/runs"), ("GET", "/api/stats"),
    ("GET", "/api/processors"), ("GET", "/api/events"), ("GET", "/api/ingestion-jobs"),
    ("GET", "/api/analysis-jobs"), ("GET", "/api/analysis-jobs/1"), ("GET", "/analysis"),
    ("POST", "/api/analysis-jobs"), ("POST", "/analysis"),
    ("GET", "/api/ingestion-jobs/1"), ("GET", "/api/ingestion-jobs/1/raw-html"),
    ("POST", "/api/ingestion-jobs"), ("POST", "/api/ingestion-jobs/1/fetch"),
    ("POST", "/api/ingestion-jobs/1/extract"), ("POST", "/api/ingestion-jobs/1/generate"),
    ("POST", "/api/items/1/retry"), ("POST", "/api/items/1/cancel"), ("POST", "/api/runs"),
    ("POST", "/admin/add-article"), ("POST", "/admin/jobs/1/generate"), ("POST", "/login"),
]  # fmt: skip


@pytest.fixture
def client(quiet: Place) -> Iterator[httpx2.Client]:
    with quiet.client() as client:
        yield client


def raw(server: Server, request: bytes, *, seconds: float = 30) -> bytes:
    """What a server answers to these very bytes, until it closes or has nothing more to say."""
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=seconds) as wire:
        wire.sendall(request)
        wire.shutdown(socket.SHUT_WR)
        answer = b""
        while part := wire.recv(65536):
            answer += part
    return answer


def test_A01_another_address_without_a_token_refuses_to_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onceflow", "serve", "--host", "0.0.0.0", "--port", "0"],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "can be reached by other machines" in done.stderr
    assert "--token-file" in done.stderr
    assert "ONCEFLOW_TOKEN" in done.stderr
    short = subprocess.run(
        [sys.executable, "-m", "onceflow", "serve", "--host", "0.0.0.0", "--port", "0"],
        cwd=tmp_path, env=clean_environment(ONCEFLOW_TOKEN="short"), capture_output=True,
        text=True, timeout=180, check=False,
    )  # fmt: skip
    assert short.returncode == 2
    assert "at least 16" in short.stderr
    assert "short" not in short.stderr.replace("at least 16", "")


def test_A02_only_the_token_opens_and_never_from_the_address(tmp_path: Path) -> None:
    database = str(tmp_path / "a.db")
    with (
        served(tmp_path, database, "--no-worker", ONCEFLOW_TOKEN=TOKEN) as server,
        server.client() as client,
    ):
        for headers in (
            {}, {"Authorization": "Bearer wrong-token-0123456789xx"},
            {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Bearer {TOKEN[:-1]}"},
            {"Authorization": f"Basic {TOKEN}"}, {"Authorization": "Bearer"},
            {"Cookie": f"onceflow_session={TOKEN}"}, {"Cookie": "onceflow_session="},
        ):  # fmt: skip
            answer = client.get("/api/items", headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (401, PROBLEM)
            assert answer.headers["www-authenticate"].startswith("Bearer")
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/items", headers=right).status_code == 200
        assert client.get(f"/api/items?token={TOKEN}").status_code == 401
        assert client.get(f"/api/items?access_token={TOKEN}", headers=right).status_code == 401
        assert client.post("/api/items/1/cancel").status_code == 401
        assert client.get("/health").status_code == 200
        page = client.get("/admin/add-article", headers={"Accept": "text/html"})
        assert (page.status_code, page.headers["location"]) == (303, "/login")
        assert client.post("/login", data={"token": "wrong"}).status_code == 401
        done = client.post("/login", data={"token": TOKEN})
        assert done.status_code == 303
        cookie = done.headers["set-cookie"]
        assert TOKEN not in cookie
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert client.get("/admin/add-article").status_code == 200  # it keeps its cookies
        assert TOKEN not in client.get("/admin/add-article").text
    assert TOKEN not in server.said()


def test_A03_another_host_is_refused_on_every_route_before_any_work(client: httpx2.Client) -> None:
    before = client.get("/api/stats").json()["total"]
    for host in (
        "evil.test", "127.0.0.1.evil.test", "localhost.evil.test:80", "", "[::2]:1",
        "127.0.0.1:80@evil.test", "[::1].evil.test:80", "[::1", "localhost:", "localhost:http",
        "localhost:80:80", "user@localhost", "localhost/", "localhost, evil.test",
    ):  # fmt: skip
        for method, path in ROUTES:
            answer = client.request(method, path, headers={"Host": host}, json={"url": "http://a"})
            assert (answer.status_code, answer.headers["content-type"]) == (421, PROBLEM), path
    assert client.get("/api/stats").json()["total"] == before


def test_A03_a_request_line_that_names_another_host_is_refused_like_a_header(quiet: Place) -> None:
    for target in (
        b"http://evil.test/health", b"http://127.0.0.1:80@evil.test/health",
        b"https://[::1].evil.test/",
    ):  # fmt: skip
        answer = raw(quiet.server, b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 421 "), target


def test_A04_another_origin_and_another_content_type_change_nothing(
    client: httpx2.Client, url: str
) -> None:
    before = client.get("/api/stats").json()["total"]
    for origin in ("http://evil.test", "null", "http://127.0.0.1:1", "https://localhost"):
        for method, path in ROUTES:
            if method == "POST":
                answer = client.post(path, headers={"Origin": origin}, json={"url": url})
                assert (answer.status_code, answer.headers["content-type"]) == (403, PROBLEM)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"):
        body = json.dumps({"url": url}).encode()
        answer = client.post("/api/ingestion-jobs", content=body, headers={"Content-Type": kind})
        assert (answer.status_code, answer.headers["content-type"]) == (415, PROBLEM)
    assert client.post("/api/ingestion-jobs", content=b"{}").status_code == 415
    same_site = {"Sec-Fetch-Site": "cross-site"}
    answer = client.post("/api/ingestion-jobs", json={"url": url}, headers=same_site)
    assert answer.status_code == 403
    assert client.get("/api/stats").json()["total"] == before
    own = {"Origin": str(client.base_url).rstrip("/")}
    assert client.post("/api/ingestion-jobs", json={"url": url}, headers=own).status_code == 201


def test_A05_no_page_may_be_framed(client: httpx2.Client) -> None:
    for method, path in ROUTES:
        if method == "GET" and path != "/api/events":
            headers = client.get(path).headers
            assert headers["x-frame-options"] == "DENY", path
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"url":"' + b"x" * 2 * 1024 * 1024 + b'"}', 413),
        (b"[" * 100_000, 400),
        (b'{"a":' * 65 + b"1" + b"}" * 65, 400),
        (b'{"url":"\xff\xfe"}', 400),
        (b"", 422),
        (b"[]", 422),
        (b'"text"', 422),
        (b"null", 422),
        (b'{"url":', 400),
        (b'{"url":NaN}', 400),
        (b'{"url":"https://a.test/","url":"https://b.test/"}', 400),
        (b'{"url":"https://a.test/\\ud800"}', 422),
        (b'{"url":"https://a.test/\\u0000"}', 422),
    ],
)
def test_A06_bodies_of_every_wrong_kind(client: httpx2.Client, body: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/api/ingestion-jobs", content=body, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    assert "Traceback" not in answer.text
    assert len(answer.content) < 4000


@pytest.mark.parametrize("url", [7, None, True, ["https://a.test/"], {"a": 1}, "", " "])
def test_A07_a_url_that_is_no_text(client: httpx2.Client, url: Any) -> None:
    answer = client.post("/api/ingestion-jobs", json={"url": url})
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM)


def test_A07_lists_have_a_cap(client: httpx2.Client) -> None:
    many = {"pipeline": "ingest", "keys": ["https://a.test/"] * 10_001}
    assert client.post("/api/runs", json=many).status_code == 422
    million = {"pipeline": "ingest", "keys": ["x"] * 1_000_000}
    assert client.post("/api/runs", json=million).status_code == 413
    lines = "\n".join(f"https://a.test/{number}" for number in range(501))
    assert client.post("/admin/add-article", data={"urls": lines}).status_code == 422


@pytest.mark.parametrize(
    "id",
    [
        "../../etc/passwd", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "1;DROP TABLE items", "%00", "1%00",
        "9" * 10_000, "-1", "0", "1.5", "0x1", "%C2%B9", "9223372036854775808", "1e3",
    ],
)  # fmt: skip
def test_A08_ids_that_are_none(client: httpx2.Client, id: str) -> None:
    for place in (f"/api/items/{id}", f"/api/ingestion-jobs/{id}", f"/api/runs/{id}"):
        answer = client.get(place)
        assert answer.status_code in (404, 422), (place[:80], answer.text[:200])
        assert answer.headers["content-type"] == PROBLEM
    for place in (
        f"/api/ingestion-jobs/{id}/fetch", f"/api/items/{id}/cancel", f"/admin/jobs/{id}/retry",
    ):  # fmt: skip
        assert client.post(place).status_code in (404, 405, 422), place[:80]


@pytest.mark.parametrize(
    "query",
    [
        "state=done' OR 1=1--", "order_by=password", "limit=-1", "limit=1000000000", "limit=0",
        "offset=1000000000000000000", "after=-1", "after=9223372036854775808", "phase=nope",
        "pipeline=' OR ''='", "stage=%00", "run=%27", "error_code=%27", "limit=x", "state=nope",
    ],
)  # fmt: skip
def test_A09_queries_that_ask_for_what_is_not(client: httpx2.Client, query: str) -> None:
    answer = client.get(f"/api/items?{query}")
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM)


def test_A10_a_hundred_fetches_of_one_article_and_extracts_before_they_are_done(
    busy: Place, url: str
) -> None:
    path = url.removeprefix(busy.world.site.url(""))
    begun = busy.world.hang(path)
    with busy.client() as client:
        job = client.post("/api/ingestion-jobs", json={"url": url}).json()
        assert begun.wait(180)
        place = f"/api/ingestion-jobs/{job['id']}"
        early = client.post(f"{place}/extract")
        assert (early.status_code, early.json()["type"]) == (
            409,
            "urn:onceflow:problem:no-page-yet",
        )
        client.post(f"/api/items/{job['id']}/release")  # the one that hangs loses its lease

        def fetch(_: int) -> tuple[int, bool]:
            with busy.client() as mine:
                answer = mine.post(f"{place}/fetch")
                return answer.status_code, answer.json()["skipped"]

        with ThreadPoolExecutor(25) as pool:
            answers = list(pool.map(fetch, range(100)))
        assert {status for status, _ in answers} == {200}
        assert sum(not skipped for _, skipped in answers) <= 1
        events = client.get(f"/api/items/{job['id']}").json()["events"]
    told = [(event["kind"], event["stage"]) for event in events]
    assert told.count(("stage_finished", "fetch")) == 1
    assert busy.world.site.paths().count(path) == 2  # the one that hung, and one


def test_A11_a_client_that_goes_away_leaves_the_work_going_on(busy: Place, url: str) -> None:
    with busy.client() as client:
        job = client.post("/api/ingestion-jobs", json={"url": url}).json()
        assert client.post(f"/api/ingestion-jobs/{job['id']}/fetch").status_code == 200
        assert client.post(f"/api/ingestion-jobs/{job['id']}/extract").status_code == 200
        asked = busy.world.summarized["story"]
        place = urlsplit(busy.server.url)
        line = f"POST /api/ingestion-jobs/{job['id']}/generate HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(5):
            with socket.create_connection((place.hostname, place.port)) as wire:
                wire.sendall(line.encode())
        done = client.post(f"/api/ingestion-jobs/{job['id']}/generate")
        assert (done.status_code, done.json()["job"]["state"]) == (200, "SAVED")
        again = client.post(f"/api/ingestion-jobs/{job['id']}/generate")
        assert again.json()["skipped"] is True
        assert busy.world.summarized["story"] == asked + 1


async def test_A12_streams_are_capped_and_those_that_never_read_cost_the_others_nothing(
    tmp_path: Path,
) -> None:
    """In one process, so that the caps can be small: 20 streams, 5 of which never read."""
    table = Ingest().pipeline()
    app = create_app(tmp_path / "a.db", table, worker=False, streams_max=20)
    server = make_server(app, reader_seconds=8)
    listening = listen("127.0.0.1", 0)
    # A connection inherits it: the kernel must not keep megabytes for who does not read.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    started = asyncio.Event()
    server.when_started = started.set
    port = listening.getsockname()[1]
    running = asyncio.create_task(server.serve(sockets=[listening]))
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=180, limits=httpx2.Limits(max_connections=40)
    ) as client:
        await started.wait()
        flow = app.state.desk.flow

        async def streams() -> int:
            found = re.search(
                r"^onceflow_streams (\d+)$", (await client.get("/metrics")).text, re.M
            )
            assert found is not None
            return int(found[1])

        lazy = [await asyncio.open_connection("127.0.0.1", port, limit=1) for _ in range(5)]
        for _, writer in lazy:
            raw_socket = writer.get_extra_info("socket")
            raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            writer.write(b"GET /api/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wanted = 3000
        seen: list[list[int]] = [[] for _ in range(15)]

        async def read(at: int) -> None:
            headers = {"Accept": "application/x-ndjson"}
            async with client.stream("GET", "/api/events?after=0", headers=headers) as answer:
                async for line in answer.aiter_lines():
                    if line:
                        seen[at].append(json.loads(line)["seq"])
                    if len(seen[at]) == wanted:
                        return

        readers = [asyncio.create_task(read(at)) for at in range(15)]
        while await streams() < 20:
            pass
        refused = await client.get("/api/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        for at in range(0, wanted, 500):
            seeds = [Seed(f"https://a.test/{at + n}?{'x' * 500}") for n in range(500)]
            await flow.add(table, seeds)
        await asyncio.gather(*readers)
        events = [event.seq async for event in flow.events()][:wanted]
        assert seen == [events] * 15
        while await streams():  # the lazy ones are cut
            pass
        for _, writer in lazy:
            writer.close()
        server.should_exit = True
        await running


async def test_A13_slow_heads_and_slow_bodies_are_cut(tmp_path: Path) -> None:
    app = create_app(tmp_path / "a.db", Ingest().pipeline(), worker=False, body_seconds=0.3)
    server = make_server(app, header_seconds=3)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    running = asyncio.create_task(server.serve(sockets=[listening]))
    head = b"POST /api/ingestion-jobs HTTP/1.1\r\nHost: localhost\r\n"
    slow_body = head + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"

    async def slow(start: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        answer = await reader.read()
        writer.close()
        return answer

    heads = [asyncio.create_task(slow(head)) for _ in range(100)]
    bodies = [asyncio.create_task(slow(slow_body)) for _ in range(100)]
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=180) as client:
        assert (await client.get("/health")).status_code == 200
    for cut in await asyncio.gather(*heads, return_exceptions=True):
        assert cut == b"" or isinstance(cut, OSError)
    for answer in await asyncio.gather(*bodies):
        assert answer.startswith(b"HTTP/1.1 408 ")
    server.should_exit = True
    await running


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("TRACE", "/"), ("PUT", "/"), ("DELETE", "/api/items/1"), ("CONNECT", "/api/items"),
        ("GET", "//api//items"), ("GET", "/api/items/"), ("GET", "/static/..%2f..%2fetc/passwd"),
        ("GET", "/static/%2e%2e/app.py"), ("GET", "/static/../app.py"), ("PATCH", "/health"),
        ("PROPFIND", "/"), ("GET", "/static/"), ("POST", "/static/onceflow.css"),
    ],
)  # fmt: skip
def test_A14_methods_and_paths_that_are_none(quiet: Place, method: str, path: str) -> None:
    place = urlsplit(quiet.server.url)
    wire = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=120)
    wire.request(method, path)
    answer = wire.getresponse()
    body = answer.read()
    wire.close()
    assert answer.status in (404, 405), body
    assert answer.getheader("content-type") == PROBLEM
    assert b"root:" not in body


def test_A14_an_override_header_overrides_nothing(client: httpx2.Client, url: str) -> None:
    job = client.post(
        "/api/ingestion-jobs", json={"url": url}, headers={"X-HTTP-Method-Override": "DELETE"}
    )
    assert job.status_code == 201
    assert client.get(f"/api/ingestion-jobs/{job.json()['id']}").json()["state"] == "QUEUED"


def test_A14_what_is_no_http_gets_a_problem_and_two_hosts_are_refused(quiet: Place) -> None:
    answer = raw(quiet.server, b"\x16\x03\x01 this is not HTTP\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert PROBLEM.encode() in answer
    twice = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.test\r\n\r\n"
    assert raw(quiet.server, twice).startswith(b"HTTP/1.1 400 ")


def test_A14_a_browser_is_shown_a_page_about_every_problem(client: httpx2.Client) -> None:
    page = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path, more, status, said in (
        ("/nowhere/<b>", {}, 404, "There is nothing at this address"),
        ("/api/items/999999999", {}, 404, "999999999"),
        ("/", {"Host": "evil.test"}, 421, "This server does not answer for that host"),
    ):
        answer = client.get(path, headers={**page, **more})
        assert (answer.status_code, answer.headers["content-type"]) == (
            status, "text/html; charset=utf-8",
        )  # fmt: skip
        assert said in answer.text
        assert "<b>" not in answer.text
        plain = client.get(path, headers=more)
        assert (plain.status_code, plain.headers["content-type"]) == (status, PROBLEM)
    refused = client.post(
        "/admin/add-article", data={"urls": "x"}, headers={**page, "Origin": "http://evil.test"}
    )
    assert refused.status_code == 403
    assert "A page of another site may change nothing here." in refused.text


async def test_A15_two_commands_at_once_take_effect_once_and_the_worker_loses_its_lease(
    quiet: Place, puppet: Puppet, url: str
) -> None:
    for number, command in enumerate(("cancel", "release", "cancel")):
        item = await puppet.add(f"{url}?{number}")
        lease = await puppet.hold(item, "fetch")

        def act(_: int, item: int = item, command: str = command) -> int:
            with quiet.client() as client:
                return client.post(f"/api/items/{item}/{command}").status_code

        with ThreadPoolExecutor(8) as pool:
            answers = sorted(pool.map(act, range(8)))
        assert answers == [200] + [409] * 7
        with pytest.raises(AssertionError):
            await puppet.finish(lease)  # its lease is lost: nothing is kept


def test_A16_nothing_takes_a_query(client: httpx2.Client) -> None:
    """No route takes SQL or Cypher, and no parameter is one: the graph is asked for by fields."""
    routes = json.loads(client.get("/openapi.json").text)["paths"]
    assert [path for path in routes if re.search("sql|cypher|query", path)] == []
    names = {
        parameter["name"]
        for methods in routes.values() for operation in methods.values()
        for parameter in operation.get("parameters", ())
    }  # fmt: skip
    assert {name for name in names if re.search("sql|cypher|query|statement", name)} == set()


async def test_A17_markup_from_outside_is_shown_as_text(quiet: Place, puppet: Puppet) -> None:
    nasty = '<script>alert(1)</script><img src=x onerror="alert(2)">'
    key = "https://a.test/%3Cscript%3E?q=<b>&token=secret-value"
    item = await puppet.add(key)
    lease = await puppet.hold(item, "fetch")
    from onceflow.core.transition import Done, Failed, decide
    from onceflow.store.base import Finish

    async def end(lease: Any, outcome: Any) -> None:
        change = decide(puppet.pipeline, lease, outcome)
        await puppet.flow.store.exchange(
            puppet.worker.id, next(NUMBERS), [Finish(lease, change)], []
        )

    await end(lease, Done({"url": nasty, "contentType": nasty, "rawHtml": nasty}))
    text = {"url": nasty, "title": nasty, "author": nasty, "extractedText": nasty}
    await end(await puppet.hold(item, "extract"), Done(text))
    story = {"headline": nasty, "summary": nasty, "body": nasty, "tags": [nasty], "model": nasty}
    await end(await puppet.hold(item, "generate"), Done({**story, "extractive": True, "cut": True}))
    failed = await puppet.add("https://a.test/%3Cimg%3E")
    lease = await puppet.hold(failed, "fetch")
    await end(lease, Failed(nasty, "code<b>", permanent=True))
    with quiet.client() as client:
        for path in (
            f"/admin/add-article?ids={item},{failed}",
            f"/admin/cards?ids={item},{failed}",
        ):
            page = client.get(path).text
            assert "&lt;script&gt;alert(1)" in page
            for harm in ("<script>alert", "<img", 'onerror="alert', "code<b>", "secret-value"):
                assert harm not in page, path
        csp = client.get("/admin/add-article").headers["content-security-policy"]
        assert "script-src 'self'" in csp
        assert "unsafe" not in csp
        raw_page = client.get(f"/api/ingestion-jobs/{item}/raw-html")
        assert raw_page.headers["content-type"].startswith("text/plain")
        for path in (f"/api/items/{item}", f"/api/ingestion-jobs/{item}", "/api/items"):
            assert "secret-value" not in client.get(path).text, path
        refused = client.get("/admin/add-article", params={"refused": nasty}).text
        assert "<script>alert" not in refused


def test_A18_a_page_of_another_origin_can_read_and_change_nothing(client: httpx2.Client) -> None:
    before = client.get("/api/stats").json()["total"]
    for method, path in ROUTES:
        if path == "/api/events":
            continue
        headers = {"Origin": "http://evil.test", "Sec-Fetch-Site": "cross-site"}
        answer = client.request(method, path, headers=headers)
        allowed = [name for name in answer.headers if name.startswith("access-control-")]
        assert allowed == [], path  # without them a browser gives the answer to nobody
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert method == "GET" or answer.status_code == 403
    asked = {"Origin": "http://evil.test", "Access-Control-Request-Method": "POST"}
    preflight = client.request("OPTIONS", "/api/ingestion-jobs", headers=asked)
    assert preflight.status_code == 405
    assert client.get("/api/stats").json()["total"] == before


def test_R12_the_token_is_in_no_environment_of_a_child_and_no_command_line(tmp_path: Path) -> None:
    with served(tmp_path, str(tmp_path / "a.db"), ONCEFLOW_TOKEN=TOKEN) as server:
        line = Path(f"/proc/{server.process.pid}/cmdline")
        if not line.exists():
            pytest.skip("no /proc here")
        assert TOKEN not in line.read_text()
    assert TOKEN not in server.said()
    assert os.environ.get("ONCEFLOW_TOKEN") is None


async def test_a_database_password_is_shown_nowhere(quiet: Place) -> None:
    if quiet.kind == "sqlite":
        pytest.skip("a file has no password")
    password = urlsplit(quiet.database).password or ""
    assert password
    async with puppet_flow(quiet.database):
        with quiet.client() as client:
            for method, path in ROUTES:
                if method == "GET" and path != "/api/events":
                    assert password not in client.get(path).text
    assert password not in quiet.server.said()
