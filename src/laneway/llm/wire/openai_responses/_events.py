"""What the events of a streamed response look like: a typed view for the fast path, and a forgiving one for everything else."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from laneway.llm._usage import count, make_usage, service_tier_multiplier, with_billed_cost
from laneway.llm.base import Model
from laneway.messages import Usage

_NOTHING = Raw(b"")


class Event(Struct):
    """One event; which fields are set depends on its type. `item` and `response` are the JSON text as it came."""

    type: str | None = None
    output_index: int | None = None
    item_id: str | None = None
    delta: str | None = None
    summary_index: int | None = None
    content_index: int | None = None
    arguments: str | None = None
    input: str | None = None
    item: Raw = _NOTHING
    response: Raw = _NOTHING
    error: Any = None
    object: str | None = None


decode_event = msgspec.json.Decoder(Event).decode


def event_from(value: dict[str, Any]) -> Event:
    """Make an event from decoded JSON, keeping what can be understood of it."""
    fields: dict[str, Any] = {name: as_str(value.get(name)) for name in ("type", "item_id", "delta", "arguments", "input", "object")}
    fields |= {name: _index(value.get(name)) for name in ("output_index", "summary_index", "content_index")}
    return Event(**fields, item=_raw(value.get("item")), response=_raw(value.get("response")), error=value.get("error"))


def _index(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _raw(value: Any) -> Raw:
    """Write it as ASCII, so that half characters survive until they are looked at."""
    return Raw(json.dumps(value, separators=(",", ":")).encode()) if isinstance(value, dict) else _NOTHING


# ---------------------------------------------------------------------------------------------------- parts of objects


def as_str(value: Any) -> str | None:
    """Return the value if it is a string."""
    return value if isinstance(value, str) else None


def as_dict(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    return [item for item in cast("list[Any]", value) if isinstance(item, dict)] if isinstance(value, list) else []


def message_text(item: dict[str, Any]) -> str | None:
    """Return what a message item says, refusals included; None if it has no content."""
    parts = [text for part in dicts(item.get("content")) if (text := as_str(part.get("text")) or as_str(part.get("refusal")))]
    return "".join(parts) if parts else None


def reasoning_text(item: dict[str, Any]) -> str | None:
    """Return what a reasoning item shows: its summary, else its text; None if it shows nothing."""
    for name in ("summary", "content"):
        parts = [text for part in dicts(item.get(name)) if (text := as_str(part.get("text")))]
        if parts:
            return "\n\n".join(parts)
    return None


# ---------------------------------------------------------------------------------------------------- usage


def read_usage(model: Model, raw: dict[str, Any], *, tier: str | None) -> Usage:
    """Return the usage that the provider reports: its input includes what was cached, its output the reasoning. `tier` multiplies the prices."""
    details, output_details = as_dict(raw.get("input_tokens_details")), as_dict(raw.get("output_tokens_details"))
    read, write = count(details.get("cached_tokens")), count(details.get("cache_write_tokens"))
    reasoning = output_details.get("reasoning_tokens")
    total = raw.get("total_tokens")
    usage = make_usage(
        model,
        input=count(raw.get("input_tokens")) - read - write,
        output=count(raw.get("output_tokens")),
        cache_read=read,
        cache_write=write,
        reasoning=None if reasoning is None else count(reasoning),
        total_tokens=count(total) or None,
        multiplier=service_tier_multiplier(tier, model.id),
    )
    return with_billed_cost(usage, raw) if "cost" in raw else usage
