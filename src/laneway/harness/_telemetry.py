"""OpenTelemetry spans of operations, model requests and tool calls, by the conventions for generative AI.

Nothing is imported before somebody traces: whoever sets a tracer provider has imported `opentelemetry`, or names one in
`OTEL_PYTHON_TRACER_PROVIDER`. Without a provider there are no spans. Spans nest by OpenTelemetry's own context.

No content is recorded (no messages, arguments or results) unless `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` asks for it on
spans, as it does of every instrumentation of this kind.

Conventions: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-agent-spans/ and gen-ai-spans.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from laneway.messages import AgentMessage, AssistantMessage, ImageContent, TextContent, ThinkingContent, ToolCall, ToolResultMessage

PROVIDER = "OTEL_PYTHON_TRACER_PROVIDER"
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class Span(Protocol):
    """The part of an OpenTelemetry span that is used here."""

    def set_attribute(self, key: str, value: Any) -> None: ...
    def set_status(self, status: Any) -> None: ...
    def is_recording(self) -> bool: ...


class _Nothing:
    """The span of those who do not trace."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


NOTHING = _Nothing()


def traced() -> bool:
    """Whether anybody may trace. To be asked once per pass, not once per span: whoever does has set that up before."""
    return "opentelemetry.trace" in sys.modules or PROVIDER in os.environ


def span(name: str, attributes: Mapping[str, Any], *, client: bool = False) -> AbstractContextManager[Span | None]:
    """Return a context manager that runs a block in a span; it gives None where nobody traces. An exception is recorded and raised."""
    if not traced():
        return NOTHING
    try:
        from opentelemetry import trace
    except ImportError:  # a provider is named, but nothing of it is installed
        return NOTHING
    provider = trace.get_tracer_provider()
    if type(provider) is trace.ProxyTracerProvider:  # it stands for one that nobody has set
        return NOTHING
    kind = trace.SpanKind.CLIENT if client else trace.SpanKind.INTERNAL
    return provider.get_tracer("laneway").start_as_current_span(name, kind=kind, attributes=dict(attributes))


def operation_span(kind: str, *, lane: str, operation_id: str, session_id: str) -> AbstractContextManager[Span | None]:
    """Return the span of one drive pass."""
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": session_id,
        "laneway.lane": lane,
        "laneway.operation.id": operation_id,
        "laneway.operation.kind": kind,
    }
    return span(f"invoke_agent {lane}", attributes)


def request_span(*, provider: str, model_id: str, step: str, attempt: int) -> AbstractContextManager[Span | None]:
    """Return the span of one model request."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model_id,
        "laneway.step": step,
        "laneway.attempt": attempt,
    }
    return span(f"chat {model_id}", attributes, client=True)


def tool_span(*, name: str, call_id: str) -> AbstractContextManager[Span | None]:
    """Return the span of one tool call."""
    return span(f"execute_tool {name}", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.call.id": call_id})


def answered(current: Span | None, message: AssistantMessage, sent: Sequence[AgentMessage] = ()) -> None:
    """Put what a response cost, and how it ended, on its span; what was `sent` and said only where content is asked for."""
    if current is None or not current.is_recording():
        return
    usage = message.usage
    current.set_attribute("gen_ai.response.finish_reasons", [message.stop_reason])
    current.set_attribute("gen_ai.usage.input_tokens", usage.input + usage.cache_read + usage.cache_write)
    current.set_attribute("gen_ai.usage.output_tokens", usage.output)
    if message.response_model or message.model:
        current.set_attribute("gen_ai.response.model", message.response_model or message.model)
    if message.response_id:
        current.set_attribute("gen_ai.response.id", message.response_id)
    if message.stop_reason in ("error", "aborted"):
        ended(current, failed=message.error.kind if message.error is not None else message.stop_reason)
    if _wants_content():
        current.set_attribute("gen_ai.input.messages", _json([_message(each) for each in sent]))
        current.set_attribute("gen_ai.output.messages", _json([_message(message) | {"finish_reason": message.stop_reason}]))


def executed(current: Span | None, arguments: Any, content: Sequence[TextContent | ImageContent], *, failed: bool) -> None:
    """Put how a tool call ended on its span; its arguments and result only where content is asked for."""
    if current is None or not current.is_recording():
        return
    ended(current, failed="tool_error" if failed else None)
    if _wants_content():
        current.set_attribute("gen_ai.tool.call.arguments", _json(arguments))
        current.set_attribute("gen_ai.tool.call.result", _text(content))


def ended(current: Span | None, *, failed: str | None) -> None:
    """Mark a span as failed, with an error's code."""
    if current is None or failed is None or not current.is_recording():
        return
    from opentelemetry.trace import Status, StatusCode

    current.set_attribute("error.type", failed)
    current.set_status(Status(StatusCode.ERROR))


# ---------------------------------------------------------------------------------------------------- content


def _wants_content() -> bool:
    return os.environ.get(CONTENT, "").lower() in ("span_only", "span_and_event", "true")


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=repr).decode()


def _text(content: Sequence[Any] | str) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content if isinstance(block, TextContent))


def _message(message: AgentMessage) -> dict[str, Any]:
    """Return a message in the conventions' own form; pictures are left out."""
    if isinstance(message, ToolResultMessage):
        return {"role": "tool", "parts": [{"type": "tool_call_response", "id": message.tool_call_id, "response": _text(message.content)}]}
    if isinstance(message, AssistantMessage):
        return {"role": "assistant", "parts": [_part(block) for block in message.content]}
    content: Any = getattr(message, "content", "")
    return {"role": message.role, "parts": [{"type": "text", "content": _text(content)}]}


def _part(block: TextContent | ThinkingContent | ToolCall) -> dict[str, Any]:
    match block:
        case TextContent():
            return {"type": "text", "content": block.text}
        case ThinkingContent():
            return {"type": "reasoning", "content": block.thinking}
        case ToolCall():
            return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": block.arguments}
