"""Was the prompt too long for the model? Providers each have their own words for it.

A wrong yes starts a compaction, which rewrites what the model sees; so the exclusions come first.
"""

from __future__ import annotations

import re

from laneway.messages import AssistantMessage

OVERFLOW_TEXTS: tuple[str, ...] = (
    r"prompt is too long",
    r"request_too_large",
    r"input is too long for requested model",
    r"exceeds? the (?:model's )?context (?:window|length)",
    r"maximum context length (?:of|is) \(?[\d,]+",
    r"exceed\w* .{0,60}maximum context length",
    r"context length (?:of|is) (?:only )?[\d,]+ tokens",
    r"input token count.{0,40} exceeds the maximum",
    r"maximum prompt length is [\d,]+",
    r"reduce the length of (?:the|your) (?:messages|prompt|input)",
    r"maximum allowed input length of [\d,]+",
    r"input \([\d,]+ tokens\) is longer than the model's context length",
    r"prompt token count of [\d,]+ exceeds the limit of [\d,]+",
    r"exceeds the available context size",
    r"greater than the context length",
    r"context window exceeds? limit",
    r"exceeded model token limit",
    r"too large for model with [\d,]+ maximum context length",
    r"prompt has [\d,]+ tokens, but the configured context size",
    r"model_context_window_exceeded",
    r"prompt too long",
    r"exceeded (?:max|maximum) context length",
    r"range of input length should be",
    r"context[_ ]length[_ ]exceeded",
    r"too many (?:input )?tokens",
    r"token limit exceeded",
    r"prompt exceeds max(?:imum)? length",
    r"context[_ ]?window[_ ]?exceeded",
)
NOT_OVERFLOW_TEXTS: tuple[str, ...] = (
    r"^\s*(?:[\w.-]+ error[^:]*: )?(?:throttling error|service unavailable)\s*:",
    r"rate[ _-]?limit",
    r"too many requests",
    r"too many tokens.{0,80}(?:wait|later|per (?:minute|day)|try again)",
    r"tokens per (?:minute|day)",
    r"quota",
    r"max_(?:completion_|output_)?tokens.{0,60}(?:too large|too high|at most|must be)",
    r"string (?:is )?too long",
    r"\bimages?\b.{0,60}(?:too large|exceed)",
)
_OVERFLOW = re.compile("|".join(OVERFLOW_TEXTS), re.I)
_NOT_OVERFLOW = re.compile("|".join(NOT_OVERFLOW_TEXTS), re.I)


def is_overflow_text(text: str) -> bool:
    """Whether a provider's sentence says that the prompt does not fit the context window."""
    return bool(_OVERFLOW.search(text)) and not excludes_overflow(text)


def excludes_overflow(text: str) -> bool:
    """Whether a sentence that may look like an overflow is about something else: throttling, a quota, an image, an option."""
    return bool(_NOT_OVERFLOW.search(text))


def is_context_overflow(message: AssistantMessage, context_window: int = 0) -> bool:
    """Whether a response shows that the conversation no longer fits the model.

    True for an error that says so; for a normal stop whose input was larger than `context_window` (a server that cuts silently);
    and for a `length` stop that produced nothing with the window (almost) full. `context_window` 0 is unknown.
    """
    if message.stop_reason == "error":
        info = message.error
        if info is not None and info.kind != "unknown":
            return info.kind == "overflow"
        return is_overflow_text(message.error_message or "")
    if context_window <= 0:
        return False
    taken = message.usage.input + message.usage.cache_read + message.usage.cache_write
    if message.stop_reason == "stop":
        return taken > context_window
    return message.stop_reason == "length" and message.usage.output == 0 and taken >= context_window * 0.99


def is_recoverable_length(message: AssistantMessage, desired: int) -> bool:
    """Whether a `length` stop came before the `desired` output tokens, so that a shorter prompt would have let it finish."""
    return message.stop_reason == "length" and desired > 0 and message.usage.output < desired
