"""The one part of the Anthropic messages wire that does I/O."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec.structs import replace

from laneway.llm._client import Prepared, no_base_url, stream_events
from laneway.llm._http import is_local
from laneway.llm._thinking import requested_level
from laneway.llm._transform import short_hash, system_messages, tool_name_map
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ProviderFailure, StreamOptions, Transcript, encode_json
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
        tools = _all_tools(taken)
        decoder = Decoder(model, compat, writer, names=tool_name_map(tools), turn=len(taken.messages))

        def prepared(asked: Model, amend: Callable[[ProviderFailure], Prepared | None] | None = None) -> Prepared:
            body = encode(asked, taken, options)
            features = betas(asked, taken, options, body)
            beta = ",".join(features) or None
            headers = {"anthropic-version": VERSION, "anthropic-beta": beta, **authorization, **affinity_headers(options, compat)}
            return Prepared(url=_url(model, beta=bool(features)), body=body, headers=headers, decoder=decoder, amend=amend)

        lenient = replace(model, compat={**model.compat, "supports_strict_tools": False})
        demand = _strict_demand(model, tools) if compat.supports_strict_tools else None
        if demand is None or demand in _refused:
            return prepared(model if demand is None else lenient)

        def without_strict(failure: ProviderFailure) -> Prepared | None:
            if failure.info.status != 400 or not _TOO_STRICT.search(str(failure)):
                return None
            _remember(demand)
            writer.note("the provider refused to hold so many or such tools to their schemas, so they were sent without that demand")
            return prepared(lenient)

        return prepared(model, without_strict)

    return stream_events(model, options, writer, prepare)


_TOO_STRICT = re.compile(r"strict tools|compiled grammar|too complex for compilation|too many (?:optional )?parameters", re.IGNORECASE)
"""How the provider says that it cannot compile the schemas of all strict tools together."""
_refused: dict[str, None] = {}
_REFUSED_SIZE = 256


def _strict_demand(model: Model, tools: list[ToolDeclaration]) -> str | None:
    """Name what a request demands: these schemas of this model; None if no tool is strict."""
    strict = [(tool.name, tool.parameters) for tool in tools if tool.strict]
    return short_hash(f"{model.base_url} {model.id} {encode_json(strict).decode()}", 32) if strict else None


def _remember(demand: str) -> None:
    """Do not make the demand again in this process: it would be refused, and cost a request, every time."""
    _refused[demand] = None
    for oldest in list(_refused)[:-_REFUSED_SIZE]:
        _refused.pop(oldest, None)


def _all_tools(transcript: Transcript) -> list[ToolDeclaration]:
    """Every tool that was ever declared: the model may still call one that has just been removed."""
    return [tool for message in system_messages(transcript.messages) for tool in message.tools_added or ()]


def _url(model: Model, *, beta: bool) -> str:
    if not model.base_url:
        raise ProviderFailure(no_base_url(model), kind="configuration")
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
