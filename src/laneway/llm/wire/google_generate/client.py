"""The one part of the Gemini wire that does I/O."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from laneway.llm._client import Prepared, no_base_url, stream_events
from laneway.llm._http import is_local
from laneway.llm._thinking import requested_level
from laneway.llm._transform import system_messages, tool_name_map
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.llm.wire.google_generate.compat import resolve_compat
from laneway.llm.wire.google_generate.decode import Decoder, UsageWriter
from laneway.llm.wire.google_generate.encode import encode

_HOST = "generativelanguage.googleapis.com"
_AUTH_HEADERS = frozenset({"authorization", "x-goog-api-key"})


def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
    """Ask the model for a response. Never raises: every failure is the stream's last event. Nothing is sent before it is read."""
    taken = Transcript(messages=list(transcript.messages))
    writer = make_writer(model, options)

    def prepare() -> Prepared:
        return Prepared(
            url=_url(model), body=encode(model, taken, options), headers=_authorization(model, options), decoder=make_decoder(model, taken, writer)
        )

    return stream_events(model, options, writer, prepare)


def make_writer(model: Model, options: StreamOptions) -> UsageWriter:
    """Return the writer of a response."""
    return UsageWriter(model, thinking_level=requested_level(model, options.reasoning) if model.reasoning else None)


def make_decoder(model: Model, transcript: Transcript, writer: UsageWriter) -> Decoder:
    """Return the decoder of a response. It knows every tool that was ever declared: the model may still call one that has just been removed."""
    tools = [tool for message in system_messages(transcript.messages) for tool in message.tools_added or ()]
    return Decoder(model, writer, names=tool_name_map(tools), turn=len(transcript.messages))


def model_path(model_id: str, collection: str) -> str:
    """Return the path of a model: its id below `collection`, unless the id is a path already (`tunedModels/x`)."""
    return quote(model_id if "/" in model_id else f"{collection}/{model_id}", safe="/@:")


def _url(model: Model) -> str:
    if not model.base_url:
        raise ProviderFailure(no_base_url(model), kind="configuration")
    return f"{model.base_url.rstrip('/')}/{model_path(model.id, 'models')}:streamGenerateContent?alt=sse"


def _authorization(model: Model, options: StreamOptions) -> dict[str, str | None]:
    """Return the header that carries the key; none for a server that needs none (a local one, an unknown one, one with its own header)."""
    key = (options.api_key or "").strip()
    if key:
        return {"x-goog-api-key": key}
    given = {name.lower() for name, value in {**model.headers, **(options.headers or {})}.items() if value}
    known = model.provider == "google" or urlsplit(model.base_url).hostname == _HOST
    if given & _AUTH_HEADERS or resolve_compat(model).keyless or is_local(model.base_url) or not known:
        return {}
    text = f"no API key for {model.provider}: set its environment variable, store a key, or pass api_key"
    raise ProviderFailure(text, kind="configuration")
