"""Whether, when and how often a failed response is asked for again."""

from __future__ import annotations

import asyncio

import pytest

from laneway.abort import AbortController
from laneway.llm._retry import (
    RetryCallbacks,
    RetryPolicy,
    abortable_sleep,
    is_retryable,
    retry_assistant_call,
    retry_delay_ms,
    should_retry,
    transport_delay,
)
from laneway.messages import AssistantMessage, ErrorInfo, ErrorKind


def failed(kind: ErrorKind = "server", text: str = "it failed", *, wait: int | None = None) -> AssistantMessage:
    """A response that ended in an error."""
    return AssistantMessage(content=[], stop_reason="error", error_message=text, error=ErrorInfo(kind=kind, retry_after_ms=wait))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("rate_limit", True), ("overloaded", True), ("network", True), ("timeout", True), ("incomplete", True), ("server", True), ("protocol", True),
        ("quota", False), ("auth", False), ("invalid_request", False), ("not_found", False), ("content_filter", False), ("overflow", False),
        ("configuration", False), ("unknown", False),
    ],
)  # fmt: skip
def test_the_typed_kind_decides(kind: ErrorKind, expected: bool) -> None:
    """Decision 9: whether a retry can help follows from the kind, whatever the sentence says."""
    text = "it failed" if kind == "unknown" else "503 server error" if not expected else "invalid"
    assert is_retryable(failed(kind, text)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("429 insufficient_quota", False), ("socket hang up", True), ("Request was aborted", False), ("request id 15003x", False),
        ("Stream ended without finish_reason", True), ("HTTP 503", True), ("prompt is too long", False),
    ],
)  # fmt: skip
def test_without_a_kind_the_sentence_decides(text: str, expected: bool) -> None:
    """05 sc. 128, 129: the text is the fallback for messages from elsewhere."""
    assert is_retryable(failed("unknown", text)) is expected
    assert is_retryable(AssistantMessage(content=[], stop_reason="error", error_message=text)) is expected


def test_only_errors_are_retried() -> None:
    """An abort is somebody's wish, a stop is an answer."""
    for stop in ("stop", "aborted", "length", "tool_use"):
        assert not is_retryable(AssistantMessage(content=[], stop_reason=stop, error_message="503"))  # pyright: ignore[reportArgumentType]


def test_the_backoff_doubles_up_to_the_cap() -> None:
    """05 sc. 130: base 2 s → 2, 4, 8, … 60; the 2000th attempt does not overflow."""
    policy = RetryPolicy(base_delay=2.0, max_delay=60.0)
    assert [retry_delay_ms(failed(), n, policy) for n in (1, 2, 3, 5, 6, 2000)] == [2000, 4000, 8000, 32_000, 60_000, 60_000]
    assert retry_delay_ms(failed(), 9, RetryPolicy(base_delay=2.0, max_delay=5.0)) == 5000


@pytest.mark.parametrize(("wait", "expected"), [(30_000, 30_000), (1500, 1500), (0, 1000), (None, 1000)])
def test_the_provider_s_wait_is_kept(wait: int | None, expected: int) -> None:
    """B50: what Retry-After asked for survives to the layer that sleeps; no wait, or 0, is the backoff."""
    assert retry_delay_ms(failed("rate_limit", wait=wait), 1, RetryPolicy()) == expected


def test_a_wait_above_the_cap_is_no_retry() -> None:
    """B51: 198300 seconds is not transient."""
    assert not is_retryable(failed("rate_limit", wait=198_300_000))
    assert is_retryable(failed("rate_limit", wait=198_300_000), RetryPolicy(max_delay=200_000))
    assert is_retryable(failed("rate_limit", wait=60_000))


def test_the_policy_limits_the_attempts() -> None:
    """Disabled means never; attempt max_retries is the last one."""
    assert should_retry(failed(), 3, RetryPolicy())
    assert not should_retry(failed(), 4, RetryPolicy())
    assert not should_retry(failed(), 1, RetryPolicy(enabled=False))


def test_transport_delays_have_jitter_downwards() -> None:
    """05 §6.1: 0.5·2^n seconds, at most 8, less up to a quarter."""
    for retry, top in ((0, 0.5), (1, 1.0), (4, 8.0), (50, 8.0)):
        assert top * 0.75 <= transport_delay(retry) <= top


async def test_two_failures_then_success() -> None:
    """05 sc. 126: scheduled(1), start, scheduled(2), start, finished(true, 2)."""
    replies = [failed(), failed(), AssistantMessage(content=[])]
    told: list[object] = []

    async def produce() -> AssistantMessage:
        return replies.pop(0)

    callbacks = RetryCallbacks(
        scheduled=lambda attempt, most, delay, message: told.append(("scheduled", attempt, most, delay, message.error_message)),
        start=lambda attempt: told.append(("start", attempt)),
        finished=lambda success, attempts, error: told.append(("finished", success, attempts, error)),
    )
    result = await retry_assistant_call(produce, RetryPolicy(base_delay=0.001), callbacks=callbacks)
    assert result.stop_reason == "stop"
    assert told == [
        ("scheduled", 1, 3, 1, "it failed"), ("start", 1), ("scheduled", 2, 3, 2, "it failed"), ("start", 2), ("finished", True, 2, None),
    ]  # fmt: skip


async def test_an_abort_ends_the_wait_at_once() -> None:
    """B52, 05 sc. 127: an abort in the middle of a backoff gives the message as aborted, without an error text."""
    controller = AbortController()
    told: list[object] = []
    calls = 0

    async def produce() -> AssistantMessage:
        nonlocal calls
        calls += 1
        return failed("rate_limit", wait=30_000)

    callbacks = RetryCallbacks(
        scheduled=lambda *_: asyncio.get_running_loop().call_later(0.01, controller.abort),
        finished=lambda success, attempts, error: told.append((success, attempts)),
    )
    async with asyncio.timeout(5):
        result = await retry_assistant_call(produce, RetryPolicy(), signal=controller.signal, callbacks=callbacks)
    assert (result.stop_reason, result.error_message, result.error, calls) == ("aborted", None, None, 1)
    assert told == [(False, 1)]


async def test_what_cannot_be_helped_is_returned_at_once() -> None:
    """A used-up quota is asked for once; exhausted retries return the last failure."""
    calls = 0

    async def produce() -> AssistantMessage:
        nonlocal calls
        calls += 1
        return failed("quota" if calls == 1 else "server", f"failure {calls}")

    assert (await retry_assistant_call(produce, RetryPolicy())).error_message == "failure 1"
    assert (await retry_assistant_call(produce, RetryPolicy(max_retries=2, base_delay=0.001))).error_message == "failure 4"


async def test_a_sleep_can_be_aborted_before_and_during() -> None:
    """Both raise `Aborted`."""
    from laneway.errors import Aborted

    controller = AbortController()
    asyncio.get_running_loop().call_later(0.01, controller.abort, "enough")
    async with asyncio.timeout(5):
        with pytest.raises(Aborted, match="enough"):
            await abortable_sleep(30, controller.signal)
        with pytest.raises(Aborted):
            await abortable_sleep(30, controller.signal)
        await abortable_sleep(0.001, None)
