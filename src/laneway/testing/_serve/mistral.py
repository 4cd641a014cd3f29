"""Mistral's chat completions, as a server says them: other ids, other orders, other errors than OpenAI's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from laneway.testing._serve.dialect import (
    Dialect,
    Speaker,
    expect_post,
    fields,
    object_list,
    prompt_tokens,
    refuse,
    sentence,
    sse,
    streams,
    text_field,
    tool_names,
)
from laneway.testing._serve.plan import Block, End, Failure

_ID = re.compile(r"[A-Za-z0-9]{9}\Z")
_TYPES = {
    "auth": "unauthorized", "rate_limit": "rate_limited", "quota": "insufficient_quota", "overloaded": "service_tier_capacity_exceeded",
    "not_found": "model_not_found", "overflow": "context_length_exceeded", "content_filter": "content_filter", "timeout": "request_timeout",
    "invalid_request": "invalid_request_error", "image": "invalid_request_error", "configuration": "invalid_request_error",
}  # fmt: skip


class MistralSpeaker(Speaker):
    """Chunks of one choice; thinking is a part of the content, whose signature comes last."""

    def begin(self) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def open(self, block: Block) -> bytes:
        return self._call(block, "", name=block.name, id=block.call_id) if block.kind == "call" else b""

    def delta(self, block: Block, text: str) -> bytes:
        if block.kind == "call":
            return self._call(block, text, name="", id="null")
        if block.kind == "text":
            return self._delta({"content": text})
        return self._delta({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]})

    def close(self, block: Block) -> bytes:
        if block.kind != "thinking" or not block.signature:
            return b""
        return self._delta({"content": [{"type": "thinking", "thinking": [], "signature": block.signature}]})

    def end(self, end: End) -> bytes:
        finish = {"stop": "stop", "length": "length", "tool_use": "tool_calls"}[end]
        return self._delta({"content": ""}, finish, usage=self._usage()) + sse("[DONE]")

    def fail(self, failure: Failure) -> bytes:
        return sse(_error(failure))

    def _call(self, block: Block, arguments: str, *, name: str, id: str) -> bytes:
        return self._delta({"tool_calls": [{"id": id, "index": block.number, "function": {"name": name, "arguments": arguments}}]})

    def _delta(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        head = {"id": f"cmpl-{self.number}", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": self.model}
        return sse({**head, "choices": [choice], **more})

    def _usage(self) -> dict[str, Any]:
        usage = self.plan.usage
        prompt = prompt_tokens(usage)
        counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": usage.output, "total_tokens": prompt + usage.output}
        return {**counts, "prompt_tokens_details": {"cached_tokens": usage.cache_read}} if usage.cache_read else counts


def _error(failure: Failure) -> dict[str, Any]:
    kind = failure.code or _TYPES.get(failure.kind, "server_error")
    return {"object": "error", "message": sentence(failure), "type": kind, "param": None, "code": None}


class MistralDialect(Dialect):
    """The base URL has no version in it."""

    name = "mistral"
    url_variable = "MISTRAL_BASE_URL"
    key_variable = "MISTRAL_API_KEY"
    speaker = MistralSpeaker

    def call_id(self, number: int) -> str:
        return f"call{number:05}"

    def model_of(self, method: str, path: str, query: Mapping[str, str], body: dict[str, Any]) -> str:
        expect_post(method, path, "/v1/chat/completions")
        return text_field(body, "model")

    def check(self, body: dict[str, Any], model: str, headers: Mapping[str, str]) -> None:
        streams(body)
        messages = object_list(body, "messages")
        if "tools" in body:
            tool_names(fields(tool.get("function")).get("name") for tool in object_list(body, "tools"))
        _check_messages(messages)

    def error(self, failure: Failure, status: int) -> tuple[dict[str, str], Any]:
        return {}, _error(failure)


def _check_messages(messages: list[dict[str, Any]]) -> None:
    """Roles follow each other as the templates of the models want it; there are as many results as calls."""
    waiting: list[str] = []
    before = ""
    for index, message in enumerate(messages):
        where, role = f"messages.{index}", str(message.get("role"))
        if role not in ("system", "user", "assistant", "tool"):
            refuse(f"{where}.role: {role!r} is not one of 'system', 'user', 'assistant' and 'tool'", status=422)
        if role == "tool":
            call_id = text_field(message, "tool_call_id", f"{where}.")
            if call_id not in waiting:
                refuse(f"{where}: unexpected tool call id {call_id} in the tool results")
            waiting.remove(call_id)
        elif waiting:
            refuse(f"not the same number of function calls and responses: {', '.join(waiting)} have none before {where}")
        elif role == "assistant":
            waiting = _check_assistant(message, where)
        elif before == "tool":
            refuse(f"{where}: unexpected role '{role}' after role 'tool'")
        before = role
    if waiting:
        refuse(f"not the same number of function calls and responses: {', '.join(waiting)} have none")
    if before not in ("user", "tool"):
        refuse(f"the last message must have the role 'user' or 'tool', not '{before}'")


def _check_assistant(message: dict[str, Any], where: str) -> list[str]:
    calls = object_list(message, "tool_calls", f"{where}.") if message.get("tool_calls") is not None else []
    if not calls and not message.get("content"):
        refuse(f"{where}: an assistant message must have either content or tool_calls")
    found: list[str] = []
    for index, call in enumerate(calls):
        call_id = text_field(call, "id", f"{where}.tool_calls.{index}.")
        if not _ID.match(call_id):
            refuse(f"{where}.tool_calls.{index}.id: {call_id} must be a-z, A-Z, 0-9, with a length of 9")
        text_field(fields(call.get("function")), "name", f"{where}.tool_calls.{index}.function.")
        found.append(call_id)
    return found
