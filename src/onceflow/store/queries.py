"""The .sql files of a back end, by name."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

NUMBERED = re.compile(r"\d{4}_")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


@cache
def sql(backend: str, name: str) -> str:
    """One file's text. What is the same for both back ends is in `common`."""
    folder = files("onceflow.store") / "sql"
    for place in (backend, "common"):
        file = folder / place / f"{name}.sql"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise KeyError(f"no statement {name!r} for {backend}")


@cache
def numbered(backend: str, name: str) -> tuple[str, tuple[str, ...]]:
    """One file's text with $1, $2 … for its parameters, and their names in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        parameter = match[1]
        if parameter not in names:
            names.append(parameter)
        return f"${names.index(parameter) + 1}"

    text = "\n".join(line for line in sql(backend, name).splitlines() if not line.startswith("--"))
    return PARAMETER.sub(number, text), tuple(names)


@cache
def migrations(backend: str) -> tuple[str, ...]:
    """The numbered migrations in their order; the schema's version is the number of the last one.
    A number without a file changed functions only, which are made anew anyway."""
    folder = files("onceflow.store") / "sql" / backend
    found = {int(file.name[:4]): file for file in folder.iterdir() if NUMBERED.match(file.name)}
    return tuple(
        found[number].read_text(encoding="utf-8") if number in found else ""
        for number in range(1, max(found) + 1)
    )
