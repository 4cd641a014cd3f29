"""Thinking levels and budgets, and how many tokens a conversation takes and may still produce."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, cast

import msgspec
from msgspec import Struct

from laneway.llm._grown import Grown
from laneway.llm.base import THINKING_LEVELS, Model, StreamOptions, ThinkingLevel
from laneway.messages import (
    AgentMessage,
    AssistantContent,
    AssistantMessage,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserContent,
    UserMessage,
)

# ---------------------------------------------------------------------------------------------------- levels


def supported_thinking_levels(model: Model) -> list[ThinkingLevel]:
    """Return the levels that the model knows, weakest first; `["off"]` for one that does not reason.

    `Model.thinking_levels` decides: a word means supported, None means not. What it does not mention is supported, except "xhigh" and "max".
    """
    if not model.reasoning:
        return ["off"]
    return [level for level in THINKING_LEVELS if _supported(model, level)]


def _supported(model: Model, level: ThinkingLevel) -> bool:
    if level in model.thinking_levels:
        return model.thinking_levels[level] is not None
    return level not in ("xhigh", "max")


def clamp_thinking_level(model: Model, level: ThinkingLevel) -> ThinkingLevel:
    """Return the level itself if the model knows it, else the next stronger one, else the next weaker one, else "off"."""
    supported = supported_thinking_levels(model)
    if level in supported:
        return level
    rank = THINKING_LEVELS.index(level)
    if not model.reasoning:
        return "off"
    above: list[ThinkingLevel] = [known for known in supported if THINKING_LEVELS.index(known) > rank]
    if above:
        return above[0]
    return supported[-1] if supported else "off"


def thinking_word(model: Model, level: ThinkingLevel) -> str:
    """Return the provider's own word for a level: the one in `Model.thinking_levels`, else the level's name."""
    return model.thinking_levels.get(level) or level


def requested_level(model: Model, level: ThinkingLevel | None) -> ThinkingLevel:
    """Return the level that a request is made with: the model's default where none was asked for, clamped to what it knows."""
    return clamp_thinking_level(model, level or model.default_thinking_level or "off")


def sampling_params(model: Model, options: StreamOptions) -> dict[str, Any]:
    """Return the sampling parameters of a request: the model's, those of the thinking level over them, the request's over both; None removes one."""
    asked = options.sampling_params or {}
    if not model.sampling_params and not model.sampling_params_by_thinking_level:
        merged = asked
    else:
        level = model.sampling_params_by_thinking_level.get(requested_level(model, options.reasoning), {})
        merged = {**model.sampling_params, **level, **asked}
    return {name: value for name, value in merged.items() if value is not None}


# ---------------------------------------------------------------------------------------------------- budgets

THINKING_BUDGETS: dict[str, int] = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
_ANSWER_ROOM = 1024


def thinking_budget(level: ThinkingLevel, budgets: Mapping[str, int] | None = None) -> int:
    """Return the token budget of a level, for providers that want a number; 0 for "off". `budgets` overrides minimal to high."""
    if level == "off":
        return 0
    name = "high" if level in ("xhigh", "max") else level
    return (budgets or {}).get(name, THINKING_BUDGETS[name])


def fit_budget(budget: int, max_tokens: int) -> int:
    """Return the budget reduced so that 1024 of `max_tokens` are left for the answer; 0 if nothing is left to think with."""
    return max(0, min(budget, max_tokens - _ANSWER_ROOM))


# ---------------------------------------------------------------------------------------------------- estimates

CHARS_PER_TOKEN = 3.5
IMAGE_CHARS = 4800


class ContextEstimate(Struct, kw_only=True, frozen=True):
    """How much of the context window a conversation takes.

    `usage_tokens` were reported by the provider with the message at `last_usage_index` (None if there is no usable report),
    `trailing_tokens` are estimated for what came after it; `tokens` is their sum.
    """

    tokens: int
    usage_tokens: int
    trailing_tokens: int
    last_usage_index: int | None


def estimate_tokens(messages: Iterable[AgentMessage] | AgentMessage) -> int:
    """Estimate the tokens of messages (or of one), from their characters: 3.5 a token, an image as 4800."""
    if isinstance(messages, Struct):
        return _estimate_message(messages)
    return sum(map(_estimate_message, messages))


def _tokens(chars: int) -> int:
    return ceil(chars / CHARS_PER_TOKEN)


def _json_chars(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _estimate_message(message: Any) -> int:
    if type(message) is UserMessage or type(message) is ToolResultMessage:  # `isinstance` costs several times as much on structs
        return _tokens(_content_chars(message.content))
    if isinstance(message, AssistantMessage):
        return _tokens(sum(map(_block_chars, message.content)))
    return _estimate_system(message) if isinstance(message, SystemMessage) else _tokens(_other_chars(message))


def _estimate_system(message: SystemMessage) -> int:
    text = len(message.content) + sum(len(value) for value in (message.sections or {}).values() if value)
    tools = _tokens(_json_chars(message.tools_added)) if message.tools_added else 0
    return _tokens(text) + tools + (_tokens(_json_chars(message.tools_removed)) if message.tools_removed else 0)


def _block_chars(block: AssistantContent) -> int:
    if type(block) is TextContent:
        return len(block.text)
    if type(block) is ThinkingContent:
        return len(block.thinking)
    call = cast(ToolCall, block)
    return len(call.name) + _arguments_chars(call.arguments)


def _content_chars(content: str | list[UserContent]) -> int:
    if isinstance(content, str):
        return len(content)
    return sum([len(block.text) if type(block) is TextContent else IMAGE_CHARS for block in content])


def _arguments_chars(arguments: dict[str, Any]) -> int:
    try:
        return _json_chars(arguments)
    except UnicodeEncodeError:
        return len(repr(arguments))


def _other_chars(message: Any) -> int:
    """Characters of a custom message, by what it seems to hold."""
    content: Any = getattr(message, "content", None)
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return _content_chars([block for block in cast("list[Any]", content) if isinstance(block, (TextContent, ImageContent))])
    return sum(len(text) for name in ("summary", "command", "output") if isinstance(text := getattr(message, name, None), str))


def usage_tokens(usage: Usage) -> int:
    """Return the tokens that a response left in the context: the provider's total, else the sum of its parts."""
    return usage.total_tokens or usage.input + usage.output + usage.cache_read + usage.cache_write


class _Estimator:
    """`estimate_context`, message after message."""

    __slots__ = ("_newest", "_report", "_tokens")

    def __init__(self) -> None:
        self._tokens = [0]  # of what comes before each message, and of all
        self._newest = 0
        self._report: int | None = None

    def take(self, messages: Sequence[AgentMessage], start: int) -> ContextEstimate:
        tokens = self._tokens
        for index in range(start, len(messages)):
            message = messages[index]
            tokens.append(tokens[-1] + _estimate_message(message))
            timestamp: int = getattr(message, "timestamp", 0)  # a custom message need not have one
            if timestamp >= self._newest:
                self._newest = timestamp
                if _reports(message):
                    self._report = index
        if self._report is None:
            return ContextEstimate(tokens=tokens[-1], usage_tokens=0, trailing_tokens=tokens[-1], last_usage_index=None)
        reported = usage_tokens(cast(AssistantMessage, messages[self._report]).usage)
        trailing = tokens[-1] - tokens[self._report + 1]
        return ContextEstimate(tokens=reported + trailing, usage_tokens=reported, trailing_tokens=trailing, last_usage_index=self._report)


_estimates: Grown[ContextEstimate] = Grown(_Estimator)


def estimate_context(messages: Sequence[AgentMessage]) -> ContextEstimate:
    """Estimate what the next request takes: the last provider report that still holds, plus estimates of what came after it.

    A report holds if its response did not fail and nothing before it is newer (a compaction summary that was put in front of it makes it stale).
    Of a transcript that grew only what is new is looked at.
    """
    return _estimates.of(messages)


def _reports(message: AgentMessage) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason not in ("error", "aborted") and usage_tokens(message.usage) > 0


_MARGIN = 4096
_TIGHT_OUTPUT = 32768


def clamp_max_tokens(model: Model, requested: int | None, context_tokens: int) -> int | None:
    """Return the `max_tokens` to ask for: what was requested or the model's own, but no more than the window still holds.

    A margin is kept because `context_tokens` is an estimate: 15% of it, at least 4096; only 4096 (and an output of at most
    32768) when the window gets tight. None if neither a request nor the model has a limit.
    """
    limit = requested if requested is not None else model.max_tokens
    if limit <= 0 and requested is None:
        return None
    if model.context_window <= 0:
        return max(1, limit)
    left = model.context_window - context_tokens
    available = left - max(_MARGIN, int(context_tokens * 0.15))
    if available < _TIGHT_OUTPUT:
        available = min(_TIGHT_OUTPUT, left - _MARGIN)
    return min(max(1, limit), max(1, available))
