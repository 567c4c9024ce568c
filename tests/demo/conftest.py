"""Onceflow as it comes out of a wheel, with nothing of the repository in reach."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `onceflow` is what the wheel holds."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
    environment = clean_environment(PYTHONPATH=str(folder), COLUMNS="60")
    found = subprocess.run(
        [sys.executable, "-c", "import onceflow; print(onceflow.__file__)"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    assert Path(found.stdout.strip()).is_relative_to(folder)
    return environment


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
