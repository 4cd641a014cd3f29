"""Strict tool schemas: what providers demand of a schema before they promise to follow it to the letter.

Every property is required (an optional one may be null instead), nothing else is allowed, and only the keywords are used that
constrained decoding can follow. A schema that cannot be put so is sent as it is, without the promise.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, cast

_UNSUPPORTED = frozenset({
    "$ref", "$defs", "definitions", "allOf", "oneOf", "patternProperties", "dependentSchemas", "dependentRequired", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains", "prefixItems", "not", "if", "then", "else", "minProperties",
    "maxProperties",
})  # fmt: skip


class NotStrict(ValueError):
    """A schema cannot be made strict; the text names the place and the keyword."""


def strict_schema(schema: dict[str, Any], *, banned: Container[str] = ()) -> dict[str, Any]:
    """Return a strict copy of a tool's schema. `banned` are further keywords that a provider does not take.

    Null is what a model then sends for an optional property; validation drops it again (`laneway.tools`).

    Raises:
        NotStrict: the schema uses something that has no strict form.
    """
    if schema.get("type", "object" if not schema else None) != "object":
        raise NotStrict("the root is no object schema")
    return _strict(schema or {"type": "object"}, "root", banned)


def _strict(schema: Any, place: str, banned: Container[str]) -> dict[str, Any]:
    if not isinstance(schema, dict):
        raise NotStrict(f"{place} is no schema object")
    node = cast("dict[str, Any]", schema)
    for keyword in node:
        if keyword in _UNSUPPORTED or keyword in banned:
            raise NotStrict(f"{place} uses {keyword}")
    if not node.keys() & {"type", "anyOf", "enum", "const"}:
        raise NotStrict(f"{place} allows anything")
    copy = dict(node)
    if "anyOf" in node:
        copy["anyOf"] = [_member(member, f"{place}.anyOf[{i}]", banned) for i, member in enumerate(node["anyOf"])]
    if "items" in node:
        copy["items"] = _strict(node["items"], f"{place}[]", banned)
    kind = node.get("type")
    if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node:
        return _strict_object(node, copy, place, banned)
    return copy


def _member(member: Any, place: str, banned: Container[str]) -> dict[str, Any]:
    strict = _strict(member, place, banned)
    if strict.get("type") in ("object", "array"):
        raise NotStrict(f"{place} is an object or array inside anyOf")
    return strict


def _strict_object(node: dict[str, Any], copy: dict[str, Any], place: str, banned: Container[str]) -> dict[str, Any]:
    if node.get("type") != "object":
        raise NotStrict(f"{place} has properties but is not of type object")
    if node.get("additionalProperties", False) is not False:
        raise NotStrict(f"{place} allows additional properties")
    properties: dict[str, Any] = node.get("properties", {})
    required: list[str] = node.get("required", [])
    unknown = [name for name in required if name not in properties]
    if unknown:
        raise NotStrict(f"{place} requires {unknown[0]}, which it does not describe")
    copy["properties"] = {}
    for name, schema in properties.items():
        inner = _strict(schema, f"{place}.{name}", banned)
        copy["properties"][name] = inner if name in required or _allows_null(inner) else {"anyOf": [inner, {"type": "null"}]}
    copy["required"] = list(properties)
    copy["additionalProperties"] = False
    return copy


def _allows_null(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind) or ("const" in schema and schema["const"] is None):
        return True
    if "enum" in schema and None in schema["enum"] and kind is None:
        return True
    return any(_allows_null(member) for member in schema.get("anyOf", ()))
