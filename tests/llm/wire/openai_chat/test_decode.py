"""Chat chunks → assistant events."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.events import AssistantEvent, StreamDone, TextDelta, TextStart, ThinkingStart, ToolCallDelta, ToolCallStart
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ProviderFailure
from laneway.llm.wire.openai_chat import ChatCompat, Decoder
from laneway.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall
from llm.chat import chat_model, chunk, fragment, tools, usage


def run(*chunks: Any, model: Model | None = None, compat: ChatCompat | None = None, names: dict[str, str] | None = None) -> list[AssistantEvent]:
    """Decode a whole response; objects become JSON."""
    model = model or chat_model()
    decoder = Decoder(model, compat or ChatCompat(), StreamWriter(model, timestamp=1), names=names)
    events: list[AssistantEvent] = []
    for item in chunks:
        events += decoder.feed(item if isinstance(item, bytes) else json.dumps(item).encode())
    return events + decoder.finish()


def message(*chunks: Any, **options: Any) -> AssistantMessage:
    """The final message of a response that ended well."""
    last = run(*chunks, **options)[-1]
    assert isinstance(last, StreamDone)
    return last.message


def failure(*chunks: Any, **options: Any) -> ProviderFailure:
    """The failure of a response that did not."""
    with pytest.raises(ProviderFailure) as caught:
        run(*chunks, **options)
    return caught.value


def calls(*chunks: Any, **options: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """The calls of a response as (id, name, arguments)."""
    return [(call.id, call.name, call.arguments) for call in message(*chunks, tools(finish="tool_calls"), **options).tool_calls]


# ---------------------------------------------------------------------------------------------------- text and thinking


def test_text_comes_as_one_block() -> None:
    """Start, deltas, end, done; the ids of the response are kept."""
    events = run(chunk("", role="assistant"), chunk("Hel"), chunk("lo"), chunk(finish="stop"), b"[DONE]")
    assert [event.type for event in events] == ["text_start", "text_delta", "text_delta", "text_end", "done"]
    final = events[-1]
    assert isinstance(final, StreamDone)
    assert (final.message.text, final.message.response_id, final.message.stop_reason) == ("Hello", "chatcmpl-1", "stop")


def test_interleaved_blocks_stay_open_and_end_in_order() -> None:
    """05 sc. 39: content, call, content: the text block goes on; ends come at the end of the stream, in index order."""
    call = fragment("{}", index=0, call_id="a", name="f")
    events = run(chunk("one"), tools(call), chunk("two"), chunk(finish="tool_calls"))
    assert [(event.type, getattr(event, "content_index", None)) for event in events] == [
        ("text_start", 0), ("text_delta", 0), ("toolcall_start", 1), ("toolcall_delta", 1), ("text_delta", 0), ("text_end", 0), ("toolcall_end", 1),
        ("done", None),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_comes_before_the_text_of_its_chunk(name: str) -> None:
    """05 sc. 97 [fix]: the thinking block has the lower index; its signature names the field, so that it can be sent back."""
    events = run(chunk("answer", **{name: "thought"}), chunk(finish="stop"))
    assert isinstance(events[0], ThinkingStart)
    assert message(chunk("answer", **{name: "thought"}), chunk(finish="stop")).content == [
        ThinkingContent(thinking="thought", signature=name), TextContent(text="answer"),
    ]  # fmt: skip


def test_reasoning_sent_under_two_names_is_taken_once() -> None:
    """Some servers send the same text twice; null fields are nothing."""
    final = message(chunk(reasoning_content=None, reasoning="a", reasoning_text="a", content=None), chunk("x", finish="stop"))
    assert final.content == [ThinkingContent(thinking="a", signature="reasoning"), TextContent(text="x")]


def test_structured_reasoning_is_merged_and_kept() -> None:
    """05 sc. 102: text pieces are merged, encrypted entries stay as they are, all of it in the signature."""
    details: list[dict[str, Any]] = [
        {"type": "reasoning.text", "text": "a", "index": 0, "format": "x"},
        {"type": "reasoning.text", "text": "b", "index": 0, "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "zz", "index": 1},
        {"type": "reasoning.encrypted", "data": "yy", "index": 1},
    ]
    final = message(*(chunk(reasoning=d.get("text"), reasoning_details=[d]) for d in details), chunk("x", finish="stop"))
    block = final.content[0]
    assert isinstance(block, ThinkingContent)
    assert block.thinking == "ab"
    assert json.loads(block.signature or "") == [
        {"type": "reasoning.text", "text": "ab", "index": 0, "format": "x", "signature": "sig"}, *details[2:],
    ]  # fmt: skip


def test_structured_reasoning_without_plain_reasoning_is_shown() -> None:
    """Where only the structured form comes, its text is the thinking."""
    final = message(chunk(reasoning_details=[{"type": "reasoning.summary", "summary": "s"}]), chunk("x", finish="stop"))
    assert isinstance(final.content[0], ThinkingContent)
    assert final.content[0].thinking == "s"


def test_a_refusal_is_text() -> None:
    """A refusal is what the model says."""
    assert message(chunk(refusal="I won't"), chunk(finish="stop")).text == "I won't"


def test_content_in_parts_is_told_apart() -> None:
    """Some servers stream lists of parts instead of strings."""
    parts: Any = [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, {"type": "text", "text": "a"}]
    assert message(chunk(parts), chunk(finish="stop")).content == [
        ThinkingContent(thinking="t", signature="reasoning_content"), TextContent(text="a"),
    ]  # fmt: skip


def test_a_complete_message_instead_of_deltas_is_read() -> None:
    """A server that does not stream answers with one object."""
    body = {"id": "x", "model": "other", "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}], "usage": {}}
    final = message(body)
    assert (final.text, final.response_model) == ("hi", "other")


# ---------------------------------------------------------------------------------------------------- tool calls


def test_fragments_are_assigned_by_index() -> None:
    """B45: only the first fragment has an id; interleaved calls do not mix; two entries may come in one chunk."""
    assert calls(
        tools(fragment('{"a":', index=0, call_id="A", name="f")),
        tools(fragment('{"b":', index=1, call_id="B", name="g")),
        tools(fragment("1", index=0), fragment("}", index=0)),
        tools(fragment("2}", index=1)),
    ) == [("A", "f", {"a": 1}), ("B", "g", {"b": 2})]


def test_calls_without_index_are_told_apart_by_id() -> None:
    """B46 (a): a missing index is not 0."""
    assert calls(tools(fragment('{"a":1}', call_id="A", name="f")), tools(fragment('{"b":2}', call_id="B", name="f"))) == [
        ("A", "f", {"a": 1}), ("B", "f", {"b": 2}),
    ]  # fmt: skip
    assert calls(tools(fragment('{"a":', call_id="A", name="f")), tools(fragment("1}", call_id="A"))) == [("A", "f", {"a": 1})]


def test_an_index_used_again_is_the_next_call() -> None:
    """B46 (b): a new id at a used index is a new call."""
    assert calls(tools(fragment('{"a":1}', index=0, call_id="A", name="f")), tools(fragment('{"b":2}', index=0, call_id="B", name="f"))) == [
        ("A", "f", {"a": 1}), ("B", "f", {"b": 2}),
    ]  # fmt: skip


def test_one_call_under_two_indexes_is_one_call() -> None:
    """B46 (c): the same id with the same arguments, whole or in pieces."""
    whole = [fragment('{"a":1}', index=i, call_id="A", name="f") for i in (0, 1)]
    assert calls(tools(*whole)) == [("A", "f", {"a": 1})]
    pieces = [tools(fragment('{"a":', index=i, call_id="A", name="f")) for i in (0, 1)] + [tools(fragment("1}", index=i)) for i in (0, 1)]
    assert calls(*pieces) == [("A", "f", {"a": 1})]
    final = message(tools(*whole), chunk(finish="tool_calls"))
    assert "came twice" in (final.diagnostics or [""])[0]


def test_one_id_for_two_different_calls_gives_two_ids() -> None:
    """Providers refuse a request in which two calls share an id."""
    different_arguments = calls(tools(fragment('{"a":1}', index=0, call_id="A", name="f"), fragment('{"a":2}', index=1, call_id="A", name="f")))
    different_names = calls(tools(fragment("{}", index=0, call_id="A", name="f"), fragment("{}", index=1, call_id="A", name="g")))
    for found in (different_arguments, different_names):
        assert found[0][0] == "A"
        assert len({call_id for call_id, _, _ in found}) == 2


@pytest.mark.parametrize("indexes", [(None, None), (0, 1), (0, 0)])
@pytest.mark.parametrize("missing", [None, "", "null"])
def test_calls_without_ids_get_ids(indexes: tuple[int | None, int | None], missing: str | None) -> None:
    """B46 (d): two calls with distinct, non-empty ids that are stable for the message."""
    chunks = [tools(fragment('{"a":1}', index=index, call_id=missing, name=name)) for index, name in zip(indexes, ("f", "g"), strict=True)]
    found = calls(*chunks)
    assert [(name, arguments) for _, name, arguments in found] == [("f", {"a": 1}), ("g", {"a": 1})]
    assert len({call_id for call_id, _, _ in found if call_id}) == 2
    assert calls(*chunks) == found


def test_two_equal_calls_without_any_label_are_two_calls() -> None:
    """B46 (d): same name, same arguments, no id, no index."""
    assert len(calls(tools(fragment('{"a":1}', name="f")), tools(fragment('{"a":1}', name="f")))) == 2
    assert len(calls(tools(fragment("", name="now"), fragment("", name="now")))) == 2


def test_a_server_that_repeats_name_and_id_in_every_fragment_sends_one_call() -> None:
    """Labels that come again with each piece begin nothing new, also where a piece ends in a brace."""
    labelled = [fragment(piece, index=0, call_id="A", name="f") for piece in ('{"a":', '{"b":1}', "}")]
    assert calls(*map(tools, labelled)) == [("A", "f", {"a": {"b": 1}})]
    nameless_id = [fragment(piece, name="f") for piece in ('{"a":', '{"b":1}', "}")]
    assert [call[1:] for call in calls(*map(tools, nameless_id))] == [("f", {"a": {"b": 1}})]


def test_late_ids_and_names_are_filled_in() -> None:
    """05 sc. 98: a delta without index but with the same id belongs to the block; what arrives late completes it."""
    assert calls(
        tools(fragment("", index=0, name="f")), tools(fragment('{"a":', index=0, call_id="late")), tools(fragment("1}", call_id="late"))
    ) == [("late", "f", {"a": 1})]
    assert calls(tools(fragment("{}", index=0, call_id="A")), tools(fragment(index=0, name="f"))) == [("A", "f", {})]


@pytest.mark.parametrize("arguments", ["", "   ", None, {}, "null"])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    """B20: absence is not malformed JSON."""
    found = message(tools(fragment(arguments, index=0, call_id="A", name="now")), chunk(finish="tool_calls")).tool_calls
    assert found == [ToolCall(id="A", name="now", arguments={})]


def test_arguments_as_an_object_are_taken() -> None:
    """Some servers send an object instead of its text."""
    assert calls(tools(fragment({"a": [1]}, index=0, call_id="A", name="f"))) == [("A", "f", {"a": [1]})]


@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
def test_cut_arguments_are_an_error_of_the_call(finish: str) -> None:
    """B18, decision 6: a normal stop with half the JSON gives no arguments but the reason, with the text received."""
    found = message(tools(fragment('{"path":"f","content":"abc', index=0, call_id="A", name="write")), chunk(finish=finish)).tool_calls[0]
    assert found.arguments == {}
    assert '{"path":"f","content":"abc' in (found.arguments_error or "")


def test_names_come_back_as_they_were_declared() -> None:
    """A tool whose name the provider could not take is called by its real name."""
    assert calls(tools(fragment("{}", index=0, call_id="A", name="server_tool_x")), names={"server_tool_x": "server.tool"}) == [
        ("A", "server.tool", {})
    ]


def test_the_old_function_call_form_is_a_call() -> None:
    """Servers of the protocol's first version."""
    found = message(chunk(function_call={"name": "f", "arguments": '{"a":'}), chunk(function_call={"arguments": "1}"}), chunk(finish="function_call"))
    assert [(call.name, call.arguments) for call in found.tool_calls] == [("f", {"a": 1})]
    assert found.tool_calls[0].id


def test_a_long_call_with_labels_costs_linear_work() -> None:
    """The completeness of a call is looked at only where a new call may begin, never per fragment."""
    from laneway.llm.wire.openai_chat import _calls

    parsed: list[int] = []
    original = _calls.parse_arguments
    _calls.parse_arguments = lambda text: (parsed.append(len(text)), original(text))[1]  # counts the work, changes nothing
    try:
        pieces = [tools(fragment('"x":{}}' if i % 2 else '{"y":{"z":{},', index=0, name="f")) for i in range(2000)]
        run(tools(fragment('{"a":', index=0, call_id="A", name="f")), *pieces, chunk(finish="tool_calls"))
    finally:
        _calls.parse_arguments = original
    assert sum(parsed) < 100


# ---------------------------------------------------------------------------------------------------- usage and ends


def test_usage_is_split_into_its_parts() -> None:
    """05 sc. 19, B55: cached tokens are inside the prompt's, reasoning inside the completion's."""
    final = message(
        chunk("x", finish="stop"),
        usage(
            prompt_tokens=100, completion_tokens=20, prompt_tokens_details={"cached_tokens": 30}, completion_tokens_details={"reasoning_tokens": 5}
        ),
    )
    assert (final.usage.input, final.usage.cache_read, final.usage.output, final.usage.reasoning, final.usage.total_tokens) == (70, 30, 20, 5, 120)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"prompt_tokens": 14, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 10}}, (4, 10, 0, 2, 16)),
        ({"prompt_tokens": 14, "completion_tokens": 2, "prompt_cache_hit_tokens": 10}, (4, 10, 0, 2, 16)),
        ({"prompt_tokens": 14, "completion_tokens": 2, "cached_tokens": 10}, (4, 10, 0, 2, 16)),
        ({"prompt_tokens": 14, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 6}}, (4, 4, 6, 2, 16)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 10}, (0, 10, 0, 2, 12)),
        ({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 15, "completion_tokens_details": {"reasoning_tokens": 3}}, (10, 0, 0, 5, 15)),
        ({"prompt_tokens": None, "completion_tokens": "2"}, (0, 0, 0, 0, 0)),
    ],
)
def test_servers_report_cached_tokens_in_different_places(raw: dict[str, Any], expected: tuple[int, ...]) -> None:
    """05 §4.2: DeepSeek's, Kimi's and OpenAI's fields; a server that leaves reasoning out of the completion is corrected by its total."""
    found = message(chunk("x", finish="stop"), usage(**raw)).usage
    assert (found.input, found.cache_read, found.cache_write, found.output, found.total_tokens) == expected


def test_usage_in_the_choice_counts_and_the_last_report_wins() -> None:
    """Moonshot puts it into the choice; running totals replace each other (B55)."""
    first = chunk("x")
    first["choices"][0]["usage"] = {"prompt_tokens": 3, "completion_tokens": 1}
    assert message(first, chunk(finish="stop")).usage.output == 1
    assert message(first, chunk(finish="stop"), usage(prompt_tokens=3, completion_tokens=9)).usage.output == 9


@pytest.mark.parametrize("reason", ["stop", "end", "eos", "STOP", ""])
def test_words_for_a_stop(reason: str) -> None:
    """Each server has its own; the word is kept."""
    final = message(chunk("x", finish=reason))
    assert (final.stop_reason, final.raw_stop_reason) == ("stop", reason)


def test_the_calls_that_arrived_count_not_the_word() -> None:
    """B19: "stop" with a complete call is tool_use; "tool_calls" without one is a stop."""
    call = tools(fragment("{}", index=0, call_id="A", name="f"))
    assert message(call, chunk(finish="stop")).stop_reason == "tool_use"
    assert message(chunk("x"), chunk(finish="tool_calls")).stop_reason == "stop"


@pytest.mark.parametrize("reason", ["length", "max_tokens", "model_length"])
def test_a_length_stop_stays_one(reason: str) -> None:
    """05 §1.4: length with calls is not tool_use, so that nothing of it is executed."""
    assert message(tools(fragment("{}", index=0, call_id="A", name="f")), chunk(finish=reason)).stop_reason == "length"


def test_an_end_without_a_reason_is_an_error() -> None:
    """B47, 05 sc. 95: EOF is not a stop reason; the text is load-bearing for other readers."""
    for chunks in ([chunk("Hel")], [tools(fragment("{}", index=0, call_id="A", name="f"))], [chunk("Hel"), b"[DONE]"], []):
        found = failure(*chunks)
        assert (found.info.kind, "ended without" in str(found)) == ("incomplete", True)


def test_a_server_known_to_leave_out_the_reason_is_trusted() -> None:
    """05 sc. 95: stop or tool_use is inferred from what arrived."""
    lax = ChatCompat(supports_finish_reason=False)
    assert message(chunk("Hel"), compat=lax).stop_reason == "stop"
    assert message(tools(fragment("{}", index=0, call_id="A", name="f")), compat=lax).stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("reason", "kind"), [("content_filter", "content_filter"), ("network_error", "network"), ("error", "server"), ("glitch", "unknown")]
)
def test_other_reasons_are_errors_that_name_them(reason: str, kind: str) -> None:
    """05 sc. 96, decision 16: an unknown word never crashes and is never taken for success."""
    model = chat_model()
    writer = StreamWriter(model)
    decoder = Decoder(model, ChatCompat(), writer)
    decoder.feed(json.dumps(chunk("x", finish=reason)).encode())
    with pytest.raises(ProviderFailure, match=reason) as caught:
        decoder.finish()
    assert caught.value.info.kind == kind
    final = writer.fail(caught.value, False)
    assert (final.raw_stop_reason, final.stop_reason, final.text) == (reason, "error", "x")


# ---------------------------------------------------------------------------------------------------- errors in the stream


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"message": "Overloaded", "type": "overloaded_error"}}, "overloaded"),
        ({"error": {"message": "bad", "type": "invalid_request_error"}}, "invalid_request"),
        ({"object": "error", "message": "out of memory", "type": "InternalServerError", "code": 500}, "server"),
        ({"type": "error", "error": {"message": "slow down", "code": "rate_limit_exceeded"}}, "rate_limit"),
        ({"detail": "too busy: 503"}, "server"),
        ({"error": "server error"}, "server"),
        ({**chunk(finish="error"), "error": {"code": 502, "message": "Upstream"}}, "server"),
    ],
)
@pytest.mark.parametrize("before", [[], [chunk("Hel")]])
def test_an_error_inside_the_stream_is_classified(event: dict[str, Any], kind: str, before: list[Any]) -> None:
    """B48: also as the very first event; by its type, not by HTTP 200."""
    assert failure(*before, event).info.kind == kind


def test_an_event_named_error_is_one() -> None:
    """Whatever its data looks like."""
    decoder = Decoder(chat_model(), ChatCompat(), StreamWriter(chat_model()))
    with pytest.raises(ProviderFailure, match="no luck"):
        decoder.feed(b'{"message": "no luck"}', "error")


def test_what_is_not_json_is_a_failure_that_shows_it() -> None:
    """Text instead of JSON inside an event."""
    found = failure(chunk("a"), b"upstream timeout, sorry")
    assert (found.info.kind, "upstream timeout" in str(found)) == ("protocol", True)


@pytest.mark.parametrize(
    "event", [{}, {"choices": []}, {"choices": None}, {"type": "ping"}, [], 5, None, "x", {"choices": [{}]}, {"choices": [{"delta": None}]}]
)
def test_events_that_say_nothing_are_ignored(event: Any) -> None:
    """Keep-alives, empty and foreign events."""
    assert message(chunk("a"), event, chunk(finish="stop")).text == "a"
    assert message(event, chunk("a"), chunk(finish="stop")).text == "a"


# ---------------------------------------------------------------------------------------------------- hard bytes


def test_a_character_cut_into_surrogates_is_joined() -> None:
    """05 sc. 145, §10.6: each delta is JSON of its own; the halves meet, in text, thinking and arguments."""
    one, two = chunk("a\ud83d"), chunk("\ude00b")
    assert message(one, two, chunk(finish="stop")).text == "a😀b"
    thought = message(chunk(reasoning="\ud83d"), chunk("x\ud83d"), chunk(reasoning="\ude00"), chunk("\ude00"), chunk(finish="stop"))
    assert thought.content == [ThinkingContent(thinking="😀", signature="reasoning"), TextContent(text="x😀")]
    pieces = [tools(fragment('{"a":"\ud83d', index=0, call_id="A", name="f")), tools(fragment('\ude00"}', index=0))]
    assert calls(*pieces) == [("A", "f", {"a": "😀"})]


def test_a_half_that_waits_in_vain_becomes_a_replacement_character() -> None:
    """B44: nothing that UTF-8 cannot hold gets into a message."""
    final = message(chunk("a\ud83d"), chunk("b"), chunk("\ude00c\ud83d"), chunk(finish="stop"))
    assert final.text == "a\ufffdb\ufffdc\ufffd"
    assert not any(
        "\ud800" <= c <= "\udfff"
        for event in run(chunk("a\ud83d"), chunk("b"), chunk(finish="stop"))
        if isinstance(event, TextDelta)
        for c in event.delta
    )


def test_json_that_strict_decoders_refuse_is_read() -> None:
    """05 sc. 87: raw control characters, bad escapes and bytes that are not UTF-8 inside strings."""
    assert message(b'{"choices":[{"delta":{"content":"a\nb"}}]}', chunk(finish="stop")).text == "a\nb"
    assert message(b'{"choices":[{"delta":{"content":"a\\d"}}]}', chunk(finish="stop")).text == "a\\d"
    assert message(b'{"choices":[{"delta":{"content":"a\xff"}}]}', chunk(finish="stop")).text == "a\ufffd"


def test_a_huge_event_is_one_delta() -> None:
    """05 sc. 148: 5 MiB in one chunk."""
    assert len(message(chunk("x" * (5 << 20)), chunk(finish="stop")).text) == 5 << 20


KEYS = ["choices", "delta", "content", "tool_calls", "function", "arguments", "name", "id", "index", "usage", "error", "finish_reason", "message"]
KEYS += ["reasoning", "reasoning_details", "type", "prompt_tokens", "prompt_tokens_details", "text"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
JSON = st.recursive(
    SCALARS | st.sampled_from(["stop", "", "tool_calls", "{", "A"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON | st.binary(max_size=20), max_size=6))
def test_malformed_events_never_raise_anything_but_a_failure(events: list[Any]) -> None:
    """Fuzz (decision 16): whatever a server sends, the response settles or fails as a provider failure."""
    model = chat_model()
    writer = StreamWriter(model)
    decoder = Decoder(model, ChatCompat(), writer)
    settled: AssistantMessage | None = None
    try:
        for event in events:
            decoder.feed(event if isinstance(event, bytes) else json.dumps(event).encode())
        last = decoder.finish()[-1]
        settled = last.message if isinstance(last, StreamDone) else None
    except ProviderFailure as failure:
        settled = writer.fail(failure, False)
    assert settled is not None
    assert settled.stop_reason in ("stop", "tool_use", "length", "error")


@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_any_cut_of_a_text_gives_the_text(text: str, cuts: list[int]) -> None:
    """Property: deltas of any size, cut also between UTF-16 units, join to the same text and the events agree with it."""
    units = text.encode("utf-16-le", "surrogatepass")
    edges = [0, *sorted(min(cut * 2, len(units)) for cut in cuts), len(units)]
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(edges)]
    events = run(*(chunk(piece) for piece in pieces), chunk(finish="stop"))
    final = events[-1]
    assert isinstance(final, StreamDone)
    assert final.message.text == text
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == text


def test_partial_shows_the_response_as_it_grows() -> None:
    """05 sc. 38: every event has the same live partial."""
    events = run(chunk("a"), tools(fragment('{"p":"x', index=0, call_id="A", name="f")), tools(fragment('y"}', index=0)), chunk(finish="tool_calls"))
    partials = {id(event.partial) for event in events if isinstance(event, (TextStart, TextDelta, ToolCallStart, ToolCallDelta))}
    assert len(partials) == 1
