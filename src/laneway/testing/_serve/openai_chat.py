"""Chat Completions, as a server says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from laneway.messages import ErrorKind
from laneway.testing._serve.dialect import (
    Dialect,
    Speaker,
    expect_post,
    fields,
    object_list,
    prompt_tokens,
    refuse,
    sse,
    streams,
    text_field,
    tool_names,
)
from laneway.testing._serve.plan import Block, End, Failure

CODES: dict[ErrorKind, tuple[str, str | None]] = {
    "auth": ("invalid_request_error", "invalid_api_key"),
    "quota": ("insufficient_quota", "insufficient_quota"),
    "rate_limit": ("requests", "rate_limit_exceeded"),
    "overloaded": ("server_error", "slow_down"),
    "timeout": ("server_error", "request_timeout"),
    "not_found": ("invalid_request_error", "model_not_found"),
    "overflow": ("invalid_request_error", "context_length_exceeded"),
    "content_filter": ("invalid_request_error", "content_filter"),
    "image": ("invalid_request_error", "invalid_image_format"),
    "invalid_request": ("invalid_request_error", None),
    "configuration": ("invalid_request_error", None),
}
"""Type and code of an error; "server_error" for the other kinds. `openai_responses` and `azure` have the same ones."""
MAX_ID = 40
_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")


class ChatSpeaker(Speaker):
    """Chunks of one choice; a block has neither start nor end, only its pieces."""

    def begin(self) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def open(self, block: Block) -> bytes:
        if block.kind != "call":
            return b""
        call = {"index": block.number, "id": block.call_id, "type": "function", "function": {"name": block.name, "arguments": ""}}
        return self._delta({"tool_calls": [call]})

    def delta(self, block: Block, text: str) -> bytes:
        if block.kind == "call":
            return self._delta({"tool_calls": [{"index": block.number, "function": {"arguments": text}}]})
        if block.kind == "text":
            return self._delta({"content": text})
        if _details(block) is not None:
            return b""  # they come as a whole, at the end
        return self._delta({block.signature if block.signature in _REASONING_FIELDS else _REASONING_FIELDS[0]: text})

    def close(self, block: Block) -> bytes:
        details = _details(block) if block.kind == "thinking" else None
        return self._delta({"reasoning_details": details}) if details is not None else b""

    def end(self, end: End) -> bytes:
        finish = {"stop": "stop", "length": "length", "tool_use": "tool_calls"}[end]
        usage = b""
        if fields(self.body.get("stream_options")).get("include_usage"):
            usage = sse({**self._chunk(), "choices": [], "usage": self._usage()})
        return self._delta({}, finish) + usage + sse("[DONE]")

    def fail(self, failure: Failure) -> bytes:
        return sse(error_body(failure))

    def _chunk(self) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self.number}", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": self.model}

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return sse({**self._chunk(), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _usage(self) -> dict[str, Any]:
        usage = self.plan.usage
        prompt = prompt_tokens(usage)
        details: dict[str, Any] = {"cached_tokens": usage.cache_read}
        if usage.cache_write:
            details["cache_write_tokens"] = usage.cache_write
        counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": usage.output, "total_tokens": prompt + usage.output}
        counts["prompt_tokens_details"] = details
        if usage.reasoning is not None:
            counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
        return counts


def _details(block: Block) -> list[Any] | None:
    """Structured reasoning: a signature that is a list of it, or (for redacted thinking) an entry that nobody can read."""
    if block.redacted:
        return [{"type": "reasoning.encrypted", "data": block.signature or "", "index": 0}]
    if not (block.signature or "").startswith("["):
        return None
    try:
        return json.loads(block.signature or "")
    except (ValueError, RecursionError):
        return None


def error_body(failure: Failure) -> dict[str, Any]:
    """Return an error as OpenAI's protocols say it."""
    kind, code = CODES.get(failure.kind, ("server_error", None))
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": failure.code or code}}


class ChatDialect(Dialect):
    """`custom` reaches it; so does every vendor of the protocol whose base URL is set."""

    name = "openai_chat"
    base_path = "/v1"
    url_variable = "LANEWAY_CUSTOM_BASE_URL"
    key_variable = "LANEWAY_CUSTOM_API_KEY"
    speaker = ChatSpeaker

    def model_of(self, method: str, path: str, query: Mapping[str, str], body: dict[str, Any]) -> str:
        expect_post(method, path, f"{self.base_path}/chat/completions")
        return text_field(body, "model")

    def check(self, body: dict[str, Any], model: str, headers: Mapping[str, str]) -> None:
        streams(body)
        messages = object_list(body, "messages")
        if "tools" in body:
            tools = object_list(body, "tools")
            tool_names(fields(tool.get("function")).get("name") for tool in tools)
        elif body.get("tool_choice") is not None:
            refuse("tool_choice: only allowed when `tools` are specified")
        _check_messages(messages)

    def error(self, failure: Failure, status: int) -> tuple[dict[str, str], Any]:
        return {}, error_body(failure)


def _check_messages(messages: list[dict[str, Any]]) -> None:
    """Every call is answered directly after its message, and nothing else is."""
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        role = message.get("role")
        if role == "tool":
            call_id = text_field(message, "tool_call_id", f"{where}.")
            if call_id not in waiting:
                refuse(f"{where}: a message of the role 'tool' must answer a call of 'tool_calls' before it, and {call_id!r} is none")
            waiting.remove(call_id)
            _content(message, where)
            continue
        _all_answered(waiting, where)
        if role == "assistant":
            waiting = _check_assistant(message, where)
        elif role in ("user", "system", "developer"):
            if not (role == "system" and message.get("tools")):
                _content(message, where)
        else:
            refuse(f"{where}.role: {role!r} is not one of 'system', 'developer', 'user', 'assistant' and 'tool'")
    _all_answered(waiting, "the end")


def _all_answered(waiting: list[str], where: str) -> None:
    if waiting:
        missing = ", ".join(waiting)
        refuse(f"an assistant message with 'tool_calls' must be followed by tool messages for each 'tool_call_id'; missing before {where}: {missing}")


def _content(message: dict[str, Any], where: str) -> None:
    content = message.get("content")
    if not isinstance(content, (str, list)):
        refuse(f"{where}.content: a string or a list of parts is required")


def _check_assistant(message: dict[str, Any], where: str) -> list[str]:
    """Return the ids of the calls, which must be answered next."""
    if "tool_calls" not in message:
        _content(message, where)
        return []
    found: list[str] = []
    for index, call in enumerate(object_list(message, "tool_calls", f"{where}.")):
        here = f"{where}.tool_calls.{index}."
        call_id = text_field(call, "id", here)
        if len(call_id) > MAX_ID:
            refuse(f"{here}id: at most {MAX_ID} characters, and {call_id!r} has {len(call_id)}")
        if call_id in found:
            refuse(f"{here}id: {call_id!r} is there twice")
        function = fields(call.get("function"))
        text_field(function, "name", f"{here}function.")
        try:
            json.loads(function["arguments"])
        except (KeyError, TypeError, ValueError):
            refuse(f"{here}function.arguments: a string of JSON is required")
        found.append(call_id)
    return found
