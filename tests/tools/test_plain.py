"""The fast check never says yes where the full way would say no, or would give something else."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.errors import ToolArgumentsError
from laneway.tools._plain import MISS, compile_plain
from laneway.tools._validate import _SchemaPlan  # pyright: ignore[reportPrivateUsage] - the two ways are compared

NAMES = ["a", "b", "c"]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 6), st.sampled_from([2**53, 2**63, 10**30]), st.sampled_from([0.0, 1.0, 2.5, -1.0, 1e300]),
    st.sampled_from(["", "a", "b", "1", "true", "abc", "\ud83d"]),
)  # fmt: skip
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3), max_leaves=8)
LIMITS = st.fixed_dictionaries({}, optional={name: st.integers(-1, 4) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")})
COUNTS = st.integers(0, 3)


def _scalar_schemas() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.just({}),
        st.just(True),
        st.builds(lambda name: {"type": name, "description": "d"}, st.sampled_from(["string", "integer", "number", "boolean", "null"])),
        st.builds(lambda name, limits: {"type": name, **limits}, st.sampled_from(["integer", "number"]), LIMITS),
        st.builds(lambda low: {"type": "string", "minLength": low}, COUNTS),
        st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from([None, True, 0, 1, "a", "1"]), min_size=1, unique_by=repr)),
        st.builds(lambda values: {"type": "integer", "enum": values}, st.lists(st.sampled_from([0, 1, 2, "a"]), min_size=1, unique_by=repr)),
    )


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    objects = st.builds(
        lambda props, required, extra: {"type": "object", "properties": props, "required": required, "additionalProperties": extra},
        properties, st.lists(st.sampled_from(NAMES), max_size=2, unique=True), st.one_of(st.booleans(), inner),
    )  # fmt: skip
    arrays = st.builds(lambda items, low: {"type": "array", "items": items, "minItems": low}, inner, COUNTS)
    unions = st.builds(lambda members: {"anyOf": members}, st.lists(inner, min_size=1, max_size=3))
    return objects | arrays | unions


SCHEMAS = st.builds(
    lambda properties, required: {"type": "object", "properties": properties, "required": required},
    st.dictionaries(st.sampled_from(NAMES), st.recursive(_scalar_schemas(), _nested, max_leaves=5), min_size=1),
    st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
)


@settings(max_examples=200, deadline=None)
@given(schema=SCHEMAS, value=st.dictionaries(st.sampled_from([*NAMES, "d"]), VALUES, max_size=4))
def test_what_the_fast_check_accepts_the_full_way_accepts_unchanged(schema: dict[str, Any], value: dict[str, Any]):
    """Same value, same types, for every plain schema; where the fast check is silent the full way decides."""
    check = compile_plain(schema)
    assert check is not None
    copied = check(value)
    if copied is MISS:
        return
    assert repr(copied) == repr(value)
    assert repr(_SchemaPlan(schema).validate_fully("t", value)) == repr(copied)


@settings(max_examples=100, deadline=None)
@given(schema=SCHEMAS, value=st.dictionaries(st.sampled_from([*NAMES, "d"]), VALUES, max_size=4))
def test_validation_gives_a_valid_value_or_an_error(schema: dict[str, Any], value: dict[str, Any]):
    """Coercion reaches a fixed point: what came out is accepted unchanged; nothing but ToolArgumentsError comes out otherwise."""
    plan = _SchemaPlan(schema)
    before = repr(value)
    try:
        result = plan.validate("t", value)
    except ToolArgumentsError:
        return
    finally:
        assert repr(value) == before
    assert repr(plan.validate_fully("t", result)) == repr(result)


def test_a_schema_with_any_other_keyword_is_left_to_the_full_way():
    """So is one whose keywords are not what they should be."""
    for inner in (
        {"type": "string", "pattern": "a"}, {"type": "integer", "multipleOf": 2}, {"$ref": "#"}, {"oneOf": [{}]}, {"not": {}}, False,
        {"type": ["string", "null"]},
        {"type": "text"}, {"minLength": 2}, {"type": "string", "minLength": -1}, {"type": "string", "minLength": "2"}, {"enum": [1.5]}, {"enum": "a"},
        {"anyOf": []}, {"type": "object", "properties": []}, {"type": "object", "required": "a"}, {"type": "integer", "minimum": True},
        {"type": "number", "maximum": 2**60}, {"type": "array", "items": [{}]}, {"x-mine": 1},
    ):  # fmt: skip
        assert compile_plain({"type": "object", "properties": {"a": inner}}) is None, inner
    assert compile_plain({"type": "object", "$schema": "http://json-schema.org/draft-04/schema#"}) is None
    assert compile_plain({"properties": {}}) is None
    assert compile_plain({"type": "object", "$schema": "https://json-schema.org/draft/2020-12/schema"}) is not None
