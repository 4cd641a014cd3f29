"""One message after the other → the wire's `contents`."""

from __future__ import annotations

import re
from typing import Any

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

SKIP_SIGNATURE = "skip_thought_signature_validator"
"""What the API documents for a call that has no signature: one that another model made."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}\Z")
_IMAGE_ONLY = "(see the attached image)"
_IMAGE_BELOW = "(see the image in the next user message)"


class ContentStyle(Struct, kw_only=True, frozen=True):
    """What decides how contents look; equal styles (for one model) give equal contents. The fields are those of `GoogleCompat`."""

    call_ids: bool
    images_in_results: bool
    needs_signatures: bool


class ContentConverter:
    """Writes the contents. Results wait for the last one of their response, because they go into one content; their images too, where they
    are not part of the results. System messages are not written: they are the prompt.
    """

    __slots__ = ("_images", "_results", "_style", "items")

    def __init__(self, style: ContentStyle) -> None:
        self._style = style
        self.items: list[dict[str, Any]] = []
        self._results: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []

    def copy(self) -> ContentConverter:
        """Return an independent converter in the same state."""
        other = ContentConverter(self._style)
        other.items, other._results, other._images = self.items.copy(), self._results.copy(), self._images.copy()
        return other

    def add(self, message: Message) -> None:
        """Take the next message."""
        if isinstance(message, ToolResultMessage):
            self._result(message)
            return
        self._flush_results()
        if isinstance(message, AssistantMessage):
            self._write("model", self._assistant(message))
        elif isinstance(message, UserMessage):
            self._write("user", _user(message))

    def finish(self) -> list[dict[str, Any]]:
        """Return all contents."""
        self._flush_results()
        return self.items

    def _write(self, role: str, parts: list[dict[str, Any]]) -> None:
        if parts:
            self.items.append({"role": role, "parts": parts})

    # -- assistant

    def _assistant(self, message: AssistantMessage) -> list[dict[str, Any]]:
        """Give the model its parts back as they came; a signature stays on the part that it came with."""
        parts: list[dict[str, Any]] = []
        calls = 0
        for block in message.content:
            if isinstance(block, ToolCall):
                parts.append(self._call(block, first=not calls))
                calls += 1
            elif isinstance(block, TextContent):
                _add_text(parts, block.text, block.signature)
            else:
                _add_thought(parts, block)
        return parts

    def _call(self, call: ToolCall, *, first: bool) -> dict[str, Any]:
        function: dict[str, Any] = {"name": call.name, "args": call.arguments}
        if self._style.call_ids:
            function["id"] = call.id
        signature = valid_signature(call.signature)
        if signature is None and first and self._style.needs_signatures:
            signature = SKIP_SIGNATURE
        part: dict[str, Any] = {"functionCall": function}
        return part if signature is None else {**part, "thoughtSignature": signature}

    # -- tool results

    def _result(self, message: ToolResultMessage) -> None:
        text = clean_text("\n".join(block.text for block in message.content if isinstance(block, TextContent)))
        images = [_part(block) for block in message.content if isinstance(block, ImageContent)]
        nested = images and self._style.images_in_results
        if images and not text:
            text = _IMAGE_ONLY if nested else _IMAGE_BELOW
        response: dict[str, Any] = {"name": message.tool_name, "response": {"error" if message.is_error else "output": text}}
        if self._style.call_ids:
            response["id"] = message.tool_call_id
        if nested:
            response["parts"] = images
        elif images:
            self._images += [{"text": f"Image from the result of {message.tool_name}:"}, *images]
        self._results.append({"functionResponse": response})

    def _flush_results(self) -> None:
        results, images = self._results, self._images
        self._results, self._images = [], []
        self._write("user", results)
        self._write("user", images)


def valid_signature(signature: str | None) -> str | None:
    """Return a signature that the API will take for one (base64 in groups of four); None for any other."""
    return signature if signature and len(signature) % 4 == 0 and _BASE64.match(signature) else None


def _add_text(parts: list[dict[str, Any]], text: str, signature: str | None) -> None:
    signature = valid_signature(signature)
    if signature is not None:
        parts.append({"text": clean_text(text), "thoughtSignature": signature})
    elif text.strip():
        parts.append({"text": clean_text(text)})


def _add_thought(parts: list[dict[str, Any]], block: ThinkingContent) -> None:
    signature = valid_signature(block.signature)
    if signature is not None:
        parts.append({"text": clean_text(block.thinking), "thought": True, "thoughtSignature": signature})
    elif block.thinking.strip() and not block.redacted:
        parts.append({"text": clean_text(block.thinking), "thought": True})


def _user(message: UserMessage) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"text": clean_text(message.content)}] if message.content else []
    return [_part(block) for block in message.content if not (isinstance(block, TextContent) and not block.text)]


def _part(block: TextContent | ImageContent) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return {"text": clean_text(block.text)}
    return {"inlineData": {"mimeType": block.mime_type, "data": block.data}}
