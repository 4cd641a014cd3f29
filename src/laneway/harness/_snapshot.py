"""A lane as a person may see it, and how events change it. Pure.

Folding a watcher's events over its snapshot with `apply_event` gives what a fresh snapshot would.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import replace

from laneway.harness._events import (
    CompactionEnd,
    CompactionStart,
    ConfigUpdate,
    EntryAdded,
    Fault,
    HarnessEvent,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    NavigationEnd,
    NavigationStart,
    OperationAbort,
    OperationPresence,
    QueuedItem,
    QueueUpdate,
    Resnapshot,
    RetryScheduled,
    RetryStart,
    RunEnd,
    RunResume,
    RunStart,
    RunSuspend,
    StatsUpdate,
    ToolDecided,
    ToolEnd,
    ToolStart,
    ToolSuspended,
    ToolUpdate,
    UsageRecorded,
)
from laneway.harness.results import OperationResult, SuspendedCallInfo
from laneway.harness.state import LaneConfiguration, OperationKind
from laneway.messages import AssistantMessage, DeferredHandle, ToolResult, ToolResultMessage
from laneway.storage.base import CompactionEntry, Entry, MessageEntry, SessionStats

OperationState = Literal["running", "open", "aborting"]


class RunningTool(Struct, kw_only=True, frozen=True):
    """A call that runs, or whose result waits for its place ("settled")."""

    tool_call_id: str
    tool_name: str
    args: Any
    status: Literal["running", "settled"] = "running"
    partial_result: ToolResult | None = None


class RetrySnapshot(Struct, kw_only=True, frozen=True):
    """The attempt that is waited for."""

    step: str
    attempt: int
    max_attempts: int
    not_before: int
    error_message: str


class DeferredSnapshot(Struct, kw_only=True, frozen=True):
    """The response that a provider completes, and how often it was asked for."""

    handle: DeferredHandle
    poll: int


class OperationSnapshot(Struct, kw_only=True, frozen=True):
    """The open operation. `status`: driven by this process, open (nobody here drives it), or being aborted."""

    id: str
    kind: OperationKind
    status: OperationState
    started_at: int
    from_tip_id: str | None
    streaming_message: AssistantMessage | None = None
    running_tools: tuple[RunningTool, ...] = ()
    suspended_calls: tuple[SuspendedCallInfo, ...] = ()
    retry: RetrySnapshot | None = None
    deferred: DeferredSnapshot | None = None


class LaneSnapshot(Struct, kw_only=True, frozen=True):
    """One moment of a lane. `transcript` goes back to the newest compaction, which is its first entry then."""

    lane: str
    transcript: list[Entry]
    tip_id: str | None
    configuration: LaneConfiguration
    stats: SessionStats
    last_result: OperationResult | None = None
    operation: OperationSnapshot | None = None
    queues: list[QueuedItem] = field(default_factory=list[QueuedItem])
    faulted: bool = False


class OperationInfo(Struct, kw_only=True, frozen=True):
    """The open operation in brief."""

    id: str
    kind: OperationKind
    status: OperationState
    started_at: int


class LaneInfo(Struct, kw_only=True, frozen=True):
    """One lane in brief."""

    name: str
    tip_id: str | None
    operation: OperationInfo | None = None


class LaneExecution(Struct, kw_only=True, frozen=True):
    """Where a lane's machine stands. `at` is the name of the leaf."""

    lane: str
    tip_id: str | None
    configured_model: str
    current: OperationInfo | None = None
    at: str | None = None
    last_operation_id: str | None = None


class SessionSnapshot(Struct, kw_only=True, frozen=True):
    """One moment of all lanes."""

    name: str | None
    lanes: dict[str, LaneSnapshot]
    stats: SessionStats
    faulted: bool = False


def apply_event(snapshot: LaneSnapshot, event: HarnessEvent) -> LaneSnapshot:
    """Return the lane after an event. Events of other lanes change the session's totals only."""
    match event:
        case UsageRecorded() | StatsUpdate():
            return replace(snapshot, stats=event.totals)
        case Fault():
            return replace(snapshot, faulted=True)
        case Resnapshot():
            return cast(LaneSnapshot, event.snapshot) if event.lane == snapshot.lane else snapshot
        case _ if event.lane != snapshot.lane:
            return snapshot
        case EntryAdded():
            return _entry_added(snapshot, event.entry)
        case QueueUpdate():
            return replace(snapshot, queues=event.queues)
        case ConfigUpdate():
            return replace(snapshot, configuration=replace(snapshot.configuration, **{event.property: event.value}))
        case RunStart() | CompactionStart() | NavigationStart():
            return _started(snapshot, event)
        case RunEnd():
            return replace(snapshot, operation=None, last_result=event.record, tip_id=event.tip_id)
        case CompactionEnd():
            return snapshot if event.record is None else replace(snapshot, operation=None, last_result=event.record)
        case NavigationEnd():
            return _navigated(snapshot, event)
        case _:
            return snapshot if snapshot.operation is None else replace(snapshot, operation=_operation(snapshot.operation, event))


def _entry_added(snapshot: LaneSnapshot, entry: Entry) -> LaneSnapshot:
    transcript = [entry] if isinstance(entry, CompactionEntry) else [*snapshot.transcript, entry]
    operation = snapshot.operation
    message = entry.message if isinstance(entry, MessageEntry) else None
    if operation is not None and isinstance(message, ToolResultMessage):
        left = tuple(tool for tool in operation.running_tools if tool.tool_call_id != message.tool_call_id)
        operation = replace(operation, running_tools=left)
    return replace(snapshot, transcript=transcript, tip_id=entry.id, operation=operation)


def _started(snapshot: LaneSnapshot, event: RunStart | CompactionStart | NavigationStart) -> LaneSnapshot:
    if snapshot.operation is not None and snapshot.operation.id == event.operation_id:
        return snapshot  # a compaction inside a run
    kind: OperationKind = "run" if isinstance(event, RunStart) else "compaction" if isinstance(event, CompactionStart) else "navigation"
    assert event.operation_id is not None
    operation = OperationSnapshot(
        id=event.operation_id, kind=kind, status="open", started_at=event.started_at, from_tip_id=snapshot.tip_id
    )
    return replace(snapshot, operation=operation)


def _navigated(snapshot: LaneSnapshot, event: NavigationEnd) -> LaneSnapshot:
    after = replace(snapshot, operation=None, last_result=event.record, tip_id=event.tip_id)
    return after if event.transcript is None else replace(after, transcript=event.transcript)


def _operation(operation: OperationSnapshot, event: HarnessEvent) -> OperationSnapshot:
    match event:
        case OperationPresence():
            if operation.status == "aborting" or event.operation_id != operation.id:
                return operation if event.driven else replace(operation, streaming_message=None)
            return replace(operation, status="running" if event.driven else "open", streaming_message=None)
        case OperationAbort():
            return replace(operation, status="aborting")
        case MessageStart() | MessageUpdate() | MessageEnd():
            return _message(operation, event)
        case ToolStart() | ToolUpdate() | ToolEnd():
            return _tool(operation, event)
        case ToolSuspended():
            call = SuspendedCallInfo(
                tool_call_id=event.tool_call_id, tool_name=event.tool_name, args=event.args, reason=event.reason, payload=event.payload
            )
            return replace(operation, suspended_calls=(*operation.suspended_calls, call))
        case ToolDecided():
            return replace(operation, suspended_calls=_without(operation.suspended_calls, event.tool_call_id))
        case RetryScheduled():
            retry = RetrySnapshot(
                step=event.step, attempt=event.attempt, max_attempts=event.max_attempts, not_before=event.not_before,
                error_message=event.error_message,
            )  # fmt: skip
            return replace(operation, retry=retry)
        case RetryStart():
            return replace(operation, retry=None)
        case RunSuspend() if event.deferred is not None:
            return replace(operation, deferred=DeferredSnapshot(handle=event.deferred, poll=event.poll))
        case RunResume() if event.poll is not None and operation.deferred is not None:
            return replace(operation, deferred=replace(operation.deferred, poll=event.poll))
        case _:
            return operation


def _message(operation: OperationSnapshot, event: MessageStart | MessageUpdate | MessageEnd) -> OperationSnapshot:
    message = event.message
    if not isinstance(message, AssistantMessage):
        return operation
    if isinstance(event, MessageEnd):
        deferred = operation.deferred if message.stop_reason == "deferred" else None
        return replace(operation, streaming_message=None, deferred=deferred)
    return replace(operation, streaming_message=copy.copy(message))


def _tool(operation: OperationSnapshot, event: ToolStart | ToolUpdate | ToolEnd) -> OperationSnapshot:
    tools = operation.running_tools
    if isinstance(event, ToolStart):
        known = next((tool for tool in tools if tool.tool_call_id == event.tool_call_id), None)
        if known is None:
            started = RunningTool(tool_call_id=event.tool_call_id, tool_name=event.tool_name, args=event.args)
            return replace(operation, running_tools=(*tools, started))
        return replace(operation, running_tools=_changed(tools, event.tool_call_id, partial_result=None))
    if isinstance(event, ToolUpdate):
        return replace(operation, running_tools=_changed(tools, event.tool_call_id, partial_result=event.partial_result))
    changed = _changed(tools, event.tool_call_id, status="settled", partial_result=None)
    return replace(operation, running_tools=changed, suspended_calls=_without(operation.suspended_calls, event.tool_call_id))


def _changed(tools: tuple[RunningTool, ...], call_id: str, **changes: Any) -> tuple[RunningTool, ...]:
    return tuple(replace(tool, **changes) if tool.tool_call_id == call_id else tool for tool in tools)


def _without(calls: tuple[SuspendedCallInfo, ...], call_id: str) -> tuple[SuspendedCallInfo, ...]:
    return tuple(call for call in calls if call.tool_call_id != call_id)
