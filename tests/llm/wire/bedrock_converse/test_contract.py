"""Our wire against AWS's own model of the service: our bodies are what botocore would send, and the same frames mean the same to both."""

from __future__ import annotations

import copy
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from laneway.llm._transform import encode_body
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.llm.wire.bedrock_converse import encode, stream
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
from llm.wire.bedrock_converse.protocol import (
    HELLO,
    START,
    arguments,
    call,
    called,
    end,
    exception,
    model,
    reply,
    secret,
    signature,
    stop,
    text,
    thought,
    usage,
)

pytest.importorskip("botocore", reason="botocore's model of the service is the oracle of this file")

TOOL = ToolDeclaration(name="my.read", description="Reads.", parameters={"type": "object", "properties": {"path": {"type": "string"}}}, strict=True)
LATER = ToolDeclaration(name="later", description="", parameters={})
IMAGE = ImageContent(data="aGk=", mime_type="image/png")
FIELDS: dict[str, Any] = {"reasoning": True, "input": ("text", "image"), "max_tokens": 9000, "context_window": 100_000}
MODELS = {
    "budget": model("us.anthropic.claude-sonnet-4-5-20250929-v1:0", **FIELDS),
    "adaptive": model("global.anthropic.claude-opus-4-8", **FIELDS),
    "nova": model("us.amazon.nova-2-lite-v1:0", **FIELDS),
    "gpt": model("us.openai.gpt-6-sol", **FIELDS),
    "other": model("deepseek.v3.2"),
    "profile": model("arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/ab12cd34ef56", name="Claude Sonnet 4.6", **FIELDS),
}


def conversation(of: Model) -> list[Message]:
    """Everything that a transcript may hold."""
    foreign = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature="s"), TextContent(text="I look."),
                 ToolCall(id="call_1|fc_1", name="my.read", arguments={"path": "a"})],
        provider="other", model="x", api="y",
    )  # fmt: skip
    own = AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature="S"), ThinkingContent(thinking="?", signature="UmVk", redacted=True),
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
        SystemMessage(tools_removed=["later"]),
    ]


@cache
def operation() -> Any:
    """The operation in botocore's model of the service."""
    from botocore.session import Session

    return Session().get_service_model("bedrock-runtime").operation_model("ConverseStream")


def with_bytes(value: Any, shape: Any) -> Any:
    """The parameters that make this body: what the model calls a blob is bytes there."""
    if shape.type_name == "structure" and not shape.metadata.get("document") and isinstance(value, dict):
        return {key: with_bytes(item, shape.members[key]) for key, item in value.items()}
    if shape.type_name == "list":
        return [with_bytes(item, shape.member) for item in value]
    return b64decode(value, validate=True) if shape.type_name == "blob" else value


def problems(value: Any, shape: Any, where: str = "") -> Iterator[str]:
    """What botocore's validator does not look at: choices of one, words out of a list, patterns, largest lengths."""
    limits = shape.metadata
    if shape.type_name == "structure" and not limits.get("document"):
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            yield f"{where} has not exactly one member: {sorted(value)}"
        for key, item in value.items():
            yield from problems(item, shape.members[key], f"{where}.{key}")
    elif shape.type_name == "list":
        for index, item in enumerate(value):
            yield from problems(item, shape.member, f"{where}[{index}]")
    elif shape.type_name == "string":
        if shape.enum and value not in shape.enum:
            yield f"{where} is {value!r}, not one of {shape.enum}"
        if "pattern" in limits and not re.fullmatch(limits["pattern"], value):
            yield f"{where} is {value!r}, which does not match"
        if len(value) > limits.get("max", len(value)):
            yield f"{where} is too long"


def validate(of: Model, body: dict[str, Any]) -> None:
    """Check a body: its parameters are valid, and botocore makes the same body and path of them."""
    from botocore.serialize import create_serializer
    from botocore.validate import ParamValidator

    shape = operation().input_shape
    sent = json.loads(encode_body(body))
    params = {**with_bytes(sent, shape), "modelId": of.id}
    report = ParamValidator().validate(params, shape)
    assert not report.has_errors(), report.generate_report()
    assert list(problems(params, shape)) == []
    theirs = create_serializer("rest-json").serialize_to_request(copy.deepcopy(params), operation())
    assert json.loads(theirs["body"]) == sent
    assert [message["role"] for message in sent["messages"]] == (["user", "assistant"] * len(sent["messages"]))[: len(sent["messages"])]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reasoning": "high", "cache_retention": "long", "tool_choice": "any", "temperature": 0.5},
        {"reasoning": "low", "tool_choice": "none"},
        {
            "tool_choice": "my.read",
            "max_tokens": 5,
            "cache_retention": "none",
            "sampling_params": {"top_p": 0.5, "stop": "x", "service_tier": "flex"},
        },
    ],
    ids=["plain", "thinking", "none", "choice"],
)
@pytest.mark.parametrize("of", MODELS.values(), ids=MODELS)
def test_request_bodies_are_what_botocore_would_send(options: dict[str, Any], of: Model) -> None:
    """Decision 3: every prefix of a conversation that has everything in it."""
    messages = conversation(of)
    for length in range(2, len(messages) + 1):
        validate(of, encode(of, Transcript(messages=messages[:length]), StreamOptions(**options)))


def test_the_check_of_bodies_finds_what_is_wrong() -> None:
    """An oracle that accepts everything would be none."""
    user = {"role": "user", "content": [{"text": "x"}]}
    for bad in (
        {"messages": [{"role": "user", "content": [{"text": "x", "image": {"format": "png", "source": {"bytes": "aGk="}}}]}]},
        {"messages": [{"role": "user", "content": [{"image": {"format": "tiff", "source": {"bytes": "aGk="}}}]}]},
        {"messages": [user], "toolConfig": {"tools": []}},
        {"messages": [user], "toolConfig": {"tools": [{"toolSpec": {"name": "a.b", "inputSchema": {"json": {}}}}]}},
        {"messages": [user, user]},
        {"messages": [user], "inferenceConfig": {"maxTokens": 0}},
    ):
        with pytest.raises(AssertionError):
            validate(MODELS["other"], bad)


THINKING = [thought("h"), thought("m"), signature("S1"), signature("S2"), end()]
STREAMS: dict[str, list[bytes]] = {
    "text": HELLO,
    "thinking and a call": [START, *THINKING, *called("f", '{"x": "ü\\n"}', "a", 1), stop("tool_use"), usage()],
    "interleaved": [
        START, call("f", 1, call_id="a"), text("a"), arguments('{"p"', 1), text("b"), arguments(":1}", 1), end(1), end(), stop("tool_use"), usage(),
    ],
    "encrypted": [START, secret("YQ=="), secret("YmM="), end(), text("x", 1), end(1), stop(), usage()],
    "length": [START, text("Hel"), end(), stop("max_tokens"), usage()],
    "cache": [*HELLO[:5], usage(3, 4, cacheReadInputTokens=20000, cacheWriteInputTokens=1500)],
}  # fmt: skip


class Body:
    """A body as botocore wants it."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def stream(self) -> Iterator[bytes]:
        """The body in pieces."""
        for at in range(0, len(self.data), 100):
            yield self.data[at : at + 100]


def their_events(frames: list[bytes]) -> list[dict[str, Any]]:
    """The events that botocore's parser gives."""
    from botocore.eventstream import EventStream
    from botocore.parsers import create_parser

    shape = operation().get_event_stream_output()
    parser = create_parser("rest-json")._event_stream_parser
    return list(EventStream(Body(b"".join(frames)), shape, parser, "ConverseStream"))


def their_blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a response, put together from botocore's events."""
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        start, piece = event.get("contentBlockStart"), event.get("contentBlockDelta")
        if start is not None:
            blocks[start["contentBlockIndex"]] = {"call": start["start"]["toolUse"]["name"], "id": start["start"]["toolUse"]["toolUseId"], "json": ""}
        if piece is not None:
            block, delta = blocks.setdefault(piece["contentBlockIndex"], {}), piece["delta"]
            inner = delta.get("reasoningContent", {})
            for key, value in (
                ("text", delta.get("text")), ("json", delta.get("toolUse", {}).get("input")), ("thought", inner.get("text")),
                ("signature", inner.get("signature")), ("secret", inner.get("redactedContent")),
            ):  # fmt: skip
                if value is not None:
                    block[key] = block[key] + value if key in block else value
    return [blocks[index] for index in sorted(blocks)]


def our_blocks(message: AssistantMessage) -> list[dict[str, Any]]:
    """Our content in the same words."""
    out: list[dict[str, Any]] = []
    for part in message.content:
        if isinstance(part, TextContent):
            out.append({"text": part.text})
        elif isinstance(part, ToolCall):
            out.append({"call": part.name, "id": part.id, "json": part.arguments})
        elif part.redacted:
            out.append({"secret": b64decode(part.signature or "")})
        else:
            out.append({"thought": part.thinking, "signature": part.signature})
    return out


@pytest.mark.parametrize("frames", STREAMS.values(), ids=STREAMS)
async def test_the_same_frames_mean_the_same(frames: list[bytes]) -> None:
    """Decision 3: content, stop reason and counts agree."""
    async with Loopback([reply(*frames)]) as server:
        message = await stream(model(base_url=server.url), Transcript(messages=[UserMessage(content="hi")]), StreamOptions()).result()
    events = their_events(frames)
    theirs = [{**block, "json": json.loads(block["json"])} if "json" in block else block for block in their_blocks(events)]
    ours = our_blocks(message)
    assert sorted(ours, key=repr) == sorted(theirs, key=repr)
    assert message.raw_stop_reason == next(event["messageStop"]["stopReason"] for event in events if "messageStop" in event)
    counts = next(event["metadata"]["usage"] for event in events if "metadata" in event)
    assert (message.usage.input, message.usage.output, message.usage.total_tokens) == (
        counts["inputTokens"], counts["outputTokens"], counts["totalTokens"],
    )  # fmt: skip
    assert (message.usage.cache_read, message.usage.cache_write) == (
        counts.get("cacheReadInputTokens", 0), counts.get("cacheWriteInputTokens", 0),
    )  # fmt: skip


async def test_an_exception_is_one_for_both() -> None:
    """Both stop there, and both tell what the service said."""
    from botocore.exceptions import EventStreamError

    frames = [*HELLO[:2], exception("throttlingException", "Slow down")]
    with pytest.raises(EventStreamError, match="Slow down"):
        their_events(frames)
    async with Loopback([reply(*frames)]) as server:
        message = await stream(model(base_url=server.url), Transcript(messages=[UserMessage(content="hi")]), StreamOptions()).result()
    assert "Slow down" in (message.error_message or "")


def test_no_word_of_ours_is_invented() -> None:
    """Stop reasons, exceptions and fields are the service's own."""
    from laneway.llm.wire.bedrock_converse.decode import BAD_REASONS, EXCEPTION_TEXTS, STOP_REASONS
    from laneway.llm.wire.bedrock_converse.encode import _FIELDS

    output = operation().get_event_stream_output()
    assert set(output.members["messageStop"].members["stopReason"].enum) >= STOP_REASONS.keys() | BAD_REASONS.keys()
    assert {name.lower() for name, shape in output.members.items() if not shape.serialization.get("event")} >= EXCEPTION_TEXTS.keys()
    assert set(operation().input_shape.members) - {"modelId"} >= _FIELDS
