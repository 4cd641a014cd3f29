"""Events of a streamed message → assistant events."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.events import AssistantEvent, StreamDone, TextDelta, TextEnd, ThinkingEnd, ToolCallDelta
from laneway.llm._sse import SseDecoder
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ModelCost, ProviderFailure
from laneway.llm.wire.anthropic_messages import AnthropicCompat, Decoder
from laneway.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall
from llm.wire.anthropic_messages.protocol import (
    HELLO,
    PING,
    STOP,
    arguments,
    block,
    called,
    dumped,
    end,
    model,
    reason,
    said,
    signature,
    start,
    text,
    thought,
    wire,
)


def run(*events: Any, of: Model | None = None, compat: AnthropicCompat | None = None, names: dict[str, str] | None = None) -> list[AssistantEvent]:
    """Decode a whole response."""
    of = of or model()
    decoder = Decoder(of, compat or AnthropicCompat(), StreamWriter(of, timestamp=1), names=names)
    found: list[AssistantEvent] = []
    for event in events:
        found += decoder.feed(dumped(event))
    return found + decoder.finish()


def message(*events: Any, **options: Any) -> AssistantMessage:
    """The final message of a response that ended well."""
    last = run(*events, **options)[-1]
    assert isinstance(last, StreamDone)
    return last.message


def failed(*events: Any, **options: Any) -> tuple[ProviderFailure, AssistantMessage]:
    """The failure of a response that did not, and the message that is left of it."""
    of = options.get("of") or model()
    writer = StreamWriter(of)
    decoder = Decoder(of, options.get("compat") or AnthropicCompat(), writer)
    failure: ProviderFailure | None = None
    try:
        for event in events:
            decoder.feed(dumped(event))
        decoder.finish()
    except ProviderFailure as raised:
        failure = raised
    assert failure is not None
    return failure, writer.fail(failure, False)


# ---------------------------------------------------------------------------------------------------- blocks


def test_text_comes_as_one_block() -> None:
    """05 sc. 79: start, deltas, end, done; pings are nothing; the id of the response is kept."""
    events = run(*HELLO)
    assert [event.type for event in events] == ["text_start", "text_delta", "text_delta", "text_end", "done"]
    assert isinstance(events[-2], TextEnd)
    assert events[-2].content == "Hello"
    final = message(*HELLO)
    assert (final.text, final.response_id, final.stop_reason, final.raw_stop_reason, final.response_model) == (
        "Hello",
        "msg_1",
        "stop",
        "end_turn",
        None,
    )


def test_thinking_keeps_its_signature_and_its_place() -> None:
    """The signature arrives silently, in pieces, and is kept byte for byte."""
    events = [start(), block(0, "thinking"), thought("hm"), thought(" so"), signature("S1+/"), signature("=="), end()]
    events += [block(1, "text"), text("yes", 1), end(1), reason(), STOP]
    assert message(*events).content == [ThinkingContent(thinking="hm so", signature="S1+/=="), TextContent(text="yes")]
    assert [event.type for event in run(*events)][:4] == ["thinking_start", "thinking_delta", "thinking_delta", "thinking_end"]


def test_thinking_that_is_not_shown_is_still_signed() -> None:
    """B38: an empty text with a signature is a block like any other; so is a redacted one."""
    events = [
        start(),
        block(0, "thinking"),
        signature("S1"),
        end(),
        block(1, "redacted_thinking"),
        end(1),
        *called(index=2),
        reason("tool_use"),
        STOP,
    ]
    first, second, third = message(*events).content
    assert first == ThinkingContent(thinking="", signature="S1")
    assert isinstance(second, ThinkingContent)
    assert (second.redacted, second.signature, bool(second.thinking)) == (True, "R1", True)
    assert isinstance(third, ToolCall)
    ended = [event for event in run(*events) if isinstance(event, ThinkingEnd)]
    assert ended[1].content == second.thinking


def test_calls_are_put_together_from_their_pieces() -> None:
    """05 sc. 79: the JSON arrives in pieces, parsed strictly at the end."""
    events = [start(), block(0, "text"), text("I look."), end(), block(1, "tool_use"), arguments("", 1), arguments('{"path": "a', 1)]
    events += [arguments('.txt"}', 1), end(1), *called("write", '{"x":1}', "toolu_2", 2), reason("tool_use"), STOP]
    final = message(*events)
    assert final.tool_calls == [
        ToolCall(id="toolu_1", name="read", arguments={"path": "a.txt"}),
        ToolCall(id="toolu_2", name="write", arguments={"x": 1}),
    ]
    assert final.stop_reason == "tool_use"
    assert "".join(event.delta for event in run(*events) if isinstance(event, ToolCallDelta) and event.content_index == 1) == '{"path": "a.txt"}'


def test_interleaved_blocks_do_not_mix() -> None:
    """Deltas go by index; each block ends when the server says so."""
    events = [
        start(),
        block(0, "text"),
        block(1, "tool_use"),
        text("a"),
        arguments('{"p":', 1),
        text("b"),
        arguments("1}", 1),
        end(1),
        text("c"),
        end(),
    ]
    found = run(*events, reason("tool_use"), STOP)
    assert [event.type for event in found][-4:] == ["toolcall_end", "text_delta", "text_end", "done"]
    assert message(*events, reason("tool_use"), STOP).content == [TextContent(text="abc"), ToolCall(id="toolu_1", name="read", arguments={"p": 1})]


@pytest.mark.parametrize("raw", ["", "  ", "null"])
def test_no_arguments_are_an_empty_object(raw: str) -> None:
    """B20: a tool without parameters gets no delta at all, or an empty one."""
    assert message(start(), *called(raw=raw), reason("tool_use"), STOP).tool_calls == [ToolCall(id="toolu_1", name="read")]


def test_arguments_that_came_whole_are_taken() -> None:
    """Some servers send the input with the start of the block; pieces that follow win."""
    whole = block(0, "tool_use", input={"path": "ü"})
    assert message(start(), whole, end(), reason("tool_use"), STOP).tool_calls[0].arguments == {"path": "ü"}
    assert message(start(), whole, arguments('{"path":"b"}'), end(), reason("tool_use"), STOP).tool_calls[0].arguments == {"path": "b"}


@pytest.mark.parametrize("word", ["tool_use", "end_turn", "max_tokens"])
def test_cut_arguments_are_an_error_of_the_call(word: str) -> None:
    """B18, decision 6: never guessed; the text received is in the error."""
    found = message(start(), *called(raw='{"path":"f","content":"abc'), reason(word), STOP).tool_calls[0]
    assert found.arguments == {}
    assert '{"path":"f","content":"abc' in (found.arguments_error or "")


def test_blocks_that_never_end_are_ended_with_the_response() -> None:
    """A server that forgets the end of a block."""
    final = message(start(), block(0, "text"), text("x"), block(1, "tool_use"), arguments("{}", 1), reason("tool_use"), STOP)
    assert final.content == [TextContent(text="x"), ToolCall(id="toolu_1", name="read")]


def test_calls_without_or_with_the_same_id_get_ids_of_their_own() -> None:
    """Results are told apart by them."""
    events = [start(), *called(call_id=""), *called(call_id="", index=1), *called(call_id="A", index=2), *called(call_id="A", index=3)]
    ids = [call.id for call in message(*events, reason("tool_use"), STOP).tool_calls]
    assert len(set(ids)) == 4
    assert all(ids)
    assert [call.id for call in message(*events, reason("tool_use"), STOP).tool_calls] == ids


def test_names_come_back_as_they_were_declared() -> None:
    """A tool whose name the provider could not take is called by its real name."""
    final = message(start(), *called("server_tool_x"), reason("tool_use"), STOP, names={"server_tool_x": "server.tool"})
    assert final.tool_calls[0].name == "server.tool"


def test_unknown_blocks_are_ignored_with_a_note() -> None:
    """Decision 16: server tools and whatever comes later; their deltas too."""
    odd = [block(0, "server_tool_use", id="s", name="web"), arguments('{"q":1}'), end(), block(1, "text"), text("x", 1), end(1)]
    final = message(start(), *odd, reason(), STOP)
    assert final.content == [TextContent(text="x")]
    assert final.diagnostics == ["a block of the type server_tool_use was ignored"]


def test_a_delta_without_a_start_opens_its_block() -> None:
    """A server that forgets the start of a text."""
    assert message(start(), text("x"), text("y"), end(), reason(), STOP).text == "xy"


def test_citations_are_no_text() -> None:
    """They are left out, silently."""
    citation = {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {"type": "x"}}}
    final = message(start(), block(0, "text"), text("x"), citation, end(), reason(), STOP)
    assert (final.text, final.diagnostics) == ("x", None)


def test_a_complete_message_instead_of_a_stream_is_read() -> None:
    """A server that does not stream answers with one object."""
    body = {
        "type": "message", "id": "x", "model": "other", "role": "assistant", "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
        "content": [{"type": "thinking", "thinking": "t", "signature": "S"}, {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "c", "name": "read", "input": {"p": 1}}],
    }  # fmt: skip
    final = message(body)
    assert final.content == [ThinkingContent(thinking="t", signature="S"), TextContent(text="a"), ToolCall(id="c", name="read", arguments={"p": 1})]
    assert (final.response_model, final.usage.input, final.usage.output, final.stop_reason) == ("other", 3, 4, "tool_use")


# ---------------------------------------------------------------------------------------------------- usage and ends


def test_usage_is_merged_by_field() -> None:
    """05 sc. 20, 21: the last value that is present wins; the total is the sum of the four; the 1h part is known."""
    first = start(
        input_tokens=10, output_tokens=1, cache_read_input_tokens=5, cache_creation_input_tokens=7, cache_creation={"ephemeral_1h_input_tokens": 3}
    )
    usage = message(first, block(0, "text"), end(), reason(), STOP).usage
    assert (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.cache_write_1h, usage.total_tokens) == (10, 20, 5, 7, 3, 42)


@pytest.mark.parametrize(
    "repeated", [{}, {"input_tokens": 3, "cache_read_input_tokens": 20000, "cache_creation_input_tokens": 1500}, {"input_tokens": None}]
)
def test_cumulative_usage_is_not_added_up(repeated: dict[str, Any]) -> None:
    """B55: the same whether or not the last event repeats every field."""
    first = start(input_tokens=3, output_tokens=1, cache_read_input_tokens=20000, cache_creation_input_tokens=1500)
    usage = message(first, block(0, "text"), end(), reason(output_tokens=120, **repeated), STOP).usage
    assert (usage.input, usage.cache_read, usage.cache_write, usage.output, usage.total_tokens) == (3, 20000, 1500, 120, 21623)


def test_cost_follows_the_model_s_prices() -> None:
    """05 sc. 18: what is kept for an hour costs twice the input price. Thinking is a part of the output."""
    priced = model(cost=ModelCost(input=1, output=2, cache_read=0.1, cache_write=1.25))
    first = start(input_tokens=0, cache_creation_input_tokens=100, cache_creation={"ephemeral_1h_input_tokens": 40, "ephemeral_5m_input_tokens": 60})
    usage = message(first, reason(output_tokens=0, output_tokens_details={"thinking_tokens": 0}), STOP, of=priced).usage
    assert usage.cost.total == pytest.approx(0.000155)
    assert usage.reasoning == 0


@pytest.mark.parametrize(
    ("word", "stop"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("pause_turn", "stop"), ("max_tokens", "length"), ("model_context_window_exceeded", "length"),
     ("tool_use", "stop")],
)  # fmt: skip
def test_stop_reasons(word: str, stop: str) -> None:
    """05 §1.4, sc. 86; a `tool_use` without a call is a stop."""
    final = message(start(), block(0, "text"), text("x"), end(), reason(word), STOP)
    assert (final.stop_reason, final.raw_stop_reason) == (stop, word)


@pytest.mark.parametrize(("word", "stop"), [("end_turn", "tool_use"), ("tool_use", "tool_use"), ("max_tokens", "length")])
def test_calls_decide_the_stop_reason_unless_the_answer_was_cut(word: str, stop: str) -> None:
    """The loop fails every call of a `length` message."""
    assert message(start(), *called(), reason(word), STOP).stop_reason == stop


def test_a_refusal_is_an_error_with_the_provider_s_explanation() -> None:
    """05 sc. 82."""
    failure, left = failed(
        start(), block(0, "text"), text("I"), end(), reason("refusal", details={"type": "refusal", "explanation": "cyber, no"}), STOP
    )
    assert (failure.info.kind, "cyber, no" in str(failure), left.raw_stop_reason, left.text) == ("content_filter", True, "refusal", "I")
    assert "no explanation" in str(failed(start(), reason("refusal"), STOP)[0])


@pytest.mark.parametrize("word", ["compaction", "glitch"])
def test_an_unknown_reason_is_an_error_that_names_it(word: str) -> None:
    """05 sc. 86, decision 16: no crash, and never taken for success."""
    failure, left = failed(*HELLO[:-2], reason(word), STOP)
    assert f"stopped with: {word}" in str(failure)
    assert (left.raw_stop_reason, left.text, left.stop_reason) == (word, "Hello", "error")


@pytest.mark.parametrize("kept", range(len(HELLO)))
def test_an_end_before_the_last_event_is_an_error(kept: int) -> None:
    """05 sc. 80, B47: EOF is no stop reason, not even after a complete-looking answer; usage and text are kept, open blocks get no end."""
    failure, left = failed(*HELLO[:kept])
    assert (failure.info.kind, "stream ended before message_stop" in str(failure)) == ("incomplete", True)
    assert left.usage.input == (10 if kept else 0)
    assert left.text == "Hello"[: [0, 0, 0, 3, 3, 5, 5, 5][kept]]


def test_an_end_without_a_reason_is_an_error() -> None:
    """message_stop alone says nothing about the answer."""
    failure, _ = failed(start(), block(0, "text"), text("x"), end(), STOP)
    assert "ended without" in str(failure)


def test_another_model_s_answer_is_named() -> None:
    """05 sc. 82: the dated id behind an alias."""
    first = start()
    first["message"]["model"] = "m-20990101"
    assert message(first, *HELLO[1:]).response_model == "m-20990101"


def test_a_stand_in_is_priced_as_what_it_is() -> None:
    """A fallback model that was allowed costs its own prices; after the first words it is an error."""
    compat = AnthropicCompat(allowed_fallback_models={"small": ModelCost(input=1, output=1)})
    over = block(0, "fallback", **{"from": {"model": "m"}, "to": {"model": "small"}, "trigger": {"type": "refusal"}})
    priced = model(cost=ModelCost(input=100, output=100))
    final = message(start(), over, end(), block(1, "text"), text("x", 1), end(1), reason(), STOP, of=priced, compat=compat)
    assert (final.response_model, final.usage.cost.total) == ("small", pytest.approx(30e-6))
    failure, left = failed(start(), block(0, "text"), text("x"), end(), over, of=priced, compat=compat)
    assert ("small went on" in str(failure), left.text) == (True, "x")


def test_what_the_provider_changed_in_the_request_is_noted() -> None:
    """Dropped thinking is no secret."""
    first = start()
    first["message"]["input_transformations"] = [{"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}]
    assert message(first, *HELLO[1:]).diagnostics == ["the provider reports thinking_dropped at messages.1.content.0 (prefix_binding_mismatch)"]


# ---------------------------------------------------------------------------------------------------- errors in the stream


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("overloaded_error", "overloaded"), ("rate_limit_error", "rate_limit"), ("api_error", "server"), ("invalid_request_error", "invalid_request"),
     ("authentication_error", "auth"), ("timeout_error", "timeout"), ("something_new", "unknown")],
)  # fmt: skip
@pytest.mark.parametrize("before", [[], HELLO[:3]])
def test_an_error_inside_the_stream_is_classified(kind: str, expected: str, before: list[Any]) -> None:
    """05 sc. 81, B48: by its type, not by HTTP 200; also as the very first event; type and text are in the sentence."""
    failure, left = failed(*before, {"type": "error", "error": {"type": kind, "message": "Sorry about that"}})
    assert failure.info.kind == expected
    assert kind in str(failure)
    assert "Sorry about that" in str(failure)
    assert left.text == ("Hel" if before else "")


def test_an_event_named_error_is_one_whatever_its_data_looks_like() -> None:
    """Some gateways have shapes of their own."""
    decoder = Decoder(model(), AnthropicCompat(), StreamWriter(model()))
    with pytest.raises(ProviderFailure, match="no luck"):
        decoder.feed(b'{"message": "no luck"}', "error")
    with pytest.raises(ProviderFailure, match="busy"):
        decoder.feed(b'{"error": {"message": "busy", "code": 503}}')


def test_what_is_not_json_is_a_failure_that_shows_it() -> None:
    """Text instead of JSON inside an event."""
    failure, _ = failed(start(), b"upstream timeout, sorry")
    assert (failure.info.kind, "upstream timeout" in str(failure)) == ("protocol", True)


@pytest.mark.parametrize(
    "event", [{}, [], 5, None, "x", PING, {"type": "new_event"}, {"type": 5}, {"type": "content_block_delta"}, {"type": "content_block_stop"}]
)
def test_events_that_say_nothing_are_ignored(event: Any) -> None:
    """Keep-alives, empty and foreign events, wherever they come."""
    for at in range(1, len(HELLO)):
        if event != {"type": "content_block_stop"} or at == 1:
            assert message(*HELLO[:at], event, *HELLO[at:]).text == "Hello"


# ---------------------------------------------------------------------------------------------------- hard bytes


def test_a_character_cut_into_surrogates_is_joined() -> None:
    """05 sc. 145: the halves meet, in text, thinking and arguments, also where blocks interleave."""
    events = [
        start(),
        block(0, "thinking"),
        block(1, "text"),
        thought("a\ud83d"),
        text("b\ud83d", 1),
        thought("\ude00c"),
        end(),
        text("\ude00", 1),
        end(1),
    ]
    events += [block(2, "tool_use"), arguments('{"a":"\ud83d', 2), arguments('\ude00"}', 2), end(2)]
    final = message(*events, reason("tool_use"), STOP)
    assert final.content == [ThinkingContent(thinking="a😀c"), TextContent(text="b😀"), ToolCall(id="toolu_1", name="read", arguments={"a": "😀"})]


def test_a_half_that_waits_in_vain_becomes_a_replacement_character() -> None:
    """B44: nothing that UTF-8 cannot hold gets into a message or an event."""
    events = [start(), block(0, "text"), text("a\ud83d"), text("b"), text("\ude00c\ud83d"), end(), reason(), STOP]
    assert message(*events).text == "a\ufffdb\ufffdc\ufffd"
    assert not any("\ud800" <= c <= "\udfff" for event in run(*events) if isinstance(event, TextDelta) for c in event.delta)


def test_json_that_strict_decoders_refuse_is_read() -> None:
    """05 sc. 87: raw control characters, bad escapes and bytes that are not UTF-8 inside strings."""
    for raw, meant in ((b"a\nb", "a\nb"), (b"a\\d", "a\\d"), (b"a\xff", "a\ufffd")):
        odd = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}' % raw
        assert message(start(), block(0, "text"), odd, end(), reason(), STOP).text == meant


def test_a_huge_event_is_one_delta() -> None:
    """05 sc. 148: 5 MiB in one event."""
    assert len(message(*said("x" * (5 << 20))).text) == 5 << 20


WHOLE = wire(
    start(), PING, block(0, "thinking"), thought("hm 😀"), signature("S"), end(), block(1, "text"), text("Hello ü", 1), end(1),
    *called(raw='{"a":"😀"}', index=2), reason("tool_use"), STOP,
)  # fmt: skip


def decoded(data: bytes, cuts: list[int]) -> tuple[list[AssistantEvent], AssistantMessage]:
    """Decode bytes that arrive in pieces."""
    splitter, decoder = SseDecoder(), Decoder(model(), AnthropicCompat(), StreamWriter(model(), timestamp=1))
    edges = [0, *sorted(cuts), len(data)]
    found: list[AssistantEvent] = []
    pieces = [*(splitter.feed(data[a:b]) for a, b in itertools.pairwise(edges)), splitter.finish()]
    for event in itertools.chain.from_iterable(pieces):
        found += decoder.feed(event.data, event.event)
    found += decoder.finish()
    last = found[-1]
    assert isinstance(last, StreamDone)
    return found, last.message


@settings(max_examples=50)
@given(st.lists(st.integers(0, len(WHOLE)), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_cut_and_any_line_ending_give_the_same_events(cuts: list[int], newline: bytes) -> None:
    """05 sc. 88: pieces may end inside a character, or between CR and LF."""
    data = WHOLE.replace(b"\n", newline)
    found, final = decoded(data, [min(cut, len(data)) for cut in cuts])
    assert final.content == [
        ThinkingContent(thinking="hm 😀", signature="S"), TextContent(text="Hello ü"), ToolCall(id="toolu_1", name="read", arguments={"a": "😀"}),
    ]  # fmt: skip
    assert [event.type for event in found] == [event.type for event in decoded(WHOLE, [])[0]]


KEYS = [
    "type",
    "index",
    "delta",
    "content_block",
    "message",
    "usage",
    "error",
    "text",
    "thinking",
    "partial_json",
    "signature",
    "id",
    "name",
    "input",
]
KEYS += ["stop_reason", "stop_details", "model", "input_tokens", "cache_creation", "content", "to", "input_transformations", "data"]
WORDS = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "error", "message"]
WORDS += [
    "text",
    "thinking",
    "tool_use",
    "redacted_thinking",
    "fallback",
    "text_delta",
    "input_json_delta",
    "signature_delta",
    "end_turn",
    "{",
    "\ud83d",
]
SCALARS = st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False) | st.text(max_size=3) | st.sampled_from(WORDS)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5), max_leaves=12)
EVENTS = st.builds(lambda kind, rest: {**rest, "type": kind}, st.sampled_from(WORDS[:8]), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))


@settings(max_examples=60)
@given(st.lists(EVENTS | JSON | st.binary(max_size=20) | st.sampled_from([*HELLO, *called()]), max_size=8))
def test_malformed_events_never_raise_anything_but_a_failure(events: list[Any]) -> None:
    """Fuzz (decision 16): whatever a server sends, the response settles or fails as a provider failure, and what is left can be stored."""
    of = model()
    writer = StreamWriter(of)
    decoder = Decoder(of, AnthropicCompat(), writer)
    try:
        for event in events:
            decoder.feed(event if isinstance(event, bytes) else json.dumps(event).encode())
        last = decoder.finish()[-1]
        settled = last.message if isinstance(last, StreamDone) else None
    except ProviderFailure as failure:
        settled = writer.fail(failure, False)
    assert settled is not None
    assert settled.stop_reason in ("stop", "tool_use", "length", "error")
    assert len({call.id for call in settled.tool_calls}) == len(settled.tool_calls)


@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_any_cut_of_a_text_gives_the_text(value: str, cuts: list[int]) -> None:
    """Property: deltas of any size, cut also between UTF-16 units, join to the same text and the events agree with it."""
    units = value.encode("utf-16-le", "surrogatepass")
    edges = [0, *sorted(min(cut * 2, len(units)) for cut in cuts), len(units)]
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(edges)]
    events = run(start(), block(0, "text"), *map(text, pieces), end(), reason(), STOP)
    final = events[-1]
    assert isinstance(final, StreamDone)
    assert final.message.text == value
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == value
