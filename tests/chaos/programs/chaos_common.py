"""What the handlers of the scenarios share: a record beside the database, and an end with us."""

import json
import multiprocessing
import os
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

from onceflow import Work

NUMBERS = count(1)

LEASE_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.5
ATTEMPTS = 1000
"""Whoever is killed so often must not run out of attempts: the scenarios want every result."""

Body = dict[str, Any]


def end_with_the_scenario() -> None:
    """End this process when whoever started it is gone: a scenario leaves nobody behind."""
    if os.environ.get("CHAOS_GUARD") != "1" or multiprocessing.parent_process() is not None:
        return

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=wait, name="chaos-guard", daemon=True).start()


def seconds_for(work: Work, least: float, most: float) -> float:
    """How long an attempt takes: the same for one key each time, and different for others."""
    again = float(os.environ.get("CHAOS_AGAIN_SECONDS", "0")) if work.attempt > 1 else 0.0
    return max(again, least + (most - least) * (sum(work.key.encode()) * 7919 % 1000) / 1000)


def told(work: Work, value: Any) -> Body:
    """A result that no other attempt can give, written down beside the database before it is
    returned. A file that is only appended to keeps it when the process is killed."""
    body = {
        "value": value,
        "nonce": f"{os.getpid()}-{next(NUMBERS)}",
        "from": work.input["nonce"] if isinstance(work.input, dict) else None,
    }
    note("returned", work, nonce=body["nonce"], value=value)
    return body


def note(what: str, work: Work, **more: Any) -> None:
    folder = os.environ.get("CHAOS_SIDE")
    if folder is None:
        return
    line = {"what": what, "key": work.key, "stage": work.stage, "attempt": work.attempt,
            "at": time.monotonic_ns() // 1_000_000, **more}  # fmt: skip
    with (Path(folder) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
