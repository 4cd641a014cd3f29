"""OpenTelemetry spans of operations, model requests and tool calls, by the conventions for generative AI.

Nothing is imported unless the process has imported `opentelemetry` itself (a user who configures an SDK has), and without an SDK the
spans are no-ops. No content is recorded: no messages, arguments or results. Spans nest by OpenTelemetry's own context.

Conventions: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-agent-spans/ and gen-ai-spans.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from laneway.messages import AssistantMessage


class Span(Protocol):
    """The part of an OpenTelemetry span that is used here."""

    def set_attribute(self, key: str, value: Any) -> None: ...
    def is_recording(self) -> bool: ...


class _Nothing:
    """The span of those who do not trace."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NOTHING = _Nothing()


def span(name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[Span | None]:
    """Return a context manager that runs a block in a span; it gives None where nobody traces. An exception is recorded and raised."""
    if "opentelemetry" not in sys.modules:
        return _NOTHING
    from opentelemetry import trace

    return trace.get_tracer("laneway").start_as_current_span(name, attributes=dict(attributes))


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
    return span(f"chat {model_id}", attributes)


def tool_span(*, name: str, call_id: str) -> AbstractContextManager[Span | None]:
    """Return the span of one tool call."""
    return span(f"execute_tool {name}", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.call.id": call_id})


def answered(current: Span | None, message: AssistantMessage) -> None:
    """Put what a response cost, and how it ended, on its span."""
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
        current.set_attribute("error.type", message.error.kind if message.error is not None else message.stop_reason)


def ended(current: Span | None, *, failed: str | None) -> None:
    """Put an error's code on a span."""
    if current is not None and failed is not None and current.is_recording():
        current.set_attribute("error.type", failed)
