"""Layer 3: the durable harness. See README.md in this folder for the map."""

from __future__ import annotations

from laneway._effects.decisions import Block, PatchResult, ReplaceArgs
from laneway.harness._environment import Resources
from laneway.harness._events import HarnessEvent
from laneway.harness._hooks import (
    ContextPatch,
    Decline,
    FollowUp,
    Inject,
    PayloadPatch,
    RequestPatch,
    ResponsePatch,
    Supply,
    Suspend,
)
from laneway.harness._observe import WatchHandle
from laneway.harness._snapshot import (
    LaneExecution,
    LaneInfo,
    LaneSnapshot,
    OperationInfo,
    OperationSnapshot,
    SessionSnapshot,
    apply_event,
)
from laneway.harness.harness import AgentHarness, Attached
from laneway.harness.lane import AgentLane
from laneway.harness.results import (
    Aborting,
    Admission,
    Closed,
    Compact,
    Drained,
    Err,
    InvalidMessage,
    InvalidNavigation,
    LaneBusy,
    Navigate,
    NoActiveOperation,
    NothingToCompact,
    NotSuspended,
    Ok,
    OpenOperation,
    OperationError,
    OperationMismatch,
    OperationResult,
    Prompt,
    Refused,
    Settled,
    Skill,
    SuspendedCallInfo,
    Template,
    UnknownEntry,
    UnknownSkill,
    UnknownTemplate,
    Waiting,
)
from laneway.harness.state import CompactionSettings
from laneway.llm._retry import RetryPolicy

__all__ = [
    "Aborting", "Admission", "AgentHarness", "AgentLane", "Attached", "Block", "Closed", "Compact", "CompactionSettings", "ContextPatch",
    "Decline", "Drained", "Err", "FollowUp", "HarnessEvent", "Inject", "InvalidMessage", "InvalidNavigation", "LaneBusy", "LaneExecution",
    "LaneInfo", "LaneSnapshot", "Navigate", "NoActiveOperation", "NotSuspended", "NothingToCompact", "Ok", "OpenOperation", "OperationError",
    "OperationInfo", "OperationMismatch", "OperationResult", "OperationSnapshot", "PatchResult", "PayloadPatch", "Prompt", "Refused",
    "ReplaceArgs", "RequestPatch", "Resources", "ResponsePatch", "RetryPolicy", "SessionSnapshot", "Settled", "Skill", "Supply", "Suspend",
    "SuspendedCallInfo", "Template", "UnknownEntry", "UnknownSkill", "UnknownTemplate", "Waiting", "WatchHandle", "apply_event",
]  # fmt: skip
