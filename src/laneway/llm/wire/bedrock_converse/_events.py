"""What the events of a response look like: a typed view for the fast path, and a forgiving one for everything else."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct

from laneway.llm._usage import count, make_usage
from laneway.llm.base import Model
from laneway.messages import Usage

TIER_MULTIPLIERS = {"flex": 0.5, "priority": 1.75}
"""What the service tiers that are not the standard one multiply prices by."""


class Piece(Struct, gc=False):
    """A piece of a tool call's input."""

    input: str | None = None


class Thought(Struct, gc=False):
    """A piece of reasoning: its text, its signature, or (base64) what the provider keeps to itself."""

    text: str | None = None
    signature: str | None = None
    redactedContent: str | None = None


class Delta(Struct, gc=False):
    """A piece of a block; one of the fields is set."""

    text: str | None = None
    toolUse: Piece | None = None
    reasoningContent: Thought | None = None


class BlockDelta(Struct, gc=False):
    """The event `contentBlockDelta`."""

    contentBlockIndex: int | None = None
    delta: Delta | None = None


decode_delta = msgspec.json.Decoder(BlockDelta).decode


# ---------------------------------------------------------------------------------------------------- forgiving


def delta_from(value: Any) -> BlockDelta:
    """Make a delta from decoded JSON, keeping what can be understood of it."""
    fields = as_dict(value) or {}
    delta = as_dict(fields.get("delta"))
    if delta is None:
        return BlockDelta(contentBlockIndex=as_index(fields))
    piece, thought = as_dict(delta.get("toolUse")), as_dict(delta.get("reasoningContent"))
    return BlockDelta(
        contentBlockIndex=as_index(fields),
        delta=Delta(
            text=as_str(delta.get("text")),
            toolUse=Piece(input=as_str(piece.get("input"))) if piece is not None else None,
            reasoningContent=_thought(thought) if thought is not None else None,
        ),
    )


def _thought(value: dict[str, Any]) -> Thought:
    return Thought(**{name: as_str(value.get(name)) for name in ("text", "signature", "redactedContent")})


def as_str(value: Any) -> str | None:
    """Return the value if it is a string."""
    return value if isinstance(value, str) else None


def as_dict(value: Any) -> dict[str, Any] | None:
    """Return the value if it is an object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_index(fields: dict[str, Any]) -> int | None:
    """Return the block's index."""
    index = fields.get("contentBlockIndex")
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def whole_message(value: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the events (name and content) that say the same as a response that was sent in one piece."""
    message = as_dict((as_dict(value.get("output")) or {}).get("message")) or {}
    content: Any = message.get("content")
    events: list[tuple[str, dict[str, Any]]] = [("messageStart", {})]
    for index, item in enumerate(cast("list[Any]", content) if isinstance(content, list) else ()):
        at = {"contentBlockIndex": index}
        events += [(name, {**at, **fields}) for name, fields in _whole_block(as_dict(item) or {})]
        events.append(("contentBlockStop", at))
    events.append(("messageStop", {"stopReason": value.get("stopReason")}))
    return [*events, ("metadata", {name: value.get(name) for name in ("usage", "serviceTier", "trace")})]


def _whole_block(block: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    call, thought = as_dict(block.get("toolUse")), as_dict(block.get("reasoningContent"))
    if call is not None:
        text = msgspec.json.encode(call.get("input") or {}).decode()
        return [("contentBlockStart", {"start": {"toolUse": call}}), ("contentBlockDelta", {"delta": {"toolUse": {"input": text}}})]
    if thought is not None:
        return [("contentBlockDelta", {"delta": {"reasoningContent": as_dict(thought.get("reasoningText")) or thought}})]
    return [("contentBlockDelta", {"delta": block})]


# ---------------------------------------------------------------------------------------------------- usage


def read_usage(raw: dict[str, Any], model: Model, tier: str | None) -> Usage:
    """Return the usage of the event `metadata`; its `inputTokens` exclude what was read from the cache and written to it."""
    details: Any = raw.get("cacheDetails")
    written = [as_dict(item) or {} for item in cast("list[Any]", details)] if isinstance(details, list) else []
    hours = [count(item.get("inputTokens")) for item in written if item.get("ttl") == "1h"]
    cache_write = count(raw.get("cacheWriteInputTokens"))
    total = raw.get("totalTokens")
    return make_usage(
        model,
        input=count(raw.get("inputTokens")),
        output=count(raw.get("outputTokens")),
        cache_read=count(raw.get("cacheReadInputTokens")),
        cache_write=cache_write,
        cache_write_1h=min(sum(hours), cache_write) if written else None,
        total_tokens=count(total) if total is not None else None,
        multiplier=TIER_MULTIPLIERS.get(tier or "", 1.0),
    )
