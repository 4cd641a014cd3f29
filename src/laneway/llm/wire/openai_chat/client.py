"""The one part of the chat-completions wire that does I/O."""

from __future__ import annotations

from laneway.llm._client import Prepared, no_base_url, stream_events
from laneway.llm._http import is_local
from laneway.llm._thinking import requested_level
from laneway.llm._transform import system_messages, tool_name_map
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.llm.wire.openai_chat.compat import ChatCompat, find_profile, resolve_compat
from laneway.llm.wire.openai_chat.decode import Decoder
from laneway.llm.wire.openai_chat.encode import affinity_headers, encode
from laneway.transcript import current_tools


def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
    """Ask the model for a response. Never raises: every failure is the stream's last event. Nothing is sent before it is read."""
    taken = Transcript(messages=list(transcript.messages))
    level = requested_level(model, options.reasoning)
    writer = StreamWriter(model, thinking_level=level if model.reasoning else None)

    def prepare() -> Prepared:
        compat = resolve_compat(model)
        names = tool_name_map(current_tools(system_messages(taken.messages)))
        return Prepared(
            url=f"{_base_url(model)}/chat/completions",
            body=encode(model, taken, options),
            headers={**_authorization(model, options, compat), **affinity_headers(options, compat)},
            decoder=Decoder(model, compat, writer, names=names, turn=len(taken.messages)),
        )

    return stream_events(model, options, writer, prepare)


def _base_url(model: Model) -> str:
    if not model.base_url:
        raise ProviderFailure(no_base_url(model), kind="configuration")
    return model.base_url.rstrip("/")


def _authorization(model: Model, options: StreamOptions, compat: ChatCompat) -> dict[str, str | None]:
    """Return the authorization header; none for a server that needs no key (a local one, an unknown one, one with its own header)."""
    key = (options.api_key or "").strip()
    if key:
        return {"authorization": f"Bearer {key}"}
    given = {name.lower() for name, value in {**model.headers, **(options.headers or {})}.items() if value}
    if given & {"authorization", "cf-aig-authorization"} or compat.keyless or is_local(model.base_url) or find_profile(model) is None:
        return {}
    text = f"no API key for {model.provider}: set its environment variable, store a key, or pass api_key"
    raise ProviderFailure(text, kind="configuration")
