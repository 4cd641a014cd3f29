"""Tools as the Converse protocol declares them."""

from __future__ import annotations

from typing import Any

from laneway.llm._strict import NotStrict, strict_schema
from laneway.llm._transform import legal_tool_name
from laneway.llm.wire.bedrock_converse.compat import BedrockCompat
from laneway.messages import ToolDeclaration

_ROOT_KEYWORDS = ("type", "properties", "required", "additionalProperties", "$defs", "definitions", "description")
"""What may stand at the root of a schema; combinators there are refused, so they are left out (arguments are validated here in any case)."""
_PLAIN_KEYWORDS = ("type", "properties", "required", "$defs", "definitions")
_NOT_STRICT = frozenset({
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "minContains",
    "maxContains", "minLength", "maxLength", "format",
})  # fmt: skip
_GONE = "This tool is no longer available. Do not call it."


def declare_tool(tool: ToolDeclaration, compat: BedrockCompat) -> dict[str, Any]:
    """Return a tool's declaration; one that wants to is followed to the letter if the model can and its schema has a strict form."""
    spec: dict[str, Any] = {"name": legal_tool_name(tool.name)}
    if tool.description:
        spec["description"] = tool.description
    root: dict[str, Any] = {"type": "object", "properties": {}, **tool.parameters}
    keywords = _PLAIN_KEYWORDS if compat.plain_schemas else _ROOT_KEYWORDS
    spec["inputSchema"] = {"json": {name: root[name] for name in keywords if name in root}}
    if compat.supports_strict_tools and tool.strict:
        try:
            spec["inputSchema"] = {"json": strict_schema(tool.parameters, banned=_NOT_STRICT)}
            spec["strict"] = True
        except NotStrict:
            pass  # a wish, not a condition
    return {"toolSpec": spec}


def declare_gone(name: str) -> dict[str, Any]:
    """Return the declaration of a tool that is only there because the conversation has calls of it, which the protocol then insists on."""
    return {"toolSpec": {"name": name, "description": _GONE, "inputSchema": {"json": {"type": "object", "properties": {}}}}}


def tool_choice(choice: str | dict[str, Any]) -> dict[str, Any]:
    """ "auto" and "any" (also "required") are the protocol's words; any other string, and `{"name": …}`, names the tool to call."""
    if isinstance(choice, str):
        kind = "any" if choice == "required" else choice
        return {kind: {}} if kind in ("auto", "any") else {"tool": {"name": legal_tool_name(choice)}}
    name = choice.get("name")
    return {"tool": {"name": legal_tool_name(name)}} if isinstance(name, str) else choice
