"""One message after the other → the wire's `messages`."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Struct

from laneway.llm._strict import NotStrict, strict_schema
from laneway.llm._transform import legal_tool_name, render_system_update
from laneway.llm.wire.openai_chat.compat import ChatCompat
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

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")
"""Names under which servers stream reasoning, and take it back; the one used is kept as the thinking block's signature."""
_FILLER = "I have the tool results."
_IMAGE_NOTE = "(see the image in the next user message)"


class MessageStyle(Struct, kw_only=True, frozen=True):
    """What decides how messages look; equal styles give equal messages.

    `leading_systems` system messages at the head are not written: they are the prompt. Later ones are written in place with
    `mid_system`, and declare their tools in place if they come after the first `folded_systems`.
    """

    role: str
    leading_systems: int
    mid_system: bool
    folded_systems: int
    mid_tools: bool
    result_name: bool
    filler_after_result: bool
    non_null_content: bool
    thinking_as_text: bool
    reasoning_content: bool
    images_in_results: bool
    strict_tools: bool

    @classmethod
    def of(cls, compat: ChatCompat, *, role: str, reasoning: bool, leading_systems: int, folded_systems: int) -> MessageStyle:
        """Return the style for a model's quirks."""
        return cls(
            role=role,
            leading_systems=leading_systems,
            mid_system=compat.supports_mid_convo_system_messages,
            folded_systems=folded_systems,
            mid_tools=compat.supports_mid_convo_system_messages and compat.supports_mid_convo_tool_additions,
            result_name=compat.requires_tool_result_name,
            filler_after_result=compat.requires_assistant_after_tool_result,
            non_null_content=compat.requires_non_null_assistant_content or compat.requires_assistant_after_tool_result,
            thinking_as_text=compat.requires_thinking_as_text,
            reasoning_content=compat.requires_reasoning_content_on_assistant_messages and reasoning,
            images_in_results=compat.supports_images_in_tool_results,
            strict_tools=compat.supports_strict_mode,
        )


def declare_tool(tool: ToolDeclaration, *, strict: bool = False) -> dict[str, Any]:
    """Return a tool's declaration. A schema of an object always has `properties`: OpenAI refuses one without.

    With `strict` the server can hold the model to a schema; that is asked for if the tool wants it and its schema has a strict form.
    """
    parameters: dict[str, Any] = tool.parameters
    if parameters.get("type", "object") == "object" and "properties" not in parameters:
        parameters = {**parameters, "type": "object", "properties": {}}
    function: dict[str, Any] = {"name": legal_tool_name(tool.name), "description": tool.description, "parameters": parameters}
    if strict and tool.strict:
        try:
            function["parameters"] = strict_schema(tool.parameters)
            function["strict"] = True
        except NotStrict:
            pass  # a wish, not a condition: the arguments are validated here in any case
    return {"type": "function", "function": function}


def compact_json(value: Any) -> str:
    """Return JSON text without spaces, in insertion order, that UTF-8 can hold."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(clean_json(value)).decode()


class MessageConverter:
    """Writes chat messages. Images of tool results wait until all results of the run are written (a tool message takes only text)."""

    __slots__ = ("_images", "_role", "_style", "_systems", "items")

    def __init__(self, style: MessageStyle) -> None:
        self._style = style
        self.items: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []
        self._systems = 0
        self._role = ""  # of the last message written

    def copy(self) -> MessageConverter:
        """Return a converter that goes on from here."""
        other = MessageConverter(self._style)
        other.items = list(self.items)
        other._images = list(self._images)
        other._systems = self._systems
        other._role = self._role
        return other

    def finish(self) -> list[dict[str, Any]]:
        """Return all messages."""
        self._flush_images()
        return self.items

    def add(self, message: Message) -> None:
        """Write the next message."""
        if isinstance(message, ToolResultMessage):
            self._result(message)
            return
        self._flush_images()
        if isinstance(message, AssistantMessage):
            self._assistant(message)
        elif isinstance(message, UserMessage):
            self._user(message)
        else:
            self._system(message)

    def _write(self, item: dict[str, Any]) -> None:
        if self._style.filler_after_result and self._role == "tool" and item["role"] == "user":
            self.items.append({"role": "assistant", "content": _FILLER})
        self.items.append(item)
        self._role = item["role"]

    # -- system

    def _system(self, message: SystemMessage) -> None:
        self._systems += 1
        if not self._style.mid_system or self._systems <= self._style.leading_systems:
            return
        if self._style.mid_tools and self._systems > self._style.folded_systems and message.tools_added:
            self._write({"role": "system", "tools": [declare_tool(tool, strict=self._style.strict_tools) for tool in message.tools_added]})
        text = render_system_update(message)
        if text:
            self._write({"role": self._style.role, "content": clean_text(text)})

    # -- user

    def _user(self, message: UserMessage) -> None:
        if isinstance(message.content, str):
            self._write({"role": "user", "content": clean_text(message.content)})
        elif message.content:
            self._write({"role": "user", "content": [_part(block) for block in message.content]})

    # -- assistant

    def _assistant(self, message: AssistantMessage) -> None:
        text = "".join(block.text for block in message.content if isinstance(block, TextContent) and block.text.strip())
        thinking = [block for block in message.content if isinstance(block, ThinkingContent)]
        calls = [_call(block) for block in message.content if isinstance(block, ToolCall)]
        item: dict[str, Any] = {"role": "assistant"}
        said = "\n".join(block.thinking for block in thinking if block.thinking.strip()) if self._style.thinking_as_text else ""
        if said:
            item["content"] = [{"type": "text", "text": clean_text(part)} for part in (said, text) if part]
        elif text:
            item["content"] = clean_text(text)
        elif self._style.non_null_content:
            item["content"] = ""
        if not calls and not item.get("content"):
            return
        if not self._style.thinking_as_text:
            _add_reasoning(item, thinking)
        if self._style.reasoning_content:
            item.setdefault("reasoning_content", "")
        if calls:
            item["tool_calls"] = calls
        self._write(item)

    # -- tool results

    def _result(self, message: ToolResultMessage) -> None:
        texts = [block.text for block in message.content if isinstance(block, TextContent)]
        images = [block for block in message.content if isinstance(block, ImageContent)]
        item: dict[str, Any] = {"role": "tool", "tool_call_id": message.tool_call_id}
        if self._style.result_name:
            item["name"] = message.tool_name
        if images and self._style.images_in_results:
            item["content"] = [_part(block) for block in message.content]
        else:
            item["content"] = clean_text("\n".join(texts)) or _IMAGE_NOTE
            if images:
                label = f"Image from the result of {message.tool_name} ({message.tool_call_id}):"
                self._images += [{"type": "text", "text": label}, *map(_part, images)]
        self._write(item)

    def _flush_images(self) -> None:
        if self._images:
            parts, self._images = self._images, []
            self._write({"role": "user", "content": parts})


def _part(block: TextContent | ImageContent) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return {"type": "text", "text": clean_text(block.text)}
    return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": compact_json(call.arguments)}}


def _add_reasoning(item: dict[str, Any], thinking: list[ThinkingContent]) -> None:
    """Give the model its reasoning back in the form in which it came: as structured details, or as text under the same name."""
    for block in thinking:
        details = _details(block.signature)
        if details is not None:
            item["reasoning_details"] = details
            return
    first = next((block for block in thinking if block.thinking.strip()), None)
    if first is not None and first.signature in REASONING_FIELDS:
        item[first.signature] = clean_text("\n".join(block.thinking for block in thinking if block.thinking))


def _details(signature: str | None) -> list[Any] | None:
    if not signature or not signature.startswith("["):
        return None
    try:
        return json.loads(signature)
    except (ValueError, RecursionError):
        return None
