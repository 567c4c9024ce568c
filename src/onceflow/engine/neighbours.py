"""Workers of this machine whose processes have ended without a word, as after kill -9.

Their leases need not be waited for: the system says that nobody is there. Only of processes that
it can know: the same machine, the same boot, the same space of process ids.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

from onceflow.store.base import Row
from onceflow.store.clock import boot_id

FIRST_NAMESPACE = "pid:[4026531836]"
"""The space of process ids of a Linux system that runs in no container."""


def machine() -> str:
    """The name of where this process runs. Containers may share a host's name, but not the numbers
    of their processes."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = FIRST_NAMESPACE
    host = socket.gethostname()
    return host if namespace == FIRST_NAMESPACE else f"{host} {namespace}"


def ended(workers: Iterable[Row], boot: str) -> list[str]:
    """The ids of workers of this machine and boot whose processes are not there any more."""
    here = machine()
    return [
        row["id"]
        for row in workers
        if row["host"] == here and row["boot"] == boot and not _is_there(row["pid"])
    ]


def living(workers: Iterable[Row], now: int, patience_ms: int) -> list[Row]:
    """The workers that have not been silent for long, and have not ended on this machine."""
    known = list(workers)
    gone = set(ended(known, boot_id()))
    return [row for row in known if row["id"] not in gone and now - row["beat_at"] <= patience_ms]


def ended_here(workers: Iterable[Row]) -> set[str]:
    """The ids of workers of this machine that were killed since it was started."""
    return set(ended(workers, boot_id()))


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's process
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return stat[stat.rfind(b")") + 2 :][:1] not in b"ZX"  # a zombie runs nothing
