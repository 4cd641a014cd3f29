"""What every wire does alike: from a request to an `AssistantStream` that never raises.

A wire gives a `prepare` function, which makes the request body and the decoder when the stream is first read; the rest is here:
the callbacks, the request with its retries, the events, the end of the stream, failures and aborts. A wire's client is this much::

    def stream(model, transcript, options):
        taken = Transcript(messages=list(transcript.messages))     # later changes of the list are not this request's
        writer = StreamWriter(model)
        def prepare():                                             # may be async, may raise
            return Prepared(url=…, headers=…, body=encode(model, taken, options), decoder=Decoder(model, writer))
        return stream_events(model, options, writer, prepare)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from copy import deepcopy
from functools import cache
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from laneway.abort import abort_scope
from laneway.events import AssistantEvent
from laneway.llm._errors import read_error_body, redact
from laneway.llm._http import HttpRequest, HttpStream, illegal_header, merge_headers, open_stream
from laneway.llm._sse import SseDecoder, SseEvent, SseTooLarge
from laneway.llm._transform import encode_body
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, ResponseInfo, StreamOptions

DRAIN_SECONDS = 0.2
"""How long the end of a response is waited for after its last event, so that the connection can be used again."""


class WireDecoder(Protocol):
    """Turns the events of one response into assistant events through a `StreamWriter`; pure.

    `feed` and `finish` may raise `ProviderFailure`; what the writer had collected by then is still delivered. `complete` becomes
    true when the server said that nothing more comes.
    """

    @property
    def complete(self) -> bool: ...
    def feed(self, data: bytes, event: str = "") -> list[AssistantEvent]: ...
    def finish(self) -> list[AssistantEvent]: ...


class Splitter(Protocol):
    """Cuts the bytes of a response into events: `SseDecoder`, or a wire's own framing. `stray` is what was no event."""

    @property
    def stray(self) -> bytes: ...
    def feed(self, chunk: bytes) -> list[SseEvent]: ...
    def finish(self) -> list[SseEvent]: ...


class Prepared(Struct, kw_only=True, frozen=True):
    """A request ready to be sent. `headers` are the wire's own; the model's and the options' are laid over them.

    `split` makes the splitter of the response. `sign` may change the request when its body and headers are final (a signature over them);
    it is called for every try. `opened` is told of the good answer before its first byte is read. `amend` is asked when the request is refused: it
    returns what to send instead, once, or None.
    """

    url: str
    body: dict[str, Any]
    decoder: WireDecoder
    headers: dict[str, str | None] = {}
    split: Callable[[], Splitter] = SseDecoder
    sign: Callable[[HttpRequest], HttpRequest] | None = None
    opened: Callable[[ResponseInfo], None] | None = None
    amend: Callable[[ProviderFailure], Prepared | None] | None = None


Prepare: TypeAlias = Callable[[], "Prepared | Awaitable[Prepared]"]


@cache
def user_agent() -> str:
    """Return how laneway introduces itself."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"laneway/{version('laneway')}"
    except PackageNotFoundError:
        return "laneway"


def no_base_url(model: Model) -> str:
    """Say that nobody said where a model is served, and where to say it."""
    variable = "LANEWAY_CUSTOM_BASE_URL, or " if model.provider == "custom" else ""
    return f"{model.spec} has no base URL; set {variable}`base_url` of the model"


def stream_events(model: Model, options: StreamOptions, writer: StreamWriter, prepare: Prepare) -> AssistantStream:
    """Return the stream of one response. Nothing happens before it is read; every failure, of `prepare` too, is its last event."""
    return AssistantStream(_events(model, options, writer, prepare), fallback=writer.fallback, signal=options.signal)


async def _events(model: Model, options: StreamOptions, writer: StreamWriter, prepare: Prepare) -> AsyncGenerator[AssistantEvent]:
    if options.signal is not None:
        options.signal.raise_if_aborted()
    prepared: Prepared = await _finished(prepare(), options)
    body = await _final_body(prepared.body, model, options)
    request = make_request(model, options, prepared, encode_body(body))
    opened = False
    try:
        async with open_stream(request, options, prepared.sign) as response:
            opened = True
            if prepared.opened is not None:
                prepared.opened(response.info)
            if options.on_response is not None:
                await _finished(options.on_response(response.info, model), options)
            writer.start()
            for event in writer.take():
                yield event
            try:
                async for event in _decoded(model, options, response, prepared):
                    yield event
            except ProviderFailure as failure:
                for event in writer.take():
                    yield event
                raise _without_secrets(failure, response.request) from None
            return
    except ProviderFailure as failure:
        amended = prepared.amend(failure) if prepared.amend is not None and not opened else None
        if amended is None:
            raise
    async with aclosing(_events(model, options, writer, lambda: amended)) as events:
        async for event in events:
            yield event


def _without_secrets(failure: ProviderFailure, request: HttpRequest) -> ProviderFailure:
    """What a server says in the middle of a stream may repeat the key it was sent."""
    text = redact(str(failure), request.secrets)
    return ProviderFailure(text, kind=failure.info.kind, status=failure.info.status, retry_after_ms=failure.info.retry_after_ms)


async def _decoded(model: Model, options: StreamOptions, response: HttpStream, prepared: Prepared) -> AsyncGenerator[AssistantEvent]:
    """Read the response to its end and give its events, the terminal one included."""
    splitter, decoder = prepared.split(), prepared.decoder
    signal = options.signal
    ended = False
    seen = 0
    while not ended and not decoder.complete:
        chunk = await response.read()
        ended = not chunk
        events = _split(splitter, chunk, model)
        seen += len(events)
        for event in events:
            if signal is not None and signal.aborted:
                signal.raise_if_aborted()
            for assistant_event in decoder.feed(event.data, event.event):
                yield assistant_event
    if not seen:
        for assistant_event in _from_other_body(model, splitter.stray, decoder):
            yield assistant_event
    if not ended:
        await _drain(response)
    if signal is not None:
        signal.raise_if_aborted()
    for assistant_event in decoder.finish():
        yield assistant_event


def _split(splitter: Splitter, chunk: bytes, model: Model) -> list[SseEvent]:
    try:
        return splitter.feed(chunk) if chunk else splitter.finish()
    except SseTooLarge as error:
        raise ProviderFailure(f"{model.provider}: {error}", kind="protocol") from None


def _from_other_body(model: Model, stray: bytes, decoder: WireDecoder) -> list[AssistantEvent]:
    """A good answer without a single event: plain JSON is decoded as if it were one, anything else is a failure."""
    text = stray.strip()
    if text.startswith(b"{"):
        return decoder.feed(text)
    if not text:
        return []
    seen = read_error_body(text).message
    raise ProviderFailure(f"{model.provider} answered with something else than a stream of events: {seen}; check the base URL", kind="protocol")


async def _drain(response: HttpStream) -> None:
    """Read the end of the body, which is usually there already: a response read to its end leaves its connection for the next request."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.read():
                pass
    except (TimeoutError, ProviderFailure):
        pass


async def _final_body(body: dict[str, Any], model: Model, options: StreamOptions) -> dict[str, Any]:
    """Let `on_payload` see, change or replace the body; it gets a copy, since parts of the body are kept for later requests."""
    if options.on_payload is None:
        return body
    mine = deepcopy(body)
    replaced = await _finished(options.on_payload(mine, model), options)
    return mine if replaced is None else replaced


def make_request(model: Model, options: StreamOptions, prepared: Prepared, body: bytes) -> HttpRequest:
    """Put the request together.

    Raises:
        ProviderFailure: a header cannot be sent.
    """
    basic: dict[str, str | None] = {
        "accept": "text/event-stream",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": user_agent(),
    }
    headers = merge_headers(basic, prepared.headers, model.headers, options.headers)
    bad = illegal_header(headers)
    if bad is not None:
        text = f"{model.provider}: the header {bad!r} holds a line break or another character that cannot be sent; check the API key and the headers"
        raise ProviderFailure(text, kind="configuration")
    return HttpRequest(url=prepared.url, headers=headers, body=body, provider=model.provider)


async def _finished(value: Any, options: StreamOptions) -> Any:
    """Return what a function gave that may be async; an abort does not wait for it."""
    if not inspect.isawaitable(value):
        return value
    async with abort_scope(options.signal):
        return await value
