"""Connections to PostgreSQL: a small pool that heals itself, transactions, and what errors mean.

Every transaction sets what it needs for itself (SET LOCAL), so that a transaction pooler may hand
each one to another server connection.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import asyncpg
from asyncpg import exceptions as pg

from onceflow.core.errors import StoreError, StoreUnavailable, WrongDatabase
from onceflow.store.queries import numbered, sql
from onceflow.store.rules import MOVED, moved

if TYPE_CHECKING:
    from asyncpg.prepared_stmt import PreparedStatement

    Connection = asyncpg.Connection[asyncpg.Record]
    Statement = PreparedStatement[asyncpg.Record]
else:
    Connection = asyncpg.Connection
T = TypeVar("T")

CONNECT_SECONDS_MAX = 10
WRITE_SECONDS_MAX = 60
READ_SECONDS_MAX = 600
LISTEN_AGAIN_SECONDS = 2.0
CIRCLES_MAX = 20
"""How often a transaction that was rolled back for the sake of another one is tried again."""
CHANNEL = "onceflow"
STATEMENTS_KEPT = 200

SESSION = {
    "search_path": "onceflow",
    "jit": "off",
    # The plans of the writes must not depend on what the statistics say at the moment: always by
    # index, one entry after the other (which also marks the dead ones), and planned once. A LIMIT
    # that is no constant is taken for a tenth of the table: joins must not be planned for that.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    # A statement that is its own transaction must see what was committed before it got its locks,
    # and may write, whatever is usual in this database.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    # Whoever waits for a lock is not at fault, and how long it may take we say ourselves.
    "lock_timeout": "0",
    "statement_timeout": "0",
    # A worker that is stopped in the middle must not hold its locks for ever, nor the readers of
    # events, who wait for what it may still commit.
    "idle_in_transaction_session_timeout": "10000",
}
"""What a connection is set to. Behind a pooler each transaction sets it for itself."""
PLANNED = {
    "enable_seqscan": "on",
    "enable_bitmapscan": "on",
    "enable_hashjoin": "on",
    "enable_mergejoin": "on",
    "plan_cache_mode": "force_custom_plan",
}


class Begin(NamedTuple):
    """How a transaction begins. An empty `head`: one statement, which is its own transaction."""

    head: str
    settings: Mapping[str, str] = {}
    locks: str = ""
    durable: bool = True
    """Whether the commit waits for the disk, whatever is usual in this database."""
    events: bool = False
    """Whether it may write events: then readers stop below them until it is over."""

    def text(self, *, pooled: bool) -> str:
        if not self.head and not pooled:
            return ""
        settings = {**(SESSION if pooled else {}), **self.settings}
        words = [self.head or WRITE.head, *(f"SET LOCAL {k} TO '{v}'" for k, v in settings.items())]
        if self.durable:
            words.append(inlined(sql("postgres", "durable")))
        if self.events:
            words.append(inlined(sql("postgres", "hold_history")))
        return "; ".join(words) + self.locks


# Writes no events, or says in its statements that it does (hold_history).
QUIET = Begin("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
WRITE = QUIET._replace(events=True)
SINGLE = Begin("")
# A slow commit is waited for, but losing the last beats in a crash of the server is harmless.
BEAT = Begin(WRITE.head, {"synchronous_commit": "off"}, durable=False)
PRUNE = Begin(WRITE.head, PLANNED)
READ = Begin("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY", PLANNED, durable=False)

GONE = (
    OSError,
    TimeoutError,
    pg.PostgresConnectionError,
    pg.InterfaceError,
    pg.InternalClientError,
    pg.OperatorInterventionError,
    pg.InsufficientResourcesError,
    pg.PostgresSystemError,
    pg.InternalServerError,
    pg.IdleInTransactionSessionTimeoutError,
    pg.ReadOnlySQLTransactionError,
    pg.InvalidAuthorizationSpecificationError,
    pg.InvalidCatalogNameError,
)
"""The server, or our way to it, is not there at the moment."""
POOLED = (pg.DuplicatePreparedStatementError, pg.InvalidSQLStatementNameError)
"""A transaction pooler stands between: prepared statements are lost from one to the next."""
OUTDATED = (pg.InvalidCachedStatementError, pg.OutdatedSchemaCacheError)


class Address:
    """Where a database is. Only `dsn` has the password; it is never shown."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
        given = dict(query)
        self.statements_kept = STATEMENTS_KEPT
        if "statement_cache_size" in given:
            if not given["statement_cache_size"].isdigit():
                raise StoreError(
                    f"statement_cache_size is {given['statement_cache_size']!r}; "
                    "it must be a whole number, 0 for a transaction pooler"
                )
            self.statements_kept = int(given["statement_cache_size"])
        rest = [(name, value) for name, value in query if name != "statement_cache_size"]
        self.dsn = _url(parts.scheme, parts.netloc, parts.path, rest)
        user, at, host = parts.netloc.rpartition("@")
        user, _, password = user.partition(":")
        shown = [(name, value) for name, value in rest if "password" not in name]
        self.shown = _url(parts.scheme, user + at + host, parts.path, shown)
        hidden = {password, unquote(password)}
        hidden |= {value for name, value in rest if "password" in name}
        self._hidden = sorted((secret for secret in hidden if secret), key=len, reverse=True)

    def clean(self, text: str) -> str:
        """Text that may be shown: without the password."""
        for secret in self._hidden:
            text = text.replace(secret, "***")
        return text


def _url(scheme: str, place: str, path: str, query: list[tuple[str, str]]) -> str:
    return f"{scheme}://{place}{path}" + (f"?{urlencode(query)}" if query else "")


class Link(Connection):
    """A connection that remembers what was prepared on it."""

    __slots__ = ("prepares", "statements")

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.statements: dict[str, Statement] = {}
        """By the names of their files: the driver's own cache asks more."""
        self.prepares = False
        """Whether it was made to keep prepared statements, ours or the driver's."""


class Transaction:
    """One transaction, as the writes see it: statements by the names of their files."""

    __slots__ = ("_link", "_pool", "now", "sender", "tell")

    def __init__(self, pool: Pool, link: Link, now: int | None) -> None:
        self._pool = pool
        self._link = link
        self.sender = pool.name
        """What our own notifications carry: nobody has to be told what he did himself."""
        self.now = now
        """The time of a test's clock; None is the database's own."""
        self.tell = False
        """Whether other processes may find something to do after it."""

    async def rows(
        self, name: str, seconds_max: float | None = None, /, **parameters: Any
    ) -> list[asyncpg.Record]:
        """Execute one .sql file."""
        text, names = numbered("postgres", name)
        parameters["now"] = self.now
        values = [parameters[each] for each in names]
        link = self._link
        if not self._pool.statements_kept:
            return await link.fetch(text, *values, timeout=seconds_max)
        statement = link.statements.get(name)
        if statement is None:
            statement = link.statements[name] = await link.prepare(text)
        return await statement.fetch(*values, timeout=seconds_max)

    async def row(self, name: str, /, **parameters: Any) -> asyncpg.Record | None:
        found = await self.rows(name, **parameters)
        return found[0] if found else None

    def server(self) -> tuple[int, str]:
        """The server's major version and the database's encoding."""
        encoding = getattr(self._link.get_settings(), "server_encoding", "")
        return self._link.get_server_version().major, str(encoding)

    async def script(self, text: str) -> None:
        """Execute several statements that take no parameters, and perhaps a while."""
        await self._link.execute(text, timeout=READ_SECONDS_MAX)


class Restart(Exception):
    """Roll back and begin again: items must be locked that others have at the moment."""


class Pool:
    """Connections of one event loop. A dead one is replaced by a new one when it is needed."""

    def __init__(self, address: Address, most: int, clock: Callable[[], int] | None) -> None:
        self.address = address
        self.name = secrets.token_hex(8)
        self._clock = clock
        self._most = most
        self._idle: list[Link] = []
        self._free = asyncio.Semaphore(most)
        self._closed = False
        self.statements_kept = address.statements_kept
        self._pooled = not self.statements_kept
        self.greet: Callable[[Transaction], Awaitable[None]] | None = None
        """Done in a transaction of each new connection, before it is used."""

    async def transaction(
        self, begin: Begin, work: Callable[[Transaction], Awaitable[T]], *, stores: bool = True
    ) -> T:
        """Run `work` in a transaction. What was rolled back for sure is tried again; a commit whose
        answer was lost is not: StoreUnavailable, and the caller asks again."""
        fresh = False
        for circles in range(CIRCLES_MAX + 1):
            async with self._free:
                try:
                    return await self._attempt(begin, work, fresh=fresh)
                except _RolledBack as undone:
                    if undone.gone and (fresh or self._closed):
                        raise self._unavailable(undone.error) from undone.error
                    if circles == CIRCLES_MAX:
                        raise StoreUnavailable(
                            f"{self.address.shown}: the transaction met others in a circle "
                            f"{CIRCLES_MAX} times; it was rolled back, ask again"
                        ) from undone.error
                    fresh = undone.gone
                except _Unclear as unclear:
                    raise self._unavailable(unclear.error, unclear=stores) from unclear.error
        raise AssertionError("unreachable")

    async def connect(self) -> Link:
        """A new connection, or StoreUnavailable."""
        try:
            return await self._connect()
        except GONE as error:
            raise self._unavailable(error) from error

    def forget_idle(self) -> None:
        """What was made until now is not used again."""
        idle, self._idle = self._idle, []
        for link in idle:
            link.terminate()

    async def close(self) -> None:
        self._closed = True
        self.forget_idle()
        for _ in range(self._most):  # those at work are let go by whoever has them
            await self._free.acquire()
        for _ in range(self._most):
            self._free.release()

    async def _attempt(
        self, begin: Begin, work: Callable[[Transaction], Awaitable[T]], *, fresh: bool
    ) -> T:
        link = await self._take(fresh=fresh)
        text = begin.text(pooled=self._pooled)
        sent = not text  # one statement: its own answer is the commit's
        try:
            if text:
                await link.execute(text)
            now = None if self._clock is None else self._clock()
            transaction = Transaction(self, link, now)
            value = await work(transaction)
            if text:
                sent = True
                tell = f"NOTIFY {CHANNEL}, '{self.name}'; " if transaction.tell else ""
                await link.execute(f"{tell}COMMIT")
        except Exception as error:
            # asyncpg calls a value that does not fit its column an interface error, too.
            if isinstance(error, GONE) and not isinstance(error, ValueError):
                link.terminate()
                raise (_Unclear(error) if sent else _RolledBack(error, gone=True)) from error
            await self._undo(link)
            if isinstance(error, POOLED) and link.prepares:
                self.statements_kept, self._pooled = 0, True
                raise _RolledBack(error, gone=True) from error
            if isinstance(error, OUTDATED):
                raise _RolledBack(error, gone=True) from error
            if isinstance(error, pg.TransactionRollbackError | Restart):
                raise _RolledBack(error, gone=False) from error
            if isinstance(error, pg.PostgresError):
                raise self._refused(error) from error
            raise
        except BaseException:
            link.terminate()
            raise
        self._give(link)
        return value

    async def _take(self, *, fresh: bool) -> Link:
        if self._closed:
            raise StoreUnavailable(f"{self.address.shown}: the database is closed")
        if fresh:  # where one was dead, the others that waited with it are likely to be
            self.forget_idle()
        while self._idle:
            link = self._idle.pop()
            if link.prepares and not self.statements_kept:  # others found out that it must not
                link.terminate()
            elif not link.is_closed():
                return link
        return await self.connect()

    def _give(self, link: Link) -> None:
        if self._closed:
            link.terminate()
        else:
            self._idle.append(link)

    async def _undo(self, link: Link) -> None:
        try:
            await link.execute("ROLLBACK")
        except (*GONE, pg.PostgresError):
            link.terminate()
        except BaseException:
            link.terminate()
            raise
        else:
            self._give(link)

    async def _connect(self) -> Link:
        try:
            link = await self._connect_with({} if self._pooled else SESSION)
            try:
                if not self._pooled and await link.fetchval("SHOW search_path") != "onceflow":
                    self._pooled = True  # somebody between us and the server dropped our settings
            except BaseException:  # nobody else knows of it
                link.terminate()
                raise
            return await self._greeted(link)
        except pg.ProtocolViolationError:
            if self._pooled:
                raise
            self._pooled = True  # a pooler that takes no settings with the connection
            return await self._connect()
        except (pg.ClientConfigurationError, ValueError) as error:
            reason = self.address.clean(str(error))
            raise StoreError(f"{self.address.shown} is not a database address: {reason}") from None

    async def _greeted(self, link: Link) -> Link:
        if self.greet is not None:
            try:
                await link.execute(QUIET.text(pooled=self._pooled))
                await self.greet(Transaction(self, link, None))
                await link.execute("COMMIT")
            except pg.InsufficientPrivilegeError:  # a server that does not say where it is
                await link.execute("ROLLBACK")
            except BaseException:
                link.terminate()
                raise
        return link

    async def _connect_with(self, settings: Mapping[str, str]) -> Link:
        kept = self.statements_kept
        link = await asyncpg.connect(
            self.address.dsn,
            timeout=CONNECT_SECONDS_MAX,
            command_timeout=WRITE_SECONDS_MAX,
            statement_cache_size=kept,
            max_cached_statement_lifetime=0,
            server_settings={"application_name": "onceflow", **settings},
            connection_class=Link,
        )
        link.prepares = kept > 0
        return link

    def _unavailable(self, error: BaseException, *, unclear: bool = False) -> StoreUnavailable:
        where = self.address.shown
        reason = self.address.clean(str(error).strip() or type(error).__name__).rstrip(".")
        if isinstance(error, pg.InvalidAuthorizationSpecificationError):
            return StoreUnavailable(
                f"{where}: {reason}; check the user and the password in its URL"
            )
        if isinstance(error, pg.InvalidCatalogNameError):
            return StoreUnavailable(f"{where}: {reason}; create it, or name another one in the URL")
        if isinstance(error, pg.ReadOnlySQLTransactionError):
            return StoreUnavailable(f"{where}: {reason}; name the primary server in the URL")
        if isinstance(error, pg.DiskFullError):
            return StoreUnavailable(
                f"{where}: the disk of the database is full ({reason}); nothing accepted is lost, "
                "free some space and it goes on"
            )
        if isinstance(error, pg.InternalServerError):
            return StoreUnavailable(
                f"{where}: PostgreSQL has a fault of its own ({reason}); nothing accepted is lost, "
                "look into the server's log; it is asked again"
            )
        known = "whether the last write was stored is not known, " if unclear else ""
        return StoreUnavailable(
            f"{where}: PostgreSQL cannot be reached ({reason}); {known}nothing accepted is lost; "
            "check that the server runs and takes connections, and it goes on"
        )

    def _refused(self, error: pg.PostgresError) -> StoreError:
        where, reason = self.address.shown, self.address.clean(str(error))
        if isinstance(error, pg.RaiseError) and reason.startswith(MOVED):
            return WrongDatabase(moved(where, reason.removeprefix(f"{MOVED} to ")))
        if isinstance(error, pg.InsufficientPrivilegeError):
            return WrongDatabase(
                f"{where}: {reason}; grant the user CREATE on the database, or name another user"
            )
        return StoreError(f"{where}: PostgreSQL refused a statement: {reason}")


class _RolledBack(Exception):
    """Nothing of the transaction was kept."""

    def __init__(self, error: Exception, *, gone: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.gone = gone
        """The connection, too, must be another one."""


class _Unclear(Exception):
    """The connection was lost after COMMIT was sent."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


WORD = re.compile(r":(\w+)")


def inlined(text: str, **numbers: int) -> str:
    """A statement with numbers in place of its parameters, to be sent along with others."""
    lines = (line for line in text.splitlines() if not line.startswith("--"))
    return WORD.sub(lambda match: str(int(numbers[match[1]])), " ".join(lines))
