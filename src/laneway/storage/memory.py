"""A session in memory: for tests and for what may be thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.errors import StorageClosed
from laneway.messages import now_ms
from laneway.storage._codec import encode_commit
from laneway.storage._rewrite import NewContent
from laneway.storage._rows import Rows
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


class MemoryStorage:
    """A `Storage` that lives as long as the object. Nothing in it is shared with what callers pass in or get back."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryStorage at seq {self._rows.next_seq - 1}{', closed' if self._closed else ''}>"

    def _open_rows(self) -> Rows:
        if self._closed:
            raise StorageClosed("this session's memory was closed; reopen() gives it back")
        return self._rows

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        """See `Storage.commit`."""
        rows = self._open_rows()
        commit = encode_commit(writes)
        return rows.apply(commit, rows.check(commit), now_ms())

    async def get_entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """See `Storage.get_entries`."""
        return self._open_rows().entries(ids)

    async def get_value(self, namespace: str, key: str) -> StoredValue | None:
        """See `Storage.get_value`."""
        return self._open_rows().value(namespace, key)

    async def scan_values(self, namespace: str, key_prefix: str = "") -> list[StoredValue]:
        """See `Storage.scan_values`."""
        return self._open_rows().values(namespace, key_prefix)

    async def read_list(
        self, namespace: str, key: str, *, after: int | None = None, order: SeqOrder = "asc", limit: int = DEFAULT_LIST_LIMIT
    ) -> list[ListElement]:
        """See `Storage.read_list`."""
        return self._open_rows().elements(namespace, key, after, order, limit)

    async def scan_branch(self, scan: BranchScan) -> list[Entry]:
        """See `Storage.scan_branch`."""
        return [row.decode() for row in self._open_rows().branch(scan)]

    async def scan_branch_structure(self, scan: BranchScan) -> list[EntryNode]:
        """See `Storage.scan_branch_structure`."""
        return [row.node() for row in self._open_rows().branch(scan)]

    async def scan_entries(self, scan: EntryScan) -> list[Entry]:
        """See `Storage.scan_entries`."""
        return [row.decode() for row in self._open_rows().scan_entries(scan)]

    async def scan_usage(self, scan: UsageScan) -> list[UsageRow]:
        """See `Storage.scan_usage`."""
        return self._open_rows().scan_usage(scan)

    async def read_values(self) -> Values:
        """See `Enumerable.read_values`."""
        return self._open_rows().all_values()

    async def get_stats(self) -> SessionStats:
        """See `Storage.get_stats`."""
        return self._open_rows().stats

    async def close(self) -> None:
        """See `Storage.close`. The content is gone with the last object that has it."""
        self._closed = True

    async def rewrite(self, content: Content) -> None:
        """See `Rewritable.rewrite`."""
        rows = self._open_rows()
        rows.become(NewContent(content, next_seq=rows.next_seq).rows)

    def reopen(self) -> MemoryStorage:
        """Return another storage with the same content, open whether or not this one is closed, as opening a file again would."""
        storage = MemoryStorage()
        storage._rows = self._rows
        return storage
