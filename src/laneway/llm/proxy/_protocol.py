"""What is on the wire between proxy and client, version 2.

`POST {url}/api/stream` with a bearer token and `{"version": 2, "model": {"provider", "id"}, "options": {…}, "messages": […]}`; messages are
stored messages (`laneway.messages`). A refusal is an HTTP status with `{"error": "…"}`. The answer is server-sent events, one frame
each; comments keep the connection alive:

- `start`: version, api, provider, model, thinking_level; whose signatures the response has.
- `text_start`, `thinking_start` (with its placeholder if redacted), `toolcall_start` (id, name): content_index. `*_delta`: delta.
- `text_end`, `thinking_end`: content, signature, redacted; what they say counts. `toolcall_end`: the whole call.
- `done`, `error`: the final message. One of them is last; without it the response is incomplete.

Frames of unknown types are passed over, so that a later version can add some.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from laneway.events import (
    AssistantEvent,
    StreamDone,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
)
from laneway.llm.base import CacheRetention, StreamOptions, ThinkingLevel, encode_json
from laneway.messages import AssistantMessage, Message, TextContent, ThinkingContent, ToolCall, encode

VERSION = 2
PATH = "/api/stream"
HEARTBEAT = b":\n\n"

SAMPLING_PARAMS = frozenset({
    "temperature", "top_p", "top_k", "min_p", "top_a", "typical_p", "seed", "random_seed", "stop", "stop_sequences", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "repeat_penalty", "logit_bias", "verbosity", "topP", "topK", "stopSequences",
    "frequencyPenalty", "presencePenalty",
})  # fmt: skip
"""What a client may put into a request's body. Anything else there could be another model, or another conversation."""


class ModelName(Struct, kw_only=True, frozen=True):
    """Which model is asked."""

    provider: str
    id: str


class ToolName(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A tool that must be called."""

    name: str


class RequestOptions(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options that a client may set; the same as those of `StreamOptions`."""

    reasoning: ThinkingLevel | None = None
    thinking_budgets: dict[str, int] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    cache_retention: CacheRetention = "short"
    session_id: str | None = None
    tool_choice: str | ToolName | None = None
    metadata: dict[str, Any] | None = None
    sampling_params: dict[str, Any] | None = None
    max_retries: int = 0
    max_retry_delay: float = 60.0


class ProxyRequest(Struct, kw_only=True, frozen=True):
    """The body of a request."""

    model: ModelName
    messages: list[Message]
    options: RequestOptions = field(default_factory=RequestOptions)
    version: int = VERSION


def options_sent(options: StreamOptions, default_level: ThinkingLevel | None) -> dict[str, Any]:
    """Return what goes over the wire of a client's options; `default_level` is the model's."""
    values = {name: getattr(options, name) for name in RequestOptions.__struct_fields__}
    values["reasoning"] = options.reasoning or default_level
    return {name: value for name, value in values.items() if value is not None}


# ---------------------------------------------------------------------------------------------------- frames


def frame(event: AssistantEvent) -> bytes:
    """Return an event as a server-sent event."""
    if isinstance(event, (StreamDone, StreamError)):
        return b'data: {"type":"%s","message":%s}\n\n' % (event.type.encode(), encode(event.message))
    return b"data: %s\n\n" % encode_json(_fields(event))


def failure_frame(message: AssistantMessage) -> bytes:
    """Return the last frame of a response that failed outside of its stream."""
    return frame(StreamError(message=message))


def _fields(event: Any) -> dict[str, Any]:
    if isinstance(event, StreamStart):
        return _start(event.partial)
    fields: dict[str, Any] = {"type": event.type, "content_index": event.content_index}
    if isinstance(event, (TextDelta, ThinkingDelta, ToolCallDelta)):
        return {**fields, "delta": event.delta}
    if isinstance(event, ToolCallEnd):
        return {**fields, "tool_call": event.tool_call}
    block: Any = event.partial.content[event.content_index]
    if isinstance(event, (TextEnd, ThinkingEnd)):
        return {**fields, "content": event.content, **_marks(block)}
    if isinstance(event, (TextStart, ThinkingStart)):
        redacted = isinstance(block, ThinkingContent) and block.redacted
        return {**fields, "content": block.thinking, **_marks(block)} if redacted else fields
    call: ToolCall = block
    return {**fields, "id": call.id, "name": call.name}


def _start(partial: AssistantMessage) -> dict[str, Any]:
    named = {"api": partial.api, "provider": partial.provider, "model": partial.model}
    level = {"thinking_level": partial.thinking_level} if partial.thinking_level is not None else {}
    return {"type": "start", "version": VERSION, **named, **level}


def _marks(block: TextContent | ThinkingContent) -> dict[str, Any]:
    marks: dict[str, Any] = {"signature": block.signature} if block.signature is not None else {}
    return {**marks, "redacted": True} if isinstance(block, ThinkingContent) and block.redacted else marks
