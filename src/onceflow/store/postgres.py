"""The PostgreSQL store: one database, any number of machines.

Connections and errors are in `postgres_connect.py`, the writes in `postgres_write.py`. Time is the
database's, inside the statements. Notifications are hints: polling finds the same a little later.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeVar

from onceflow.core.errors import StoreUnavailable, WrongDatabase
from onceflow.core.item import Kind, Lease, Mark
from onceflow.core.pipeline import Pipeline
from onceflow.core.transition import Part
from onceflow.store import postgres_write as write
from onceflow.store.base import (
    Accepted,
    Add,
    Claim,
    Command,
    Exchanged,
    Finish,
    Row,
    Swept,
    Target,
    Worker,
)
from onceflow.store.clock import Clock, boot_id
from onceflow.store.postgres_connect import (
    BEAT,
    CHANNEL,
    GONE,
    LISTEN_AGAIN_SECONDS,
    PRUNE,
    QUIET,
    READ,
    READ_SECONDS_MAX,
    SINGLE,
    WRITE,
    Address,
    Begin,
    Pool,
    Transaction,
)
from onceflow.store.queries import migrations, numbered, sql
from onceflow.store.rules import holds, make_room, others_may_act, others_may_claim

T = TypeVar("T")
log = logging.getLogger("onceflow")
CONNECTIONS_MAX = 6
SERVER_VERSION_MIN = 14


class PostgresStore:
    """A PostgreSQL database, by its URL. `clock` is for tests; the database's own is the default.

    `?statement_cache_size=0` in the URL keeps no prepared statements, as some transaction poolers
    need; where one shows that it does, this is switched to by itself.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._address = Address(url)
        self.url = self._address.shown
        self._clock = clock
        self._connections_max = connections_max
        self._pipelines: dict[str, Pipeline] = {}
        self._run_page = ""
        self._beaten = ""
        """The worker whose heartbeat was written last."""
        self._pool: Pool | None = None
        self._wake: Callable[[], None] = _nobody
        self._watcher: asyncio.Task[None] | None = None

    @property
    def dsn(self) -> str:
        """The address with its password, for connections beside the store's own. Never shown."""
        return self._address.dsn

    # --- open and close ---

    async def open(self, pipelines: Iterable[Pipeline] = ()) -> None:
        self._pipelines |= {pipeline.name: pipeline for pipeline in pipelines}
        if self._pool is None:
            pool = self._make_pool()
            try:
                await pool.transaction(QUIET, self._migrate)
                pool.forget_idle()  # what comes next has been greeted
                pool.greet = self._greet
            except BaseException:
                await pool.close()
                raise
            self._pool = pool
        known = sorted(self._pipelines.items())

        async def register(db: Transaction) -> None:
            for _, pipeline in known:
                await write.register(db, pipeline)

        stages = [(name, stage.name) for name, each in known for stage in each.every_stage]
        await self._write(register, begin=QUIET._replace(locks=write.own_stages(stages)))

    async def _migrate(self, db: Transaction) -> None:
        """Bring the schema up to this program's version; refuse a newer one and a stranger's."""
        version, encoding = db.server()
        if version < SERVER_VERSION_MIN:
            raise WrongDatabase(
                f"{self.url} is PostgreSQL {version}; Onceflow needs {SERVER_VERSION_MIN} or "
                "later, upgrade the server"
            )
        if encoding != "UTF8":
            raise WrongDatabase(
                f"{self.url} has the encoding {encoding}; create a database with UTF8"
            )
        steps, functions = migrations("postgres"), sql("postgres", "functions")
        await db.rows("schema_lock", **{"class": write.LOCK_CLASS})
        found = await db.row("schema_found")
        assert found is not None
        version = 0
        if found["schema"]:
            value = await db.row("meta_get", name="schema_version") if found["meta"] else None
            if value is None:
                raise WrongDatabase(
                    f"{self.url} has a schema `onceflow` that is not ours; it was left untouched, "
                    "name another database"
                )
            version = int(value["value"])
        if version > len(steps):
            raise WrongDatabase(
                f"{self.url} was written by a newer Onceflow (schema {version}, this program "
                f"knows {len(steps)}); it was left untouched, upgrade this program"
            )
        if version < len(steps):
            await db.script("\n".join([*steps[version:], functions]))
            await db.rows("meta_set", name="schema_version", value=str(len(steps)))
        made = await db.row("meta_get", name="functions")
        if made is None or made["value"] != fingerprint(functions):
            if version == len(steps):
                await db.script(functions)
            await db.rows("meta_set", name="functions", value=fingerprint(functions))

    async def _greet(self, db: Transaction) -> None:
        """A new connection may lead to another server than the one before, which took over from it
        and may lack what that had committed last. Then the numbers of its events must not come
        again: those who had read them would miss what has them now."""
        [history] = await db.rows("history_now")
        if history["here"] == history["was"]:
            return
        await db.rows("schema_lock", **{"class": write.LOCK_CLASS})
        [history] = await db.rows("history_now")  # another connection may have been quicker
        here, was = history["here"], history["was"]
        if here == was:
            return
        if was is not None:
            await db.rows("hold_history")
            await db.rows("history_jump")
            await db.rows(
                "insert_event", kind=Kind.SERVER_CHANGED, pipeline="", run=None, stage=None,
                data=json.dumps({"from": was, "to": here}),
            )  # fmt: skip
            log.warning(
                "%s: the history goes on on another server (%s, was %s)", self.url, here, was
            )
        await db.rows("meta_set", name="history", value=here)

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    # --- the protocol's writes ---

    async def add(
        self, add: Add, worker: str = "", number: int = 0, claims: Sequence[Claim] = ()
    ) -> Accepted:
        """New keys of a new run take one statement, the claims included. All else goes the longer
        way, whole, in one transaction: what is left half done could be sealed by nobody."""
        if write.is_plain(add):
            accepted = await self._write(
                lambda db: write.add_new(db, add, worker, number, claims), begin=SINGLE
            )
            if accepted is not None:
                return accepted
        first: set[int] = set()

        async def work(db: Transaction) -> Accepted:
            added = await write.add(db, add, first)
            claimed = (await write.exchange(db, worker, number, claims=claims)).claimed
            db.tell = others_may_claim(add, added, claimed)
            return Accepted(added, claimed)

        return await self._write(work, begin=WRITE._replace(locks=write.share_stages(claims)))

    async def exchange(
        self,
        worker: str,
        number: int,
        finishes: Sequence[Finish],
        claims: Sequence[Claim],
        begins: Sequence[Lease] = (),
    ) -> Exchanged:
        """What is simple is done by one statement, which is the transaction."""
        if not write.is_simple(finishes):
            return await self._exchange(worker, number, finishes, claims, begins)
        known = [one for one in finishes if one.lease.pipeline in self._pipelines]
        tell = make_room(known, self._pipelines)
        answer = await self._write(
            lambda db: write.exchange(db, worker, number, finishes, claims, begins, tell=tell),
            begin=SINGLE,
        )
        before: set[int] = set()
        if len(answer.kept) < len(finishes):
            before = await self._write(
                lambda db: write.kept_before(db, worker, finishes, answer.kept), begin=SINGLE
            )
        return Exchanged(
            write.said(len(finishes), answer.kept, before),
            answer.claimed,
            answer.continued,
            [at in answer.begun for at in range(len(begins))],
        )

    async def _exchange(
        self,
        worker: str,
        number: int,
        finishes: Sequence[Finish],
        claims: Sequence[Claim],
        begins: Sequence[Lease],
    ) -> Exchanged:
        """Finishes with children, costs, keys or lanes to hold take several statements."""
        first: set[int] = {wish.item for wish in claims if wish.item is not None}

        async def work(db: Transaction) -> Exchanged:
            kept, continued = await write.finish(
                db, worker, number, finishes, self._pipelines, first
            )
            await write.hold_lanes(db, holds(finishes, kept), claims)
            answer = await write.exchange(db, worker, number, claims=claims, begins=begins)
            done = [one for one, was_kept in zip(finishes, kept, strict=True) if was_kept]
            db.tell = others_may_act(done, continued, self._pipelines)
            begun = [at in answer.begun for at in range(len(begins))]
            return Exchanged(kept, answer.claimed, continued, begun)

        locks = write.share_stages(claims, finishes)
        return await self._write(work, begin=WRITE._replace(locks=locks))

    async def held(self, worker: str) -> set[Mark]:
        return await self._read(lambda db: write.held(db, worker))

    async def leases(self, worker: str, items: Collection[int]) -> list[Lease]:
        return await self._read(lambda db: write.leases(db, worker, items, self._pipelines))

    async def renew(self, lease: Lease, text: str | None = None, part: Part | None = None) -> bool:
        async def work(db: Transaction) -> bool:
            db.tell = text is not None
            return await write.renew(db, lease, text, part)

        return await self._write(work, begin=QUIET)

    async def beat(self, worker: Worker, report: str | None = None) -> bool:
        # The first one waits for the disk: a worker that nobody knows of is robbed of what it has.
        begin = BEAT if worker.id == self._beaten else QUIET
        fresh = await self._write(lambda db: write.beat(db, worker, boot_id(), report), begin=begin)
        self._beaten = worker.id
        return fresh

    async def leave(self, worker: str, *, release: bool = False) -> None:
        async def work(db: Transaction) -> None:
            db.tell = await write.leave(db, worker, release=release) > 0

        await self._write(work)

    async def sweep(self, runs: Sequence[str] = ()) -> Swept:
        async def work(db: Transaction) -> tuple[Swept, str]:
            swept, page = await write.sweep(db, runs, self._run_page, self._pipelines)
            db.tell = swept.moved
            return swept, page

        swept, self._run_page = await self._write(work, begin=QUIET)
        return swept

    async def act(
        self, command: Command, targets: Sequence[Target], stage: str = "", why: str = ""
    ) -> list[int]:
        async def work(db: Transaction) -> list[int]:
            changed = await write.act(db, command, targets, stage, why)
            db.tell = bool(changed)
            return changed

        return await self._write(work)

    async def tune(
        self,
        pipeline: str,
        stage: str,
        *,
        limit: int | None = None,
        paused: bool | None = None,
        why: str = "",
    ) -> None:
        async def work(db: Transaction) -> None:
            await write.tune(db, pipeline, stage, limit, paused, why)
            db.tell = True

        await self._write(work, begin=WRITE._replace(locks=write.own_stages([(pipeline, stage)])))

    async def prune(self, before_ms: int) -> int:
        return await self._write(lambda db: write.prune(db, before_ms), begin=PRUNE)

    # --- the rest ---

    async def read(self, query: str, **parameters: Any) -> list[Row]:
        name = f"read_{query}"

        async def work(db: Transaction) -> list[dict[str, Any]]:
            if db.now is None and "now" in numbered("postgres", name)[1]:
                clock = await db.row("read_now")
                assert clock is not None
                db.now = clock["now"]
            if query == "events":
                parameters["upto"] = None
                if parameters["item"] is None:  # asked before the statement that sees them begins
                    [settled] = await db.rows("settled")
                    parameters["upto"] = settled["seq"]
            rows = await db.rows(name, READ_SECONDS_MAX, **parameters)
            return [dict(row) for row in rows]

        return list[Row](await self._read(work))

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._listen())

    def for_thread(self) -> PostgresStore:
        """The same database with a connection of its own, since connections belong to a loop. It is
        made when it is first needed."""
        other = PostgresStore(self._address.dsn, clock=self._clock, connections_max=1)
        other._address = self._address
        other._pipelines = self._pipelines
        other._pool = other._make_pool()
        other._pool.greet = self._greet
        return other

    async def _listen(self) -> None:
        pool = self._require_pool()

        def heard(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            if payload != pool.name:
                self._wake()

        while True:
            with suppress(StoreUnavailable, *GONE):
                connection = await pool.connect()
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
                try:
                    await connection.add_listener(CHANNEL, heard)
                    self._wake()  # what was said before nobody listened is found by looking
                    await lost.wait()
                finally:
                    connection.terminate()
            await asyncio.sleep(LISTEN_AGAIN_SECONDS)

    async def _write(
        self, work: Callable[[Transaction], Awaitable[T]], *, begin: Begin | None = None
    ) -> T:
        return await self._require_pool().transaction(begin or WRITE, work)

    async def _read(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self._require_pool().transaction(READ, work, stores=False)

    def _require_pool(self) -> Pool:
        if self._pool is None:
            raise StoreUnavailable(f"{self.url}: the database is closed")
        return self._pool

    def _make_pool(self) -> Pool:
        return Pool(self._address, self._connections_max, self._clock)


def fingerprint(text: str) -> str:
    """By which a database's functions are known."""
    return sha256(text.encode()).hexdigest()


def _nobody() -> None:
    """Who is woken while nobody watches."""
