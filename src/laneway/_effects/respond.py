"""One assistant response: ask a model once and stream the answer. A provider's fault is a settled message, never an exception."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import msgspec

from laneway.abort import AbortSignal, being_cancelled, soon
from laneway.events import BlockEvent, StreamDone, StreamError, StreamStart
from laneway.llm._writer import describe, kind_of
from laneway.llm.base import AssistantStream, Model, ProviderFailure, ReaderFailed, StreamFn, StreamOptions, Transcript
from laneway.messages import AssistantMessage, ErrorInfo, ToolCall

OnEvent: TypeAlias = Callable[[StreamStart | BlockEvent], Awaitable[None]]
logger = logging.getLogger("laneway")

STREAM_ABORT_GRACE = 1.0  # seconds that a stream has, after an abort, to end by itself with what it got


async def respond(
    model: Model, transcript: Transcript, options: StreamOptions, *, stream_fn: StreamFn, on_event: OnEvent, guard: StreamGuard | None = None
) -> AssistantMessage:
    """Ask `model` once; return the final message, whose `stop_reason` is never "pending".

    `on_event` is awaited for the start and each block event, in order; the next event is not read before it returns.
    Whatever goes wrong on the provider's side (an exception, an end without a terminal event) keeps the text streamed so far and settles
    with `stop_reason="error"`, or "aborted" if `options.signal` is set by then. On an already aborted signal no request is made. A stream
    that ignores the signal is cut off after a grace of 1 s. An engine that makes many requests under one signal passes one `guard` for all.

    Raises:
        Exception: what `on_event` raises.
        asyncio.CancelledError: the calling task was cancelled; the stream is closed.
    """
    signal = options.signal
    if signal is not None and signal.aborted:
        return _settle(_empty(model), ProviderFailure(_abort_text(signal)), signal)
    own = guard is None
    if guard is None:
        guard = StreamGuard(signal)
    last: AssistantMessage | None = None
    stream: Any = None
    try:
        opened = stream_fn(model, transcript, options)
        stream = opened if hasattr(opened, "__aiter__") else await guard.wait(cast("Awaitable[Any]", opened))
        if type(stream) is AssistantStream:
            final = await stream.feed(on_event, guard)
            stream = None  # it ended by itself
            return _final(final, signal)
        step = stream.__aiter__().__anext__
        while True:
            guard.waiting = True  # what guard.wait() does, without a coroutine of its own per event
            event: Any = await step()
            guard.waiting = False
            if isinstance(event, (StreamDone, StreamError)):
                stream = None  # it ended by itself
                return _final(event.message, signal)
            last = event.partial
            try:
                await on_event(event)
            except Exception as error:
                raise ReaderFailed(error) from error
    except ReaderFailed as failed:
        raise failed.error from failed.error.__cause__
    except StopAsyncIteration:
        return _settle(last or _empty(model), ProviderFailure("the stream ended without a terminal event", kind="incomplete"), signal)
    except Exception as error:
        return _settle(last or _empty(model), error, signal)
    except asyncio.CancelledError as error:
        if type(stream) is AssistantStream:
            last = stream.settled(error, aborted=True)  # it kept what had arrived
        if guard.took_back():
            assert signal is not None
            return _settle(last or _empty(model), ProviderFailure(_abort_text(signal)), signal)
        if (guard.waiting or stream is None) and not being_cancelled():  # it leaked out of the stream: a request that its own client gave up
            return _settle(last or _empty(model), ProviderFailure("the provider's client cancelled the request", kind="network"), signal)
        raise
    finally:
        guard.waiting = False
        if stream is not None and hasattr(stream, "aclose"):
            await _close(stream, guard)
        guard.took_back()  # a stream may answer the cut with its last word; the task is not to stay cancelled for it
        if own:
            guard.close()


async def _close(stream: Any, guard: StreamGuard) -> None:
    try:
        await guard.wait(stream.aclose())
    except asyncio.CancelledError:
        if not guard.took_back():
            raise
        logger.warning("closing a response stream took too long and was given up")
    except Exception:
        logger.warning("closing a response stream failed", exc_info=True)


class StreamGuard:
    """Cuts off awaits on a stream that goes on after an abort and a grace, again after each grace if that was swallowed.

    Belongs to the task that made it; costs two attribute writes per await.
    """

    __slots__ = ("_cuts", "_detach", "_loop", "_timer", "task", "waiting")

    def __init__(self, signal: AbortSignal | None) -> None:
        self.waiting = False
        self._cuts = 0  # cancellations that were not taken back yet
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()
        self._detach = None if signal is None else signal.on_abort(lambda: soon(self._loop, self._arm))

    def _arm(self) -> None:
        if self._detach is not None:
            self._timer = self._loop.call_later(STREAM_ABORT_GRACE, self._expire)

    def _expire(self) -> None:
        if self.waiting and self.task is not None:  # else a listener is slow: look again when the stream may be waited for
            self._cuts += 1
            self.task.cancel()
        self._timer = self._loop.call_later(STREAM_ABORT_GRACE, self._expire)

    async def wait(self, step: Awaitable[Any]) -> Any:
        """Await something of the stream under the guard."""
        self.waiting = True
        try:
            return await step
        finally:
            self.waiting = False

    def took_back(self) -> bool:
        """Take back the guard's own cancellations; say whether the one at hand was no other."""
        cuts, self._cuts = self._cuts, 0
        if not cuts or self.task is None:
            return False
        for _ in range(cuts):
            self.task.uncancel()
        return self.task.cancelling() == 0

    def close(self) -> None:
        """Stop watching the signal."""
        if self._detach is not None:
            self._detach()
            self._detach = None
        if self._timer is not None:
            self._timer.cancel()


def _abort_text(signal: AbortSignal) -> str:
    return "aborted" if signal.reason is None else f"aborted: {signal.reason}"


def _empty(model: Model) -> AssistantMessage:
    return AssistantMessage(content=[], api=model.api, provider=model.provider, model=model.id, stop_reason="pending")


def _settle(message: AssistantMessage, error: BaseException, signal: AbortSignal | None) -> AssistantMessage:
    """Return what had arrived as a message that says why there is no more."""
    aborted = signal is not None and signal.aborted
    info = error.info if isinstance(error, ProviderFailure) else ErrorInfo(kind=kind_of(error))
    if type(message) is not AssistantMessage:
        message = copy.copy(message)
    return _final(
        msgspec.structs.replace(
            message, stop_reason="aborted" if aborted else "error", error_message=describe(error), error=None if aborted else info
        ),
        signal,
    )


def _final(message: AssistantMessage, signal: AbortSignal | None) -> AssistantMessage:
    """Make a provider's last word one that the engines can rely on: settled, with an error text, with distinct call ids."""
    if type(message) is not AssistantMessage:
        message = copy.copy(message)  # a live partial becomes a plain message of this moment
    if message.stop_reason == "pending":
        message = msgspec.structs.replace(
            message, stop_reason="error", error_message=message.error_message or "the provider ended the response without a stop reason"
        )
    if message.stop_reason == "error" and signal is not None and signal.aborted:
        message = msgspec.structs.replace(message, stop_reason="aborted")
    if message.stop_reason in ("error", "aborted") and not message.error_message:
        text = "aborted" if message.stop_reason == "aborted" else "the provider gave no reason"
        message = msgspec.structs.replace(message, error_message=text)
    content = message.content
    if not content or (len(content) == 1 and (type(content[0]) is not ToolCall or content[0].id)):
        return message
    return _distinct_ids(message, message.tool_calls)


def _distinct_ids(message: AssistantMessage, calls: list[ToolCall]) -> AssistantMessage:
    """Give calls that share an id, or have none, ids of their own: a result names its call by id."""
    if len({call.id for call in calls} - {""}) == len(calls):
        return message
    taken = {call.id for call in calls}
    seen: set[str] = {""}
    content: list[Any] = []
    for index, block in enumerate(message.content):
        if isinstance(block, ToolCall) and block.id in seen:
            number, base = 2, block.id or f"call_{index}"
            new = base if base not in taken and base not in seen else f"{base}_{number}"
            while new in taken or new in seen:
                number += 1
                new = f"{base}_{number}"
            block = msgspec.structs.replace(block, id=new)
        if isinstance(block, ToolCall):
            seen.add(block.id)
        content.append(block)
    return msgspec.structs.replace(message, content=content)
