"""Outcomes of calls become durable: staged, placed in source order, and the batch left when it is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from laneway._effects.call_tools import Outcome, result_message
from laneway.harness import keys
from laneway.harness._events import HarnessEvent, ToolEnd, ToolStart, TurnEnd
from laneway.harness._line import Done, Line, Move
from laneway.harness._placing import added
from laneway.harness._procedures._assistant_step import begin, nothing_to_decide
from laneway.harness._procedures._compacting import surely_not_due
from laneway.harness._procedures.checkpoint import limit_reached
from laneway.harness.keys import QueuedMessage
from laneway.harness.results import SuspendedCallInfo
from laneway.harness.state import (
    Batch,
    Call,
    Checkpoint,
    CompletedCall,
    Lane,
    Leaf,
    MayFinish,
    NeedAssistant,
    Operation,
    ReadyCall,
    SuspendedCall,
    Tools,
    carried,
)
from laneway.messages import AssistantMessage, TextContent, ToolCall, ToolResult, ToolResultMessage
from laneway.session._mutation import Mutation
from laneway.storage.base import DeleteValue, InsertEntry, InsertUsage, MessageEntry, UsageRow, Write

if TYPE_CHECKING:
    from laneway.harness._drive import Drive

MAX_DETAILS = 1024 * 1024
"""Bytes of JSON that are stored of a result's details, a memo, or the payload of a question."""
INTERRUPTED_MARKER = (
    "[Interrupted: the process ended while this call was running. It may have done all, some or none of its work, and it was not run again.]"
)


def jsonable(value: Any) -> Any:
    """Return a value as the JSON data that is stored; typed objects become plain ones.

    Raises:
        TypeError, ValueError: it cannot be JSON.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return msgspec.json.decode(msgspec.json.encode(value))


def capped(value: Any) -> Any:
    """Return a value as `jsonable` does; something enormous, which only a person may look at, becomes a note of its size."""
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, str) and len(value) <= MAX_DETAILS // 8):
        return value
    data = msgspec.json.encode(value)
    if len(data) > MAX_DETAILS:
        return {"omitted": f"{len(data)} bytes of JSON; at most {MAX_DETAILS} are stored"}
    return value if isinstance(value, str) else msgspec.json.decode(data)


def with_call(state: Leaf, call: Call) -> Tools:
    """Return the leaf with one call of its batch replaced."""
    assert isinstance(state, Tools)
    calls: list[Call] = [call if known.result_entry_id == call.result_entry_id else known for known in state.batch.calls]
    return msgspec.structs.replace(state, batch=msgspec.structs.replace(state.batch, calls=calls))


async def interrupted_outcome(drive: Drive, call: Call, marker: str = INTERRUPTED_MARKER) -> Outcome:
    """Return the outcome of a call that a crash cut off: what it had checkpointed, and a marker."""
    key = keys.under(drive.operation_id, call.result_entry_id)
    stored = await drive.runtime.session.get_value(keys.PENDING_TOOL_OUTPUT, key)
    kept = ToolResult() if stored is None else keys.decoded(stored, lambda value: msgspec.convert(value, ToolResult))
    return Outcome(msgspec.structs.replace(kept, content=[*kept.content, TextContent(text=marker)], terminate=False), is_error=True)


async def suspended_calls(line: Line, batch: Batch, message: AssistantMessage) -> tuple[SuspendedCallInfo, ...]:
    """Return what a person must decide."""
    operation = line.state.operation
    assert operation is not None
    found: list[SuspendedCallInfo] = []
    for call in batch.calls:
        if isinstance(call, SuspendedCall):
            asked = message.content[call.source_index]
            assert isinstance(asked, ToolCall)
            stored = await line.runtime.session.get_value(keys.OP_TOOL_ARGS, keys.under(operation.id, batch.turn_id, call.source_index))
            args = asked.arguments if stored is None else stored.value
            found.append(SuspendedCallInfo(tool_call_id=asked.id, tool_name=asked.name, args=args, reason=call.reason, payload=call.payload))
    return tuple(found)


async def settle_outcome(
    drive: Drive, message: AssistantMessage, call: Call, outcome: Outcome | None, *, synthetic: bool = False, recovery: bool = False
) -> None:
    """Settle one call (`outcome` None: it is staged already), and place every result that is due.

    `synthetic`: the call never ran, so its start is told now.
    """
    settlement = _Settlement(drive, message, call, outcome, synthetic, recovery)
    await drive.line.settle(drive.operation_id, settlement.plan)
    drive.cleared.pop(call.result_entry_id, None)


class _Settlement:
    """One outcome on its way into the history."""

    def __init__(self, drive: Drive, message: AssistantMessage, call: Call, outcome: Outcome | None, synthetic: bool, recovery: bool) -> None:
        self.drive, self.message, self.call, self.outcome = drive, message, call, outcome
        self.synthetic, self.recovery = synthetic, recovery
        self.turn_id = ""

    async def plan(self, lane: Lane, operation: Operation, mutation: Mutation) -> Move | None:
        state = operation.state
        if self.outcome is None and not isinstance(state, Tools):
            return None  # placed with a sibling, and the batch is complete
        assert isinstance(state, Tools)
        self.turn_id = state.batch.turn_id
        writes: list[Write] = []
        staged: QueuedMessage | None = None
        terminate = False
        if self.outcome is not None:
            terminate = self.outcome.result.terminate and self.outcome.cut is None and not operation.cancelled and not state.batch.interrupted
            staged = QueuedMessage(message=result_message(self._asked(self.call), self.outcome), terminate=terminate)
            ready = ReadyCall(source_index=self.call.source_index, result_entry_id=self.call.result_entry_id, terminate=terminate)
            state = with_call(state, ready)
            if not self.synthetic:
                writes += await self._swept(operation, mutation)
            self.drive.line.live.progress.pop(self.call.result_entry_id, None)
        due = _due(state.batch)
        if staged is not None and all(call.result_entry_id != self.call.result_entry_id for call in due):
            self.drive.line.payloads[self.call.result_entry_id] = staged
            writes.append(keys.set_pending(self.call.result_entry_id, staged))
        if not due:
            return Move(state=state, writes=writes, events=lambda _: self._ended(terminate)) if staged is not None else None
        return await self._place(lane, operation, state, due, staged, writes, mutation)

    async def _place(
        self, lane: Lane, operation: Operation, state: Tools, due: list[ReadyCall], staged: QueuedMessage | None, writes: list[Write],
        mutation: Mutation,
    ) -> Move:  # fmt: skip
        tip_id, placed, calls = lane.tip_id, list[str](), list(state.batch.calls)
        for call in due:
            own = staged is not None and call.result_entry_id == self.call.result_entry_id
            payload = staged if own else await self.drive.line.payload(call.result_entry_id, mutation)
            assert isinstance(payload, QueuedMessage)
            assert isinstance(payload.message, ToolResultMessage)
            writes.append(InsertEntry(payload.entry(call.result_entry_id, tip_id)))
            if not own:
                writes.append(DeleteValue(keys.PENDING_ENTRY, call.result_entry_id))
            if payload.message.usage is not None:
                writes.append(InsertUsage(UsageRow(id=self.drive.new_id(), usage=payload.message.usage, entry_id=call.result_entry_id)))
            tip_id = call.result_entry_id
            placed.append(tip_id)
            self.drive.results[tip_id] = payload.message
            calls[calls.index(call)] = CompletedCall(source_index=call.source_index, result_entry_id=tip_id, terminate=call.terminate)
        writes.append(keys.set_tip(self.drive.line.name, tip_id))
        state = Tools(batch=msgspec.structs.replace(state.batch, calls=calls), **carried(state))
        next_state: Leaf = state
        turn: list[HarnessEvent] = []
        if len(due) == len(calls) or all(isinstance(call, CompletedCall) for call in calls):
            writes += self._args(operation, state.batch)
            next_state = self._onward(lane, operation, _after(state, tip_id), placed)
            turn = await self._turn_end(state.batch, mutation)
        terminate = next((call.terminate for call in due if call.result_entry_id == self.call.result_entry_id), False)

        def events(done: Done) -> list[HarnessEvent]:
            ended = self._ended(terminate) if self.outcome is not None else []
            entries = added(done, placed, **self.drive.told, recovery=self.recovery)
            return [*ended, *entries, *done.usage(self.drive.line.name, operation.id), *turn]

        return Move(state=next_state, writes=writes, tip_id=tip_id, events=events)

    def _onward(self, lane: Lane, operation: Operation, boundary: Checkpoint, placed: list[str]) -> Leaf:
        """Return what follows a complete batch: the intent of the next request at once, where the boundary has nothing to decide.

        Nobody listens then: a listener may still want to say something before the model is asked again.
        """
        drive = self.drive
        if self.recovery or type(boundary.continuation) is not NeedAssistant or not nothing_to_decide(drive, lane, operation):
            return boundary
        if limit_reached(operation, drive.environment.clock()) is not None:
            return boundary
        if not surely_not_due(drive.line, operation, [drive.results[id] for id in placed]):
            return boundary
        return begin(drive, lane, operation, boundary.trigger_entry_id, overflow_recovery_used=False).state

    def _args(self, operation: Operation, batch: Batch) -> list[Write]:
        """Delete the arguments of the batch that are stored, as far as that is known."""
        known = self.drive.line.transient()
        if known is not None and all(namespace != keys.OP_TOOL_ARGS for namespace, _ in known):
            return []
        return [DeleteValue(keys.OP_TOOL_ARGS, keys.under(operation.id, batch.turn_id, call.source_index)) for call in batch.calls]

    def _asked(self, call: Call) -> ToolCall:
        asked = self.message.content[call.source_index]
        assert isinstance(asked, ToolCall)
        return asked

    async def _swept(self, operation: Operation, mutation: Mutation) -> list[Write]:
        """Delete the call's checkpoint and memos."""
        key = keys.under(operation.id, self.call.result_entry_id)
        known = self.drive.line.transient()
        if known is None:
            memos = await mutation.scan_values(keys.OP_TOOL_MEMO, f"{key}:")
            return [DeleteValue(keys.PENDING_TOOL_OUTPUT, key), *(DeleteValue(keys.OP_TOOL_MEMO, memo.key) for memo in memos)]
        mine = [(namespace, found) for namespace, found in known if found == key or found.startswith(f"{key}:")]
        return [DeleteValue(namespace, found) for namespace, found in sorted(mine, reverse=True)]

    # -- what is told

    def _ended(self, terminate: bool) -> list[HarnessEvent]:
        if self.outcome is None:
            return []
        asked, told = self._asked(self.call), self.drive.told
        events: list[HarnessEvent] = []
        if self.synthetic:
            events.append(ToolStart(**told, turn_id=self.turn_id, tool_call_id=asked.id, tool_name=asked.name, args=asked.arguments))
        end = ToolEnd(
            **told, recovery=self.recovery, turn_id=self.turn_id, tool_call_id=asked.id, tool_name=asked.name, result=self.outcome.result,
            is_error=self.outcome.is_error, terminate=terminate,
        )  # fmt: skip
        return [*events, end]

    async def _turn_end(self, batch: Batch, mutation: Mutation) -> list[HarnessEvent]:
        results = self.drive.results
        self.drive.results = {}
        if not self.drive.runtime.bus.listened:
            return []
        ids = [call.result_entry_id for call in batch.calls]
        missing = [id for id in ids if id not in results]
        for id, entry in (await mutation.get_entries(missing)).items() if missing else ():
            if isinstance(entry, MessageEntry) and isinstance(entry.message, ToolResultMessage):
                results[id] = entry.message
        told = [results[id] for id in ids if id in results]
        return [TurnEnd(**self.drive.told, recovery=self.recovery, turn_id=batch.turn_id, message=self.message, tool_results=told)]


def _due(batch: Batch) -> list[ReadyCall]:
    """Return the results that can be placed: the ready ones directly after those that are."""
    due: list[ReadyCall] = []
    for call in batch.calls:
        if isinstance(call, CompletedCall):
            continue
        if not isinstance(call, ReadyCall):
            break
        due.append(call)
    return due


def _after(state: Tools, tip_id: str | None) -> Checkpoint:
    """Return the boundary after a complete batch. Only unanimous results end a run."""
    calls = state.batch.calls
    agreed = not state.batch.interrupted and all(isinstance(call, CompletedCall) and call.terminate for call in calls)
    return Checkpoint(continuation=MayFinish() if agreed else NeedAssistant(), trigger_entry_id=tip_id, **carried(state))
