"""What docs/api.md and docs/ingest.md show works as it stands."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onceflow.pipelines.ingest import Ingest
from scripts.openapi import PAGE
from tests.cli.conftest import clean_environment
from tests.cli.loopback import Loopback
from tests.web.kit import served

DOCS = Path(__file__).parents[2] / "docs"
API = (DOCS / "api.md").read_text(encoding="utf-8")
INGEST = (DOCS / "ingest.md").read_text(encoding="utf-8")


def test_every_curl_and_the_python_that_is_shown_run(tmp_path: Path, world: Loopback) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    article = world.articles(1)[0]
    with served(tmp_path, str(tmp_path / "a.db"), world=world) as server:

        def here(text: str) -> str:
            return text.replace("http://127.0.0.1:8000", server.url).replace(
                "https://example.org/article", article
            )

        blocks = [block for block in re.findall(r"```sh\n(.*?)```", API, re.DOTALL)
                  if "curl" in block]  # fmt: skip
        assert len(blocks) == 4
        answers: list[str] = []
        for block in blocks:
            done = subprocess.run(
                ["sh", "-e", "-c", here(block)],
                cwd=tmp_path, capture_output=True, text=True, timeout=180, check=True,
            )  # fmt: skip
            answers.append(done.stdout)
        assert json.loads(answers[0])["id"] == 1
        assert json.loads(answers[1])["url"] == article
        assert answers[2].count('"success":true') == 3
        assert next(json.loads(line)["item"] for line in answers[3].splitlines()) == 1
        [program] = re.findall(r"```python\n(.*?)```", API, re.DOTALL)
        script = tmp_path / "shown.py"
        script.write_text(here(program), encoding="utf-8")
        shown = subprocess.run(
            [sys.executable, script], cwd=tmp_path, env=clean_environment(), capture_output=True,
            text=True, timeout=180, check=True,
        )  # fmt: skip
        assert shown.stdout.startswith("Bread\n")
        assert "stage_finished SAVED" in shown.stdout


def test_every_route_is_in_the_page() -> None:
    for path in json.loads(PAGE.read_text(encoding="utf-8"))["paths"]:
        assert path.replace("/{id}/{stage}", "/1/fetch") in API, path


def test_every_state_is_in_the_table() -> None:
    missing = [state for state in set(Ingest().pipeline().states.values())
               if f"| `{state}` |" not in INGEST]  # fmt: skip
    assert missing == []
