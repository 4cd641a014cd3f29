"""A session in one SQLite file: the default."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from laneway.errors import LeaseLost, SessionExists, SessionLocked, StorageClosed
from laneway.storage import _checks as checks
from laneway.storage._codec import encode_commit
from laneway.storage._heartbeat import heartbeats
from laneway.storage._owner import this_process
from laneway.storage._sqlite_file import Durability, create_file
from laneway.storage._sqlite_lease import HEARTBEAT, LIFE
from laneway.storage._sqlite_read import SqliteReader
from laneway.storage._sqlite_session import SqliteSession
from laneway.storage._strand import Strand
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

_T = TypeVar("_T")
_POLL: Final = 0.05  # seconds between two tries for a lease


class SqliteStorage:
    """A `Storage` in one SQLite file. Open it with `SqliteStorage.open`.

    A commit is one transaction, done off the event loop. One process at a time can write: it holds a lease that every commit
    checks. A process that died is replaced at once; one that stopped renewing (it was suspended, or its machine is gone)
    after half a minute, and then learns it from `LeaseLost`.

    Its directory must be on a disk of this machine: SQLite's write-ahead log does not work over a network.
    """

    def __init__(self, session: SqliteSession, strand: Strand, claim: _Claim | None, heartbeat: float) -> None:
        self.path = session.path
        self._session = session
        self._strand = strand
        self._claim = claim
        self._interval = heartbeat
        self._closing: asyncio.Task[None] | None = None
        self._beat = heartbeats().add(self._renew, heartbeat) if claim is not None else None

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        exclusive: bool = False,
        read_only: bool = False,
        durability: Durability = "process",
        wait: float = 0.0,
        lease_life: float = LIFE,
        heartbeat: float = HEARTBEAT,
    ) -> SqliteStorage:
        """Open the session at `path`; make it if there is none and `create`, and only then if `exclusive`.

        A new file is there whole or not at all. A file that is refused is left as it was, byte for byte.

        Args:
            read_only: take no lease and write nothing; shows what its owner, if any, commits.
            durability: "process": a commit survives the death of the process; "power": also that of the machine.
            wait: seconds to wait for another owner.
            lease_life, heartbeat: seconds until an owner that stopped may be replaced, and between its renewals.

        Raises:
            SessionLocked: another process (or this one) has it open for writing; the error names it.
            SessionExists: `exclusive`, and it is there.
            SessionNotFound: it is not there, and is not to be created.
            StorageCorruption: it is no laneway session, or it is truncated or damaged.
            StorageVersionError: a newer laneway wrote it.
            StorageError: it cannot be opened or created: no such directory, read-only, full.
        """
        if durability not in ("process", "power"):
            raise ValueError(f"durability must be 'process' or 'power', not {durability!r}")
        if not 0 < heartbeat < lease_life:
            raise ValueError(
                f"heartbeat ({heartbeat} s) must be shorter than lease_life ({lease_life} s), or the lease would be lost between two beats"
            )
        where = Path(path)
        strand = Strand()
        try:
            if create and not read_only:
                made = await strand.run(lambda: _create(where, durability))
                if exclusive and not made:
                    raise SessionExists(f"there is something at {where} already")
            if read_only:
                return cls(await _to_the_end(strand, lambda: SqliteSession.open_to_read(where)), strand, None, heartbeat)
            return await cls._open_owned(where, strand, durability, wait, lease_life, heartbeat)
        except BaseException:
            strand.close()
            raise

    @classmethod
    async def _open_owned(cls, path: Path, strand: Strand, durability: Durability, wait: float, lease_life: float, heartbeat: float) -> SqliteStorage:
        deadline = time.monotonic() + wait
        while True:
            try:
                claim = _Claim(path)
                try:
                    session = await _to_the_end(strand, lambda: SqliteSession.open(path, durability, lease_life, strand.post))
                except BaseException:
                    claim.release()
                    raise
                return cls(session, strand, claim, heartbeat)
            except SessionLocked:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_POLL)

    def __repr__(self) -> str:
        at = "read-only" if self._claim is None else f"at seq {self._session.position.next_seq - 1}"
        return f"<SqliteStorage {self.path} {at}{', closed' if self._closing else ''}>"

    def __del__(self) -> None:
        if getattr(self, "_closing", self) is None and not sys.is_finalizing():
            if self._strand.is_inherited:
                return
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=1)
            _abandon(self._session, self._strand, self._claim)

    @property
    def lost(self) -> str | None:
        """Why nothing can be written any more, if another process took the session over and this one knows it."""
        error = self._session.loss.error
        return None if error is None else str(error)

    def on_lost(self, callback: Callable[[LeaseLost], None]) -> Callable[[], None]:
        """See `Leased.on_lost`."""
        return self._session.loss.tell(callback)

    def _renew(self) -> None:
        session, interval = self._session, self._interval
        self._strand.post(lambda: session.renew(interval))

    async def _read(self, query: Callable[[SqliteReader], _T]) -> _T:
        self._check_open()
        session = self._session
        return await self._strand.run(lambda: session.read(query))

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StorageClosed(f"the session {self.path} was closed; open it again")

    # ------------------------------------------------------------------------------------------------ the contract

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        """See `Storage.commit`. A caller who is cancelled stops waiting; the commit is done all the same.

        Raises:
            StorageError: the session was opened to read only, or the disk refuses; nothing was written.
        """
        self._check_open()
        commit = encode_commit(writes)
        session = self._session
        return await self._strand.run(lambda: session.commit(commit))

    async def get_entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """See `Storage.get_entries`."""
        possible = checks.possible_ids(ids)
        return await self._read(lambda reader: reader.entries(possible))

    async def get_value(self, namespace: str, key: str) -> StoredValue | None:
        """See `Storage.get_value`."""
        namespace, key = checks.address(namespace, key)
        return await self._read(lambda reader: reader.value(namespace, key))

    async def scan_values(self, namespace: str, key_prefix: str = "") -> list[StoredValue]:
        """See `Storage.scan_values`."""
        namespace, key_prefix = checks.address(namespace, key_prefix)
        return await self._read(lambda reader: reader.values(namespace, key_prefix))

    async def read_list(
        self, namespace: str, key: str, *, after: int | None = None, order: SeqOrder = "asc", limit: int = DEFAULT_LIST_LIMIT
    ) -> list[ListElement]:
        """See `Storage.read_list`."""
        namespace, key = checks.address(namespace, key)
        limit, after, order = checks.page_limit(limit), checks.seq_bound(after, "after"), checks.seq_order(order)
        return await self._read(lambda reader: reader.elements(namespace, key, after, order, limit))

    async def scan_branch(self, scan: BranchScan) -> list[Entry]:
        """See `Storage.scan_branch`."""
        checks.check_branch_scan(scan)
        return await self._read(lambda reader: reader.branch(scan))

    async def scan_branch_structure(self, scan: BranchScan) -> list[EntryNode]:
        """See `Storage.scan_branch_structure`."""
        checks.check_branch_scan(scan)
        return await self._read(lambda reader: reader.structure(scan))

    async def scan_entries(self, scan: EntryScan) -> list[Entry]:
        """See `Storage.scan_entries`."""
        checks.check_entry_scan(scan)
        return await self._read(lambda reader: reader.scan_entries(scan))

    async def scan_usage(self, scan: UsageScan) -> list[UsageRow]:
        """See `Storage.scan_usage`."""
        checks.check_usage_scan(scan)
        return await self._read(lambda reader: reader.scan_usage(scan))

    async def read_values(self) -> Values:
        """See `Enumerable.read_values`."""
        return await self._read(lambda reader: reader.all_values())

    async def get_stats(self) -> SessionStats:
        """See `Storage.get_stats`."""
        return await self._read(lambda reader: reader.stats())

    async def close(self) -> None:
        """See `Storage.close`. In a forked child it only forgets the storage, which is the parent's.

        Raises:
            StorageError: the lease could not be given back, or the file not be closed; the text names all that failed.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        if not self._closing.done():
            await asyncio.wait([self._closing])  # unlike awaiting it, this can be cancelled without cancelling it
            self._closing.result()

    async def _close(self) -> None:
        if self._beat is not None:
            heartbeats().remove(self._beat)
        if self._strand.is_inherited:
            return
        try:
            await self._strand.run(self._session.close)
        finally:
            self._strand.close()
            if self._claim is not None:
                self._claim.release()

    # ------------------------------------------------------------------------------------------------ upkeep

    async def verify(self) -> list[str]:
        """Check every page and row, the totals and the branch index; return what is wrong. Takes time linear in the file."""
        self._check_open()
        return await self._strand.run(self._session.verify)

    async def repair(self) -> None:
        """Make the branch index anew from the entries.

        Raises:
            StorageCorruption: the entries themselves are no tree; nothing was changed.
            StorageError: the session was opened to read only.
        """
        self._check_open()
        await self._strand.run(self._session.repair)

    async def rewrite(self, content: Content) -> None:
        """See `Rewritable.rewrite`.

        Raises:
            StorageError: a reader in another process keeps the old content in the log: close it and rewrite again.
        """
        self._check_open()
        session = self._session
        await self._strand.run(lambda: session.rewrite(content))


def _create(path: Path, durability: Durability) -> bool:
    """Make an empty session at `path`; False if there is something already."""
    return not path.exists() and create_file(path, durability)


async def _to_the_end(strand: Strand, work: Callable[[], SqliteSession]) -> SqliteSession:
    """Open a session; if the caller is cancelled meanwhile, close what was opened."""
    opened: list[SqliteSession] = []
    try:
        await strand.run(lambda: opened.append(work()))
    except asyncio.CancelledError:
        strand.post(lambda: [session.close() for session in opened])  # its turn comes when the opening is done
        raise
    return opened[0]


def _abandon(session: SqliteSession, strand: Strand, claim: _Claim | None) -> None:
    """Close what nobody closed, off the thread that found it."""

    def close() -> None:
        try:
            session.close()
        finally:
            if claim is not None:
                claim.release()

    strand.post(close)
    strand.close()


# ---------------------------------------------------------------------------------------------------- within the process


class _Claim:
    """This process's own claim on a file: a second storage for it is refused without asking the file."""

    _claimed: ClassVar[set[tuple[int, str]]] = set()
    _lock: ClassVar = threading.Lock()

    def __init__(self, path: Path) -> None:
        self._key = (os.getpid(), os.path.realpath(path))  # with the process id: a forked child has opened nothing yet
        with self._lock:
            if self._key in self._claimed:
                owner = this_process()
                raise SessionLocked(f"the session {path} is open in this process ({owner}) already: close it there first", owner=str(owner))
            self._claimed.add(self._key)

    def release(self) -> None:
        """Give it up."""
        with self._lock:
            self._claimed.discard(self._key)
