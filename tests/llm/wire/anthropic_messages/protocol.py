"""Events of the Anthropic messages protocol, for tests."""

from __future__ import annotations

import json
from typing import Any

from laneway.llm.base import Model
from llm.loopback import Answer, Step, sse


def start(**usage: Any) -> dict[str, Any]:
    """The first event."""
    counts = {"input_tokens": 10, "output_tokens": 1, **usage}
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None,
        "usage": counts,
    }  # fmt: skip
    return {"type": "message_start", "message": message}


def block(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    """The start of a block."""
    empty: dict[str, dict[str, Any]] = {
        "text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"id": "toolu_1", "name": "read", "input": {}},
        "redacted_thinking": {"data": "R1"},
    }  # fmt: skip
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **empty.get(kind, {}), **fields}}


def text(value: str, index: int = 0) -> dict[str, Any]:
    """A piece of text."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": value}}


def thought(value: str, index: int = 0) -> dict[str, Any]:
    """A piece of thinking."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": "thinking_delta", "thinking": value}}


def signature(value: str, index: int = 0) -> dict[str, Any]:
    """A piece of a signature."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": "signature_delta", "signature": value}}


def arguments(value: str, index: int = 0) -> dict[str, Any]:
    """A piece of a call's arguments."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": value}}


def end(index: int = 0) -> dict[str, Any]:
    """The end of a block."""
    return {"type": "content_block_stop", "index": index}


def reason(word: str | None = "end_turn", *, details: Any = None, **usage: Any) -> dict[str, Any]:
    """Why the response ends, and the usage."""
    delta: dict[str, Any] = {"stop_reason": word, "stop_sequence": None}
    if details is not None:
        delta["stop_details"] = details
    return {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20, **usage}}


STOP = {"type": "message_stop"}
PING = {"type": "ping"}
HELLO = [start(), block(0, "text"), text("Hel"), PING, text("lo"), end(), reason(), STOP]


def said(value: str) -> list[dict[str, Any]]:
    """A whole response that is only text."""
    return [start(), block(0, "text"), text(value), end(), reason(), STOP]


def called(name: str = "read", raw: str = "{}", call_id: str = "toolu_1", index: int = 0) -> list[dict[str, Any]]:
    """The events of one call."""
    return [block(index, "tool_use", id=call_id, name=name), arguments(raw, index), end(index)]


def wire(*events: Any) -> bytes:
    """Events with their names, as the server sends them."""
    return b"".join(sse(event, name=event.get("type") if isinstance(event, dict) else None) for event in events)


def reply(*events: Any, headers: dict[str, str] | None = None) -> Answer:
    """An answer with one chunk per event; what is no object is a step of its own."""
    steps: list[Step] = [wire(event) if isinstance(event, dict) else event for event in events]
    return Answer(steps=steps, headers=headers or {})


def model(**fields: Any) -> Model:
    """A model of an unknown server."""
    return Model(**{"id": "m", "provider": "test", "api": "anthropic_messages", "base_url": "http://127.0.0.1:1", "max_tokens": 8000, **fields})


def dumped(event: Any) -> bytes:
    """The data of an event."""
    return event if isinstance(event, bytes) else json.dumps(event).encode()
