"""Whether this machine is short of processor time: then what saves some is worth waiting for.

Linux counts the time in which somebody waited for a core. Where it does not, there is plenty.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

CPU = Path("/proc/pressure/cpu")
LOOK_SECONDS = 0.5
HIGH = 0.2
"""It is short when somebody waited in so great a part of the time."""

_WAITED = re.compile(rb"some .* total=(\d+)")


class Pressure:
    """Looks now and then, when it is asked."""

    def __init__(self, path: Path = CPU, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._looked_at = clock()
        self._waited = self._read()
        self._is_high = False

    def is_high(self) -> bool:
        """Whether it was so the last time somebody looked, which is not long ago."""
        passed = self._clock() - self._looked_at
        if passed >= LOOK_SECONDS:
            before, self._waited = self._waited, self._read()
            self._looked_at += passed
            self._is_high = self._waited - before >= HIGH * passed
        return self._is_high

    def _read(self) -> float:
        """How many seconds somebody has waited since the machine was started."""
        try:
            found = _WAITED.search(self._path.read_bytes())
        except OSError:
            return 0.0
        return int(found[1]) / 1e6 if found else 0.0
