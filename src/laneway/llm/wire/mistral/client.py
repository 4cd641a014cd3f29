"""The one part of Mistral's wire that does I/O."""

from __future__ import annotations

from urllib.parse import urlsplit

from laneway.llm._client import Prepared, no_base_url, stream_events
from laneway.llm._http import is_local
from laneway.llm._thinking import requested_level
from laneway.llm._transform import system_messages, tool_name_map
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.llm.wire.mistral.compat import resolve_compat
from laneway.llm.wire.mistral.decode import Decoder
from laneway.llm.wire.mistral.encode import affinity_headers, encode
from laneway.messages import ToolDeclaration

_HOST = "mistral.ai"


def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
    """Ask the model for a response. Never raises: every failure is the stream's last event. Nothing is sent before it is read."""
    taken = Transcript(messages=list(transcript.messages))
    writer = StreamWriter(model, thinking_level=requested_level(model, options.reasoning) if model.reasoning else None)

    def prepare() -> Prepared:
        return Prepared(
            url=_url(model),
            body=encode(model, taken, options),
            headers={**_authorization(model, options), **affinity_headers(options)},
            decoder=Decoder(model, writer, names=tool_name_map(_all_tools(taken)), turn=len(taken.messages)),
        )

    return stream_events(model, options, writer, prepare)


def _all_tools(transcript: Transcript) -> list[ToolDeclaration]:
    """Every tool that was ever declared: the model may still call one that has just been removed."""
    return [tool for message in system_messages(transcript.messages) for tool in message.tools_added or ()]


def _url(model: Model) -> str:
    if not model.base_url:
        raise ProviderFailure(no_base_url(model), kind="configuration")
    return f"{model.base_url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"


def _authorization(model: Model, options: StreamOptions) -> dict[str, str | None]:
    """Return the header that carries the key; none for a server that needs none (a local one, an unknown one, one with its own header)."""
    key = (options.api_key or "").strip()
    if key:
        return {"authorization": f"Bearer {key}"}
    given = {name.lower() for name, value in {**model.headers, **(options.headers or {})}.items() if value}
    host = urlsplit(model.base_url).hostname or ""
    known = model.provider == "mistral" or host == _HOST or host.endswith(f".{_HOST}")
    if "authorization" in given or resolve_compat(model).keyless or is_local(model.base_url) or not known:
        return {}
    text = f"no API key for {model.provider}: set its environment variable, store a key, or pass api_key"
    raise ProviderFailure(text, kind="configuration")
