"""Our wire against the vendor's own SDK: our bodies fit its types, and the same bytes mean the same to both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import pytest

from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.anthropic_messages import encode, stream
from laneway.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
)
from llm.loopback import Loopback
from llm.wire.anthropic_messages.protocol import HELLO, STOP, arguments, block, called, end, model, reason, reply, signature, start, text, thought

anthropic = pytest.importorskip("anthropic", reason="the official SDK is the oracle of this file; it is a development dependency only")

TOOL = ToolDeclaration(name="my.read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}}, strict=True)
LATER = ToolDeclaration(name="later", description="", parameters={})
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
OLDER = {"temperature", "top_p"}
"""Fields of the protocol that older models take and that this SDK has no name for any more; they are sent only when somebody asks for them."""
FIELDS: dict[str, Any] = {
    "provider": "anthropic", "base_url": "https://api.anthropic.com", "reasoning": True, "input": ("text", "image"), "max_tokens": 9000,
    "context_window": 100_000,
}  # fmt: skip
MODELS = {
    "budget": model(id="budget", **FIELDS),
    "adaptive": model(id="adaptive", **FIELDS, compat={"force_adaptive_thinking": True, "supports_mid_convo_system_messages": True}),
    "everything": model(
        id="everything", **FIELDS,
        compat={"supports_mid_convo_effort": True, "supports_mid_convo_system_messages": True, "supports_mid_convo_tool_changes": True,
                "allowed_fallback_models": {"small": {}}},
    ),
    "unknown server": model(),
}  # fmt: skip


def conversation(of: Model) -> list[Message]:
    """Everything that a transcript may hold."""
    foreign = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature="s"), TextContent(text="I look."),
                 ToolCall(id="call_1|fc_1", name="my.read", arguments={"path": "a"})],
        provider="other", model="x", api="y",
    )  # fmt: skip
    own = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature="S"), ThinkingContent(thinking="?", signature="R", redacted=True),
                 ToolCall(id="c2", name="my.read")],
        provider=of.provider, model=of.id, api=of.api, thinking_level="high",
    )  # fmt: skip
    return [
        SystemMessage(content="You help.", tools_added=[TOOL]),
        UserMessage(content="hi"),
        foreign,
        SystemMessage(content="Be brief."),
        ToolResultMessage(tool_call_id="call_1|fc_1", tool_name="my.read", content=[TextContent(text="ok"), IMAGE]),
        UserMessage(content=[TextContent(text="look"), IMAGE]),
        AssistantMessage(content=[TextContent(text="half")], stop_reason="error"),
        SystemMessage(tools_added=[LATER], tools_removed=["my.read"]),
        own,
        ToolResultMessage(tool_call_id="c2", tool_name="my.read", content=[IMAGE], is_error=True),
        UserMessage(content="again"),
    ]


@cache
def request_type() -> Any:
    """The SDK's request type."""
    from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming
    from pydantic import TypeAdapter

    return TypeAdapter(MessageCreateParamsStreaming)


def validate(body: dict[str, Any]) -> None:
    """Check a body against the SDK's request type, lists included (which it validates only as they are read), and for unknown fields."""
    from anthropic.types.beta.message_create_params import MessageCreateParamsBase

    exhaust(request_type().validate_python(json.loads(json.dumps(body)), strict=True))
    assert not set(body) - set(MessageCreateParamsBase.__annotations__) - {"stream"} - OLDER


def exhaust(value: Any) -> None:
    """Read everything that is validated lazily."""
    if isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            exhaust(item)
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        for item in cast("Iterable[Any]", value):
            exhaust(item)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reasoning": "high", "cache_retention": "long", "tool_choice": "any", "temperature": 0.5, "metadata": {"user_id": "u"}},
        {"tool_choice": "my.read", "max_tokens": 5, "cache_retention": "none", "sampling_params": {"top_p": 0.5, "stop_sequences": ["x"]}},
    ],
    ids=["plain", "thinking", "choice"],
)
@pytest.mark.parametrize("of", MODELS.values(), ids=MODELS)
def test_request_bodies_fit_the_sdk_s_types(options: dict[str, Any], of: Model) -> None:
    """Decision 3: every prefix of a conversation that has everything in it."""
    messages = conversation(of)
    for length in range(2, len(messages) + 1):
        validate(encode(of, Transcript(messages=messages[:length]), StreamOptions(**options)))


THINKING = [block(0, "thinking"), thought("h"), thought("m"), signature("S1"), signature("S2"), end()]
STREAMS: dict[str, list[Any]] = {
    "text": HELLO,
    "thinking and a call": [start(), *THINKING, *called("f", '{"x": "ü\\n"}', "a", 1), reason("tool_use"), STOP],
    "interleaved": [
        start(), block(0, "text"), block(1, "tool_use", id="a", name="f"), text("a"), arguments('{"p"', 1), text("b"), arguments(":1}", 1),
        end(1), end(),
        reason("tool_use"), STOP,
    ],
    "redacted": [start(), block(0, "redacted_thinking", data="R"), end(), block(1, "text"), text("x", 1), end(1), reason(), STOP],
    "length": [start(), block(0, "text"), text("Hel"), end(), reason("max_tokens"), STOP],
    "usage": [
        start(cache_read_input_tokens=20000, cache_creation_input_tokens=1500), block(0, "text"), text("x"), end(),
        reason(output_tokens=120, input_tokens=12, cache_read_input_tokens=20001), STOP,
    ],
}  # fmt: skip


def as_blocks(message: AssistantMessage) -> list[dict[str, Any]]:
    """Our content in the SDK's words."""
    out: list[dict[str, Any]] = []
    for part in message.content:
        if isinstance(part, TextContent):
            out.append({"type": "text", "text": part.text})
        elif isinstance(part, ToolCall):
            out.append({"type": "tool_use", "id": part.id, "name": part.name, "input": part.arguments})
        elif part.redacted:
            out.append({"type": "redacted_thinking", "data": part.signature})
        else:
            out.append({"type": "thinking", "thinking": part.thinking, "signature": part.signature})
    return out


@pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS)
async def test_the_same_bytes_mean_the_same_to_both(events: list[Any]) -> None:
    """Decision 3: blocks, stop reason, usage and ids agree with the SDK's own accumulation."""
    async with Loopback([reply(*events)]) as server:
        ours = await stream(model(base_url=server.url), Transcript(messages=[UserMessage(content="q")]), StreamOptions()).result()
        async with (
            anthropic.AsyncAnthropic(base_url=server.url.removesuffix("/v1"), api_key="none", max_retries=0) as client,
            client.messages.stream(model="m", max_tokens=10, messages=[{"role": "user", "content": "q"}]) as response,
        ):
            theirs = await response.get_final_message()
    expected = [part.model_dump(exclude_none=True, exclude_unset=True) for part in theirs.content]
    if expected[0].get("signature") == "S2":  # this SDK keeps the last piece of a signature; the pieces belong together
        expected[0]["signature"] = "S1S2"
    assert as_blocks(ours) == expected
    assert (ours.raw_stop_reason, ours.response_id, ours.response_model) == (theirs.stop_reason, theirs.id, None)
    counts = (theirs.usage.input_tokens, theirs.usage.cache_read_input_tokens or 0, theirs.usage.cache_creation_input_tokens or 0)
    assert (ours.usage.input, ours.usage.cache_read, ours.usage.cache_write, ours.usage.output) == (*counts, theirs.usage.output_tokens)
