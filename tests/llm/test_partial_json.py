"""Tool-call arguments: lenient while they stream, strict at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.llm._partial_json import parse_arguments, parse_partial, repair


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":"hel', {"a": "hel"}),
        ('{"a":"x\\', {"a": "x"}),
        ('{"a":"x\\u00', {"a": "x"}),
        ('{"a":1,"b":[1,2', {"a": 1, "b": [1, 2]}),
        ('{"a":1,"b":[1,2,', {"a": 1, "b": [1, 2]}),
        ('{"a":{"b":"c"', {"a": {"b": "c"}}),
        ('{"a":tr', {}),
        ('{"a":1.', {}),
        ('{"a":-', {}),
        ('{"a":', {}),
        ('{"a', {}),
        ('{"a":"x\ny"}', {"a": "x\ny"}),
        ('{"a":"x\ny', {"a": "x\ny"}),
        ('{"a":"\\d"}', {"a": "\\d"}),
        ('{"a":"\\d', {"a": "\\d"}),
        ('{"a":"tail   ', {"a": "tail   "}),
        ("", {}),
        ("  \n", {}),
        ("garbage", {}),
        ("null", {}),
        ("5", {}),
        ('"abc', {}),
        ("[1,2", {}),
        ('{"a" 1', {}),
        ('{"a":NaN}', {}),
    ],
)
def test_unfinished_text_shows_what_is_there(text: str, expected: dict[str, Any]) -> None:
    """05 sc. 43-52: always an object; incomplete literals and numbers are left out until they are complete."""
    assert parse_partial(text) == expected


@given(st.text(max_size=40), st.integers(0, 60))
def test_partial_parsing_never_raises(text: str, cut: int) -> None:
    """Whatever the text: an object."""
    assert isinstance(parse_partial(text), dict)
    assert isinstance(parse_partial(('{"k":' + json.dumps(text))[:cut]), dict)


@given(
    st.dictionaries(
        st.text(max_size=5), st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=5), max_size=4
    )
)
def test_complete_arguments_are_parsed_exactly(value: dict[str, Any]) -> None:
    """Any object survives, spaces or not, integers beyond 2^53 included."""
    for separators in ((",", ":"), (" , ", " : ")):
        assert parse_arguments(json.dumps(value, separators=separators)) == (value, None)


@pytest.mark.parametrize("text", ["", "   ", "\n", "null", " null "])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    """B20, 05 sc. 56."""
    assert parse_arguments(text) == ({}, None)


@pytest.mark.parametrize("text", ['{"a":"hel', '{"a":1', '{"path":"f","content":"abc', '{"a":1}x', '{"a":1,}', '{"a":NaN}', "garbage", "{" * 100_000])
def test_a_malformed_text_is_never_guessed(text: str) -> None:
    """Decision 6, B18, 05 sc. 55: no arguments, the reason, and the text received."""
    arguments, problem = parse_arguments(text)
    assert arguments == {}
    assert problem is not None
    assert text[:100] in problem
    assert len(problem) < 3000


@pytest.mark.parametrize("text", ["5", '"abc"', "[1]", "true"])
def test_arguments_must_be_an_object(text: str) -> None:
    """05 sc. 56."""
    arguments, problem = parse_arguments(text)
    assert (arguments, "must be a JSON object" in (problem or "")) == ({}, True)


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a":"x\ny\t\x01"}', "x\ny\t\x01"), ('{"a":"\\d+\\.py"}', "\\d+\\.py"), ('{"a":"\\u12"}', "\\u12"), ('{"a":"C:\\\\x"}', "C:\\x")],
)
def test_strings_are_repaired_without_changing_structure(text: str, value: str) -> None:
    """05 §3.1: raw control characters and backslashes that escape nothing."""
    assert parse_arguments(text) == ({"a": value}, None)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8))
def test_valid_json_is_not_changed_by_repair(value: Any) -> None:
    """Repair is idempotent on what is right."""
    text = json.dumps(value)
    assert repair(text) == text
