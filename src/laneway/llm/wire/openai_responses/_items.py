"""One message after the other → the wire's input items."""

from __future__ import annotations

import json
from typing import Any, Literal, cast

from msgspec import Struct

from laneway.llm._grammar import raw_input
from laneway.llm._strict import NotStrict, strict_schema
from laneway.llm._transform import legal_tool_name, render_system_update, same_model, short_hash
from laneway.llm.base import Model
from laneway.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
    clean_json,
    clean_text,
)

MAX_ID = 64
CUSTOM_INPUT = "input"
"""The argument under which the raw input of a custom tool is kept that nobody declared."""


class ItemStyle(Struct, kw_only=True, frozen=True):
    """What decides how items look; equal styles (for one model) give equal items.

    `leading_systems` system messages at the head are not written: they are the prompt. Later ones are written in place with
    `mid_system`, and declare their tools in place if they come after the first `folded_systems`: in an item of their own ("item"), or as what a
    search for tools found ("search"). `raw_inputs` are the grammar tools: name, and the argument that holds the text.
    """

    role: str
    leading_systems: int
    mid_system: bool
    folded_systems: int
    mid_tools: Literal["item", "search"] | None
    strict_tools: bool
    grammar_tools: bool
    raw_inputs: tuple[tuple[str, str], ...]


def declare_tool(tool: ToolDeclaration, *, strict: bool, grammar: bool = False) -> dict[str, Any]:
    """Return a tool's declaration. `strict` says that the server knows the word; without one it would try to be strict of its own accord.
    `grammar` says that it can hold a text to a grammar.

    Raises:
        ModelError: the tool's grammar cannot be used.
    """
    raw = raw_input(tool) if grammar else None
    if raw is not None:
        form = {"type": "grammar", "syntax": raw.syntax, "definition": raw.definition}
        return {"type": "custom", "name": legal_tool_name(tool.name), "description": tool.description, "format": form}
    parameters: dict[str, Any] = tool.parameters
    if parameters.get("type", "object") == "object" and "properties" not in parameters:
        parameters = {**parameters, "type": "object", "properties": {}}
    declared: dict[str, Any] = {"type": "function", "name": legal_tool_name(tool.name), "description": tool.description, "parameters": parameters}
    if strict:
        declared["strict"] = False
        if tool.strict:
            try:
                declared["parameters"] = strict_schema(tool.parameters)
                declared["strict"] = True
            except NotStrict:
                pass  # a wish, not a condition: the arguments are validated here in any case
    return declared


class ItemConverter:
    """Writes the items of one model's conversation; nothing waits."""

    __slots__ = ("_custom", "_model", "_raw_inputs", "_style", "_systems", "items")

    def __init__(self, model: Model, style: ItemStyle) -> None:
        self._model = model
        self._style = style
        self._raw_inputs = dict(style.raw_inputs)
        self.items: list[dict[str, Any]] = []
        self._systems = 0
        self._custom: set[str] = set()  # calls of custom tools, whose results have a type of their own

    def copy(self) -> ItemConverter:
        """Return an independent converter in the same state."""
        other = ItemConverter(self._model, self._style)
        other.items, other._systems, other._custom = self.items.copy(), self._systems, self._custom.copy()
        return other

    def finish(self) -> list[dict[str, Any]]:
        """Return all items."""
        return self.items

    def add(self, message: Message) -> None:
        """Take the next message."""
        if isinstance(message, ToolResultMessage):
            self._result(message)
        elif isinstance(message, AssistantMessage):
            self._assistant(message)
        elif isinstance(message, UserMessage):
            content = [TextContent(text=message.content)] if isinstance(message.content, str) else message.content
            self.items.append({"role": "user", "content": [_part(block) for block in content]})
        else:
            self._system(message)

    def _system(self, message: SystemMessage) -> None:
        self._systems += 1
        if not self._style.mid_system or self._systems <= self._style.leading_systems:
            return
        if self._style.mid_tools and self._systems > self._style.folded_systems and message.tools_added:
            self._add_tools(message.tools_added)
        text = render_system_update(message)
        if text:
            self.items.append({"role": self._style.role, "content": clean_text(text)})

    def _add_tools(self, added: list[ToolDeclaration]) -> None:
        style = self._style
        tools = [declare_tool(tool, strict=style.strict_tools, grammar=style.grammar_tools) for tool in added]
        if style.mid_tools == "item":
            self.items.append({"type": "additional_tools", "role": "developer", "tools": tools})
            return
        names: list[str] = [tool["name"] for tool in tools]
        search = {"call_id": f"load_{short_hash(f'{self._systems}|{names}', 20)}", "execution": "client", "status": "completed"}
        self.items.append({"type": "tool_search_call", **search, "arguments": {"query": " ".join(names)}})
        self.items.append({"type": "tool_search_output", **search, "tools": [{**tool, "defer_loading": True} for tool in tools]})

    # -- assistant

    def _assistant(self, message: AssistantMessage) -> None:
        """Write a response. Its reasoning goes back only as a whole: encrypted, and with the item that it led to.

        Where that cannot be, the items after it lose their ids, with which the provider would look for the reasoning.
        """
        own = same_model(message, self._model)
        reasoning: list[dict[str, Any]] = []
        whole = own
        for block in message.content:
            if isinstance(block, ThinkingContent):
                item = _reasoning(block) if own else None
                whole = item is not None
                reasoning = [*reasoning, item] if item is not None else []
                continue
            item = self._text(block, whole) if isinstance(block, TextContent) else self._call(block, whole)
            if item is None:
                continue
            whole = whole and ("id" in item or not reasoning)
            self.items += [*reasoning, item] if whole else [item]
            reasoning = []

    def _text(self, block: TextContent, whole: bool) -> dict[str, Any] | None:
        if not block.text.strip():
            return None
        item_id, phase = read_text_signature(block.signature)
        text = clean_text(block.text)
        if item_id is None or not whole:
            item: dict[str, Any] = {"role": "assistant", "content": text}
        else:
            part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
            item = {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": [part]}
        return {**item, "phase": phase} if phase else item

    def _call(self, call: ToolCall, whole: bool) -> dict[str, Any]:
        call_id, _, item_id = call.id.partition("|")
        raw = self._raw_text(call, whole and item_id.startswith("ctc_"))
        if raw is not None:
            self._custom.add(call_id)
            custom = {"type": "custom_tool_call", "call_id": call_id, "name": call.name, "input": clean_text(raw)}
            return {**custom, "id": item_id} if whole and item_id.startswith("ctc_") else custom
        item: dict[str, Any] = {"type": "function_call", "call_id": call_id, "name": call.name, "arguments": compact_json(call.arguments)}
        if whole and item_id.startswith("fc_"):
            item["id"] = item_id
        return item

    def _raw_text(self, call: ToolCall, was_raw: bool) -> str | None:
        """Return the text that is all a call says, if its tool takes one as it is."""
        values: list[Any] = list(call.arguments.values())
        if len(values) != 1 or not isinstance(values[0], str):
            return None
        name = self._raw_inputs.get(call.name, next(iter(call.arguments)) if was_raw else None)
        return values[0] if name in call.arguments else None

    # -- tool results

    def _result(self, message: ToolResultMessage) -> None:
        call_id = message.tool_call_id.partition("|")[0]
        kind = "custom_tool_call_output" if call_id in self._custom else "function_call_output"
        if any(isinstance(block, ImageContent) for block in message.content):
            output: Any = [_part(block) for block in message.content]
        else:
            output = clean_text("\n".join(block.text for block in message.content if isinstance(block, TextContent)))
        self.items.append({"type": kind, "call_id": call_id, "output": output})


def _part(block: TextContent | ImageContent) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return {"type": "input_text", "text": clean_text(block.text)}
    return {"type": "input_image", "detail": "auto", "image_url": f"data:{block.mime_type};base64,{block.data}"}


def compact_json(value: Any) -> str:
    """Write a value as JSON text, without lone surrogates."""
    return json.dumps(clean_json(value), ensure_ascii=False, separators=(",", ":"))


# ---------------------------------------------------------------------------------------------------- signatures


def text_signature(item_id: str, phase: str | None) -> str:
    """Return the signature of a text: the id of its item, and what part of the answer it is."""
    return compact_json({"v": 1, "id": item_id, **({"phase": phase} if phase else {})})


def read_text_signature(signature: str | None) -> tuple[str | None, str | None]:
    """Return id and phase of a text's item, None for what is not there or cannot be sent. A bare id is an old form."""
    fields = _object(signature) if signature and signature.startswith("{") else {"id": signature}
    item_id, phase = fields.get("id"), fields.get("phase")
    legal = isinstance(item_id, str) and item_id.startswith("msg") and len(item_id) <= MAX_ID
    return item_id if legal else None, phase if phase in ("commentary", "final_answer") else None


def _reasoning(block: ThinkingContent) -> dict[str, Any] | None:
    """Return the reasoning item as it came; None if it cannot be sent back: nothing is stored at the provider, so it must be encrypted."""
    item = _object(block.signature)
    return item if item.get("type") == "reasoning" and item.get("encrypted_content") and item.get("id") else None


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
