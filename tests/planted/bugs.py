"""Bugs to plant: each is one that a store or an engine like ours could easily have.

Every plant says which text or function it replaces and fails if that is not there any more: a plant
that does nothing would prove nothing.
"""

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import apsw
import pytest

from onceflow import Settings, StoreUnavailable
from onceflow.engine.exchange import Batch, Exchange
from onceflow.store import queries, sqlite, sqlite_write
from onceflow.store.base import Claim, Claimed, Exchanged, Finish, Worker
from onceflow.store.clock import wall_ms
from onceflow.store.writer import Operation
from onceflow.testing import simworld
from onceflow.testing.simstore import OneConnection, Process

Plant = Callable[[pytest.MonkeyPatch], None]


def change_sql(patch: pytest.MonkeyPatch, changes: dict[str, tuple[str, str]]) -> None:
    """In the statements of these names, put the second text in the place of the first."""
    for name, (old, _) in changes.items():
        assert old in queries.sql("sqlite", name), f"{name}.sql does not say {old!r} any more"

    def changed(backend: str, name: str) -> str:
        text = queries.sql(backend, name)
        return text.replace(*changes[name]) if name in changes else text

    patch.setattr(sqlite_write, "sql", changed)


def no_fence_in_commit(patch: pytest.MonkeyPatch) -> None:
    """Whoever has worked on an item may finish it."""
    guard = ("AND (item.fence, item.ticket) = (h.value ->> 1, h.value ->> 2)", "")
    change_sql(patch, {"finish": guard, "finish_kept": guard, "finish_events": guard})


def no_fence_in_renew(patch: pytest.MonkeyPatch) -> None:
    """Whoever has worked on an item may renew it and store its text."""
    guard = ("AND (fence, ticket) = (:fence, :ticket) ", "")
    change_sql(patch, {"renew": guard, "save_partial": guard})


def no_fence_in_reclaim(patch: pytest.MonkeyPatch) -> None:
    """A lease is taken back, but its fence stays good."""
    change_sql(patch, {"reclaim": ("fence = fence + 1, ", "")})


def no_fence_in_release(patch: pytest.MonkeyPatch) -> None:
    """An operator takes a lease away, but its fence stays good."""
    change_sql(patch, {"act_release": ("fence = fence + 1, ", "")})


def limit_by_a_counter(patch: pytest.MonkeyPatch) -> None:
    """Live leases are counted beside the leases: up at a claim, down whenever one is finished."""
    counted: Counter[tuple[int, str]] = Counter()
    run, finish = sqlite_write.run, sqlite_write.finish
    asked: list[str] = []

    class Row:
        def __init__(self, row: Any) -> None:
            self._row = row

        def fetchone(self) -> Any:
            return self._row

    def counting(db: apsw.Connection, name: str, /, **parameters: Any) -> Any:
        cursor = run(db, name, **parameters)
        if name == "stage_bounds":
            asked[:] = [parameters["stage"]]
            *bounds, _ = cursor.fetchone()
            return Row((*bounds, max(0, counted[id(db), asked[0]])))
        if name == "claim":
            counted[id(db), asked[0]] += len(json.loads(parameters["ids"]))
        return cursor

    def finishing(
        db: apsw.Connection, worker: str, number: int, finishes: Sequence[Finish], *rest: Any
    ) -> Any:
        for one in finishes:
            counted[id(db), one.lease.stage] -= 1
        return finish(db, worker, number, finishes, *rest)

    patch.setattr(sqlite_write, "run", counting)
    patch.setattr(sqlite_write, "finish", finishing)


def gate_without_its_guard(patch: pytest.MonkeyPatch) -> None:
    """The gate of a sealed run opens without a look at its items."""
    change_sql(
        patch,
        {
            "open_member": ("member.run = :run AND", "member.run = :run AND false AND"),
            "run_settle": ("AND NOT EXISTS", "AND true OR false AND NOT EXISTS"),
        },
    )


def gate_looked_at_before(patch: pytest.MonkeyPatch) -> None:
    """One look says that all is settled, a later transaction opens the gate."""
    change_sql(patch, {"run_settle": ("AND NOT EXISTS", "AND true OR false AND NOT EXISTS")})
    settle = sqlite_write._settle
    seen: set[tuple[int, str]] = set()

    def later(db: apsw.Connection, run: str, gate: str | None, witness: int, now: int) -> bool:
        if (id(db), run) in seen:
            sqlite_write.run(db, "run_settle", run=run, now=now)
            return bool(db.changes())
        if sqlite_write.run(db, "open_member", run=run, witness=0, gate=gate).get is None:
            seen.add((id(db), run))
        return False

    assert settle.__code__.co_varnames[:5] == ("db", "run_id", "gate", "witness", "now")
    patch.setattr(sqlite_write, "_settle", later)


def attempt_counted_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """An attempt counts when it has ended, so one that ends its worker never counts."""
    change_sql(
        patch,
        {
            "claim": ("attempt = attempt + 1, ", ""),
            "claim_leases": (
                "SELECT id, key, fence, attempt,",
                "SELECT id, key, fence, attempt + 1 AS attempt,",
            ),
        },
    )


def notify_only(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks for work unless told to: a notification that is lost is lost."""
    draw = simworld.draw_settings

    def without_scans(random: Any) -> Settings:
        return dataclasses.replace(draw(random), scan_seconds=86_400.0)

    patch.setattr(simworld, "draw_settings", without_scans)


def told_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A write is reported as done, and its events as happened, before it is committed."""

    def hasty(db: apsw.Connection, group: list[Operation]) -> list[tuple[Operation, Any, Any]]:
        db.execute("BEGIN IMMEDIATE")
        answers = []
        for operation in group:
            try:
                answers.append((operation, operation.work(db), None))
            except Exception as error:
                answers.append((operation, None, error))
        try:
            db.execute("COMMIT")
        except apsw.FullError:
            if db.in_transaction:
                db.execute("ROLLBACK")
        return answers

    assert callable(sqlite.write_group)
    patch.setattr(sqlite, "write_group", hasty)


def heartbeat_by_name(patch: pytest.MonkeyPatch) -> None:
    """A worker is known by the name in its configuration: two processes share one."""

    def named(self: simworld.World, process: Process) -> Worker:
        return Worker("worker", "simulated", 1)

    patch.setattr(simworld.World, "new_worker", named)


def leases_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Leases are judged by the wall clock of whoever looks."""
    patch.setattr(OneConnection, "now", lambda self: wall_ms())


def adopts_what_it_has(patch: pytest.MonkeyPatch) -> None:
    """Looking for leases whose replies were lost, a process takes up those it is working on."""
    reconcile = Exchange.reconcile

    async def greedy(self: Exchange) -> None:
        await reconcile(self)
        items = [one.lease.item for one in self._book.running()]
        for lease in await self._store.leases(self._worker, items):
            self._book._by_item.pop(lease.item, None)
            plan = self._scheduler.plans[lease.pipeline, lease.stage]
            self._take_in(plan, lease, self._loop.time())

    patch.setattr(Exchange, "reconcile", greedy)


def takes_in_nothing(patch: pytest.MonkeyPatch) -> None:
    """A lease that the database gave, but whose reply was lost, is never found."""
    assert callable(Exchange._found)
    patch.setattr(Exchange, "_found", lambda self, lease: None)


def looks_once_only(patch: pytest.MonkeyPatch) -> None:
    """What a process holds is read once after an exchange without an answer, and never again: what
    is committed after that is not found."""
    reconcile = Exchange.reconcile

    async def once(self: Exchange) -> None:
        if self.unsure:
            await reconcile(self)

    patch.setattr(Exchange, "reconcile", once)


def looks_while_it_asks(patch: pytest.MonkeyPatch) -> None:
    """What a process holds is read and acted upon while exchanges are under way."""
    assert callable(Exchange.quiet)

    @asynccontextmanager
    async def at_once(self: Exchange) -> AsyncIterator[None]:
        yield

    patch.setattr(Exchange, "quiet", at_once)


def no_answer_is_a_yes(patch: pytest.MonkeyPatch) -> None:
    """An exchange without an answer is taken for made: what it was to commit is not asked again."""
    undo = Exchange._undo

    def made(self: Exchange, batch: Batch) -> None:
        undo(self, batch)
        if isinstance(sys.exc_info()[1], StoreUnavailable):
            for one in batch.ended:
                self._book._ended.remove(one)
                self._book.forget(one)

    patch.setattr(Exchange, "_undo", made)


def no_is_no_answer(patch: pytest.MonkeyPatch) -> None:
    """A finish that was denied, since its lease was lost, is asked for again."""
    settle = Exchange._settle

    def again(self: Exchange, batch: Batch, reply: Exchanged) -> None:
        settle(self, batch, reply)
        for one, kept in zip(batch.ended, reply.kept, strict=True):
            if not kept and one.outcome is not None:
                self._book.give_back(one, one.outcome)

    patch.setattr(Exchange, "_settle", again)


def forgets_what_it_kept(patch: pytest.MonkeyPatch) -> None:
    """A commit asked again after a lost reply is taken for one whose lease was lost."""
    change_sql(patch, {"finish_known": ("worker = :worker", "worker <> :worker")})


def spacing_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A lane's spacing counts from the last start of the same process only."""
    change_sql(patch, {"lane_state": ("coalesce((SELECT next_at", "0 * coalesce((SELECT next_at")})


FOUND_BY_SIMULATION: tuple[Plant, ...] = (
    no_fence_in_commit,
    no_fence_in_renew,
    no_fence_in_reclaim,
    no_fence_in_release,
    limit_by_a_counter,
    gate_without_its_guard,
    gate_looked_at_before,
    attempt_counted_at_the_end,
    notify_only,
    told_before_commit,
    heartbeat_by_name,
    leases_by_the_wall_clock,
    adopts_what_it_has,
    takes_in_nothing,
    looks_once_only,
    looks_while_it_asks,
    no_answer_is_a_yes,
    no_is_no_answer,
    forgets_what_it_kept,
    spacing_forgotten,
)


# --- found by tests of the behaviour suite ---


def leases_named_by_fence_alone(patch: pytest.MonkeyPatch) -> None:
    """A lease is its item and its fence: both come again when a database has lost commits."""
    guard = (
        "(item.fence, item.ticket) = (h.value ->> 1, h.value ->> 2)",
        "item.fence = h.value ->> 1",
    )
    change_sql(patch, {"finish": guard, "finish_kept": guard, "finish_events": guard})


def waiting_counts_as_begun(patch: pytest.MonkeyPatch) -> None:
    """A lease that waits in a local queue when its worker dies has used up an attempt."""
    change_sql(patch, {"reclaim": ("begun > 0 AND NOT", "NOT")})


def everybody_is_to_blame(patch: pytest.MonkeyPatch) -> None:
    """When a worker dies, each of the handlers that ran in it has used up an attempt."""
    change_sql(patch, {"reclaim": ("begun > 1 AND gone", "0")})


def only_declared_limits_are_full(patch: pytest.MonkeyPatch) -> None:
    """Who frees a place asks again only where the stage itself declares a limit."""
    claim = sqlite_write.claim

    def undeclared(db: apsw.Connection, wish: Claim, *rest: Any) -> Claimed:
        return claim(db, wish, *rest)._replace(full=False)

    patch.setattr(sqlite_write, "claim", undeclared)


FOUND_BY_SUITE: tuple[tuple[Plant, str], ...] = (
    (leases_named_by_fence_alone, "test_a_lease_that_another_exchange_gave_can_do_nothing"),
    (waiting_counts_as_begun, "test_what_had_not_begun_when_its_worker_died_has_lost_nothing"),
    (everybody_is_to_blame, "test_of_several_that_ran_when_their_worker_died_none_is_blamed"),
    (only_declared_limits_are_full, "test_an_operators_limit_is_told_like_a_declared_one"),
)
"""With the name of the test that must fail."""


class Deferred:
    """A connection whose transactions begin as readers and turn into writers on the way."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *rest: Any, **named: Any) -> apsw.Cursor:
        statement = statement.replace("BEGIN IMMEDIATE", "BEGIN")
        return self._connection.execute(statement, *rest, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def deferred_begin(patch: pytest.MonkeyPatch) -> None:
    """A transaction takes the write lock only when it first writes."""
    connect = sqlite.SqliteStore._connect

    def deferred(self: sqlite.SqliteStore) -> Any:
        return Deferred(connect(self))

    patch.setattr(sqlite.SqliteStore, "_connect", deferred)
