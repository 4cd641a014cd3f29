"""What a chunk of a streamed chat completion looks like: a typed view for the fast path, and a forgiving one for everything else."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct

from laneway.llm._usage import count, make_usage, with_billed_cost
from laneway.llm.base import Model
from laneway.llm.wire.openai_chat._messages import compact_json
from laneway.messages import Usage


class FunctionPiece(Struct):
    """A piece of a call's name and arguments."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(Struct):
    """A piece of a tool call, as `CallAssembler` takes it."""

    index: int | None = None
    id: str | None = None
    function: FunctionPiece | None = None


class Delta(Struct):
    """The typed view of a delta: fields of other types go through the slow path."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: FunctionPiece | None = None
    reasoning_details: list[dict[str, Any]] | None = None


class Choice(Struct):
    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


class Chunk(Struct):
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class HeadChunk(Chunk):
    """The first chunk, which also says who answers."""

    id: str | None = None
    model: str | None = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_head = msgspec.json.Decoder(HeadChunk).decode


# ---------------------------------------------------------------------------------------------------- forgiving


def chunk_from(value: dict[str, Any]) -> HeadChunk:
    """Make a chunk from decoded JSON, keeping what can be understood of it."""
    choices = [_choice(choice) for choice in _dicts(value.get("choices"))]
    return HeadChunk(
        id=_str(value.get("id")), model=_str(value.get("model")), choices=choices or None, usage=_dict(value.get("usage")), error=value.get("error")
    )


def _choice(value: dict[str, Any]) -> Choice:
    delta, message = _dict(value.get("delta")), _dict(value.get("message"))
    return Choice(
        delta=_delta(delta) if delta is not None else None,
        message=_delta(message) if message is not None else None,
        finish_reason=_str(value.get("finish_reason")),
        usage=_dict(value.get("usage")),
    )


def _delta(value: dict[str, Any]) -> Delta:
    """Make a delta; content in parts (text and thinking) is told apart."""
    content, reasoning = value.get("content"), _str(value.get("reasoning_content"))
    if isinstance(content, list):
        parts = _dicts(cast(Any, content))
        thoughts = "".join(_part_text(part) for part in parts if part.get("type") == "thinking")
        content = "".join(_part_text(part) for part in parts if part.get("type") != "thinking")
        reasoning = reasoning or thoughts or None
    return Delta(
        content=_str(content),
        reasoning_content=reasoning,
        reasoning=_str(value.get("reasoning")),
        reasoning_text=_str(value.get("reasoning_text")),
        refusal=_str(value.get("refusal")),
        tool_calls=[_call(call) for call in _dicts(value.get("tool_calls"))] or None,
        function_call=_function(value["function_call"]) if value.get("function_call") else None,
        reasoning_details=_dicts(value.get("reasoning_details")) or None,
    )


def _call(value: dict[str, Any]) -> CallPiece:
    call_id = value.get("id")
    return CallPiece(
        index=_index(value.get("index")), id=str(call_id) if isinstance(call_id, (str, int)) else None, function=_function(value.get("function"))
    )


def _index(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:9])
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _function(value: Any) -> FunctionPiece:
    """Make a piece of a function call; arguments that are an object instead of its text are written as text."""
    fields = _dict(value) or {}
    arguments = fields.get("arguments")
    text = arguments if arguments is None or isinstance(arguments, str) else compact_json(arguments)
    return FunctionPiece(name=_str(fields.get("name")), arguments=text)


def _part_text(part: dict[str, Any]) -> str:
    text = part.get("text", part.get("thinking"))
    return text if isinstance(text, str) else "".join(map(_part_text, _dicts(text)))


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _dict(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in cast("list[Any]", value) if isinstance(item, dict)] if isinstance(value, list) else []


# ---------------------------------------------------------------------------------------------------- usage


def read_usage(model: Model, raw: dict[str, Any]) -> Usage:
    """Return the usage that a server reports: its prompt tokens include the cached ones, its completion tokens the reasoning.

    Servers differ in where the cached tokens stand; where the total shows that the reasoning was left out of the completion tokens,
    it is added.
    """
    prompt, completion = count(raw.get("prompt_tokens")), count(raw.get("completion_tokens"))
    prompt_details = _dict(raw.get("prompt_tokens_details")) or {}
    completion_details = _dict(raw.get("completion_tokens_details")) or {}
    cached = (prompt_details.get("cached_tokens"), raw.get("prompt_cache_hit_tokens"), raw.get("cached_tokens"))
    read = next((count(value) for value in cached if value is not None), 0)
    write = count(prompt_details.get("cache_write_tokens"))
    thought = next((v for v in (completion_details.get("reasoning_tokens"), raw.get("reasoning_tokens")) if v is not None), None)
    reasoning = None if thought is None else count(thought)
    if reasoning and count(raw.get("total_tokens")) == prompt + completion + reasoning:
        completion += reasoning
    usage = make_usage(model, input=prompt - read - write, output=completion, cache_read=read, cache_write=write, reasoning=reasoning)
    return with_billed_cost(usage, raw) if "cost" in raw else usage
