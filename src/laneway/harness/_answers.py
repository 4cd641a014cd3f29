"""A tool call has one result. What comes from outside is held against that before it is queued or placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from laneway.harness.keys import QueuedMessage
from laneway.harness.results import DuplicateResult
from laneway.harness.state import Lane, Tools
from laneway.messages import AgentMessage, AssistantMessage, ToolResultMessage
from laneway.session._answers import find_call
from laneway.session._mutation import Mutation
from laneway.storage.base import MessageEntry

if TYPE_CHECKING:
    from laneway.harness._line import Line


async def refuse_second_results(line: Line, lane: Lane, messages: Sequence[AgentMessage], mutation: Mutation) -> None:
    """Refuse a result for a call that has one, has one queued, or will get one from the batch that runs.

    Raises:
        DuplicateResult: it names the call and where its result is.
    """
    given = [message.tool_call_id for message in messages if isinstance(message, ToolResultMessage)]
    if not given:
        return
    taken = await _queued(line, lane, mutation) | await _running(lane, mutation)
    for call_id in given:
        where = taken.get(call_id)
        if where is None:
            _, result_id = await find_call(mutation.scan_branch, lane.tip_id, call_id)
            where = None if result_id is None else f"it has its result already (entry {result_id})"
        if where is not None:
            raise DuplicateResult(call_id, where)
        taken[call_id] = "the same input has another result for it"


async def _queued(line: Line, lane: Lane, mutation: Mutation) -> dict[str, str]:
    payloads = [await line.payload(item.entry_id, mutation) for item in lane.inbox]
    messages = [payload.message for payload in payloads if isinstance(payload, QueuedMessage)]
    return {message.tool_call_id: "a result for it is queued" for message in messages if isinstance(message, ToolResultMessage)}


async def _running(lane: Lane, mutation: Mutation) -> dict[str, str]:
    operation = lane.operation
    if operation is None or not isinstance(operation.state, Tools):
        return {}
    asked_by = operation.state.batch.assistant_entry_id
    entry = (await mutation.get_entries([asked_by])).get(asked_by)
    if not isinstance(entry, MessageEntry) or not isinstance(entry.message, AssistantMessage):
        return {}
    return {call.id: "it runs, and its result will follow" for call in entry.message.tool_calls}
