"""The store contract: rows in, rows out, one commit.

A session is three stores and nothing else: **entries** (a tree, write-once), **values** (cells and append lists) and the **usage
ledger** (append-only). `Storage.commit` is the only way to write and is all or nothing. Storage knows nothing of agents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from msgspec import Struct, field

from laneway.errors import LeaseLost
from laneway.messages import AgentMessage, Usage

EntryType = Literal["message", "compaction", "branch_summary", "custom"]
ScanOrder = Literal["newest_first", "oldest_first"]
SeqOrder = Literal["asc", "desc"]

MAX_LIST_LIMIT = 10_000
DEFAULT_LIST_LIMIT = 1_000

# ---------------------------------------------------------------------------------------------------- entries


class _Entry(Struct, kw_only=True, frozen=True, tag_field="type", omit_defaults=True):
    """A node of the tree. Storage sets `seq` and `timestamp` (Unix ms) at the commit; what the caller puts there is ignored."""

    id: str
    parent_id: str | None
    seq: int = 0
    timestamp: int = 0


class MessageEntry(_Entry, kw_only=True, frozen=True, tag="message"):
    """A message of the conversation. `terminate` belongs to tool results: the tool asked for no further model call."""

    type: ClassVar[Literal["message"]] = "message"
    message: AgentMessage
    terminate: bool = False


class CompactionEntry(_Entry, kw_only=True, frozen=True, tag="compaction"):
    """Replaces all before it in a context: `summary`, then `retained_tail`, then what follows the entry."""

    type: ClassVar[Literal["compaction"]] = "compaction"
    summary: str
    retained_tail: list[AgentMessage] = field(default_factory=list[AgentMessage])
    tokens_before: int = 0
    details: Any = None
    usage: Usage | None = None
    from_hook: bool = False


class BranchSummaryEntry(_Entry, kw_only=True, frozen=True, tag="branch_summary"):
    """Summarises a branch that was left; `from_id` was its tip."""

    type: ClassVar[Literal["branch_summary"]] = "branch_summary"
    from_id: str | None
    summary: str
    details: Any = None
    usage: Usage | None = None
    from_hook: bool = False


class CustomEntry(_Entry, kw_only=True, frozen=True, tag="custom"):
    """Application data. It enters a context only through the application's projector for `custom_type`."""

    type: ClassVar[Literal["custom"]] = "custom"
    custom_type: str
    data: Any = None


Entry: TypeAlias = MessageEntry | CompactionEntry | BranchSummaryEntry | CustomEntry


class EntryNode(Struct, kw_only=True, frozen=True):
    """An entry without its payload, for drawing trees."""

    id: str
    parent_id: str | None
    seq: int
    timestamp: int
    type: EntryType
    custom_type: str | None = None


class UsageRow(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One row of the ledger: a model attempt, a tool's own cost, or (`adjustment`) a correction."""

    id: str
    usage: Usage
    seq: int = 0
    timestamp: int = 0
    entry_id: str | None = None
    adjustment: bool = False
    details: Any = None


# ---------------------------------------------------------------------------------------------------- writes


class InsertEntry(Struct, frozen=True, tag=True):
    """Add an entry. Its parent must exist or come earlier in the same commit.

    With `keep_seq` the entry keeps its own `seq` and `timestamp`, as a fork's copies do; its seq must be above every
    seq given before it (else `ValueError`), and the writes after it are numbered above it.
    """

    entry: Entry
    keep_seq: bool = False


class InsertUsage(Struct, frozen=True, tag=True):
    """Add a row to the ledger; entry and usage ids share one namespace."""

    row: UsageRow


class SetValue(Struct, frozen=True, tag=True):
    """Set a cell. None (JSON null) is a value, not a deletion."""

    namespace: str
    key: str
    value: Any


class DeleteValue(Struct, frozen=True, tag=True):
    """Delete a cell; nothing happens if it is absent."""

    namespace: str
    key: str


class AppendList(Struct, frozen=True, tag=True):
    """Append one element to a list, creating it if need be."""

    namespace: str
    key: str
    value: Any


class DeleteList(Struct, frozen=True, tag=True):
    """Delete a whole list; nothing happens if it is absent."""

    namespace: str
    key: str


Write: TypeAlias = InsertEntry | InsertUsage | SetValue | DeleteValue | AppendList | DeleteList

# ---------------------------------------------------------------------------------------------------- results and queries


class SessionStats(Struct, kw_only=True, frozen=True):
    """Maintained in the commit: message entries ever stored, and the ledger's sum."""

    message_count: int = 0
    usage: Usage = field(default_factory=Usage)


class CommitResult(Struct, kw_only=True, frozen=True):
    """`seqs` has one number per write, in order; `stats` are the totals after the commit."""

    first_seq: int
    seqs: list[int]
    timestamp: int
    stats: SessionStats


class StoredValue(Struct, kw_only=True, frozen=True):
    """A cell and the seq of the write that set it."""

    namespace: str
    key: str
    value: Any
    seq: int


class ListElement(Struct, kw_only=True, frozen=True):
    """One element of a list."""

    seq: int
    value: Any


class BranchScan(Struct, kw_only=True, frozen=True):
    """The path from entry `start` to the root.

    Applied in this order: stop (inclusively) at the first entry, walking from `start`, that matches `stop_at_type` or
    `stop_at_id`; keep only `type` and `custom_type`; order; the exclusive `cursor` (an entry's seq: newest_first gives
    what is below it, oldest_first what is above); `limit`.
    An unknown `start` is a `StorageError`; a limit that is not a positive whole number is a `ValueError`.
    """

    start: str
    stop_at_type: EntryType | None = None
    stop_at_id: str | None = None
    type: EntryType | None = None
    custom_type: str | None = None
    order: ScanOrder = "newest_first"
    limit: int | None = None
    cursor: int | None = None


class EntryScan(Struct, kw_only=True, frozen=True):
    """Entries by seq, both ends included."""

    type: EntryType | None = None
    custom_type: str | None = None
    from_seq: int | None = None
    to_seq: int | None = None
    order: SeqOrder = "asc"
    limit: int | None = None


class UsageScan(Struct, kw_only=True, frozen=True):
    """Ledger rows by seq, both ends included."""

    from_seq: int | None = None
    to_seq: int | None = None
    order: SeqOrder = "asc"
    limit: int | None = None


class Values(Struct, kw_only=True, frozen=True):
    """Every cell and list of a store at one moment, and the seq of the entry that was its newest then (0 if it had none)."""

    last_seq: int
    cells: list[StoredValue]
    lists: dict[tuple[str, str], list[ListElement]]


class Content(Struct, kw_only=True, frozen=True):
    """All that a store holds. Everything in it has the seq (and entries and ledger rows the time) that it is kept under."""

    entries: list[Entry]
    usage: list[UsageRow]
    cells: list[StoredValue]
    lists: dict[tuple[str, str], list[ListElement]]


class Storage(Protocol):
    """A session's store. Every backend passes `laneway.testing.StorageConformance`.

    Commits are serialised in the order of their calls. Reads see what was committed when they were called. After
    `close()` (idempotent; it waits for admitted commits) everything raises `StorageClosed`. What a read finds damaged
    (a row that cannot be decoded, a cyclic or missing parent) is `StorageCorruption`.

    Lone surrogates become U+FFFD wherever text is stored; in a namespace or key they do so before it is compared.
    """

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        """Apply all writes or none; durable (to the backend's stated degree) when this returns.

        Raises:
            StorageCorruption: an id exists already, a parent is missing; nothing was written.
            TypeError: a value is not JSON-safe; the text names the path; nothing was written.
            ValueError: an empty namespace or id, or NUL in a namespace, key, id or custom type; nothing was written.
            MessageError: a message still streams ("pending") or has an unregistered role; nothing was written.
            LeaseLost: another process took over; nothing was written.
        """
        ...

    async def get_entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Return the entries that exist, by id, in the order asked for."""
        ...

    async def get_value(self, namespace: str, key: str) -> StoredValue | None:
        """Return a cell, or None if it is absent (a cell that holds None is a `StoredValue`)."""
        ...

    async def scan_values(self, namespace: str, key_prefix: str = "") -> list[StoredValue]:
        """Return the cells of a namespace whose key begins with `key_prefix`, ordered by key (by code point)."""
        ...

    async def read_list(
        self, namespace: str, key: str, *, after: int | None = None, order: SeqOrder = "asc", limit: int = DEFAULT_LIST_LIMIT
    ) -> list[ListElement]:
        """Return elements of a list: those above the seq `after` ("asc") or below it ("desc"), at most `limit`.

        A limit above `MAX_LIST_LIMIT` counts as that; one that is not a positive whole number is a `ValueError`.
        """
        ...

    async def scan_branch(self, scan: BranchScan) -> list[Entry]:
        """Return the entries of a path; see `BranchScan`."""
        ...

    async def scan_branch_structure(self, scan: BranchScan) -> list[EntryNode]:
        """Return what `scan_branch` would, without payloads."""
        ...

    async def scan_entries(self, scan: EntryScan) -> list[Entry]:
        """Return entries in the order of their seqs; see `EntryScan`."""
        ...

    async def scan_usage(self, scan: UsageScan) -> list[UsageRow]:
        """Return ledger rows in the order of their seqs; see `UsageScan`."""
        ...

    async def get_stats(self) -> SessionStats:
        """Return the totals, as maintained in every commit."""
        ...

    async def close(self) -> None:
        """Wait for admitted commits, release what is held, refuse what comes later. Calling it again does nothing."""
        ...


class Leased(Protocol):
    """A store that another process can take over, and that finds out by itself: while it renews its lease, or in a commit."""

    def on_lost(self, callback: Callable[[LeaseLost], None]) -> Callable[[], None]:
        """Call `callback` once if another process has taken the session over (at once if that is known); return how to stop that.

        It is called in the thread that finds out and must neither raise nor wait.
        """
        ...


class Enumerable(Protocol):
    """A store that can say all that it holds. All of ours can; a fork of a session needs it."""

    async def read_values(self) -> Values:
        """Return every cell and list as they are at one moment, whoever is writing."""
        ...


class Rewritable(Protocol):
    """A store whose content can be replaced, which is the only way to take something out of it. All of ours can."""

    async def rewrite(self, content: Content) -> None:
        """Put `content` in place of everything, all or nothing, by the owner of the session alone.

        Seqs and times are kept; later commits get seqs above every one that was ever given. What is gone is gone from the
        medium too, as far as a program can see to it.

        Raises:
            StorageCorruption: the entries of `content` are no tree, or an id is used twice; nothing was changed.
            LeaseLost, StorageError: as for a commit.
        """
        ...
