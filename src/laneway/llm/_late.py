"""Streams that are not there yet, or never will be: what takes waiting to get, and what failed before it began, as an `AssistantStream`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import cast

from msgspec.structs import replace

from laneway.errors import Aborted, LanewayError
from laneway.events import AssistantEvent, StreamError
from laneway.llm._errors import as_sentence
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, ResponseStream, StreamOptions
from laneway.messages import AssistantMessage


def failed_stream(model: Model, error: Exception, options: StreamOptions | None = None) -> AssistantStream:
    """Return a stream whose only event is the error."""
    signal = options.signal if options is not None else None
    failure = as_failure(error)

    async def nothing() -> AsyncGenerator[AssistantEvent]:
        if signal is not None:
            signal.raise_if_aborted()
        raise failure
        yield  # makes this a generator

    return AssistantStream(nothing(), fallback=StreamWriter(model).fallback, signal=signal)


def as_failure(error: Exception) -> Exception:
    """A refusal of laneway's own is a sentence for the person, without the name of its class."""
    if isinstance(error, LanewayError) and not isinstance(error, Aborted):
        return ProviderFailure(str(error), kind="configuration")
    return error


def as_stream(opened: ResponseStream | Awaitable[ResponseStream], model: Model, options: StreamOptions) -> AssistantStream:
    """Return what a stream function gave as an `AssistantStream`: as it is, or (an awaitable, somebody's own stream) wrapped."""
    if isinstance(opened, AssistantStream):
        return opened

    async def get() -> ResponseStream:
        return await opened if isinstance(opened, Awaitable) else opened

    return late_stream(model, options, get)


class _Late:
    """The events of a stream that takes some waiting to get."""

    __slots__ = ("_events", "_get", "_inner", "_model")

    def __init__(self, model: Model, get: Callable[[], Awaitable[ResponseStream]]) -> None:
        self._model, self._get = model, get
        self._inner: ResponseStream | None = None
        self._events: AsyncIterator[AssistantEvent] | None = None

    def __aiter__(self) -> _Late:
        return self

    async def __anext__(self) -> AssistantEvent:
        if self._events is None:
            try:
                self._inner = await self._get()
            except LanewayError as error:
                failure = as_failure(error)
                if failure is error:
                    raise
                raise failure from error
            self._events = self._inner.__aiter__()
        return await self._events.__anext__()

    async def aclose(self) -> None:
        close = getattr(self._inner, "aclose", None)
        if close is not None:
            await close()

    def fallback(self, error: BaseException, aborted: bool) -> AssistantMessage:
        """What had arrived is in the inner stream's own last message."""
        if isinstance(self._inner, AssistantStream):
            return self._inner.settled(error, aborted)
        return StreamWriter(self._model).fail(error, aborted)


def late_stream(model: Model, options: StreamOptions, get: Callable[[], Awaitable[ResponseStream]]) -> AssistantStream:
    late = _Late(model, get)
    return AssistantStream(cast("AsyncIterator[AssistantEvent]", late), fallback=late.fallback, signal=options.signal)


class _Explained:
    """The events of a stream; where it ends because the key was refused, a sentence more."""

    __slots__ = ("_inner", "_next", "_sentence")

    def __init__(self, inner: AssistantStream, sentence: str) -> None:
        self._inner, self._sentence = inner, sentence
        self._next = inner.__anext__

    def __aiter__(self) -> _Explained:
        return self

    async def __anext__(self) -> AssistantEvent:
        event = await self._next()
        if type(event) is StreamError:
            message = event.message
            if message.error is not None and message.error.kind == "auth":
                text = f"{as_sentence(message.error_message or 'the key was refused')} {self._sentence}"
                return StreamError(message=replace(message, error_message=text))
        return event

    async def aclose(self) -> None:
        await self._inner.aclose()


def explained_stream(inner: AssistantStream, options: StreamOptions, sentence: str) -> AssistantStream:
    """Return the stream with a sentence added to its failure if it fails for want of a key."""
    explained = _Explained(inner, sentence)
    return AssistantStream(cast("AsyncIterator[AssistantEvent]", explained), fallback=inner.settled, signal=options.signal)
