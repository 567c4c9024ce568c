"""Hand-written SQL on SQLite in WAL mode with synchronous=FULL: the ceiling, not an engine."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.contestant import Contestant, Send, Started, settled
from bench.measures import Rate, Stopwatch

POLL_SECONDS = 0.001

SCHEMA = """
CREATE TABLE raw_item (
  id INTEGER PRIMARY KEY,
  stage INTEGER NOT NULL DEFAULT 0,
  phase INTEGER NOT NULL DEFAULT 0,  -- 0 ready, 1 active, 2 done
  owner TEXT,
  lease REAL,
  body TEXT
);
CREATE INDEX raw_item_ready ON raw_item (stage, id) WHERE phase = 0;
"""
ADD = "INSERT INTO raw_item (body) VALUES (?)"
CLAIM = """
UPDATE raw_item SET phase = 1, owner = 'worker', lease = ?
 WHERE id IN (SELECT id FROM raw_item WHERE phase = 0 AND stage = ? ORDER BY id LIMIT ?)
RETURNING id, body
"""
FINISH = """
UPDATE raw_item SET phase = CASE WHEN stage + 1 = ? THEN 2 ELSE 0 END, stage = stage + 1,
       owner = NULL, lease = NULL
 WHERE id = ? AND phase = 1 AND owner = 'worker'
"""


class RawSqlite(Contestant):
    def __init__(self, url: str, batch: int = 1) -> None:
        super().__init__(url)
        self.batch = batch
        self._added: asyncio.Event | None = None

    async def prepare(self) -> None:
        connection = self._connect()
        connection.executescript(SCHEMA)
        connection.close()

    async def rate(self, n: int) -> Rate:
        return self._work_off(n, stages=1)

    async def pipeline3(self, n: int) -> Rate:
        return self._work_off(n, stages=3)

    @asynccontextmanager
    async def worker(self, started: Started) -> AsyncIterator[None]:
        connection = self._connect()
        added = self._added = asyncio.Event()

        async def work() -> None:
            seen = 0
            while True:
                # data_version moves when another connection has committed, in whatever process.
                (version,) = connection.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    seen = version
                    while ids := self._claim(connection, 0, 1):
                        started()
                        self._finish(connection, ids, 1)
                await _soon(added, POLL_SECONDS)

        task = asyncio.create_task(work())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            connection.close()

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        connection = self._connect()

        async def send() -> None:
            connection.execute(ADD, ("1",))
            if self._added is not None:
                self._added.set()

        yield send
        connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.url, isolation_level=None, timeout=60)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _work_off(self, n: int, stages: int) -> Rate:
        connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(ADD, ((f'{{"i": {i}}}',) for i in range(n)))
        connection.execute("COMMIT")
        connection.execute("ANALYZE")
        done = 0
        with Stopwatch() as watch:
            while done < n:
                for stage in reversed(range(stages)):
                    ids = self._claim(connection, stage, self.batch)
                    self._finish(connection, ids, stages)
                    if stage == stages - 1:
                        done += len(ids)
        left = "SELECT count(*) FROM raw_item WHERE phase = 2"
        settled(connection.execute(left).fetchone()[0], n)
        connection.close()
        return watch.rate(n, stages)

    def _claim(self, connection: sqlite3.Connection, stage: int, count: int) -> list[int]:
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(CLAIM, (time.time() + 60, stage, count)).fetchall()
        connection.execute("COMMIT")
        return [row[0] for row in rows]

    def _finish(self, connection: sqlite3.Connection, ids: list[int], stages: int) -> None:
        if not ids:
            return
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(FINISH, [(stages, item) for item in ids])
        connection.execute("COMMIT")


async def _soon(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    event.clear()


CONTESTANT = RawSqlite
