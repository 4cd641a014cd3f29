"""What models write as arguments."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.errors import ToolError
from laneway.tools import coding_tools, edit_tool, grep_tool, read_tool
from laneway.tools._arguments import at_least_one, flag, not_negative, optional, required


def prepared(tool: Any, args: Any) -> Any:
    """Return the arguments as the tool wants them."""
    return tool.prepare_arguments(args)


def test_camel_case_names_are_understood():
    """4.3: what a model trained on other tools writes is accepted."""
    assert prepared(grep_tool(), {"pattern": "x", "ignoreCase": True}) == {"pattern": "x", "ignore_case": True}


def test_other_tools_names_for_the_same_thing_are_understood():
    """A tool's own name wins over an alias."""
    assert prepared(read_tool(), {"file_path": "a"})["path"] == "a"
    assert prepared(read_tool(), {"file_path": "a", "path": "b"})["path"] == "b"


@pytest.mark.parametrize(
    "args",
    [
        {"path": "f", "edits": [{"old_text": "a", "new_text": "b"}]},
        {"path": "f", "edits": [{"oldText": "a", "newText": "b", "why": "x"}], "extra": 1},
        {"path": "f", "edits": {"oldText": "a", "newText": "b"}},
        {"path": "f", "edits": '[{"oldText": "a", "newText": "b"}]'},
        {"path": "f", "edits": '{"old_text": "a", "new_text": "b"}'},
        {"path": "f", "edits": ['{"old_text": "a", "new_text": "b"}']},
        {"path": "f", "oldText": "a", "newText": "b"},
        {"path": "f", "old_string": "a", "new_string": "b"},
        {"path": "f", "edits": None, "old_str": "a", "new_str": "b"},
    ],
)
def test_edits_are_accepted_in_every_shape_that_models_use(args: dict[str, Any]):
    """Regression 51: a list, one object, JSON text, or the two texts beside the path."""
    edits = prepared(edit_tool(), args)["edits"]
    assert [(edit["old_text"], edit["new_text"]) for edit in edits] == [("a", "b")]


def test_the_two_texts_beside_the_path_are_appended_to_a_list():
    """Nothing that was asked for is dropped."""
    edits = prepared(edit_tool(), {"path": "f", "edits": [{"old_text": "a", "new_text": "b"}], "oldText": "c", "newText": "d"})["edits"]
    assert edits == [{"old_text": "a", "new_text": "b"}, {"old_text": "c", "new_text": "d"}]


def test_preparing_never_changes_what_the_model_wrote():
    """T-08: events and transcript show the raw arguments."""
    args = {"path": "f", "edits": [{"oldText": "a", "newText": "b"}], "oldText": "c", "newText": "d"}
    prepared(edit_tool(), args)
    assert args == {"path": "f", "edits": [{"oldText": "a", "newText": "b"}], "oldText": "c", "newText": "d"}


@pytest.mark.parametrize("nonsense", [None, 3, "x", [], ["a"]])
def test_arguments_that_are_no_object_are_left_to_validation(nonsense: Any):
    """Preparing is not the place to fail."""
    for tool in coding_tools():
        assert prepared(tool, nonsense) == nonsense


def test_limits_below_one_mean_one():
    """4.2: a zero or a negative number is not worth an error."""
    assert at_least_one({"limit": 0}, "limit", 9) == 1
    assert at_least_one({"limit": -5}, "limit", 9) == 1
    assert at_least_one({"limit": "7"}, "limit", 9) == 7
    assert at_least_one({"limit": 3.0}, "limit", 9) == 3
    assert at_least_one({}, "limit", 9) == 9
    assert not_negative({"context": -1}, "context") == 0


@pytest.mark.parametrize("value", ["many", [], float("inf"), float("nan")])
def test_a_number_that_is_none_is_named(value: Any):
    """The error says which argument and what was given."""
    with pytest.raises(ToolError, match="limit must be a whole number"):
        at_least_one({"limit": value}, "limit", 9)


def test_missing_and_mistyped_texts_are_named():
    """Also for callers that skip validation."""
    with pytest.raises(ToolError, match="path is missing"):
        required({}, "path")
    with pytest.raises(ToolError, match="content must be text, not dict"):
        required({"content": {}}, "content")
    assert optional({"path": ""}, "path") is None


def test_flags_are_read_from_words_too():
    """Small models write booleans as text."""
    assert flag({"literal": "true"}, "literal")
    assert not flag({"literal": "false"}, "literal")
    assert not flag({}, "literal")
