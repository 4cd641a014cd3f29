"""Chunks of Mistral's protocol, for tests."""

from __future__ import annotations

import json
from typing import Any

from laneway.llm.base import Model

DONE = b"[DONE]"


def chunk(content: Any = None, *, finish: str | None = None, usage: dict[str, Any] | None = None, **delta: Any) -> dict[str, Any]:
    """One streamed chunk; `content` is a text or a list of parts."""
    if content is not None:
        delta["content"] = content
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    value = {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return {**value, "usage": usage} if usage is not None else value


def thought(*texts: str, **fields: Any) -> dict[str, Any]:
    """A part of thinking."""
    return {"type": "thinking", "thinking": [{"type": "text", "text": text} for text in texts], **fields}


def text(value: str) -> dict[str, Any]:
    """A part of text."""
    return {"type": "text", "text": value}


def call(name: str | None = "read", arguments: Any = "{}", *, call_id: Any = "abc123XYZ", index: Any = 0) -> dict[str, Any]:
    """A call, or a piece of one."""
    value = {"id": call_id, "index": index, "function": {"name": name, "arguments": arguments}}
    return {key: item for key, item in value.items() if item is not None}


def calls(*pieces: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of calls."""
    return chunk(tool_calls=list(pieces), finish=finish, **fields)


def stop(reason: str = "stop", **usage: Any) -> dict[str, Any]:
    """The last chunk."""
    return chunk("", finish=reason, usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **usage})


HELLO = [chunk("", role="assistant"), chunk("Hel"), chunk("lo"), stop(), DONE]


def model(model_id: str = "m", **fields: Any) -> Model:
    """A model of an unknown server."""
    return Model(**{"id": model_id, "provider": "test", "api": "mistral", "base_url": "http://127.0.0.1:1", **fields})


def dumped(event: Any) -> bytes:
    """The data of an event."""
    return event if isinstance(event, bytes) else json.dumps(event).encode()
