"""The server's side: an ASGI app that asks models for its callers. It needs no framework."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from laneway.abort import AbortController
from laneway.errors import LanewayError
from laneway.llm._errors import redact
from laneway.llm._registry import Models, default_models
from laneway.llm.base import Model, ResponseStream, StreamFn, StreamOptions, Transcript, encode_json
from laneway.llm.proxy._protocol import HEARTBEAT, PATH, SAMPLING_PARAMS, VERSION, ProxyRequest, RequestOptions, ToolName, failure_frame, frame
from laneway.messages import AssistantMessage, ErrorInfo

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 64 * 1024 * 1024
HEARTBEAT_SECONDS = 15.0
_MAX_WAITING = 256
"""So many frames wait for a slow client; then the response waits too."""
_logger = logging.getLogger(__name__)


class ProxyCaller(Struct, kw_only=True, frozen=True):
    """Who asks. `token` is the bearer token, `headers` have lower-case names, `address` is the peer's; none of it is shown."""

    token: str | None
    headers: dict[str, str]
    address: str | None = None

    def __repr__(self) -> str:
        return "ProxyCaller()"


Authorize: TypeAlias = Callable[[ProxyCaller], "bool | Awaitable[bool]"]


class _Refused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Gone(Exception):
    """The client has left."""


def proxy_app(
    stream_fn: StreamFn,
    *,
    authorize: Authorize,
    models: Models | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    heartbeat: float = HEARTBEAT_SECONDS,
) -> AsgiApp:
    """Return an ASGI app that answers `POST …/api/stream` by asking `stream_fn`; any other request is a 404.

    `authorize` is asked first, before anything of the request is read; what it raises refuses the request too. The model is looked up in `models`
    (the default registry without one) by the name that the client gives: a client cannot set a URL, a header or a key, and of the
    request's body only sampling parameters that are known to be harmless. A comment is sent after each `heartbeat` seconds of silence. When the
    client leaves, the signal of the request is aborted and its stream closed.
    """
    return _App(stream_fn, authorize, models, max_body_bytes, heartbeat)


class _App:
    def __init__(self, stream_fn: StreamFn, authorize: Authorize, models: Models | None, max_body_bytes: int, heartbeat: float) -> None:
        self._stream_fn = stream_fn
        self._authorize = authorize
        self._models = models
        self._max_body_bytes = max_body_bytes
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            try:
                model, request = await self._accept(scope, receive)
                await self._answer(model, request, receive, send)
            except _Refused as refusal:
                await _refuse(refusal, send)
            except _Gone:
                pass

    # -- the request

    async def _accept(self, scope: Scope, receive: Receive) -> tuple[Model, ProxyRequest]:
        if not str(scope["path"]).endswith(PATH):
            raise _Refused(404, f"there is only POST {PATH} here")
        if scope["method"] != "POST":
            raise _Refused(405, f"{PATH} takes POST only")
        await self._check(_caller(scope))
        request = _read(await self._body(receive))
        models = self._models if self._models is not None else default_models()
        try:
            model = models.get(request.model.provider, request.model.id)
        except LanewayError:
            model = None
        if model is None:
            raise _Refused(404, f"there is no model {request.model.provider}/{request.model.id} here")
        return model, request

    async def _check(self, caller: ProxyCaller) -> None:
        try:
            allowed = self._authorize(caller)
            if inspect.isawaitable(allowed):
                allowed = await allowed
        except Exception as error:
            _logger.error("authorize failed: %s", type(error).__name__)
            raise _Refused(500, "the request could not be authorised") from None
        if not allowed:
            raise _Refused(401, "not authorised")

    async def _body(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > self._max_body_bytes:
                raise _Refused(413, f"the request is larger than {self._max_body_bytes} bytes")
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)

    # -- the answer

    async def _answer(self, model: Model, request: ProxyRequest, receive: Receive, send: Send) -> None:
        """Stream the response until it or the client is gone; nothing is left running."""
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        controller = AbortController()
        frames = _Frames(send, self._heartbeat)
        options = _options(request.options, controller)
        work = [
            asyncio.ensure_future(self._ask(model, Transcript(messages=request.messages), options, frames)),
            asyncio.ensure_future(frames.send_all()),
            asyncio.ensure_future(_left(receive)),
        ]
        try:
            await asyncio.wait(work[1:], return_when=asyncio.FIRST_COMPLETED)
        finally:
            controller.abort("the client left")
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        problem = work[1].exception() if not work[1].cancelled() else None
        if problem is not None and not isinstance(problem, OSError):  # a client that has left is no problem
            raise problem

    async def _ask(self, model: Model, transcript: Transcript, options: StreamOptions, frames: _Frames) -> None:
        """Put the response's frames where `frames` sends them from."""
        stream: Any = None
        ended = False
        try:
            opened = self._stream_fn(model, transcript, options)
            stream = await opened if inspect.isawaitable(opened) else opened
            async for event in cast(ResponseStream, stream):
                ended = event.type in ("done", "error")
                await frames.put(frame(event))
            if not ended:
                await frames.put(failure_frame(_failed(model, "the stream ended without a terminal event")))
        except Exception as error:
            _logger.error("the response of %s failed: %s: %s", model.spec, type(error).__name__, redact(str(error)))
            if not ended:
                await frames.put(failure_frame(_failed(model, f"the server failed: {type(error).__name__}")))
        finally:
            try:
                if hasattr(stream, "aclose"):
                    await stream.aclose()
            finally:
                frames.end()


class _Frames:
    """Frames on their way to the client: what is there at once goes out as one piece."""

    def __init__(self, send: Send, heartbeat: float) -> None:
        self._send = send
        self._heartbeat = heartbeat
        self._waiting: list[bytes] = []
        self._ended = False
        self._there = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, data: bytes) -> None:
        """Add a frame; wait if too many wait already."""
        self._waiting.append(data)
        self._there.set()
        if len(self._waiting) >= _MAX_WAITING:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        """Say that no more come."""
        self._ended = True
        self._there.set()

    async def send_all(self) -> None:
        """Send until the end."""
        while self._waiting or not self._ended:
            if self._waiting:
                data, self._waiting = b"".join(self._waiting), []
                self._room.set()
            else:
                self._there.clear()
                try:
                    async with asyncio.timeout(self._heartbeat):
                        await self._there.wait()
                    continue
                except TimeoutError:
                    data = HEARTBEAT
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


# ---------------------------------------------------------------------------------------------------- parts


def _caller(scope: Scope) -> ProxyCaller:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in cast("list[tuple[bytes, bytes]]", scope["headers"])}
    scheme, _, token = headers.get("authorization", "").partition(" ")
    client = scope.get("client")
    return ProxyCaller(
        token=(token.strip() or None) if scheme.lower() == "bearer" else None, headers=headers, address=str(client[0]) if client else None
    )


def _read(body: bytes) -> ProxyRequest:
    try:
        request = msgspec.json.decode(body, type=ProxyRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _Refused(400, f"the request does not have the protocol's shape: {error}") from None
    if request.version > VERSION:
        raise _Refused(400, f"the request is of version {request.version} of the protocol; this server speaks version {VERSION}")
    unknown = sorted((request.options.sampling_params or {}).keys() - SAMPLING_PARAMS)
    if unknown:
        raise _Refused(400, f"{unknown[0]!r} is no sampling parameter that a client may set")
    return request


def _options(asked: RequestOptions, controller: AbortController) -> StreamOptions:
    values = {name: getattr(asked, name) for name in RequestOptions.__struct_fields__}
    if isinstance(asked.tool_choice, ToolName):
        values["tool_choice"] = {"name": asked.tool_choice.name}
    values["max_retries"] = min(max(asked.max_retries, 0), 10)
    values["max_retry_delay"] = asked.max_retry_delay if 0 < asked.max_retry_delay < 60 else 60.0
    return StreamOptions(signal=controller.signal, **values)


def _failed(model: Model, text: str) -> AssistantMessage:
    return AssistantMessage(
        content=[], api=model.api, provider=model.provider, model=model.id, stop_reason="error", error_message=text, error=ErrorInfo(kind="server")
    )


async def _left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(refusal: _Refused, send: Send) -> None:
    body = encode_json({"error": str(refusal)})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to start or to stop."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
