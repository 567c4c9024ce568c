"""Vectors of sections in PostgreSQL with pgvector: one index for all machines, exact."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from onceflow import Flow, StoreUnavailable
from onceflow.knowledge.articles import Change, Loaded, changes, loaded
from onceflow.knowledge.index import NEAR, Hit, best, tie_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONNECT_SECONDS = 10
CALL_SECONDS = 60


@cache
def sql(name: str) -> str:
    return (files("onceflow.knowledge") / "sql" / f"pgvector_{name}.sql").read_text("utf-8")


class PgVector:
    """The index of a database whose server has pgvector."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema

    @classmethod
    async def of(cls, flow: Flow, *, make: bool = True) -> PgVector | None:
        """The index of this database; None where there is no PostgreSQL or no pgvector. Who only
        looks does not make it."""
        dsn: str | None = getattr(flow.store, "dsn", None)
        if dsn is None:
            return None
        import asyncpg

        async with _connected(dsn) as connection:
            found = await connection.fetchrow(sql("found"))
            if not make and not found["made"]:
                return None
            if found["schema"] is None and found["available"]:
                with suppress(asyncpg.PostgresError):  # not allowed to, or another is at it
                    await connection.execute(sql("extension"))
                found = await connection.fetchrow(sql("found"))
            if found["schema"] is None:
                return None
            index = cls(dsn, found["schema"])
            if not found["made"]:
                await connection.execute(index._path())
                await connection.execute(sql("make"))
        return index

    def _path(self) -> str:
        return f"SET search_path TO onceflow, {self._schema}, public"

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        async with _connected(self._dsn) as connection:
            await connection.execute(self._path())
            yield connection

    async def seen(self) -> int:
        async with self._open() as connection:
            return int(await connection.fetchval(sql("seen")))

    async def counts(self) -> tuple[int, int]:
        """Articles and sections."""
        async with self._open() as connection:
            row = await connection.fetchrow(sql("counts"))
        return row["articles"], row["sections"]

    async def models(self) -> dict[str, int]:
        async with self._open() as connection:
            return {row["model"]: row["sections"] for row in await connection.fetch(sql("models"))}

    async def feed(self, flow: Flow, told: Callable[[int], None]) -> None:
        """Take in what was committed since. Who comes second waits, and finds less to do."""
        async with self._open() as connection:
            while True:
                async with connection.transaction():
                    seq = await connection.fetchval(sql("seen_lock"))
                    change = await _first(changes(flow, seq))
                    if change is None:
                        return
                    found = await loaded(flow, change.loaded)
                    await self._put(connection, found)
                    await connection.execute(sql("seen_set"), change.seq)
                told(len(change.loaded))

    async def forget(self) -> None:
        """Begin again, from nothing."""
        async with self._open() as connection, connection.transaction():
            await connection.fetchval(sql("seen_lock"))
            await connection.execute(sql("clear"))
            await connection.execute(sql("seen_set"), 0)

    async def _put(self, connection: Any, articles: list[Loaded]) -> None:
        await connection.execute(sql("delete"), [article.item for article in articles])
        for model in dict.fromkeys(article.embed_model for article in articles):
            rows = [
                (article.item, section.n, article.generation, tie_of(article.title),
                 _text(section.vector))
                for article in articles if article.embed_model == model
                for section in article.sections if section.vector
            ]  # fmt: skip
            if rows:
                item, n, generation, tie, vector = (
                    list(column) for column in zip(*rows, strict=True)
                )
                await connection.execute(sql("insert"), item, n, generation, tie, model, vector)

    async def search(self, query: NDArray[np.float32], model: str, most: int) -> list[Hit]:
        """The nearest sections, exactly: the server looks at all."""
        import numpy as np

        async with self._open() as connection:
            rows = await connection.fetch(
                sql("search"), _text(query.astype("<f4").tobytes()), model, len(query), most, NEAR
            )
        if not rows:
            return []
        vectors = np.array([row["vector"] for row in rows], dtype=np.float32)
        exact = vectors.astype(np.float64) @ query.astype(np.float64)
        return best(
            (
                Hit(row["item"], row["n"], float(score), row["tie"])
                for row, score in zip(rows, exact, strict=True)
            ),
            most,
        )


async def _first(found: AsyncGenerator[Change, None]) -> Change | None:
    async with aclosing(found):
        return await anext(found, None)


def _text(vector: bytes) -> str:
    """As pgvector reads it: each number so that it is the same 32 bits again."""
    import numpy as np

    return f"[{','.join(map(repr, np.frombuffer(vector, dtype='<f4').tolist()))}]"


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Any]:
    import asyncpg

    try:
        connection = await asyncpg.connect(
            dsn, timeout=CONNECT_SECONDS, command_timeout=CALL_SECONDS, statement_cache_size=0
        )
        try:
            yield connection
        finally:
            await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        what = str(error) or type(error).__name__
        raise StoreUnavailable(f"the search index cannot be reached: {what}") from error
