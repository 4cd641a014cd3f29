"""The client's side: a `StreamFn` whose answers come from a proxy."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from laneway.llm._client import Prepared, stream_events
from laneway.llm._thinking import requested_level
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, StreamFn, StreamOptions, Transcript
from laneway.llm.proxy._decode import FrameDecoder
from laneway.llm.proxy._protocol import PATH, VERSION, options_sent

AuthToken: TypeAlias = "str | Callable[[], str | Awaitable[str]]"


def proxy_stream_fn(url: str, *, auth_token: AuthToken | None = None) -> StreamFn:
    """Return a `StreamFn` that asks the proxy at `url` (see `proxy_app`).

    `auth_token` goes into the authorization header; a function, which may be async, is called before each request. Of a model only provider and
    id are sent, of the options only what `RequestOptions` names: keys, URLs and headers meant for a provider never leave this side.
    `timeout`, `idle_timeout`, `signal` and the callbacks hold for the connection to the proxy. Leaving the stream stops the response at the server.
    """

    def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
        messages = list(transcript.messages)
        writer = StreamWriter(model, thinking_level=requested_level(model, options.reasoning) if model.reasoning else None)

        async def prepare() -> Prepared:
            token = auth_token() if callable(auth_token) else auth_token
            if inspect.isawaitable(token):
                token = await token
            return Prepared(
                url=url.rstrip("/") + PATH,
                body=_body(model, messages, options),
                headers={"authorization": f"Bearer {token}" if token else None},
                decoder=FrameDecoder(writer),
            )

        return stream_events(replace(model, provider="proxy", headers={}), _own(options, model), writer, prepare)

    return stream


def _body(model: Model, messages: list[Any], options: StreamOptions) -> dict[str, Any]:
    return {
        "version": VERSION,
        "model": {"provider": model.provider, "id": model.id},
        "options": options_sent(options, model.default_thinking_level),
        "messages": msgspec.to_builtins(messages),
    }


def _own(options: StreamOptions, model: Model) -> StreamOptions:
    """Return the options that hold for the connection to the proxy; callbacks are told of the model that was asked."""
    return replace(
        options, api_key=None, headers=None, env=None, on_payload=_about(model, options.on_payload), on_response=_about(model, options.on_response)
    )


def _about(model: Model, callback: Callable[[Any, Model], Any] | None) -> Callable[[Any, Model], Any] | None:
    return None if callback is None else lambda value, _: callback(value, model)
