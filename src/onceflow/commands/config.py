"""Settings of everything a command makes, from `onceflow.toml`, the environment and flags.

The engine's, the clients' and the pipelines' settings are dataclasses with defaults; each is a
table of the file. An unknown name, a wrong type or a value out of its range is refused by name.
"""

from __future__ import annotations

import os
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from onceflow.core.errors import SettingsError
from onceflow.engine.settings import Settings

CONFIG_FILE = "onceflow.toml"
CONFIG_BYTES_MAX = 1024 * 1024
PREFIX = "ONCEFLOW_"
NOT_OURS = f"{PREFIX}TEST_"
"""Variables of the test suite."""
YES, NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
OUT_DEFAULT = "summaries"
PLACE_DEFAULTS = {
    "db": "onceflow.db", "model": "embedded", "out": OUT_DEFAULT, "contact": None,
    "knowledge": None,
}  # fmt: skip
PLACEHOLDER = re.compile(r"(?<!\{)\{\s*(\w+)\s*\}(?!\})")
FILLED_IN = ("words", "language")
"""What a prompt may leave to be filled in."""
PLACES = frozenset(PLACE_DEFAULTS)
"""What may stand in the file outside of its tables: what the commands have flags for."""


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """How a model is reached, what it costs, and how long it may take."""

    base_url: str | None = None
    """An OpenAI-compatible server; else OPENAI_BASE_URL, else OpenAI's."""
    context_tokens: int | None = None
    """How much the model takes in at once; longer pages are summarized in pieces."""
    price_input: float | None = None
    """Money per million tokens that go in."""
    price_output: float | None = None
    """Money per million tokens that come out."""
    call_seconds: float = 300
    """How long one call may take."""
    idle_seconds: float = 60
    """How long it may say nothing."""
    answer_chars_max: int = 200_000
    """Where an answer is cut."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value < (0 if "price" in field.name else 1e-9):
                raise SettingsError(f"{field.name} is {value}; it must be greater than zero")
        if (self.price_input is None) != (self.price_output is None):
            raise SettingsError("price_input and price_output are given together or not at all")


@dataclass(frozen=True, slots=True)
class SummarizeSettings:
    """What a summary is like, and how gently sites are read."""

    words: int | None = None
    """About how many words a summary has."""
    language: str | None = None
    """The language of summaries, for models that write; else the page's."""
    prompt: str | None = None
    """The instructions for models that write; may hold {words} and {language}."""
    host_limit: int = 2
    """How many pages of one host are fetched at once."""
    host_spacing_seconds: float = 0.5
    """The least time between two fetches from one host."""
    lease_seconds: float = 60.0
    """How long after its worker's last heartbeat a page is another's."""

    def __post_init__(self) -> None:
        for name, low in (
            ("words", 1), ("host_limit", 1), ("host_spacing_seconds", 0), ("lease_seconds", 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not low <= value <= 1_000_000:
                raise SettingsError(f"{name} is {value}; it must be between {low} and 1000000")
        if self.prompt is not None and not self.prompt.strip():
            raise SettingsError("prompt is empty; leave it out for the default")
        for name in PLACEHOLDER.findall(self.prompt or ""):
            if name not in FILLED_IN:
                known = " and ".join(f"{{{each}}}" for each in FILLED_IN)
                raise SettingsError(
                    f"prompt: there is nothing to fill in for {{{name[:40]}}}; there are {known}, "
                    f"and braces that are meant as such are written {{{{{name[:40]}}}}}"
                )


@dataclass(frozen=True, slots=True)
class ExpandSettings:
    """Which wiki is read, how far its links are followed, and how gently."""

    wiki: str = "en"
    """A language of Wikipedia, or the URL of a wiki's api.php."""
    depth: int = 2
    """How many steps from the seeds links are followed."""
    max_articles: int = 500
    """How many titles a run accepts at the most."""
    categories: tuple[str, ...] = ()
    """Links of other articles are not followed; * stands for anything."""
    about: str | None = None
    """Links of articles that are not like this text are not followed."""
    relevance: float = 0.15
    """How like an article must be, between -1 and 1."""
    embed_model: str = "embedded"
    """What makes the sections' vectors: embedded, or openai:MODEL."""
    connections: int = 2
    """Requests that one process has under way at once, of up to 50 titles each."""
    lease_seconds: float = 300.0
    """How long after its worker's last heartbeat an article is another's."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("depth", 0, 1000), ("max_articles", 1, 1_000_000_000), ("relevance", -1, 1),
            ("connections", 1, 100), ("lease_seconds", 1, 1_000_000),
        ):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                flag = name.replace("_", "-")
                raise SettingsError(
                    f"{name} (--{flag}) is {value}; it must be between {low} and {high}"
                )


@dataclass(frozen=True, slots=True)
class AnalyzeSettings:
    """How much of a site is read, who is asked how much, and how gently."""

    pages: int = 20
    """How many pages of a site are read at the most."""
    prompts: int = 20
    """How many questions are formed for a site."""
    models: tuple[str, ...] = ()
    """The assistants; else --model, else the model of everything."""
    at_once: int = 4
    """How many questions of one site are under way at once."""
    refine: bool = True
    """The first assistant mends the profile that the rules give: one call a site."""
    host_spacing_seconds: float = 0.5
    """The least time between two requests to one host."""
    lease_seconds: float = 300.0
    """How long after its worker's last heartbeat a site is another's."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("pages", 1, 500), ("prompts", 10, 50), ("at_once", 1, 100),
            ("host_spacing_seconds", 0, 3600), ("lease_seconds", 1, 1_000_000),
        ):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingsError(f"{name} is {value}; it must be between {low} and {high}")


def tables() -> dict[str, type]:
    """Every table of the file. The clients are imported only where somebody asks."""
    from onceflow.clients.extract import ExtractSettings
    from onceflow.clients.settings import FetchSettings

    return {
        "engine": Settings,
        "fetch": FetchSettings,
        "extract": ExtractSettings,
        "llm": LlmSettings,
        "summarize": SummarizeSettings,
        "expand": ExpandSettings,
        "analyze": AnalyzeSettings,
    }


TABLES = ("engine", "fetch", "extract", "llm", "summarize", "expand", "analyze")


class Config:
    """What the file and the environment say."""

    def __init__(
        self, file: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.path = file or Path(CONFIG_FILE)
        self._file = read_file(file)
        self._environment = os.environ if environment is None else environment

    def place(self, name: str, given: str | None = None) -> tuple[str | None, str]:
        """One of db, model, out, contact and knowledge, and where it comes from."""
        variable = f"{PREFIX}{name.upper()}"
        if given is not None:
            return given, "flag"
        if variable in self._environment:
            return self._environment[variable].strip(), variable
        if name in self._file:
            return self._file[name], str(self.path)
        return PLACE_DEFAULTS[name], "default"

    def made(self, table: str, **given: Any) -> tuple[Any, dict[str, str]]:
        """The settings of one table, and for each where its value comes from."""
        kind: type = Settings if table == "engine" else tables()[table]
        values: dict[str, Any] = {}
        origins = {field.name: "default" for field in fields(kind)}
        for name, value in self._file.get(table, {}).items():
            values[name] = _typed(kind, name, value, str(self.path))
            origins[name] = str(self.path)
        for field in fields(kind):
            variable = variable_of(table, field.name)
            if variable in self._environment:
                text = self._environment[variable].strip()
                values[field.name] = _typed(kind, field.name, text, variable, as_text=True)
                origins[field.name] = variable
        for name, value in given.items():
            if value is not None:
                values[name] = _typed(kind, name, value, f"--{name.replace('_', '-')}")
                origins[name] = "flag"
        return kind(**values), origins

    def unknown_variables(self) -> Iterator[tuple[str, str | None]]:
        """Variables that look like ours and are not, each with the nearest that is."""
        ours = [name for name in self._environment if name.startswith(PREFIX)]
        if not ours:
            return
        known = [f"{PREFIX}{name.upper()}" for name in sorted(PLACES)]
        for table, kind in tables().items():
            known += [variable_of(table, field.name) for field in fields(kind)]
        bare = [name.removeprefix(PREFIX) for name in known]
        for name in sorted(set(ours) - set(known)):
            if not name.startswith(NOT_OURS):
                near = get_close_matches(name.removeprefix(PREFIX), bare, n=1, cutoff=0.5)
                yield name, f"{PREFIX}{near[0]}" if near else None


def variable_of(table: str, name: str) -> str:
    """The environment variable of a setting."""
    middle = "" if table == "engine" else f"{table.upper()}_"
    return f"{PREFIX}{middle}{name.upper()}"


def read_file(file: Path | None = None) -> dict[str, Any]:
    """What the configuration file says, its outermost names checked. One that was not named may
    be absent."""
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
        found = tomllib.loads(raw.decode("utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path} line {line}: it is not UTF-8 text") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    for name, value in found.items():
        if name in PLACES:
            if not isinstance(value, str):
                raise SettingsError(f"{path}: {name} is {value!r}; it must be text")
        elif name not in TABLES:
            names = ", ".join([*sorted(PLACES), *(f"[{table}]" for table in TABLES)])
            raise SettingsError(f"{path}: there is no {name!r}; there are {names}")
        elif not isinstance(value, dict):
            raise SettingsError(f"{path}: {name} must be a table, [{name}]")
    return found


def _typed(kind: type, name: str, value: Any, source: str, *, as_text: bool = False) -> Any:
    hints = get_type_hints(kind)
    if name not in hints:
        names = ", ".join(sorted(hints))
        raise SettingsError(f"{source}: there is no setting {name!r}; there are {names}")
    wanted = _bare(hints[name])
    try:
        return _from_text(wanted, value) if as_text else _checked(wanted, value)
    except ValueError:
        what = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
        words = what.get(wanted, "a list of texts")
        raise SettingsError(f"{source}: {name} is {value!r}; it must be {words}") from None


def _bare(hint: Any) -> Any:
    """The type itself, of one that may be None too."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(each for each in get_args(hint) if each is not type(None))
    return get_origin(hint) or hint


def _from_text(wanted: Any, text: str) -> Any:
    if wanted is bool:
        if text.lower() not in YES | NO:
            raise ValueError(text)
        return text.lower() in YES
    if wanted is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if text == "" and wanted is not str:
        raise ValueError(text)
    return wanted(text)


def _checked(wanted: Any, value: Any) -> Any:
    if wanted is tuple and isinstance(value, list | tuple):
        if not all(isinstance(part, str) for part in value):
            raise ValueError(value)
        return tuple(value)
    if isinstance(value, bool) is not (wanted is bool):
        raise ValueError(value)
    if wanted is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, wanted):
        raise ValueError(value)
    return value
