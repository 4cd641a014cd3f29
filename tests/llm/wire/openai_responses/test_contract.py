"""Our wire against the vendor's own SDK: our bodies fit its types, and the same bytes mean the same to both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import pytest

from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.openai_responses import encode, stream
from laneway.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolGrammar,
    ToolResultMessage,
    UserMessage,
)
from llm.loopback import Loopback
from llm.wire.openai_responses.protocol import (
    HELLO,
    added,
    arguments,
    call,
    called,
    completed,
    created,
    custom,
    delta,
    done,
    incomplete,
    message,
    model,
    reasoning,
    reply,
    text,
    thought,
)

openai = pytest.importorskip("openai", reason="the official SDK is the oracle of this file; it is a development dependency only")

TOOL = ToolDeclaration(name="my.read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}}, strict=True)
LATER = ToolDeclaration(name="later", description="", parameters={})
PATCH = ToolDeclaration(
    name="patch", description="Patches.", parameters={"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    grammar=ToolGrammar(lark="start: /.+/"),
)  # fmt: skip
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
FIELDS: dict[str, Any] = {
    "provider": "openai", "base_url": "https://api.openai.com/v1", "reasoning": True, "input": ("text", "image"), "max_tokens": 9000,
    "context_window": 100_000,
}  # fmt: skip
MODELS = {
    "plain": model(id="plain", **FIELDS),
    "everything": model(
        id="everything", **FIELDS,
        compat={"supports_mid_convo_system_messages": True, "supports_additional_tools": True, "supports_explicit_prompt_cache_mode": True},
    ),
    "no reasoning": model(provider="openai"),
    "grammars and search": model(
        id="search", **FIELDS,
        compat={"supports_mid_convo_system_messages": True, "supports_tool_search": True, "supports_grammar_tools": True},
    ),
}  # fmt: skip


def conversation(of: Model) -> list[Message]:
    """Everything that a transcript may hold."""
    foreign = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature="s"), TextContent(text="I look."),
                 ToolCall(id="toolu_1", name="my.read", arguments={"p": 1})],
        provider="other", model="x", api="y",
    )  # fmt: skip
    own = AssistantMessage(
        content=[
            ThinkingContent(thinking="hm", signature=json.dumps(reasoning("hm"))),
            TextContent(text="so", signature='{"v":1,"id":"msg_1","phase":"commentary"}'),
            ToolCall(id="call_2|fc_2", name="my.read"), ToolCall(id="call_3|ctc_3", name="patch", arguments={"input": "x"}),
        ],
        provider=of.provider, model=of.id, api=of.api,
    )  # fmt: skip
    return [
        SystemMessage(content="You help.", tools_added=[TOOL]),
        UserMessage(content="hi"),
        foreign,
        SystemMessage(content="Be brief.", tools_added=[LATER, PATCH]),
        ToolResultMessage(tool_call_id="toolu_1", tool_name="my.read", content=[TextContent(text="ok"), IMAGE]),
        UserMessage(content=[TextContent(text="look"), IMAGE]),
        AssistantMessage(content=[TextContent(text="half")], stop_reason="error"),
        own,
        ToolResultMessage(tool_call_id="call_2|fc_2", tool_name="my.read", content=[IMAGE], is_error=True),
        ToolResultMessage(tool_call_id="call_3|ctc_3", tool_name="patch", content=[TextContent(text="done")]),
        UserMessage(content="again"),
    ]


@cache
def request_type() -> Any:
    """The SDK's request type."""
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
    from pydantic import TypeAdapter

    return TypeAdapter(ResponseCreateParamsStreaming)


def validate(body: dict[str, Any]) -> None:
    """Check a body against the SDK's request type, lists included (which it validates only as they are read), and for unknown fields."""
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    exhaust(request_type().validate_python(json.loads(json.dumps(body)), strict=True))
    assert not set(body) - set(ResponseCreateParamsBase.__annotations__) - {"stream"}


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
        {"reasoning": "high", "session_id": "s", "cache_retention": "long", "tool_choice": "required", "temperature": 0.5},
        {"tool_choice": "my.read", "max_tokens": 5, "cache_retention": "none", "sampling_params": {"top_p": 0.5, "service_tier": "flex"}},
    ],
    ids=["plain", "thinking", "choice"],
)
@pytest.mark.parametrize("of", MODELS.values(), ids=MODELS)
def test_request_bodies_fit_the_sdk_s_types(options: dict[str, Any], of: Model) -> None:
    """Decision 3: every prefix of a conversation that has everything in it."""
    messages = conversation(of)
    for length in range(2, len(messages) + 1):
        validate(encode(of, Transcript(messages=messages[:length]), StreamOptions(**options)))


REFUSED = {**message(), "content": [{"type": "refusal", "refusal": "No."}]}
PART = {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "item_id": "msg_1", "sequence_number": 1}
STREAMS: dict[str, list[Any]] = {
    "text": [*HELLO[:2], {**PART, "part": {"type": "output_text", "text": "", "annotations": []}}, *HELLO[2:]],
    "reasoning and a call": [
        created(), added(reasoning(encrypted=None)), thought("h"), thought("m"), done(reasoning("hm")), *called('{"x": "ü\\n"}', index=1),
        completed(output=[reasoning("hm"), call('{"x": "ü\\n"}')]),
    ],
    "interleaved calls": [
        created(), added(call()), added(call(call_id="b", item_id="fc_2", name="g"), 1), arguments('{"a"', 0), arguments('{"b":2}', 1),
        arguments(":1}", 0),
        done(call('{"a":1}')), done(call('{"b":2}', call_id="b", item_id="fc_2", name="g"), 1),
        completed(output=[call('{"a":1}'), call('{"b":2}', call_id="b", item_id="fc_2", name="g")]),
    ],
    "custom": [created(), added(custom()), delta("custom_tool_call_input", "raw"), done(custom("raw")), completed(output=[custom("raw")])],
    "refusal": [
        created(), added(message()), {**PART, "part": {"type": "refusal", "refusal": ""}}, delta("refusal", "No.", content_index=0), done(REFUSED),
        completed(output=[REFUSED]),
    ],
    "length": [
        *HELLO[:2], {**PART, "part": {"type": "output_text", "text": "", "annotations": []}}, text("Hel"), done(message("Hel")),
        incomplete("max_output_tokens") | {"response": {**incomplete("max_output_tokens")["response"], "output": [message("Hel")]}},
    ],
}  # fmt: skip


def as_items(found: AssistantMessage) -> list[dict[str, Any]]:
    """Our content in the SDK's words."""
    out: list[dict[str, Any]] = []
    for part in found.content:
        if isinstance(part, TextContent):
            out.append({"type": "message", "text": part.text, "id": json.loads(part.signature or "{}").get("id")})
        elif isinstance(part, ThinkingContent):
            out.append(
                {
                    "type": "reasoning",
                    "text": part.thinking,
                    **{k: v for k, v in json.loads(part.signature or "").items() if k in ("id", "encrypted_content")},
                }
            )
        else:
            call_id, _, item_id = part.id.partition("|")
            kind = "custom_tool_call" if item_id.startswith("ctc") else "function_call"
            out.append({"type": kind, "call_id": call_id, "id": item_id, "name": part.name, "arguments": part.arguments})
    return out


def theirs(item: Any) -> dict[str, Any]:
    """An output item of the SDK's in the same words."""
    if item.type == "message":
        return {"type": "message", "text": "".join(getattr(p, "text", None) or p.refusal for p in item.content), "id": item.id}
    if item.type == "reasoning":
        return {"type": "reasoning", "text": "".join(p.text for p in item.summary), "id": item.id, "encrypted_content": item.encrypted_content}
    values = {"input": item.input} if item.type == "custom_tool_call" else json.loads(item.arguments)
    return {"type": item.type, "call_id": item.call_id, "id": item.id, "name": item.name, "arguments": values}


@pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS)
async def test_the_same_bytes_mean_the_same_to_both(events: list[Any]) -> None:
    """Decision 3: items, ids, status and usage agree with the SDK's own reading of the stream."""
    async with Loopback([reply(*events)]) as server:
        ours = await stream(model(base_url=server.url), Transcript(messages=[UserMessage(content="q")]), StreamOptions()).result()
        found: Any = None
        streamed: list[str] = []
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            async for event in await client.responses.create(model="m", input="q", stream=True):
                found = event
                streamed += [event.delta] if event.type in ("response.output_text.delta", "response.refusal.delta") else []
    assert as_items(ours) == [theirs(item) for item in found.response.output]
    assert ours.text == "".join(streamed)
    assert (ours.response_id, (ours.raw_stop_reason or "").partition(".")[0]) == (found.response.id, found.response.status)
    counts = found.response.usage
    assert (ours.usage.input + ours.usage.cache_read, ours.usage.cache_read) == (counts.input_tokens, counts.input_tokens_details.cached_tokens)
    assert (ours.usage.output, ours.usage.reasoning) == (counts.output_tokens, counts.output_tokens_details.reasoning_tokens)
    assert ours.usage.total_tokens == counts.total_tokens
