"""Chunks of the chat-completions protocol, for tests."""

from __future__ import annotations

from typing import Any

from laneway.llm.base import Model


def chunk(content: str | None = None, *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One streamed chunk."""
    if content is not None:
        delta["content"] = content
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def fragment(arguments: Any = None, *, index: Any = None, call_id: Any = None, name: str | None = None) -> dict[str, Any]:
    """A piece of a tool call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {"index": index, "id": call_id, "type": "function" if name else None, "function": function}
    return {key: value for key, value in piece.items() if value is not None}


def tools(*fragments: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """A chunk of tool call fragments."""
    return chunk(tool_calls=list(fragments), finish=finish)


def usage(**counts: Any) -> dict[str, Any]:
    """The last chunk, with the usage."""
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": counts}


def chat_model(**fields: Any) -> Model:
    """A model of an unknown server."""
    return Model(**{"id": "m", "provider": "test", "api": "openai_chat", "base_url": "http://127.0.0.1:1/v1", **fields})
