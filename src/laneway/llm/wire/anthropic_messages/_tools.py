"""Tools as the Anthropic messages protocol declares them."""

from __future__ import annotations

from typing import Any, cast

from laneway.llm._strict import NotStrict, strict_schema
from laneway.llm._transform import legal_tool_name
from laneway.messages import ToolDeclaration

_ROOT_KEYWORDS = ("type", "properties", "required", "additionalProperties", "$defs", "definitions", "description")
"""What may stand at the root of a schema; combinators there are refused, so they are left out (arguments are validated here in any case)."""
_NOT_STRICT = frozenset({
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "maxItems", "uniqueItems", "minContains", "maxContains",
    "minLength", "maxLength",
})  # fmt: skip
_STRICT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})


def declare_tool(tool: ToolDeclaration, *, strict: bool, eager: bool) -> dict[str, Any]:
    """Return a tool's declaration. `strict` and `eager` say what the server can: following a schema to the letter, arguments as they are written."""
    declared: dict[str, Any] = {"name": legal_tool_name(tool.name)}
    if tool.description:
        declared["description"] = tool.description
    if eager:
        declared["eager_input_streaming"] = True
    root: dict[str, Any] = {"type": "object", "properties": {}, **tool.parameters}
    declared["input_schema"] = {name: root[name] for name in _ROOT_KEYWORDS if name in root}
    if strict and tool.strict:
        try:
            declared["input_schema"] = _strict(tool.parameters)
            declared["strict"] = True
        except NotStrict:
            pass  # a wish, not a condition
    return declared


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    _check(schema)
    return strict_schema(schema, banned=_NOT_STRICT)


def _check(node: Any) -> None:
    """Refuse what only some values of a keyword make impossible.

    Raises:
        NotStrict: an unknown string format, or an array that must have two items or more.
    """
    if isinstance(node, list):
        for item in cast("list[Any]", node):
            _check(item)
    elif isinstance(node, dict):
        fields = cast("dict[str, Any]", node)
        kind = fields.get("format")
        if isinstance(kind, str) and kind not in _STRICT_FORMATS:
            raise NotStrict(f"the format {kind}")
        if fields.get("minItems", 0) not in (0, 1):
            raise NotStrict("minItems above 1")
        for value in fields.values():
            _check(value)


def tool_choice(choice: str | dict[str, Any]) -> dict[str, Any]:
    """ "auto", "any" (also "required") and "none" are the protocol's words; any other string, and `{"name": …}`, names the tool to call."""
    if isinstance(choice, str):
        kind = "any" if choice == "required" else choice
        return {"type": kind} if kind in ("auto", "any", "none") else {"type": "tool", "name": legal_tool_name(choice)}
    name = choice.get("name")
    if not isinstance(name, str):
        return choice
    return {"type": "tool", **choice, "name": legal_tool_name(name)}
