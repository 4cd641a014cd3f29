"""Values as JSON for scripts: what a script tests for is always there, whatever its value.

Stored messages leave out what has its default. A reader of events must not have to know those defaults: how a response ended,
whether a result is an error, and every count of a usage are written out.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct

from laneway.messages import AssistantMessage, Cost, ToolResult, ToolResultMessage, Usage, encode


def plain(value: Any) -> Any:
    """Return a message, a result, a usage, or a collection of them with nothing left out that a script tests for; `encode` takes it."""
    match value:
        case AssistantMessage():
            return _whole(value, "stop_reason", "usage")
        case ToolResultMessage():
            return _whole(value, "is_error", "usage")
        case ToolResult():
            return _whole(value, "usage")
        case Usage() | Cost():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case list():
            return [plain(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _whole(value: Struct, *always: str) -> dict[str, Any]:
    """Return a struct as it is stored, with the fields named `always` in their places; a usage that nobody reported stays away."""
    fields: dict[str, Any] = msgspec.json.decode(encode(value))
    fields |= {name: plain(given) for name in always if (given := getattr(value, name)) is not None}
    return {name: fields[name] for name in ("role", *value.__struct_fields__) if name in fields}
