"""Our wire against the vendor's own SDK's types: our bodies fit them, and the same chunks mean the same to both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.mistral import Decoder, encode
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
from llm.wire.mistral.protocol import DONE, HELLO, call, calls, chunk, dumped, model, stop, text, thought

models = pytest.importorskip("mistralai.client.models", reason="the official SDK is the oracle of this file; it is a development dependency only")

IMAGE = ImageContent(data="aGk=", mime_type="image/png")
TOOL = ToolDeclaration(name="my.read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}}, strict=True)
FIELDS: dict[str, Any] = {"reasoning": True, "input": ("text", "image"), "max_tokens": 9000, "context_window": 100_000}
OF = {"effort": model(thinking_levels={"off": "none"}, **FIELDS), "mode": model("magistral-x", **FIELDS)}


def conversation(of: Model) -> list[Message]:
    """Everything that a transcript may hold."""
    foreign = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature="s"), TextContent(text="I look."),
                 ToolCall(id="call_1|fc_1", name="my.read", arguments={"path": "a"})],
        provider="other", model="x", api="y",
    )  # fmt: skip
    own = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature="S"), TextContent(text="a"), ToolCall(id="abc123XYZ", name="my.read")],
        provider=of.provider, model=of.id, api=of.api,
    )  # fmt: skip
    return [
        SystemMessage(content="You help.", tools_added=[TOOL]),
        UserMessage(content="hi"),
        foreign,
        ToolResultMessage(tool_call_id="call_1|fc_1", tool_name="my.read", content=[TextContent(text="ok"), IMAGE]),
        UserMessage(content=[TextContent(text="look"), IMAGE]),
        SystemMessage(tools_added=[ToolDeclaration(name="later", description="", parameters={})]),
        own,
        ToolResultMessage(tool_call_id="abc123XYZ", tool_name="my.read", content=[IMAGE], is_error=True),
        UserMessage(content="again"),
    ]


def validate(body: dict[str, Any]) -> None:
    """Check that a body comes back from the SDK's request type as it went in."""
    body = json.loads(json.dumps(body))
    parsed = models.ChatCompletionStreamRequest.model_validate(body)
    assert not set(body) - set(models.ChatCompletionStreamRequest.model_fields)
    for sent, seen in zip(body["messages"], json.loads(parsed.model_dump_json(by_alias=True, exclude_unset=True))["messages"], strict=True):
        seen.pop("prefix", None)
        assert {key: value for key, value in seen.items() if key in sent} == sent


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reasoning": "high", "tool_choice": "any", "temperature": 0.5, "session_id": "s"},
        {"tool_choice": "my.read", "max_tokens": 5, "sampling_params": {"top_p": 1, "random_seed": 3}},
    ],
    ids=["plain", "thinking", "choice"],
)
@pytest.mark.parametrize("of", OF.values(), ids=OF)
def test_request_bodies_fit_the_sdk_s_types(options: dict[str, Any], of: Model) -> None:
    """Decision 3: every prefix of a conversation that has everything in it comes back from the SDK as it went in."""
    messages = conversation(of)
    for length in range(2, len(messages) + 1):
        validate(encode(of, Transcript(messages=messages[:length]), StreamOptions(**options)))


STREAMS: dict[str, list[Any]] = {
    "text": HELLO[:-1],
    "thinking and calls": [
        chunk([thought("h")]), chunk([thought("m", signature="S")]), chunk([text("I ")]), chunk("look."),
        calls(call("f", '{"x": "ü"}', call_id="aaaaaaaaa"), call("g", "{}", call_id="bbbbbbbbb", index=1)), stop("tool_calls"),
    ],
    "length": [chunk("Hel"), stop("length")],
}  # fmt: skip


def by_sdk(chunks: list[Any]) -> dict[str, Any]:
    """What the SDK's types make of the chunks, put together as its documentation says."""
    found: dict[str, Any] = {"text": "", "thinking": "", "signature": None, "calls": [], "reason": None, "usage": None}
    for raw in chunks:
        parsed = models.CompletionChunk.model_validate(raw)
        delta = parsed.choices[0].delta
        for part in delta.content if isinstance(delta.content, list) else []:
            if part.type == "thinking":
                found["thinking"] += "".join(piece.text for piece in part.thinking)
                found["signature"] = part.signature or found["signature"]
            else:
                found["text"] += part.text
        found["text"] += delta.content if isinstance(delta.content, str) else ""
        found["calls"] += [(c.id, c.function.name, json.loads(c.function.arguments)) for c in delta.tool_calls or []]
        found["reason"] = parsed.choices[0].finish_reason or found["reason"]
        found["usage"] = parsed.usage or found["usage"]
    return found


@pytest.mark.parametrize("chunks", STREAMS.values(), ids=STREAMS)
def test_the_same_chunks_mean_the_same_to_both(chunks: list[Any]) -> None:
    """Decision 3: text, thinking, calls, reason and usage agree."""
    decoder = Decoder(model(), StreamWriter(model()))
    for raw in [*chunks, DONE]:
        decoder.feed(dumped(raw))
    ours: AssistantMessage = decoder.finish()[-1].message  # type: ignore[union-attr]  # done
    theirs = by_sdk(chunks)
    thinking = [block for block in ours.content if isinstance(block, ThinkingContent)]
    assert (ours.text, "".join(block.thinking for block in thinking)) == (theirs["text"], theirs["thinking"])
    assert next((block.signature for block in thinking), None) == theirs["signature"]
    assert [(c.id, c.name, c.arguments) for c in ours.tool_calls] == theirs["calls"]
    assert ours.raw_stop_reason == theirs["reason"]
    counts = theirs["usage"]
    assert (ours.usage.input, ours.usage.output, ours.usage.total_tokens) == (counts.prompt_tokens, counts.completion_tokens, counts.total_tokens)
