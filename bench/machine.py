"""The machine as it is at the moment: what an absolute figure depends on."""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

FLUSHES = 40
BLOCK = b"\0" * 4096


@dataclass(frozen=True, slots=True)
class Weather:
    """The load of the last minute, and the price of one durable commit right now."""

    load: float
    fsync_ms: float


def weather(folder: Path) -> Weather:
    return Weather(os.getloadavg()[0], fsync_ms(folder))


def fsync_ms(folder: Path) -> float:
    """The median time to append 4 kB to a file in that folder and to flush it."""
    path = folder / f"fsync-{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        times = []
        for _ in range(FLUSHES):
            started = time.perf_counter()
            os.write(file, BLOCK)
            os.fsync(file)
            times.append(time.perf_counter() - started)
    finally:
        os.close(file)
        path.unlink()
    return statistics.median(times) * 1000


def rss_bytes() -> int:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds_of(pid: int) -> float:
    """The CPU time that the threads of another process have used so far."""
    # In nanoseconds, where /proc/PID/stat counts hundredths of a second.
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def description() -> dict[str, str | int]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
    }
