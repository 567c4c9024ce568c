"""Which workers of this machine are gone."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onceflow.engine.neighbours import ended, machine


def row(pid: int, **other: Any) -> dict[str, Any]:
    return {"id": f"w{pid}", "host": machine(), "boot": "b", "pid": pid} | other


def test_only_processes_that_have_ended_are_named() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    workers = [row(os.getpid()), row(1), row(gone.pid)]

    assert ended(workers, "b") == [f"w{gone.pid}"]


def test_a_zombie_is_gone() -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)  # it has ended, nobody asked

    assert ended([row(zombie.pid)], "b") == [f"w{zombie.pid}"]
    zombie.wait()


def test_nothing_is_known_of_another_machine_or_boot() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    assert ended([row(gone.pid, host="elsewhere.test"), row(gone.pid, boot="before")], "b") == []


def test_a_container_is_a_machine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "readlink", lambda path: Path("pid:[4026532575]"))
    assert machine().endswith(" pid:[4026532575]")


def test_where_the_system_does_not_say_the_name_alone_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path) -> Path:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "readlink", refuse)
    assert "pid:" not in machine()
