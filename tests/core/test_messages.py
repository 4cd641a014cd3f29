"""Messages: strict, byte-stable, open to custom roles."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from laneway import (
    AssistantMessage,
    Cost,
    CustomMessage,
    ImageContent,
    MessageError,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    Usage,
    UserMessage,
    decode_message,
    encode,
    register_message,
)
from laneway.llm import Model
from laneway.llm._writer import StreamWriter
from laneway.messages import BashExecutionMessage, BranchSummaryMessage, CompactionSummaryMessage, clean_text, is_message, known_roles, role_of


@register_message
class Ticket(Struct, kw_only=True, frozen=True, tag_field="role", tag="messages_test_ticket"):
    """A custom message."""

    number: int


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
usages = st.builds(Usage, input=st.integers(0, 10**6), cache_write_1h=st.none() | st.integers(0, 9), cost=st.builds(Cost, total=st.floats(0, 9)))
texts = st.builds(TextContent, text=st.text(), signature=st.none() | st.text(max_size=5))
images = st.builds(ImageContent, data=st.text(max_size=5), mime_type=st.just("image/png"))
tool_calls = st.builds(ToolCall, id=st.text(), name=st.text(), arguments=st.dictionaries(st.text(max_size=5), json_values, max_size=3))
declarations = st.builds(ToolDeclaration, name=st.text(), description=st.text(), parameters=st.just({}))
messages = st.one_of(
    st.builds(SystemMessage, content=st.text(), sections=st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.text(), max_size=2),
              tools_added=st.none() | st.lists(declarations, max_size=2)),
    st.builds(UserMessage, content=st.text() | st.lists(texts | images, max_size=3)),
    st.builds(AssistantMessage, usage=usages, content=st.lists(
        texts | tool_calls | st.builds(ThinkingContent, thinking=st.text(), redacted=st.booleans()), max_size=4)),
    st.builds(ToolResultMessage, tool_call_id=st.text(), tool_name=st.text(), content=st.lists(texts | images, max_size=2), details=json_values),
    st.builds(CustomMessage, custom_type=st.text(), content=st.text(), details=json_values),
    st.builds(Ticket, number=st.integers(-(2**60), 2**60)),
)  # fmt: skip


@given(messages)
def test_a_message_round_trips_byte_stably(message: Any) -> None:
    """05-150: encode, decode, encode gives the same bytes, for every role."""
    data = encode(message)
    assert encode(decode_message(data)) == data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"role":"nobody"}', "nobody"),
        ('{"role":"user"}', "content"),
        ('{"role":"user","content":"x","extra":1}', "extra"),
        ('{"role":"user","content":5}', "content"),
        ('{"role":"assistant","content":[{"type":"sound"}]}', "sound"),
        ('{"content":"x"}', "role"),
        ("not json", "malformed"),
        ('{"role":"user","content":"x"', "truncated"),
        ("[]", "array"),
        ("", "truncated"),
    ],
)
def test_decoding_is_strict_and_names_the_place(data: str, words: str) -> None:
    """A corrupt or foreign record is an error at the place where it is read."""
    with pytest.raises(MessageError, match=words):
        decode_message(data)


def test_an_unknown_role_says_how_to_make_it_known() -> None:
    """The usual cause is a custom role that was not registered."""
    with pytest.raises(MessageError, match="register_message"):
        decode_message('{"role":"elsewhere","x":1}')


def test_custom_roles_are_registered_once() -> None:
    """The same class again is fine; another class with the role, a built-in role or no role is refused."""
    assert register_message(Ticket) is Ticket
    assert "messages_test_ticket" in known_roles()
    assert role_of(Ticket(number=1)) == "messages_test_ticket"
    assert Ticket(number=1).role == "messages_test_ticket"  # type: ignore[attr-defined] - added by register_message
    assert is_message(Ticket(number=1))

    class Other(Struct, tag_field="role", tag="messages_test_ticket"):
        pass

    class Fake(Struct, tag_field="role", tag="user"):
        pass

    class Bare(Struct):
        pass

    for wrong, words in ((Other, "already belongs"), (Fake, "built-in"), (Bare, "tag_field")):
        with pytest.raises(ValueError, match=words):
            register_message(wrong)


def test_lone_surrogates_become_replacement_characters() -> None:
    """B44: half a pair cannot be encoded; a pair split in two is joined; an emoji stays."""
    assert clean_text("x\ud83d y") == "x\ufffd y"
    assert clean_text("\ud83d\ude00 \U0001f600") == "\U0001f600 \U0001f600"
    message = UserMessage(content="\udcff.txt", timestamp=1)
    assert decode_message(encode(message)) == UserMessage(content="\ufffd.txt", timestamp=1)
    result = ToolResultMessage(tool_call_id="1", tool_name="t", details={"\ud83d": ["\udfff"]}, timestamp=1)
    assert decode_message(encode(result)).details == {"\ufffd": ["\ufffd"]}  # type: ignore[union-attr] - a tool result


def test_what_is_not_json_cannot_be_encoded() -> None:
    """The error names what it was."""
    with pytest.raises(MessageError, match="ToolResultMessage"):
        encode(ToolResultMessage(tool_call_id="1", tool_name="t", details=object()))


def test_text_and_tool_calls_of_an_answer() -> None:
    """Thinking is neither."""
    call = ToolCall(id="1", name="t")
    message = AssistantMessage(content=[ThinkingContent(thinking="hm"), TextContent(text="a"), call, TextContent(text="b")])
    assert message.text == "ab"
    assert message.tool_calls == [call]


def test_usages_add_up() -> None:
    """05 1.3: optional counts appear in the sum if either side has them."""
    total = Usage(input=1, output=2, reasoning=1, cost=Cost(total=0.5)) + Usage(input=3, cache_write_1h=4, cost=Cost(total=0.25))
    assert total == Usage(input=4, output=2, reasoning=1, cache_write_1h=4, cost=Cost(total=0.75))
    assert (Usage() + Usage()).reasoning is None


def test_messages_are_frozen() -> None:
    """A transcript never changes under its reader."""
    with pytest.raises(AttributeError):
        UserMessage(content="x").content = "y"  # type: ignore[misc] - refused on purpose


def test_a_streaming_message_encodes_and_copies_as_it_is_now() -> None:
    """The live partial: reading it is enough to bring it up to date."""
    writer = StreamWriter(Model(id="m", provider="p", api="a"))
    index = writer.open_text()
    writer.text(index, "hel")
    partial = writer.partial
    copied, deep = copy.copy(partial), copy.deepcopy(partial)
    writer.text(index, "lo")
    assert isinstance(partial, AssistantMessage)
    assert partial.text == "hello"
    assert type(copied) is AssistantMessage
    assert copied == deep
    assert copied.text == "hel"
    assert decode_message(encode(partial)) == partial.snapshot()
    assert msgspec.json.decode(encode(partial))["stop_reason"] == "pending"


def test_every_message_says_its_text() -> None:
    """What a person reads of the last message, whichever it is, without asking for its type."""
    said = [
        SystemMessage(content="be brief"),
        UserMessage(content=[TextContent(text="look")]),
        CustomMessage(custom_type="note", content="mind this"),
        BashExecutionMessage(command="ls", output="notes.txt"),
        CompactionSummaryMessage(summary="so far"),
        BranchSummaryMessage(summary="left"),
    ]
    assert [message.text for message in said] == ["be brief", "look", "mind this", "notes.txt", "so far", "left"]
