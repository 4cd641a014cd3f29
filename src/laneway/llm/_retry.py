"""Whether and when to ask again after a response that failed.

A wire retries (if `StreamOptions.max_retries` asks for it) only before the first byte of a response; what is here is for the
layers above, which ask for a whole new response: the failed one stays out of what the model sees.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from msgspec import Struct
from msgspec.structs import replace

from laneway.abort import AbortSignal, abort_scope
from laneway.errors import Aborted
from laneway.llm._errors import RETRYABLE_KINDS, classify_text
from laneway.messages import AssistantMessage


class RetryPolicy(Struct, kw_only=True, frozen=True):
    """How often and how patiently a failed response is asked for again. Times are seconds.

    The wait before retry n is `base_delay` · 2^(n-1), at most `max_delay`. A wait that the provider asks for is kept instead, but one
    above `max_delay` is no retry at all: the failure says how long the provider wants.
    """

    enabled: bool = True
    max_retries: int = 3
    base_delay: float = 1.0
    max_delay: float = 60.0


def is_retryable(message: AssistantMessage, policy: RetryPolicy | None = None) -> bool:
    """Whether the response failed in a way that may not happen again.

    False for anything but an error, for a failure that repeats itself (no key, no quota, a bad request, an overflow), and for a wait
    longer than `policy.max_delay` (60 s without a policy). Check `is_context_overflow` first: an overflow calls for a shorter prompt.
    """
    if message.stop_reason != "error":
        return False
    info = message.error
    cap = (policy or RetryPolicy()).max_delay
    if info is not None and info.retry_after_ms is not None and info.retry_after_ms > cap * 1000:
        return False
    kind = info.kind if info is not None else "unknown"
    if kind == "unknown":
        kind = classify_text(message.error_message or "")
    return kind in RETRYABLE_KINDS


def retry_delay_ms(message: AssistantMessage, attempt: int, policy: RetryPolicy) -> int:
    """Return the wait in milliseconds before retry `attempt` (1 is the first): what the provider asked for, else the policy's backoff."""
    backoff = min(policy.base_delay * 2.0 ** min(attempt - 1, 60), policy.max_delay) * 1000
    asked = message.error.retry_after_ms if message.error is not None else None
    return asked or int(backoff)


def should_retry(message: AssistantMessage, attempt: int, policy: RetryPolicy) -> bool:
    """Whether retry `attempt` (1 is the first) is to be made after `message`."""
    return policy.enabled and attempt <= policy.max_retries and is_retryable(message, policy)


def transport_delay(retry: int) -> float:
    """Return the seconds before transport retry `retry` (0 is the first): 0.5·2^n up to 8, less up to a quarter at random."""
    return min(0.5 * 2.0 ** min(retry, 10), 8.0) * (1 - 0.25 * random.random())


async def abortable_sleep(seconds: float, signal: AbortSignal | None) -> None:
    """Sleep.

    Raises:
        Aborted: `signal` was set before or while sleeping.
    """
    async with abort_scope(signal):
        await asyncio.sleep(seconds)


class RetryCallbacks(Struct, kw_only=True, frozen=True):
    """What `retry_assistant_call` tells: `scheduled(attempt, max, delay_ms, message)`, `start(attempt)`, `finished(success, attempts, error)`."""

    scheduled: Callable[[int, int, int, AssistantMessage], None] | None = None
    start: Callable[[int], None] | None = None
    finished: Callable[[bool, int, str | None], None] | None = None


async def retry_assistant_call(
    produce: Callable[[], Awaitable[AssistantMessage]],
    policy: RetryPolicy,
    *,
    signal: AbortSignal | None = None,
    callbacks: RetryCallbacks | None = None,
) -> AssistantMessage:
    """Call `produce` until its response is good, cannot be helped, or the retries are used up; return the last response.

    An abort, also in the middle of a wait, gives the last response as an `aborted` one. `finished` is called only if a retry was scheduled.
    """
    tell = callbacks or RetryCallbacks()
    attempt = 0

    def finish(success: bool, message: AssistantMessage) -> AssistantMessage:
        if attempt and tell.finished is not None:
            tell.finished(success, attempt, None if success else message.error_message)
        return message

    while True:
        message = await produce()
        if message.stop_reason == "aborted":
            return finish(False, message)
        if message.stop_reason != "error":
            return finish(True, message)
        if not should_retry(message, attempt + 1, policy):
            return finish(False, message)
        attempt += 1
        delay = retry_delay_ms(message, attempt, policy)
        if tell.scheduled is not None:
            tell.scheduled(attempt, policy.max_retries, delay, message)
        try:
            await abortable_sleep(delay / 1000, signal)
        except Aborted:
            return finish(False, replace(message, stop_reason="aborted", error_message=None, error=None))
        if tell.start is not None:
            tell.start(attempt)
