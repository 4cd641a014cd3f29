"""Which response asked for a tool call, and which entry answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from laneway.messages import AssistantMessage, ToolResultMessage
from laneway.storage.base import BranchScan, Entry, MessageEntry

_FIRST_PAGE = 16


async def find_call(scan_branch: Callable[[BranchScan], Awaitable[list[Entry]]], tip: str | None, call_id: str) -> tuple[str | None, str | None]:
    """Return the ids of the response that asked for a call and of the result that it has; None for what is not there.

    Walks back from `tip` to the response, in growing pages, and not past the newest compaction. A result is looked for first, so with
    one the response is None.
    """
    cursor, page = None, _FIRST_PAGE
    while tip is not None:
        entries = await scan_branch(BranchScan(start=tip, stop_at_type="compaction", type="message", limit=page, cursor=cursor))
        for entry in entries:
            message = entry.message if isinstance(entry, MessageEntry) else None
            if isinstance(message, ToolResultMessage) and message.tool_call_id == call_id:
                return None, entry.id
            if isinstance(message, AssistantMessage) and any(call.id == call_id for call in message.tool_calls):
                return entry.id, None
        if len(entries) < page:
            break
        cursor, page = entries[-1].seq, page * 4
    return None, None
