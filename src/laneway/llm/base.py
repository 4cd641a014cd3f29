"""The model interface: what a model is, what a request is, and the stream that a response comes as."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, cast

import msgspec
from msgspec import Struct, field

from laneway.abort import AbortSignal
from laneway.events import AssistantEvent, StreamDone, StreamError
from laneway.messages import AssistantMessage, ErrorInfo, ErrorKind, Message

ThinkingLevel = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
THINKING_LEVELS: tuple[ThinkingLevel, ...] = ("off", "minimal", "low", "medium", "high", "xhigh", "max")
CacheRetention = Literal["none", "short", "long"]
Modality = Literal["text", "image"]


class CostTier(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Prices of the whole request when its input (cache included) is above `input_tokens_above`. US dollars per million tokens."""

    input_tokens_above: int
    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0


class ModelCost(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Prices in US dollars per million tokens."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0
    tiers: tuple[CostTier, ...] = ()


class Model(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A model as pure data: where it is, what it can do, what it costs.

    `api` is the wire's name ("openai_chat", "anthropic_messages", …). `context_window` and `max_tokens` are tokens, 0 when
    unknown. `thinking_levels` maps a level to the provider's own word for it, None for one that the model lacks
    (see `laneway.llm.supported_thinking_levels`). `compat` holds the wire's quirks for this model.
    `default_thinking_level` is set by the `:level` suffix of a model spec. `sampling_params` go into every request's body where the wire has its
    sampling parameters, those of the request's thinking level (`sampling_params_by_thinking_level`) over them, the request's own over both.
    """

    id: str
    provider: str
    api: str
    name: str = ""
    base_url: str = ""
    reasoning: bool = False
    input: tuple[Modality, ...] = ("text",)
    context_window: int = 0
    max_tokens: int = 0
    cost: ModelCost = field(default_factory=ModelCost)
    compat: dict[str, Any] = field(default_factory=dict[str, Any])
    thinking_levels: dict[str, str | None] = field(default_factory=dict[str, str | None])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    default_thinking_level: ThinkingLevel | None = None
    sampling_params: dict[str, Any] = field(default_factory=dict[str, Any])
    sampling_params_by_thinking_level: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def spec(self) -> str:
        """`provider/id`, as `laneway.model` takes it."""
        return f"{self.provider}/{self.id}"


class Transcript(Struct, kw_only=True, frozen=True):
    """What a request carries: built-in messages only, system prompt and tool declarations among them."""

    messages: list[Message]


class ResponseInfo(Struct, kw_only=True, frozen=True):
    """What `on_response` gets: the HTTP status and headers (names in lower case) of a provider's answer."""

    status: int
    headers: dict[str, str]


OnPayload: TypeAlias = Callable[[dict[str, Any], Model], "dict[str, Any] | Awaitable[dict[str, Any] | None] | None"]
OnResponse: TypeAlias = Callable[[ResponseInfo, Model], "Awaitable[None] | None"]


class StreamOptions(Struct, kw_only=True, frozen=True):
    """Options of one request. None means the model's or the provider's default; times are seconds.

    `reasoning` None is "off". `headers` override the vendor's; a value of None removes one. `timeout` is the wait for the
    response headers, `idle_timeout` the longest silence inside the stream. `max_retries` are transport retries before
    the first byte; a Retry-After above `max_retry_delay` fails at once (0: no cap). `on_payload` may return
    another request body; `on_response` sees status and headers. `deferred` asks for a deferred response.
    `env` stands in for environment variables (region, project, …) in this request and wins over them.
    """

    signal: AbortSignal | None = None
    api_key: str | None = None
    reasoning: ThinkingLevel | None = None
    thinking_budgets: dict[str, int] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    headers: Mapping[str, str | None] | None = None
    timeout: float | None = None
    idle_timeout: float | None = None
    max_retries: int = 0
    max_retry_delay: float = 60.0
    cache_retention: CacheRetention = "short"
    session_id: str | None = None
    tool_choice: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    sampling_params: dict[str, Any] | None = None
    on_payload: OnPayload | None = None
    on_response: OnResponse | None = None
    deferred: bool | dict[str, Any] | None = None
    env: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in ("api_key", "headers", "signal", "env"))
        return f"StreamOptions({', '.join(shown)})"


class ResponseStream(Protocol):
    """What the loop accepts as a stream: an async iterator of assistant events with `await result()`."""

    def __aiter__(self) -> AsyncIterator[AssistantEvent]: ...
    async def result(self) -> AssistantMessage: ...


StreamFn: TypeAlias = Callable[[Model, Transcript, StreamOptions], "ResponseStream | Awaitable[ResponseStream]"]


class ProviderFailure(Exception):
    """Raised inside a wire to end its stream with a `StreamError`; it never leaves an `AssistantStream`."""

    def __init__(self, message: str, *, kind: ErrorKind = "unknown", status: int | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.info = ErrorInfo(kind=kind, status=status, retry_after_ms=retry_after_ms)


_NO_END = "the stream ended without a terminal event"
_CLOSED = "the stream was closed before the response ended"


class StreamWaiting(Protocol):
    """What an engine looks at to know whether a stream or one of its own listeners is slow. `task` is who reads."""

    waiting: bool

    @property
    def task(self) -> asyncio.Task[Any] | None: ...


class ReaderFailed(Exception):
    """Carries what the reader of a stream raised past the handling of the provider's exceptions."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class AssistantStream:
    """One response as it arrives: iterate it for events, or just `await result()`; `aclose()` (or leaving `async with`) drops it.

    It pulls from an async generator of events, so nothing happens until somebody iterates or awaits, and a consumer
    that stops reading stops the response. Exactly one terminal event (`done` or `error`) comes last; an exception
    in the generator, or an end without a terminal event, becomes an `error` event that keeps what had arrived. A failure is never
    raised: `result()` returns the message with `stop_reason` "error" or "aborted". Single consumer; `result()` may be
    awaited by several.

    `fallback` builds the message for a failure from what had arrived: `(exception, aborted) -> AssistantMessage`.
    """

    __slots__ = ("_closed", "_fallback", "_interrupted", "_message", "_next", "_reader", "_running", "_signal", "_source", "_waiters")

    def __init__(
        self,
        source: AsyncIterator[AssistantEvent],
        *,
        fallback: Callable[[BaseException, bool], AssistantMessage],
        signal: AbortSignal | None = None,
    ) -> None:
        self._source = source
        self._next = source.__anext__
        self._fallback = fallback
        self._signal = signal
        self._message: AssistantMessage | None = None
        self._closed = self._interrupted = self._running = False
        self._reader: asyncio.Task[Any] | None = None  # who iterates: result() in another task waits for it
        self._waiters: list[asyncio.Future[None]] = []

    def __aiter__(self) -> AssistantStream:
        self._reader = asyncio.current_task()
        return self

    # Not an async generator: one that is dropped before its end costs the event loop a task to close it, and every response would be.
    async def __anext__(self) -> AssistantEvent:
        if self._running or self._message is not None:
            self._refuse()
        self._running = True
        try:
            event: Any = await self._next()
        except BaseException as error:
            event = await self._failed(error)
        self._running = False
        kind = type(event)  # pyright: ignore[reportUnknownVariableType] - exact types are several times cheaper than isinstance here
        if kind is StreamDone or kind is StreamError:
            await self._settle(event.message)
        return event

    async def feed(self, on_event: Callable[[Any], Awaitable[None]], waiting: StreamWaiting) -> AssistantMessage:
        """Iterate to the end for an engine and return the final message: `on_event` is awaited for each event before the last.

        `waiting.waiting` is True while the stream is waited for, and False while `on_event` is. Like iterating, without a coroutine per event.

        Raises:
            ReaderFailed: what `on_event` raised is its cause.
            asyncio.CancelledError: the task was cancelled.
        """
        self._reader = waiting.task
        next_event = self._next
        while self._message is None:  # else `aclose()` in another task, while `on_event` was awaited
            if self._running:
                self._refuse()
            self._running = waiting.waiting = True
            try:
                event: Any = await next_event()
            except BaseException as error:
                event = await self._failed(error)
            self._running = waiting.waiting = False
            kind = type(event)  # pyright: ignore[reportUnknownVariableType] - as above
            if kind is StreamDone or kind is StreamError:
                waiting.waiting = True  # closing the source may hang
                await self._settle(event.message)
                waiting.waiting = False
                break
            try:
                await on_event(event)
            except Exception as error:
                raise ReaderFailed(error) from error
        assert self._message is not None
        return self._message

    async def _failed(self, error: BaseException) -> StreamError:
        """Turn what the source raised into the last event, or raise what is not the source's."""
        if isinstance(error, StopAsyncIteration):
            return StreamError(message=self._fallback(ProviderFailure(_NO_END, kind="incomplete"), self._aborted()))
        if isinstance(error, asyncio.CancelledError):
            event = StreamError(message=self._fallback(ProviderFailure(_CLOSED, kind="incomplete"), True))
            if self._take_back_interruption():
                return event
            self._running = False
            await self._settle(event.message)
        elif isinstance(error, Exception):
            return StreamError(message=self._fallback(error, self._aborted()))
        self._running = False
        raise error

    def _refuse(self) -> None:
        if self._message is not None:
            raise StopAsyncIteration
        raise RuntimeError("another task is waiting for this stream's next event; a stream has one reader, others await result()")

    def _take_back_interruption(self) -> bool:
        """Whether the cancellation at hand is `aclose()` in another task interrupting this one, and nothing else."""
        task = asyncio.current_task()
        return self._interrupted and task is not None and task.uncancel() == 0

    async def _settle(self, message: AssistantMessage) -> None:
        """Fix the final message; leave nothing open and nobody waiting."""
        self._message = message
        try:
            if hasattr(self._source, "aclose"):
                await cast("AsyncGenerator[AssistantEvent]", self._source).aclose()
        finally:
            if self._waiters:
                self._wake()

    async def result(self) -> AssistantMessage:
        """Return the final message. Where nobody iterates this reads the stream to its end and drops the events not yet read."""
        me = asyncio.current_task()
        while self._message is None:
            reader = self._reader
            if reader is not None and reader is not me and not reader.done():
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                reader.add_done_callback(self._wake)  # it may leave before the end; then this reads on
                await waiter
                continue
            async for _ in self:
                pass
        return self._message

    async def aclose(self) -> None:
        """Drop the response: the connection closes, and `result()` gives what had arrived as an aborted message.

        Another task that waits for an event gets the aborted message as the stream's last one.
        """
        if self._message is not None or self._closed:
            return
        self._closed = True
        reader = self._reader
        if self._running and reader is not None and reader is not asyncio.current_task():
            self._interrupted = True
            reader.cancel()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._message is None:
            await self._settle(self._fallback(ProviderFailure(_CLOSED, kind="incomplete"), True))

    def settled(self, error: BaseException, aborted: bool) -> AssistantMessage:
        """Return the final message; while there is none, what it would be if the response failed now. For streams that wrap this one."""
        return self._message if self._message is not None else self._fallback(error, aborted)

    async def __aenter__(self) -> AssistantStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _aborted(self) -> bool:
        return self._closed or (self._signal is not None and self._signal.aborted)

    def _wake(self, _: object = None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def encode_json(value: Any) -> bytes:
    """Encode a request body: compact, in insertion order (a provider's cache depends on a stable prefix), valid UTF-8."""
    from laneway.messages import clean_json

    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(clean_json(value))
    except OverflowError:  # a number of more than 64 bits
        import json

        return json.dumps(clean_json(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
