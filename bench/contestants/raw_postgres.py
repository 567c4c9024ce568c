"""Hand-written SQL on PostgreSQL: a claim and a finish per batch, and nothing else.

No history, no fence, no limits, no retries: the ceiling, not an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from bench.contestant import Contestant, Send, Started, settled, vacuum
from bench.measures import Rate, Stopwatch

SCHEMA = """
CREATE TABLE raw_item (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  stage smallint NOT NULL DEFAULT 0,
  phase smallint NOT NULL DEFAULT 0,  -- 0 ready, 1 active, 2 done
  owner text,
  lease timestamptz,
  body jsonb
) WITH (fillfactor = 70);
CREATE INDEX raw_item_ready ON raw_item (stage, id) WHERE phase = 0;
"""
FILL = "INSERT INTO raw_item (body) SELECT jsonb_build_object('i', i) FROM generate_series(1, $1) i"
ADD = "WITH added AS (INSERT INTO raw_item (body) VALUES ('1')) SELECT pg_notify('raw_item', '')"
CLAIM = """
WITH picked AS MATERIALIZED (
  SELECT id FROM raw_item WHERE phase = 0 AND stage = $1
   ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE raw_item SET phase = 1, owner = $3, lease = clock_timestamp() + interval '60 s'
  FROM picked WHERE raw_item.id = picked.id RETURNING raw_item.id, raw_item.body
"""
FINISH = """
UPDATE raw_item SET phase = CASE WHEN stage + 1 = $3 THEN 2 ELSE 0 END, stage = stage + 1,
       owner = NULL, lease = NULL
 WHERE id = ANY($1::bigint[]) AND phase = 1 AND owner = $2
"""


class RawPostgres(Contestant):
    def __init__(self, url: str, batch: int = 1, connections: int = 1) -> None:
        super().__init__(url)
        self.batch = batch
        self.connections = connections

    async def prepare(self) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(SCHEMA)
        await connection.close()

    async def rate(self, n: int) -> Rate:
        return await self._work_off(n, stages=1)

    async def pipeline3(self, n: int) -> Rate:
        return await self._work_off(n, stages=3)

    @asynccontextmanager
    async def worker(self, started: Started) -> AsyncIterator[None]:
        wake = asyncio.Event()

        def notified(*_: object) -> None:
            wake.set()

        connection = await asyncpg.connect(self.url)
        listening = await asyncpg.connect(self.url)
        await listening.add_listener("raw_item", notified)

        async def work() -> None:
            while True:
                await wake.wait()
                wake.clear()
                while claimed := await connection.fetch(CLAIM, 0, 1, "worker"):
                    started()
                    await connection.execute(FINISH, [claimed[0]["id"]], "worker", 1)

        task = asyncio.create_task(work())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await listening.close()
            await connection.close()

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        connection = await asyncpg.connect(self.url)

        async def send() -> None:
            await connection.execute(ADD)

        yield send
        await connection.close()

    async def _work_off(self, n: int, stages: int) -> Rate:
        connections = [await asyncpg.connect(self.url) for _ in range(self.connections)]
        await connections[0].execute(FILL, n)
        await vacuum(self.url)
        done = 0

        async def work(connection: Any, owner: str) -> None:
            nonlocal done
            claim = await connection.prepare(CLAIM)
            finish = await connection.prepare(FINISH)
            while done < n:
                for stage in reversed(range(stages)):
                    claimed = await claim.fetch(stage, self.batch, owner)
                    if not claimed:
                        continue
                    await finish.fetch([row["id"] for row in claimed], owner, stages)
                    if stage == stages - 1:
                        done += len(claimed)

        with Stopwatch() as watch:
            workers = [work(each, f"worker-{i}") for i, each in enumerate(connections)]
            await asyncio.gather(*workers)
        left = "SELECT count(*) FROM raw_item WHERE phase = 2"
        settled(await connections[0].fetchval(left), n)
        for connection in connections:
            await connection.close()
        return watch.rate(n, stages)


CONTESTANT = RawPostgres
