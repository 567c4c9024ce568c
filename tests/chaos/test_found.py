"""What the scenarios found, each as a small story that needs no luck."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

import onceflow
from onceflow import Pipeline, Settings, Stage, Work
from onceflow.store.base import Swept

SWEEPS = 3


async def answer(work: Work) -> str:
    return work.key


digested = Pipeline("digested", Stage("read", answer), after_all=answer)


@asynccontextmanager
async def run_locked(url: str, run: str) -> AsyncIterator[asyncpg.transaction.Transaction]:
    """Somebody has a run's row, as another process's sweep does until it commits."""
    connection = await asyncpg.connect(url, server_settings={"search_path": "onceflow"})
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT 1 FROM run WHERE id = $1 FOR UPDATE", run)
        yield transaction
    finally:
        await connection.close()


async def test_a_gate_that_others_had_locked_is_asked_for_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers finish the last two items of a run: one looks too early but has the run locked,
    the other one must not leave the gate to the next cleanup, five minutes later."""
    settings = Settings(poll_seconds=0.05)
    async with onceflow.open(postgres_url, digested, settings=settings) as flow:
        added = await flow.add(digested, ["a", "b"])
        sweep = flow.store.sweep
        missed: list[int] = []
        async with run_locked(postgres_url, added.run) as lock:

            async def counted(runs: Sequence[str] = ()) -> Swept:
                if len(missed) == SWEEPS:
                    await lock.rollback()
                swept = await sweep(runs)
                if swept.missed or missed:
                    missed.append(swept.missed)
                return swept

            monkeypatch.setattr(flow.store, "sweep", counted)
            await flow.drain()
        [gate] = await flow.items(digested, stage="digest")
        run: Any = await flow.run(added.run)

    assert missed[: SWEEPS + 1] == [1, 1, 1, 0]
    assert (gate.phase, run.open) == ("done", 0)
    assert run.finished_at is not None
