"""Stores for sessions: one contract (`Storage`), four backends.

The backends are imported on first use: `MemoryStorage`, `JsonlStorage`, `SqliteStorage` and `PostgresStorage`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from laneway.errors import LeaseLost, SessionLocked, SessionNotFound, StorageCorruption, StorageError, StorageVersionError
from laneway.storage.base import (
    DEFAULT_LIST_LIMIT,
    MAX_LIST_LIMIT,
    AppendList,
    BranchScan,
    BranchSummaryEntry,
    CommitResult,
    CompactionEntry,
    Content,
    CustomEntry,
    DeleteList,
    DeleteValue,
    Entry,
    EntryNode,
    EntryScan,
    EntryType,
    Enumerable,
    InsertEntry,
    InsertUsage,
    Leased,
    ListElement,
    MessageEntry,
    Rewritable,
    ScanOrder,
    SeqOrder,
    SessionStats,
    SetValue,
    Storage,
    StoredValue,
    UsageRow,
    UsageScan,
    Values,
    Write,
)

if TYPE_CHECKING:
    from laneway.storage.jsonl import JsonlStorage
    from laneway.storage.memory import MemoryStorage
    from laneway.storage.postgres import PostgresStorage
    from laneway.storage.sqlite import SqliteStorage

__all__ = [
    "DEFAULT_LIST_LIMIT",
    "MAX_LIST_LIMIT",
    "AppendList",
    "BranchScan",
    "BranchSummaryEntry",
    "CommitResult",
    "CompactionEntry",
    "Content",
    "CustomEntry",
    "DeleteList",
    "DeleteValue",
    "Entry",
    "EntryNode",
    "EntryScan",
    "EntryType",
    "Enumerable",
    "InsertEntry",
    "InsertUsage",
    "JsonlStorage",
    "LeaseLost",
    "Leased",
    "ListElement",
    "MemoryStorage",
    "MessageEntry",
    "PostgresStorage",
    "Rewritable",
    "ScanOrder",
    "SeqOrder",
    "SessionLocked",
    "SessionNotFound",
    "SessionStats",
    "SetValue",
    "SqliteStorage",
    "Storage",
    "StorageCorruption",
    "StorageError",
    "StorageVersionError",
    "StoredValue",
    "UsageRow",
    "UsageScan",
    "Values",
    "Write",
]

_BACKENDS = {"JsonlStorage": "jsonl", "MemoryStorage": "memory", "PostgresStorage": "postgres", "SqliteStorage": "sqlite"}


def __getattr__(name: str) -> Any:
    module = _BACKENDS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value
