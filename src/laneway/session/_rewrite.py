"""Erasing: the one thing that takes entries out of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec
from msgspec import Struct

from laneway.errors import RewriteError
from laneway.messages import AgentMessage, encode
from laneway.session._mutation import Mutation, check_entry
from laneway.session._snapshot import values_of
from laneway.session._tree import all_entries
from laneway.session.keys import BRANCH_TIP, ENTRY_LABEL, LANE_STATE, SESSION_REWRITES
from laneway.storage.base import BranchSummaryEntry, CompactionEntry, Content, Entry, MessageEntry, StoredValue, UsageRow, UsageScan, Values

if TYPE_CHECKING:
    from laneway.session._session import Session
    from laneway.storage.base import Rewritable

Keep: TypeAlias = Callable[[Entry], bool | Entry | None]
"""Says of an entry whether it stays: True or another entry to put in its place, False or None to erase it."""


class RewriteReport(Struct, kw_only=True, frozen=True):
    """What a rewrite did: ids of erased and of changed entries, and the branches whose tip moved up."""

    erased: list[str]
    changed: list[str]
    moved: list[str]


async def rewrite(session: Session, keep: Keep) -> RewriteReport:
    """See `Session.rewrite`."""
    if not hasattr(session.storage, "rewrite"):
        raise RewriteError(f"{type(session.storage).__name__} cannot replace its content: open the session through its repository")

    async def plan(mutation: Mutation) -> RewriteReport:
        await _refuse_busy(session, mutation)
        work = _Rewrite(keep)
        async for entry in all_entries(session.storage):
            work.take(entry)
        content = await work.content(session, mutation)
        if work.report.erased or work.report.changed:
            await cast("Rewritable", session.storage).rewrite(content)
        return work.report

    return await session.mutate(plan)


async def _refuse_busy(session: Session, mutation: Mutation) -> None:
    claimed = [name for name in await session.branches() if session.is_claimed(name)]
    if claimed:
        raise RewriteError(f"lane {claimed[0]!r} of session {session.metadata.id} is live: close its harness before erasing entries")
    for state in await mutation.scan_values(LANE_STATE):
        if state.value.get("current_operation_id") is not None:
            raise RewriteError(
                f"lane {state.key!r} of session {session.metadata.id} has an open operation: resume or abort it before erasing entries"
            )


class _Rewrite:
    """Decides entry by entry, oldest first, and then says what everything else becomes."""

    def __init__(self, keep: Keep) -> None:
        self.report = RewriteReport(erased=[], changed=[], moved=[])
        self._keep = keep
        self._kept: list[Entry] = []
        self._stands_for: dict[str, str | None] = {}  # erased id → its nearest kept ancestor
        self._erased_messages: set[bytes] = set()

    def take(self, entry: Entry) -> None:
        decided = self._keep(entry)
        parent = self._now(entry.parent_id)
        if decided is None or decided is False:
            self.report.erased.append(entry.id)
            self._stands_for[entry.id] = parent
            if isinstance(entry, MessageEntry):
                self._erased_messages.add(encode(entry.message))
            return
        changed = entry if decided is True else decided
        check_entry(changed)
        if changed != entry:
            self.report.changed.append(entry.id)
            if isinstance(entry, MessageEntry):
                self._erased_messages.add(encode(entry.message))
        self._kept.append(msgspec.structs.replace(changed, id=entry.id, parent_id=parent, seq=entry.seq, timestamp=entry.timestamp))

    def _now(self, id: str | None) -> str | None:
        return id if id is None else self._stands_for.get(id, id)

    async def content(self, session: Session, mutation: Mutation) -> Content:
        """Return what the store is to hold: all there is but what was erased, and nothing that names or copies it."""
        values = await values_of(session.storage)
        usage = await mutation.scan_usage(UsageScan())
        entries = [self._without_copies(entry) for entry in self._kept]
        return Content(
            entries=entries,
            usage=[msgspec.structs.replace(row, entry_id=None) if row.entry_id in self._stands_for else row for row in usage],
            cells=[*filter(None, map(self._cell, values.cells)), self._counter(values, usage)],
            lists=values.lists,
        )

    def _without_copies(self, entry: Entry) -> Entry:
        """Take copies of erased messages out of a compaction's tail, and erased ids out of a branch summary."""
        if isinstance(entry, CompactionEntry) and entry.retained_tail and self._erased_messages:
            tail = [message for message in entry.retained_tail if not self._is_erased(message)]
            if len(tail) != len(entry.retained_tail):
                self.report.changed.append(entry.id)
                return msgspec.structs.replace(entry, retained_tail=tail)
        if isinstance(entry, BranchSummaryEntry) and entry.from_id in self._stands_for:
            return msgspec.structs.replace(entry, from_id=self._now(entry.from_id))
        return entry

    def _is_erased(self, message: AgentMessage) -> bool:
        return encode(message) in self._erased_messages

    def _cell(self, cell: StoredValue) -> StoredValue | None:
        if cell.namespace == BRANCH_TIP and cell.value in self._stands_for:
            self.report.moved.append(cell.key)
            return msgspec.structs.replace(cell, value=self._now(cell.value))
        if (cell.namespace == ENTRY_LABEL and cell.key in self._stands_for) or cell.namespace == SESSION_REWRITES:
            return None
        return cell

    def _counter(self, values: Values, usage: list[UsageRow]) -> StoredValue:
        """Count the rewrite, for whoever keeps copies of entries (a search index), under a seq above all others."""
        before = next((cell.value for cell in values.cells if cell.namespace == SESSION_REWRITES), 0)
        elements = (element for elements in values.lists.values() for element in elements)
        last = max((row.seq for row in (*values.cells, *elements, *usage)), default=0)
        return StoredValue(namespace=SESSION_REWRITES, key="", value=before + 1, seq=max(last, values.last_seq) + 1)
