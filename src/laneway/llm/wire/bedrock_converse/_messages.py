"""One message after the other → the wire's `messages`."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from laneway.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    clean_text,
)

IMAGE_FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/jpg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_ERROR = "[tool error] "
_NOTHING = "(nothing)"
"""What stands where the protocol insists on a text and there is none."""
_IMAGE_ONLY = "(see the attached image)"
_IMAGES_BELOW = "(the images are below)"
_GO_ON = "Go on."
"""What the user says where the protocol wants a user's message and there is none."""


class MessageStyle(Struct, kw_only=True, frozen=True):
    """What decides how messages look; equal styles (for one model) give equal messages. See `BedrockCompat`."""

    thoughts: str
    result_status: bool
    result_images: bool


class MessageConverter:
    """Writes the messages. Users and assistants take turns in this protocol, and a tool's results are the user's; so what is the user's is
    collected until the assistant's next message. System messages are not written: they are the prompt.
    """

    __slots__ = ("_images", "_style", "_user", "items")

    def __init__(self, style: MessageStyle) -> None:
        self._style = style
        self.items: list[dict[str, Any]] = []
        self._user: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []  # of results; they follow the last result

    def copy(self) -> MessageConverter:
        """Return an independent converter in the same state."""
        other = MessageConverter(self._style)
        other.items, other._user, other._images = self.items.copy(), self._user.copy(), self._images.copy()
        return other

    def add(self, message: Message) -> None:
        """Take the next message."""
        if isinstance(message, ToolResultMessage):
            self._result(message)
            return
        self._end_results()
        if isinstance(message, AssistantMessage):
            self._assistant(message)
        elif isinstance(message, UserMessage):
            content = message.content
            blocks = [_text(content)] if isinstance(content, str) else [_part(block) for block in content]
            self._user += [block for block in blocks if not _blank(block)] or [{"text": _NOTHING}]

    def finish(self) -> list[dict[str, Any]]:
        """Return all messages."""
        self._end_results()
        self._end_turn()
        return self.items

    def _end_turn(self) -> None:
        if self._user:
            self.items.append({"role": "user", "content": self._user})
            self._user = []

    # -- assistant

    def _assistant(self, message: AssistantMessage) -> None:
        blocks = [part for block in message.content if (part := self._said(block)) is not None]
        if not blocks:
            return
        if not self._user:
            self._user.append({"text": _GO_ON})
        self._end_turn()
        self.items.append({"role": "assistant", "content": blocks})

    def _said(self, block: TextContent | ThinkingContent | ToolCall) -> dict[str, Any] | None:
        if isinstance(block, ToolCall):
            return {"toolUse": {"toolUseId": block.id, "name": block.name, "input": _without_empty_keys(block.arguments)}}
        if isinstance(block, TextContent):
            return _text(block.text) if block.text.strip() else None
        return self._thought(block)

    def _thought(self, block: ThinkingContent) -> dict[str, Any] | None:
        """Give the model its reasoning back as it came: a signature covers exactly that, and what is encrypted speaks for itself."""
        thoughts = self._style.thoughts
        if block.redacted:
            return {"reasoningContent": {"redactedContent": block.signature}} if block.signature else None
        if thoughts == "signed" and block.signature:
            return {"reasoningContent": {"reasoningText": {"text": block.thinking, "signature": block.signature}}}
        if thoughts == "encrypted" or not block.thinking.strip():
            return None
        return _text(block.thinking) if thoughts == "signed" else {"reasoningContent": {"reasoningText": _text(block.thinking)}}

    # -- tool results

    def _result(self, message: ToolResultMessage) -> None:
        images = [block for block in message.content if isinstance(block, ImageContent)]
        texts = [block for block in message.content if isinstance(block, TextContent) and block.text.strip()]
        inside = self._style.result_images and not message.is_error  # an error may hold text only
        if images and not inside:
            label = f"Image from the result of {message.tool_name} ({message.tool_call_id}):"
            self._images += [{"text": label}, *map(_part, images)]
        content = [_part(block) for block in message.content if (block in texts or inside) and not _blank(_part(block))]
        if not texts:
            content.insert(0, {"text": _NOTHING if not images else _IMAGE_ONLY if inside else _IMAGES_BELOW})
        result: dict[str, Any] = {"toolUseId": message.tool_call_id, "content": content}
        if message.is_error and self._style.result_status:
            result["status"] = "error"
        elif message.is_error:
            content[0] = {"text": _ERROR + content[0]["text"]}
        self._user.append({"toolResult": result})

    def _end_results(self) -> None:
        self._user += self._images
        self._images = []


def _text(text: str) -> dict[str, Any]:
    return {"text": clean_text(text)}


def _blank(block: dict[str, Any]) -> bool:
    return "text" in block and not block["text"].strip()


def _part(block: TextContent | ImageContent) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return _text(block.text)
    kind = IMAGE_FORMATS.get(block.mime_type.lower())
    if kind is None:
        return {"text": f"(an image of the type {block.mime_type} was here; this model takes PNG, JPEG, GIF and WebP)"}
    return {"image": {"format": kind, "source": {"bytes": block.data}}}


def _without_empty_keys(value: Any) -> Any:
    """Leave out what stands under an empty name, which the protocol refuses."""
    if isinstance(value, dict):
        return {key: _without_empty_keys(item) for key, item in cast("dict[str, Any]", value).items() if key}
    if isinstance(value, list):
        return [_without_empty_keys(item) for item in cast("list[Any]", value)]
    return value
