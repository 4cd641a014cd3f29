"""What models write as arguments, made what the tools' schemas ask for."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from laneway.errors import ToolError

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


def as_object(arguments: Any, aliases: dict[str, str]) -> Any:
    """Return a copy with snake_case names and other tools' names for the same thing mapped; anything but an object is returned as it is.

    A name that the tool itself knows wins over an alias of it; extra keys stay, and are ignored.
    """
    if not isinstance(arguments, dict):
        return arguments
    given = {_HUMP.sub(r"_\1", key).lower(): value for key, value in cast("dict[str, Any]", arguments).items()}
    for alias, name in aliases.items():
        if alias in given and given.get(name) is None:
            given[name] = given.pop(alias)
    return given


def required(arguments: dict[str, Any], name: str) -> str:
    """Return a text argument that must be there."""
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ToolError(f"{name} is missing: pass it as text" if value is None else f"{name} must be text, not {type(value).__name__}")
    return value


def optional(arguments: dict[str, Any], name: str) -> str | None:
    """Return a text argument, None if it is not there or empty."""
    return None if arguments.get(name) in (None, "") else required(arguments, name)


def at_least_one(arguments: dict[str, Any], name: str, default: int) -> int:
    """Return a whole number; below 1 means 1."""
    number = _number(arguments, name)
    return default if number is None else max(1, number)


def not_negative(arguments: dict[str, Any], name: str) -> int:
    """Return a whole number; absent or below 0 means 0."""
    return max(0, _number(arguments, name) or 0)


def flag(arguments: dict[str, Any], name: str) -> bool:
    """Return a yes-or-no argument; absent means no."""
    value = arguments.get(name)
    return value.strip().lower() in ("true", "yes", "1") if isinstance(value, str) else bool(value)


def parsed(value: Any) -> Any:
    """Return the JSON value that a string holds, or what was given if it holds none."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, strict=False)
    except ValueError:
        return value


def _number(arguments: dict[str, Any], name: str) -> int | None:
    value = arguments.get(name)
    if value is None or value == "":
        return None
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        raise ToolError(f"{name} must be a whole number, not {value!r}") from None
