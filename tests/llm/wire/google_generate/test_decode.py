"""What the Gemini wire makes of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.events import AssistantEvent
from laneway.llm._retry import is_retryable
from laneway.llm._sse import SseDecoder
from laneway.llm.base import Model, ModelCost, ProviderFailure
from laneway.llm.wire.google_generate.decode import BAD_REASONS, Decoder, UsageWriter
from laneway.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall
from llm.loopback import sse
from llm.wire.google_generate.protocol import COUNTS, HELLO, call, chunk, dumped, model, stop, text, thought

SIG, SIG2 = "c2lnMQ==", "c2lnMg=="


def events_of(*chunks: Any, of: Model | None = None, names: dict[str, str] | None = None) -> list[AssistantEvent]:
    """All events of a response."""
    of = of or model()
    decoder = Decoder(of, UsageWriter(of), names=names)
    events: list[AssistantEvent] = []
    for value in chunks:
        events += decoder.feed(dumped(value))
    return [*events, *decoder.finish()]


def settled(*chunks: Any, of: Model | None = None) -> AssistantMessage:
    """The final message, whatever becomes of it; nothing but ProviderFailure may be raised."""
    of = of or model()
    decoder = Decoder(of, UsageWriter(of))
    try:
        for value in chunks:
            decoder.feed(dumped(value))
        return decoder.finish()[-1].message  # type: ignore[union-attr]  # done
    except ProviderFailure as failure:
        return decoder.writer.fail(failure, False)


# ---------------------------------------------------------------------------------------------------- blocks


def test_a_plain_response() -> None:
    """Text chunks grow one block; an empty one at the end adds nothing."""
    events = events_of(*HELLO)
    assert [event.type for event in events] == ["text_start", "text_delta", "text_delta", "text_end", "done"]
    message = events[-1].message  # type: ignore[union-attr]  # done
    assert (message.content, message.stop_reason, message.raw_stop_reason) == ([TextContent(text="Hello")], "stop", "STOP")
    assert (message.response_id, message.response_model) == ("r1", None)


def test_thought_text_and_two_calls() -> None:
    """05 sc. 114: four blocks in order, each call start, one delta, end; the calls decide the stop reason."""
    events = events_of(chunk(thought("h")), chunk(thought("m")), chunk("I look."), chunk(call("a", {"x": "ü"}), call("b")), stop())
    assert [event.type for event in events] == [
        "thinking_start", "thinking_delta", "thinking_delta", "thinking_end", "text_start", "text_delta", "text_end",
        "toolcall_start", "toolcall_delta", "toolcall_end", "toolcall_start", "toolcall_delta", "toolcall_end", "done",
    ]  # fmt: skip
    message = events[-1].message  # type: ignore[union-attr]  # done
    assert message.stop_reason == "tool_use"
    assert [(c.name, c.arguments) for c in message.tool_calls] == [("a", {"x": "ü"}), ("b", {})]
    assert [event.delta for event in events if event.type == "toolcall_delta"] == ['{"x":"ü"}', "{}"]


def test_signatures_stay_with_their_parts() -> None:
    """B39: on the call that it came with; a signature ends a text, and one that comes alone belongs to the text before it."""
    message = settled(
        chunk(thought("hm")), chunk("a"), chunk(text("", thoughtSignature=SIG)), chunk("b"), chunk(call("f", signature=SIG2), call("g")), stop()
    )
    assert message.content[:3] == [ThinkingContent(thinking="hm"), TextContent(text="a", signature=SIG), TextContent(text="b")]
    assert [c.signature for c in message.tool_calls] == [SIG2, None]


def test_two_signatures_are_two_blocks() -> None:
    """They cannot be joined; the same one again is the same part going on."""
    message = settled(chunk(text("a", thoughtSignature=SIG)), chunk(text("b", thoughtSignature=SIG)), chunk(text("c", thoughtSignature=SIG2)), stop())
    assert message.content == [TextContent(text="ab", signature=SIG), TextContent(text="c", signature=SIG2)]


def test_a_signature_alone_is_kept() -> None:
    """05 sc. 117: an empty text, or no text at all, with a signature."""
    message = settled(chunk(thought("hm")), chunk(text(thoughtSignature=SIG)), stop())
    assert message.content == [ThinkingContent(thinking="hm"), TextContent(text="", signature=SIG)]
    assert settled(chunk(thought("hm"), thought("", thoughtSignature=SIG)), stop()).content == [ThinkingContent(thinking="hm", signature=SIG)]


def test_ids_that_are_missing_or_repeated_are_made() -> None:
    """05 sc. 115, §11.24: distinct, and the same whenever the same response is decoded; they do not depend on the time."""
    chunks = [chunk(call("f", call_id="x"), call("f", call_id="x"), call("f"), call("f", call_id="")), stop()]
    ids = [c.id for c in settled(*chunks).tool_calls]
    assert ids[0] == "x"
    assert len(set(ids)) == 4
    assert ids == [c.id for c in settled(*chunks).tool_calls]
    assert ids[2] != settled(chunk(call("f"), responseId="r2"), stop()).tool_calls[0].id


def test_a_tool_s_own_name_comes_back() -> None:
    """The name on the wire is mapped to the declared one."""
    events = events_of(chunk(call("my_read")), stop(), names={"my_read": "my.read"})
    assert events[-1].message.tool_calls[0].name == "my.read"  # type: ignore[union-attr]  # done


def test_a_call_without_arguments_or_with_huge_numbers() -> None:
    """Missing arguments are none; a number of any size survives."""
    message = settled(chunk({"functionCall": {"name": "f"}}, call("g", {"n": 2**70})), stop())
    assert [c.arguments for c in message.tool_calls] == [{}, {"n": 2**70}]


# ---------------------------------------------------------------------------------------------------- ends


@pytest.mark.parametrize(("reason", "expected"), [("STOP", "tool_use"), ("MAX_TOKENS", "length"), ("CONTINUATION", "length")])
def test_why_a_response_ends(reason: str, expected: str) -> None:
    """05 §1.4: a length stays a length although calls came."""
    assert settled(chunk(call("f")), stop(reason)).stop_reason == expected


@pytest.mark.parametrize("reason", [*BAD_REASONS, "OTHER", "LANGUAGE", "SOMETHING_NEW"])
def test_any_other_reason_is_an_error_that_names_it(reason: str) -> None:
    """05 sc. 118, decision 16: what had arrived is kept, and the server's sentence is shown."""
    last = stop(reason)
    last["candidates"][0]["finishMessage"] = "because"
    message = settled(chunk("Hel"), last)
    assert message.error is not None
    assert (message.stop_reason, message.raw_stop_reason, message.text) == ("error", reason, "Hel")
    assert message.error.kind == BAD_REASONS.get(reason, "unknown")
    assert all(part in (message.error_message or "") for part in (reason, "because"))


def test_a_prompt_that_is_refused() -> None:
    """No candidate at all: the reason stands in the feedback."""
    message = settled({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "no"}, "usageMetadata": COUNTS})
    assert message.error is not None
    assert (message.error.kind, message.raw_stop_reason, message.usage.input) == ("content_filter", "PROHIBITED_CONTENT", 80)
    assert "PROHIBITED_CONTENT" in (message.error_message or "")


@pytest.mark.parametrize("chunks", [[], [chunk("Hel")], [chunk(call("f", {"a": 1}))], [{"usageMetadata": COUNTS}]])
def test_an_end_without_a_reason_is_no_end(chunks: list[Any]) -> None:
    """B47: an error that is worth a retry; the usage so far is kept."""
    message = settled(*chunks)
    assert message.error is not None
    assert (message.stop_reason, message.error.kind, is_retryable(message)) == ("error", "incomplete", True)
    assert message.usage.total_tokens == (0 if not chunks else 15 if "candidates" in chunks[0] else 112)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}, "overloaded"),
        ([{"error": {"code": 429, "message": "Resource exhausted", "status": "RESOURCE_EXHAUSTED"}}], "rate_limit"),
        ({"error": {"code": 400, "message": "Bad.", "status": "INVALID_ARGUMENT"}}, "invalid_request"),
        ({"error": {"code": 400, "message": "The input token count (9) exceeds the maximum number of tokens allowed (5)."}}, "overflow"),
        ({"error": {"code": 401, "message": "No.", "status": "UNAUTHENTICATED"}}, "auth"),
        ({"code": 500, "message": "Internal error", "status": "INTERNAL"}, "server"),
        (b"oops", "protocol"),
    ],
)  # fmt: skip
def test_errors_inside_a_stream(event: Any, kind: str) -> None:
    """B48: the provider's own code decides, at once or in the middle."""
    for before in ([], HELLO[:1]):
        message = settled(*before, event)
        assert message.error is not None
        assert (message.error.kind, message.text) == (kind, "Hel" if before else "")


# ---------------------------------------------------------------------------------------------------- usage


def test_usage_and_cost() -> None:
    """05 sc. 22: the cached part is not counted twice, thoughts are output, the total is the provider's; the last report counts."""
    of = model(cost=ModelCost(input=1.0, output=10.0, cache_read=0.1))
    usage = settled(chunk("x"), stop(usage=COUNTS), of=of).usage
    assert (usage.input, usage.output, usage.cache_read, usage.reasoning, usage.total_tokens) == (80, 12, 20, 7, 112)
    assert usage.cost.total == pytest.approx((80 + 120 + 2) / 1e6)
    usage = settled(stop(usage={"promptTokenCount": 5, "toolUsePromptTokenCount": 3, "candidatesTokenCount": 2})).usage
    assert (usage.input, usage.output, usage.reasoning, usage.total_tokens) == (8, 2, None, 10)


def test_the_usage_is_there_from_the_start() -> None:
    """A consumer sees what the prompt took while the response streams; later reports are priced at the end only."""
    events = events_of(*HELLO)
    assert events[0].partial.usage.input == 10  # type: ignore[union-attr]  # text_start


def test_who_answered() -> None:
    """The first id; another model's name than the one that was asked for."""
    message = settled(chunk("a", responseId="", modelVersion="m2"), chunk("b", responseId="r9"), chunk("c", responseId="r10"), stop())
    assert (message.response_id, message.response_model) == ("r9", "m2")


# ---------------------------------------------------------------------------------------------------- odd streams


def test_other_parts_are_ignored_with_a_note() -> None:
    """Decision 16: once, however many come."""
    part = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    message = settled(chunk("a", part, part), chunk({"executableCode": {"code": "1"}}), chunk("b"), stop())
    assert (message.text, len(message.diagnostics or ())) == ("ab", 1)


def test_a_character_that_was_cut_in_two() -> None:
    """05 sc. 145: two halves in two chunks are one character; a half alone is U+FFFD."""

    def half(escape: str) -> bytes:
        return dumped(chunk("@")).replace(b'"@"', b'"' + escape.encode() + b'"')

    assert settled(half("a\\ud83d"), half("\\ude00b"), chunk("c"), stop()).text == "a😀bc"
    assert settled(half("a\\ud83d"), stop()).text == "a\ufffd"
    assert settled(half("a\\ud83d"), chunk(call("f")), stop()).text == "a\ufffd"


@pytest.mark.parametrize(
    "odd",
    [
        {"candidates": None, "usageMetadata": {}}, {"candidates": [{}]}, {"candidates": [{"content": {}}]}, {"candidates": [{"content": None}]},
        {"candidates": "x"}, {"candidates": [1]}, {"candidates": [{"content": {"parts": [1, {"text": 5}, {"functionCall": 1}]}}]},
        {"usageMetadata": {"promptTokenCount": "x", "totalTokenCount": -1}}, 5, [], [1], None, "text", {},
        {"candidates": [{"index": "0", "content": {"parts": [{"text": "", "thought": "yes"}]}}]},
    ],
)  # fmt: skip
def test_odd_chunks_do_not_stop_a_response(odd: Any) -> None:
    """What cannot be understood is passed over."""
    assert settled(chunk("Hel"), odd, chunk("lo"), stop()).text == "Hello"


def test_arguments_that_came_as_text_are_read() -> None:
    """Some gateways send them so."""
    message = settled(chunk(call("f", '{"a": 1}'), call("g", "oops"), call("h", [1])), stop())
    assert [c.arguments for c in message.tool_calls] == [{"a": 1}, {}, {}]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A chunk in which something was replaced."""
    chunk_ = json.loads(
        json.dumps(draw(st.sampled_from([*HELLO, chunk(call("f", {"a": 1}, call_id="x")), chunk(thought("x", thoughtSignature=SIG))])))
    )
    node: Any = chunk_
    while isinstance(node, (dict, list)) and node:
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if draw(st.booleans()) or not isinstance(node[key], (dict, list)):
            node[key] = draw(values)
            break
        node = node[key]
    return json.dumps(chunk_).encode()


@given(st.lists(mutated() | st.binary(max_size=30), max_size=6))
def test_no_stream_raises(events: list[bytes]) -> None:
    """Fuzz: whatever comes, the response settles; blocks are closed or cut, never broken."""
    message = settled(chunk("Hel"), *events, stop())
    assert message.stop_reason in ("stop", "tool_use", "length", "error")
    assert all(isinstance(block, (TextContent, ThinkingContent, ToolCall)) for block in message.content)


@given(st.lists(st.integers(1, 400), max_size=12))
def test_the_cuts_of_the_bytes_do_not_matter(cuts: list[int]) -> None:
    """Fuzz: the same response however its bytes arrive."""
    raw = sse(chunk(thought("hm", thoughtSignature=SIG)), chunk("Hällo 😀"), chunk(call("f", {"a": "ü"}, call_id="x")), stop())
    splitter, decoder = SseDecoder(), Decoder(model(), UsageWriter(model(), thinking_level=None))
    at = 0
    for size in [*cuts, len(raw)]:
        for event in splitter.feed(raw[at : at + size]):
            decoder.feed(event.data, event.event)
        at += size
    for event in splitter.finish():
        decoder.feed(event.data, event.event)
    message = decoder.finish()[-1].message  # type: ignore[union-attr]  # done
    assert message.content == [
        ThinkingContent(thinking="hm", signature=SIG), TextContent(text="Hällo 😀"), ToolCall(id="x", name="f", arguments={"a": "ü"}),
    ]  # fmt: skip
