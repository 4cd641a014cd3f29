"""The one part of the Azure wire that does I/O."""

from __future__ import annotations

from laneway.llm._client import Prepared, stream_events
from laneway.llm._http import is_local
from laneway.llm._thinking import requested_level
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.llm.wire.azure.encode import encode, responses_url
from laneway.llm.wire.openai_responses import ResponsesCompat, resolve_compat
from laneway.llm.wire.openai_responses.client import make_decoder


def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
    """Ask the model for a response. Never raises: every failure is the stream's last event. Nothing is sent before it is read."""
    taken = Transcript(messages=list(transcript.messages))
    level = requested_level(model, options.reasoning)
    writer = StreamWriter(model, thinking_level=level if model.reasoning else None)

    def prepare() -> Prepared:
        url = responses_url(model, options.env)
        authorization = _authorization(model, options, resolve_compat(model))
        body = encode(model, taken, options)
        return Prepared(url=url, body=body, headers=authorization, decoder=make_decoder(model, taken, writer, body))

    return stream_events(model, options, writer, prepare)


def _authorization(model: Model, options: StreamOptions, compat: ResponsesCompat) -> dict[str, str | None]:
    """Return the header that carries the key: a resource's key has one of its own, a token of the directory is a bearer token."""
    key = (options.api_key or "").strip()
    if key:
        return {"authorization": f"Bearer {key}"} if _is_token(key) else {"api-key": key}
    given = {name.lower() for name, value in {**model.headers, **(options.headers or {})}.items() if value}
    if given & {"authorization", "api-key"} or compat.keyless or is_local(model.base_url):
        return {}
    raise ProviderFailure(f"no API key for {model.provider}: set AZURE_OPENAI_API_KEY, store a key, or pass api_key", kind="configuration")


def _is_token(key: str) -> bool:
    """Whether a key is a signed token (three parts, of which the first is a JSON object)."""
    return key.startswith("eyJ") and key.count(".") == 2
