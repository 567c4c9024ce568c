"""The server that the other tests stand on behaves as they assume."""

import asyncpg
import pytest

from tests.support import postgres


async def _value(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def _do(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize("round_", [1, 2])
async def test_each_test_gets_an_empty_database(postgres_url: str, round_: int) -> None:
    await _do(postgres_url, "CREATE TABLE left_behind (round integer)")

    count = "SELECT count(*) FROM pg_tables WHERE tablename = 'left_behind'"
    assert await _value(postgres_url, count) == 1


async def test_a_commit_survives_a_crash_of_the_server_under_the_same_address() -> None:
    try:
        server = postgres.start(settings={"fsync": "off", "full_page_writes": "off"})
    except postgres.Unavailable as error:
        pytest.skip(f"no PostgreSQL: {error}")
    with server:
        await _do(server.url, "CREATE TABLE kept AS SELECT 7 AS number")
        first = server.pid
        server.restart("immediate")

        assert server.pid != first
        assert await _value(server.url, "SELECT number FROM kept") == 7
    assert not server.folder.exists()


async def test_a_halted_server_refuses_and_a_resumed_one_answers() -> None:
    try:
        server = postgres.start(settings={"fsync": "off"})
    except postgres.Unavailable as error:
        pytest.skip(f"no PostgreSQL: {error}")
    with server:
        server.halt("fast")
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncpg.connect(server.url)
        server.resume()
        assert await _value(server.url, "SELECT 1") == 1
