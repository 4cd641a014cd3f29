"""What a chunk of a streamed completion looks like: a typed view for the fast path, and a forgiving one for everything else."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct

from laneway.llm._usage import count, make_usage
from laneway.llm.base import Model
from laneway.messages import Usage


class FunctionPiece(Struct):
    """A piece of a call's name and arguments, which may come as an object too."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallPiece(Struct):
    """A call, or a piece of one."""

    index: int | None = None
    id: str | None = None
    function: FunctionPiece | None = None


class Delta(Struct):
    """What is new: a text, or parts (text and thinking)."""

    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[CallPiece] | None = None


class Choice(Struct):
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class Chunk(Struct):
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    id: str | None = None
    model: str | None = None


decode_chunk = msgspec.json.Decoder(Chunk).decode


# ---------------------------------------------------------------------------------------------------- forgiving


def chunk_from(value: dict[str, Any]) -> Chunk:
    """Make a chunk from decoded JSON, keeping what can be understood of it."""
    return Chunk(
        choices=[_choice(choice) for choice in dicts(value.get("choices"))] or None,
        usage=_dict(value.get("usage")),
        error=value.get("error"),
        id=_str(value.get("id")),
        model=_str(value.get("model")),
    )


def _choice(value: dict[str, Any]) -> Choice:
    delta, message = _dict(value.get("delta")), _dict(value.get("message"))
    return Choice(
        delta=_delta(delta) if delta is not None else None,
        message=_delta(message) if message is not None else None,
        finish_reason=_str(value.get("finish_reason")),
    )


def _delta(value: dict[str, Any]) -> Delta:
    content = value.get("content")
    return Delta(
        content=dicts(cast(Any, content)) if isinstance(content, list) else _str(content),
        tool_calls=[_call(call) for call in dicts(value.get("tool_calls"))] or None,
    )


def _call(value: dict[str, Any]) -> CallPiece:
    index, call_id, function = value.get("index"), value.get("id"), _dict(value.get("function")) or {}
    arguments = function.get("arguments")
    return CallPiece(
        index=index if type(index) is int else None,
        id=str(call_id) if isinstance(call_id, (str, int)) else None,
        function=FunctionPiece(name=_str(function.get("name")), arguments=_str(arguments) if isinstance(arguments, str) else _dict(arguments)),
    )


def part_text(part: dict[str, Any]) -> str:
    """Return the text of a part: its own, or that of the parts inside of it."""
    text = part.get("text", part.get("thinking"))
    return text if isinstance(text, str) else "".join(map(part_text, dicts(text)))


def dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    return [item for item in cast("list[Any]", value) if isinstance(item, dict)] if isinstance(value, list) else []


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _dict(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


# ---------------------------------------------------------------------------------------------------- usage


def read_usage(model: Model, raw: dict[str, Any]) -> Usage:
    """Return the usage that the server reports: its prompt tokens include the cached ones."""
    details = _dict(raw.get("prompt_tokens_details")) or _dict(raw.get("prompt_token_details")) or {}
    cached = count(details.get("cached_tokens", raw.get("num_cached_tokens")))
    return make_usage(
        model,
        input=count(raw.get("prompt_tokens")) - cached,
        output=count(raw.get("completion_tokens")),
        cache_read=cached,
        total_tokens=count(raw.get("total_tokens")) or None,
    )
