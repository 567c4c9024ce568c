"""The oracle sees what it is for: each invariant is broken on purpose, by hand, and named."""

import pytest

from onceflow.core.errors import StoreError
from onceflow.core.pipeline import Stage
from onceflow.core.transition import Done
from onceflow.store.base import APART_MS
from onceflow.testing.rig import Rig, handler, pipeline, refused
from tests.store.conftest import Database

PLAIN = pipeline("scrape", "summarize")
GATED = pipeline("scrape", name="news", after_all=handler)
LIMITED = pipeline(Stage("scrape", handler, limit=2), "summarize")


async def broken(rig: Rig, database: Database, statement: str) -> list[tuple[str, str | None, str]]:
    """What the audit says after a statement; before it all was well."""
    assert await rig.audit() == []
    database.raw(statement)
    return await rig.audit()


async def finished_once(rig: Rig) -> None:
    """a has finished its first stage and is claimed for its second; b is done."""
    await rig.add(["b"], "run-0")
    await rig.work_off("scrape", "summarize")
    await rig.add(["a"])
    await rig.finish(await rig.lease("scrape"))
    await rig.lease("summarize")


@pytest.mark.parametrize(
    ("invariant", "statement"),
    [
        ("I1", "UPDATE event SET fence = 0 WHERE item = 2 AND n = 3"),
        ("I1", "UPDATE event SET fence = 1 WHERE item = 2 AND n = 4"),
        ("I1", "UPDATE event SET worker = 'zombie' WHERE item = 2 AND n = 3"),
        ("I1", "UPDATE item SET fence = 0 WHERE id = 2"),
        ("I2", "UPDATE event SET stage = 'scrape' WHERE item = 1 AND n = 5"),
        ("I2", "DELETE FROM result WHERE item = 2 AND stage = 'scrape'"),
        (
            "I2",
            "INSERT INTO result (item, stage, generation, at, body) "
            "SELECT 2, 'summarize', 1, 0, body FROM result WHERE item = 2",
        ),
        ("I5", "DELETE FROM event WHERE item = 2 AND n = 1"),
        ("I5", "DELETE FROM member WHERE item = 2; UPDATE run SET accepted = 0 WHERE id = 'run-1'"),
        ("I5", "UPDATE run SET accepted = 9 WHERE id = 'run-1'"),
        ("I5", "UPDATE run SET max_items = 0 WHERE id = 'run-1'"),
        ("I6", "UPDATE item SET stage = 'scrape' WHERE id = 2"),
        ("I6", "UPDATE item SET phase = 'failed', worker = NULL, deadline = NULL WHERE id = 2"),
        *[
            ("I6", f"UPDATE event SET kind = '{kind}' WHERE item = 2 AND n = 4")
            for kind in (
                "added", "gate_opened", "reopened", "triggered", "cancelled", "released",
                "reclaimed", "retried", "failed", "summary_finished",
            )
        ],
        ("I6", "UPDATE event SET phase = 'active' WHERE item = 2 AND n = 1"),
        ("I10", "UPDATE stage SET attempts = 1; UPDATE event SET stage = 'scrape' WHERE item = 2"),
        ("I12", "DELETE FROM event WHERE item = 2 AND n = 3"),
        ("I12", "UPDATE item SET version = 9 WHERE id = 2"),
        ("I12", "DELETE FROM event WHERE item = 2"),
    ],
)  # fmt: skip
async def test_a_broken_invariant_is_named_with_its_item(
    database: Database, invariant: str, statement: str
) -> None:
    async with Rig(database.make, PLAIN, audit=False) as rig:
        await finished_once(rig)

        found = await broken(rig, database, statement)

        named = [(key, detail) for name, key, detail in found if name == invariant]
        assert named, found
        assert all(detail for _, detail in named)
        assert {key for key, _ in named} & {"a", "b", "run-1"}


async def test_more_leases_than_the_limit_are_named(database: Database) -> None:
    async with Rig(database.make, LIMITED, audit=False) as rig:
        await rig.add(["a", "b", "c"])
        first, _ = (await rig.claim("scrape")).leases
        await rig.finish(first)
        await rig.claim("scrape")

        lower = "UPDATE event SET data = '{\"limit\": 1}' WHERE kind = 'claimed' AND item = 3"
        [(invariant, key, detail)] = await broken(rig, database, lower)

        assert (invariant, key) == ("I7", "c")
        assert "2 live leases" in detail
        assert "the limit was 1" in detail


@pytest.mark.parametrize(
    ("statement", "detail"),
    [
        (
            "INSERT INTO event (at, kind, run) VALUES (0, 'gate_opened', 'run-1')",
            "the gate opened 2 times",
        ),
        ("UPDATE run SET gate_item = NULL", "its gate added no item"),
        (
            "UPDATE event SET phase = 'active' WHERE item = 1 AND n = 3",
            "while item 1 was not settled",
        ),
        (
            "UPDATE event SET phase = 'failed' WHERE item = 1 AND n = 3; "
            "UPDATE run SET gate = 'completed'",
            "while item 1 was not settled",
        ),
    ],
)
async def test_a_gate_that_opened_twice_early_or_without_an_item_is_named(
    database: Database, statement: str, detail: str
) -> None:
    async with Rig(database.make, GATED, audit=False) as rig:
        await rig.add(["a"])
        await rig.work_off("scrape")
        await rig.store.sweep()

        found = await broken(rig, database, statement)

        gates = [(key, what) for name, key, what in found if name == "I8"]
        assert [key for key, _ in gates] == ["run-1"]
        assert detail in gates[0][1]


async def test_a_gate_that_stays_shut_is_named_after_a_grace_time(database: Database) -> None:
    async with Rig(database.make, GATED, audit=False) as rig:
        await rig.add(["a"])
        await rig.work_off("scrape")
        rig.clock.advance(seconds=10)
        assert await rig.audit(grace_ms=10_000) == []

        rig.clock.advance(ms=1)
        await rig.store.leave("w")
        assert await rig.audit(grace_ms=10_000) == [], "nobody was there to open it"
        await rig.beat("w")
        rig.clock.advance(seconds=11)
        assert await rig.audit(grace_ms=10_000) == [
            ("I8", "run-1", "every item is settled, but the gate is still shut")
        ]
        await rig.store.sweep()
        assert await rig.audit(grace_ms=10_000) == []


async def test_a_summary_that_is_finished_twice_is_named(database: Database) -> None:
    async with Rig(database.make, PLAIN, audit=False) as rig:
        await rig.add(["a"])
        done = Done({}, events=["summary_finished", "summary_finished"])
        await rig.finish(await rig.lease("scrape"), done)

        [(invariant, key, detail)] = await rig.audit()

        assert (invariant, key) == ("I12", "a")
        assert "2 times" in detail


async def test_attempts_given_back_do_not_count_against_the_bound(database: Database) -> None:
    async with Rig(database.make, PLAIN) as rig:
        await rig.add(["a"])
        for _ in range(5):
            await rig.lease("scrape")
            await rig.act("release", "a")
        for _ in range(3):
            await rig.lease("scrape")
            await rig.store.leave("w")
            await rig.store.sweep()
            await rig.beat("w")
            rig.clock.advance(seconds=APART_MS / 1000)
            await rig.store.sweep()
        assert await rig.place("a") == ("scrape", "failed")
        await rig.act("retry", "a")
        await rig.lease("scrape")


DEATHS = 5


async def test_deaths_beside_others_do_not_count_against_the_bound(database: Database) -> None:
    async with Rig(database.make, PLAIN, audit=False) as rig:
        await rig.add(["a", "b"])
        for _ in range(DEATHS):
            assert len((await rig.claim("scrape")).leases) == 2
            await rig.store.leave("w")
            await rig.store.sweep()
            await rig.beat("w")
            rig.clock.advance(seconds=APART_MS / 1000)
            await rig.store.sweep()

        # A reclaim that left the attempt where it was has given none back.
        kept = "UPDATE event SET attempt = 1 WHERE kind = 'reclaimed' AND item = 1"
        found = await broken(rig, database, kept)

        [(invariant, key, detail)] = [each for each in found if each[0] == "I10"]
        assert (invariant, key) == ("I10", "a")
        assert f"{DEATHS} attempts" in detail


async def test_the_table_itself_refuses_a_second_result(database: Database) -> None:
    async with Rig(database.make, PLAIN, audit=False) as rig:
        await rig.add(["a", "b"])
        leases = (await rig.claim("scrape")).leases
        database.raw(
            "INSERT INTO result (item, stage, generation, at, body) "
            "VALUES (1, 'scrape', 1, 0, CAST('null' AS "
            + ("blob" if "Sqlite" in type(rig.store).__name__ else "bytea") + "))"
        )  # fmt: skip

        with refused(StoreError, "refused"):
            await rig.finish(leases)

        assert await rig.place("b") == ("scrape", "active"), "nothing of the exchange was kept"
        assert await rig.finish(leases[1]) == [True]


@pytest.mark.parametrize(
    ("statement", "owner"),
    [
        ("DELETE FROM alias WHERE short_key = 'a'", "nobody"),
        ("UPDATE alias SET item = 1 WHERE short_key = 'a'", "item 1"),
    ],
)
async def test_a_key_that_is_not_its_items_own_is_named(
    postgres_database: Database, statement: str, owner: str
) -> None:
    """SQLite's items have a unique index, which nothing can get around."""
    database = postgres_database
    async with Rig(database.make, PLAIN, audit=False) as rig:
        await finished_once(rig)

        found = await broken(rig, database, statement)

        assert found == [("I5", "a", f"its key belongs to {owner}")]
