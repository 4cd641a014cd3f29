"""Grammar tools: a tool that takes one text, which the provider holds to a grammar instead of a JSON Schema.

The text is the tool's only argument, under the name of its one property, so to everybody but the wire it is a tool like any other; a model
that cannot do it gets the tool with its schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from msgspec import Struct

from laneway.errors import ModelError
from laneway.llm._transform import legal_tool_name
from laneway.messages import ToolDeclaration


class RawInput(Struct, kw_only=True, frozen=True):
    """How a grammar tool is declared, and under which name its text is kept among the arguments."""

    syntax: str
    definition: str
    property: str


def raw_input(tool: ToolDeclaration) -> RawInput | None:
    """Return how a tool's text is held to its grammar; None for a tool without one. Lark goes before a regular expression.

    Raises:
        ModelError: there is a grammar that cannot be used: it is empty, or the schema is not an object with exactly one property, a required string.
    """
    if tool.grammar is None:
        return None
    name = _only_text(tool.parameters)
    if name is None:
        text = f"the tool {tool.name!r} has a grammar, so its parameters must be an object with exactly one property, a required string"
        raise ModelError(f"{text}; the text that the model writes is kept there")
    if tool.grammar.lark:
        return RawInput(syntax="lark", definition=tool.grammar.lark, property=name)
    if tool.grammar.regex:
        return RawInput(syntax="regex", definition=tool.grammar.regex, property=name)
    raise ModelError(f"the tool {tool.name!r} has an empty grammar: give it `lark` or `regex`")


def raw_inputs(tools: Iterable[ToolDeclaration]) -> dict[str, str]:
    """Return the names under which grammar tools keep their text: wire name of the tool → property. Unusable grammars are left out."""
    found: dict[str, str] = {}
    for tool in tools:
        name = _only_text(tool.parameters) if tool.grammar is not None else None
        if name is not None:
            found[legal_tool_name(tool.name)] = name
    return found


def _only_text(schema: dict[str, Any]) -> str | None:
    properties: Any = schema.get("properties")
    if schema.get("type", "object") != "object" or not isinstance(properties, dict) or len(cast("dict[str, Any]", properties)) != 1:
        return None
    name, inner = next(iter(cast("dict[str, Any]", properties).items()))
    is_text = isinstance(inner, dict) and cast("dict[str, Any]", inner).get("type") == "string"
    return name if is_text and schema.get("required") == [name] else None
