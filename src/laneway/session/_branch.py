"""`Branch`: a named tip, and appending after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from laneway.errors import BranchNotFound, DuplicateToolResult, EntryNotFound, SessionError
from laneway.messages import AgentMessage, ToolResultMessage, Usage, UserMessage
from laneway.session._answers import find_call
from laneway.session._context import EntryProjector, build_context
from laneway.session._ids import Ids
from laneway.session._mutation import Mutation
from laneway.session.keys import BRANCH_TIP, LANE_STATE
from laneway.storage.base import (
    BranchScan,
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    EntryType,
    InsertEntry,
    MessageEntry,
    ScanOrder,
    SetValue,
)

if TYPE_CHECKING:
    from laneway.session._session import Session


class Branch:
    """A named cursor into the tree. Every append is one commit: the entry, whose parent is the tip, and the new tip.

    For data that no lane runs. While a lane of this name is live or has an open operation, appends are refused:
    they would move the tip under it.
    """

    def __init__(self, session: Session, name: str, *, create: bool = False) -> None:
        self.name = name
        self._session = session
        self._create = create

    def __repr__(self) -> str:
        return f"Branch({self.name!r} of session {self._session.metadata.id})"

    async def get_tip(self) -> str | None:
        """Return the id of the branch's last entry; None while it is empty. Raises BranchNotFound."""
        stored = await self._session.storage.get_value(BRANCH_TIP, self.name)
        if stored is None:
            raise self._missing()
        return stored.value

    async def find_entries(
        self, *, start: str | None = None, type: EntryType | None = None, custom_type: str | None = None, stop_at_type: EntryType | None = None,
        stop_at_id: str | None = None, order: ScanOrder = "newest_first", cursor: int | None = None, limit: int | None = None,
    ) -> list[Entry]:  # fmt: skip
        """Return the entries of the path from `start` (default: the tip) to the root; see `BranchScan`."""
        start = start or await self.get_tip()
        if start is None:
            return []
        scan = BranchScan(
            start=start, stop_at_type=stop_at_type, stop_at_id=stop_at_id, type=type, custom_type=custom_type,
            order=order, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._session.storage.scan_branch(scan)

    async def find_entry(self, **scan: Any) -> Entry | None:
        """Return the first entry that `find_entries(**scan)` would, or None."""
        scan["limit"] = 1
        found = await self.find_entries(**scan)
        return found[0] if found else None

    async def context(self, projectors: Mapping[str, EntryProjector] | None = None) -> list[AgentMessage]:
        """Return the messages that a model should see; see `build_context`."""
        return await build_context(self._session.storage, await self.get_tip(), projectors)

    async def append_message(self, message: AgentMessage | str) -> str:
        """Append a message (text: a user message) and return its entry's id.

        A tool result's id inherits the time of the response that asked for it.

        Raises:
            MessageError: the message still streams, or its role is not registered.
            DuplicateToolResult: it answers a call that has its result.
            SessionError: a lane of this name is live or has an open operation.
        """
        if isinstance(message, str):
            message = UserMessage(content=message)
        chosen: AgentMessage = message

        async def plan(mutation: Mutation) -> str:
            tip = await self._writable_tip(mutation)
            if isinstance(chosen, ToolResultMessage):
                id = await self._result_id(mutation, tip, chosen)
            else:
                id = self._session.ids.new()
            return await self._place(mutation, MessageEntry(id=id, parent_id=tip, message=chosen))

        return await self._session.mutate(plan)

    async def append_custom_entry(self, custom_type: str, data: Any = None) -> str:
        """Append application data and return its entry's id. Raises TypeError, naming the path, if it is not JSON."""
        return await self._append(lambda id, tip: CustomEntry(id=id, parent_id=tip, custom_type=custom_type, data=data))

    async def append_compaction(
        self, summary: str, *, retained_tail: list[AgentMessage] | None = None, tokens_before: int = 0, details: Any = None,
        usage: Usage | None = None,
    ) -> str:  # fmt: skip
        """Append a compaction, which replaces all before it in a context, and return its entry's id."""
        tail = list(retained_tail or [])
        return await self._append(
            lambda id, tip: CompactionEntry(
                id=id, parent_id=tip, summary=summary, retained_tail=tail, tokens_before=tokens_before, details=details, usage=usage
            )
        )

    async def append_branch_summary(self, summary: str, *, from_id: str | None, details: Any = None, usage: Usage | None = None) -> str:
        """Append the summary of a branch that was left at `from_id` and return its entry's id."""
        return await self._append(
            lambda id, tip: BranchSummaryEntry(id=id, parent_id=tip, from_id=from_id, summary=summary, details=details, usage=usage)
        )

    async def move_to(self, entry_id: str | None) -> None:
        """Make another entry (None: nothing) the tip. Raises EntryNotFound."""

        async def plan(mutation: Mutation) -> None:
            await self._writable_tip(mutation)
            if entry_id is not None and entry_id not in await mutation.get_entries([entry_id]):
                raise EntryNotFound(f"branch {self.name!r} cannot move to {entry_id}: session {self._session.metadata.id} has no such entry")
            await mutation.commit([SetValue(BRANCH_TIP, self.name, entry_id)])

        await self._session.mutate(plan)

    async def _append(self, build: Callable[[str, str | None], Entry]) -> str:
        async def plan(mutation: Mutation) -> str:
            tip = await self._writable_tip(mutation)
            return await self._place(mutation, build(self._session.ids.new(), tip))

        return await self._session.mutate(plan)

    async def _place(self, mutation: Mutation, entry: Entry) -> str:
        await mutation.commit([InsertEntry(entry), SetValue(BRANCH_TIP, self.name, entry.id)])
        return entry.id

    async def _writable_tip(self, mutation: Mutation) -> str | None:
        if self._session.is_claimed(self.name):
            raise SessionError(f"the lane {self.name!r} of session {self._session.metadata.id} is live: append through the lane")
        state = await mutation.get_value(LANE_STATE, self.name)
        if state is not None and isinstance(state.value, dict) and state.value.get("current_operation_id") is not None:  # pyright: ignore[reportUnknownMemberType] - JSON
            raise SessionError(f"the lane {self.name!r} of session {self._session.metadata.id} has an open operation: resume or abort it first")
        stored = await mutation.get_value(BRANCH_TIP, self.name)
        if stored is None and not self._create:
            raise self._missing()
        return None if stored is None else stored.value

    async def _result_id(self, mutation: Mutation, tip: str | None, result: ToolResultMessage) -> str:
        """Return an id beside the call's response."""
        response_id, result_id = await find_call(mutation.scan_branch, tip, result.tool_call_id)
        if result_id is not None:
            raise DuplicateToolResult(f"tool call {result.tool_call_id} has its result already (entry {result_id}): a call has exactly one")
        return self._session.ids.new() if response_id is None else inherit_id(self._session.ids, response_id)

    def _missing(self) -> BranchNotFound:
        return BranchNotFound(f"session {self._session.metadata.id} has no branch {self.name!r}: create it with create_branch()")


def inherit_id(ids: Ids, parent_id: str) -> str:
    """Return an id right after `parent_id`, or a new one if that is not of our making."""
    try:
        return ids.after(parent_id)
    except ValueError:
        return ids.new()
