"""Forks: a new session that begins with what another one has.

What can change is read as it is at one moment (`Values`). Entries are write-once, so they are copied afterwards, page by page,
without holding anybody up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from laneway.errors import BranchNotFound, ForkError
from laneway.messages import TextContent, ToolResultMessage, now_ms
from laneway.session._branch import inherit_id
from laneway.session._ids import Ids
from laneway.session._session import SessionMetadata
from laneway.session._tree import all_entries
from laneway.session.entries import open_calls
from laneway.session.keys import BRANCH_TIP, ENTRY_LABEL, LANE_CONFIG, LANE_STATE, MAIN_BRANCH, SESSION_NAME, kind_of
from laneway.storage.base import AppendList, BranchScan, Entry, InsertEntry, MessageEntry, SetValue, Storage, StoredValue, Values, Write

_CHUNK = 1000
_IDLE_LANE: dict[str, Any] = {"current_operation_id": None, "last_operation_id": None, "inbox": []}
INTERRUPTED = "The session was forked while this call was running; its result belongs to the other session. Call the tool again if it is needed."


class Fork(Struct, frozen=True):
    """What to copy.

    `scope` "branch": the path of `lane` to its tip, or to `entry_id` ("at"), or to that entry's parent ("before").
    `scope` "tree": every entry, every lane's tip and configuration, and the application's values.
    """

    scope: Literal["branch", "tree"] = "branch"
    lane: str = MAIN_BRANCH
    entry_id: str | None = None
    position: Literal["at", "before"] = "at"


class ForkPlan:
    """The commits that make the fork. `check()` refuses what cannot be forked before anything is created."""

    def __init__(self, *, source: SessionMetadata, storage: Storage, values: Values, fork: Fork, ids: Ids) -> None:
        self._source = source
        self._storage = storage
        self._last_seq = values.last_seq
        self._lists = {address: elements for address, elements in values.lists.items() if kind_of(address[0]) != "runtime"}
        self._cells: dict[str, dict[str, StoredValue]] = {}
        for cell in values.cells:
            if kind_of(cell.namespace) != "runtime":
                self._cells.setdefault(cell.namespace, {})[cell.key] = cell
        self._fork = fork
        self._ids = ids
        self._tip: str | None = None

    def metadata(self, id: str) -> SessionMetadata:
        """Return the metadata of the new session."""
        forked = {"scope": self._fork.scope} if self._fork.scope == "tree" else {"scope": "branch", "lane": self._fork.lane, "entry_id": self._tip}
        return SessionMetadata(
            id=id,
            created_at=now_ms(),
            cwd=self._source.cwd,
            parent_session_id=self._source.id,
            metadata={**self._source.metadata, "forked_from": forked},
        )

    async def check(self) -> None:
        """Find the fork point.

        Raises:
            ForkError: the entry is not on the branch, or the session holds data of a newer laneway.
            BranchNotFound: there is no such lane.
        """
        fork = self._fork
        for namespace in (*self._cells, *(namespace for namespace, _ in self._lists)):
            if kind_of(namespace) == "unknown":
                raise ForkError(f"session {self._source.id} has data in {namespace!r}, which only a newer laneway understands: fork it with that one")
        if fork.scope == "tree":
            if fork.entry_id is not None:
                raise ForkError("a fork of the whole tree takes no entry_id: use scope='branch' to fork at an entry")
            return
        tip = self._cells.get(BRANCH_TIP, {}).get(fork.lane)
        if tip is None:
            raise BranchNotFound(f"session {self._source.id} has no branch {fork.lane!r} to fork")
        self._tip = await self._fork_point(tip.value)

    async def _fork_point(self, tip: str | None) -> str | None:
        fork = self._fork
        chosen = tip if fork.entry_id is None else fork.entry_id
        if chosen is None:
            return None
        nodes = [] if tip is None else await self._storage.scan_branch_structure(BranchScan(start=tip, stop_at_id=chosen))
        if not nodes or nodes[-1].id != chosen:
            raise ForkError(f"entry {chosen} is not on the branch {fork.lane!r} of session {self._source.id}: choose one of its path")
        return nodes[-1].parent_id if fork.position == "before" else chosen

    async def commits(self) -> AsyncIterator[Sequence[Write]]:
        """Yield the commits, in order: entries with their seqs, then the values that belong to them."""
        chunk: list[Write] = []
        copied: set[str] = set()
        async for entry in self._entries():
            copied.add(entry.id)
            chunk.append(InsertEntry(entry, keep_seq=True))
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
        if chunk:
            yield chunk
        yield [*await self._lanes(), *self._values(copied)]

    async def _entries(self) -> AsyncIterator[Entry]:
        if self._fork.scope == "tree":
            async for entry in all_entries(self._storage, to_seq=self._last_seq):
                yield entry
            return
        cursor: int | None = None
        while self._tip is not None:
            page = await self._storage.scan_branch(BranchScan(start=self._tip, order="oldest_first", cursor=cursor, limit=_CHUNK))
            for entry in page:
                yield entry
            if len(page) < _CHUNK:
                return
            cursor = page[-1].seq

    async def _lanes(self) -> list[Write]:
        """Return the tips and configurations of the copied lanes, all idle, and results for calls that were still running."""
        if self._fork.scope == "tree":
            tips = {stored.key: stored.value for stored in self._cells.get(BRANCH_TIP, {}).values()}
        else:
            tips = {self._fork.lane: self._tip}
        writes: list[Write] = []
        answered: dict[str, str] = {}  # tip → its last result; lanes that share a tip share the results too
        for name, tip in tips.items():
            if tip is not None and self._fork.entry_id is None:
                if tip not in answered:
                    results = await self._interrupted_results(tip)
                    writes += [InsertEntry(entry) for entry in results]
                    answered[tip] = results[-1].id if results else tip
                tip = answered[tip]
            writes.append(SetValue(BRANCH_TIP, name, tip))
            if name in self._cells.get(LANE_CONFIG, {}):
                writes.append(SetValue(LANE_CONFIG, name, self._cells[LANE_CONFIG][name].value))
            if name in self._cells.get(LANE_STATE, {}):
                writes.append(SetValue(LANE_STATE, name, _IDLE_LANE))
        return writes

    async def _interrupted_results(self, tip: str) -> list[MessageEntry]:
        page = await self._storage.scan_branch(BranchScan(start=tip, stop_at_type="compaction", limit=256))
        results: list[MessageEntry] = []
        parent = tip
        asked_by = next((entry.id for entry in page if isinstance(entry, MessageEntry) and getattr(entry.message, "tool_calls", None)), tip)
        for call in open_calls(page[::-1]):
            message = ToolResultMessage(tool_call_id=call.id, tool_name=call.name, content=[TextContent(text=INTERRUPTED)], is_error=True)
            results.append(MessageEntry(id=inherit_id(self._ids, asked_by), parent_id=parent, message=message))
            parent = results[-1].id
        return results

    def _values(self, copied: set[str]) -> list[Write]:
        """Return the name, the labels of what is copied, and for a tree the application's cells and lists."""
        names, labels = self._cells.get(SESSION_NAME, {}).values(), self._cells.get(ENTRY_LABEL, {}).values()
        writes: list[Write] = [SetValue(SESSION_NAME, stored.key, stored.value) for stored in names]
        writes += [SetValue(ENTRY_LABEL, stored.key, stored.value) for stored in labels if self._fork.scope == "tree" or stored.key in copied]
        if self._fork.scope == "tree":
            for namespace, cells in self._cells.items():
                if kind_of(namespace) == "app":
                    writes += [SetValue(namespace, stored.key, stored.value) for stored in cells.values()]
            for (namespace, key), elements in self._lists.items():
                if kind_of(namespace) == "app":
                    writes += [AppendList(namespace, key, element.value) for element in elements]
        return writes
