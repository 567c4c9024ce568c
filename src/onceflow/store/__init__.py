"""The one door to durable state: the Store protocol and its two back ends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from onceflow.core.errors import StoreError, pip_install

if TYPE_CHECKING:
    from onceflow.store.base import Store

__all__ = ["open_store"]

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def open_store(url: str, **options: Any) -> Store:
    """The store at an address: a file, `sqlite:///file`, or `postgresql://…`. Not open yet.

    `sqlite:///file.db` is beside us, `sqlite:////srv/file.db` begins at the root.
    """
    found = SCHEME.match(url)
    scheme = found[1].lower() if found else "sqlite"
    if scheme in ("postgresql", "postgres"):
        try:
            from onceflow.store.postgres import PostgresStore
        except ModuleNotFoundError as missing:
            if missing.name != "asyncpg":
                raise
            raise StoreError(
                f"PostgreSQL needs asyncpg; install it with: {pip_install('postgres')}"
            ) from None
        # A commit is on the server's disk, always: the least that PostgreSQL offers below that
        # would lose commits when the server is killed, not only when the power is cut.
        options.pop("durability", None)
        return PostgresStore(url, **options)
    path = url.removeprefix("sqlite:///") if found else url
    if not found or (scheme == "sqlite" and path not in ("", url)):
        from onceflow.store.sqlite import SqliteStore

        return SqliteStore(path, **options)
    raise StoreError(
        f"{scheme}: is not a database this program knows; give a file name, sqlite:///FILE or "
        "postgresql://HOST/NAME"
    )
