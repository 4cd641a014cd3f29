"""Control from outside a drive: ask for an abort, decide a suspended call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.harness import _inbox, keys
from laneway.harness._events import HarnessEvent, OperationAbort, ToolDecided
from laneway.harness._line import Commit, Decision, Done, Invariant, Return
from laneway.harness._placing import queue_update
from laneway.harness._procedures._results import jsonable, with_call
from laneway.harness.keys import QueuedMessage
from laneway.harness.results import Aborting, NotSuspended, OperationMismatch
from laneway.harness.state import ApprovedCall, DrainedPayloads, InboxItem, Lane, Operation, RejectedCall, SuspendedCall, Tools
from laneway.messages import AssistantMessage, ToolCall
from laneway.session._mutation import Mutation
from laneway.storage.base import MessageEntry, SetValue, Write

if TYPE_CHECKING:
    from laneway.harness._line import Line


async def request_abort(line: Line, operation_id: str) -> Aborting:
    """Make cancellation durable and take steering and follow-ups out of the queue.

    The gate of a running drive shuts at once. That must be followed by the commit, so the rest goes on even if the caller is cancelled.

    Raises:
        OperationMismatch: the operation is not open on this lane.
    """
    drive = line.drive
    if drive is not None and drive.operation_id == operation_id:
        drive.gate.hold()
    task = asyncio.ensure_future(_commit_abort(line, operation_id))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


async def _commit_abort(line: Line, operation_id: str) -> Aborting:
    async def plan(lane: Lane, mutation: Mutation) -> Decision[Aborting]:
        operation = lane.operation
        if operation is None or operation.id != operation_id:
            current = None if operation is None else operation.id
            raise OperationMismatch(expected=operation_id, current=current, last=lane.last_operation_id)
        if operation.cancelled:
            _fire(line, operation_id)
            return Return(Aborting(operation_id=operation_id, newly_requested=False, steer=[], follow_up=[]))
        return await _abort(line, lane, operation, mutation)

    return await line.command(plan, observes=True)


async def _abort(line: Line, lane: Lane, operation: Operation, mutation: Mutation) -> Commit[Aborting]:
    steer, follow_up = _inbox.drained_by_abort(lane.inbox)
    steer_messages, follow_messages = await _messages(line, steer, mutation), await _messages(line, follow_up, mutation)
    drained = DrainedPayloads(steer=[keys.plain(m) for m in steer_messages], follow_up=[keys.plain(m) for m in follow_messages])
    state = msgspec.structs.replace(
        operation.state,
        cancel_requested_at=line.runtime.environment.clock(),
        drained=drained if steer or follow_up else None,
    )
    after = msgspec.structs.replace(lane.at(state), inbox=_inbox.without(lane.inbox, [*steer, *follow_up]))
    writes: list[Write] = [
        *keys.delete_pending(item.entry_id for item in (*steer, *follow_up)),
        keys.set_state(operation.id, state),
        keys.set_lane_state(line.name, after),
    ]
    told: list[HarnessEvent] = [OperationAbort(lane=line.name, operation_id=operation.id, steer=steer_messages, follow_up=follow_messages)]
    if steer or follow_up:
        told += await queue_update(line, operation.id, after.inbox, mutation)
    aborting = Aborting(operation_id=operation.id, newly_requested=True, steer=steer_messages, follow_up=follow_messages)

    def value(_: Done) -> Aborting:
        _fire(line, operation.id)
        return aborting

    return Commit(writes=writes, next=after, value=value, events=lambda _: told)


def _fire(line: Line, operation_id: str) -> None:
    if line.drive is not None and line.drive.operation_id == operation_id:
        line.drive.gate.fire()


async def _messages(line: Line, items: list[InboxItem], mutation: Mutation) -> list[Any]:
    payloads = [await line.payload(item.entry_id, mutation) for item in items]
    return [payload.message for payload in payloads if isinstance(payload, QueuedMessage)]


async def decide(line: Line, call_id: str, *, args: Any = None, reject: str | None = None) -> None:
    """Approve a suspended call (with other arguments, if given), or reject it for a reason; durable when this returns.

    Raises:
        NotSuspended: no call of this id waits for a decision.
        TypeError: the arguments are not JSON.
    """
    replaced = None if args is None else jsonable(args)

    async def plan(lane: Lane, mutation: Mutation) -> Decision[None]:
        operation = lane.operation
        if operation is None or not isinstance(operation.state, Tools):
            raise NotSuspended(line.name, call_id)
        call, asked = await _suspended(operation.state, call_id, mutation)
        if call is None or asked is None or operation.cancelled:
            raise NotSuspended(line.name, call_id)
        where, result_id = call.source_index, call.result_entry_id
        decided = (
            ApprovedCall(source_index=where, result_entry_id=result_id)
            if reject is None
            else RejectedCall(source_index=where, result_entry_id=result_id, reason=reject)
        )
        state = with_call(operation.state, decided)
        writes: list[Write] = []
        if reject is None and replaced is not None:
            writes.append(SetValue(keys.OP_TOOL_ARGS, keys.under(operation.id, state.batch.turn_id, call.source_index), replaced))
        writes.append(keys.set_state(operation.id, state))
        told = ToolDecided(lane=line.name, operation_id=operation.id, tool_call_id=call_id, approved=reject is None, reason=reject)
        return Commit(writes=writes, next=lane.at(state), value=lambda _: None, events=lambda _: [told])

    await line.command(plan)


async def _suspended(state: Tools, call_id: str, mutation: Mutation) -> tuple[SuspendedCall | None, ToolCall | None]:
    entry = (await mutation.get_entries([state.batch.assistant_entry_id])).get(state.batch.assistant_entry_id)
    if not isinstance(entry, MessageEntry) or not isinstance(entry.message, AssistantMessage):
        raise Invariant(f"the response {state.batch.assistant_entry_id} of a tool batch is missing")
    for call in state.batch.calls:
        asked = entry.message.content[call.source_index]
        if isinstance(call, SuspendedCall) and isinstance(asked, ToolCall) and asked.id == call_id:
            return call, asked
    return None, None
