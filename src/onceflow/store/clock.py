"""Time for a SQLite store: it looks like wall time and never steps.

Leases must not depend on a wall clock that somebody sets. Within one boot the store's time is the
boot-time clock plus an offset that the first process of that boot wrote into the database; so all
processes agree, and a step of the wall clock changes nothing. After a reboot a new offset is
taken, never one that would turn the store's time back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

Clock = Callable[[], int]
"""Milliseconds since 1970 or so: what the store says, not what the wall says."""


@cache
def boot_id() -> str:
    """What tells one boot of this machine from another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux: the wall time of the boot, good to a minute
        return f"boot-{int(time.time() - time.monotonic()) // 60}"


def ticks_ms() -> int:
    """Milliseconds since the boot, also while the machine slept."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
