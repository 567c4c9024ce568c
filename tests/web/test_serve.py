"""`onceflow serve` and `onceflow ingest` as they are typed."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.conftest import Answer, clean_environment, finished, spawn
from tests.cli.loopback import ALLOW, GENTLE, Loopback
from tests.web.conftest import Fresh
from tests.web.kit import Server, served


def attach(server: Server) -> socket.socket:
    """A browser that reads events and stays."""
    place = urlsplit(server.url)
    wire = socket.create_connection((place.hostname, place.port), timeout=120)
    wire.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    got = b""
    while b"snapshot" not in got:
        part = wire.recv(65536)
        assert part, got
        got += part
    return wire


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_it_with_readers_attached_and_a_fetch_under_way(
    tmp_path: Path, world: Loopback, number: signal.Signals, code: int
) -> None:
    url = world.articles(1)[0]
    begun = world.hang("/a1")
    with served(tmp_path, str(tmp_path / "a.db"), world=world) as server:
        wires = [attach(server) for _ in range(3)]
        with server.client() as client:
            client.post("/api/ingestion-jobs", json={"url": url})
        assert begun.wait(180)
        server.process.send_signal(number)
        # Three seconds is the promise; what is asserted is that it ends by itself, and how.
        assert server.process.wait(180) == code
        for wire in wires:
            wire.close()
    assert "stopped; nothing is lost" in server.said()
    assert "Traceback" not in server.said()
    shown = _onceflow(tmp_path, "items", "--json", "--db", "a.db")
    [item] = [json.loads(line) for line in shown.out.splitlines()]
    assert (item["state"], item["attempt"]) == ("QUEUED", 0)  # given back, uncounted


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = _onceflow(tmp_path, "serve", "--port", port)
    assert answer.code == 2
    assert f"port {port} of 127.0.0.1 cannot be had" in answer.err
    assert "--port" in answer.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--port", 70000), "--port is 70000"),
        (("--root-path", "x"), "--root-path is x"),
        (("--token-file", "nowhere"), "cannot be read"),
    ],
)
def test_wrong_flags_are_said(tmp_path: Path, flags: tuple[object, ...], said: str) -> None:
    answer = _onceflow(tmp_path, "serve", *flags)
    assert (answer.code, said in answer.err) == (2, True)


def test_it_works_under_a_path_and_for_another_host(tmp_path: Path, world: Loopback) -> None:
    flags = ("--root-path", "/once", "--allow-host", "proxy.test", "--no-worker")
    with served(tmp_path, str(tmp_path / "a.db"), *flags, world=world) as server:
        place = urlsplit(server.url)
        bare = Server(server.process, f"http://{place.netloc}", server.errors)
        with bare.client(headers={"Host": "proxy.test"}) as client:
            page = client.get("/admin/add-article").text
            assert 'href="/once/static/onceflow.css"' in page
            assert 'action="/once/admin/add-article"' in page
            assert client.get("/static/onceflow.css").status_code == 200
            added = client.post("/admin/add-article", data={"urls": world.articles(1)[0]})
            assert added.headers["location"].startswith("/once/admin/add-article?ids=")
            job = client.post("/api/ingestion-jobs", json={"url": world.articles(1)[0]})
            assert job.headers["location"] == "/once/api/ingestion-jobs/1"


def test_a_file_with_pipelines_is_served_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from onceflow import Pipeline, Stage\n"
        "mine = Pipeline('mine', Stage('say', lambda work: work.key.upper()))\n"
    )
    with (
        served(tmp_path, str(tmp_path / "a.db"), "mine.py") as server,
        server.client() as client,
        client.stream("GET", "/api/events?pipeline=mine") as events,
    ):
        lines = events.iter_lines()
        client.post("/api/runs", json={"pipeline": "mine", "keys": ["a", "b"]})
        done = 0
        while done < 2:
            done += next(lines) == "event: stage_finished"
        found = client.get("/api/items?pipeline=mine&state=completed").json()["items"]
    assert [item["key"] for item in found] == ["a", "b"]


def test_with_auto_generate_the_story_comes_by_itself(tmp_path: Path, world: Loopback) -> None:
    flags = ("--auto-generate",)
    with (
        served(tmp_path, str(tmp_path / "a.db"), *flags, world=world) as server,
        server.client() as client,
        client.stream("GET", "/api/events") as events,
    ):
        lines = events.iter_lines()
        job = client.post("/api/ingestion-jobs", json={"url": world.articles(1)[0]}).json()
        while '"state":"SAVED"' not in next(lines):
            pass
        assert client.get(f"/api/ingestion-jobs/{job['id']}").json()["story"]["headline"] == "Bread"


def _onceflow(folder: Path, *words: object, **env: str) -> Answer:
    return finished(spawn(*words, cwd=folder, env=clean_environment(**GENTLE, **env)))


# --- ingest ---


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_ingest_brings_articles_to_their_texts_and_then_to_their_stories(
    kind: str, fresh: Fresh, world: Loopback
) -> None:
    urls = world.articles(3)
    asked = world.summarized["story"]
    with fresh(kind) as (folder, database):
        flags: tuple[object, ...] = (*ALLOW, *world.model, "--json", "--quiet")
        env = {"ONCEFLOW_DB": database, "OPENAI_API_KEY": "test"}
        first = _onceflow(folder, "ingest", *urls, *flags, **env)
        assert (first.code, first.object["states"]) == (0, {"READY_TO_GENERATE": 3}), first.err
        assert world.summarized["story"] == asked
        again = _onceflow(folder, "ingest", *urls, "--generate", *flags, **env)
        assert (again.code, again.object["states"]) == (0, {"SAVED": 3}), again.err
        assert world.summarized["story"] == asked + 3
        once_more = _onceflow(folder, "ingest", *urls, "--generate", *flags, **env)
        assert (once_more.code, once_more.object["already"]) == (0, True)
        assert world.summarized["story"] == asked + 3
        audit = _onceflow(folder, "audit", **env)
        assert audit.code == 0


def test_ingest_with_a_failed_article_ends_with_1(tmp_path: Path, world: Loopback) -> None:
    url = world.site.url("/never-there")
    answer = _onceflow(tmp_path, "ingest", url, *ALLOW, "--json", "--quiet")
    assert (answer.code, answer.object["states"]) == (1, {"FAILED": 1})


def test_serving_is_imported_only_by_serve() -> None:
    program = (
        "import sys, onceflow.cli as cli\n"
        "cli.main(['--version'])\n"
        "print([name for name in ('fastapi', 'uvicorn', 'httpx2') if name in sys.modules])"
    )
    run: Callable[..., Any] = subprocess.run
    done = run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_worker_elsewhere_brings_articles_to_their_stories(
    kind: str, fresh: Fresh, world: Loopback
) -> None:
    with fresh(kind) as (folder, database):
        env = {"ONCEFLOW_DB": database, "OPENAI_API_KEY": "test"}
        flags: tuple[object, ...] = (*ALLOW, *world.model)
        added = _onceflow(
            folder, "ingest", *world.articles(2), *flags, "--generate", "--add-only", **env
        )
        next_line = added.out.splitlines()[1]
        assert next_line.startswith("  next: onceflow worker ingest --model"), added.out
        assert "--auto-generate, and onceflow watch " in next_line
        worker = spawn(
            "worker", "ingest", *flags, "--auto-generate", cwd=folder,
            env=clean_environment(**GENTLE, **env),
        )  # fmt: skip
        try:
            watched = _onceflow(folder, "watch", "last", **env)
        finally:
            worker.send_signal(signal.SIGTERM)
            worked = finished(worker)
        assert (watched.code, worked.code) == (0, 0), worked.err
        shown = _onceflow(folder, "items", "--json", **env)
        assert {item["state"] for item in shown.lines} == {"SAVED"}


def test_flags_of_another_pipeline_are_refused(tmp_path: Path) -> None:
    answer = _onceflow(tmp_path, "worker", "ingest", "--words", 20)
    assert (answer.code, "--words has no effect on ingest" in answer.err) == (2, True)
    answer = _onceflow(tmp_path, "worker", "summarize", "--auto-generate")
    assert (answer.code, "is for `onceflow worker ingest`" in answer.err) == (2, True)
