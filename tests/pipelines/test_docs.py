"""What docs/summarize.md shows works as it stands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onceflow.commands.config import TABLES, Config
from onceflow.core.pipeline import Pipeline
from onceflow.pipelines.summarize import Summarize

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "summarize.md").read_text(encoding="utf-8")
TOML = re.findall(
    r"```toml\n(.*?)```", PAGE + (DOCS / "settings.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.mark.parametrize("text", TOML)
def test_a_configuration_that_is_shown_is_accepted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    file.write_text(text, encoding="utf-8")
    config = Config(file, {})
    assert [config.made(table)[1] for table in TABLES]


def test_the_program_that_is_shown_runs(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    script = tmp_path / "shown.py"
    script.write_text(code + "\n\nasyncio.run(main([]))\n", encoding="utf-8")
    subprocess.run(
        [sys.executable, script], cwd=tmp_path, check=True, timeout=180, env=dict(os.environ)
    )
    found = json.loads((tmp_path / "summaries" / "digest.json").read_text(encoding="utf-8"))
    assert found["counts"] == {"completed": 0, "same": 0, "failed": 0, "unlisted": 0}


def test_every_state_is_in_the_table() -> None:
    pipeline: Pipeline = Summarize().pipeline()
    names = {
        pipeline.state(stage.name, phase)
        for stage in pipeline.stages
        for phase in ("ready", "active", "done", "failed", "cancelled")
    }
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
