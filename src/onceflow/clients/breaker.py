"""A provider that is down, or has told us to wait, is left alone; then one call tries again."""

from __future__ import annotations

import time
from collections.abc import Callable

from onceflow.core.errors import Transient

FAILURES_MAX = 5
OPEN_SECONDS = 15.0
OPEN_SECONDS_MAX = 300.0


class Breaker:
    """Opens after some failures in a row, for longer each time; a success closes it."""

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._failures = 0
        self._until = 0.0
        self._trying = False
        self._why = ""

    def enter(self) -> None:
        """Before a call: raise `Transient` (`provider_down`) if it is not to be made now. Nothing
        is tried then, so it costs no attempt."""
        left = self._until - self._clock()
        if left > 0 or (self._failures >= FAILURES_MAX and self._trying):
            raise Transient(
                f"{self._name} is left alone for a while: {self._why}",
                code="provider_down",
                retry_after=max(left, 1.0),
                counts=False,
            )
        self._trying = True

    def succeeded(self) -> None:
        self._failures = 0
        self._trying = False

    def failed(self, why: str) -> None:
        self._failures += 1
        self._why = why
        self._trying = False
        if self._failures >= FAILURES_MAX:
            seconds = OPEN_SECONDS * 2 ** (self._failures - FAILURES_MAX)
            self._until = self._clock() + min(seconds, OPEN_SECONDS_MAX)

    def told_to_wait(self, seconds: float) -> None:
        """A Retry-After: nobody in this process asks before it is over."""
        self._trying = False
        self._why = "it asked us to wait"
        self._until = max(self._until, self._clock() + seconds)

    def left(self) -> None:
        """A call was given up from our side, which says nothing about the provider."""
        self._trying = False
