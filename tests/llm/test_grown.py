"""Reading a transcript that grows: what was read is not read again, and the answer is that of a first reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from laneway.llm import estimate_context
from laneway.llm._grown import Grown
from laneway.llm._thinking import _Estimator
from laneway.llm._transform import WireItems, _KeptJson, encode_body, system_messages
from laneway.llm.base import encode_json
from laneway.messages import AgentMessage, AssistantMessage, Message, SystemMessage, TextContent, ToolCall, Usage, UserMessage


class Reader:
    """A fold that notes what it reads."""

    def __init__(self, log: list[int]) -> None:
        self.log = log

    def take(self, messages: Sequence[AgentMessage], start: int) -> int:
        """Read what is new and count everything."""
        self.log.append(len(messages) - start)
        return len(messages)


def test_a_transcript_that_grew_costs_what_is_new() -> None:
    """Promise 6: a request is as dear as what it adds, whatever came before."""
    log: list[int] = []
    grown: Grown[int] = Grown(lambda: Reader(log))
    messages: list[Message] = [UserMessage(content=str(n), timestamp=n) for n in range(1000)]
    assert grown.of(messages) == 1000
    assert grown.of([*messages, UserMessage(content="more")]) == 1001
    assert grown.of(list(messages[:1000])) == 1000
    assert log == [1000, 1, 1000]  # a shorter transcript is another one


def test_a_transcript_that_was_changed_in_place_is_read_anew() -> None:
    """The caller's list is not kept, and equal lengths prove nothing."""
    log: list[int] = []
    grown: Grown[int] = Grown(lambda: Reader(log))
    messages: list[Message] = [UserMessage(content="a", timestamp=0), UserMessage(content="b", timestamp=0)]
    grown.of(messages)
    messages[0] = UserMessage(content="c", timestamp=0)
    grown.of(messages)
    assert log == [2, 2]


def test_only_the_last_few_transcripts_are_remembered() -> None:
    """Memory does not grow with the number of conversations."""
    log: list[int] = []
    grown: Grown[int] = Grown(lambda: Reader(log), size=2)
    for n in (1, 2, 3, 1):
        grown.of([UserMessage(content=str(n), timestamp=0)])
    assert log == [1, 1, 1, 1]
    assert len(grown._entries) == 2


MESSAGES = st.one_of(
    st.builds(UserMessage, content=st.text(max_size=20), timestamp=st.integers(0, 5)),
    st.builds(SystemMessage, content=st.text(max_size=5), timestamp=st.just(0)),
    st.builds(
        AssistantMessage,
        content=st.just([TextContent(text="t" * 9), ToolCall(id="c", name="f", arguments={"a": 1})]),
        usage=st.builds(Usage, input=st.integers(0, 3)),
        stop_reason=st.sampled_from(["stop", "error"]),
        timestamp=st.integers(0, 5),
    ),
)


@given(messages=st.lists(MESSAGES, max_size=8), cuts=st.lists(st.integers(0, 8), max_size=4))
def test_growing_step_by_step_gives_what_a_first_reading_gives(messages: list[Any], cuts: list[int]) -> None:
    """05 §1.9: the last report that nothing before it outdates, and estimates after it, however the list came about."""
    for cut in sorted(cuts):
        estimate_context(messages[:cut])
        system_messages(messages[:cut])
    assert estimate_context(messages) == _Estimator().take(messages, 0)
    assert system_messages(messages) == [message for message in messages if isinstance(message, SystemMessage)]


@given(before=st.booleans(), between=st.booleans(), after=st.booleans(), kept=st.integers(0, 3), fresh=st.integers(0, 2), lead=st.integers(0, 1))
def test_a_body_is_encoded_as_if_nothing_were_kept(before: bool, between: bool, after: bool, kept: int, fresh: int, lead: int) -> None:
    """Kept JSON is put between the rest, byte for byte where it would be; two kept lists in one body are fine too."""
    store = _KeptJson()
    store.extend([{"n": n} for n in range(kept)])

    def items() -> WireItems[Any]:
        made: WireItems[Any] = WireItems([{"n": n} for n in range(kept + fresh)], store)
        return made.with_lead({"lead": "\ud83d"}) if lead else made

    body: dict[str, Any] = {"model": "m"} if before else {}
    body["messages"] = items()
    if between:
        body["null"] = None
    body["again"] = items()
    if after:
        body["last"] = {"x": [1, None]}
    assert encode_body(body) == encode_json({key: list(value) if isinstance(value, WireItems) else value for key, value in body.items()})
