"""Sessions in Postgres: all of them in one database, each written by one process at a time, on any machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence

from laneway.errors import LeaseLost, StorageClosed, StorageError
from laneway.storage import _checks as checks
from laneway.storage import _postgres_commit as writing
from laneway.storage import _postgres_read as reading
from laneway.storage import _postgres_watch as watching
from laneway.storage._codec import encode_commit
from laneway.storage._line import CommitLine
from laneway.storage._postgres_lease import HEARTBEAT, LIFE, Lease
from laneway.storage._postgres_pool import PostgresPool
from laneway.storage.base import (
    DEFAULT_LIST_LIMIT,
    BranchScan,
    CommitResult,
    Content,
    Entry,
    EntryNode,
    EntryScan,
    ListElement,
    SeqOrder,
    SessionStats,
    StoredValue,
    UsageRow,
    UsageScan,
    Values,
    Write,
)

__all__ = ["PostgresPool", "PostgresStorage"]


class PostgresStorage:
    """A `Storage` in a Postgres database. Open it with `PostgresStorage.open`; it belongs to one event loop.

    The writer holds a lease: a row that names it, renewed while it lives. Every commit is one call of one function in the database,
    which checks the lease and writes all or nothing. How durable a commit is the server decides (`synchronous_commit`).

    When the connection breaks during a commit, a new one is made and the database is asked: what was committed is returned as such,
    what was not is sent again. Only if no connection can be had for the pool's `reconnect_timeout` does the commit fail with
    `CommitUnknown`; the next call then finds out before it does anything else.
    """

    def __init__(self, pool: PostgresPool, session_id: str, session_key: int, writer: writing.Writer | None, *, owns_pool: bool) -> None:
        self.session_id = session_id
        self.pool = pool
        self._session_key = session_key
        self._writer = writer
        self._owns_pool = owns_pool
        self._line = CommitLine()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        database: str | PostgresPool,
        session_id: str,
        *,
        create: bool = True,
        exclusive: bool = False,
        read_only: bool = False,
        wait: float = 0.0,
        schema: str = "laneway",
        lease_life: float = LIFE,
        heartbeat: float = HEARTBEAT,
    ) -> PostgresStorage:
        """Open a session; make it if there is none and `create`, and only then if `exclusive`.

        Args:
            database: a connection string, or a pool shared with other sessions (which brings its own schema and stays open).
            read_only: take no lease; every read shows what is committed when it is called.
            wait: seconds to wait for another owner. A dead process on this machine is not waited for.
            schema: where the tables are, made and migrated when needed.
            lease_life, heartbeat: seconds until an owner that stopped may be replaced, and between its renewals.

        Raises:
            MissingExtra: psycopg is not installed.
            SessionLocked: a live process has it; the error names it.
            SessionExists: `exclusive`, and it is there.
            SessionNotFound: it is not there, and is not to be created.
            StorageVersionError: the tables belong to a newer laneway.
            StorageError: the server cannot be reached, or refuses.
        """
        checks.identifier(session_id, "a session's id")
        if not 0 < heartbeat < lease_life:
            raise ValueError(
                f"heartbeat ({heartbeat} s) must be shorter than lease_life ({lease_life} s), or the lease would be lost between two beats"
            )
        owns_pool = isinstance(database, str)
        pool = await PostgresPool.open(database, schema=schema) if isinstance(database, str) else database
        try:
            if read_only:
                return cls(pool, session_id, await reading.session_key(pool, session_id), None, owns_pool=owns_pool)
            lease, position = await Lease.acquire(
                pool, session_id, create=create, exclusive=exclusive, wait=wait, life=lease_life, heartbeat=heartbeat
            )
            return cls(pool, session_id, lease.session_key, writing.Writer(pool, lease, position), owns_pool=owns_pool)
        except BaseException:
            if owns_pool:
                await pool.close()
            raise

    def __repr__(self) -> str:
        mode = "" if self._writer else ", read only"
        return f"<PostgresStorage {self.session_id!r} in {self.pool.schema!r}{mode}{', closed' if self._closing else ''}>"

    def __del__(self) -> None:
        if getattr(self, "_closing", self) is None and not sys.is_finalizing() and self.pool.is_ours:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=1)  # its lease ends unrenewed

    def on_lost(self, callback: Callable[[LeaseLost], None]) -> Callable[[], None]:
        """See `Leased.on_lost`. A storage that was opened to read has no lease to lose."""
        return (lambda: None) if self._writer is None else self._writer.lease.loss.tell(callback)

    async def _reads(self) -> PostgresPool:
        self._check_open()
        if self._writer is not None and self._writer.in_doubt:
            await self._line.run(self._writer.settle)
        return self.pool

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StorageClosed(f"the session {self.session_id!r} was closed; open it again")
        self.pool.check_process()

    def _writes(self) -> writing.Writer:
        self._check_open()
        if self._writer is None:
            raise StorageError(f"session {self.session_id!r} was opened with read_only=True and cannot be written to")
        return self._writer

    # ------------------------------------------------------------------------------------------------ writing

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        """See `Storage.commit`.

        Raises:
            CommitUnknown: the server went away during the commit and did not come back in time.
            StorageError: the session was opened to read only, or the server refuses (a full disk …); nothing was written.
        """
        writer = self._writes()
        commit = encode_commit(writes)
        return await self._line.run(lambda: writer.commit(commit))

    async def repair(self) -> None:
        """Make the branch index anew from the entries.

        Raises:
            StorageCorruption: the entries themselves are no tree; nothing was changed.
            StorageError: the session was opened to read only.
        """
        await self._line.run(self._writes().repair)

    async def rewrite(self, content: Content) -> None:
        """See `Rewritable.rewrite`. What the server keeps of deleted rows goes with its next VACUUM."""
        writer = self._writes()
        await self._line.run(lambda: writer.rewrite(content))

    async def erase(self) -> None:
        """Delete the whole session and close.

        Raises:
            LeaseLost: another process took over; nothing was deleted.
        """
        writer = self._writes()
        await self._line.run(writer.erase)
        await self.close()

    async def close(self) -> None:
        """See `Storage.close`. A pool that was passed in stays open."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        if not self._closing.done():
            await asyncio.wait([self._closing])
            self._closing.result()

    async def _close(self) -> None:
        try:
            if self._writer is not None and self.pool.is_ours:
                await self._line.drain()
                await self._writer.lease.release()
        finally:
            if self._owns_pool:
                await self.pool.close()

    # ------------------------------------------------------------------------------------------------ reading

    async def get_entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """See `Storage.get_entries`."""
        return await reading.get_entries(await self._reads(), self._session_key, ids)

    async def get_value(self, namespace: str, key: str) -> StoredValue | None:
        """See `Storage.get_value`."""
        return await reading.get_value(await self._reads(), self._session_key, namespace, key)

    async def scan_values(self, namespace: str, key_prefix: str = "") -> list[StoredValue]:
        """See `Storage.scan_values`."""
        return await reading.scan_values(await self._reads(), self._session_key, namespace, key_prefix)

    async def read_list(
        self, namespace: str, key: str, *, after: int | None = None, order: SeqOrder = "asc", limit: int = DEFAULT_LIST_LIMIT
    ) -> list[ListElement]:
        """See `Storage.read_list`."""
        return await reading.read_list(await self._reads(), self._session_key, namespace, key, after, order, limit)

    async def scan_branch(self, scan: BranchScan) -> list[Entry]:
        """See `Storage.scan_branch`."""
        return [row.decode() for row in await reading.scan_branch(await self._reads(), self._session_key, scan, with_payload=True)]

    async def scan_branch_structure(self, scan: BranchScan) -> list[EntryNode]:
        """See `Storage.scan_branch_structure`."""
        return [row.node() for row in await reading.scan_branch(await self._reads(), self._session_key, scan, with_payload=False)]

    async def scan_entries(self, scan: EntryScan) -> list[Entry]:
        """See `Storage.scan_entries`."""
        return [row.decode() for row in await reading.scan_entries(await self._reads(), self._session_key, scan)]

    async def scan_usage(self, scan: UsageScan) -> list[UsageRow]:
        """See `Storage.scan_usage`."""
        return await reading.scan_usage(await self._reads(), self._session_key, scan)

    async def read_values(self) -> Values:
        """See `Enumerable.read_values`."""
        return await reading.read_values(await self._reads(), self._session_key)

    async def get_stats(self) -> SessionStats:
        """See `Storage.get_stats`."""
        return await reading.get_stats(await self._reads(), self._session_key)

    async def watch(self) -> AsyncGenerator[int]:
        """Yield the session's last seq, now and whenever commits of any process have raised it; ends when the storage is closed.

        Commits that come close together may be told as one. A lost connection is made anew, and what was missed is told then.
        Close the generator (`contextlib.aclosing`) when you stop early.
        """
        async with contextlib.aclosing(watching.watch(await self._reads(), self._session_key, lambda: self._closing is not None)) as seqs:
            async for seq in seqs:
                yield seq
