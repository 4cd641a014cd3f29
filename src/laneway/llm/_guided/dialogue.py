"""The conversation as a guided model of ordinary size reads it: tools described in the system prompt, calls and results as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laneway.llm.base import Model, encode_json
from laneway.messages import AssistantMessage, ImageContent, Message, SystemMessage, TextContent, ToolDeclaration, ToolResultMessage, UserMessage

_HOW = """\
Reply with one JSON object and nothing else. To call a tool: {"tool": name, "arguments": {...}}. To answer: {"answer": text}.
You get a tool's result in the next message. Answer as soon as you can.

Tools:
"""


def dialogue(
    system_prompt: str, messages: Sequence[Message], tools: Sequence[ToolDeclaration], model: Model, *, result_chars: int = 0
) -> list[Message]:
    """Return the messages to send; without tools the reply is asked for as plain text."""
    parts = [system_prompt] if system_prompt else []
    if tools:
        parts.append(_HOW + "\n".join(_declare(tool) for tool in tools))
    told: list[Message] = [SystemMessage(content="\n\n".join(parts), timestamp=0)] if parts else []
    results: list[str] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            results.append(result_text(message, result_chars))
            continue
        if results:
            told.append(UserMessage(content="\n\n".join(results), timestamp=0))
            results = []
        if isinstance(message, AssistantMessage):
            told.append(said(model, "\n".join(_replies(message, bool(tools)))))
        elif not isinstance(message, SystemMessage):
            told.append(message)
    return [*told, UserMessage(content="\n\n".join(results), timestamp=0)] if results else told


def _declare(tool: ToolDeclaration) -> str:
    return encode_json({"name": tool.name, "description": tool.description, "arguments": tool.parameters}).decode()


def _replies(message: AssistantMessage, guided: bool) -> list[str]:
    replies = [reply_text({"tool": call.name, "arguments": call.arguments}) for call in message.tool_calls]
    if message.text.strip() and not replies:
        return [reply_text({"answer": message.text}) if guided else message.text]
    return replies


def reply_text(reply: dict[str, Any]) -> str:
    """Write a reply the way a model writes JSON: with spaces."""
    import json

    return json.dumps(reply, ensure_ascii=False)


def said(model: Model, text: str) -> AssistantMessage:
    """Return an assistant message of the model's own."""
    return AssistantMessage(content=[TextContent(text=text)], api=model.api, provider=model.provider, model=model.id, timestamp=0)


def result_text(message: ToolResultMessage, limit: int = 0) -> str:
    """Return a tool result as text."""
    kind = "Error from" if message.is_error else "Result of"
    return f"{kind} {message.tool_name}:\n{plain_text(message, limit)}"


def plain_text(message: UserMessage | ToolResultMessage, limit: int = 0) -> str:
    """Return the text of a message, cut to `limit` characters with a note if it is longer."""
    blocks = [TextContent(text=message.content)] if isinstance(message.content, str) else message.content
    text = "\n".join("(an image)" if isinstance(block, ImageContent) else block.text for block in blocks)
    return text if not limit or len(text) <= limit else f"{text[:limit]}\n[{len(text) - limit} more characters are not shown]"
