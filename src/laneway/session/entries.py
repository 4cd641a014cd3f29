"""Reading entries: their text, their calls, their place in a path. Pure functions over what a store returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from laneway.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    role_of,
)
from laneway.storage.base import CompactionEntry, CustomEntry, Entry, MessageEntry

LEFT_OUT_OF_CONTEXT = frozenset(("error", "aborted", "deferred", "pending"))
"""Stop reasons of responses that no provider ever sees again."""


def with_parent(entry: Entry, parent_id: str | None) -> Entry:
    """Return the entry under another parent."""
    return entry if entry.parent_id == parent_id else msgspec.structs.replace(entry, parent_id=parent_id)


def role_of_entry(entry: Entry) -> str:
    """Return a message's role, a custom entry's own type, or the entry's type."""
    if isinstance(entry, MessageEntry):
        return role_of(entry.message) or "message"
    return entry.custom_type if isinstance(entry, CustomEntry) else entry.type


def text_of_content(content: str | Iterable[object]) -> str:
    """Return the text blocks of a message's content, one per paragraph; images and thinking are left out."""
    if isinstance(content, str):
        return content
    return "\n\n".join(block.text for block in content if isinstance(block, TextContent))


def text_of_message(message: AgentMessage) -> str:
    """Return what a person would read of a message: its text, without thinking, calls and details."""
    match message:
        case SystemMessage():
            sections = [text for text in (message.sections or {}).values() if text]
            return "\n\n".join([message.content, *sections] if message.content else sections)
        case UserMessage() | AssistantMessage() | ToolResultMessage() | CustomMessage():
            return text_of_content(message.content)
        case BashExecutionMessage():
            return f"$ {message.command}\n{message.output}"
        case CompactionSummaryMessage() | BranchSummaryMessage():
            return message.summary
        case _:
            content = getattr(message, "content", None)
            return text_of_content(content) if isinstance(content, (str, list)) else ""  # pyright: ignore[reportUnknownArgumentType] - of a foreign class


def text_of(entry: Entry) -> str:
    """Return what a person would read of an entry; custom entries have no text."""
    if isinstance(entry, MessageEntry):
        return text_of_message(entry.message)
    return "" if isinstance(entry, CustomEntry) else entry.summary


def preview_of(entry: Entry, width: int = 80) -> str:
    """Return one line of at most `width` characters that lets a person recognise the entry."""
    text = one_line(text_of(entry), width)
    if text:
        return text
    if isinstance(entry, CustomEntry):
        return f"({entry.custom_type})"
    message = entry.message if isinstance(entry, MessageEntry) else None
    if isinstance(message, AssistantMessage):
        calls = ", ".join(call.name for call in message.tool_calls)
        return one_line(f"→ {calls}" if calls else message.error_message or f"({message.stop_reason})", width)
    content = getattr(message, "content", None)
    if isinstance(content, list) and any(isinstance(block, ImageContent) for block in content):  # pyright: ignore[reportUnknownVariableType] - only tested
        return "(image)"
    return "(empty)"


def one_line(text: str, width: int) -> str:
    """Return the text on one line, cut to `width` characters with an ellipsis."""
    line = " ".join(text[: width * 4].split())
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def thinking_of(message: AgentMessage) -> str:
    """Return the readable thinking of an assistant message."""
    if not isinstance(message, AssistantMessage):
        return ""
    return "\n\n".join(block.thinking for block in message.content if isinstance(block, ThinkingContent) and not block.redacted)


def open_calls(path: Sequence[Entry]) -> list[ToolCall]:
    """Return the calls at the end of a path (root first) that have no result yet.

    Only the newest response that can have results counts: older calls without one belong to damaged or foreign history,
    which is healed when it is sent.
    """
    answered: set[str] = set()
    for entry in reversed(path):
        if not isinstance(entry, MessageEntry):
            if isinstance(entry, CompactionEntry):
                return []
            continue
        message = entry.message
        if isinstance(message, ToolResultMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, AssistantMessage):
            if message.stop_reason in LEFT_OUT_OF_CONTEXT:
                return []
            return [call for call in message.tool_calls if call.id not in answered]
        elif isinstance(message, UserMessage):
            return []
    return []
