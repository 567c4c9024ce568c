"""Time that moves only when a test says so."""

from __future__ import annotations


class FakeClock:
    """A store's clock for tests: call it for the milliseconds, move it with `advance`.

    clock = FakeClock()
    store = SqliteStore("test.db", clock=clock)
    clock.advance(seconds=301)
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, seconds: float = 0.0, *, ms: int = 0) -> None:
        """Let time pass."""
        self.now_ms += round(seconds * 1000) + ms
