"""The fast way to accept arguments: a checker for plain JSON Schemas that copies a valid value in one pass.

It only ever says yes to a value that the full way (`laneway.tools._coerce`, then the JSON Schema validator) would accept unchanged; for
everything else it says `MISS` and the full way decides. It knows the common keywords; a schema with any other is not plain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

MISS: Any = object()
Check = Callable[[Any], Any]

_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "format"}
_DRAFTS = ("https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema")
_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "null": type(None)}
_KEYWORDS: dict[str, set[str]] = {
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set(),
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
_EXACT = 2**53  # above it, a validator that compares as floats may see it differently


class _Undecided(Exception):
    """The value may need a change (5.0 for an integer), or a comparison is not exact: only the full way can tell."""


def compile_plain(schema: dict[str, Any]) -> Check | None:
    """Return a check for the arguments object that `schema` describes, None if the schema is not plain.

    The check returns a copy of a valid value that shares no list or dict with it, else `MISS`.
    """
    root = dict(schema)
    if root.pop("$schema", _DRAFTS[0]).rstrip("#") not in _DRAFTS or root.get("type") != "object":
        return None
    check = _compile(root)
    if check is None:
        return None

    def check_or_miss(value: Any) -> Any:
        try:
            return check(value)
        except _Undecided:
            return MISS

    return check_or_miss


def _compile(schema: Any) -> Check | None:
    if schema is True:
        return copy_json
    if not isinstance(schema, dict):
        return None
    node = _said(cast("dict[str, Any]", schema))
    if not node:
        return copy_json
    if "anyOf" in node:
        return _any_of(node["anyOf"]) if len(node) == 1 else None
    values = node.pop("enum", None)
    kind = node.pop("type", None)
    if values is not None:
        return _enum(values, kind) if not node else None
    if not isinstance(kind, str) or kind not in _KEYWORDS or not node.keys() <= _KEYWORDS[kind]:
        return None
    if kind == "object":
        return _object(node)
    if kind == "array":
        return _array(node)
    if kind == "string":
        return _string(node)
    if kind in ("integer", "number"):
        return _number(node, kind)
    return _exactly(_TYPES[kind])


def _said(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a schema asks for, without what it only remarks."""
    return {key: value for key, value in schema.items() if key not in _ANNOTATIONS}


def copy_json(value: Any) -> Any:
    """Copy the lists and dicts of a JSON value."""
    if type(value) is dict:
        return {key: copy_json(item) for key, item in cast("dict[str, Any]", value).items()}
    return [copy_json(item) for item in cast("list[Any]", value)] if type(value) is list else value


def _is_plain_scalar(value: Any) -> bool:
    return value is None or type(value) in (str, int, bool)


def _exactly(wanted: type) -> Check:
    return lambda value: value if type(value) is wanted else MISS


def _enum(values: Any, kind: Any) -> Check | None:
    if kind is not None and kind not in _TYPES:
        return None
    if not isinstance(values, list):
        return None
    allowed: set[tuple[Any, Any]] = set()
    for value in cast("list[Any]", values):
        if not _is_plain_scalar(value):
            return None
        if kind is None or type(value) is _TYPES[kind]:
            allowed.add((cast(Any, type(value)), value))

    def check(value: Any) -> Any:
        if type(value) is float:
            raise _Undecided
        return value if _is_plain_scalar(value) and (type(value), value) in allowed else MISS

    return check


def _bare_type(schema: Any) -> type | None:
    """Return the type of a scalar of which the schema says nothing else."""
    said = _said(cast("dict[str, Any]", schema)) if isinstance(schema, dict) else {}
    return _TYPES.get(said["type"]) if said.keys() == {"type"} and isinstance(said["type"], str) else None


def _any_of(members: Any) -> Check | None:
    if not isinstance(members, list) or not members:
        return None
    checks = [_compile(member) for member in cast("list[Any]", members)]
    if None in checks:
        return None

    def check(value: Any) -> Any:
        for member in cast("list[Check]", checks):
            copied = member(value)
            if copied is not MISS:
                return copied
        return MISS

    return check


def _counts(node: dict[str, Any], *keywords: str) -> bool:
    """Whether the limits that are there are counts, as they must be."""
    return all(type(node.get(keyword, 0)) is int and node.get(keyword, 0) >= 0 for keyword in keywords)


def _string(node: dict[str, Any]) -> Check | None:
    if not node:
        return _exactly(str)
    if not _counts(node, "minLength", "maxLength"):
        return None
    low, high = node.get("minLength", 0), node.get("maxLength", math.inf)
    return lambda value: value if type(value) is str and low <= len(value) <= high else MISS


def _number(node: dict[str, Any], kind: str) -> Check | None:
    limits = node.values()
    if not all(type(limit) in (int, float) and abs(limit) < _EXACT for limit in limits):
        return None
    low, high = node.get("minimum", -math.inf), node.get("maximum", math.inf)
    above, below = node.get("exclusiveMinimum", -math.inf), node.get("exclusiveMaximum", math.inf)
    whole = kind == "integer"

    def check_whole(value: Any) -> Any:
        if type(value) is int:
            return value
        if type(value) is float:
            raise _Undecided
        return MISS

    if whole and not limits:
        return check_whole

    def check(value: Any) -> Any:
        if type(value) is float:
            if whole or not math.isfinite(value):
                raise _Undecided
        elif type(value) is not int:
            return MISS
        if not limits:
            return value
        if not abs(value) < _EXACT:
            raise _Undecided
        return value if low <= value <= high and above < value < below else MISS

    return check


def _array(node: dict[str, Any]) -> Check | None:
    item = _compile(node.get("items", True))
    if item is None or not _counts(node, "minItems", "maxItems"):
        return None
    low, high = node.get("minItems", 0), node.get("maxItems", math.inf)

    def check(value: Any) -> Any:
        if type(value) is not list or not low <= len(cast("list[Any]", value)) <= high:
            return MISS
        copied = [item(element) for element in cast("list[Any]", value)]
        return MISS if MISS in copied else copied

    return check


def _object(node: dict[str, Any]) -> Check | None:
    properties, required = node.get("properties", {}), node.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or not all(isinstance(name, str) for name in cast("list[Any]", required)):
        return None
    checks: dict[str, Check] = {}
    for name, schema in cast("dict[str, Any]", properties).items():
        check = _compile(schema)
        if check is None:
            return None
        checks[name] = check
    extra = node.get("additionalProperties", True)
    rest = None if extra is False else _compile(extra)
    if rest is None and extra is not False:
        return None
    needed = frozenset(cast("list[str]", required))
    bare = {name: kind for name, schema in cast("dict[str, Any]", properties).items() if (kind := _bare_type(schema)) is not None}

    def check_object(value: Any) -> Any:
        given: Any = value  # not a cast: that is a function call, for every call of a tool
        if type(value) is not dict:
            return MISS
        copied: dict[str, Any] = {}
        for name, item in given.items():
            if type(item) is bare.get(name) and type(name) is str:  # most arguments of most tools, without a call for each
                copied[name] = item
                continue
            check = checks.get(name, rest)
            if check is None or (kept := check(item)) is MISS or type(name) is not str:
                return MISS
            copied[name] = kept
        return copied if copied.keys() >= needed else MISS

    return check_object
