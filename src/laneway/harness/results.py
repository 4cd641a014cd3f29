"""What the harness answers: values for what was done, values for what was refused, records of what is over.

`accept`, `drive` and `request_abort` return `Ok` or `Err`; the conveniences (`prompt`, `compact`, …) raise the same refusals.
A refusal changes nothing. Faults are exceptions of another kind: see `laneway.errors.HarnessFault`.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from laneway.errors import DuplicateToolResult, HarnessClosed, HarnessError
from laneway.harness.state import OperationKind
from laneway.messages import AgentMessage, DeferredHandle, ImageContent, decode_message, encode

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class Ok(Struct, Generic[T], frozen=True):
    """It was done; `value` says what."""

    value: T

    @property
    def ok(self) -> Literal[True]:
        return True

    def unwrap(self) -> T:
        """Return the value."""
        return self.value


class Err(Struct, Generic[E], frozen=True):
    """It was refused; nothing changed. `error` is also an exception."""

    error: E

    @property
    def ok(self) -> Literal[False]:
        return False

    def unwrap(self) -> NoReturn:
        """Raise the error."""
        raise self.error


# ---------------------------------------------------------------------------------------------------- refusals


class Refused(HarnessError):
    """Base of what the harness may refuse. Nothing was written."""


class LaneBusy(Refused):
    """The lane has an open operation: steer it, abort it, or drive it to its end first."""

    def __init__(self, *, lane: str, operation_id: str, kind: OperationKind) -> None:
        super().__init__(f"lane {lane!r} is busy with {kind} {operation_id}: steer() or follow_up() it, abort() it, or resume() it to its end")
        self.lane, self.operation_id, self.kind = lane, operation_id, kind


InvalidReason = Literal["empty", "pending_assistant", "images_with_non_user", "unknown_role", "duplicate_tool_result"]


class InvalidMessage(Refused):
    """The input cannot be queued or accepted; `reason` is a code."""

    _TEXTS: dict[str, str] = {  # noqa: RUF012 - a constant
        "empty": "the input is empty and nothing else is queued",
        "pending_assistant": "an assistant message that still streams cannot be stored; wait for its end",
        "images_with_non_user": "images can be attached to text or to a user message only",
        "unknown_role": "the message's role is not known: call register_message() for its type first",
        "duplicate_tool_result": "a tool call has exactly one result",
    }

    def __init__(self, reason: InvalidReason, where: str = "") -> None:
        super().__init__(f"{where}: {self._TEXTS[reason]}" if where else self._TEXTS[reason])
        self.reason: InvalidReason = reason


class DuplicateResult(InvalidMessage, DuplicateToolResult):
    """The input holds a tool result whose call has one, or is about to get it. Also a `DuplicateToolResult`."""

    def __init__(self, call_id: str, where: str) -> None:
        super().__init__("duplicate_tool_result", f"tool call {call_id} cannot be answered again, {where}")
        self.call_id = call_id


class UnknownSkill(Refused):
    """No skill of this name in the harness's resources."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"there is no skill {name!r}; known: {', '.join(known) or 'none'}")
        self.name = name


class UnknownTemplate(Refused):
    """No prompt template of this name in the harness's resources."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"there is no prompt template {name!r}; known: {', '.join(known) or 'none'}")
        self.name = name


class NothingToCompact(Refused):
    """The lane's context has nothing that a summary could replace."""

    def __init__(self, lane: str, why: str) -> None:
        super().__init__(f"lane {lane!r} has nothing to compact: {why}")
        self.lane = lane


class InvalidNavigation(Refused):
    """The navigation makes no sense: an unknown target, or a label or summary where the target is the root."""


class UnknownTarget(InvalidNavigation, LookupError):
    """There is no such entry in the session, so no lane can begin there or go there."""


class OperationMismatch(Refused):
    """The lane is not at this operation, and no record of it exists (or it is over already)."""

    def __init__(self, *, expected: str, current: str | None, last: str | None) -> None:
        now = f"its operation is {current}" if current else "it has no open operation"
        super().__init__(f"operation {expected} is not open on this lane: {now} (last: {last or 'none'})")
        self.expected, self.current, self.last = expected, current, last


class NoActiveOperation(Refused):
    """There is nothing to abort or resume."""

    def __init__(self, lane: str) -> None:
        super().__init__(f"lane {lane!r} has no open operation")
        self.lane = lane


class NothingToResume(NoActiveOperation):
    """There is nothing to go on with: the last operation is over, or there never was one."""


class NotSuspended(Refused):
    """There is no call of this id that waits for a decision."""

    def __init__(self, lane: str, call_id: str) -> None:
        super().__init__(f"lane {lane!r} has no suspended call {call_id!r}: it was decided already, or never asked")
        self.lane, self.call_id = lane, call_id


class Closed(HarnessClosed, Refused):
    """The harness was closed."""

    def __init__(self) -> None:
        super().__init__("the harness is closed; open the session again to go on")


# ---------------------------------------------------------------------------------------------------- requests


class Prompt(Struct, frozen=True):
    """Start a run with an input: text, a message, or several. `images` go with text or one user message."""

    input: str | AgentMessage | list[AgentMessage]
    images: list[ImageContent] | None = None


class Skill(Struct, frozen=True):
    """Start a run with a skill of the harness's resources, `extra` after it."""

    name: str
    extra: str | None = None


class Template(Struct, frozen=True):
    """Start a run with a prompt template of the harness's resources."""

    name: str
    args: tuple[str, ...] | list[str] = ()


class Compact(Struct, frozen=True):
    """Summarise the older part of the lane's context."""

    instructions: str | None = None


class Navigate(Struct, frozen=True):
    """Move the tip to `target_id` (None: before the first entry)."""

    target_id: str | None
    summarize: bool = False
    label: str | None = None
    instructions: str | None = None


Request: TypeAlias = Prompt | Skill | Template | Compact | Navigate


# ---------------------------------------------------------------------------------------------------- answers


class Admission(Struct, kw_only=True, frozen=True):
    """The request is durable. Nothing runs until somebody drives it."""

    operation_id: str
    kind: OperationKind
    started_at: int


class OperationError(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Why an operation failed; `code` is stable."""

    code: str
    message: str
    details: Any = None


class Drained(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What an abort took out of the queues, so that nothing typed is lost."""

    steer: list[Any] = field(default_factory=list[Any])
    follow_up: list[Any] = field(default_factory=list[Any])

    def __bool__(self) -> bool:
        return bool(self.steer or self.follow_up)


OperationStatus = Literal["completed", "declined", "aborted", "failed"]


class OperationResult(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The record of an operation that is over; written once, kept for ever. `error` is set iff it failed.

    `from_tip_id` is the tip before it was accepted. `limit` names the limit that ended a run. Times are Unix ms.
    """

    operation_id: str
    kind: OperationKind
    status: OperationStatus
    from_tip_id: str | None
    tip_id: str | None
    started_at: int
    ended_at: int
    error: OperationError | None = None
    limit: str | None = None
    drained: Drained | None = None


class SuspendedCallInfo(Struct, kw_only=True, frozen=True):
    """A tool call that waits for `approve` or `reject`."""

    tool_call_id: str
    tool_name: str
    args: Any
    reason: str
    payload: Any = None


class Settled(Struct, kw_only=True, frozen=True):
    """The operation is over."""

    record: OperationResult


class Waiting(Struct, kw_only=True, frozen=True):
    """The operation waits, and nothing but another `drive` will go on with it.

    `not_before` (Unix ms) is when a retry is due; `deferred` names the response that a provider completes; `calls` are
    the ones that want a decision.
    """

    reason: Literal["retry", "deferred", "approval"]
    operation_id: str
    not_before: int | None = None
    deferred: DeferredHandle | None = None
    calls: tuple[SuspendedCallInfo, ...] = ()

    @property
    def status(self) -> Literal["waiting"]:
        return "waiting"


DriveOutcome: TypeAlias = Settled | Waiting


class Aborting(Struct, kw_only=True, frozen=True):
    """Cancellation is durable. `steer` and `follow_up` are the messages taken out of the queues.

    `result` is there after `lane.abort()`, which also waits for the end.
    """

    operation_id: str
    newly_requested: bool
    steer: list[AgentMessage]
    follow_up: list[AgentMessage]
    result: OperationResult | None = None


class OpenOperation(Struct, kw_only=True, frozen=True):
    """An operation that an earlier process left open; drive it, abort it, or leave it."""

    lane: str
    operation_id: str
    kind: OperationKind
    started_at: int
    aborting: bool = False


def read_result(value: dict[str, Any]) -> OperationResult:
    """Decode a stored record, drained messages of any registered role included."""
    record = msgspec.convert(value, OperationResult)
    if record.drained is None:
        return record
    drained = Drained(
        steer=[decode_message(encode(message)) for message in record.drained.steer],
        follow_up=[decode_message(encode(message)) for message in record.drained.follow_up],
    )
    return msgspec.structs.replace(record, drained=drained)
