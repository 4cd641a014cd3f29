"""What must hold of a session that no process is working on (04-harness §17), and of a transcript always."""

from __future__ import annotations

from typing import Any

from laneway.harness import keys
from laneway.messages import AssistantMessage, ToolResultMessage
from laneway.storage.base import BranchScan, Entry, MessageEntry, Storage, UsageScan

RUNTIME = (keys.OP_META, keys.OP_STATE, keys.OP_TOOL_ARGS, keys.OP_TOOL_MEMO, keys.OP_PREPARATION, keys.PENDING_TOOL_OUTPUT)


async def path(storage: Storage, lane: str = "main") -> list[Entry]:
    """The lane's entries, oldest first."""
    tip = await storage.get_value(keys.BRANCH_TIP, lane)
    if tip is None or tip.value is None:
        return []
    return await storage.scan_branch(BranchScan(start=tip.value, order="oldest_first"))


async def check_idle(storage: Storage, lanes: tuple[str, ...] = ("main",)) -> None:
    """Nothing of an operation is left, the queue and its payloads agree."""
    for namespace in RUNTIME:
        assert await storage.scan_values(namespace) == [], f"{namespace} is not empty"
    inner: Any = storage
    while hasattr(inner, "storage"):
        inner = inner.storage  # a wrapper passes only the protocol on
    values = await inner.read_values()
    assert values.lists == {}, "frames of a response are left over"
    queued: set[str] = set()
    for lane in lanes:
        state = await storage.get_value(keys.LANE_STATE, lane)
        assert state is not None
        assert state.value.get("current_operation_id") is None
        queued |= {item["entry_id"] for item in state.value.get("inbox", ())}
        if state.value.get("more"):
            queued |= {stored.key for stored in await storage.scan_values(keys.PENDING_ENTRY) if keys.unlisted(lane, stored.value)}
    assert {stored.key for stored in await storage.scan_values(keys.PENDING_ENTRY)} == queued


async def check_transcript(storage: Storage, lane: str = "main") -> None:
    """Every call of a settled response has exactly one result, in order, right after it; every response is in the ledger once."""
    entries = await path(storage, lane)
    messages = [entry for entry in entries if isinstance(entry, MessageEntry)]
    rows = await storage.scan_usage(UsageScan())
    billed = [row.entry_id for row in rows if not row.adjustment]
    waiting: list[str] = []
    for entry in messages:
        message: Any = entry.message
        if isinstance(message, ToolResultMessage):
            assert waiting, f"result {message.tool_call_id} answers nothing"
            assert message.tool_call_id == waiting.pop(0), "results are out of order"
            continue
        assert not waiting, f"calls {waiting} have no result"
        if isinstance(message, AssistantMessage):
            assert billed.count(entry.id) == 1, "a response has not exactly one ledger row"
            if message.stop_reason in ("stop", "tool_use", "length"):
                waiting = [call.id for call in message.tool_calls]
    assert not waiting, f"calls {waiting} have no result"
    stats = await storage.get_stats()
    assert stats.usage.total_tokens == sum(row.usage.total_tokens for row in rows)
