"""What a chunk of a streamed response looks like: a typed view for the fast path, and a forgiving one for everything else."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
from msgspec import Struct

from laneway.llm._usage import count, make_usage
from laneway.llm.base import Model
from laneway.messages import Usage


class FunctionCall(Struct):
    """A whole call: the protocol does not cut arguments into pieces."""

    name: str | None = None
    args: dict[str, Any] | None = None
    id: str | None = None


class Part(Struct, rename="camel"):
    """A piece of text or thought, or a call. Parts of other kinds have none of the three."""

    text: str | None = None
    thought: bool | None = None
    function_call: FunctionCall | None = None
    thought_signature: str | None = None


class Content(Struct):
    parts: list[Part] | None = None


class Candidate(Struct, rename="camel"):
    index: int | None = None
    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class Counts(Struct, rename="camel", frozen=True, gc=False):
    """The token counts so far, as the server reports them with every chunk."""

    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    total_token_count: int | None = None


class Chunk(Struct, rename="camel"):
    candidates: list[Candidate] | None = None
    usage_metadata: Counts | None = None
    prompt_feedback: dict[str, Any] | None = None
    error: Any = None


class HeadChunk(Chunk, rename="camel"):
    """The first chunks, which also say who answers."""

    response_id: str | None = None
    model_version: str | None = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_head = msgspec.json.Decoder(HeadChunk).decode


# ---------------------------------------------------------------------------------------------------- forgiving


def chunk_from(value: dict[str, Any]) -> HeadChunk:
    """Make a chunk from decoded JSON, keeping what can be understood of it."""
    usage = _dict(value.get("usageMetadata"))
    return HeadChunk(
        response_id=_str(value.get("responseId")),
        model_version=_str(value.get("modelVersion")),
        candidates=[_candidate(candidate) for candidate in _dicts(value.get("candidates"))] or None,
        usage_metadata=msgspec.convert({key: count(number) for key, number in usage.items()}, Counts) if usage is not None else None,
        prompt_feedback=_dict(value.get("promptFeedback")),
        error=value.get("error"),
    )


def _candidate(value: dict[str, Any]) -> Candidate:
    index, content = value.get("index"), _dict(value.get("content"))
    return Candidate(
        index=index if type(index) is int else None,
        content=Content(parts=[_part(part) for part in _dicts(content.get("parts"))]) if content is not None else None,
        finish_reason=_str(value.get("finishReason")),
        finish_message=_str(value.get("finishMessage")),
    )


def _part(value: dict[str, Any]) -> Part:
    call = _dict(value.get("functionCall"))
    return Part(
        text=_str(value.get("text")),
        thought=value.get("thought") is True,
        function_call=_call(call) if call is not None else None,
        thought_signature=_str(value.get("thoughtSignature")),
    )


def _call(value: dict[str, Any]) -> FunctionCall:
    """Make a call; arguments may have come as text."""
    args: Any = value.get("args")
    call_id = value.get("id")
    if isinstance(args, str):
        try:
            args = json.loads(args)
        except (ValueError, RecursionError):
            args = None
    return FunctionCall(name=_str(value.get("name")), args=_dict(args), id=str(call_id) if isinstance(call_id, (str, int)) else None)


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _dict(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in cast("list[Any]", value) if isinstance(item, dict)] if isinstance(value, list) else []


# ---------------------------------------------------------------------------------------------------- usage


def read_usage(model: Model, counts: Counts) -> Usage:
    """Return the usage that the server reports: its prompt includes what was cached, its candidates exclude the thoughts."""
    cached, thoughts = count(counts.cached_content_token_count), counts.thoughts_token_count
    return make_usage(
        model,
        input=count(counts.prompt_token_count) + count(counts.tool_use_prompt_token_count) - cached,
        output=count(counts.candidates_token_count) + count(thoughts),
        cache_read=cached,
        reasoning=None if thoughts is None else count(thoughts),
        total_tokens=count(counts.total_token_count) or None,
    )
