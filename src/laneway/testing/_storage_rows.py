"""Small rows for the store's tests, and all that a store holds as one comparable value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from laneway.messages import AgentMessage, Cost, Usage, UserMessage
from laneway.storage.base import (
    MAX_LIST_LIMIT,
    Entry,
    EntryScan,
    InsertEntry,
    InsertUsage,
    ListElement,
    MessageEntry,
    SessionStats,
    Storage,
    StoredValue,
    UsageRow,
    UsageScan,
)

NAMESPACES = ("n", "m", "l")
"""Where the conformance tests keep their values and lists."""


def entry(id: str, parent_id: str | None = None, message: AgentMessage | str = "hello") -> InsertEntry:
    """Return the write of a message entry."""
    if isinstance(message, str):
        message = UserMessage(content=message, timestamp=1)
    return InsertEntry(MessageEntry(id=id, parent_id=parent_id, message=message))


def row(id: str, usage: Usage, entry_id: str | None = None, *, adjustment: bool = False, details: Any = None) -> InsertUsage:
    """Return the write of a ledger row."""
    return InsertUsage(UsageRow(id=id, usage=usage, entry_id=entry_id, adjustment=adjustment, details=details))


def tokens(count: int) -> Usage:
    """Return a usage of `count` input tokens at a dollar each."""
    return Usage(input=count, total_tokens=count, cost=Cost(input=float(count), total=float(count)))


class Content(Struct, frozen=True):
    """All that a store holds."""

    entries: list[Entry]
    values: list[StoredValue]
    lists: list[tuple[str, str, list[ListElement]]]
    usage: list[UsageRow]
    stats: SessionStats

    def timeless(self) -> Content:
        """Return the content without the times of commits, to compare two stores."""
        return structs.replace(
            self, entries=[structs.replace(e, timestamp=0) for e in self.entries], usage=[structs.replace(u, timestamp=0) for u in self.usage]
        )


async def everything(storage: Storage, namespaces: Sequence[str] = NAMESPACES, list_keys: Sequence[str] = ("k",)) -> Content:
    """Read all that a store holds in these namespaces, and in the lists of these keys."""
    return Content(
        entries=await storage.scan_entries(EntryScan()),
        values=[value for namespace in namespaces for value in await storage.scan_values(namespace)],
        lists=[(n, k, await storage.read_list(n, k, limit=MAX_LIST_LIMIT)) for n in namespaces for k in list_keys],
        usage=await storage.scan_usage(UsageScan()),
        stats=await storage.get_stats(),
    )
