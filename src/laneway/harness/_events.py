"""The events of a harness: what happened, told after the commit that made it true.

Every event has `type`; `lane` and `operation_id` where they apply; `recovery` on those that a recovering drive tells of work that an
earlier process began. Only `entry_added` means that something is in the history. Events are values: hold on to them, do not change them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from laneway.events import BlockEvent
from laneway.harness.results import OperationError, OperationResult, OperationStatus, SuspendedCallInfo
from laneway.harness.state import CompactionReason, InboxKind
from laneway.messages import AgentMessage, AssistantMessage, DeferredHandle, ToolResult, ToolResultMessage
from laneway.storage.base import Entry, SessionStats, UsageRow


class QueuedItem(Struct, kw_only=True, frozen=True):
    """One queued input as a person may see it: a message, or a custom entry (`custom_type`, `data`)."""

    entry_id: str
    kind: InboxKind
    message: AgentMessage | None = None
    custom_type: str | None = None
    data: Any = None


class _Event(Struct, kw_only=True, frozen=True, tag_field="type", gc=False):
    """Base of all harness events."""

    lane: str | None = None
    operation_id: str | None = None
    recovery: bool = False


# ---------------------------------------------------------------------------------------------------- a run


class RunStart(_Event, kw_only=True, frozen=True, tag="run_start"):
    """A run was accepted; its prompt entries follow."""

    type: ClassVar[Literal["run_start"]] = "run_start"
    started_at: int


class RunResume(_Event, kw_only=True, frozen=True, tag="run_resume"):
    """A suspended run goes on; `poll` is the number of the poll that is made."""

    type: ClassVar[Literal["run_resume"]] = "run_resume"
    poll: int | None = None


class RunSuspend(_Event, kw_only=True, frozen=True, tag="run_suspend"):
    """A run waits for a provider (`deferred`, `poll`) or for a decision (`calls`)."""

    type: ClassVar[Literal["run_suspend"]] = "run_suspend"
    reason: Literal["deferred", "approval"]
    deferred: DeferredHandle | None = None
    calls: tuple[SuspendedCallInfo, ...] = ()
    poll: int = 0


class RunEnd(_Event, kw_only=True, frozen=True, tag="run_end"):
    """A run is over; `record` is what `get_result` gives."""

    type: ClassVar[Literal["run_end"]] = "run_end"
    status: OperationStatus
    error: OperationError | None
    from_tip_id: str | None
    tip_id: str | None
    ended_at: int
    record: OperationResult


class OperationAbort(_Event, kw_only=True, frozen=True, tag="operation_abort"):
    """Cancellation is durable; these messages were taken out of the queues."""

    type: ClassVar[Literal["operation_abort"]] = "operation_abort"
    steer: list[AgentMessage]
    follow_up: list[AgentMessage]


class OperationPresence(_Event, kw_only=True, frozen=True, tag="operation_presence"):
    """A drive of this process began or ended. For watchers only: it tells nothing durable."""

    type: ClassVar[Literal["operation_presence"]] = "operation_presence"
    driven: bool


class TurnStart(_Event, kw_only=True, frozen=True, tag="turn_start"):
    """One assistant response, and all that it asks for, begins."""

    type: ClassVar[Literal["turn_start"]] = "turn_start"
    turn_id: str


class TurnEnd(_Event, kw_only=True, frozen=True, tag="turn_end"):
    """The response and all results are entries."""

    type: ClassVar[Literal["turn_end"]] = "turn_end"
    turn_id: str
    message: AssistantMessage
    tool_results: list[ToolResultMessage]


class MessageStart(_Event, kw_only=True, frozen=True, tag="message_start"):
    """A message begins; an assistant message still grows."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    message: AgentMessage


class MessageUpdate(_Event, kw_only=True, frozen=True, tag="message_update"):
    """The response grew: `event` is the stream's own, `message` the live partial (`copy.copy` it to keep a state)."""

    type: ClassVar[Literal["message_update"]] = "message_update"
    message: AssistantMessage
    event: BlockEvent


class MessageEnd(_Event, kw_only=True, frozen=True, tag="message_end"):
    """The message is final, under this entry id."""

    type: ClassVar[Literal["message_end"]] = "message_end"
    message: AgentMessage
    entry_id: str


class ToolStart(_Event, kw_only=True, frozen=True, tag="tool_start"):
    """A call is taken up. `args` are the model's own, the stored ones where a call is replayed."""

    type: ClassVar[Literal["tool_start"]] = "tool_start"
    turn_id: str
    tool_call_id: str
    tool_name: str
    args: Any


class ToolUpdate(_Event, kw_only=True, frozen=True, tag="tool_update"):
    """A running tool reports progress."""

    type: ClassVar[Literal["tool_update"]] = "tool_update"
    turn_id: str
    tool_call_id: str
    tool_name: str
    args: Any
    partial_result: ToolResult


class ToolEnd(_Event, kw_only=True, frozen=True, tag="tool_end"):
    """A call is settled, and its result is durable."""

    type: ClassVar[Literal["tool_end"]] = "tool_end"
    turn_id: str
    tool_call_id: str
    tool_name: str
    result: ToolResult
    is_error: bool
    terminate: bool


class ToolSuspended(_Event, kw_only=True, frozen=True, tag="tool_suspended"):
    """A call waits for `approve` or `reject`."""

    type: ClassVar[Literal["tool_suspended"]] = "tool_suspended"
    tool_call_id: str
    tool_name: str
    args: Any
    reason: str
    payload: Any = None


class ToolDecided(_Event, kw_only=True, frozen=True, tag="tool_decided"):
    """A suspended call was approved or rejected."""

    type: ClassVar[Literal["tool_decided"]] = "tool_decided"
    tool_call_id: str
    approved: bool
    reason: str | None = None


# ---------------------------------------------------------------------------------------------------- history, queues, retries


class EntryAdded(_Event, kw_only=True, frozen=True, tag="entry_added"):
    """The entry is in the history, with the seq and timestamp of its commit."""

    type: ClassVar[Literal["entry_added"]] = "entry_added"
    entry: Entry


class QueueUpdate(_Event, kw_only=True, frozen=True, tag="queue_update"):
    """The whole queue of the lane, as it is now."""

    type: ClassVar[Literal["queue_update"]] = "queue_update"
    queues: list[QueuedItem]


class RetryScheduled(_Event, kw_only=True, frozen=True, tag="retry_scheduled"):
    """Attempt `attempt` of step `step` will be made `delay` seconds from now, at `not_before` (Unix ms)."""

    type: ClassVar[Literal["retry_scheduled"]] = "retry_scheduled"
    step: str
    attempt: int
    max_attempts: int
    delay: float
    not_before: int
    error_message: str


class RetryStart(_Event, kw_only=True, frozen=True, tag="retry_start"):
    type: ClassVar[Literal["retry_start"]] = "retry_start"
    step: str
    attempt: int


class RetryEnd(_Event, kw_only=True, frozen=True, tag="retry_end"):
    type: ClassVar[Literal["retry_end"]] = "retry_end"
    step: str
    attempt: int
    success: bool
    final_error: str | None = None


class CompactionStart(_Event, kw_only=True, frozen=True, tag="compaction_start"):
    """A compaction begins, as an operation (`manual`) or inside a run."""

    type: ClassVar[Literal["compaction_start"]] = "compaction_start"
    reason: CompactionReason
    started_at: int


class CompactionEnd(_Event, kw_only=True, frozen=True, tag="compaction_end"):
    """A compaction is over. `record` is there if it was an operation of its own."""

    type: ClassVar[Literal["compaction_end"]] = "compaction_end"
    reason: CompactionReason
    status: OperationStatus
    entry_id: str | None
    error: OperationError | None
    ended_at: int
    record: OperationResult | None = None


class NavigationStart(_Event, kw_only=True, frozen=True, tag="navigation_start"):
    type: ClassVar[Literal["navigation_start"]] = "navigation_start"
    target_id: str | None
    started_at: int


class NavigationEnd(_Event, kw_only=True, frozen=True, tag="navigation_end"):
    """A navigation is over. `transcript` is the new path from its newest compaction on, where the tip moved."""

    type: ClassVar[Literal["navigation_end"]] = "navigation_end"
    status: OperationStatus
    from_tip_id: str | None
    tip_id: str | None
    error: OperationError | None
    ended_at: int
    record: OperationResult
    transcript: list[Entry] | None = None


# ---------------------------------------------------------------------------------------------------- everything else


class LaneCreated(_Event, kw_only=True, frozen=True, tag="lane_created"):
    """A lane exists now, at entry `at`."""

    type: ClassVar[Literal["lane_created"]] = "lane_created"
    at: str | None


class ValueUpdate(_Event, kw_only=True, frozen=True, tag="value_update"):
    """Metadata changed: the session's name, or the label of an entry."""

    type: ClassVar[Literal["value_update"]] = "value_update"
    value: Literal["session_name", "entry_label"]
    text: str | None
    entry_id: str | None = None


class ConfigUpdate(_Event, kw_only=True, frozen=True, tag="config_update"):
    """A setting changed: of the lane (durable) or of the harness (this process only; `lane` is None)."""

    type: ClassVar[Literal["config_update"]] = "config_update"
    property: str
    value: Any
    previous: Any


class UsageRecorded(_Event, kw_only=True, frozen=True, tag="usage"):
    """A row was added to the ledger; `totals` are the session's after it."""

    type: ClassVar[Literal["usage"]] = "usage"
    row: UsageRow
    totals: SessionStats


class StatsUpdate(_Event, kw_only=True, frozen=True, tag="stats_update"):
    """Messages were added to the session, by whichever lane. For watchers only."""

    type: ClassVar[Literal["stats_update"]] = "stats_update"
    totals: SessionStats


class HandlerError(_Event, kw_only=True, frozen=True, tag="handler_error"):
    """A hook or a listener raised (or took too long); the others were not disturbed."""

    type: ClassVar[Literal["handler_error"]] = "handler_error"
    kind: Literal["hook", "event"]
    name: str
    error: str


class Fault(_Event, kw_only=True, frozen=True, tag="fault"):
    """The harness stopped. What was committed is kept; reopen the session to go on."""

    type: ClassVar[Literal["fault"]] = "fault"
    code: str
    message: str


class Resnapshot(_Event, kw_only=True, frozen=True, tag="resnapshot"):
    """For a watcher only: it fell so far behind that events were dropped; `snapshot` replaces its replica."""

    type: ClassVar[Literal["resnapshot"]] = "resnapshot"
    snapshot: Any


FOR_WATCHERS = ("operation_presence", "stats_update", "resnapshot")
"""Types that tell nothing durable and are there to keep a replica exact; `events.on` does not deliver them."""

HarnessEvent: TypeAlias = (
    RunStart | RunResume | RunSuspend | RunEnd | OperationAbort | OperationPresence | TurnStart | TurnEnd
    | MessageStart | MessageUpdate | MessageEnd | ToolStart | ToolUpdate | ToolEnd | ToolSuspended | ToolDecided
    | EntryAdded | QueueUpdate | RetryScheduled | RetryStart | RetryEnd | CompactionStart | CompactionEnd
    | NavigationStart | NavigationEnd | LaneCreated | ValueUpdate | ConfigUpdate | UsageRecorded | StatsUpdate | HandlerError | Fault | Resnapshot
)  # fmt: skip
