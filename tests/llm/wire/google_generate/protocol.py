"""Chunks of the Gemini protocol, for tests."""

from __future__ import annotations

import json
from typing import Any

from laneway.llm.base import Model


def text(value: str | None = None, **fields: Any) -> dict[str, Any]:
    """A part of text."""
    return {"text": value, **fields} if value is not None else fields


def thought(value: str, **fields: Any) -> dict[str, Any]:
    """A part of thought."""
    return {"text": value, "thought": True, **fields}


def call(name: str = "read", args: Any = None, *, call_id: str | None = None, signature: str | None = None) -> dict[str, Any]:
    """A part that is a call."""
    function = {"name": name, "args": {} if args is None else args, **({"id": call_id} if call_id is not None else {})}
    return {"functionCall": function, **({"thoughtSignature": signature} if signature is not None else {})}


def chunk(*parts: Any, finish: str | None = None, usage: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """One streamed chunk; strings are text."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [text(p) if isinstance(p, str) else p for p in parts]}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    value: dict[str, Any] = {"candidates": [candidate], "modelVersion": "gemini-3-flash", "responseId": "r1"}
    value["usageMetadata"] = usage or {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    return {**value, **fields}


def stop(reason: str = "STOP", **fields: Any) -> dict[str, Any]:
    """The last chunk, which often has an empty text."""
    return chunk("", finish=reason, **fields)


HELLO = [chunk("Hel"), chunk("lo"), stop()]
COUNTS = {"promptTokenCount": 100, "cachedContentTokenCount": 20, "candidatesTokenCount": 5, "thoughtsTokenCount": 7, "totalTokenCount": 112}


def model(model_id: str = "gemini-3-flash", **fields: Any) -> Model:
    """A model of an unknown server."""
    return Model(**{"id": model_id, "provider": "test", "api": "google_generate", "base_url": "http://127.0.0.1:1/v1beta", **fields})


def dumped(event: Any) -> bytes:
    """The data of an event."""
    return event if isinstance(event, bytes) else json.dumps(event).encode()
