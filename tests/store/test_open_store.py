"""A database is named by a URL or a path; what cannot be opened says what to do."""

import sys
from pathlib import Path

import pytest

from onceflow.core.errors import StoreError
from onceflow.store import open_store
from onceflow.store.postgres import PostgresStore
from onceflow.store.sqlite import SqliteStore
from onceflow.testing.rig import refused


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("news.db", "news.db"),
        ("folder/news.db", "folder/news.db"),
        ("/srv/news.db", "/srv/news.db"),
        ("sqlite:///news.db", "news.db"),
        ("sqlite:////srv/news.db", "/srv/news.db"),
        ("a:b.db", "a:b.db"),
    ],
)
def test_a_path_or_a_sqlite_url_is_a_file(url: str, path: str) -> None:
    store = open_store(url)

    assert isinstance(store, SqliteStore)
    assert store.path == Path(path)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL"])
def test_a_postgres_url_is_a_server(scheme: str) -> None:
    store = open_store(f"{scheme}://ada:secret@db.test/news")

    assert isinstance(store, PostgresStore)
    assert "secret" not in store.url


def test_options_go_to_the_store() -> None:
    assert isinstance(open_store("x.db", durability="normal"), SqliteStore)
    assert isinstance(open_store("postgresql://db.test/x", durability="normal"), PostgresStore)


@pytest.mark.parametrize(
    "url", ["mysql://db.test/news", "http://db.test/", "sqlite:///", "sqlite://news.db", "file:/x"]
)
def test_another_scheme_is_refused_with_those_that_are_allowed(url: str) -> None:
    with refused(StoreError, url.partition(":")[0], "sqlite:///FILE", "postgresql://"):
        open_store(url)


def test_without_asyncpg_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("onceflow.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    with refused(StoreError, "pip install '.[postgres]'"):
        open_store("postgresql://db.test/news")


def test_another_missing_module_is_not_called_asyncpg(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("onceflow.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onceflow.store.postgres_connect", None)

    with pytest.raises(ModuleNotFoundError, match="postgres_connect"):
        open_store("postgresql://db.test/news")
