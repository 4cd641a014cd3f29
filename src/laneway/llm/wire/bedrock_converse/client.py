"""The one part of the Converse wire that does I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from laneway.llm._auth import env_value, environment
from laneway.llm._client import Prepared, stream_events
from laneway.llm._http import HttpRequest, is_local
from laneway.llm._thinking import requested_level
from laneway.llm._transform import system_messages, tool_name_map
from laneway.llm._writer import StreamWriter
from laneway.llm.base import AssistantStream, Model, ResponseInfo, StreamOptions, Transcript
from laneway.llm.wire.bedrock_converse._credentials import Credentials, find_credentials, no_credentials, profile_region, sign
from laneway.llm.wire.bedrock_converse._frames import FrameDecoder
from laneway.llm.wire.bedrock_converse._places import DEFAULT_REGION, endpoint, is_amazon, known_region, model_url
from laneway.llm.wire.bedrock_converse.compat import BedrockCompat, resolve_compat
from laneway.llm.wire.bedrock_converse.decode import Decoder
from laneway.llm.wire.bedrock_converse.encode import Surroundings, encode
from laneway.messages import ToolDeclaration

FRAMES = "application/vnd.amazon.eventstream"
_VENDOR = "bedrock"


class _Access(Struct, kw_only=True, frozen=True):
    """How a request is let in: by a header, by a signature, or as it is."""

    headers: dict[str, str | None] = {}
    credentials: Credentials | None = None


def stream(model: Model, transcript: Transcript, options: StreamOptions) -> AssistantStream:
    """Ask the model for a response. Never raises: every failure is the stream's last event. Nothing is sent before it is read."""
    taken = Transcript(messages=list(transcript.messages))
    writer = StreamWriter(model, thinking_level=requested_level(model, options.reasoning) if model.reasoning else None)

    async def prepare() -> Prepared:
        compat = resolve_compat(model)
        env = environment(options.env)
        region = await _region(model, options, env)
        access = await _access(model, options, env, compat, endpoint(model.base_url, region))
        credentials = access.credentials
        around = Surroundings(region=region, force_cache=env_value(env, "AWS_BEDROCK_FORCE_CACHE") == "1")

        def signed(request: HttpRequest) -> HttpRequest:
            return request if credentials is None else sign(request, credentials, region)

        return Prepared(
            url=model_url(model.base_url, region, model.id),
            body=encode(model, taken, options, around),
            headers={"accept": FRAMES, **access.headers},
            decoder=Decoder(model, writer, names=tool_name_map(_all_tools(taken)), turn=len(taken.messages)),
            split=FrameDecoder,
            sign=signed,
            opened=lambda info: _opened(writer, info),
        )

    return stream_events(model, options, writer, prepare)


def _opened(writer: StreamWriter, info: ResponseInfo) -> None:
    """The id by which Amazon finds a request again is in the headers only."""
    writer.set(response_id=info.headers.get("x-amzn-requestid"))


def _all_tools(transcript: Transcript) -> list[ToolDeclaration]:
    """Every tool that was ever declared: the model may still call one that has just been removed."""
    return [tool for message in system_messages(transcript.messages) for tool in message.tools_added or ()]


async def _region(model: Model, options: StreamOptions, env: Mapping[str, str]) -> str:
    known = known_region(model.id, model.base_url, env)
    if known is None and (is_amazon(model.base_url) or model.provider == _VENDOR):
        known = await asyncio.to_thread(profile_region, env, options.env)
    return known or DEFAULT_REGION


async def _access(model: Model, options: StreamOptions, env: Mapping[str, str], compat: BedrockCompat, url: str) -> _Access:
    """A bearer token, a header of one's own, AWS credentials; nothing for a server that needs nothing (a local one, an unknown one)."""
    if env_value(env, "AWS_BEDROCK_SKIP_AUTH") == "1":
        return _Access()
    key = (options.api_key or "").strip()
    given = {name.lower() for name, value in {**model.headers, **(options.headers or {})}.items() if value}
    ours = is_amazon(url) or model.provider == _VENDOR
    if not key and ours and "authorization" not in given:
        key = env_value(env, "AWS_BEARER_TOKEN_BEDROCK") or ""
    if key:
        return _Access(headers={"authorization": f"Bearer {key}"})
    named = "AWS_ACCESS_KEY_ID" in (options.env or {}) or "AWS_PROFILE" in (options.env or {})
    wanted = compat.sign if compat.sign is not None else ours or named
    if "authorization" in given or compat.keyless or not wanted:
        return _Access()
    local = is_local(url)
    credentials = await asyncio.to_thread(find_credentials, env, options.env, model.provider, optional=local)
    if credentials is None and not local:
        raise no_credentials(model.provider)
    return _Access(credentials=credentials)
