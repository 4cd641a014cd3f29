"""What a settled response means. Pure: one response, one verdict; the first rule that fits wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from laneway.harness.results import OperationError
from laneway.llm._overflow import is_context_overflow, is_recoverable_length
from laneway.llm._retry import RetryPolicy, is_retryable
from laneway.messages import AssistantMessage, ErrorInfo

CANCELLED = "Cancelled: the response was stopped because the operation was aborted."
OVERFLOW_HINT = (
    "the conversation no longer fits the model's context window, and automatic compaction {why}: "
    "shorten it with compact(), or use a model with a larger window, then prompt again"
)

VerdictKind = Literal["aborted", "compact", "failed", "suspended", "retry", "tools", "done"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`message` is what is stored; `error` is there iff the run fails."""

    kind: VerdictKind
    message: AssistantMessage
    error: OperationError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a verdict depends on beside the response itself.

    `recovery`: the response is rebuilt after a crash. `can_compact`: automatic compaction is on, was not used for this
    prompt, and has something to summarise; otherwise `why_not` says what is in the way.
    """

    cancelled: bool = False
    poll: bool = False
    recovery: bool = False
    attempt: int = 1
    max_attempts: int = 1
    max_delay_ms: int = 60_000
    output_limit: int = 0
    context_window: int = 0
    can_compact: bool = False
    why_not: str = "is off"


def classify(message: AssistantMessage, given: Circumstances) -> Verdict:
    """Return the verdict on a response."""
    if given.cancelled:
        text = message.error_message if message.stop_reason in ("error", "aborted") and message.error_message else CANCELLED
        return Verdict("aborted", msgspec.structs.replace(message, stop_reason="aborted", error_message=text))
    if message.stop_reason == "aborted":
        message = as_error(message, message.error_message or "the provider aborted the response", kind="incomplete")
    if not given.poll and overflowed(message, given):
        return _overflow(message, given)
    if message.stop_reason == "deferred":
        return _deferred(message, given)
    if message.stop_reason == "error":
        return _error(message, given)
    if message.tool_calls:
        return Verdict("tools", message)
    if message.stop_reason == "tool_use":
        return _failed(as_error(message, "the provider ended the response to call a tool, but there is no call in it", kind="protocol"))
    return Verdict("done", message)


def overflowed(message: AssistantMessage, given: Circumstances) -> bool:
    """Whether the response shows that the context is full."""
    if is_context_overflow(message, given.context_window):
        return True
    return is_recoverable_length(message, given.output_limit) and _was_squeezed(message, given)


def _was_squeezed(message: AssistantMessage, given: Circumstances) -> bool:
    """Whether the output stopped below the model's limit because the window was full, as far as the usage tells."""
    if message.usage.total_tokens == 0 or given.context_window <= 0:
        return False
    return message.usage.total_tokens >= given.context_window * 0.99


def _overflow(message: AssistantMessage, given: Circumstances) -> Verdict:
    if message.stop_reason != "error":
        message = as_error(message, "the conversation no longer fits the model's context window", kind="overflow")
    if given.can_compact:
        return Verdict("compact", message)
    text = f"{message.error_message} ({OVERFLOW_HINT.format(why=given.why_not)})"
    return Verdict("failed", message, OperationError(code="assistant_error", message=text))


def _deferred(message: AssistantMessage, given: Circumstances) -> Verdict:
    handle = message.deferred
    if handle is None or not handle.id or (handle.provider, handle.model_id, handle.api) != (message.provider, message.model, message.api):
        return _failed(as_error(message, "the provider deferred the response, but its handle cannot be used", kind="protocol"))
    return Verdict("suspended", message)


def _error(message: AssistantMessage, given: Circumstances) -> Verdict:
    retryable = given.recovery or is_retryable(message, RetryPolicy(max_delay=given.max_delay_ms / 1000))
    if not given.poll and retryable and given.attempt < given.max_attempts:
        return Verdict("retry", message)
    return _failed(message)


def _failed(message: AssistantMessage) -> Verdict:
    details = None if message.error is None else {"kind": message.error.kind, "status": message.error.status}
    error = OperationError(code="assistant_error", message=message.error_message or "the provider gave no reason", details=details)
    return Verdict("failed", message, error)


def as_error(message: AssistantMessage, text: str, *, kind: Literal["overflow", "protocol", "incomplete", "configuration"]) -> AssistantMessage:
    """Return the message as one that failed."""
    return msgspec.structs.replace(message, stop_reason="error", error_message=text, error=ErrorInfo(kind=kind), deferred=None)
