"""What the Converse wire makes of what it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.events import AssistantEvent
from laneway.llm._retry import is_retryable
from laneway.llm._writer import StreamWriter
from laneway.llm.base import CostTier, Model, ModelCost, ProviderFailure
from laneway.llm.wire.bedrock_converse import Decoder
from laneway.llm.wire.bedrock_converse._frames import FrameDecoder
from laneway.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall
from llm.wire.bedrock_converse.protocol import (
    HELLO,
    START,
    arguments,
    call,
    called,
    delta,
    end,
    error,
    exception,
    frame,
    model,
    secret,
    signature,
    stop,
    text,
    thought,
    usage,
)


class Run:
    """A decoded response: its events, its message or its failure."""

    def __init__(self, frames: Iterable[bytes], of: Model | None = None, **fields: Any) -> None:
        self.writer = StreamWriter(of or model(), timestamp=1)
        decoder = Decoder(of or model(), self.writer, **fields)
        splitter = FrameDecoder()
        self.events: list[AssistantEvent] = []
        self.failure: ProviderFailure | None = None
        try:
            for event in [*splitter.feed(b"".join(frames)), *splitter.finish()]:
                self.events += decoder.feed(event.data, event.event)
            self.events += decoder.finish()
        except ProviderFailure as failure:
            self.failure = failure
            self.events += self.writer.take()

    @property
    def message(self) -> AssistantMessage:
        """What came of it."""
        return self.writer.partial.snapshot() if self.failure is None else self.writer.fail(self.failure, False)

    @property
    def types(self) -> list[str]:
        """The events in short."""
        return [event.type for event in self.events]


def test_a_text() -> None:
    """A text has no beginning of its own: its first piece begins it."""
    run = Run(HELLO)
    assert run.types == ["text_start", "text_delta", "text_delta", "text_end", "done"]
    assert (run.message.content, run.message.stop_reason, run.message.raw_stop_reason) == ([TextContent(text="Hello")], "stop", "end_turn")


def test_thinking_and_calls() -> None:
    """05 sc. 79: each block in its place; the signature comes after its text; names come back as declared."""
    run = Run(
        [
            START, thought("h"), thought("m"), signature("S1"), signature("S2"), end(), text("I look.", 1), end(1),
            *called("my_read", '{"a": 1}', "a", 2), *called("read", "", "b", 3), stop("tool_use"), usage(),
        ],
        names={"my_read": "my.read"},
    )  # fmt: skip
    assert run.message.content == [
        ThinkingContent(thinking="hm", signature="S1S2"),
        TextContent(text="I look."),
        ToolCall(id="a", name="my.read", arguments={"a": 1}),
        ToolCall(id="b", name="read"),
    ]
    assert run.message.stop_reason == "tool_use"


def test_interleaved_blocks() -> None:
    """05 §2.2: blocks are told apart by their index."""
    run = Run([START, call("f", 1), text("a"), arguments('{"p"', 1), text("b"), arguments(":1}", 1), end(1), end(), stop("tool_use"), usage()])
    assert run.message.content == [ToolCall(id="tooluse_1", name="f", arguments={"p": 1}), TextContent(text="ab")]


def test_encrypted_thinking() -> None:
    """05 §4.5: kept as it came; pieces are joined as the bytes that they are."""
    assert Run([START, secret("YWJj"), end(), stop(), usage()]).message.content[0] == ThinkingContent(
        thinking="(reasoning that the provider keeps to itself)", signature="YWJj", redacted=True
    )  # fmt: skip
    assert Run([START, secret("YQ=="), secret("YmM="), end(), stop(), usage()]).message.content[0].signature == "YWJj"
    assert Run([START, secret("a"), secret("!"), stop(), usage()]).message.content[0].signature == "a!"


def test_thinking_that_is_only_a_signature() -> None:
    """Where the provider shows nothing of it, the signature still has to go back."""
    assert Run([START, signature("S"), end(), stop(), usage()]).message.content == [ThinkingContent(thinking="", signature="S")]


def test_thinking_and_text_of_one_index_are_two_blocks() -> None:
    """Some models do not count."""
    assert Run([START, thought("a"), text("b"), stop(), usage()]).message.content == [ThinkingContent(thinking="a"), TextContent(text="b")]


def test_blocks_without_an_index() -> None:
    """The last one is meant."""
    run = Run([START, text("a", None), text("b", None), frame("contentBlockStop", {}), stop(), usage()])
    assert run.message.content == [TextContent(text="ab")]
    run = Run([START, call("f", None), arguments("{}", None), stop("tool_use"), usage()])
    assert run.message.content == [ToolCall(id="tooluse_1", name="f")]


def test_ids_that_are_missing_or_not_distinct_are_made() -> None:
    """05 decision 15: the results must find their calls."""
    run = Run([START, *called("f", "{}", "a", 0), *called("g", "{}", "a", 1), *called("h", "{}", "", 2), stop("tool_use"), usage()])
    ids = [block.id for block in run.message.tool_calls]
    assert (ids[0], len(set(ids)), all(ids)) == ("a", 3, True)
    assert ids == [block.id for block in Run([
        START, *called("f", "{}", "a", 0), *called("g", "{}", "a", 1), *called("h", "{}", "", 2), stop("tool_use"), usage(),
    ]).message.tool_calls]  # fmt: skip


def test_a_malformed_call_is_never_guessed() -> None:
    """05 decision 6, sc. 55: no arguments, and the reason."""
    (found,) = Run([START, call(), arguments('{"a":"hel'), end(), stop("tool_use"), usage()]).message.tool_calls
    assert (found.arguments, '{"a":"hel' in (found.arguments_error or "")) == ({}, True)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("tool_use", "stop"), ("max_tokens", "length"), ("model_context_window_exceeded", "length")],
)
def test_stop_reasons(reason: str, expected: str) -> None:
    """05 §1.4; a call that never came is no call."""
    assert Run([*HELLO[:4], stop(reason), usage()]).message.stop_reason == expected


@pytest.mark.parametrize(
    ("reason", "kind", "retryable"),
    [
        ("guardrail_intervened", "content_filter", False), ("content_filtered", "content_filter", False),
        ("malformed_model_output", "server", True), ("malformed_tool_use", "server", True), ("whatever", "unknown", False),
    ],
)  # fmt: skip
def test_stop_reasons_that_are_no_answer(reason: str, kind: str, retryable: bool) -> None:
    """05 §1.4, decision 16: an error that names the word; what had arrived, and the usage, are kept."""
    message = Run([*HELLO[:4], stop(reason), usage()]).message
    assert message.error is not None
    assert (message.stop_reason, message.error.kind, is_retryable(message)) == ("error", kind, retryable)
    assert reason in (message.error_message or "")
    assert (message.text, message.usage.input, message.raw_stop_reason) == ("Hello", 10, reason)


EXCEPTIONS = [
    (exception("throttlingException", "Too many tokens, please wait before trying again."), "Throttling error: Too many", "rate_limit", True),
    (exception("serviceUnavailableException"), "Service unavailable: Sorry.", "overloaded", True),
    (exception("internalServerException"), "Internal server error: Sorry.", "server", True),
    (exception("validationException", "Bad field"), "Validation error: Bad field", "invalid_request", False),
    (exception("validationException", "Input is too long for requested model."), "Validation error: Input is too long", "overflow", False),
    (exception("modelStreamErrorException", originalStatusCode=500), "Model stream error: Sorry.", "server", True),
    (exception("modelTimeoutException"), "modelTimeoutException: Sorry.", "timeout", True),
    (exception("newException", ""), "newException: ", "unknown", False),
    (frame("throttlingException", b"", kind="exception"), "Throttling error: the service gave no details", "rate_limit", True),
    (error("InternalServerException", "Oops"), "Internal server error: Oops", "server", True),
]


@pytest.mark.parametrize(("broken", "text", "kind", "retryable"), EXCEPTIONS, ids=[str(n) for n in range(len(EXCEPTIONS))])
def test_exceptions_in_the_stream(broken: bytes, text: str, kind: str, retryable: bool) -> None:
    """05 §4.5, §6.5, sc. 131: their texts begin as classifiers expect; throttling is no overflow; no block ends that did not."""
    run = Run([*HELLO[:2], broken, text_after()])
    message = run.message
    assert message.error is not None
    assert text in (message.error_message or "")
    assert (message.error.kind, is_retryable(message), message.text) == (kind, retryable, "Hel")
    assert run.types == ["text_start", "text_delta"]


def text_after() -> bytes:
    """What comes after an exception is no part of the response."""
    return text("never")


def test_a_broken_frame_keeps_what_came_before_it() -> None:
    """A checksum that does not match: an error, worth another try."""
    broken = bytearray(text("lo"))
    broken[-6] ^= 1
    message = Run([*HELLO[:2], bytes(broken), *HELLO[3:]]).message
    assert message.error is not None
    assert (message.error.kind, is_retryable(message), message.text) == ("protocol", True, "Hel")
    cut = Run([*HELLO[:2], text("lo")[:-1]]).message
    assert cut.error is not None
    assert (cut.error.kind, cut.text) == ("incomplete", "Hel")


def test_a_stream_without_its_end_is_incomplete() -> None:
    """05 §1.4, sc. 80: the text says `ended without`."""
    run = Run(HELLO[:4])
    assert run.failure is not None
    assert (run.failure.info.kind, "ended without" in str(run.failure)) == ("incomplete", True)


def test_a_stream_without_usage_says_so() -> None:
    """The answer is whole, and what it cost is not known."""
    run = Run(HELLO[:5])
    assert (run.message.text, run.message.stop_reason) == ("Hello", "stop")
    assert run.message.diagnostics == ["the provider did not tell the usage"]


COST = ModelCost(input=3, output=15, cache_read=0.3, cache_write=3.75, tiers=(CostTier(input_tokens_above=200_000, input=6, output=22.5),))


def test_usage_and_cost() -> None:
    """05 §1.3: input is without what was read from the cache or written to it; an hour's writes cost twice the input."""
    cached = {"cacheReadInputTokens": 1000, "cacheWriteInputTokens": 500, "cacheDetails": [{"ttl": "1h", "inputTokens": 200}]}
    found = Run([*HELLO[:5], usage(100, 10, totalTokens=1610, **cached)], of=model(cost=COST)).message.usage
    assert (found.input, found.output, found.cache_read, found.cache_write, found.cache_write_1h) == (100, 10, 1000, 500, 200)
    assert found.total_tokens == 1610
    assert found.cost.total == pytest.approx((300 + 150 + 300 + 300 * 3.75 + 200 * 6) / 1e6)
    plain = Run([*HELLO[:5], usage(100, 10)]).message.usage
    assert (plain.cache_write_1h, plain.total_tokens) == (None, 110)


@pytest.mark.parametrize(("tier", "factor"), [("flex", 0.5), ("priority", 1.75), ("default", 1.0), ("other", 1.0)])
def test_the_service_tier_changes_the_price(tier: str, factor: float) -> None:
    """The tier that the response names counts."""
    found = Run([*HELLO[:5], usage(100, 10, fields={"serviceTier": {"type": tier}})], of=model(cost=COST)).message.usage
    assert found.cost.total == pytest.approx(450e-6 * factor)


def test_a_router_says_which_model_answered() -> None:
    """A prompt router picks one."""
    trace = {"trace": {"promptRouter": {"invokedModelId": "arn:aws:bedrock:us-east-1::foundation-model/x"}}}
    assert Run([*HELLO[:5], usage(fields=trace)]).message.response_model == "arn:aws:bedrock:us-east-1::foundation-model/x"


def test_what_is_not_known_is_passed_over() -> None:
    """05 decision 16: new events, blocks and pieces; the service's own tools; each is noted once."""
    run = Run(
        [
            START, frame("somethingNew", {"a": 1}), text("a"), delta({"citation": {"title": "t"}}), delta({"citation": {}}), delta({}), end(),
            frame("contentBlockStart", {"contentBlockIndex": 1, "start": {"image": {"format": "png"}}}), delta({"image": {"x": 1}}, 1), end(1),
            call("nova_grounding", 2, type="server_tool_use"), arguments("{}", 2), end(2), arguments("{}", 7), text("b", 8), stop(), usage(),
        ]
    )  # fmt: skip
    assert run.message.content == [TextContent(text="a"), TextContent(text="b")]
    assert run.message.diagnostics == [
        "a delta citation was ignored", "a block image was ignored", "a block toolUse of the service was ignored",
        "a piece of a call that never began was ignored",
    ]  # fmt: skip


def test_half_characters_are_joined() -> None:
    """05 sc. 145: a pair that the service cut in two; a half that waited in vain."""
    halves = [json.dumps({"contentBlockIndex": 0, "delta": {"text": half}}).encode() for half in ("a\ud83d", "\ude00b", "\ud83d")]
    run = Run([START, *(frame("contentBlockDelta", half) for half in halves), end(), stop(), usage()])
    assert run.message.text == "a😀b�"


def test_an_answer_in_one_piece() -> None:
    """What the operation without a stream would have said; an error with status 200."""
    content = [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "S"}}}, {"reasoningContent": {"redactedContent": "YQ=="}},
        {"text": "I look."}, {"toolUse": {"toolUseId": "a", "name": "f", "input": {"x": 1}}},
    ]  # fmt: skip
    counts = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}
    whole = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use", "usage": counts, "metrics": {}}
    writer = StreamWriter(model())
    decoder = Decoder(model(), writer)
    decoder.feed(json.dumps(whole).encode())
    decoder.finish()
    message = writer.partial.snapshot()
    assert [block.type for block in message.content] == ["thinking", "thinking", "text", "tool_call"]
    assert (message.content[1].signature, message.tool_calls[0].arguments, message.usage.total_tokens) == ("YQ==", {"x": 1}, 3)
    with pytest.raises(ProviderFailure, match="Nope"):
        Decoder(model(), StreamWriter(model())).feed(b'{"message":"Nope","__type":"ValidationException"}')


def test_a_megabyte_of_arguments_is_linear() -> None:
    """05 decision 5, sc. 53: in pieces of ten characters."""
    value = json.dumps({"content": "x" * 1_000_000})
    frames = [arguments(value[at : at + 10]) for at in range(0, len(value), 10)]
    (found,) = Run([START, call(), *frames, end(), stop("tool_use"), usage()]).message.tool_calls
    assert len(found.arguments["content"]) == 1_000_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5) | st.sampled_from(["YQ==", "tool_use", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["contentBlockIndex", "delta", "text", "toolUse", "input", "reasoningContent", "signature", "redactedContent", "start",
                         "toolUseId", "name", "stopReason", "usage", "inputTokens", "trace", "promptRouter", "output", "message", "content"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
NAMES = st.sampled_from(["messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata", "new", ""])


@given(events=st.lists(st.tuples(NAMES, JSON | st.binary(max_size=8)), max_size=8))
def test_any_events_end_in_a_message(events: list[tuple[str, Any]]) -> None:
    """05 §2.4: whatever is sent, nothing but a failure that says what it is comes out; blocks begin and end in order."""
    run = Run([frame(name, content) for name, content in events])
    open_blocks: set[int] = set()
    for event in run.events:
        if event.type.endswith("_start"):
            assert event.content_index not in open_blocks  # type: ignore[union-attr]  # a block's event
            open_blocks.add(event.content_index)  # type: ignore[union-attr]
        elif event.type.endswith(("_delta", "_end")):
            assert event.content_index in open_blocks  # type: ignore[union-attr]
    assert run.message.stop_reason in ("stop", "length", "tool_use", "error")
