"""`AssistantStream`: pulled, never raising, settled exactly once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from laneway.abort import AbortController, AbortSignal
from laneway.events import AssistantEvent, StreamDone, StreamError
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure
from laneway.messages import AssistantMessage

MODEL = Model(id="m", provider="p", api="test")
Script = Callable[[StreamWriter], AsyncGenerator[AssistantEvent]]


def make(script: Script, signal: AbortSignal | None = None) -> AssistantStream:
    """A stream that plays a script."""
    writer = StreamWriter(MODEL)
    return AssistantStream(script(writer), fallback=writer.fallback, signal=signal)


async def hello(writer: StreamWriter) -> AsyncGenerator[AssistantEvent]:
    """A response of two deltas."""
    writer.start()
    index = writer.open_text()
    for delta in ("Hel", "lo"):
        writer.text(index, delta)
        for event in writer.take():
            yield event
        await asyncio.sleep(0)
    writer.done("stop")
    for event in writer.take():
        yield event


def breaking(error: BaseException | None) -> Script:
    """A response that breaks after its first delta; None ends it without a word."""

    async def script(writer: StreamWriter) -> AsyncGenerator[AssistantEvent]:
        writer.start()
        writer.text(writer.open_text(), "Hel")
        for event in writer.take():
            yield event
        if error is not None:
            raise error

    return script


def stuck(closed: asyncio.Event) -> Script:
    """A response that hangs after its first delta, and says when it was closed."""

    async def script(writer: StreamWriter) -> AsyncGenerator[AssistantEvent]:
        try:
            writer.start()
            writer.text(writer.open_text(), "Hel")
            for event in writer.take():
                yield event
            await asyncio.Event().wait()
        finally:
            closed.set()

    return script


async def types(stream: AssistantStream) -> list[str]:
    """The types of all events."""
    return [event.type async for event in stream]


async def test_events_then_nothing() -> None:
    """05 sc. 29, 30: exactly one terminal event, last; reading again gives nothing."""
    stream = make(hello)
    assert await types(stream) == ["start", "text_start", "text_delta", "text_delta", "text_end", "done"]
    assert await types(stream) == []
    assert (await stream.result()).text == "Hello"


async def test_what_comes_after_the_end_is_dropped() -> None:
    """05 sc. 29: a wire that goes on after its terminal event is closed, not heard."""
    closed = False

    async def chatty(writer: StreamWriter) -> AsyncGenerator[AssistantEvent]:
        nonlocal closed
        try:
            writer.start()
            writer.done("stop")
            writer.start()
            for event in writer.take():
                yield event
        finally:
            closed = True

    assert await types(make(chatty)) == ["start", "done"]
    assert closed


async def test_the_result_needs_no_iteration() -> None:
    """05 sc. 32, 35: one or several waiters get the same message object."""
    stream = make(hello)
    first, second = await asyncio.gather(stream.result(), stream.result())
    assert first is second
    assert first.text == "Hello"


async def test_a_waiter_takes_no_events_from_the_reader() -> None:
    """`result()` in another task waits for the one that iterates."""
    stream = make(hello)
    seen: list[str] = []

    async def read() -> None:
        async for event in stream:
            seen.append(event.type)
            await asyncio.sleep(0)

    reader = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    assert (await stream.result()).text == "Hello"
    await reader
    assert len(seen) == 6


async def test_a_second_reader_is_told() -> None:
    """Two tasks that read one stream would each see half of it; the first one is not disturbed."""
    closed = asyncio.Event()
    stream = make(stuck(closed))
    reader = asyncio.ensure_future(types(stream))
    await asyncio.sleep(0.01)
    with pytest.raises(RuntimeError, match="one reader"):
        await stream.__anext__()
    assert not closed.is_set()
    await stream.aclose()
    assert (await reader)[-1] == "error"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, "without a terminal event"),
        (ValueError("bad luck"), "ValueError: bad luck"),
        (ProviderFailure("quota", kind="quota"), "quota"),
        (KeyError(), "KeyError"),
    ],
)
async def test_a_failure_is_the_last_event_never_an_exception(error: BaseException | None, text: str) -> None:
    """05 sc. 31, 33: what had arrived is kept; open blocks get no end event (05 §2.2 rule 7)."""
    stream = make(breaking(error))
    assert await types(stream) == ["start", "text_start", "text_delta", "error"]
    message = await stream.result()
    assert (message.stop_reason, message.text) == ("error", "Hel")
    assert text in (message.error_message or "")


async def test_a_failure_under_a_set_signal_is_an_abort() -> None:
    """05 sc. 34, §2.4: aborted if the signal is set at the time, whatever exception surfaced."""
    controller = AbortController()
    stream = make(breaking(ConnectionError("broken pipe")), controller.signal)
    async for event in stream:
        if event.type == "text_delta":
            controller.abort()
    message = await stream.result()
    assert (message.stop_reason, message.error, message.text) == ("aborted", None, "Hel")


async def test_closing_drops_the_response() -> None:
    """05 sc. 36: the source is closed; the message is what had arrived, aborted; nothing more can be read."""
    closed = asyncio.Event()
    stream = make(stuck(closed))
    async for event in stream:
        if event.type == "text_delta":
            break
    await stream.aclose()
    await stream.aclose()
    assert closed.is_set()
    assert await types(stream) == []
    message = await stream.result()
    assert (message.stop_reason, message.text) == ("aborted", "Hel")


async def test_closing_an_unread_stream() -> None:
    """Nothing was started, nothing hangs."""
    stream = make(hello)
    await stream.aclose()
    assert (await stream.result()).stop_reason == "aborted"
    async with make(hello) as other:
        pass
    assert (await other.result()).content == []


async def test_closing_wakes_a_reader_in_another_task() -> None:
    """The reader gets the aborted message as an event, its task is not cancelled."""
    closed = asyncio.Event()
    stream = make(stuck(closed))
    reader = asyncio.ensure_future(types(stream))
    waiter = asyncio.ensure_future(stream.result())
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await stream.aclose()
        assert (await reader)[-1] == "error"
        assert (await waiter).stop_reason == "aborted"
    assert closed.is_set()
    assert reader.cancelling() == 0


async def test_a_cancelled_reader_is_cancelled() -> None:
    """05 sc. 147: the cancellation goes on; others that wait get the aborted message."""
    closed = asyncio.Event()
    stream = make(stuck(closed))
    reader = asyncio.ensure_future(types(stream))
    await asyncio.sleep(0.01)
    waiter = asyncio.ensure_future(stream.result())
    await asyncio.sleep(0.01)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    async with asyncio.timeout(5):
        assert (await waiter).stop_reason == "aborted"
    assert closed.is_set()


async def test_a_reader_that_leaves_does_not_hang_those_who_wait() -> None:
    """A task that stops reading before the end leaves the rest to `result()`."""
    stream = make(hello)

    async def read_one() -> None:
        async for _ in stream:
            return

    await asyncio.create_task(read_one())
    async with asyncio.timeout(5):
        assert (await stream.result()).text == "Hello"


async def test_a_forgotten_stream_is_closed_by_the_loop() -> None:
    """05 §10.3: garbage collection of an unfinished stream ends its source."""
    closed = asyncio.Event()
    stream: Any = make(stuck(closed))
    await stream.__anext__()
    del stream
    gc.collect()
    async with asyncio.timeout(5):
        await closed.wait()


async def test_the_partial_is_one_live_message() -> None:
    """05 sc. 38: every event before the end has the same partial, which shows all that has arrived; the final message is a plain one."""
    events = [event async for event in make(hello)]
    partials = {id(event.partial) for event in events if not isinstance(event, (StreamDone, StreamError))}
    assert len(partials) == 1
    last = events[-1]
    assert isinstance(last, StreamDone)
    assert type(last.message) is AssistantMessage
