"""The one part of the Responses wire that does I/O."""

from __future__ import annotations

from typing import Any

from laneway.llm._client import Prepared, no_base_url, stream_events
from laneway.llm._grammar import raw_inputs
from laneway.llm._http import is_local
from laneway.llm._thinking import requested_level
from laneway.llm._transform import system_messages, tool_name_map
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.llm.wire.openai_responses.compat import ResponsesCompat, find_profile, resolve_compat
from laneway.llm.wire.openai_responses.decode import Decoder
from laneway.llm.wire.openai_responses.encode import affinity_headers, encode


def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
    """Ask the model for a response. Never raises: every failure is the stream's last event. Nothing is sent before it is read."""
    taken = Transcript(messages=list(transcript.messages))
    level = requested_level(model, options.reasoning)
    writer = StreamWriter(model, thinking_level=level if model.reasoning else None)

    def prepare() -> Prepared:
        compat = resolve_compat(model)
        authorization = _authorization(model, options, compat)
        body = encode(model, taken, options)
        return Prepared(
            url=f"{_base_url(model)}/responses",
            body=body,
            headers={**authorization, **affinity_headers(options, compat)},
            decoder=make_decoder(model, taken, writer, body),
        )

    return stream_events(model, options, writer, prepare)


def make_decoder(model: Model, transcript: Transcript, writer: StreamWriter, body: dict[str, Any]) -> Decoder:
    """Return the decoder of the response to `body`. It knows every tool that was ever declared: the model may call one that has just been removed."""
    tools = [tool for message in system_messages(transcript.messages) for tool in message.tools_added or ()]
    names, texts, turn = tool_name_map(tools), raw_inputs(tools), len(transcript.messages)
    return Decoder(model, writer, names=names, raw_inputs=texts, service_tier=body.get("service_tier"), turn=turn)


def _base_url(model: Model) -> str:
    if not model.base_url:
        raise ProviderFailure(no_base_url(model), kind="configuration")
    return model.base_url.rstrip("/")


def _authorization(model: Model, options: StreamOptions, compat: ResponsesCompat) -> dict[str, str | None]:
    """Return the authorization header; none for a server that needs no key (a local one, an unknown one, one with its own header)."""
    key = (options.api_key or "").strip()
    if key:
        return {"authorization": f"Bearer {key}"}
    given = {name.lower() for name, value in {**model.headers, **(options.headers or {})}.items() if value}
    if given & {"authorization", "cf-aig-authorization"} or compat.keyless or is_local(model.base_url) or find_profile(model) is None:
        return {}
    text = f"no API key for {model.provider}: set its environment variable, store a key, or pass api_key"
    raise ProviderFailure(text, kind="configuration")
