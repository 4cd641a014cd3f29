"""`StreamWriter`: the order of events, the live partial, and what they cost."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.errors import Aborted
from laneway.events import AssistantEvent, StreamDone, TextEnd, ThinkingEnd, ToolCallEnd
from laneway.llm import _writer
from laneway.llm._writer import StreamWriter, describe, kind_of
from laneway.llm.base import Model, ProviderFailure
from laneway.messages import AssistantMessage, TextContent, ThinkingContent, ToolCall, Usage, decode_message, encode

MODEL = Model(id="m", provider="p", api="test")


def writer() -> StreamWriter:
    """A writer with a fixed time."""
    return StreamWriter(MODEL, timestamp=1)


def test_blocks_may_interleave_and_end_in_order() -> None:
    """05 §2.2: indexes without gaps, ends in index order, contents as collected."""
    w = writer()
    w.start()
    text = w.open_text(signature="s")
    call = w.open_call("c", "f")
    thought = w.open_thinking()
    w.text(text, "a")
    w.arguments(call, '{"x":')
    w.text(thought, "t")
    w.arguments(call, "1}")
    w.text(text, "b")
    w.sign(thought, "one")
    w.sign(thought, "two", append=True)
    w.done("tool_use", raw="tool_calls")
    events = w.take()
    assert [(e.type, getattr(e, "content_index", None)) for e in events[-4:]] == [
        ("text_end", 0),
        ("toolcall_end", 1),
        ("thinking_end", 2),
        ("done", None),
    ]
    last = events[-1]
    assert isinstance(last, StreamDone)
    assert last.message.content == [
        TextContent(text="ab", signature="s"),
        ToolCall(id="c", name="f", arguments={"x": 1}),
        ThinkingContent(thinking="t", signature="onetwo"),
    ]
    assert (last.message.stop_reason, last.message.raw_stop_reason) == ("tool_use", "tool_calls")


def test_an_authoritative_end_replaces_what_was_collected() -> None:
    """05 §2.2 rule 6: content and arguments given at the end win; ending twice is nothing."""
    w = writer()
    text, call = w.open_text(), w.open_call("c", "f")
    w.text(text, "draft")
    w.arguments(call, "{")
    w.close(text, content="final")
    w.close(call, arguments='{"a":1}')
    w.close(text, content="again")
    ends = [event for event in w.take() if isinstance(event, (TextEnd, ToolCallEnd))]
    assert len(ends) == 2
    assert w.partial.content == [TextContent(text="final"), ToolCall(id="c", name="f", arguments={"a": 1})]
    assert not w.is_open(text)


def test_redacted_thinking_may_be_complete_at_its_start() -> None:
    """05 §2.2 rule 6."""
    w = writer()
    index = w.open_thinking(signature="payload", redacted=True, text="[redacted]")
    w.close(index)
    start, end = w.take()
    assert start.type == "thinking_start"
    assert isinstance(end, ThinkingEnd)
    assert end.content == "[redacted]"
    assert w.partial.content == [ThinkingContent(thinking="[redacted]", signature="payload", redacted=True)]


def test_the_partial_is_brought_up_to_date_when_read() -> None:
    """05 §2.3: pending, live, and copyable at any moment."""
    w = writer()
    index = w.open_text()
    w.text(index, "a")
    before = copy.copy(w.partial)
    w.text(index, "b")
    assert (before.text, w.partial.text, w.partial.stop_reason) == ("a", "ab", "pending")
    assert type(before) is AssistantMessage
    assert type(copy.deepcopy(w.partial)) is AssistantMessage
    assert "ab" in repr(w.partial)
    assert decode_message(encode(w.partial)) == copy.copy(w.partial)


def test_a_failure_keeps_what_had_arrived() -> None:
    """05 §2.2 rule 7: blocks still open get no end event; the typed side of the failure is there."""
    w = writer()
    w.text(w.open_text(), "Hel")
    w.set(usage=Usage(input=5))
    w.note("something odd")
    w.take()
    message = w.fail(ProviderFailure("no", kind="overloaded", status=529, retry_after_ms=10), False)
    assert w.take() == []
    assert message.error is not None
    assert (message.stop_reason, message.error.kind, message.error.status, message.error.retry_after_ms) == ("error", "overloaded", 529, 10)
    assert (message.text, message.usage.input, message.diagnostics) == ("Hel", 5, ["something odd"])


@pytest.mark.parametrize(("error", "aborted"), [(ValueError("x"), True), (Aborted("enough"), False)])
def test_an_abort_is_no_error(error: Exception, aborted: bool) -> None:
    """05 §2.4: aborted iff the signal was set."""
    message = writer().fail(error, aborted)
    assert (message.stop_reason, message.error) == ("aborted", None)


@pytest.mark.parametrize(
    ("error", "text", "kind"),
    [
        (ValueError("x"), "ValueError: x", "unknown"),
        (ValueError(), "ValueError", "unknown"),
        (ProviderFailure("plain"), "plain", "unknown"),
        (TimeoutError("t"), "TimeoutError: t", "timeout"),
        (ConnectionResetError("r"), "ConnectionResetError: r", "network"),
    ],
)
def test_exceptions_are_described(error: Exception, text: str, kind: str) -> None:
    """A person reads a sentence, a program a kind."""
    assert (describe(error), kind_of(error)) == (text, kind)


def test_text_of_many_deltas_is_joined_once_per_look() -> None:
    """Decision 5: a consumer that reads only deltas pays nothing; a look joins what is new to what was joined."""
    w = writer()
    index = w.open_text()
    for _ in range(20_000):
        w.text(index, "x")
    assert len(w.partial.blocks[index].parts) == 20_000
    assert len(w.partial.text) == 20_000
    assert len(w.partial.blocks[index].parts) == 1


class CountedParser:
    """Counts what the parsers are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.characters = 0, 0
        for name in ("parse_partial", "parse_arguments"):
            monkeypatch.setattr(_writer, name, self.wrap(getattr(_writer, name)))

    def wrap(self, function: Any) -> Any:
        """The function, counted."""

        def counted(text: str) -> Any:
            self.calls += 1
            self.characters += len(text)
            return function(text)

        return counted


def arguments_work(monkeypatch: pytest.MonkeyPatch, pieces: list[str], look_every: int) -> tuple[CountedParser, dict[str, Any]]:
    """Stream a call's arguments; a consumer looks at the partial now and then."""
    counted = CountedParser(monkeypatch)
    w = writer()
    index = w.open_call("c", "f")
    for number, piece in enumerate(pieces):
        w.arguments(index, piece)
        if look_every and number % look_every == 0:
            assert isinstance(w.partial.content[0], ToolCall)
    w.done("tool_use")
    last = w.take()[-1]
    assert isinstance(last, StreamDone)
    return counted, last.message.tool_calls[0].arguments


def test_a_megabyte_of_arguments_costs_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """05 sc. 53, decision 5: one string in 10-byte deltas; without a look one parse, with a look at each delta a geometric few."""
    value = "x" * 1_000_000
    text = '{"content":"' + value + '"}'
    pieces = [text[i : i + 10] for i in range(0, len(text), 10)]
    counted, arguments = arguments_work(monkeypatch, pieces, 0)
    assert (counted.calls, arguments) == (1, {"content": value})
    counted, arguments = arguments_work(monkeypatch, pieces, 1)
    assert arguments == {"content": value}
    assert counted.calls < 150
    assert counted.characters < 14 * len(text)


def test_many_small_objects_cost_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """05 sc. 54: 200 KB of objects in 12-byte deltas."""
    text = '{"edits":[' + ",".join(f'{{"old":"abc","new":"def","n":{n}}}' for n in range(6000)) + "]}"
    counted, arguments = arguments_work(monkeypatch, [text[i : i + 12] for i in range(0, len(text), 12)], 1)
    assert len(arguments["edits"]) == 6000
    assert counted.characters < 14 * len(text)


def test_the_work_grows_with_the_text_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the text is about twice the work."""
    work: list[int] = []
    for size in (50_000, 100_000, 200_000):
        text = '{"a":"' + "x" * size + '"}'
        counted, _ = arguments_work(monkeypatch, [text[i : i + 10] for i in range(0, len(text), 10)], 1)
        work.append(counted.characters)
    assert work[2] < 2.5 * work[1] < 6.5 * work[0]


def test_late_names_and_ids_are_filled_in() -> None:
    """05 sc. 98."""
    w = writer()
    index = w.open_call("", "")
    w.name_call(index, call_id="c")
    w.name_call(index, name="f")
    assert w.partial.content == [ToolCall(id="c", name="f")]
    assert w.arguments_text(index) == ""


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["text", "thinking", "call", "delta", "close", "look"]), st.integers(0, 5), st.text(max_size=4)), max_size=30
)


@given(OPERATIONS)
def test_no_order_of_calls_can_break_the_order_of_events(operations: list[tuple[str, int, str]]) -> None:
    """Property (05 §10.3): start first, each block start, deltas, end once, indexes without gaps, done last; deltas join to the content."""
    w = writer()
    w.start()
    kinds: list[str] = []
    for name, which, text in operations:
        if name == "text":
            w.open_text()
            kinds.append("text")
        elif name == "thinking":
            w.open_thinking()
            kinds.append("thinking")
        elif name == "call":
            w.open_call(f"c{len(kinds)}", "f")
            kinds.append("call")
        elif name == "look":
            assert len(w.partial.content) == len(kinds)
        elif kinds and w.is_open(index := which % len(kinds)):
            if name == "close":
                w.close(index)
            else:
                (w.arguments if kinds[index] == "call" else w.text)(index, text)
    w.done("stop")
    check_order(w.take(), kinds)


def check_order(events: list[AssistantEvent], kinds: list[str]) -> None:
    """The guarantees of 05 §2.2."""
    assert events[0].type == "start"
    last = events[-1]
    assert isinstance(last, StreamDone)
    assert [event.type for event in events].count("done") == 1
    started = [event.content_index for event in events if event.type.endswith("_start")]  # type: ignore[union-attr]  # block events
    assert started == list(range(len(kinds)))
    for index in range(len(kinds)):
        own: list[Any] = [event for event in events if getattr(event, "content_index", None) == index]
        assert own[0].type.endswith("_start")
        assert own[-1].type.endswith("_end")
        assert all(event.type.endswith("_delta") for event in own[1:-1])
        if kinds[index] != "call":
            assert own[-1].content == "".join(event.delta for event in own[1:-1])
