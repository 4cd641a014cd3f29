"""pi's messages (camelCase JSON, formats 1 to 3) as ours. Pure, and lenient: what is unknown is left out, what is missing gets a default."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias, cast

import msgspec

from laneway.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    Cost,
    CustomMessage,
    ImageContent,
    StopReason,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    Usage,
    UserMessage,
    clean_json,
)

Json: TypeAlias = dict[str, Any]

_STOP_REASONS: dict[str, StopReason] = {
    "stop": "stop", "length": "length", "toolUse": "tool_use", "error": "error", "aborted": "aborted", "deferred": "deferred",
}  # fmt: skip


def message_from_pi(raw: Json, timestamp: int) -> AgentMessage | None:
    """Return the message, or None if it is none that we know. `timestamp` (Unix ms) serves where it has none of its own."""
    try:
        return _convert(raw, integer(raw.get("timestamp")) or timestamp)
    except (TypeError, ValueError, KeyError, msgspec.ValidationError):
        return None


def _convert(raw: Json, timestamp: int) -> AgentMessage | None:
    match raw.get("role"):
        case "user":
            return UserMessage(content=_user_content(raw.get("content")), timestamp=timestamp)
        case "assistant":
            return _assistant(raw, timestamp)
        case "toolResult":
            return _tool_result(raw, timestamp)
        case "system":
            return _system(raw, timestamp)
        case "bashExecution":
            return BashExecutionMessage(
                command=text(raw.get("command")),
                output=text(raw.get("output")),
                exit_code=integer(raw["exitCode"]) if type(raw.get("exitCode")) is int else None,
                cancelled=raw.get("cancelled") is True,
                truncated=raw.get("truncated") is True,
                full_output_path=optional_text(raw.get("fullOutputPath")),
                exclude_from_context=raw.get("excludeFromContext") is True,
                timestamp=timestamp,
            )
        case "custom" | "hookMessage":
            return custom_from_pi(raw, timestamp)
        case "compactionSummary":
            return CompactionSummaryMessage(summary=text(raw.get("summary")), tokens_before=integer(raw.get("tokensBefore")), timestamp=timestamp)
        case "branchSummary":
            return BranchSummaryMessage(summary=text(raw.get("summary")), timestamp=timestamp)
        case _:
            return None


def custom_from_pi(raw: Json, timestamp: int) -> CustomMessage:
    """Return a custom message, from a message or from a `custom_message` entry."""
    return CustomMessage(
        custom_type=text(raw.get("customType")) or "unknown",
        content=_user_content(raw.get("content")),
        details=clean_json(raw.get("details")),
        timestamp=timestamp,
    )


def with_content(message: AgentMessage, content: Any) -> AgentMessage | None:
    """Return the message with pi's replacement `content` in place of its own; None if it takes none."""
    if isinstance(message, AssistantMessage):
        blocks = [TextContent(text=content)] if isinstance(content, str) else _assistant_blocks(content)
        return msgspec.structs.replace(message, content=blocks)
    if isinstance(message, ToolResultMessage):
        return msgspec.structs.replace(message, content=_blocks(content))
    if isinstance(message, (UserMessage, CustomMessage)):
        return msgspec.structs.replace(message, content=_user_content(content))
    return None


def _assistant(raw: Json, timestamp: int) -> AssistantMessage:
    stop_reason = _STOP_REASONS.get(text(raw.get("stopReason")), "stop")
    return AssistantMessage(
        content=_assistant_blocks(raw.get("content")),
        api=text(raw.get("api")),
        provider=text(raw.get("provider")),
        model=text(raw.get("model")),
        usage=usage_from_pi(raw.get("usage")) or Usage(),
        # A handle to a provider's deferred response is of no use to us, so the response is one that failed.
        stop_reason="error" if stop_reason == "deferred" else stop_reason,
        error_message=optional_text(raw.get("errorMessage")),
        response_id=optional_text(raw.get("responseId")),
        response_model=optional_text(raw.get("responseModel")),
        raw_stop_reason=optional_text(raw.get("rawStopReason")),
        timestamp=timestamp,
    )


def _tool_result(raw: Json, timestamp: int) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=text(raw["toolCallId"]),
        tool_name=text(raw.get("toolName")),
        content=_blocks(raw.get("content")),
        details=clean_json(raw.get("details")),
        usage=usage_from_pi(raw.get("usage")),
        is_error=raw.get("isError") is True,
        timestamp=timestamp,
    )


def _system(raw: Json, timestamp: int) -> SystemMessage:
    content = raw.get("content")
    sections = raw.get("sections")
    added = raw.get("toolsAdded", raw.get("tools"))
    removed = raw.get("toolsRemoved")
    return SystemMessage(
        content=content if isinstance(content, str) else "\n\n".join(b.text for b in _blocks(content) if isinstance(b, TextContent)),
        sections=msgspec.convert(sections, dict[str, str | None]) if isinstance(sections, dict) else None,
        tools_added=[_declaration(tool) for tool in cast("list[Json]", added)] if isinstance(added, list) else None,
        tools_removed=[text(name) for name in cast("list[Any]", removed)] if isinstance(removed, list) else None,
        timestamp=timestamp,
    )


def _declaration(raw: Json) -> ToolDeclaration:
    parameters = raw.get("parameters")
    return ToolDeclaration(
        name=text(raw["name"]), description=text(raw.get("description")), parameters=clean_json(parameters) if isinstance(parameters, dict) else {}
    )


def _user_content(content: Any) -> str | list[TextContent | ImageContent]:
    return content if isinstance(content, str) else _blocks(content)


def _blocks(content: Any) -> list[TextContent | ImageContent]:
    if isinstance(content, str):
        return [TextContent(text=content)]
    found: list[TextContent | ImageContent] = []
    for block in _objects(content):
        if block.get("type") == "text":
            found.append(TextContent(text=text(block.get("text"))))
        elif block.get("type") == "image":
            found.append(ImageContent(data=text(block.get("data")), mime_type=text(block.get("mimeType")) or "image/png"))
    return found


def _assistant_blocks(content: Any) -> list[TextContent | ThinkingContent | ToolCall]:
    found: list[TextContent | ThinkingContent | ToolCall] = []
    for block in _objects(content):
        match block.get("type"):
            case "text":
                found.append(TextContent(text=text(block.get("text")), signature=optional_text(block.get("textSignature"))))
            case "thinking":
                found.append(
                    ThinkingContent(
                        thinking=text(block.get("thinking")),
                        signature=optional_text(block.get("thinkingSignature")),
                        redacted=block.get("redacted") is True,
                    )
                )
            case "toolCall":
                arguments = block.get("arguments")
                found.append(
                    ToolCall(
                        id=text(block["id"]),
                        name=text(block["name"]),
                        arguments=clean_json(arguments) if isinstance(arguments, dict) else {},
                        signature=optional_text(block.get("thoughtSignature")),
                    )
                )
            case _:
                pass
    return found


def usage_from_pi(raw: Any) -> Usage | None:
    """Return a usage, or None if there is none."""
    if not isinstance(raw, dict):
        return None
    fields = cast(Json, raw)
    cost = cast(Json, fields.get("cost")) if isinstance(fields.get("cost"), dict) else {}
    return Usage(
        input=integer(fields.get("input")),
        output=integer(fields.get("output")),
        cache_read=integer(fields.get("cacheRead")),
        cache_write=integer(fields.get("cacheWrite")),
        cache_write_1h=_optional_integer(fields.get("cacheWrite1h")),
        reasoning=_optional_integer(fields.get("reasoning")),
        total_tokens=integer(fields.get("totalTokens")),
        cost=Cost(
            input=number(cost.get("input")),
            output=number(cost.get("output")),
            cache_read=number(cost.get("cacheRead")),
            cache_write=number(cost.get("cacheWrite")),
            total=number(cost.get("total")),
        ),
    )


def time_from_pi(value: Any) -> int:
    """Return Unix milliseconds from an ISO time or a number; 0 if it is neither, or before 1970."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value).timestamp() * 1000
        except (ValueError, OverflowError):
            return 0
    return max(0, integer(value))


def text(value: Any) -> str:
    """Return text that can be stored; "" for anything else."""
    return cast(str, clean_json(value)) if isinstance(value, str) else ""


def optional_text(value: Any) -> str | None:
    """Return text, or None for anything else."""
    return text(value) if isinstance(value, str) else None


def integer(value: Any) -> int:
    """Return a whole number; 0 for anything else."""
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53 else 0


def number(value: Any) -> float:
    """Return a number; 0 for anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _optional_integer(value: Any) -> int | None:
    return None if value is None else integer(value)


def _objects(value: Any) -> list[Json]:
    return [cast(Json, item) for item in cast("list[Any]", value) if isinstance(item, dict)] if isinstance(value, list) else []
