"""Handlers that run in processes of their own: they must be importable there."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from onceflow import Work


def square(work: Work) -> int:
    """The square of what came with the item, and proof that it was another process."""
    assert os.getpid() != work.input["pid"]
    number: int = work.input["number"]
    return number * number


def hang(work: Work) -> None:
    """Leave a note of the process, then never end."""
    Path(work.input).write_text(str(os.getpid()))
    signal.pause()


def die(work: Work) -> str:
    """The first attempts end their process."""
    if work.attempt < work.input:
        os._exit(137)
    return "alive"


def spin(work: Work) -> int:
    began = time.monotonic()
    while time.monotonic() < began + 0.1:
        pass
    return os.getpid()


def fail(work: Work) -> None:
    raise ValueError("in another process")


def large(work: Work) -> Any:
    return "x" * 50_000_000


def stream(work: Work) -> None:
    work.emit("summary_partial", text="lost")
