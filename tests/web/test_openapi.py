"""The checked-in description is the server's own, and the server keeps to it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.openapi import PAGE, text
from tests.cli.loopback import Loopback
from tests.web.conftest import Fresh, Place
from tests.web.kit import served

EXAMPLES = int(os.environ.get("ONCEFLOW_TEST_EXAMPLES", "5"))


def test_the_checked_in_description_is_the_servers_own() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "run: python -m scripts.openapi"


def test_a_running_server_gives_the_same_description(quiet: Place) -> None:
    with quiet.client() as client:
        found = client.get("/openapi.json").json()
    assert found == json.loads(PAGE.read_text(encoding="utf-8"))
    assert found["openapi"].startswith("3.1")


def test_every_operation_documents_its_problems() -> None:
    for path, operations in json.loads(PAGE.read_text(encoding="utf-8"))["paths"].items():
        for method, operation in operations.items():
            content = operation["responses"]["default"]["content"]
            assert list(content) == ["application/problem+json"], (path, method)


@pytest.mark.parametrize(
    ("kind", "phases"), [("sqlite", "examples,coverage,fuzzing"), ("postgres", "examples,fuzzing")]
)
def test_schemathesis_finds_no_5xx_and_no_undocumented_answer(
    kind: str, phases: str, fresh: Fresh, world: Loopback
) -> None:
    with fresh(kind) as (folder, database), served(folder, database, world=world) as server:
        with server.client() as client:  # so that there are jobs to ask for
            for url in world.articles(3):
                job = client.post("/api/ingestion-jobs", json={"url": url}).json()
                assert client.post(f"/api/ingestion-jobs/{job['id']}/fetch").status_code == 200
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "run", str(PAGE),
                "--url", server.url, "--exclude-path", "/api/events",
                "--checks", "not_a_server_error,status_code_conformance,"
                "content_type_conformance,response_schema_conformance",
                "--max-examples", str(EXAMPLES), "--seed", "1", "--no-color",
                "--request-timeout", "20", "--phases", phases,
                "--suppress-health-check", "all",
            ],
            cwd=folder, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        with server.client() as client:
            assert client.get("/health").json()["ok"] is True
        assert "Traceback" not in server.said()
    assert "0 generated" not in done.stdout
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
