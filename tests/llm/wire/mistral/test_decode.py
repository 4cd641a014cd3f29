"""What Mistral's wire makes of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.events import AssistantEvent
from laneway.llm._retry import is_retryable
from laneway.llm._sse import SseDecoder
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ModelCost, ProviderFailure
from laneway.llm.wire.mistral.decode import BAD_REASONS, Decoder
from laneway.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall
from llm.loopback import sse
from llm.wire.mistral.protocol import DONE, HELLO, call, calls, chunk, dumped, model, stop, text, thought


def events_of(*chunks: Any, names: dict[str, str] | None = None) -> list[AssistantEvent]:
    """All events of a response."""
    decoder = Decoder(model(), StreamWriter(model()), names=names)
    events: list[AssistantEvent] = []
    for value in chunks:
        events += decoder.feed(dumped(value))
    return [*events, *decoder.finish()]


def settled(*chunks: Any, of: Model | None = None) -> AssistantMessage:
    """The final message, whatever becomes of it; nothing but ProviderFailure may be raised."""
    of = of or model()
    decoder = Decoder(of, StreamWriter(of))
    try:
        for value in chunks:
            decoder.feed(dumped(value))
        return decoder.finish()[-1].message  # type: ignore[union-attr]  # done
    except ProviderFailure as failure:
        return decoder.writer.fail(failure, False)


def test_a_plain_response() -> None:
    """Text chunks grow one block; nothing is read after the end."""
    events = events_of(*HELLO, chunk("more"))
    assert [event.type for event in events] == ["text_start", "text_delta", "text_delta", "text_end", "done"]
    message = events[-1].message  # type: ignore[union-attr]  # done
    assert (message.content, message.stop_reason, message.raw_stop_reason) == ([TextContent(text="Hello")], "stop", "stop")
    assert (message.response_id, message.response_model) == ("cmpl-1", None)


def test_thinking_comes_in_parts_and_text_in_either_form() -> None:
    """05 §4.6: thinking, then text as parts or as plain text, then calls; each kind ends the block before it."""
    events = events_of(chunk([thought("h")]), chunk([thought("m", "!")]), chunk([text("I ")]), chunk("look."), calls(call()), stop("tool_calls"))
    assert [event.type for event in events] == [
        "thinking_start", "thinking_delta", "thinking_delta", "thinking_end", "text_start", "text_delta", "text_delta", "text_end",
        "toolcall_start", "toolcall_delta", "toolcall_end", "done",
    ]  # fmt: skip
    message = events[-1].message  # type: ignore[union-attr]  # done
    assert message.content[:2] == [ThinkingContent(thinking="hm!"), TextContent(text="I look.")]
    assert message.stop_reason == "tool_use"


def test_a_signature_stays_with_its_thinking() -> None:
    """With text, or alone."""
    message = settled(chunk([thought("h", signature="S1")]), chunk([text("a"), thought(signature="S2")]), stop())
    assert message.content == [ThinkingContent(thinking="h", signature="S1"), TextContent(text="a"), ThinkingContent(thinking="", signature="S2")]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([calls(call("a", '{"x"', call_id="aaaaaaaaa")), calls(call(None, ":1}", call_id=None))], [("aaaaaaaaa", "a", {"x": 1})]),
        ([calls(call("a", '{"x"', call_id="aaaaaaaaa")), calls(call("", ":1}", call_id="null"))], [("aaaaaaaaa", "a", {"x": 1})]),
        ([calls(call("a", '{"x"', call_id="aaaaaaaaa")), calls(call("a", ":1}", call_id="aaaaaaaaa"))], [("aaaaaaaaa", "a", {"x": 1})]),
        ([calls(call("a", call_id="aaaaaaaaa"), call("b", call_id="bbbbbbbbb", index=1))], [("aaaaaaaaa", "a", {}), ("bbbbbbbbb", "b", {})]),
        ([calls(call("a", call_id="aaaaaaaaa")), calls(call("b", call_id="bbbbbbbbb"))], [("aaaaaaaaa", "a", {}), ("bbbbbbbbb", "b", {})]),
        ([calls(call("a", '{"x":1}', call_id="null"), call("a", '{"x":2}', call_id="null"))], [(None, "a", {"x": 1}), (None, "a", {"x": 2})]),
        ([calls(call("a", index=None, call_id=None)), calls(call("b", index=None, call_id=None))], [(None, "a", {}), (None, "b", {})]),
        ([calls(call("a", {"x": 1}, call_id="aaaaaaaaa"))], [("aaaaaaaaa", "a", {"x": 1})]),
        ([calls(call(None, call_id="aaaaaaaaa")), calls(call("a", "", call_id=None))], [("aaaaaaaaa", "a", {})]),
        ([calls(call("a", '{"x":1', call_id="aaaaaaaaa"), call("b", '{"y":', call_id="bbbbbbbbb", index=1)),
          calls(call(None, "}", call_id=None), call(None, "2}", call_id=None, index=1))],
         [("aaaaaaaaa", "a", {"x": 1}), ("bbbbbbbbb", "b", {"y": 2})]),
    ],
)  # fmt: skip
def test_calls_are_put_together(chunks: list[Any], expected: list[Any]) -> None:
    """05 §4.6, B46: by index; the id "null" is none; another id at a used index is another call; generated ids have nine characters."""
    found = settled(*chunks, stop("tool_calls")).tool_calls
    assert [(c.name, c.arguments) for c in found] == [entry[1:] for entry in expected]
    assert all(c.id == given if given else len(c.id) == 9 and c.id.isalnum() for c, (given, *_) in zip(found, expected, strict=True))
    assert len({c.id for c in found}) == len(found)
    assert [c.id for c in found] == [c.id for c in settled(*chunks, stop()).tool_calls]


def test_two_calls_under_one_id_get_ids_of_their_own() -> None:
    """At two indexes: the second one is given another."""
    found = settled(calls(call("a", call_id="aaaaaaaaa"), call("b", call_id="aaaaaaaaa", index=1)), stop()).tool_calls
    assert [c.name for c in found] == ["a", "b"]
    assert found[0].id == "aaaaaaaaa" != found[1].id


def test_arguments_that_are_cut_are_never_guessed() -> None:
    """Decision 6: the call says what is wrong."""
    (found,) = settled(calls(call("a", '{"x": 1')), stop("tool_calls")).tool_calls
    assert (found.arguments, bool(found.arguments_error)) == ({}, True)


def test_a_tool_s_own_name_comes_back() -> None:
    """The name on the wire is mapped to the declared one."""
    assert events_of(calls(call("my_read")), stop(), names={"my_read": "my.read"})[-1].message.tool_calls[0].name == "my.read"  # type: ignore[union-attr]


@pytest.mark.parametrize(("reason", "expected"), [("stop", "tool_use"), ("tool_calls", "tool_use"), ("length", "length"), ("model_length", "length")])
def test_why_a_response_ends(reason: str, expected: str) -> None:
    """05 §1.4: the calls that arrived count; a length stays a length."""
    assert settled(calls(call()), stop(reason)).stop_reason == expected
    assert settled(chunk("a"), stop("tool_calls")).stop_reason == "stop"


@pytest.mark.parametrize("reason", [*BAD_REASONS, "something_new"])
def test_any_other_reason_is_an_error_that_names_it(reason: str) -> None:
    """Decision 16: what had arrived is kept."""
    message = settled(chunk("Hel"), stop(reason))
    assert message.error is not None
    assert (message.stop_reason, message.raw_stop_reason, message.text) == ("error", reason, "Hel")
    assert message.error.kind == BAD_REASONS.get(reason, "unknown")
    assert reason in (message.error_message or "")


@pytest.mark.parametrize("chunks", [[], [chunk("Hel")], [calls(call("f", '{"a":1}'))], [chunk("Hel"), DONE]])
def test_an_end_without_a_reason_is_no_end(chunks: list[Any]) -> None:
    """B47: an error that is worth a retry."""
    message = settled(*chunks)
    assert message.error is not None
    assert (message.stop_reason, message.error.kind, is_retryable(message)) == ("error", "incomplete", True)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"object": "error", "message": "Service tier capacity exceeded", "type": "service_tier_capacity_exceeded", "code": "3505"}, "overloaded"),
        ({"object": "error", "message": "Rate limit exceeded", "type": "rate_limited", "code": "1300"}, "rate_limit"),
        ({"error": {"message": "Internal server error", "code": 500}}, "server"),
        ({"detail": [{"msg": "bad", "type": "value_error"}]}, "unknown"),
        ({"message": "Unauthorized", "code": "401"}, "auth"),
        (b"oops", "protocol"),
    ],
)
def test_errors_inside_a_stream(event: Any, kind: str) -> None:
    """B48: at once or in the middle."""
    for before in ([], HELLO[:2]):
        message = settled(*before, event)
        assert message.error is not None
        assert (message.error.kind, message.text) == (kind, "Hel" if before else "")


def test_usage_and_cost() -> None:
    """05 §1.3: the cached part is not counted twice; the total is the provider's, else the sum."""
    of = model(cost=ModelCost(input=1.0, output=10.0, cache_read=0.1))
    usage = settled(
        chunk("x"), stop(prompt_tokens=100, completion_tokens=12, total_tokens=112, prompt_tokens_details={"cached_tokens": 20}), of=of
    ).usage
    assert (usage.input, usage.output, usage.cache_read, usage.total_tokens) == (80, 12, 20, 112)
    assert usage.cost.total == pytest.approx((80 + 120 + 2) / 1e6)
    usage = settled(stop(num_cached_tokens=4, total_tokens=None)).usage
    assert (usage.input, usage.cache_read, usage.total_tokens) == (6, 4, 15)


def test_who_answered() -> None:
    """Another model's name than the one that was asked for."""
    assert settled(*HELLO, of=model("m-latest")).response_model == "m"


def test_other_parts_are_ignored_with_a_note() -> None:
    """Decision 16: once, however many come."""
    message = settled(chunk([text("a"), {"type": "reference", "reference_ids": [1]}, {"type": "new"}]), chunk("b"), stop())
    assert (message.text, len(message.diagnostics or ())) == ("ab", 1)


def test_a_character_that_was_cut_in_two() -> None:
    """05 sc. 145: in text and in arguments; a half alone is U+FFFD."""

    def half(value: Any, escape: str) -> bytes:
        return dumped(value).replace(b"@", escape.encode())

    assert settled(half(chunk("@"), "a\\ud83d"), half(chunk("@"), "\\ude00b"), chunk("c"), stop()).text == "a😀bc"
    assert settled(half(chunk("@"), "a\\ud83d"), calls(call()), stop()).text == "a\ufffd"
    pieces = [half(calls(call("f", '{"x":"@')), "\\ud83d"), half(calls(call(None, '@"}', call_id=None)), "\\ude00")]
    assert settled(*pieces, stop()).tool_calls[0].arguments == {"x": "😀"}


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": None, "usage": {}}, {"choices": [{}]}, {"choices": [{"delta": None}]}, {"choices": "x"}, {"choices": [1]}, {"choices": []},
        {"choices": [{"delta": {"content": 5, "tool_calls": "x"}}]}, {"choices": [{"delta": {"content": [1, "x"]}}]},
        {"usage": {"prompt_tokens": "x", "prompt_tokens_details": 5}}, 5, [], [1], None, "text", {},
    ],
)  # fmt: skip
def test_odd_chunks_do_not_stop_a_response(odd: Any) -> None:
    """What cannot be understood is passed over."""
    assert settled(chunk("Hel"), odd, chunk("lo"), stop()).text == "Hello"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
WHOLE = [*HELLO[:4], calls(call("f", '{"a":1}')), chunk([thought("x", signature="S")]), calls(call("g", {"b": 2}, index=1, call_id="null"))]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A chunk in which something was replaced."""
    changed = json.loads(json.dumps(draw(st.sampled_from(WHOLE))))
    node: Any = changed
    while isinstance(node, (dict, list)) and node:
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if draw(st.booleans()) or not isinstance(node[key], (dict, list)):
            node[key] = draw(values)
            break
        node = node[key]
    return json.dumps(changed).encode()


@given(st.lists(mutated() | st.binary(max_size=30), max_size=6))
def test_no_stream_raises(events: list[bytes]) -> None:
    """Fuzz: whatever comes, the response settles; ids stay distinct."""
    message = settled(chunk("Hel"), *events, stop())
    assert message.stop_reason in ("stop", "tool_use", "length", "error")
    assert len({c.id for c in message.tool_calls}) == len(message.tool_calls)


@given(st.lists(st.integers(1, 300), max_size=12))
def test_the_cuts_of_the_bytes_do_not_matter(cuts: list[int]) -> None:
    """Fuzz: the same response however its bytes arrive."""
    raw = sse(chunk([thought("hm")]), chunk("Hällo 😀"), calls(call("f", '{"a": "ü"}', call_id="xxxxxxxxx")), stop("tool_calls"), DONE)
    splitter, decoder = SseDecoder(), Decoder(model(), StreamWriter(model()))
    at = 0
    for size in [*cuts, len(raw)]:
        for event in splitter.feed(raw[at : at + size]):
            decoder.feed(event.data, event.event)
        at += size
    message = decoder.finish()[-1].message  # type: ignore[union-attr]  # done
    assert message.content == [
        ThinkingContent(thinking="hm"), TextContent(text="Hällo 😀"), ToolCall(id="xxxxxxxxx", name="f", arguments={"a": "ü"}),
    ]  # fmt: skip
