"""Gives arguments the types that the schema asks for, where the model's value means the same: "3" for 3, "true" for true.

Models often write numbers as strings and null for an argument that they leave out. The rules:

- number, integer: a JSON number in a string; true and false are 1 and 0. A whole float is an integer; "5.5" is none.
- boolean: "true", "false", 1, 0. string: numbers and booleans as JSON writes them. null: "", 0, false.
- null for an optional property that cannot be null is left out; for a required one it stays, and is then refused.
- Never: a string parsed as an array or object, a scalar wrapped into an array, a default made up.

A value that is already valid is not changed, apart from whole floats where only an integer is allowed. Nothing is changed in place.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

from laneway.tools._jsonschema import CompiledSchema, escape

_NO: Any = object()
_NUMBER = re.compile(r"\s*-?\d{1,4000}(\.\d+)?([eE][+-]?\d+)?\s*", re.ASCII)
_MAX_NESTED = 3  # trying alternatives inside of tried alternatives is exponential in the depth


class Coercer:
    """Coerces values for one schema. With `types=False` it only leaves out the nulls of optional properties."""

    __slots__ = ("_compiled", "_nested", "_types")

    def __init__(self, compiled: CompiledSchema, *, types: bool = True) -> None:
        self._compiled = compiled
        self._types = types
        self._nested = 0

    def coerce(self, value: Any) -> Any:
        """Return `value` as the schema wants it, as far as that is possible; the rest is for validation to refuse."""
        return self._at(value, self._compiled.root, "", ())

    def _at(self, value: Any, schema: Any, pointer: str, seen: tuple[str, ...]) -> Any:
        """Coerce for the schema node at `pointer`; `seen` are the nodes already applied to this very value."""
        if not isinstance(schema, dict) or pointer in seen:
            return value
        node = cast("dict[str, Any]", schema)
        seen = (*seen, pointer)
        ref = node.get("$ref")
        if isinstance(ref, str) and (target := self._compiled.resolve(ref)) is not None:
            value = self._at(value, target[1], target[0], seen)
        for index, member in enumerate(_list(node.get("allOf"))):
            value = self._at(value, member, f"{pointer}/allOf/{index}", seen)
        for keyword in ("anyOf", "oneOf"):
            if members := _list(node.get(keyword)):
                value = self._one_of(value, members, f"{pointer}/{keyword}", seen)
        if self._types:
            value = _to_types(value, node.get("type"))
        if isinstance(value, dict):
            return self._object(cast("dict[str, Any]", value), node, pointer)
        return self._array(cast("list[Any]", value), node, pointer) if isinstance(value, list) else value

    def _one_of(self, value: Any, members: list[Any], pointer: str, seen: tuple[str, ...]) -> Any:
        """Coerce for the first alternative that is valid as it is, else for the first that is valid then."""
        for index, member in enumerate(members):
            if self._compiled.is_valid_at(f"{pointer}/{index}", value):
                return self._at(value, member, f"{pointer}/{index}", seen)
        if self._nested >= _MAX_NESTED:
            return value
        self._nested += 1
        try:
            for index, member in enumerate(members):
                changed = self._at(value, member, f"{pointer}/{index}", seen)
                if self._compiled.is_valid_at(f"{pointer}/{index}", changed):
                    return changed
            return value
        finally:
            self._nested -= 1

    def _object(self, value: dict[str, Any], node: dict[str, Any], pointer: str) -> dict[str, Any]:
        properties = _dict(node.get("properties"))
        required = _list(node.get("required"))
        rest = None if node.get("patternProperties") else node.get("additionalProperties")
        if not properties and not isinstance(rest, dict):
            return value
        out: dict[str, Any] = {}
        for name, item in value.items():
            if name in properties:
                if item is None and name not in required and self._rejects_null(properties[name]):
                    continue
                item = self._at(item, properties[name], f"{pointer}/properties/{escape(name)}", ())
            elif isinstance(rest, dict):
                item = self._at(item, rest, f"{pointer}/additionalProperties", ())
            out[name] = item
        return out

    def _array(self, value: list[Any], node: dict[str, Any], pointer: str) -> list[Any]:
        tuple_keyword = "prefixItems" if "prefixItems" in node else "items"
        first = _list(node.get(tuple_keyword))
        rest_keyword = "additionalItems" if tuple_keyword == "items" and first else "items"
        rest = node.get(rest_keyword)
        out: list[Any] = []
        for index, item in enumerate(value):
            if index < len(first):
                item = self._at(item, first[index], f"{pointer}/{tuple_keyword}/{index}", ())
            elif isinstance(rest, dict):
                item = self._at(item, rest, f"{pointer}/{rest_keyword}", ())
            out.append(item)
        return out

    def _rejects_null(self, schema: Any, depth: int = 0) -> bool:
        """Whether the schema certainly refuses null."""
        if schema is False:
            return True
        if not isinstance(schema, dict) or depth > 20:
            return False
        node = cast("dict[str, Any]", schema)
        kinds = node.get("type")
        if kinds is not None and "null" not in (_list(kinds) or [kinds]):
            return True
        if ("const" in node and node["const"] is not None) or ("enum" in node and None not in _list(node["enum"])):
            return True
        for keyword in ("anyOf", "oneOf"):
            members = _list(node.get(keyword))
            if members and all(self._rejects_null(member, depth + 1) for member in members):
                return True
        if any(self._rejects_null(member, depth + 1) for member in _list(node.get("allOf"))):
            return True
        target = self._compiled.resolve(node["$ref"]) if isinstance(node.get("$ref"), str) else None
        return target is not None and self._rejects_null(target[1], depth + 1)


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


# ---------------------------------------------------------------------------------------------------- scalars


def _to_types(value: Any, kinds: Any) -> Any:
    """Coerce to the schema's `type`: one name, or a list of which a matching one wins, else the first that can be reached."""
    names = [kinds] if isinstance(kinds, str) else _list(kinds)
    if isinstance(value, float) and value.is_integer() and "integer" in names and "number" not in names:
        return int(value)
    if any(_matches(value, name) for name in names):
        return value
    for name in names:
        changed = _to_type(value, name)
        if changed is not _NO:
            return changed
    return value


def _matches(value: Any, name: Any) -> bool:
    if isinstance(value, bool):  # a bool is an int in Python, so it comes first
        return name == "boolean"
    if isinstance(value, str):
        return name == "string"
    if isinstance(value, int):
        return name in ("integer", "number")
    if isinstance(value, float):
        return name == "number"
    if value is None:
        return name == "null"
    return name == "object" if isinstance(value, dict) else name == "array" and isinstance(value, list)


def _to_type(value: Any, name: Any) -> Any:
    if name in ("integer", "number"):
        if isinstance(value, bool):
            return int(value)
        return _number(value, whole=name == "integer") if isinstance(value, str) else _NO
    if name == "boolean":
        if isinstance(value, str):
            return {"true": True, "false": False}.get(value, _NO)
        return bool(value) if isinstance(value, (int, float)) and value in (0, 1) else _NO
    if name == "string":
        is_scalar = isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
        return json.dumps(value) if is_scalar else _NO
    if name == "null":
        return None if isinstance(value, (str, bool, int, float)) and value in ("", 0) else _NO
    return _NO


def _number(text: str, *, whole: bool) -> Any:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return _NO
    if match[1] is None and match[2] is None:
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        return _NO
    return number if not whole else int(number) if number.is_integer() else _NO
