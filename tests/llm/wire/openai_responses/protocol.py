"""Events of the Responses protocol, for tests."""

from __future__ import annotations

import json
from typing import Any

from laneway.llm.base import Model
from llm.loopback import Answer, Step, sse


def response(status: str = "in_progress", output: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The response object, as the first and the last event have it."""
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status, "output": output or [], "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None, **fields,
    }  # fmt: skip


def created(**fields: Any) -> dict[str, Any]:
    """The first event."""
    return {"type": "response.created", "sequence_number": 0, "response": response(**fields)}


def usage(**counts: Any) -> dict[str, Any]:
    """A usage report."""
    return {
        "input_tokens": 100, "output_tokens": 10, "total_tokens": 110, "input_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 4}, **counts,
    }  # fmt: skip


def completed(status: str = "completed", output: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The last event."""
    fields.setdefault("usage", usage())
    return {"type": f"response.{status}", "sequence_number": 99, "response": response(status, output, **fields)}


def incomplete(reason: str) -> dict[str, Any]:
    """The last event of a response that was cut."""
    return completed("incomplete", incomplete_details={"reason": reason})


def message(text: str | None = None, item_id: str = "msg_1", **fields: Any) -> dict[str, Any]:
    """A message item."""
    content = [{"type": "output_text", "text": text, "annotations": []}] if text is not None else []
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed" if content else "in_progress", "content": content, **fields}


def reasoning(*summary: str, item_id: str = "rs_1", encrypted: str | None = "ENC", **fields: Any) -> dict[str, Any]:
    """A reasoning item."""
    item = {"type": "reasoning", "id": item_id, "summary": [{"type": "summary_text", "text": part} for part in summary], **fields}
    return item if encrypted is None else {**item, "encrypted_content": encrypted}


def call(arguments: str = "", name: str = "read", call_id: str = "call_1", item_id: str = "fc_1", **fields: Any) -> dict[str, Any]:
    """A function call item."""
    status = "completed" if arguments else "in_progress"
    return {"type": "function_call", "id": item_id, "call_id": call_id, "name": name, "arguments": arguments, "status": status, **fields}


def custom(value: str = "", name: str = "patch", call_id: str = "call_1", item_id: str = "ctc_1") -> dict[str, Any]:
    """A custom tool call item."""
    return {"type": "custom_tool_call", "id": item_id, "call_id": call_id, "name": name, "input": value}


def added(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """The start of an item."""
    return {"type": "response.output_item.added", "output_index": index, "item": item, "sequence_number": 1}


def done(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """The end of an item."""
    return {"type": "response.output_item.done", "output_index": index, "item": item, "sequence_number": 9}


def delta(kind: str, value: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    """A piece of an item."""
    return {"type": f"response.{kind}.delta", "output_index": index, "item_id": "x", "delta": value, "sequence_number": 2, **fields}


def text(value: str, index: int = 0, part: int = 0) -> dict[str, Any]:
    """A piece of text."""
    return delta("output_text", value, index, content_index=part, logprobs=[])


def thought(value: str, index: int = 0, part: int = 0) -> dict[str, Any]:
    """A piece of a reasoning summary."""
    return delta("reasoning_summary_text", value, index, summary_index=part)


def arguments(value: str, index: int = 0) -> dict[str, Any]:
    """A piece of a call's arguments."""
    return delta("function_call_arguments", value, index)


HELLO = [created(), added(message()), text("Hel"), text("lo"), done(message("Hello")), completed(output=[message("Hello")])]


def said(value: str) -> list[dict[str, Any]]:
    """A whole response that is only text."""
    return [created(), added(message()), text(value), done(message(value)), completed()]


def called(raw: str = "{}", index: int = 0, **fields: Any) -> list[dict[str, Any]]:
    """The events of one call."""
    return [added(call(**fields), index), arguments(raw, index), done(call(raw, **fields), index)]


def wire(*events: Any) -> bytes:
    """Events with their names, as the server sends them."""
    return b"".join(sse(event, name=event.get("type") if isinstance(event, dict) else None) for event in events)


def reply(*events: Any, headers: dict[str, str] | None = None) -> Answer:
    """An answer with one chunk per event; what is no object is a step of its own."""
    steps: list[Step] = [wire(event) if isinstance(event, dict) else event for event in events]
    return Answer(steps=steps, headers=headers or {})


def model(**fields: Any) -> Model:
    """A model of an unknown server."""
    return Model(**{"id": "m", "provider": "test", "api": "openai_responses", "base_url": "http://127.0.0.1:1/v1", **fields})


def dumped(event: Any) -> bytes:
    """The data of an event."""
    return event if isinstance(event, bytes) else json.dumps(event).encode()
