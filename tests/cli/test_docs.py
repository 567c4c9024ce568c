"""The page of the command line is what the program itself says; the demo does what it says."""

import subprocess
import sys
from pathlib import Path

from scripts.cli_docs import PAGE, page
from tests.cli.conftest import clean_environment

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_help_of_every_command() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m scripts.cli_docs"


def test_the_demo_survives_its_killed_worker_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"], cwd=tmp_path, capture_output=True,
        text=True, env=clean_environment(TMPDIR=str(tmp_path)), timeout=100, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert "was killed with -9" in done.stdout
    assert "0 violations" in done.stdout
    assert list(tmp_path.iterdir()) == []
