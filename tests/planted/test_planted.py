"""A bug that somebody might write is found: by the simulation or, where it cannot be, by a test."""

from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from onceflow import StoreUnavailable
from onceflow.store import sqlite_write
from onceflow.store.sqlite import SqliteStore
from onceflow.testing.clock import FakeClock
from onceflow.testing.simulate import play
from onceflow.testing.suite_lease import LeaseSuite
from tests.planted import bugs

SEEDS_MAX = 1000


@pytest.mark.parametrize("plant", bugs.FOUND_BY_SIMULATION, ids=lambda plant: plant.__name__)
def test_the_simulation_finds(plant: bugs.Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    found = next((seed for seed in range(SEEDS_MAX) if play(seed).violations), None)

    assert found is not None, f"{plant.__doc__} was not found in {SEEDS_MAX} seeds"
    monkeypatch.undo()
    assert play(found).violations == [], "it is the planted bug that was found, not another one"


@pytest.mark.parametrize(
    ("plant", "name"), bugs.FOUND_BY_SUITE, ids=lambda each: getattr(each, "__name__", "")
)
async def test_the_behaviour_suite_finds(
    plant: bugs.Plant, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_store(clock: FakeClock) -> SqliteStore:
        return SqliteStore(tmp_path / f"{len(list(tmp_path.iterdir()))}.db", clock=clock)

    test = getattr(LeaseSuite(), name)
    await test(make_store)
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        await test(make_store)


async def written_after_a_look(path: Path) -> str | None:
    """One transaction that looks, then writes, while another program tries to write in between.

    What it wrote; a StoreUnavailable if it could not.
    """
    store = SqliteStore(path)
    await store.open()
    intruder = apsw.Connection(str(path))
    intruder.set_busy_timeout(0)

    def work(db: apsw.Connection) -> str | None:
        sqlite_write.run(db, "meta_get", name="mine").fetchall()
        with suppress(apsw.BusyError):  # as it should be: the lock is ours from the beginning
            sqlite_write.run(intruder, "meta_set", name="theirs", value="2")
        sqlite_write.run(db, "meta_set", name="mine", value="1")
        value: str | None = sqlite_write.run(db, "meta_get", name="mine").get
        return value

    try:
        return await store._write(work)
    finally:
        intruder.close()
        await store.close()


async def test_a_transaction_that_looks_before_it_writes_is_not_disturbed(tmp_path: Path) -> None:
    assert await written_after_a_look(tmp_path / "flow.db") == "1"


async def test_a_transaction_that_begins_deferred_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bugs.deferred_begin(monkeypatch)

    with pytest.raises(StoreUnavailable):
        await written_after_a_look(tmp_path / "flow.db")
