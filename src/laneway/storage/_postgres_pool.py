"""Connections to one database, shared by any number of sessions.

A connection is borrowed for one statement and carries no state of a session: who may write is a row, not a connection.
So a lost connection costs nothing but a new one, and a thousand idle sessions need none.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from laneway.errors import LeaseLost, MissingExtra, StorageClosed, StorageError
from laneway.storage import _postgres_migrate as migrate
from laneway.storage._postgres_renew import Renewals

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

_FIRST_RETRY, _LONGEST_RETRY = 0.05, 1.0
_SETTINGS = {
    # Every query goes through an index, in the order that it has, by design. The server's planner may think otherwise, above all
    # on tables that it has not analysed yet, and keep a plan for a small table when the table has grown.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_hashagg": "off",
    # The statements are tiny; compiling them would cost more than running them.
    "jit": "off",
    # What a server, a database or a role may have set to something under which bytes would be stored wrongly, or a commit and a
    # renewal that meet would refuse each other instead of waiting.
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
}
_APPLY = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS setting(name, value)"
_LONGEST_NAME = 63  # bytes; Postgres cuts longer ones
_KEEPALIVE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_GOING_AWAY = ("08", "57P")
"""Classes of SQLSTATE: connection failures; a server that shuts down, has crashed or is starting."""


class ConnectionLost(StorageError):
    """The server went away. Whether a statement under way was carried out is not known."""


class StatementRefused(StorageError):
    """The server did not carry a statement out, for the reason that `sqlstate` codes."""

    def __init__(self, message: str, *, sqlstate: str | None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class PostgresPool:
    """At most `max_size` connections to `dsn` (and one that renews leases), made when needed, replaced when lost. Belongs to one event loop.

    Use one pool for all sessions of a process. After a lost connection (a server that restarts, a network that blinks) reads are
    repeated and commits are settled on a new one, for at most `reconnect_timeout` seconds.
    """

    def __init__(self, dsn: str, *, schema: str, max_size: int, reconnect_timeout: float) -> None:
        self.dsn = dsn
        self.schema = schema
        self.reconnect_timeout = reconnect_timeout
        self._process = os.getpid()
        self._slots = asyncio.Semaphore(max_size)
        self._idle: list[AsyncConnection[Any]] = []
        self._renewals: Renewals | None = None
        self._closed = False

    @classmethod
    async def open(cls, dsn: str, *, schema: str = "laneway", max_size: int = 4, reconnect_timeout: float = 10.0) -> PostgresPool:
        """Connect, and create or migrate the tables in `schema`.

        Raises:
            MissingExtra: psycopg is not installed.
            StorageError: the server cannot be reached, or refuses.
            StorageVersionError: the tables belong to a newer laneway.
        """
        if max_size < 1:
            raise ValueError(f"max_size must be at least 1, not {max_size}")
        if not schema or "\0" in schema or len(schema.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
            raise ValueError(f"schema {schema!r} must have 1 to {_LONGEST_NAME} bytes and no NUL")
        pool = cls(dsn, schema=schema, max_size=max_size, reconnect_timeout=reconnect_timeout)
        connection = await pool.connect()
        try:
            await migrate.migrate(connection, schema)
        except BaseException as error:
            await connection.close()
            if isinstance(error, import_psycopg().Error):
                raise StorageError(f"the tables in Postgres schema {schema!r} could not be made or migrated, and are as before: {error}") from error
            raise
        pool._idle.append(connection)
        return pool

    async def connect(self) -> AsyncConnection[Any]:
        """Make a connection that the caller owns, ready for use in the schema; one attempt."""
        psycopg = import_psycopg()
        try:
            connection = await psycopg.AsyncConnection[Any].connect(**self._options())
        except psycopg.Error as error:
            raise ConnectionLost(f"cannot connect to Postgres: {error}") from error
        try:
            await execute(connection, _APPLY, self._settings())
        except BaseException:
            await connection.close()
            raise
        return connection

    def _options(self) -> dict[str, Any]:
        from psycopg.conninfo import conninfo_to_dict

        return {**_KEEPALIVE, "application_name": "laneway", **conninfo_to_dict(self.dsn), "client_encoding": "UTF8", "autocommit": True}

    def _settings(self) -> tuple[list[str], list[str]]:
        return ["search_path", *_SETTINGS], [quoted(self.schema), *_SETTINGS.values()]

    def _connect_in_thread(self) -> Connection[Any]:
        connection: Connection[Any] = import_psycopg().Connection[Any].connect(**self._options())
        try:
            connection.execute(_APPLY.encode(), self._settings())
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_ours(self) -> bool:
        """Whether this process made the pool. One that was forked from it must leave the connections alone: they are the parent's too."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Raise `LeaseLost` if the pool is not ours."""
        if not self.is_ours:
            raise LeaseLost("these connections to Postgres belong to the process that this one was forked from: open a pool and the session here")

    @property
    def renewals(self) -> Renewals:
        """The thread that renews the leases of this pool's sessions."""
        if self._renewals is None:
            if self._closed:
                raise StorageClosed("the pool of Postgres connections is closed")
            self._renewals = Renewals(self._connect_in_thread)
        return self._renewals

    @asynccontextmanager
    async def connection(self, deadline: float | None = None) -> AsyncGenerator[AsyncConnection[Any]]:
        """Borrow a connection. Connecting is tried again until `deadline` (`time.monotonic()`); without one it is tried once."""
        self.check_process()
        async with self._slots:
            if self._closed:
                raise StorageClosed("the pool of Postgres connections is closed")
            connection = await self._take(deadline)
            try:
                yield connection
            finally:
                await self._give_back(connection)

    @asynccontextmanager
    async def transaction(self, deadline: float) -> AsyncGenerator[AsyncConnection[Any]]:
        """Borrow a connection for a block that is one transaction.

        Raises:
            ConnectionLost: the server went away; if that was at the end of the block, whether it was committed is not known.
            StatementRefused: the server refused; nothing was changed.
        """
        async with self.connection(deadline) as connection:
            try:
                async with connection.transaction():
                    yield connection
            except import_psycopg().Error as error:  # of its beginning or its end
                raise _named(error, connection) from error

    async def fetch(self, query: str, parameters: Sequence[Any] = (), *, within: float | None = None) -> list[tuple[Any, ...]]:
        """Run one statement that may safely run twice, on a new connection if the first is lost; return its rows.

        Raises:
            ConnectionLost: no new connection could be had `within` seconds (default: the pool's `reconnect_timeout`).
            StatementRefused: the server refused; nothing was changed.
        """
        deadline = time.monotonic() + (self.reconnect_timeout if within is None else within)
        while True:
            try:
                async with self.connection(deadline) as connection:
                    return await execute(connection, query, parameters)
            except ConnectionLost:
                await self.drop_idle()
                if time.monotonic() >= deadline:
                    raise

    async def close(self) -> None:
        """Close every connection that is not in use now, and the others as they come back. Idempotent."""
        self._closed = True
        if not self.is_ours:  # closing a connection says goodbye to the server
            return
        await self.drop_idle()
        renewals, self._renewals = self._renewals, None
        if renewals is not None:
            await renewals.close()

    async def drop_idle(self) -> None:
        """Forget the connections at rest: when one is lost, so are probably all."""
        while self._idle:
            await self._idle.pop().close()

    async def _take(self, deadline: float | None) -> AsyncConnection[Any]:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
            await connection.close()
        delay = _FIRST_RETRY
        while True:
            try:
                return await self.connect()
            except ConnectionLost:
                if deadline is None or time.monotonic() + delay > deadline:
                    raise
                await asyncio.sleep(delay)
                delay = min(delay * 2, _LONGEST_RETRY)

    async def _give_back(self, connection: AsyncConnection[Any]) -> None:
        from psycopg.pq import TransactionStatus

        if self._closed or connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
            await connection.close()
        else:
            self._idle.append(connection)


async def execute(connection: AsyncConnection[Any], query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows.

    Raises:
        ConnectionLost: the server went away meanwhile.
        StatementRefused: the server refused; nothing was changed.
    """
    psycopg = import_psycopg()
    try:
        cursor = await connection.execute(query.encode(), parameters, binary=True)
        return await cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        raise _named(error, connection) from error


def _named(error: Any, connection: AsyncConnection[Any]) -> StorageError:
    """Return the store's error for one of psycopg's."""
    if connection.closed or (error.sqlstate or "").startswith(_GOING_AWAY):
        return ConnectionLost(f"the connection to Postgres was lost: {error}")
    return StatementRefused(f"Postgres refused: {error}", sqlstate=error.sqlstate)


def import_psycopg() -> Any:
    """Import psycopg on first use."""
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtra("Postgres storage", "postgres") from error
    return psycopg


def quoted(name: str) -> str:
    """Quote an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
