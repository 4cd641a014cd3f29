"""One message after the other → the wire's `messages`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from laneway.llm._transform import legal_tool_name, render_system_update
from laneway.llm.wire.anthropic_messages._tools import declare_tool
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
    clean_text,
)
from laneway.transcript import tool_changes

_IMAGE_ONLY = "(see the attached image)"
_IMAGES_BELOW = "(the images are below)"
_GO_ON = "Go on."
"""What the user says where the protocol wants a user's message and there is none."""


class MessageStyle(Struct, kw_only=True, frozen=True):
    """What decides how messages look; equal styles (for one model) give equal messages.

    `leading_systems` system messages at the head are not written: they are the prompt, and their tools are the request's. Later ones
    are written with `mid_system`, and change the tools in place with `native_tools`. `efforts` maps a thinking level to the effort
    that is said before each of the provider's own responses; None says none.
    """

    leading_systems: int
    mid_system: bool
    native_tools: bool
    empty_signature: bool
    strict_tools: bool
    eager_tools: bool
    provider: str = ""
    efforts: tuple[tuple[str, str], ...] | None = None


class MessageConverter:
    """Writes the items. Results wait for the last one of their response, because they go into one message. System messages wait for the
    next response: the protocol takes one only after a user's message, and with a response (or nothing) after it.
    """

    __slots__ = ("_declared", "_images", "_results", "_style", "_systems", "_texts", "_tools", "items")

    def __init__(self, style: MessageStyle) -> None:
        self._style = style
        self.items: list[dict[str, Any]] = []
        self._results: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []
        self._systems = 0
        self._texts: list[str] = []
        self._declared: dict[str, ToolDeclaration] = {}  # what the conversation so far has told the provider
        self._tools: dict[str, ToolDeclaration] = {}  # what holds once the system messages that wait are written

    def copy(self) -> MessageConverter:
        """Return an independent converter in the same state."""
        other = MessageConverter(self._style)
        other.items = self.items.copy()
        other._results, other._images, other._texts = self._results.copy(), self._images.copy(), self._texts.copy()
        other._systems = self._systems
        other._declared, other._tools = self._declared.copy(), self._tools.copy()
        return other

    def add(self, message: Message) -> None:
        """Take the next message."""
        if isinstance(message, ToolResultMessage):
            self._result(message)
            return
        self._flush_results()
        if isinstance(message, AssistantMessage):
            self._assistant(message)
        elif isinstance(message, UserMessage):
            self._user(message)
        else:
            self._system(message)

    def finish(self) -> list[dict[str, Any]]:
        """Return all items."""
        self._flush_results()
        self._flush_system()
        return self.items

    # -- system

    def _system(self, message: SystemMessage) -> None:
        self._systems += 1
        leading = self._systems <= self._style.leading_systems
        for name in message.tools_removed or ():
            self._tools.pop(name, None)
        for tool in message.tools_added or ():
            self._tools[tool.name] = tool
        if leading:
            self._declared = self._tools.copy()
        elif self._style.mid_system and (text := render_system_update(message)):
            self._texts.append(text)

    def _flush_system(self, effort: str | None = None) -> None:
        """Write what waited as one message: the texts, then the tools that went, then those that came or changed."""
        blocks: list[dict[str, Any]] = [_text(text) for text in self._texts]
        self._texts = []
        if self._style.native_tools:
            change = tool_changes(list(self._declared.values()), list(self._tools.values()))
            gone = [name for name in change.removed if name not in self._tools]
            blocks += ({"type": "tool_removal", "tool": {"type": "tool_reference", "name": legal_tool_name(name)}} for name in gone)
            blocks += ({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": self._declare(tool)}} for tool in change.added)
            self._declared = self._tools.copy()
        after_user = bool(self.items) and self.items[-1]["role"] == "user"
        item: dict[str, Any] = {"role": "system"}
        if blocks:
            item["content"] = blocks
            if not after_user:
                self.items.append({"role": "user", "content": [_text(_GO_ON)]})
        if effort is not None and (blocks or after_user):
            item["output_config"] = {"effort": effort}
        if len(item) > 1:
            self.items.append(item)

    def _declare(self, tool: ToolDeclaration) -> dict[str, Any]:
        return declare_tool(tool, strict=self._style.strict_tools, eager=self._style.eager_tools)

    # -- user

    def _user(self, message: UserMessage) -> None:
        if isinstance(message.content, str):
            self.items.append({"role": "user", "content": [_text(message.content)]})
        elif message.content:
            self.items.append({"role": "user", "content": [_part(block) for block in message.content]})

    # -- assistant

    def _assistant(self, message: AssistantMessage) -> None:
        blocks = [part for block in message.content if (part := self._said(block)) is not None]
        if blocks:
            self._flush_system(self._effort_of(message))
            self.items.append({"role": "assistant", "content": blocks})

    def _effort_of(self, message: AssistantMessage) -> str | None:
        if self._style.efforts is None or message.provider != self._style.provider or message.thinking_level is None:
            return None
        return dict(self._style.efforts).get(message.thinking_level)

    def _said(self, block: TextContent | ThinkingContent | ToolCall) -> dict[str, Any] | None:
        if isinstance(block, ToolCall):
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}
        if isinstance(block, TextContent):
            return _text(block.text) if block.text.strip() else None
        return self._thought(block)

    def _thought(self, block: ThinkingContent) -> dict[str, Any] | None:
        """Give the model its reasoning back, byte for byte: a signature covers exactly what it came with."""
        if block.redacted:
            return {"type": "redacted_thinking", "data": block.signature} if block.signature else None
        if block.signature:
            return {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
        if not block.thinking.strip():
            return None
        return {"type": "thinking", "thinking": block.thinking, "signature": ""} if self._style.empty_signature else _text(block.thinking)

    # -- tool results

    def _result(self, message: ToolResultMessage) -> None:
        images = [block for block in message.content if isinstance(block, ImageContent)]
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        texts = [block.text for block in message.content if isinstance(block, TextContent)]
        if message.is_error and images:  # an error may hold text only: its images follow the results
            texts = texts or [_IMAGES_BELOW]
            label = f"Image from the result of {message.tool_name} ({message.tool_call_id}):"
            self._images += [_text(label), *map(_part, images)]
            images = []
        if images:
            content = [_part(block) for block in message.content]
            result["content"] = content if texts else [_text(_IMAGE_ONLY), *content]
        else:
            result["content"] = clean_text("\n".join(texts))
        if message.is_error:
            result["is_error"] = True
        self._results.append(result)

    def _flush_results(self) -> None:
        if self._results:
            self.items.append({"role": "user", "content": [*self._results, *self._images]})
            self._results, self._images = [], []


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": clean_text(text)}


def _part(block: TextContent | ImageContent) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return _text(block.text)
    return {"type": "image", "source": {"type": "base64", "media_type": block.mime_type, "data": block.data}}
