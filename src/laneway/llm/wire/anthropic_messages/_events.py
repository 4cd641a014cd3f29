"""What the events of a streamed message look like: a typed view for the fast path, and a forgiving one for everything else."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
from msgspec import Struct

from laneway.llm._usage import count, make_usage
from laneway.llm.base import Model
from laneway.messages import Usage


class Delta(Struct):
    """A piece of a block, or (in `message_delta`) of the message."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None


class Event(Struct):
    """One event; which fields are set depends on its type."""

    type: str | None = None
    index: int | None = None
    delta: Delta | None = None
    content_block: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    input_transformations: list[Any] | None = None


decode_event = msgspec.json.Decoder(Event).decode


# ---------------------------------------------------------------------------------------------------- forgiving


def event_from(value: dict[str, Any]) -> Event:
    """Make an event from decoded JSON, keeping what can be understood of it."""
    index, transformations = value.get("index"), value.get("input_transformations")
    delta = as_dict(value.get("delta"))
    return Event(
        type=as_str(value.get("type")),
        index=index if isinstance(index, int) and not isinstance(index, bool) else None,
        delta=_delta(delta) if delta is not None else None,
        content_block=as_dict(value.get("content_block")),
        message=as_dict(value.get("message")),
        usage=as_dict(value.get("usage")),
        error=value.get("error"),
        input_transformations=cast("list[Any]", transformations) if isinstance(transformations, list) else None,
    )


def _delta(value: dict[str, Any]) -> Delta:
    texts = {name: as_str(value.get(name)) for name in ("type", "text", "thinking", "partial_json", "signature", "stop_reason")}
    return Delta(**texts, stop_details=as_dict(value.get("stop_details")))


def as_str(value: Any) -> str | None:
    """Return the value if it is a string."""
    return value if isinstance(value, str) else None


def as_dict(value: Any) -> dict[str, Any] | None:
    """Return the value if it is an object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def whole_message(value: dict[str, Any]) -> list[Event]:
    """Return the events that say the same as a message that was sent in one piece."""
    content: Any = value.get("content")
    events = [Event(type="message_start", message=value)]
    for index, block in enumerate(cast("list[Any]", content) if isinstance(content, list) else ()):
        events += [Event(type="content_block_start", index=index, content_block=as_dict(block)), Event(type="content_block_stop", index=index)]
    stop = Delta(stop_reason=as_str(value.get("stop_reason")), stop_details=as_dict(value.get("stop_details")))
    return [*events, Event(type="message_delta", delta=stop), Event(type="message_stop")]


def json_text(value: Any) -> str:
    """Write arguments that came as an object as the text that they are elsewhere."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---------------------------------------------------------------------------------------------------- usage


class Counts:
    """The token counts of a response. Reports are cumulative: for each count the last one that is present holds."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def take(self, raw: dict[str, Any], model: Model) -> Usage:
        """Take a report and return the usage so far, priced as `model`'s."""
        named = {
            "input": raw.get("input_tokens"),
            "output": raw.get("output_tokens"),
            "cache_read": raw.get("cache_read_input_tokens"),
            "cache_write": raw.get("cache_creation_input_tokens"),
            "cache_write_1h": (as_dict(raw.get("cache_creation")) or {}).get("ephemeral_1h_input_tokens"),
            "reasoning": (as_dict(raw.get("output_tokens_details")) or {}).get("thinking_tokens"),
        }
        self._counts.update((name, count(value)) for name, value in named.items() if value is not None)
        return self.usage(model)

    def usage(self, model: Model) -> Usage:
        """Return the usage so far, priced as `model`'s."""
        return make_usage(model, **self._counts)
