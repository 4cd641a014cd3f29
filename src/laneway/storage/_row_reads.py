"""The reads of a store whose rows are in memory: one class for every such store."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.storage._rows import Rows
from laneway.storage.base import (
    DEFAULT_LIST_LIMIT,
    BranchScan,
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
)


class ReadsRows:
    """Answers every read of `Storage` from the rows that `_open_rows` gives."""

    __slots__ = ()

    def _open_rows(self) -> Rows:
        """Return the rows, or raise `StorageClosed`."""
        raise AssertionError("a store says where its rows are")

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
