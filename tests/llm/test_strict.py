"""Strict tool schemas."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from laneway.llm._strict import NotStrict, strict_schema


def test_every_property_is_required_and_nothing_else_allowed() -> None:
    """05 sc. 69: optional properties may be null instead; nested objects and items too; the original is untouched."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "integer"},
            "c": {"type": ["string", "null"]},
            "d": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
            "e": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["a", "d"],
    }
    before = deepcopy(schema)
    strict = strict_schema(schema)
    assert schema == before
    assert strict["required"] == ["a", "b", "c", "d", "e"]
    assert strict["additionalProperties"] is False
    assert strict["properties"]["a"] == {"type": "string"}
    assert strict["properties"]["b"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert strict["properties"]["c"] == {"type": ["string", "null"]}
    assert strict["properties"]["d"]["items"] == {
        "type": "object",
        "properties": {"x": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert strict["properties"]["e"] == schema["properties"]["e"]
    assert strict_schema({}) == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def prop(schema: Any) -> dict[str, Any]:
    """A tool with one property."""
    return {"type": "object", "properties": {"p": schema}, "required": ["p"]}


@pytest.mark.parametrize(
    "schema",
    [
        prop({"$ref": "#/$defs/x"}), {**prop({"type": "string"}), "$defs": {}}, prop({"oneOf": []}), prop({"allOf": []}), prop({"not": {}}),
        prop({"type": "object", "patternProperties": {}}), prop({"type": "array", "prefixItems": []}), prop({"type": "array", "items": [{}]}),
        prop(True), prop({}), prop({"description": "anything"}), prop({"properties": {}}), prop({"type": ["object", "null"], "properties": {}}),
        prop({"type": "object", "additionalProperties": True}), prop({"type": "object", "additionalProperties": {"type": "string"}}),
        prop({"anyOf": [{"type": "object", "properties": {}}]}), prop({"anyOf": [{"type": "array", "items": {"type": "string"}}]}),
        {"type": "object", "properties": {}, "required": ["ghost"]}, {"type": "array", "items": {"type": "string"}}, {"type": "string"},
    ],
)  # fmt: skip
def test_what_has_no_strict_form_is_said(schema: dict[str, Any]) -> None:
    """05 §1.8: such a tool is sent as it is."""
    with pytest.raises(NotStrict):
        strict_schema(schema)


def test_a_provider_may_ban_more() -> None:
    """05 §1.8: provider-specific keywords."""
    schema = prop({"type": "integer", "minimum": 1})
    assert strict_schema(schema)["properties"]["p"] == {"type": "integer", "minimum": 1}
    with pytest.raises(NotStrict, match=r"root\.p uses minimum"):
        strict_schema(schema, banned={"minimum"})
