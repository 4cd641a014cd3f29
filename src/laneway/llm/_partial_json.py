"""The JSON text of a tool call's arguments: lenient while it streams (for display), strict once at the end (for execution)."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, cast

import msgspec

if TYPE_CHECKING:
    import json

_ESCAPES = {c: f"\\u{c:04x}" for c in range(0x20)} | {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x08: "\\b", 0x0C: "\\f"}
_STRING = r'(?s)"(?:[^"\\]|\\.)*(?:"|\\?\Z)'
_BAD_ESCAPE = r'(?s)\\(u[0-9a-fA-F]{4}|["\\/bfnrt]|.|\Z)'


def repair(text: str) -> str:
    """Escape what some models write raw inside strings: control characters, and backslashes that escape nothing."""
    return re.sub(_STRING, lambda m: re.sub(_BAD_ESCAPE, _fix_escape, m.group()).translate(_ESCAPES), text)


def _fix_escape(match: re.Match[str]) -> str:
    what = match.group(1)
    return match.group() if what and (len(what) == 5 or (len(what) == 1 and what in '"\\/bfnrt')) else "\\\\" + what


def parse_partial(text: str) -> dict[str, Any]:
    """Return the object that unfinished JSON text holds so far; `{}` for anything else. Never raises."""
    if not text.strip():
        return {}
    import jiter  # here and below: what streams tool calls pays for the parsers, not whoever imports laneway

    for candidate in (text, None):
        source = repair(text) if candidate is None else candidate
        try:
            value = jiter.from_json(source.encode("utf-8", "surrogatepass"), partial_mode="trailing-strings", allow_inf_nan=False)
        except ValueError:
            continue
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return {}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@functools.cache
def _strict() -> json.JSONDecoder:
    import json

    return json.JSONDecoder(parse_constant=_no_constant)


def parse_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """Parse the complete text strictly: `(arguments, None)`, or `({}, why)`. Blank text and `null` are no arguments: `{}`.

    The only leniency is `repair`, which changes no structure; a text that was cut off is never completed.
    """
    stripped = text.strip()
    if not stripped or stripped == "null":
        return {}, None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):  # a lone surrogate, a repairable string, or not JSON
        value = None
    if type(value) is dict:
        return cast("dict[str, Any]", value), None
    try:
        try:
            value = _strict().decode(text)
        except ValueError:
            fixed = repair(text)
            if fixed == text:
                raise
            value = _strict().decode(fixed)
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not complete, valid JSON ({error}); received: {_shorten(text)}"
    if not isinstance(value, dict):
        return {}, f"the arguments must be a JSON object, not {type(value).__name__}; received: {_shorten(text)}"
    return cast("dict[str, Any]", value), None


def _shorten(text: str, limit: int = 2000) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
