"""`Session`: what the rows of one store mean."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Struct, field

from laneway.abort import soon
from laneway.errors import BranchExists, EntryNotFound, InvalidName, LeaseLost, StorageCorruption
from laneway.messages import AgentMessage, now_ms
from laneway.session._app import AppValues
from laneway.session._branch import Branch
from laneway.session._ids import Ids
from laneway.session._mutation import Mutation, MutationLine
from laneway.session._repair import repair
from laneway.session._rewrite import Keep, RewriteReport, rewrite
from laneway.session._tree import SessionTree, read_tree
from laneway.session.keys import BRANCH_TIP, ENTRY_LABEL, MAIN_BRANCH, SESSION_METADATA, SESSION_NAME
from laneway.storage.base import (
    DEFAULT_LIST_LIMIT,
    BranchScan,
    DeleteValue,
    Entry,
    EntryNode,
    EntryScan,
    EntryType,
    ListElement,
    SeqOrder,
    SessionStats,
    SetValue,
    Storage,
    StoredValue,
    UsageRow,
    UsageScan,
)

T = TypeVar("T")


class SessionMetadata(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a session was created with. `created_at` is Unix ms; `metadata` is the application's own JSON object."""

    id: str
    created_at: int
    cwd: str | None = None
    parent_session_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class Session:
    """Entries, branches, names, labels and application values of one store, and the one line that writes them.

    Reads go straight to the store and never wait for a writer. Every write stands in the mutation line. Repositories
    open sessions; `Session.over` puts one on any `Storage`.
    """

    storage: Storage
    metadata: SessionMetadata
    ids: Ids
    line: MutationLine

    def __init__(
        self,
        storage: Storage,
        *,
        metadata: SessionMetadata,
        ids: Ids | None = None,
        on_close: Callable[[Session], Awaitable[None]] | None = None,
        on_rewrite: Callable[[Session], Awaitable[None]] | None = None,
    ) -> None:
        self.storage = storage
        self.metadata = metadata
        self.ids = ids or Ids()
        self.line = MutationLine(storage)
        self._on_close = on_close
        self._on_rewrite = on_rewrite
        self._closing: asyncio.Task[None] | None = None
        self._claimed: set[str] = set()

    @classmethod
    def over(cls, storage: Storage, *, metadata: SessionMetadata | None = None, ids: Ids | None = None) -> Session:
        """Return a session on any open `Storage`, a wrapped one included. Reads and writes nothing.

        Without `metadata` the session has an id of its own until `load_metadata()` finds what the store was created with.
        """
        ids = ids or Ids()
        if metadata is None:
            metadata = SessionMetadata(id=getattr(storage, "session_id", None) or ids.new(), created_at=now_ms())
        return cls(storage, metadata=metadata, ids=ids)

    async def load_metadata(self) -> SessionMetadata:
        """Take over the metadata that the store was created with, if it has any, and return what is now in force."""
        stored = await self.storage.get_value(SESSION_METADATA, "")
        if stored is not None:
            self.metadata = decode_metadata(stored.value)
        return self.metadata

    # ------------------------------------------------------------------------------------------------ the line

    @overload
    async def mutate(self, plan: Callable[[Mutation], Awaitable[T]]) -> T: ...
    @overload
    async def mutate(self, plan: Callable[[Mutation], T]) -> T: ...
    async def mutate(self, plan: Callable[[Mutation], Any]) -> Any:
        """Run `plan(mutation)` as the only writer and return what it returns.

        The plan (sync or async) reads through the mutation, decides, and commits at most once; it must await nothing but the
        mutation. Scopes run in the order of their calls. Cancelling a waiter leaves no trace; cancelling a caller whose
        commit has begun lets the commit and the rest of the plan finish first.

        Raises:
            WouldDeadlock: called from inside a scope of the same session.
            StorageClosed: the session is closed.
        """
        return await self.line.run(plan)

    async def close(self) -> None:
        """Write nothing more, wait for the commit under way, release the store. Idempotent."""
        if self._closing is None:
            self.line.seal()
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self.line.close()
        if self._on_close is None:
            await self.storage.close()
        else:
            await self._on_close(self)

    def on_lost(self, callback: Callable[[LeaseLost], None]) -> Callable[[], None]:
        """Call `callback` once, on the running event loop, if another process takes the session over; return how to stop that.

        It is told as soon as the store finds out: when it renews its lease, or in a commit. A store without a lease never tells.
        """
        loop = asyncio.get_running_loop()
        on_lost: Callable[[Callable[[LeaseLost], None]], Callable[[], None]] | None = getattr(self.storage, "on_lost", None)

        def told(error: LeaseLost) -> None:
            soon(loop, lambda: callback(error))

        return (lambda: None) if on_lost is None else on_lost(told)

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self.line.sealed

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------ entries

    async def get_entry(self, id: str) -> Entry | None:
        """Return an entry of any branch, or None."""
        return (await self.storage.get_entries([id])).get(id)

    async def find_entries(
        self, *, type: EntryType | None = None, custom_type: str | None = None, order: SeqOrder = "desc", cursor: int | None = None,
        limit: int | None = None,
    ) -> list[Entry]:  # fmt: skip
        """Return entries of all branches by seq, newest first unless `order` is "asc"; `cursor` is an exclusive seq."""
        if cursor is not None and order == "desc" and cursor <= 1:
            return []
        scan = EntryScan(
            type=type,
            custom_type=custom_type,
            from_seq=cursor + 1 if cursor is not None and order == "asc" else None,
            to_seq=cursor - 1 if cursor is not None and order == "desc" else None,
            order=order,
            limit=limit,
        )
        return await self.storage.scan_entries(scan)

    async def append_message(self, message: AgentMessage | str, *, branch: str = MAIN_BRANCH) -> str:
        """Append to a branch and return the entry's id. The branch "main" is created by its first append.

        Raises:
            BranchNotFound: there is no such branch.
            DuplicateToolResult: the message answers a call that has its result.
        """
        return await self._writable(branch).append_message(message)

    async def append_custom_entry(self, custom_type: str, data: Any = None, *, branch: str = MAIN_BRANCH) -> str:
        """Append application data to a branch and return the entry's id. See `append_message`."""
        return await self._writable(branch).append_custom_entry(custom_type, data)

    def _writable(self, name: str) -> Branch:
        return Branch(self, name, create=name == MAIN_BRANCH)

    # ------------------------------------------------------------------------------------------------ branches

    async def branch(self, name: str) -> Branch | None:
        """Return the branch of this name, or None."""
        stored = await self.storage.get_value(BRANCH_TIP, name)
        return None if stored is None else Branch(self, name)

    async def branches(self) -> dict[str, str | None]:
        """Return every branch's name and tip."""
        return {stored.key: stored.value for stored in await self.storage.scan_values(BRANCH_TIP)}

    async def create_branch(self, name: str, at: str | None = None) -> Branch:
        """Create a branch whose tip is the entry `at` (None: empty). Writes the tip alone.

        Raises:
            InvalidName: the name is empty or has a NUL.
            BranchExists: the name is taken.
            EntryNotFound: there is no entry `at`.
        """
        if not name or "\0" in name:
            raise InvalidName(f"a branch cannot be called {name!r}: a name has at least one character and no NUL")

        async def plan(mutation: Mutation) -> Branch:
            if await mutation.get_value(BRANCH_TIP, name) is not None:
                raise BranchExists(f"session {self.metadata.id} already has a branch {name!r}: choose another name or open it with branch()")
            if at is not None and at not in await mutation.get_entries([at]):
                raise EntryNotFound(f"branch {name!r} cannot start at {at}: session {self.metadata.id} has no such entry")
            await mutation.commit([SetValue(BRANCH_TIP, name, at)])
            return Branch(self, name)

        return await self.mutate(plan)

    def claim_branch(self, name: str) -> Callable[[], None]:
        """Let nobody but the caller append to a branch through `Branch`; returns the release.

        For whoever keeps a branch's tip in memory, as a lane does.

        Raises:
            BranchExists: somebody else has claimed it.
        """
        if name in self._claimed:
            raise BranchExists(f"branch {name!r} of session {self.metadata.id} already has a live owner in this process")
        self._claimed.add(name)
        return lambda: self._claimed.discard(name)

    def is_claimed(self, name: str) -> bool:
        """Whether a live owner keeps this branch's tip."""
        return name in self._claimed

    # ------------------------------------------------------------------------------------------------ names and labels

    async def get_name(self) -> str | None:
        """Return the session's display name."""
        stored = await self.storage.get_value(SESSION_NAME, "")
        return None if stored is None else stored.value

    async def set_name(self, name: str | None) -> None:
        """Set the display name, on one line and trimmed; None or nothing left removes it."""
        name = " ".join(name.splitlines()).strip() if name else None
        await self._set(SESSION_NAME, "", name or None)

    async def get_label(self, entry_id: str) -> str | None:
        """Return the label of an entry."""
        stored = await self.storage.get_value(ENTRY_LABEL, entry_id)
        return None if stored is None else stored.value

    async def set_label(self, entry_id: str, label: str | None) -> None:
        """Label an entry; None removes the label. The entry need not exist."""
        await self._set(ENTRY_LABEL, entry_id, label)

    async def labels(self) -> dict[str, str]:
        """Return every label by entry id."""
        return {stored.key: stored.value for stored in await self.storage.scan_values(ENTRY_LABEL)}

    async def _set(self, namespace: str, key: str, value: str | None) -> None:
        write = DeleteValue(namespace, key) if value is None else SetValue(namespace, key, value)

        async def plan(mutation: Mutation) -> None:
            await mutation.commit([write])

        await self.mutate(plan)

    async def tree(self) -> SessionTree:
        """Read the whole tree, with labels and branches. Costs as much as there are entries."""
        return await read_tree(self.storage, labels=await self.labels(), tips=await self.branches())

    # ------------------------------------------------------------------------------------------------ upkeep

    async def rewrite(self, keep: Keep) -> RewriteReport:
        """Erase or redact entries for good: the one way to do so, for the sake of the law or of a leaked secret.

        `keep(entry)` says of every entry, oldest first, whether it stays: True, or another entry of the same type to put in its
        place; False or None erases it. The children of an erased entry move up to its nearest kept ancestor, and so do tips; its label
        goes; copies of its message in the tails of compactions go too. Summaries that a model wrote, values and the ledger's details
        are not looked into, and forks and exports have copies of their own. The ledger's totals stay.

        All or nothing, under the session's lease, as one place in the line. Afterwards the old bytes are gone from the file.

        Raises:
            RewriteError: a lane is live or has an open operation; nothing was changed.
            StorageError: see `Rewritable.rewrite`.
        """
        report = await rewrite(self, keep)
        if self._on_rewrite is not None and (report.erased or report.changed):
            await self._on_rewrite(self)
        return report

    async def repair(self) -> list[str]:
        """Make anew what is derived from the entries (the branch index), check everything, and return the problems that remain.

        Raises:
            StorageCorruption: the entries themselves are no tree.
        """
        return await repair(self)

    # ------------------------------------------------------------------------------------------------ values and scans

    def app(self, name: str) -> AppValues:
        """Return the application values under the namespace `app.{name}`."""
        return AppValues(self.storage, self.mutate, name)

    async def get_value(self, namespace: str, key: str) -> StoredValue | None:
        """See `Storage.get_value`."""
        return await self.storage.get_value(namespace, key)

    async def scan_values(self, namespace: str, key_prefix: str = "") -> list[StoredValue]:
        """See `Storage.scan_values`."""
        return await self.storage.scan_values(namespace, key_prefix)

    async def read_list(
        self, namespace: str, key: str, *, after: int | None = None, order: SeqOrder = "asc", limit: int = DEFAULT_LIST_LIMIT
    ) -> list[ListElement]:
        """See `Storage.read_list`."""
        return await self.storage.read_list(namespace, key, after=after, order=order, limit=limit)

    async def get_entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """See `Storage.get_entries`."""
        return await self.storage.get_entries(ids)

    async def scan_branch(self, scan: BranchScan) -> list[Entry]:
        """See `Storage.scan_branch`."""
        return await self.storage.scan_branch(scan)

    async def scan_branch_structure(self, scan: BranchScan) -> list[EntryNode]:
        """See `Storage.scan_branch_structure`."""
        return await self.storage.scan_branch_structure(scan)

    async def scan_entries(self, scan: EntryScan) -> list[Entry]:
        """See `Storage.scan_entries`."""
        return await self.storage.scan_entries(scan)

    async def scan_usage(self, scan: UsageScan) -> list[UsageRow]:
        """See `Storage.scan_usage`."""
        return await self.storage.scan_usage(scan)

    async def get_stats(self) -> SessionStats:
        """Return the message count and the usage totals of the whole session."""
        return await self.storage.get_stats()


def decode_metadata(value: Any) -> SessionMetadata:
    """Decode the cell at `session.metadata`. Raises StorageCorruption if it is something else."""
    try:
        return msgspec.convert(value, SessionMetadata)
    except msgspec.ValidationError as error:
        raise StorageCorruption(f"the session's metadata cannot be read: {error}") from error


def encode_metadata(metadata: SessionMetadata) -> Mapping[str, Any]:
    """Return the JSON object that is stored at `session.metadata`."""
    return msgspec.to_builtins(metadata)
