"""OpenAI's Responses, as a server says them, and the same behind Azure's door."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from laneway.testing._serve.dialect import Dialect, Speaker, expect_post, object_list, prompt_tokens, refuse, sse, streams, text_field, tool_names
from laneway.testing._serve.openai_chat import error_body
from laneway.testing._serve.plan import Block, End, Failure

MAX_ID = 64
_PREFIXES = {"function_call": "fc", "custom_tool_call": "ctc", "reasoning": "rs", "message": "msg"}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


class ResponsesSpeaker(Speaker):
    """Output items with numbered events; the last event sums the response up."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._sequence = -1
        self._output: list[dict[str, Any]] = []

    def begin(self) -> bytes:
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event("response.in_progress", response=response)

    def open(self, block: Block) -> bytes:
        item = self._item(block, "", "in_progress")
        events = self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind == "text":
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            events += self._part_event("response.content_part.added", block, content_index=0, part=part)
        elif block.kind == "thinking" and block.text:
            part = {"type": "summary_text", "text": ""}
            events += self._part_event("response.reasoning_summary_part.added", block, summary_index=0, part=part)
        return events

    def delta(self, block: Block, text: str) -> bytes:
        if block.kind == "text":
            return self._part_event("response.output_text.delta", block, content_index=0, delta=text, logprobs=[])
        if block.kind == "thinking":
            return self._part_event("response.reasoning_summary_text.delta", block, summary_index=0, delta=text)
        return self._part_event("response.function_call_arguments.delta", block, delta=text)

    def close(self, block: Block) -> bytes:
        item = self._item(block, block.text, "completed")
        self._output.append(item)
        if block.kind == "text":
            events = self._part_event("response.output_text.done", block, content_index=0, text=block.text, logprobs=[])
            events += self._part_event("response.content_part.done", block, content_index=0, part=item["content"][0])
        elif block.kind == "call":
            events = self._part_event("response.function_call_arguments.done", block, name=block.name, arguments=block.text)
        elif block.text:
            events = self._part_event("response.reasoning_summary_text.done", block, summary_index=0, text=block.text)
            part = {"type": "summary_text", "text": block.text}
            events += self._part_event("response.reasoning_summary_part.done", block, summary_index=0, part=part)
        else:
            events = b""
        return events + self._event("response.output_item.done", output_index=block.index, item=item)

    def end(self, end: End) -> bytes:
        if end == "length":
            response = self._response("incomplete", incomplete_details={"reason": "max_output_tokens"}, usage=self._usage())
            return self._event("response.incomplete", response=response)
        return self._event("response.completed", response=self._response("completed", usage=self._usage()))

    def fail(self, failure: Failure) -> bytes:
        error = error_body(failure)["error"]
        said = {"code": error["code"] or error["type"], "message": failure.message}
        return self._event("response.failed", response=self._response("failed", error=said))

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return sse({"type": kind, "sequence_number": self._sequence, **fields}, kind)

    def _part_event(self, kind: str, block: Block, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._item_id(block), output_index=block.index, **fields)

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        return {
            "id": f"resp_{self.number}", "object": "response", "created_at": 1_700_000_000, "status": status, "model": self.model,
            "output": list(self._output), "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": 1.0, "top_p": 1.0, "usage": None, **more,
        }  # fmt: skip

    def _item_id(self, block: Block) -> str:
        prefix = {"text": "msg", "thinking": "rs", "call": "fc"}[block.kind]
        given = _given_item(block)
        return str(given["id"]) if given is not None else f"{prefix}_{self.number}_{block.index}"

    def _item(self, block: Block, text: str, status: str) -> dict[str, Any]:
        given = _given_item(block)
        if given is not None:
            return given
        item_id = self._item_id(block)
        if block.kind == "text":
            said: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            content = [said] if status == "completed" else []
            return {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": content}
        if block.kind == "call":
            head = {"type": "function_call", "id": item_id, "call_id": block.call_id, "name": block.name}
            return {**head, "arguments": text, "status": status}
        summary = [{"type": "summary_text", "text": text}] if text else []
        return {"type": "reasoning", "id": item_id, "summary": summary, "encrypted_content": block.signature}

    def _usage(self) -> dict[str, Any]:
        usage = self.plan.usage
        prompt = prompt_tokens(usage)
        return {
            "input_tokens": prompt, "output_tokens": usage.output, "total_tokens": prompt + usage.output,
            "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
            "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        }  # fmt: skip


def _given_item(block: Block) -> dict[str, Any] | None:
    """Return the reasoning item that a recorded message keeps as its signature."""
    if block.kind != "thinking" or not (block.signature or "").startswith("{"):
        return None
    try:
        value = json.loads(block.signature or "")
    except (ValueError, RecursionError):
        return None
    found = cast("dict[str, Any]", value)
    return found if found.get("type") == "reasoning" and found.get("id") else None


class ResponsesDialect(Dialect):
    """What OpenAI's own models speak."""

    name = "openai_responses"
    base_path = "/v1"
    url_variable = "OPENAI_BASE_URL"
    key_variable = "OPENAI_API_KEY"
    speaker = ResponsesSpeaker

    def model_of(self, method: str, path: str, query: Mapping[str, str], body: dict[str, Any]) -> str:
        expect_post(method, path, f"{self.base_path}/responses")
        return text_field(body, "model")

    def check(self, body: dict[str, Any], model: str, headers: Mapping[str, str]) -> None:
        streams(body)
        if "tools" in body:
            tool_names(tool.get("name") for tool in object_list(body, "tools", empty=True) if tool.get("type") in ("function", "custom"))
        if not isinstance(body.get("input"), str):
            _check_items(object_list(body, "input"), stored=body.get("store") is not False)

    def error(self, failure: Failure, status: int) -> tuple[dict[str, str], Any]:
        return {}, error_body(failure)


class AzureDialect(ResponsesDialect):
    """The key has a header of its own, and the version of the API is in the query."""

    name = "azure"
    base_path = "/openai/v1"
    url_variable = "AZURE_OPENAI_BASE_URL"
    key_variable = "AZURE_OPENAI_API_KEY"
    key_headers = ("api-key", "authorization")

    def model_of(self, method: str, path: str, query: Mapping[str, str], body: dict[str, Any]) -> str:
        model = super().model_of(method, path, query, body)
        if not query.get("api-version"):
            refuse("api-version: the query parameter is missing", kind="not_found")
        return model


def _check_items(items: list[dict[str, Any]], *, stored: bool) -> None:
    """Every call has its output, after it, and every output its call; reasoning is followed by what came of it."""
    calls: dict[str, str] = {}
    answered: set[str] = set()
    for index, item in enumerate(items):
        where, kind = f"input[{index}]", str(item.get("type", "message"))
        _check_id(item, kind, where, stored)
        if kind in ("function_call", "custom_tool_call"):
            _check_call(item, kind, where, calls)
        elif kind in _OUTPUTS:
            call_id = item.get("call_id")
            if calls.get(str(call_id)) != _OUTPUTS[kind]:
                refuse(f"{where}: no tool call found for the {kind} with call_id {call_id}")
            if call_id in answered:
                refuse(f"{where}: there is a second output for the call {call_id}")
            if not isinstance(item.get("output"), (str, list)):
                refuse(f"{where}.output: a string or a list of parts is required")
            answered.add(str(call_id))
        elif kind == "reasoning":
            after = items[index + 1].get("type", "message") if index + 1 < len(items) else None
            own = after in ("function_call", "custom_tool_call", "reasoning") or (after == "message" and items[index + 1].get("role") == "assistant")
            if not own:
                refuse(f"{where}: item '{item.get('id')}' of type 'reasoning' was provided without its required following item")
        elif kind == "message":
            _check_message(item, where)
    missing = [call_id for call_id in calls if call_id not in answered]
    if missing:
        refuse(f"input: no tool output found for function call {', '.join(missing)}")


def _check_id(item: dict[str, Any], kind: str, where: str, stored: bool) -> None:
    item_id, prefix = item.get("id"), _PREFIXES.get(kind)
    if item_id is None or prefix is None:
        return
    if not isinstance(item_id, str) or not item_id.startswith(prefix) or len(item_id) > MAX_ID:
        refuse(f"{where}.id: {item_id!r} must begin with '{prefix}' and have at most {MAX_ID} characters")
    if kind == "reasoning" and not stored and not item.get("encrypted_content"):
        refuse(f"{where}: item with id '{item_id}' not found; items are not kept when `store` is false", kind="not_found")


def _check_call(item: dict[str, Any], kind: str, where: str, calls: dict[str, str]) -> None:
    call_id = text_field(item, "call_id", f"{where}.")
    if len(call_id) > MAX_ID:
        refuse(f"{where}.call_id: at most {MAX_ID} characters, and {call_id!r} has {len(call_id)}")
    if call_id in calls:
        refuse(f"{where}.call_id: {call_id} is there twice")
    text_field(item, "name", f"{where}.")
    if not isinstance(item.get("arguments" if kind == "function_call" else "input"), str):
        refuse(f"{where}: the arguments must be a string")
    calls[call_id] = kind


def _check_message(item: dict[str, Any], where: str) -> None:
    if item.get("role") not in ("user", "assistant", "system", "developer"):
        refuse(f"{where}.role: {item.get('role')!r} is not one of 'user', 'assistant', 'system' and 'developer'")
    if not isinstance(item.get("content"), (str, list)):
        refuse(f"{where}.content: a string or a list of parts is required")
