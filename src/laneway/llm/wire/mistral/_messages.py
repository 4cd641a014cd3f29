"""One message after the other → the wire's `messages`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from laneway.llm._strict import NotStrict, strict_schema
from laneway.llm._transform import legal_tool_name
from laneway.llm.base import encode_json
from laneway.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
    clean_text,
)

_FILLER = "I have the tool results."
_ERROR = "[tool error] "
_IMAGE_ONLY = "(see the attached image)"
_IMAGE_BELOW = "(see the image in the next user message)"


class MessageStyle(Struct, kw_only=True, frozen=True):
    """What decides how messages look; equal styles (for one model) give equal messages. See `MistralCompat`."""

    filler_after_result: bool
    images_in_results: bool


class MessageConverter:
    """Writes the messages. Images that cannot be part of a result wait for the last result of their response. System messages are not
    written: they are the prompt.
    """

    __slots__ = ("_images", "_role", "_style", "items")

    def __init__(self, style: MessageStyle) -> None:
        self._style = style
        self.items: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []
        self._role = ""

    def copy(self) -> MessageConverter:
        """Return an independent converter in the same state."""
        other = MessageConverter(self._style)
        other.items, other._images, other._role = self.items.copy(), self._images.copy(), self._role
        return other

    def add(self, message: Message) -> None:
        """Take the next message."""
        if isinstance(message, ToolResultMessage):
            self._result(message)
            return
        self._flush_images()
        if isinstance(message, AssistantMessage):
            self._assistant(message)
        elif isinstance(message, UserMessage) and message.content:
            content = message.content
            self._write({"role": "user", "content": clean_text(content) if isinstance(content, str) else [_part(block) for block in content]})

    def finish(self) -> list[dict[str, Any]]:
        """Return all messages."""
        self._flush_images()
        return self.items

    def _write(self, item: dict[str, Any]) -> None:
        if self._style.filler_after_result and self._role == "tool" and item["role"] == "user":
            self.items.append({"role": "assistant", "content": _FILLER})
        self.items.append(item)
        self._role = item["role"]

    # -- assistant

    def _assistant(self, message: AssistantMessage) -> None:
        parts: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        for block in message.content:
            if isinstance(block, ToolCall):
                calls.append(_call(block))
            elif isinstance(block, ThinkingContent):
                parts += _thought(block)
            elif block.text.strip():
                parts.append(_text(block.text))
        item: dict[str, Any] = {"role": "assistant"}
        if any(part["type"] == "thinking" for part in parts):
            item["content"] = parts
        elif parts:
            item["content"] = "".join(part["text"] for part in parts)
        if calls:
            item["tool_calls"] = calls
        if len(item) > 1:
            self._write(item)

    # -- tool results

    def _result(self, message: ToolResultMessage) -> None:
        text = clean_text("\n".join(block.text for block in message.content if isinstance(block, TextContent)))
        images = [_part(block) for block in message.content if isinstance(block, ImageContent)]
        nested = bool(images) and self._style.images_in_results
        if images and not text:
            text = _IMAGE_ONLY if nested else _IMAGE_BELOW
        if message.is_error:
            text = _ERROR + text
        content = [_text(text), *images] if nested else text
        self._write({"role": "tool", "tool_call_id": message.tool_call_id, "name": message.tool_name, "content": content})
        if images and not nested:
            self._images += [_text(f"Image from the result of {message.tool_name} ({message.tool_call_id}):"), *images]

    def _flush_images(self) -> None:
        if self._images:
            parts, self._images = self._images, []
            self._write({"role": "user", "content": parts})


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": clean_text(text)}


def _thought(block: ThinkingContent) -> list[dict[str, Any]]:
    """Give the model its thinking back as it came."""
    if not block.signature and (block.redacted or not block.thinking.strip()):
        return []
    thought: dict[str, Any] = {"type": "thinking", "thinking": [_text(block.thinking)]}
    return [{**thought, "signature": block.signature} if block.signature else thought]


def _part(block: TextContent | ImageContent) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return _text(block.text)
    return {"type": "image_url", "image_url": f"data:{block.mime_type};base64,{block.data}"}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": encode_json(call.arguments).decode()}}


def declare_tool(tool: ToolDeclaration, *, strict: bool) -> dict[str, Any]:
    """Return a tool's declaration. With `strict`, a tool that wants to is followed to the letter if its schema has a strict form."""
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
