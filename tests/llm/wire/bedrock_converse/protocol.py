"""Frames of the Converse protocol, for tests."""

from __future__ import annotations

import json
from struct import pack
from typing import Any
from zlib import crc32

from laneway.llm.base import Model
from llm.loopback import Answer, Step

FRAMES = "application/vnd.amazon.eventstream"


def header(name: str, value: str) -> bytes:
    """One header of a frame."""
    return bytes([len(name)]) + name.encode() + b"\x07" + pack(">H", len(value.encode())) + value.encode()


def raw_frame(headers: bytes, payload: bytes) -> bytes:
    """A frame around headers and payload."""
    lengths = pack(">II", 16 + len(headers) + len(payload), len(headers))
    before = lengths + pack(">I", crc32(lengths)) + headers + payload
    return before + pack(">I", crc32(before))


def frame(name: str, content: Any, *, kind: str = "event") -> bytes:
    """A frame as the service makes them; `content` becomes JSON."""
    payload = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    headers = header(f":{kind}-type", name) + header(":content-type", "application/json") + header(":message-type", kind)
    return raw_frame(headers, payload)


def exception(name: str, message: str = "Sorry.", **fields: Any) -> bytes:
    """An exception of the service inside of the stream."""
    return frame(name, {"message": message, **fields}, kind="exception")


def error(code: str, message: str) -> bytes:
    """An error that is all headers."""
    return raw_frame(header(":error-code", code) + header(":error-message", message) + header(":message-type", "error"), b"")


START = frame("messageStart", {"role": "assistant", "p": "abc"})


def delta(value: dict[str, Any], index: int | None = 0) -> bytes:
    """A piece of a block."""
    at = {} if index is None else {"contentBlockIndex": index}
    return frame("contentBlockDelta", {**at, "delta": value, "p": "abcdefgh"})


def text(value: str, index: int | None = 0) -> bytes:
    """A piece of text."""
    return delta({"text": value}, index)


def thought(value: str, index: int | None = 0) -> bytes:
    """A piece of thinking."""
    return delta({"reasoningContent": {"text": value}}, index)


def signature(value: str, index: int | None = 0) -> bytes:
    """A thought's signature, or a piece of it."""
    return delta({"reasoningContent": {"signature": value}}, index)


def secret(value: str, index: int | None = 0) -> bytes:
    """A piece of encrypted thinking."""
    return delta({"reasoningContent": {"redactedContent": value}}, index)


def call(name: str = "read", index: int | None = 0, *, call_id: str = "tooluse_1", **fields: Any) -> bytes:
    """The beginning of a call."""
    at = {} if index is None else {"contentBlockIndex": index}
    return frame("contentBlockStart", {**at, "start": {"toolUse": {"toolUseId": call_id, "name": name, **fields}}})


def arguments(value: str, index: int | None = 0) -> bytes:
    """A piece of a call's input."""
    return delta({"toolUse": {"input": value}}, index)


def end(index: int = 0) -> bytes:
    """The end of a block."""
    return frame("contentBlockStop", {"contentBlockIndex": index})


def stop(reason: str = "end_turn") -> bytes:
    """The end of the message."""
    return frame("messageStop", {"stopReason": reason})


def usage(input: int = 10, output: int = 5, *, fields: dict[str, Any] | None = None, **counts: Any) -> bytes:
    """The last frame; `counts` are further fields of the usage."""
    counted = {"inputTokens": input, "outputTokens": output, "totalTokens": input + output, **counts}
    return frame("metadata", {"usage": counted, "metrics": {"latencyMs": 1}, **(fields or {})})


def called(name: str, text: str, call_id: str = "tooluse_1", index: int = 0) -> list[bytes]:
    """A whole call."""
    return [call(name, index, call_id=call_id), arguments(text[:3], index), arguments(text[3:], index), end(index)]


HELLO = [START, text("Hel"), text("lo"), end(), stop(), usage()]


def reply(*steps: Step, headers: dict[str, str] | None = None) -> Answer:
    """An answer with one chunk per frame."""
    return Answer(steps=steps, content_type=FRAMES, headers={"x-amzn-requestid": "req-1", **(headers or {})})


def model(model_id: str = "anthropic.claude-sonnet-4-5-20250929-v1:0", **fields: Any) -> Model:
    """A model behind a server of one's own."""
    return Model(**{"id": model_id, "provider": "test", "api": "bedrock_converse", "base_url": "http://127.0.0.1:1", **fields})
