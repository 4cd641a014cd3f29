"""Our wire against the vendor's own SDK: our bodies fit its types, and the same bytes mean the same to both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

import pytest

from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.openai_chat import encode, stream
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
from llm.chat import chat_model, chunk, fragment, tools, usage
from llm.loopback import Loopback, sse_reply

openai = pytest.importorskip("openai", reason="the official SDK is the oracle of this file; it is a development dependency only")

OPENAI = chat_model(
    provider="openai",
    id="gpt-5",
    base_url="https://api.openai.com/v1",
    reasoning=True,
    input=("text", "image"),
    max_tokens=1000,
    context_window=100_000,
)
TOOL = ToolDeclaration(name="my.read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
IMAGE = ImageContent(data="aGk=", mime_type="image/png")


def conversation() -> list[Message]:
    """Everything that a transcript may hold."""
    foreign = AssistantMessage(
        content=[
            ThinkingContent(thinking="hm", signature="s"),
            TextContent(text="I look."),
            ToolCall(id="call_1|fc_1", name="my.read", arguments={"path": "a"}),
        ],
        provider="other",
        model="x",
        api="y",
    )
    return [
        SystemMessage(content="You help.", tools_added=[TOOL]),
        UserMessage(content="hi"),
        foreign,
        SystemMessage(content="Be brief."),
        ToolResultMessage(tool_call_id="call_1|fc_1", tool_name="my.read", content=[TextContent(text="ok"), IMAGE]),
        UserMessage(content=[TextContent(text="look"), IMAGE]),
        AssistantMessage(content=[TextContent(text="half")], stop_reason="error"),
        AssistantMessage(content=[ToolCall(id="c2", name="my.read")], provider="openai", model="gpt-5", api="openai_chat"),
        UserMessage(content="again"),
    ]


def validate(body: dict[str, Any]) -> None:
    """Check a body against the SDK's request type, lists included (which it validates only as they are read)."""
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
    from pydantic import TypeAdapter

    adapter = TypeAdapter(CompletionCreateParamsStreaming)  # it must outlive the lazy iterators below
    exhaust(adapter.validate_python(json.loads(json.dumps(body)), strict=True))
    unknown = set(body) - set(CompletionCreateParamsStreaming.__annotations__) - parent_keys()
    assert not unknown


def parent_keys() -> set[str]:
    """The fields that are common to streaming and other requests."""
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase

    return set(CompletionCreateParamsBase.__annotations__)


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
        {"tool_choice": "my.read", "max_tokens": 5, "sampling_params": {"top_p": 0.5, "response_format": {"type": "json_object"}}},
    ],
)
@pytest.mark.parametrize("model", [OPENAI, chat_model()])
def test_request_bodies_fit_the_sdk_s_types(options: dict[str, Any], model: Model) -> None:
    """Decision 3: every prefix of a conversation that has everything in it."""
    messages = conversation()
    for length in range(1, len(messages) + 1):
        if any(isinstance(message, UserMessage) for message in messages[:length]):
            validate(encode(model, Transcript(messages=messages[:length]), StreamOptions(**options)))


STREAMS: dict[str, list[Any]] = {
    "text": [
        chunk("", role="assistant"),
        chunk("Hel"),
        chunk("lo 😀"),
        chunk(finish="stop"),
        usage(prompt_tokens=5, completion_tokens=2, total_tokens=7),
    ],
    "call": [
        tools(fragment("", index=0, call_id="a", name="f")),
        tools(fragment('{"x":', index=0)),
        tools(fragment('"ü\\n"}', index=0)),
        chunk(finish="tool_calls"),
    ],
    "interleaved calls": [
        chunk("I call."),
        tools(fragment('{"a":', index=0, call_id="a", name="f"), fragment('{"b":', index=1, call_id="b", name="g")),
        tools(fragment("2}", index=1), fragment("1}", index=0)),
        chunk(finish="tool_calls"),
    ],
    "length": [chunk("Hel"), chunk(finish="length")],
    "refusal": [chunk(refusal="I can"), chunk(refusal="not"), chunk(finish="stop")],
    "usage details": [
        chunk("x", finish="stop"),
        usage(
            prompt_tokens=100,
            completion_tokens=20,
            total_tokens=120,
            prompt_tokens_details={"cached_tokens": 30},
            completion_tokens_details={"reasoning_tokens": 5},
        ),
    ],
}


@pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS)
async def test_the_same_bytes_mean_the_same_to_both(events: list[Any]) -> None:
    """Decision 3: text, calls, stop reason and usage agree with the SDK's own accumulation."""
    from openai.lib.streaming.chat import ChatCompletionStreamState

    async with Loopback([sse_reply(*events, "[DONE]")]) as server:
        ours = await stream(chat_model(base_url=server.url), Transcript(messages=[UserMessage(content="q")]), StreamOptions()).result()
        state: Any = ChatCompletionStreamState()
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            response = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}], stream=True)
            async for item in response:
                state.handle_chunk(item)
        theirs = state.current_completion_snapshot
    choice = theirs.choices[0]
    assert ours.text == (choice.message.content or "") + (choice.message.refusal or "")
    assert ours.raw_stop_reason == choice.finish_reason
    assert [(call.id, call.name, call.arguments) for call in ours.tool_calls] == [
        (call.id, call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()
    ]
    if theirs.usage is not None:
        assert ours.usage.input + ours.usage.cache_read == theirs.usage.prompt_tokens
        assert (ours.usage.output, ours.usage.total_tokens) == (theirs.usage.completion_tokens, theirs.usage.total_tokens)
