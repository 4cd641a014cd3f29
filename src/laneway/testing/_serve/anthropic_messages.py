"""Anthropic's messages, as a server says them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from laneway.messages import ErrorKind, Usage
from laneway.testing._serve.dialect import Dialect, Speaker, expect_post, fields, object_list, refuse, sentence, sse, streams, text_field, tool_names
from laneway.testing._serve.plan import Block, End, Failure

TYPES: dict[ErrorKind, str] = {
    "auth": "authentication_error", "quota": "billing_error", "rate_limit": "rate_limit_error", "overloaded": "overloaded_error",
    "timeout": "timeout_error", "not_found": "not_found_error", "invalid_request": "invalid_request_error", "overflow": "request_too_large",
    "content_filter": "content_filter", "image": "invalid_request_error", "configuration": "invalid_request_error",
}  # fmt: skip
"""The type of an error; "api_error" for the other kinds."""
MIN_BUDGET = 1024
MAX_MARKERS = 4
_ID = re.compile(r"[A-Za-z0-9_-]+\Z")


class AnthropicSpeaker(Speaker):
    """A message of blocks, each with a start and an end; the signature of thinking comes last in its block."""

    def begin(self) -> bytes:
        message: dict[str, Any] = {
            "id": f"msg_{self.number}", "type": "message", "role": "assistant", "model": self.model, "content": [], "stop_reason": None,
            "stop_sequence": None, "usage": {**_prompt_counts(self.plan.usage), "output_tokens": 1},
        }  # fmt: skip
        return _event({"type": "message_start", "message": message})

    def open(self, block: Block) -> bytes:
        content: dict[str, Any]
        if block.kind == "call":
            content = {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
        elif block.kind == "text":
            content = {"type": "text", "text": ""}
        elif block.redacted:
            content = {"type": "redacted_thinking", "data": block.signature or ""}
        else:
            content = {"type": "thinking", "thinking": "", "signature": ""}
        return _event({"type": "content_block_start", "index": block.index, "content_block": content})

    def delta(self, block: Block, text: str) -> bytes:
        kind, field = {"call": ("input_json_delta", "partial_json"), "text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}[
            block.kind
        ]
        return self._delta(block, {"type": kind, field: text})

    def close(self, block: Block) -> bytes:
        signed = block.kind == "thinking" and block.signature and not block.redacted
        signature = self._delta(block, {"type": "signature_delta", "signature": block.signature}) if signed else b""
        return signature + _event({"type": "content_block_stop", "index": block.index})

    def end(self, end: End) -> bytes:
        usage: dict[str, Any] = {"output_tokens": self.plan.usage.output}
        if self.plan.usage.reasoning is not None:
            usage["output_tokens_details"] = {"thinking_tokens": self.plan.usage.reasoning}
        reason = {"stop": "end_turn", "length": "max_tokens", "tool_use": "tool_use"}[end]
        last = _event({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage})
        return last + _event({"type": "message_stop"})

    def fail(self, failure: Failure) -> bytes:
        return _event(_error(failure))

    def _delta(self, block: Block, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": block.index, "delta": delta})


def _event(value: dict[str, Any]) -> bytes:
    return sse(value, value["type"])


def _prompt_counts(usage: Usage) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "input_tokens": usage.input, "cache_read_input_tokens": usage.cache_read, "cache_creation_input_tokens": usage.cache_write,
    }  # fmt: skip
    if usage.cache_write_1h is not None:
        short = usage.cache_write - usage.cache_write_1h
        counts["cache_creation"] = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": usage.cache_write_1h}
    return counts


def _error(failure: Failure) -> dict[str, Any]:
    return {"type": "error", "error": {"type": failure.code or TYPES.get(failure.kind, "api_error"), "message": sentence(failure)}}


class AnthropicDialect(Dialect):
    """The base URL has no version in it."""

    name = "anthropic_messages"
    url_variable = "ANTHROPIC_BASE_URL"
    key_variable = "ANTHROPIC_API_KEY"
    key_headers = ("x-api-key", "authorization")
    speaker = AnthropicSpeaker

    def call_id(self, number: int) -> str:
        return f"toolu_{number}"

    def status_of(self, failure: Failure) -> int:
        special: dict[ErrorKind, int] = {"overloaded": 529, "quota": 402, "overflow": 413}
        return failure.status or special.get(failure.kind) or super().status_of(failure)

    def model_of(self, method: str, path: str, query: Mapping[str, str], body: dict[str, Any]) -> str:
        expect_post(method, path, "/v1/messages")
        return text_field(body, "model")

    def check(self, body: dict[str, Any], model: str, headers: Mapping[str, str]) -> None:
        if not headers.get("anthropic-version"):
            refuse("anthropic-version: header is required")
        streams(body)
        limit = body.get("max_tokens")
        if not isinstance(limit, int) or limit < 1:
            refuse("max_tokens: a whole number of at least 1 is required")
        _check_thinking(body, limit)
        if "tools" in body:
            tool_names(tool.get("name") for tool in object_list(body, "tools"))
        if _markers(body) > MAX_MARKERS:
            refuse(f"a maximum of {MAX_MARKERS} blocks with cache_control may be provided")
        _check_messages(object_list(body, "messages"))

    def error(self, failure: Failure, status: int) -> tuple[dict[str, str], Any]:
        return {"request-id": "req_scripted"}, {**_error(failure), "request_id": "req_scripted"}


def _check_thinking(body: dict[str, Any], limit: int) -> None:
    thinking = fields(body.get("thinking"))
    if thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget < MIN_BUDGET:
        refuse(f"thinking.budget_tokens: must be at least {MIN_BUDGET}")
    if budget >= limit:
        refuse("max_tokens: must be greater than thinking.budget_tokens")
    if body.get("temperature") not in (None, 1):
        refuse("temperature: may only be set to 1 when thinking is enabled")


def _markers(value: Any) -> int:
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        return ("cache_control" in found) + sum(map(_markers, found.values()))
    return sum(map(_markers, cast("list[Any]", value))) if isinstance(value, list) else 0


def _check_messages(messages: list[dict[str, Any]]) -> None:
    """Results stand in the user's message right after the calls, before anything else in it, and nowhere else."""
    waiting: list[str] = []
    seen: set[str] = set()
    before = ""
    for index, message in enumerate(messages):
        where, role = f"messages.{index}", message.get("role")
        if role == "system":
            if before != "user":
                refuse(f"{where}: a system message must follow a user message")
            continue
        if role not in ("user", "assistant"):
            refuse(f"{where}.role: {role!r} is not one of 'user' and 'assistant'")
        if not before and role != "user":
            refuse(f"{where}: the first message must use the user role")
        blocks = _blocks(message, where)
        _check_results(blocks, where, waiting)
        waiting = _check_calls(blocks, where, role, seen)
        before = str(role)
    if waiting:
        refuse(f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(waiting)}")


def _blocks(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    blocks = object_list({"content": content}, "content", f"{where}.")
    for index, block in enumerate(blocks):
        if block.get("type") == "text" and not str(block.get("text") or "").strip():
            refuse(f"{where}.content.{index}: text content blocks must contain non-whitespace text")
        if block.get("type") == "thinking" and not isinstance(block.get("signature"), str):
            refuse(f"{where}.content.{index}.thinking.signature: field required")
    return blocks


def _check_results(blocks: list[dict[str, Any]], where: str, waiting: list[str]) -> None:
    left = list(waiting)
    other = False
    for index, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            other = True
            continue
        call_id = block.get("tool_use_id")
        if call_id not in left:
            why = "each `tool_result` needs its `tool_use` in the previous message"
            refuse(f"{where}.content.{index}: unexpected `tool_use_id` {call_id}: {why}")
        if other:
            refuse(f"{where}.content.{index}: `tool_result` blocks must come first in the message")
        left.remove(str(call_id))
    if left:
        refuse(f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(left)}")


def _check_calls(blocks: list[dict[str, Any]], where: str, role: Any, seen: set[str]) -> list[str]:
    found: list[str] = []
    for index, block in enumerate(blocks):
        if block.get("type") != "tool_use":
            continue
        here = f"{where}.content.{index}."
        if role != "assistant":
            refuse(f"{here}type: `tool_use` blocks may only stand in assistant messages")
        call_id = text_field(block, "id", here)
        if not _ID.match(call_id):
            refuse(f"{here}id: {call_id!r} does not match the pattern ^[a-zA-Z0-9_-]+$")
        if call_id in seen:
            refuse(f"{here}id: `tool_use` ids must be unique, and {call_id} is there twice")
        if not isinstance(block.get("input"), dict):
            refuse(f"{here}input: an object is required")
        text_field(block, "name", here)
        seen.add(call_id)
        found.append(call_id)
    return found
