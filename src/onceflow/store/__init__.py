"""The one door to durable state: the Store protocol and its two back ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceflow.core.errors import StoreError

if TYPE_CHECKING:
    from onceflow.store.base import Store

__all__ = ["open_store"]


def open_store(url: str, **options: Any) -> Store:
    """The store at an address: a file, `sqlite:///file`, or `postgresql://…`. Not open yet."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "sqlite", f"/{url}"
    if scheme in ("postgresql", "postgres"):
        try:
            from onceflow.store.postgres import PostgresStore
        except ModuleNotFoundError as missing:
            if missing.name != "asyncpg":
                raise
            raise StoreError(
                "PostgreSQL needs asyncpg; install it with: pip install 'onceflow[postgres]'"
            ) from None
        options.pop("durability", None)
        return PostgresStore(url, **options)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        from onceflow.store.sqlite import SqliteStore

        return SqliteStore(rest[1:], **options)
    raise StoreError(
        f"{scheme}: is not a database this program knows; give a file name, sqlite:///FILE or "
        "postgresql://HOST/NAME"
    )
