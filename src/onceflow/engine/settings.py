"""Every interval and bound of the engine, with its unit in its name.

Values come from `onceflow.toml`, then `ONCEFLOW_…` in the environment, then the caller; a later one
wins. An unknown name, a wrong type or a value out of its range is refused by name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from onceflow.core.errors import SettingsError

CONFIG_FILE = "onceflow.toml"
CONFIG_BYTES_MAX = 1024 * 1024
PLACES = frozenset({"db", "contact", "model", "out"})
"""What may stand in the file outside of its tables: what the commands have flags for."""


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


def load(
    file: Path | None = None, environment: Mapping[str, str] | None = None, **given: Any
) -> tuple[Settings, dict[str, str]]:
    """The settings in force, and for each where its value comes from."""
    values: dict[str, Any] = {}
    origin = dict.fromkeys(Settings.__dataclass_fields__, "default")
    path = file or Path(CONFIG_FILE)
    for name, value in read_file(file).get("engine", {}).items():
        values[name] = _typed(name, value, f"{path}")
        origin[name] = str(path)
    given_or_own = os.environ if environment is None else environment
    for variable, text in sorted(given_or_own.items()):
        name = variable.removeprefix("ONCEFLOW_").lower()
        if variable.startswith("ONCEFLOW_") and name in Settings.__dataclass_fields__:
            values[name] = _typed(name, text.strip(), variable)
            origin[name] = variable
    for name, value in given.items():
        if value is not None:
            values[name] = _typed(name, value, f"--{name.replace('_', '-')}")
            origin[name] = "flag"
    return Settings(**values), origin


def read_file(file: Path | None = None) -> dict[str, Any]:
    """What the configuration file says, its names checked. One that was not named may be absent."""
    path = file or Path(CONFIG_FILE)
    if file is None and not path.exists():
        return {}
    raw = b""
    try:
        if path.is_dir():
            raise SettingsError(f"{path} is a folder; name a file")
        with path.open("rb") as opened:
            raw = opened.read(CONFIG_BYTES_MAX + 1)
        if len(raw) > CONFIG_BYTES_MAX:
            raise SettingsError(f"{path} is larger than {CONFIG_BYTES_MAX:,} bytes")
        table = tomllib.loads(raw.decode("utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path} line {line}: it is not UTF-8 text") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    for name, value in table.items():
        if name in PLACES:
            if not isinstance(value, str):
                raise SettingsError(f"{path}: {name} is {value!r}; it must be text")
        elif name != "engine":
            names = ", ".join(sorted(PLACES))
            raise SettingsError(f"{path}: there is no {name!r}; there are {names} and [engine]")
        elif not isinstance(value, dict):
            raise SettingsError(f"{path}: engine must be a table, [engine]")
    return table


def _typed(name: str, value: Any, source: str) -> Any:
    types = get_type_hints(Settings)
    if name not in types:
        raise _unknown(name, source)
    wanted = types[name]
    try:
        if isinstance(value, bool) or (wanted is not str and value == ""):
            raise ValueError
        if isinstance(value, str) and wanted is not str:
            return wanted(value)
        if wanted is float and isinstance(value, int):
            return float(value)
        if not isinstance(value, wanted):
            raise ValueError
    except ValueError:
        kind = {float: "a number", int: "a whole number", str: "text"}[wanted]
        raise SettingsError(f"{source}: {name} is {value!r}; it must be {kind}") from None
    return value


def _unknown(name: str, source: str) -> SettingsError:
    names = ", ".join(sorted(Settings.__dataclass_fields__))
    return SettingsError(f"{source}: there is no setting {name!r}; there are {names}")
