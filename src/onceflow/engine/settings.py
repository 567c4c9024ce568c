"""Every interval and bound of the engine, with its unit in its name.

A value out of its range is refused by name. The commands read them from `onceflow.toml` and the
environment (`commands/config.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from onceflow.core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Settings:
    """How the engine behaves. The defaults are right for most."""

    scan_seconds: float = 60.0
    """The scheduler looks for work at least so often; wake-ups make it a matter of milliseconds."""
    queue_max: int = 1000
    """Leases that wait in one stage's local queue, at the most."""
    assign_seconds: float = 5.0
    """The coordinator assigns at least so often."""
    cycle_seconds: float = 0.1
    """The least time between two coordinator cycles of a throttled stage."""
    health_seconds: float = 30.0
    """How often processors and leases are checked."""
    cleanup_seconds: float = 300.0
    """How often leases without a heartbeat are reclaimed."""
    grace_seconds: float = 30.0
    """How long a graceful stop waits for attempts under way."""
    poll_seconds: float = 0.5
    """How often to look again while something is in flight elsewhere."""
    partial_seconds: float = 0.25
    """The least time between two writes of one item's text in progress."""
    patience_seconds: float = 5.0
    """The longest pause between two tries while the database cannot be reached."""
    cpu_processes: int = 0
    """Processes for `cpu=True` handlers; 0 is one per core."""
    durability: str = "full"
    """SQLite: `full` survives a power cut, `normal` a crash of the process only."""

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            low, high = RANGES.get(name, (None, None))
            if low is not None and high is not None and not low <= value <= high:
                raise SettingsError(f"{name} is {value}; it must be between {low} and {high}")
        if self.durability not in ("full", "normal"):
            raise SettingsError(f"durability is {self.durability!r}; it must be 'full' or 'normal'")

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


RANGES: Mapping[str, tuple[float, float]] = {
    "scan_seconds": (0.05, 86_400),
    "queue_max": (1, 1_000_000),
    "assign_seconds": (0.05, 3600),
    "cycle_seconds": (0, 60),
    "health_seconds": (0.05, 3600),
    "cleanup_seconds": (0.05, 86_400),
    "grace_seconds": (0, 86_400),
    "poll_seconds": (0.05, 60),
    "partial_seconds": (0.01, 60),
    "patience_seconds": (0.05, 600),
    "cpu_processes": (0, 1024),
}
