"""`make test` tries what failed beside others once more, alone, and hides nothing."""

import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import clean_environment

ROOT = Path(__file__).parents[1]
TESTS = """
import os
import pytest

beside = "PYTEST_XDIST_WORKER" in os.environ

def test_well(): pass
def test_busy(): assert not beside
@pytest.mark.parametrize("n", range(6))
def test_many(n): assert not beside
def test_broken(): assert False
"""


def run(folder: Path, *names: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    # This test may run in such a process itself.
    env = {name: value for name, value in clean_environment().items() if "XDIST" not in name}
    # Without the plugins of the other tests, which take seconds to load.
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.run_tests", "-n", "1", "-q", "--rootdir", str(folder),
         *(str(folder / "test_it.py::test_") + name for name in names)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_what_fails_beside_others_and_passes_alone_is_said(tmp_path: Path) -> None:
    code, said = run(tmp_path, "well", "busy")
    assert code == 0, said
    assert "failed beside others, passed alone: test_it.py::test_busy" in said
    assert "1 passed" in said, "only what failed was run again"


def test_what_fails_alone_too_fails(tmp_path: Path) -> None:
    code, said = run(tmp_path, "well", "busy", "broken")
    assert code == 1, said
    assert "failed beside others, passed alone: test_it.py::test_busy" in said
    assert "failed alone too: test_it.py::test_broken" in said


def test_more_than_five_are_no_accident(tmp_path: Path) -> None:
    code, said = run(tmp_path, "many")
    assert code == 1, said
    assert "6 tests failed: too many to be an accident" in said
    assert "passed alone" not in said
