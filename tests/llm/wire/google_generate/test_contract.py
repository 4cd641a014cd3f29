"""Our wire against the vendor's own SDK: our bodies fit its types, and the same bytes mean the same to both."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.google_generate import encode, stream
from laneway.llm.wire.google_generate.decode import BAD_REASONS, STOP_REASONS
from laneway.llm.wire.google_generate.encode import THINKING_WORDS
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
from llm.loopback import Loopback, sse_reply
from llm.wire.google_generate.protocol import COUNTS, HELLO, call, chunk, model, stop, text, thought

genai = pytest.importorskip("google.genai", reason="the official SDK is the oracle of this file; it is a development dependency only")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

SIG = base64.b64encode(b"signature!!").decode()
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
TOOL = ToolDeclaration(name="my.read", description="Reads.", parameters={"type": "object", "properties": {"path": {"const": "x"}}}, strict=True)
FIELDS: dict[str, Any] = {"reasoning": True, "input": ("text", "image"), "max_tokens": 9000, "context_window": 100_000}
MODELS = {name: model(name, **FIELDS) for name in ("gemini-2.5-pro", "gemini-3-flash", "gemma-3-27b-it", "claude-x")}


def conversation(of: Model) -> list[Message]:
    """Everything that a transcript may hold."""
    foreign = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature="s"), TextContent(text="I look."),
                 ToolCall(id="call_1|fc_1", name="my.read", arguments={"path": "a"})],
        provider="other", model="x", api="y",
    )  # fmt: skip
    own = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature=SIG), TextContent(text="", signature=SIG),
                 ToolCall(id="c2", name="my.read", signature=SIG)],
        provider=of.provider, model=of.id, api=of.api, thinking_level="high",
    )  # fmt: skip
    return [
        SystemMessage(content="You help.", tools_added=[TOOL]),
        UserMessage(content="hi"),
        foreign,
        SystemMessage(content="Be brief."),
        ToolResultMessage(tool_call_id="call_1|fc_1", tool_name="my.read", content=[TextContent(text="ok"), IMAGE]),
        UserMessage(content=[TextContent(text="look"), IMAGE]),
        SystemMessage(tools_added=[ToolDeclaration(name="later", description="", parameters={})]),
        own,
        ToolResultMessage(tool_call_id="c2", tool_name="my.read", content=[IMAGE], is_error=True),
        UserMessage(content="again"),
    ]


def validate(body: dict[str, Any]) -> None:
    """Check every part of a body against the SDK's types, which forbid unknown fields."""
    types = genai.types
    body = json.loads(json.dumps(body))
    for content in [*body.pop("contents"), *([body.pop("systemInstruction")] if "systemInstruction" in body else [])]:
        types.Content.model_validate(content)
    for tool in body.pop("tools", []):
        types.Tool.model_validate(tool)
    if "toolConfig" in body:
        types.ToolConfig.model_validate(body.pop("toolConfig"))
    types.GenerateContentConfig.model_validate(body.pop("generationConfig", {}))
    assert not body


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reasoning": "high", "tool_choice": "any", "temperature": 0.5},
        {"tool_choice": "my.read", "max_tokens": 5, "sampling_params": {"topP": 1}},
    ],
    ids=["plain", "thinking", "choice"],
)
@pytest.mark.parametrize("of", MODELS.values(), ids=MODELS)
def test_request_bodies_fit_the_sdk_s_types(options: dict[str, Any], of: Model) -> None:
    """Decision 3: every prefix of a conversation that has everything in it."""
    messages = conversation(of)
    for length in range(2, len(messages) + 1):
        validate(encode(of, Transcript(messages=messages[:length]), StreamOptions(**options)))


def test_the_words_that_we_know_are_the_sdk_s() -> None:
    """Finish reasons and thinking levels are spelled as the SDK spells them."""
    assert {*STOP_REASONS, *BAD_REASONS} <= {reason.value for reason in genai.types.FinishReason}
    assert {level.value for level in genai.types.ThinkingLevel} - {"THINKING_LEVEL_UNSPECIFIED"} == THINKING_WORDS


STREAMS: dict[str, list[Any]] = {
    "text": HELLO,
    "thinking and calls": [
        chunk(thought("h")), chunk(thought("m")), chunk("I look."),
        chunk(call("f", {"x": "ü\n"}, call_id="a", signature=SIG)), chunk(call("g", call_id="b")),
        stop(usage=COUNTS),
    ],
    "a signature at the end": [chunk("a"), chunk("b"), chunk(text("", thoughtSignature=SIG), finish="STOP")],
    "length": [chunk("Hel"), stop("MAX_TOKENS")],
}  # fmt: skip


def as_parts(message: AssistantMessage) -> list[tuple[Any, ...]]:
    """Our content in the SDK's words."""
    out: list[tuple[Any, ...]] = []
    for block in message.content:
        signature = base64.b64decode(block.signature) if block.signature else None
        if isinstance(block, ToolCall):
            out.append(("call", block.name, block.arguments, block.id, signature))
        else:
            out.append(("text", block.text, signature) if isinstance(block, TextContent) else ("thought", block.thinking, signature))
    return out


def joined(parts: list[Any]) -> list[tuple[Any, ...]]:
    """The SDK's parts, with the pieces of one text put together."""
    out: list[tuple[Any, ...]] = []
    for part in parts:
        if part.function_call is not None:
            out.append(("call", part.function_call.name, part.function_call.args or {}, part.function_call.id, part.thought_signature))
            continue
        kind, signature = "thought" if part.thought else "text", part.thought_signature
        if out and out[-1][0] == kind:
            out[-1] = (kind, out[-1][1] + part.text, signature or out[-1][2])
        elif part.text or signature:
            out.append((kind, part.text, signature))
    return out


@pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS)
async def test_the_same_bytes_mean_the_same_to_both(events: list[Any]) -> None:
    """Decision 3: parts, reason, usage and ids agree with what the SDK reads."""
    async with Loopback([sse_reply(*events)]) as server:
        ours = await stream(model(base_url=server.url), Transcript(messages=[UserMessage(content="q")]), StreamOptions()).result()
        client = genai.Client(api_key="none", http_options={"base_url": server.url.removesuffix("/v1"), "api_version": "v1"})
        response = await client.aio.models.generate_content_stream(model="gemini-3-flash", contents="q")
        theirs = [piece async for piece in response]
        await client.aio.aclose()
        client.close()
        assert server.requests[0].path == server.requests[1].path
    parts = [part for piece in theirs for part in (piece.candidates[0].content.parts or [])]
    last = theirs[-1]
    assert as_parts(ours) == joined(parts)
    assert (ours.raw_stop_reason, ours.response_id) == (last.candidates[0].finish_reason.value, last.response_id)
    counts = last.usage_metadata
    assert ours.usage.total_tokens == counts.total_token_count
    assert ours.usage.input + ours.usage.cache_read == counts.prompt_token_count
    assert ours.usage.output == counts.candidates_token_count + (counts.thoughts_token_count or 0)
