"""What a tool may return, and what the model and the application get of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from laneway.errors import ToolError
from laneway.messages import ImageContent, TextContent, ToolResult, Usage, encode
from laneway.tools._results import to_result

PIXEL = ImageContent(data="AAAA", mime_type="image/png")


class Item(BaseModel):
    name: str
    day: date


@dataclass
class Point:
    x: int
    item: Item


class Line(msgspec.Struct):
    points: list[Point]


class Mood(str, Enum):  # noqa: UP042 - its str() is not its value
    GOOD = "good"


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("done", [TextContent(text="done")]),
        ("", []),
        (None, []),
        (Mood.GOOD, [TextContent(text="good")]),
        (TextContent(text="a"), [TextContent(text="a")]),
        (PIXEL, [PIXEL]),
        ([TextContent(text="a"), PIXEL], [TextContent(text="a"), PIXEL]),
        (("see:", PIXEL), [TextContent(text="see:"), PIXEL]),
    ],
)
def test_text_and_blocks_are_the_content(value: Any, content: list[Any]):
    """They carry no details."""
    assert to_result(value, "t") == ToolResult(content=content)


def test_a_tool_result_is_itself():
    """Everything that the author set stays."""
    result = ToolResult(content=[PIXEL], details={"n": 1}, terminate=True, usage=Usage(input=1))
    assert to_result(result, "t") is result


@pytest.mark.parametrize(
    ("value", "text", "details"),
    [
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}', {"a": [1, 2.5, None, True]}),
        ([], "[]", []),
        (5, "5", 5),
        (False, "false", False),
        ({"ü": "é\n"}, '{"ü":"é\\n"}', {"ü": "é\n"}),
        (Item(name="x", day=date(2024, 1, 2)), '{"name":"x","day":"2024-01-02"}', {"name": "x", "day": "2024-01-02"}),
        (
            Line(points=[Point(1, Item(name="x", day=date(2024, 1, 2)))]),
            '{"points":[{"x":1,"item":{"name":"x","day":"2024-01-02"}}]}',
            {"points": [{"x": 1, "item": {"name": "x", "day": "2024-01-02"}}]},
        ),
        ([Path("/a/b"), Decimal("1.5"), Mood.GOOD], '["/a/b","1.5","good"]', ["/a/b", "1.5", "good"]),
        ({"half": "x\ud83d"}, '{"half":"x\ufffd"}', {"half": "x\ufffd"}),
        ({1: "a"}, '{"1":"a"}', {"1": "a"}),
    ],
)
def test_anything_json_is_text_and_details(value: Any, text: str, details: Any):
    """Compact JSON for the model, the same data for the application; both can be stored."""
    result = to_result(value, "t")
    assert result == ToolResult(content=[TextContent(text=text)], details=details)
    encode(result)


def test_details_do_not_change_with_the_tools_own_data():
    """A tool that returns its live state does not rewrite history later."""
    state = {"seen": [1]}
    result = to_result(state, "t")
    state["seen"].append(2)
    assert result.details == {"seen": [1]}


def _cycle() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (object, "returned a object that is not JSON"),
        (lambda: {"f": open}, "builtin_function_or_method"),
        (lambda: b"raw", "ImageContent"),
        (lambda: {(1, 2): "x"}, "not JSON"),
        (lambda: (n for n in range(3)), "generator"),
        (_cycle, "not JSON"),
        (lambda: ValueError("returned, not raised"), "ValueError"),
        (lambda: [TextContent(text="a"), 5], "a int among its content"),
        (lambda: ToolResult(content="text"), "list of blocks"),  # pyright: ignore[reportArgumentType] - a common mistake
        (lambda: ToolResult(content=["text"]), "a str among its content"),  # pyright: ignore - another one
    ],
)
def test_anything_else_is_an_error_that_says_what_to_return(make: Callable[[], Any], says: str):
    """The model reads it as the tool's failure; the author reads what to change."""
    with pytest.raises(ToolError, match=says) as caught:
        to_result(make(), "my_tool")
    assert "my_tool" in str(caught.value)
