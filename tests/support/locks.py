"""Whether a stopped process holds the others up."""

import asyncio

import apsw
import asyncpg

STUCK = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND state LIKE 'idle in transaction%'
   AND state_change < clock_timestamp() - interval '200 ms'"""


async def others_can_write(database: str) -> bool:
    """Whether others can write while somebody is stopped. SQLite has one lock for all of it; on
    PostgreSQL a transaction that was begun keeps its rows until the server ends it, after 30 s."""
    if "://" in database:
        await asyncio.sleep(0.3)
        server = await asyncpg.connect(database)
        try:
            return bool(await server.fetchval(STUCK) == 0)
        finally:
            await server.close()
    connection = apsw.Connection(database)
    connection.set_busy_timeout(200)
    try:
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True
