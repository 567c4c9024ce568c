"""What the scenarios found, each as a small story that needs no luck."""

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import chaos_cpu
import pytest

import onceflow
from onceflow import Pipeline, Settings, Stage, Work
from onceflow.store.base import Swept
from tests.chaos.kit import Crew, until

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


async def test_a_killed_worker_leaves_no_process_behind(tmp_path: Path) -> None:
    """A `cpu=True` handler that hangs is ended by its worker; if that is killed, by itself."""
    database = str(tmp_path / "chaos.db")
    with Crew("chaos_cpu", database, tmp_path) as crew:
        async with onceflow.open(database, chaos_cpu.hanging) as flow:
            await flow.add(chaos_cpu.hanging, ["a"])
        crew.start()

        async def begun() -> bool:
            return bool(list(crew.side.glob("*.jsonl")))

        await until(begun, "the handler has begun", crew)
        [path] = crew.side.glob("*.jsonl")
        pid = int(path.stem)
        assert lives(pid)
        assert pid not in crew.living
        crew.kill(crew.living)

        async def gone() -> bool:
            return not lives(pid)

        try:
            await until(gone, "the handler's process has ended, too", crew, seconds=30)
        finally:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
