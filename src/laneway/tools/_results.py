"""Turns what a `@tool` function returned into a `ToolResult`."""

from __future__ import annotations

import sys
from typing import Any, cast

import msgspec

from laneway.errors import ToolError
from laneway.messages import ImageContent, TextContent, ToolResult, clean_json
from laneway.tools.base import text_result

_BLOCKS = (TextContent, ImageContent)


def to_result(value: Any, tool_name: str) -> ToolResult:
    """Return the result that a tool's return value stands for.

    A string is text, None is no content, a block or a list of blocks is the content, a `ToolResult` is itself. Anything else that
    is JSON (dict, list, number, bool, pydantic model, dataclass, msgspec Struct, …) becomes compact JSON text, and the
    same data as `details`.

    Raises:
        ToolError: the value is none of these; the text says what to return instead.
    """
    if isinstance(value, str):
        return text_result(str.__str__(value))
    if value is None:
        return ToolResult()
    if isinstance(value, ToolResult):
        return _checked(value, tool_name)
    if isinstance(value, _BLOCKS):
        return ToolResult(content=[value])
    if isinstance(value, (list, tuple)) and any(isinstance(item, _BLOCKS) for item in cast("list[Any]", value)):
        return ToolResult(content=[_block(item, tool_name) for item in cast("list[Any]", value)])
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise ToolError(f"The tool {tool_name} returned bytes; return text, or an ImageContent with base64 data.")
    return _json_result(value, tool_name)


def _checked(result: ToolResult, tool_name: str) -> ToolResult:
    content = cast("Any", result.content)
    if not isinstance(content, list):
        raise ToolError(f"The tool {tool_name} returned a ToolResult whose content is of type {type(content).__name__}; make it a list of blocks.")
    for block in cast("list[Any]", content):
        _block(block, tool_name, text_too=False)
    return result


def _block(item: Any, tool_name: str, *, text_too: bool = True) -> TextContent | ImageContent:
    if isinstance(item, _BLOCKS):
        return item
    if text_too and isinstance(item, str):
        return TextContent(text=item)
    raise ToolError(f"The tool {tool_name} returned a {type(item).__name__} among its content; only TextContent and ImageContent can be there.")


def _json_result(value: Any, tool_name: str) -> ToolResult:
    try:
        try:
            data = msgspec.json.encode(value, enc_hook=_to_json)
        except UnicodeEncodeError:
            data = msgspec.json.encode(clean_json(msgspec.to_builtins(value, enc_hook=_to_json)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ToolError(
            f"The tool {tool_name} returned a {type(value).__name__} that is not JSON ({error}); "
            "return text, content blocks, a ToolResult, or data made of dicts, lists, strings, numbers, dataclasses or models."
        ) from error
    # decoded again: details are then exactly what a store keeps, and no longer share anything with the tool's own objects
    return ToolResult(content=[TextContent(text=data.decode())], details=msgspec.json.decode(data))


def _to_json(value: Any) -> Any:
    """Give msgspec something it knows for a value that it does not."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    pathlib = sys.modules.get("pathlib")  # not imported for this: it is a tenth of what importing laneway costs
    if pathlib is not None and isinstance(value, pathlib.PurePath):
        return str(value)
    raise TypeError(f"it holds an object of type {type(value).__name__}")
