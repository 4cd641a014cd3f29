"""From a tip to the messages that a model should see.

A context is the path from the newest compaction to the tip: the compaction's summary, its retained tail, then every
message after it. Nothing older is read, so the cost is that of the entries since the last compaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, cast

from laneway.messages import AgentMessage, AssistantMessage, BranchSummaryMessage, CompactionSummaryMessage, ToolResultMessage
from laneway.session.entries import LEFT_OUT_OF_CONTEXT
from laneway.storage.base import BranchScan, BranchSummaryEntry, CompactionEntry, CustomEntry, Entry, MessageEntry
from laneway.transcript import refuses_an_image

Projection: TypeAlias = AgentMessage | Sequence[AgentMessage] | None
EntryProjector: TypeAlias = Callable[[CustomEntry], Projection | Awaitable[Projection]]
"""Says which messages, if any, a custom entry puts into the context. May be async."""


class BranchReader(Protocol):
    """What a context is read from: a `Storage`, a `Session` or a `Mutation`."""

    async def scan_branch(self, scan: BranchScan) -> list[Entry]: ...


async def build_context(source: BranchReader, tip: str | None, projectors: Mapping[str, EntryProjector] | None = None) -> list[AgentMessage]:
    """Return the messages of the path to `tip`, oldest first; none for a tip of None.

    - Responses that ended in "error", "aborted" or "deferred" are left out, and so are results of their calls. Only the refusal of an image
      stays: it says what may no longer be sent (see `laneway.transcript.normalise`).
    - The newest compaction becomes a `CompactionSummaryMessage` followed by its retained tail.
    - A branch summary becomes a `BranchSummaryMessage` if it has text.
    - A custom entry becomes what the projector for its type returns (a message, several, or None); without a projector
      it becomes nothing.

    Calls without a result are left as they are: they are answered when the context is converted for a provider.

    Raises:
        StorageError: there is no entry `tip`.
    """
    return await LaneContext(source, projectors).read(tip)


class LaneContext:
    """Reads the context of a moving tip again and again; each read costs the entries added since the one before.

    For one lane. The result of a read is the caller's own list.
    """

    def __init__(self, source: BranchReader, projectors: Mapping[str, EntryProjector] | None = None) -> None:
        self._source = source
        self._projectors = projectors or {}
        self._tip: str | None = None
        self._fold = _Fold()

    def reset(self, projectors: Mapping[str, EntryProjector] | None = None) -> None:
        """Forget what was read; use `projectors` from now on."""
        self._projectors = projectors or {}
        self._tip = None
        self._fold = _Fold()

    @property
    def condensed(self) -> int:
        """How many messages, at the beginning of what the last read returned, came with the compaction: usage in them is of older contexts."""
        return self._fold.condensed

    @property
    def size(self) -> int:
        """How many messages are held."""
        return len(self._fold.messages)

    @property
    def started(self) -> bool:
        """Whether anything was read yet."""
        return self._tip is not None

    def at(self, tip: str | None) -> list[AgentMessage] | None:
        """Return the messages of the path to `tip` if they are known already: the list itself, which grows. Not to be changed."""
        if tip is None:
            return []
        return self._fold.messages if tip == self._tip else None

    def extend(self, entries: Sequence[Entry]) -> None:
        """Take up entries that were just committed, stamped and in a chain, so that the next read need not look for them.

        Only where they go on from the tip that was read last, and no projector is needed for them; else this does nothing.
        """
        if self._tip is None or entries[0].parent_id != self._tip:
            return
        for entry in entries:
            if type(entry) is CustomEntry and entry.custom_type in self._projectors:
                return
        for entry in entries:
            self._fold.add(entry)
        self._tip = entries[-1].id

    async def read(self, tip: str | None) -> list[AgentMessage]:
        """See `build_context`."""
        if tip is None:
            return []
        if tip != self._tip:
            await self._advance(tip)
        return list(self._fold.messages)

    async def _advance(self, tip: str) -> None:
        path = await self._source.scan_branch(BranchScan(start=tip, stop_at_type="compaction", stop_at_id=self._tip))
        path.reverse()
        extends = self._tip is not None and path[0].id == self._tip
        fold = self._fold if extends else _Fold()
        self._tip = None  # a projector that raises half-way leaves nothing half-built behind
        for entry in path[1:] if extends else path:
            fold.add(entry, await self._project(entry) if isinstance(entry, CustomEntry) else ())
        self._fold, self._tip = fold, tip

    async def _project(self, entry: CustomEntry) -> Sequence[AgentMessage]:
        projector = self._projectors.get(entry.custom_type)
        if projector is None:
            return ()
        projected = projector(entry)
        if hasattr(projected, "__await__"):
            projected = await cast("Awaitable[Projection]", projected)
        if projected is None:
            return ()
        return cast("Sequence[AgentMessage]", projected) if isinstance(projected, (list, tuple)) else (cast("AgentMessage", projected),)


class _Fold:
    """Adds entries, oldest first, to the messages of a context."""

    def __init__(self) -> None:
        self.messages: list[AgentMessage] = []
        self.condensed = 0
        self._unsent: frozenset[str] | set[str] = frozenset()

    def add(self, entry: Entry, projected: Sequence[AgentMessage] = ()) -> None:
        if type(entry) is MessageEntry:  # nearly all are
            self._add_message(entry.message)
            return
        match entry:
            case MessageEntry():
                self._add_message(entry.message)
            case CompactionEntry():
                self.messages = [CompactionSummaryMessage(summary=entry.summary, tokens_before=entry.tokens_before, timestamp=entry.timestamp)]
                self._unsent = frozenset()
                for message in entry.retained_tail:
                    self._add_message(message)
                self.condensed = len(self.messages)
            case BranchSummaryEntry():
                if entry.summary.strip():
                    self.messages.append(BranchSummaryMessage(summary=entry.summary, from_id=entry.from_id, timestamp=entry.timestamp))
            case CustomEntry():
                self.messages.extend(projected)

    def _add_message(self, message: AgentMessage) -> None:
        if type(message) is ToolResultMessage:
            if message.tool_call_id in self._unsent:
                return
        elif isinstance(message, AssistantMessage):
            # Providers may use a call id again in a later response, so a result belongs to the response just before it.
            if message.stop_reason in LEFT_OUT_OF_CONTEXT:
                self._unsent = {call.id for call in message.tool_calls}
                if not refuses_an_image(message):
                    return
            else:
                self._unsent = frozenset()
        self.messages.append(message)
