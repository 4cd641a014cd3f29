"""Events of a streamed response → assistant events."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.events import AssistantEvent, StreamDone, TextDelta, TextEnd, ThinkingDelta, ThinkingEnd, ToolCallDelta
from laneway.llm._sse import SseDecoder
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ModelCost, ProviderFailure
from laneway.llm.wire.openai_responses import Decoder
from laneway.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall
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
    dumped,
    incomplete,
    message,
    model,
    reasoning,
    response,
    said,
    text,
    thought,
    usage,
    wire,
)


def run(*events: Any, of: Model | None = None, **options: Any) -> list[AssistantEvent]:
    """Decode a whole response."""
    of = of or model()
    decoder = Decoder(of, StreamWriter(of, timestamp=1), **options)
    found: list[AssistantEvent] = []
    for event in events:
        found += decoder.feed(dumped(event))
    return found + decoder.finish()


def final(*events: Any, **options: Any) -> AssistantMessage:
    """The final message of a response that ended well."""
    last = run(*events, **options)[-1]
    assert isinstance(last, StreamDone)
    return last.message


def failed(*events: Any) -> tuple[ProviderFailure, AssistantMessage]:
    """The failure of a response that did not, and the message that is left of it."""
    writer = StreamWriter(model())
    decoder = Decoder(model(), writer)
    failure: ProviderFailure | None = None
    try:
        for event in events:
            decoder.feed(dumped(event))
        decoder.finish()
    except ProviderFailure as raised:
        failure = raised
    assert failure is not None
    return failure, writer.fail(failure, False)


def bare(found: AssistantMessage) -> list[Any]:
    """The content without signatures."""
    return [type(part)(**{name: getattr(part, name) for name in part.__struct_fields__ if name != "signature"}) for part in found.content]


# ---------------------------------------------------------------------------------------------------- blocks


def test_text_comes_as_one_block_with_its_item_s_id() -> None:
    """Start, deltas, end, done; the phase of the answer is kept, too."""
    assert [event.type for event in run(*HELLO)] == ["text_start", "text_delta", "text_delta", "text_end", "done"]
    found = final(*HELLO)
    assert found.content == [TextContent(text="Hello", signature='{"v":1,"id":"msg_1"}')]
    assert (found.response_id, found.response_model, found.stop_reason, found.raw_stop_reason) == ("resp_1", None, "stop", "completed")
    phased = final(created(), added(message()), done(message("x", phase="final_answer")), completed())
    assert phased.content == [TextContent(text="x", signature='{"v":1,"id":"msg_1","phase":"final_answer"}')]


def test_the_end_of_an_item_is_authoritative() -> None:
    """05 §4.3: its text replaces what was streamed; one without content leaves it."""
    events = run(created(), added(message()), text("Helo"), done(message("Hello")), completed())
    assert [event.content for event in events if isinstance(event, TextEnd)] == ["Hello"]
    assert final(created(), added(message()), text("Hel"), done(message()), completed()).text == "Hel"


def test_reasoning_is_shown_in_paragraphs_and_kept_as_it_came() -> None:
    """Its signature is the whole item, byte for byte; the parts of the summary are paragraphs, streamed as they are kept."""
    summary = b'[{"type":"summary_text","text":"one"},{"type":"summary_text","text":"two \\u00fc"}]'
    item = b'{"id": "rs_1",  "type":"reasoning","summary":%s,"encrypted_content":"E=="}' % summary
    end = b'{"type":"response.output_item.done","output_index":0,"item":%s}' % item
    events = [created(), added(reasoning(encrypted=None)), thought("o"), thought("ne"), thought("two ü", part=1), end]
    events += [added(message(), 1), text("x", 1), done(message("x"), 1), completed()]
    found = final(*events)
    assert found.content[0] == ThinkingContent(thinking="one\n\ntwo ü", signature=item.decode())
    assert "".join(event.delta for event in run(*events) if isinstance(event, ThinkingDelta)) == "one\n\ntwo ü"


def test_reasoning_text_and_reasoning_without_any_text() -> None:
    """Open models show their reasoning itself; others nothing at all, which is kept all the same."""
    shown = reasoning(encrypted=None, content=[{"type": "reasoning_text", "text": "hm"}])
    events = [created(), added(reasoning(encrypted=None)), delta("reasoning_text", "hm", content_index=0), done(shown), completed()]
    assert bare(final(*events)) == [ThinkingContent(thinking="hm")]
    hidden = final(created(), added(reasoning()), done(reasoning(encrypted="E")), completed()).content[0]
    assert isinstance(hidden, ThinkingContent)
    assert (hidden.thinking, json.loads(hidden.signature or "")["encrypted_content"]) == ("", "E")


def test_encrypted_reasoning_that_comes_only_with_the_end_is_kept() -> None:
    """05 sc. 108."""
    ended = [created(), added(reasoning(encrypted=None)), done(reasoning("a", encrypted=None)), *called(index=1)]
    found = final(*ended, completed(output=[reasoning("a", encrypted="LATE"), call("{}")]))
    thinking = found.content[0]
    assert isinstance(thinking, ThinkingContent)
    assert json.loads(thinking.signature or "")["encrypted_content"] == "LATE"
    assert (thinking.thinking, found.stop_reason) == ("a", "tool_use")


def test_calls_are_put_together_from_their_pieces() -> None:
    """05 sc. 111: the id is the call's and (after a bar) its item's; a completed response with a call is tool_use."""
    found = final(
        created(),
        added(call()),
        arguments('{"path":'),
        arguments('"a"}'),
        done(call('{"path":"a"}')),
        *called(index=1, call_id="c2", item_id="fc_2"),
        completed(),
    )
    assert found.tool_calls == [ToolCall(id="call_1|fc_1", name="read", arguments={"path": "a"}), ToolCall(id="c2|fc_2", name="read")]
    assert found.stop_reason == "tool_use"


def test_arguments_that_come_whole_add_only_what_is_missing() -> None:
    """05 sc. 109: arguments.done after some deltas; the item's own word at the end counts in any case."""
    whole = {"type": "response.function_call_arguments.done", "output_index": 0, "item_id": "fc_1", "arguments": '{"a":1}'}
    events = run(created(), added(call()), arguments('{"a"'), whole, done(call('{"a":1}')), completed())
    assert [event.delta for event in events if isinstance(event, ToolCallDelta)] == ['{"a"', ":1}"]
    assert final(created(), added(call()), arguments('{"b"'), whole, done(call('{"a":2}')), completed()).tool_calls[0].arguments == {"a": 2}
    assert final(created(), done(call('{"a":3}')), completed()).tool_calls[0].arguments == {"a": 3}


def test_interleaved_items_do_not_mix() -> None:
    """Pieces go by output index; each block ends with its own item."""
    events = [
        created(),
        added(message()),
        added(call(), 1),
        text("a"),
        arguments('{"p":', 1),
        text("b"),
        arguments("1}", 1),
        done(call('{"p":1}'), 1),
        text("c"),
    ]
    assert bare(final(*events, done(message("abc")), completed())) == [
        TextContent(text="abc"),
        ToolCall(id="call_1|fc_1", name="read", arguments={"p": 1}),
    ]


def test_items_are_found_by_id_where_there_is_no_index() -> None:
    """A server that leaves the index out."""
    events = [{k: v for k, v in event.items() if k != "output_index"} for event in (added(message()), text("x"), done(message("x")))]
    events[1]["item_id"] = "msg_1"
    assert final(created(), *events, completed()).text == "x"


def test_a_refusal_is_text() -> None:
    """What the model says instead of an answer."""
    item = {**message(), "content": [{"type": "refusal", "refusal": "I will not"}]}
    assert final(created(), added(message()), delta("refusal", "I will", content_index=0), done(item), completed()).text == "I will not"


def test_the_input_of_a_custom_tool_is_shown_as_json() -> None:
    """05 sc. 113: raw text becomes the JSON of an object with one string, piece by piece."""
    events = [
        created(),
        added(custom()),
        delta("custom_tool_call_input", 'a"'),
        delta("custom_tool_call_input", "b\n"),
        done(custom('a"b\nc')),
        completed(),
    ]
    assert "".join(event.delta for event in run(*events) if isinstance(event, ToolCallDelta)) == '{"input":"a\\"b\\nc'
    assert final(*events).tool_calls == [ToolCall(id="call_1|ctc_1", name="patch", arguments={"input": 'a"b\nc'})]
    failure, _ = failed(created(), added(custom()), delta("custom_tool_call_input", "a"), done(custom("b")), completed())
    assert failure.info.kind == "protocol"


def test_the_input_of_a_declared_grammar_tool_is_its_one_argument() -> None:
    """05 §1.8, sc. 113: under the name of the tool's own parameter, whatever it is called."""
    decoder = Decoder(model(), StreamWriter(model()), raw_inputs={"patch": 'the "text"'})
    events = [created(), added(custom()), delta("custom_tool_call_input", "a"), done(custom("ab")), completed()]
    seen = [event for each in events for event in decoder.feed(dumped(each))]
    assert "".join(event.delta for event in seen if isinstance(event, ToolCallDelta)) == '{"the \\"text\\"":"ab'
    ended = next(event for event in decoder.finish() if isinstance(event, StreamDone))
    assert ended.message.tool_calls == [ToolCall(id="call_1|ctc_1", name="patch", arguments={'the "text"': "ab"})]


@pytest.mark.parametrize("raw", ["", "  ", "null"])
def test_no_arguments_are_an_empty_object(raw: str) -> None:
    """B20."""
    assert final(created(), *called(raw), completed()).tool_calls == [ToolCall(id="call_1|fc_1", name="read")]


@pytest.mark.parametrize("end", [completed(), incomplete("max_output_tokens")])
def test_cut_arguments_are_an_error_of_the_call(end: dict[str, Any]) -> None:
    """B18, decision 6: never guessed; the text received is in the error."""
    found = final(created(), *called('{"path":"f","content":"abc'), end).tool_calls[0]
    assert found.arguments == {}
    assert '{"path":"f","content":"abc' in (found.arguments_error or "")


def test_calls_without_or_with_the_same_id_get_ids_of_their_own() -> None:
    """Distinct in the part before the bar, which is what the provider pairs by."""
    events = [created(), *called(call_id="", item_id=""), *called(index=1, call_id="A"), *called(index=2, call_id="A", item_id="fc_2")]
    ids = [found.id for found in final(*events, completed()).tool_calls]
    assert len({i.partition("|")[0] for i in ids}) == 3
    assert [found.id for found in final(*events, completed()).tool_calls] == ids


def test_names_come_back_as_they_were_declared() -> None:
    """A tool whose name the provider could not take is called by its real name."""
    assert final(created(), *called(name="server_tool_x"), completed(), names={"server_tool_x": "server.tool"}).tool_calls[0].name == "server.tool"


def test_unknown_items_are_ignored_with_a_note() -> None:
    """Decision 16: the provider's own tools and whatever comes later."""
    odd = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    found = final(created(), added(odd), done(odd), added(message(), 1), text("x", 1), done(message("x"), 1), completed())
    assert (bare(found), found.diagnostics) == ([TextContent(text="x")], ["an item of the type web_search_call was ignored"])


@pytest.mark.parametrize("drop", [0, 1, 2, 3])
def test_a_server_that_leaves_events_out_is_understood(drop: int) -> None:
    """No created, no start, no piece, no end: what is left says enough."""
    events = [*HELLO[:2], text("Hello"), *HELLO[4:]]
    del events[drop]
    assert final(*events).text == "Hello"


def test_a_response_in_one_piece_is_read() -> None:
    """A server that sends only the end, or does not stream at all."""
    output = [reasoning("r"), message("a"), call('{"p":1}')]
    for whole in (completed(output=output), {**response("completed", output), "usage": usage()}):
        found = final(whole)
        assert bare(found) == [ThinkingContent(thinking="r"), TextContent(text="a"), ToolCall(id="call_1|fc_1", name="read", arguments={"p": 1})]
        assert (found.stop_reason, found.usage.input, found.response_id) == ("tool_use", 60, "resp_1")


# ---------------------------------------------------------------------------------------------------- usage and ends


def test_usage_is_split_into_its_parts() -> None:
    """05 sc. 22, B55: cached tokens are inside the input's, reasoning inside the output's; the total is the provider's."""
    found = final(*HELLO).usage
    assert (found.input, found.cache_read, found.cache_write, found.output, found.reasoning, found.total_tokens) == (60, 40, 0, 10, 4, 110)
    details = {"cached_tokens": 40, "cache_write_tokens": 70}
    odd = final(*HELLO[:-1], completed(usage=usage(input_tokens_details=details))).usage
    assert (odd.input, odd.cache_write) == (0, 70)
    assert final(*HELLO[:-1], completed(usage=None)).usage.total_tokens == 0


@pytest.mark.parametrize(
    ("asked", "answered", "factor"), [(None, None, 1), ("flex", None, 0.5), ("flex", "priority", 2), (None, "flex", 0.5), ("priority", "default", 1)]
)
def test_the_service_tier_multiplies_the_price(asked: str | None, answered: str | None, factor: float) -> None:
    """05 sc. 27: the tier that the response names, else the one that was asked for."""
    priced = model(cost=ModelCost(input=1, output=2, cache_read=0.5))
    found = final(*HELLO[:-1], completed(service_tier=answered), of=priced, service_tier=asked).usage.cost
    assert found.total == pytest.approx((60 + 20 + 20) * factor / 1e6)


@pytest.mark.parametrize(
    ("end", "stop", "raw"),
    [(completed(), "stop", "completed"), (incomplete("max_output_tokens"), "length", "incomplete.max_output_tokens"),
     ({"type": "response.completed"}, "stop", "completed"), ({"type": "response.completed", "response": {"status": "queued"}}, "stop", "queued")],
)  # fmt: skip
def test_ends_that_mean_an_answer(end: dict[str, Any], stop: str, raw: str) -> None:
    """05 §1.4, sc. 110."""
    found = final(*HELLO[:-1], end)
    assert (found.stop_reason, found.raw_stop_reason, found.text) == (stop, raw, "Hello")


@pytest.mark.parametrize(
    ("end", "kind", "raw", "part"),
    [
        (incomplete("content_filter"), "content_filter", "incomplete.content_filter", "content filter"),
        (incomplete("whatever"), "unknown", "incomplete.whatever", "incomplete.whatever"),
        (completed("incomplete"), "unknown", "incomplete", "incomplete"),
        (completed("failed", error={"code": "server_error", "message": "Sorry"}), "server", "failed", "server_error): Sorry"),
        (completed("failed", error={"code": "rate_limit_exceeded", "message": "slow, try again in 6s"}), "rate_limit", "failed", "slow"),
        (completed("failed", error={"code": "context_length_exceeded", "message": "too long"}), "overflow", "failed", "too long"),
        (completed("failed", error={"code": "bio_policy", "message": "no"}), "unknown", "failed", "bio_policy"),
        (completed("failed"), "server", "failed", "failed"),
        (completed("cancelled"), "server", "cancelled", "cancelled"),
        ({**completed(), "type": "response.failed"}, "server", "failed", "failed"),
        (completed("glitch") | {"type": "response.completed"}, "unknown", "glitch", "glitch"),
    ],
)
def test_other_ends_are_errors_that_name_them(end: dict[str, Any], kind: str, raw: str, part: str) -> None:
    """05 sc. 110, decision 16: the provider's own words, the kind by its code; what had arrived is kept."""
    failure, left = failed(*HELLO[:-1], end)
    assert (failure.info.kind, part in str(failure)) == (kind, True)
    assert (left.raw_stop_reason, left.text, left.usage.input) == (raw, "Hello", 60)
    assert failure.info.retry_after_ms == (6000 if "6s" in str(failure) else None)


@pytest.mark.parametrize("kept", range(len(HELLO)))
def test_an_end_before_the_last_event_is_an_error(kept: int) -> None:
    """05 sc. 111, B47: EOF is no stop reason, not even after a complete-looking answer; nor is [DONE]."""
    failure, left = failed(*HELLO[:kept], b"[DONE]")
    assert (failure.info.kind, "stream ended before a terminal response event" in str(failure)) == ("incomplete", True)
    assert left.text == ["", "", "", "Hel", "Hello", "Hello"][kept]


def test_a_call_without_its_end_is_an_error() -> None:
    """05 sc. 111 [fix]: never executed; unless the finished response holds the whole call, or the answer was cut."""
    cut = [created(), added(call()), arguments('{"a":1}')]
    failure, left = failed(*cut, completed())
    assert (failure.info.kind, "ended without" in str(failure), left.stop_reason) == ("incomplete", True, "error")
    assert failed(*cut, completed(output=[call('{"a"', status="incomplete")]))[0].info.kind == "incomplete"
    assert final(*cut, completed(output=[call('{"a":1}')])).tool_calls[0].arguments == {"a": 1}
    assert final(*cut, incomplete("max_output_tokens")).stop_reason == "length"


def test_another_model_s_answer_is_named() -> None:
    """The dated id behind an alias."""
    assert final(created(model="m-2099"), *HELLO[1:-1], completed(model="m-2099")).response_model == "m-2099"


# ---------------------------------------------------------------------------------------------------- errors in the stream


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "Sorry", "param": None}, "rate_limit"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Sorry"}}, "overloaded"),
        ({"type": "error", "error": {"type": "invalid_request_error", "code": None, "message": "Sorry"}}, "invalid_request"),
        ({"type": "error", "code": "server_error", "message": "Sorry"}, "server"),
        ({"error": {"message": "Sorry", "code": 503}}, "overloaded"),
    ],
)
@pytest.mark.parametrize("before", [[], HELLO[:3]])
def test_an_error_inside_the_stream_is_classified(event: dict[str, Any], kind: str, before: list[Any]) -> None:
    """B48: by its type, not by HTTP 200; also as the very first event; the text is in the sentence."""
    failure, left = failed(*before, event)
    assert (failure.info.kind, "Sorry" in str(failure), left.text) == (kind, True, "Hel" if before else "")


def test_what_is_not_json_is_a_failure_that_shows_it() -> None:
    """Text instead of JSON inside an event; and an event that is only called an error."""
    failure, _ = failed(created(), b"upstream timeout, sorry")
    assert (failure.info.kind, "upstream timeout" in str(failure)) == ("protocol", True)
    with pytest.raises(ProviderFailure, match="no luck"):
        Decoder(model(), StreamWriter(model())).feed(b'{"message": "no luck"}', "error")


@pytest.mark.parametrize(
    "event", [{}, [], 5, None, "x", {"type": "new"}, {"type": 5}, {"type": "response.output_text.delta"}, {"type": "response.output_item.added"}]
)
def test_events_that_say_nothing_are_ignored(event: Any) -> None:
    """Keep-alives, empty and foreign events, wherever they come."""
    for at in range(1, len(HELLO)):
        assert final(*HELLO[:at], event, *HELLO[at:]).text == "Hello"


# ---------------------------------------------------------------------------------------------------- hard bytes


def test_a_character_cut_into_surrogates_is_joined() -> None:
    """05 sc. 145: the halves meet, in text, reasoning, arguments and raw input; halves in vain become U+FFFD (B44)."""
    events = [created(), added(message()), text("a\ud83d"), text("\ude00b"), text("\ud83d"), done(message())]
    events += [added(reasoning(), 1), thought("\ud83d", 1), thought("\ude00", 1), done(reasoning(), 1)]
    events += [added(call(), 2), arguments('{"a":"\ud83d', 2), arguments('\ude00"}', 2), done(call('{"a":"\ud83d\ude00"}'), 2)]
    events += [
        added(custom(call_id="c2"), 3),
        delta("custom_tool_call_input", "\ud83d", 3),
        delta("custom_tool_call_input", "\ude00", 3),
        done(custom("😀", call_id="c2"), 3),
    ]
    found = final(*events, completed())
    assert bare(found) == [
        TextContent(text="a😀b\ufffd"), ThinkingContent(thinking="😀"), ToolCall(id="call_1|fc_1", name="read", arguments={"a": "😀"}),
        ToolCall(id="c2|ctc_1", name="patch", arguments={"input": "😀"}),
    ]  # fmt: skip
    assert not any(
        "\ud800" <= c <= "\udfff" for event in run(*events, completed()) if isinstance(event, TextDelta | ThinkingDelta) for c in event.delta
    )


def test_json_that_strict_decoders_refuse_is_read() -> None:
    """05 sc. 87: raw control characters, bad escapes and bytes that are not UTF-8, in pieces and in items."""
    for raw, meant in ((b"a\nb", "a\nb"), (b"a\\d", "a\\d"), (b"a\xff", "a\ufffd")):
        piece = b'{"type":"response.output_text.delta","output_index":0,"delta":"%s"}' % raw
        assert final(created(), added(message()), piece, done(message()), completed()).text == meant
        item = b'{"type":"message","id":"msg_1","content":[{"type":"output_text","text":"%s"}]}' % raw
        assert (
            final(created(), added(message()), b'{"type":"response.output_item.done","output_index":0,"item":%s}' % item, completed()).text == meant
        )


def test_a_huge_event_is_one_delta() -> None:
    """05 sc. 148: 5 MiB in one event."""
    assert len(final(*said("x" * (5 << 20))).text) == 5 << 20


WHOLE = wire(
    created(), added(reasoning(encrypted=None)), thought("hm 😀"), done(reasoning("hm 😀")), added(message(), 1), text("Hello ü", 1),
    done(message("Hello ü"), 1), *called('{"a":"😀"}', index=2), completed(),
)  # fmt: skip


def decoded(data: bytes, cuts: list[int]) -> tuple[list[AssistantEvent], AssistantMessage]:
    """Decode bytes that arrive in pieces."""
    splitter, decoder = SseDecoder(), Decoder(model(), StreamWriter(model(), timestamp=1))
    found: list[AssistantEvent] = []
    pieces = [*(splitter.feed(data[a:b]) for a, b in itertools.pairwise([0, *sorted(cuts), len(data)])), splitter.finish()]
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
    found, last = decoded(data, [min(cut, len(data)) for cut in cuts])
    assert bare(last) == [
        ThinkingContent(thinking="hm 😀"),
        TextContent(text="Hello ü"),
        ToolCall(id="call_1|fc_1", name="read", arguments={"a": "😀"}),
    ]
    assert [event.type for event in found] == [event.type for event in decoded(WHOLE, [])[0]]
    assert [event.content for event in found if isinstance(event, ThinkingEnd)] == ["hm 😀"]


KEYS = [
    "type",
    "output_index",
    "item_id",
    "delta",
    "item",
    "response",
    "error",
    "arguments",
    "input",
    "object",
    "id",
    "call_id",
    "name",
    "content",
    "summary",
]
KEYS += ["text", "status", "usage", "output", "incomplete_details", "encrypted_content", "reason", "code", "service_tier", "summary_index"]
WORDS = ["response.created", "response.output_item.added", "response.output_item.done", "response.output_text.delta", "response.completed", "error"]
WORDS += ["response.function_call_arguments.delta", "response.function_call_arguments.done", "response.custom_tool_call_input.delta"]
WORDS += [
    "response.reasoning_summary_text.delta",
    "response.failed",
    "message",
    "reasoning",
    "function_call",
    "custom_tool_call",
    "response",
    "\ud83d",
    "{",
]
SCALARS = st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False) | st.text(max_size=3) | st.sampled_from(WORDS)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5), max_leaves=12)
EVENTS = st.builds(lambda kind, rest: {**rest, "type": kind}, st.sampled_from(WORDS[:11]), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))


@settings(max_examples=60)
@given(
    st.lists(
        EVENTS | JSON | st.binary(max_size=20) | st.sampled_from([*HELLO, *called(), *called(index=1), added(custom()), completed()]), max_size=8
    )
)
def test_malformed_events_never_raise_anything_but_a_failure(events: list[Any]) -> None:
    """Fuzz (decision 16): whatever a server sends, the response settles or fails as a provider failure."""
    writer = StreamWriter(model())
    decoder = Decoder(model(), writer)
    try:
        for event in events:
            decoder.feed(event if isinstance(event, bytes) else json.dumps(event).encode())
        last = decoder.finish()[-1]
        settled = last.message if isinstance(last, StreamDone) else None
    except ProviderFailure as failure:
        settled = writer.fail(failure, False)
    assert settled is not None
    assert settled.stop_reason in ("stop", "tool_use", "length", "error")
    assert len({found.id.partition("|")[0] for found in settled.tool_calls}) == len(settled.tool_calls)


@settings(max_examples=60)
@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_any_cut_of_a_text_gives_the_text(value: str, cuts: list[int]) -> None:
    """Property: deltas of any size, cut also between UTF-16 units, join to the same text and the events agree with it."""
    units = value.encode("utf-16-le", "surrogatepass")
    edges = [0, *sorted(min(cut * 2, len(units)) for cut in cuts), len(units)]
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(edges)]
    events = run(created(), added(message()), *map(text, pieces), done(message()), completed())
    last = events[-1]
    assert isinstance(last, StreamDone)
    assert last.message.text == value
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == value
