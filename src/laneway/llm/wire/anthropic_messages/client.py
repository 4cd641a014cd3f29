"""The one part of the Anthropic messages wire that does I/O."""

from __future__ import annotations

from laneway.llm._client import Prepared, stream_events
from laneway.llm._http import is_local
from laneway.llm._thinking import requested_level
from laneway.llm._transform import system_messages, tool_name_map
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript
from laneway.llm.wire.anthropic_messages.compat import AnthropicCompat, find_profile, resolve_compat
from laneway.llm.wire.anthropic_messages.decode import Decoder
from laneway.llm.wire.anthropic_messages.encode import affinity_headers, betas, encode
from laneway.messages import ToolDeclaration

VERSION = "2023-06-01"
_SUBSCRIPTION = "sk-ant-oat"
_AUTH_HEADERS = frozenset({"authorization", "x-api-key", "cf-aig-authorization"})


def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
    """Ask the model for a response. Never raises: every failure is the stream's last event. Nothing is sent before it is read."""
    taken = Transcript(messages=list(transcript.messages))
    level = requested_level(model, options.reasoning)
    writer = StreamWriter(model, thinking_level=level if model.reasoning else None)

    def prepare() -> Prepared:
        compat = resolve_compat(model)
        authorization = _authorization(model, options, compat)
        body = encode(model, taken, options)
        features = betas(model, taken, options, body)
        return Prepared(
            url=_url(model, beta=bool(features)),
            body=body,
            headers={
                "anthropic-version": VERSION,
                "anthropic-beta": ",".join(features) or None,
                **authorization,
                **affinity_headers(options, compat),
            },
            decoder=Decoder(model, compat, writer, names=tool_name_map(_all_tools(taken)), turn=len(taken.messages)),
        )

    return stream_events(model, options, writer, prepare)


def _all_tools(transcript: Transcript) -> list[ToolDeclaration]:
    """Every tool that was ever declared: the model may still call one that has just been removed."""
    return [tool for message in system_messages(transcript.messages) for tool in message.tools_added or ()]


def _url(model: Model, *, beta: bool) -> str:
    if not model.base_url:
        raise ProviderFailure(f"{model.spec} has no base URL; set `base_url` of the model", kind="configuration")
    base = model.base_url.rstrip("/").removesuffix("/v1")
    return f"{base}/v1/messages?beta=true" if beta else f"{base}/v1/messages"


def _authorization(model: Model, options: StreamOptions, compat: AnthropicCompat) -> dict[str, str | None]:
    """Return the header that carries the key; none for a server that needs none (a local one, an unknown one, one with its own header)."""
    key = (options.api_key or "").strip()
    if key:
        return {"authorization": f"Bearer {key}"} if compat.auth == "bearer" or _SUBSCRIPTION in key else {"x-api-key": key}
    given = {name.lower() for name, value in {**model.headers, **(options.headers or {})}.items() if value}
    if given & _AUTH_HEADERS or compat.keyless or is_local(model.base_url) or find_profile(model) is None:
        return {}
    text = f"no API key for {model.provider}: set its environment variable, store a key, or pass api_key"
    raise ProviderFailure(text, kind="configuration")
