"""Was the prompt too long? A wrong yes rewrites the conversation, a wrong no ends it."""

from __future__ import annotations

import pytest

from laneway.llm._overflow import is_context_overflow, is_overflow_text, is_recoverable_length
from laneway.messages import AssistantMessage, ErrorInfo, StopReason, Usage

OVERFLOWS = [
    "prompt is too long: 213462 tokens > 200000 maximum",
    '{"type":"error","error":{"type":"request_too_large"}}',
    "Input is too long for requested model.",
    "Your input exceeds the context window of this model",
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "Requested token count exceeds the model's maximum context length (131072)",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Please reduce the length of the messages or completion.",
    "This endpoint's maximum context length is 32000 tokens.",
    "maximum allowed input length of 4096 tokens",
    "The input (1234 tokens) is longer than the model's context length (1000 tokens).",
    "prompt token count of 135000 exceeds the limit of 128000",
    "the request exceeds the available context size, try increasing it",
    "The number of tokens to keep from the initial prompt is greater than the context length",
    "invalid params, context window exceeds limit",
    "Your request exceeded model token limit: 262144",
    "Prompt contains 5000 tokens: too large for model with 4096 maximum context length",
    "prompt has 5000 tokens, but the configured context size is 4096",
    "model_context_window_exceeded",
    "Prompt too long",
    "prompt too long; exceeded max context length by 4 tokens",
    "Range of input length should be [1, 129024]",
    "context_length_exceeded",
    "Too many tokens in the prompt",
    "token limit exceeded",
    "Prompt exceeds max length",
    "litellm.ContextWindowExceededError",
]
OTHERS = [
    "Too many tokens, please wait before trying again.",
    "Throttling error: Too many tokens",
    "Service unavailable: too many tokens",
    "429 rate limit: too many tokens",
    "Too many requests",
    "max_tokens is too large: 100000 exceeds the maximum context length of 10",
    "image too large: exceeds the context window limit",
    "You exceeded your token quota",
    "messages[11].tool_calls[0].id string too long, maximum 40, got 46",
    "Limit of 30000 tokens per minute: too many tokens",
    "503 service unavailable",
    "",
]


@pytest.mark.parametrize("text", OVERFLOWS)
def test_each_provider_s_words_for_an_overflow_are_known(text: str) -> None:
    """B53, 05 §6.5: one row per wording."""
    assert is_overflow_text(text)
    assert is_context_overflow(AssistantMessage(content=[], stop_reason="error", error_message=f"x error (400): {text}"))


@pytest.mark.parametrize("text", OTHERS)
def test_look_alikes_are_no_overflow(text: str) -> None:
    """B53, B54, 05 sc. 131: throttling, quotas, images and options are not the prompt's length."""
    assert not is_overflow_text(text)


def test_the_typed_kind_counts_before_the_text() -> None:
    """Decision 9: what the wire classified is not read again from the sentence."""
    text = "prompt is too long"
    assert not is_context_overflow(AssistantMessage(content=[], stop_reason="error", error_message=text, error=ErrorInfo(kind="rate_limit")))
    assert is_context_overflow(AssistantMessage(content=[], stop_reason="error", error_message="no", error=ErrorInfo(kind="overflow")))
    assert is_context_overflow(AssistantMessage(content=[], stop_reason="error", error_message=text, error=ErrorInfo(kind="unknown")))


@pytest.mark.parametrize(
    ("stop", "input", "cached", "output", "window", "expected"),
    [
        ("stop", 90, 20, 5, 100, True),
        ("stop", 90, 10, 5, 100, False),
        ("stop", 90, 20, 5, 0, False),
        ("length", 99, 0, 0, 100, True),
        ("length", 99, 0, 1, 100, False),
        ("length", 98, 0, 0, 100, False),
        ("tool_use", 200, 0, 5, 100, False),
        ("aborted", 200, 0, 0, 100, False),
    ],
)
def test_usage_above_the_window_counts(stop: StopReason, input: int, cached: int, output: int, window: int, expected: bool) -> None:
    """05 sc. 132: servers that cut silently, and a window that is full before the first token."""
    message = AssistantMessage(content=[], stop_reason=stop, usage=Usage(input=input, cache_read=cached, output=output))
    assert is_context_overflow(message, window) is expected


def test_a_length_stop_below_what_was_wanted_can_be_helped() -> None:
    """05 §6.5: a shorter prompt leaves more room for the answer."""
    message = AssistantMessage(content=[], stop_reason="length", usage=Usage(output=100))
    assert is_recoverable_length(message, 200)
    assert not is_recoverable_length(message, 100)
    assert not is_recoverable_length(message, 0)
    assert not is_recoverable_length(AssistantMessage(content=[], usage=Usage(output=1)), 200)
