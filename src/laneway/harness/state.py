"""WHAT is durable: a lane, its one operation, and the operation's position, as frozen data.

An operation is at exactly one of thirteen **leaves**. A leaf holds all that the next step needs, so a process that died
is described completely by the last commit. The tag `at` is the leaf's name and the address of its procedure.

This module is pure: it imports no I/O and reads no clock.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from laneway.llm.base import ThinkingLevel
from laneway.tools.base import ExecutionMode, Replay

QueueMode = Literal["all", "one-at-a-time"]
InboxKind = Literal["steer", "follow_up", "next_run", "write"]
OperationKind = Literal["run", "compaction", "navigation"]
CompactionReason = Literal["manual", "threshold", "overflow"]


class _Data(Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of everything that is stored: strict when read, small when written."""


# ---------------------------------------------------------------------------------------------------- the lane


class ModelRef(_Data, kw_only=True, frozen=True):
    """Names a model; whether this process knows it is found out when it is used."""

    provider: str
    model_id: str

    @property
    def spec(self) -> str:
        """`provider/model_id`."""
        return f"{self.provider}/{self.model_id}"


class LaneConfiguration(_Data, kw_only=True, frozen=True):
    """What a lane asks with. `active_tools` None means every tool that the process has."""

    model: ModelRef
    thinking_level: ThinkingLevel = "off"
    active_tools: list[str] | None = None


class InboxItem(_Data, kw_only=True, frozen=True):
    """A queued input: the id that its entry will have, and when it may be placed. Its payload is in `pending.entry`."""

    entry_id: str
    kind: InboxKind


LISTED = 64
"""So many queued items are listed in the lane's record. Those behind them say themselves to which queue they belong, so that a long
queue costs no more per item than a short one."""


class LaneRecord(_Data, kw_only=True, frozen=True):
    """The stored part of a lane beside its tip and configuration (`lane.state`).

    `inbox` are the first `LISTED` items; with `more`, the others are found by their payloads, in the order in which they were written.
    """

    current_operation_id: str | None = None
    last_operation_id: str | None = None
    inbox: list[InboxItem] = field(default_factory=list[InboxItem])
    more: bool = False


# ---------------------------------------------------------------------------------------------------- meta


class CompactionSettings(_Data, kw_only=True, frozen=True):
    """When and how a lane compacts; token counts.

    A threshold compaction is due when the context is larger than the model's window minus `reserve_tokens`; about
    `keep_recent_tokens` stay as they are. `enabled=False` means neither threshold nor overflow compaction; `compact()` still works.
    """

    enabled: bool = True
    reserve_tokens: int = 16_384
    keep_recent_tokens: int = 20_000


class Limits(_Data, kw_only=True, frozen=True):
    """`LoopLimits` as captured by an operation. `deadline` is seconds after its start."""

    max_turns: int | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    max_cost: float | None = None
    deadline: float | None = None


class Settings(_Data, kw_only=True, frozen=True):
    """What an operation captured from the harness when it was accepted; it holds to its end."""

    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    steering_mode: QueueMode = "all"
    follow_up_mode: QueueMode = "all"
    tool_execution: ExecutionMode = "parallel"
    limits: Limits | None = None


class RunIntent(_Data, kw_only=True, frozen=True, tag_field="kind", tag="run"):
    """Answer the prompt."""

    kind: ClassVar[Literal["run"]] = "run"
    prompt_entry_ids: list[str] = field(default_factory=list[str])


class CompactionIntent(_Data, kw_only=True, frozen=True, tag_field="kind", tag="compaction"):
    """Replace the older part of the lane's context by a summary."""

    kind: ClassVar[Literal["compaction"]] = "compaction"
    instructions: str | None = None


class NavigationIntent(_Data, kw_only=True, frozen=True, tag_field="kind", tag="navigation"):
    """Move the lane's tip, with or without a summary of what is left behind."""

    kind: ClassVar[Literal["navigation"]] = "navigation"
    target_id: str | None
    summarize: bool = False
    label: str | None = None
    instructions: str | None = None


Intent: TypeAlias = RunIntent | CompactionIntent | NavigationIntent


class OperationMeta(_Data, kw_only=True, frozen=True):
    """Identity and intent of an operation; never changes. `source_tip_id` is the tip before acceptance."""

    operation_id: str
    lane: str
    source_tip_id: str | None
    started_at: int
    intent: Intent
    settings: Settings = field(default_factory=Settings)


# ---------------------------------------------------------------------------------------------------- parts of leaves


class Spent(_Data, kw_only=True, frozen=True):
    """What the run has used so far, for its limits.

    `truncated` recognises the calls of a response that the output limit cut off, `repeats` counts how often in a row the same came.
    """

    turns: int = 0
    tool_calls: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    truncated: str | None = None
    repeats: int = 0


class NeedAssistant(_Data, kw_only=True, frozen=True, tag_field="type", tag="need_assistant"):
    """The transcript asks for a response. The flag says that an overflow was already answered by a compaction."""

    type: ClassVar[Literal["need_assistant"]] = "need_assistant"
    overflow_recovery_used: bool = False


class MayFinish(_Data, kw_only=True, frozen=True, tag_field="type", tag="may_finish"):
    """The model is done unless there is more input."""

    type: ClassVar[Literal["may_finish"]] = "may_finish"


Continuation: TypeAlias = NeedAssistant | MayFinish


class CheckpointPayload(_Data, kw_only=True, frozen=True):
    """A boundary between steps: what is wanted next, and the entry that asks for it."""

    continuation: Continuation
    trigger_entry_id: str | None


class Retry(_Data, kw_only=True, frozen=True):
    """A retry policy as captured by one step; milliseconds."""

    max_attempts: int = 1
    base_delay_ms: int = 1_000
    max_delay_ms: int = 60_000


class GenerationContext(_Data, kw_only=True, frozen=True):
    """All that one assistant step captured: every attempt of it asks with the same."""

    step_id: str
    trigger_entry_id: str | None
    configuration: LaneConfiguration
    stream_options: dict[str, Any] = field(default_factory=dict[str, Any])
    retry: Retry = field(default_factory=Retry)
    overflow_recovery_used: bool = False


class _Call(_Data, kw_only=True, frozen=True, tag_field="status"):
    """One tool call. `source_index` counts all blocks of the message. `result_entry_id` doubles as invocation id and idempotency key."""

    source_index: int
    result_entry_id: str


class PlannedCall(_Call, kw_only=True, frozen=True, tag="planned"):
    """Nothing has happened yet."""

    status: ClassVar[Literal["planned"]] = "planned"


class SuspendedCall(_Call, kw_only=True, frozen=True, tag="suspended"):
    """A `before_tool` handler wants a decision; the arguments are stored."""

    status: ClassVar[Literal["suspended"]] = "suspended"
    reason: str
    payload: Any = None


class ApprovedCall(_Call, kw_only=True, frozen=True, tag="approved"):
    """Decided: run it with the stored arguments."""

    status: ClassVar[Literal["approved"]] = "approved"


class RejectedCall(_Call, kw_only=True, frozen=True, tag="rejected"):
    """Decided: do not run it."""

    status: ClassVar[Literal["rejected"]] = "rejected"
    reason: str


class PendingCall(_Call, kw_only=True, frozen=True, tag="effect_pending"):
    """The tool may be running, or may have run. `as_asked`: its arguments are those of the response, and are not stored once more."""

    status: ClassVar[Literal["effect_pending"]] = "effect_pending"
    replay: Replay = "never"
    as_asked: bool = False


class ReadyCall(_Call, kw_only=True, frozen=True, tag="outcome_ready"):
    """The result is stored in `pending.entry` and waits for the results before it."""

    status: ClassVar[Literal["outcome_ready"]] = "outcome_ready"
    terminate: bool = False


class CompletedCall(_Call, kw_only=True, frozen=True, tag="completed"):
    """The result is an entry."""

    status: ClassVar[Literal["completed"]] = "completed"
    terminate: bool = False


Call: TypeAlias = PlannedCall | SuspendedCall | ApprovedCall | RejectedCall | PendingCall | ReadyCall | CompletedCall


class Batch(_Data, kw_only=True, frozen=True):
    """The tool calls of one response. `interrupted`: a steering message that could not wait has stopped it."""

    assistant_entry_id: str
    turn_id: str
    configuration: LaneConfiguration
    calls: list[Call]
    interrupted: bool = False


class ResumeCheckpoint(_Data, kw_only=True, frozen=True, tag_field="type", tag="resume_checkpoint"):
    """After the summary the run goes on from here."""

    type: ClassVar[Literal["resume_checkpoint"]] = "resume_checkpoint"
    resume_after: CheckpointPayload


class Finish(_Data, kw_only=True, frozen=True, tag_field="type", tag="finish"):
    """After the summary the operation is over."""

    type: ClassVar[Literal["finish"]] = "finish"


class CommitNavigation(_Data, kw_only=True, frozen=True, tag_field="type", tag="commit_navigation"):
    """After the summary the tip moves."""

    type: ClassVar[Literal["commit_navigation"]] = "commit_navigation"
    target_id: str | None
    label: str | None = None


Boundary: TypeAlias = ResumeCheckpoint | Finish | CommitNavigation


class Task(_Data, kw_only=True, frozen=True):
    """A summary to be made; its inputs are in `op.preparation`. `reason` is None for a branch summary."""

    task_id: str
    boundary: Boundary
    reason: CompactionReason | None = None
    instructions: str | None = None


class SummaryContext(_Data, kw_only=True, frozen=True):
    """What every attempt of a summary asks with."""

    configuration: LaneConfiguration
    stream_options: dict[str, Any] = field(default_factory=dict[str, Any])
    retry: Retry = field(default_factory=Retry)


class SummaryRequest(_Data, kw_only=True, frozen=True):
    """The one nested request that may be in flight."""

    index: int
    usage_id: str


# ---------------------------------------------------------------------------------------------------- the thirteen leaves


class DrainedPayloads(_Data, kw_only=True, frozen=True):
    """The messages that an abort took out of the queues, as they were stored."""

    steer: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    follow_up: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class _Leaf(_Data, kw_only=True, frozen=True, tag_field="at"):
    """What every leaf carries on: whether cancellation was asked for, the newest response, and what was spent."""

    cancel_requested_at: int | None = None
    drained: DrainedPayloads | None = None
    latest_assistant_entry_id: str | None = None
    spent: Spent = field(default_factory=Spent)


class Starting(_Leaf, kw_only=True, frozen=True, tag="starting"):
    """Accepted; `before_run` has not been asked."""

    at: ClassVar[Literal["starting"]] = "starting"


class Checkpoint(_Leaf, kw_only=True, frozen=True, tag="checkpoint"):
    """Between steps: take queued input, consider compaction, decide the end."""

    at: ClassVar[Literal["checkpoint"]] = "checkpoint"
    continuation: Continuation
    trigger_entry_id: str | None

    @property
    def payload(self) -> CheckpointPayload:
        """The part that a compaction in between must bring back."""
        return CheckpointPayload(continuation=self.continuation, trigger_entry_id=self.trigger_entry_id)


class AssistantReady(_Leaf, kw_only=True, frozen=True, tag="assistant.ready"):
    """A request may be prepared."""

    at: ClassVar[Literal["assistant.ready"]] = "assistant.ready"
    context: GenerationContext
    next_attempt: int = 1


class AssistantEffectPending(_Leaf, kw_only=True, frozen=True, tag="assistant.effect_pending"):
    """A request may have been sent; its outcome will have these ids. It is never sent again."""

    at: ClassVar[Literal["assistant.effect_pending"]] = "assistant.effect_pending"
    context: GenerationContext
    attempt: int
    response_entry_id: str
    usage_id: str
    intended_output_limit: int = 0
    context_window: int = 0


class AssistantRetryWait(_Leaf, kw_only=True, frozen=True, tag="assistant.retry_wait"):
    """The next attempt is due at `not_before` (Unix ms), `delay_ms` after it was scheduled."""

    at: ClassVar[Literal["assistant.retry_wait"]] = "assistant.retry_wait"
    context: GenerationContext
    next_attempt: int
    not_before: int
    delay_ms: int
    error_message: str


class Tools(_Leaf, kw_only=True, frozen=True, tag="tools"):
    """A batch of tool calls is being worked off."""

    at: ClassVar[Literal["tools"]] = "tools"
    batch: Batch


class DeferredSuspended(_Leaf, kw_only=True, frozen=True, tag="deferred.suspended"):
    """The provider owns the work; the handle is in the source entry."""

    at: ClassVar[Literal["deferred.suspended"]] = "deferred.suspended"
    step_id: str
    source_entry_id: str
    poll: int
    configuration: LaneConfiguration
    stream_options: dict[str, Any] = field(default_factory=dict[str, Any])


class DeferredEffectPending(_Leaf, kw_only=True, frozen=True, tag="deferred.effect_pending"):
    """A poll may be in flight."""

    at: ClassVar[Literal["deferred.effect_pending"]] = "deferred.effect_pending"
    step_id: str
    source_entry_id: str
    poll: int
    configuration: LaneConfiguration
    stream_options: dict[str, Any] = field(default_factory=dict[str, Any])
    response_entry_id: str
    usage_id: str


class SummaryDeciding(_Leaf, kw_only=True, frozen=True, tag="summary.deciding"):
    """The inputs are stored; the hook that may decline or supply has not been asked."""

    at: ClassVar[Literal["summary.deciding"]] = "summary.deciding"
    task: Task


class SummaryReady(_Leaf, kw_only=True, frozen=True, tag="summary.ready"):
    """An attempt may start."""

    at: ClassVar[Literal["summary.ready"]] = "summary.ready"
    task: Task
    context: SummaryContext
    next_attempt: int = 1


class SummaryEffectPending(_Leaf, kw_only=True, frozen=True, tag="summary.effect_pending"):
    """An attempt is under way; `request` is there only while a request may be in flight. `usage_ids` are this attempt's so far."""

    at: ClassVar[Literal["summary.effect_pending"]] = "summary.effect_pending"
    task: Task
    context: SummaryContext
    attempt: int
    request: SummaryRequest | None = None
    usage_ids: list[str] = field(default_factory=list[str])


class SummaryRetryWait(_Leaf, kw_only=True, frozen=True, tag="summary.retry_wait"):
    """As `assistant.retry_wait`."""

    at: ClassVar[Literal["summary.retry_wait"]] = "summary.retry_wait"
    task: Task
    context: SummaryContext
    next_attempt: int
    not_before: int
    delay_ms: int
    error_message: str


class NavigationReadyToCommit(_Leaf, kw_only=True, frozen=True, tag="navigation.ready_to_commit"):
    """The tip is to move; nothing needs to be summarised."""

    at: ClassVar[Literal["navigation.ready_to_commit"]] = "navigation.ready_to_commit"
    target_id: str | None
    label: str | None = None


Leaf: TypeAlias = (
    Starting
    | Checkpoint
    | AssistantReady
    | AssistantEffectPending
    | AssistantRetryWait
    | Tools
    | DeferredSuspended
    | DeferredEffectPending
    | SummaryDeciding
    | SummaryReady
    | SummaryEffectPending
    | SummaryRetryWait
    | NavigationReadyToCommit
)
SummaryLeaf: TypeAlias = SummaryDeciding | SummaryReady | SummaryEffectPending | SummaryRetryWait


END = "end"
NEXT: dict[str, frozenset[str]] = {
    at: frozenset(following.split())
    for at, following in {
        "starting": "checkpoint assistant.ready assistant.effect_pending summary.deciding end",
        "checkpoint": "assistant.ready assistant.effect_pending summary.deciding end",
        "assistant.ready": "assistant.effect_pending end",
        "assistant.effect_pending": "checkpoint tools assistant.retry_wait deferred.suspended summary.deciding end",
        "assistant.retry_wait": "assistant.ready assistant.effect_pending end",
        "tools": "tools checkpoint assistant.ready assistant.effect_pending",
        "deferred.suspended": "deferred.effect_pending end",
        "deferred.effect_pending": "deferred.effect_pending deferred.suspended checkpoint tools end",
        "summary.deciding": "summary.ready assistant.ready assistant.effect_pending checkpoint end",
        "summary.ready": "summary.effect_pending end",
        "summary.effect_pending": "summary.effect_pending summary.retry_wait assistant.ready assistant.effect_pending checkpoint end",
        "summary.retry_wait": "summary.ready end",
        "navigation.ready_to_commit": "end",
    }.items()
}
"""Where an operation can go from each leaf in one commit. Every other step is a broken invariant; the diagram in docs/harness is made of this."""


# ---------------------------------------------------------------------------------------------------- in memory


class Operation(Struct, kw_only=True, frozen=True):
    """The open operation of a lane: who it is and where it stands."""

    meta: OperationMeta
    state: Leaf

    @property
    def id(self) -> str:
        return self.meta.operation_id

    @property
    def cancelled(self) -> bool:
        """Whether cancellation is durable."""
        return self.state.cancel_requested_at is not None


class Lane(Struct, kw_only=True, frozen=True):
    """A lane as memory mirrors it: always equal to what a restore would read."""

    tip_id: str | None
    configuration: LaneConfiguration
    inbox: tuple[InboxItem, ...] = ()
    last_operation_id: str | None = None
    operation: Operation | None = None

    def at(self, state: Leaf) -> Lane:
        """Return the lane with its operation moved to another leaf."""
        assert self.operation is not None
        return msgspec.structs.replace(self, operation=Operation(meta=self.operation.meta, state=state))

    def record(self) -> LaneRecord:
        """Return what `lane.state` must hold."""
        return LaneRecord(
            current_operation_id=self.operation.id if self.operation else None,
            last_operation_id=self.last_operation_id,
            inbox=list(self.inbox[:LISTED]),
            more=len(self.inbox) > LISTED,
        )


def carried(state: Leaf) -> dict[str, Any]:
    """Return the fields that every leaf hands on to the next."""
    return {
        "cancel_requested_at": state.cancel_requested_at,
        "drained": state.drained,
        "latest_assistant_entry_id": state.latest_assistant_entry_id,
        "spent": state.spent,
    }


def mismatch(meta: OperationMeta, state: Leaf) -> str | None:
    """Say why this intent cannot be at this leaf; None if it can."""
    intent = meta.intent
    if isinstance(state, (SummaryDeciding, SummaryReady, SummaryEffectPending, SummaryRetryWait)):
        return _boundary_mismatch(intent, state.task)
    if isinstance(intent, RunIntent):
        return f"a run cannot be at {state.at}" if isinstance(state, NavigationReadyToCommit) else None
    if isinstance(intent, NavigationIntent) and not intent.summarize and isinstance(state, NavigationReadyToCommit):
        same = (state.target_id, state.label) == (intent.target_id, intent.label)
        return None if same else "the navigation's target or label differs from its intent"
    return f"a {intent.kind} cannot be at {state.at}"


def _boundary_mismatch(intent: Intent, task: Task) -> str | None:
    boundary = task.boundary
    if isinstance(intent, RunIntent):
        fits = isinstance(boundary, ResumeCheckpoint)
    elif isinstance(intent, CompactionIntent):
        fits = isinstance(boundary, Finish)
    else:
        fits = (
            intent.summarize
            and isinstance(boundary, CommitNavigation)
            and (boundary.target_id, boundary.label, task.instructions) == (intent.target_id, intent.label, intent.instructions)
        )
    return None if fits else f"a {intent.kind} cannot have a summary that ends in {boundary.type}"
