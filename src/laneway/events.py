"""The events of a response as it streams, and the ten events of an agent's run.

`AssistantEvent` is what a model's stream gives. `AgentEvent` is what the loop and `Agent` give; nine of the
assistant events travel inside `MessageUpdate`. Every type has its tag as the readable attribute `type`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from laneway.messages import AgentMessage, AssistantMessage, ToolCall, ToolResult, ToolResultMessage

__all__ = [
    "AgentEnd", "AgentEndReason", "AgentEvent", "AgentStart", "AssistantEvent", "BlockEvent", "MessageEnd", "MessageStart", "MessageUpdate",
    "StreamDone", "StreamError", "StreamStart", "TextDelta", "TextEnd", "TextStart", "ThinkingDelta", "ThinkingEnd", "ThinkingStart",
    "ToolCallDelta", "ToolCallEnd", "ToolCallStart", "ToolExecutionEnd", "ToolExecutionStart", "ToolExecutionUpdate", "TurnEnd", "TurnStart",
]  # fmt: skip


class _Event(Struct, kw_only=True, frozen=True, tag_field="type", gc=False):
    """Base of all events. `gc=False`: an event is never part of a reference cycle."""


# ---------------------------------------------------------------------------------------------------- assistant events


class StreamStart(_Event, kw_only=True, frozen=True, tag="start"):
    """The response begins. `partial` is the live message: it grows as the stream goes on; `copy.copy` it to keep a state."""

    type: ClassVar[Literal["start"]] = "start"
    partial: AssistantMessage


class TextStart(_Event, kw_only=True, frozen=True, tag="text_start"):
    """A block of text begins."""

    type: ClassVar[Literal["text_start"]] = "text_start"
    content_index: int
    partial: AssistantMessage


class TextDelta(_Event, kw_only=True, frozen=True, tag="text_delta"):
    """`delta` is the next piece of the block's text."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    content_index: int
    delta: str
    partial: AssistantMessage


class TextEnd(_Event, kw_only=True, frozen=True, tag="text_end"):
    """`content` is the authoritative full text of the block."""

    type: ClassVar[Literal["text_end"]] = "text_end"
    content_index: int
    content: str
    partial: AssistantMessage


class ThinkingStart(_Event, kw_only=True, frozen=True, tag="thinking_start"):
    """A block of thinking begins."""

    type: ClassVar[Literal["thinking_start"]] = "thinking_start"
    content_index: int
    partial: AssistantMessage


class ThinkingDelta(_Event, kw_only=True, frozen=True, tag="thinking_delta"):
    """`delta` is the next piece of the block's thinking."""

    type: ClassVar[Literal["thinking_delta"]] = "thinking_delta"
    content_index: int
    delta: str
    partial: AssistantMessage


class ThinkingEnd(_Event, kw_only=True, frozen=True, tag="thinking_end"):
    """`content` is the authoritative full thinking of the block."""

    type: ClassVar[Literal["thinking_end"]] = "thinking_end"
    content_index: int
    content: str
    partial: AssistantMessage


class ToolCallStart(_Event, kw_only=True, frozen=True, tag="toolcall_start"):
    """The call's id and name are in `partial.content[content_index]`."""

    type: ClassVar[Literal["toolcall_start"]] = "toolcall_start"
    content_index: int
    partial: AssistantMessage


class ToolCallDelta(_Event, kw_only=True, frozen=True, tag="toolcall_delta"):
    """`delta` is the next piece of the arguments' JSON text."""

    type: ClassVar[Literal["toolcall_delta"]] = "toolcall_delta"
    content_index: int
    delta: str
    partial: AssistantMessage


class ToolCallEnd(_Event, kw_only=True, frozen=True, tag="toolcall_end"):
    """`tool_call` is complete (strictly parsed) but not yet validated against the tool's schema."""

    type: ClassVar[Literal["toolcall_end"]] = "toolcall_end"
    content_index: int
    tool_call: ToolCall
    partial: AssistantMessage


class StreamDone(_Event, kw_only=True, frozen=True, tag="done"):
    """The response ended in `stop`, `length`, `tool_use` or `deferred`. Nothing comes after it."""

    type: ClassVar[Literal["done"]] = "done"
    message: AssistantMessage


class StreamError(_Event, kw_only=True, frozen=True, tag="error"):
    """The response ended in `error` or `aborted`; `message` keeps what had arrived. Nothing comes after it."""

    type: ClassVar[Literal["error"]] = "error"
    message: AssistantMessage


BlockEvent: TypeAlias = (
    TextStart | TextDelta | TextEnd | ThinkingStart | ThinkingDelta | ThinkingEnd | ToolCallStart | ToolCallDelta | ToolCallEnd
)
AssistantEvent: TypeAlias = StreamStart | BlockEvent | StreamDone | StreamError


# ---------------------------------------------------------------------------------------------------- agent events

AgentEndReason = Literal["stop", "ended", "terminated", "error", "aborted", "limit"]


class AgentStart(_Event, kw_only=True, frozen=True, tag="agent_start"):
    """A run begins."""

    type: ClassVar[Literal["agent_start"]] = "agent_start"


class AgentEnd(_Event, kw_only=True, frozen=True, tag="agent_end"):
    """The last event of a run. `messages` are all that the run added, prompts included; `limit` names the limit reached."""

    type: ClassVar[Literal["agent_end"]] = "agent_end"
    messages: list[AgentMessage]
    reason: AgentEndReason
    limit: str | None = None


class TurnStart(_Event, kw_only=True, frozen=True, tag="turn_start"):
    """A turn begins: one assistant response and every tool call it asks for."""

    type: ClassVar[Literal["turn_start"]] = "turn_start"


class TurnEnd(_Event, kw_only=True, frozen=True, tag="turn_end"):
    """A turn is complete; `tool_results` are in the order of the calls."""

    type: ClassVar[Literal["turn_end"]] = "turn_end"
    message: AssistantMessage
    tool_results: list[ToolResultMessage]


class MessageStart(_Event, kw_only=True, frozen=True, tag="message_start"):
    """A message (of any role) begins; an assistant message is still empty."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    message: AgentMessage


class MessageUpdate(_Event, kw_only=True, frozen=True, tag="message_update"):
    """The assistant message grew: `event` is the stream's own event, `message` the live partial."""

    type: ClassVar[Literal["message_update"]] = "message_update"
    message: AssistantMessage
    event: BlockEvent


class MessageEnd(_Event, kw_only=True, frozen=True, tag="message_end"):
    """A message is final and in the transcript."""

    type: ClassVar[Literal["message_end"]] = "message_end"
    message: AgentMessage


class ToolExecutionStart(_Event, kw_only=True, frozen=True, tag="tool_execution_start"):
    """A call is taken up; `args` are the model's own, before any coercion."""

    type: ClassVar[Literal["tool_execution_start"]] = "tool_execution_start"
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]


class ToolExecutionUpdate(_Event, kw_only=True, frozen=True, tag="tool_execution_update"):
    """The running tool reports progress."""

    type: ClassVar[Literal["tool_execution_update"]] = "tool_execution_update"
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    partial_result: ToolResult


class ToolExecutionEnd(_Event, kw_only=True, frozen=True, tag="tool_execution_end"):
    """A call is settled, whatever happened to it."""

    type: ClassVar[Literal["tool_execution_end"]] = "tool_execution_end"
    tool_call_id: str
    tool_name: str
    result: ToolResult
    is_error: bool


AgentEvent: TypeAlias = (
    AgentStart | AgentEnd | TurnStart | TurnEnd | MessageStart | MessageUpdate | MessageEnd
    | ToolExecutionStart | ToolExecutionUpdate | ToolExecutionEnd
)  # fmt: skip
