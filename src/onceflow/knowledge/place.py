"""Where the files of a database's projections are, and whose they are."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from onceflow import Flow
from onceflow.core.errors import SettingsError
from onceflow.knowledge.articles import NAME


def folder_of(flow: Flow, given: str | os.PathLike[str] | None = None) -> Path:
    """The folder for a database's index and graph: beside a SQLite file; for a server, in the
    user's own data folder, under a name made from the server's address."""
    if given:
        return Path(given)
    path: Path | None = getattr(flow.store, "path", None)
    if path is not None:
        if str(path) == ":memory:":
            raise SettingsError("a database in memory has no files beside it; name a folder")
        return path.with_name(f"{path.name}-knowledge")
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    mark = blake2b(flow.store.url.encode(), digest_size=8).hexdigest()
    return Path(home) / "onceflow" / mark


async def is_empty(flow: Flow) -> bool:
    """Whether there are no articles. Asked every second, maybe beside a million other items."""
    [row] = await flow.store.read("any_item", pipeline=NAME)
    return not row["found"]


async def witness_of(flow: Flow) -> list[Any] | None:
    """An item that is in no other database; None while there is none."""
    if await is_empty(flow):
        return None
    first = await flow.items(NAME, limit=1)
    return [first[0].id, first[0].key, first[0].created_at] if first else None


def read_json(path: Path) -> dict[str, Any]:
    """What a small file of ours says; nothing if it is missing or not as we wrote it."""
    try:
        found = json.loads(path.read_bytes())
        return dict(found["value"]) if found["sum"] == _sum(found["value"]) else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """The file has the new contents or the old ones, never half of them."""
    write_bytes(path, json.dumps({"sum": _sum(value), "value": value}).encode())


def _sum(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def write_bytes(path: Path, body: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with draft.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Whether we have a lock that one process at a time can have; it ends with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
