"""Which annotations are plain JSON, and the schema that they give."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import pytest

from laneway.tools._schema import plain_schema


class Address(TypedDict):
    street: str
    zip: NotRequired[str | None]


class Options(TypedDict, total=False):
    deep: Required[bool]
    where: Address


class Nested(TypedDict):
    inside: list[Nested]


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (list, {"type": "array", "items": {}}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (list[list[str]], {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}),
        (dict, {"type": "object", "additionalProperties": True}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (dict[str, Any], {"type": "object", "additionalProperties": True}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
        (list[Annotated[int, "One."]], {"type": "array", "items": {"type": "integer", "description": "One."}}),
        (
            Address,
            {
                "type": "object",
                "properties": {"street": {"type": "string"}, "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                "required": ["street"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_plain_annotations_have_a_schema(annotation: Any, schema: dict[str, Any]):
    """JSON types, Literal, unions, TypedDict."""
    assert plain_schema(annotation) == schema


def test_required_keys_of_a_typed_dict_are_known_with_postponed_annotations():
    """`Required` and `NotRequired` count although this module postpones its annotations."""
    schema = plain_schema(Options)
    assert schema is not None
    assert schema["required"] == ["deep"]
    assert list(schema["properties"]) == ["deep", "where"]


@pytest.mark.parametrize(
    "annotation", [tuple[int, str], set[str], dict[int, str], Path, Colour, Literal[b"x"], Annotated[int, 5], list[Path], Nested, int | Path]
)
def test_richer_annotations_have_none(annotation: Any):
    """They are pydantic's."""
    assert plain_schema(annotation) is None
