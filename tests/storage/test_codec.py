"""How rows become bytes and come back."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest

from laneway.errors import MessageError, StorageCorruption
from laneway.messages import AssistantMessage, CustomMessage, TextContent, ToolCall, Usage, UserMessage
from laneway.storage._codec import EncodedEntry, decode_json, decode_stats, decode_usage, encode_commit, encode_json, encode_stats
from laneway.storage._json import MAX_DEPTH
from laneway.storage.base import CompactionEntry, CustomEntry, Entry, InsertEntry, InsertUsage, MessageEntry, SessionStats, SetValue, UsageRow


class Text(str):
    """A text of a class of its own."""

    def __str__(self) -> str:
        return "not this"


class Count(int):
    """A number of a class of its own."""


class Colour(enum.StrEnum):
    """A text that is one of a few."""

    RED = "red"


def encoded(entry: Entry) -> EncodedEntry:
    """Encode one entry."""
    (row,) = encode_commit([InsertEntry(entry)]).writes
    assert isinstance(row, EncodedEntry)
    return row


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (Text("x"), b'"x"'),
        ({Text("k"): Text("v")}, b'{"k":"v"}'),
        (Count(3), b"3"),
        (Colour.RED, b'"red"'),
        ([True, 1, 1.0], b"[true,1,1.0]"),
        ((1, (2,)), b"[1,[2]]"),
        ("\ud800", b'"\xef\xbf\xbd"'),
        ({"\ud83d\ude00": "\ud83d"}, b'{"\xf0\x9f\x98\x80":"\xef\xbf\xbd"}'),
        ("\0", b'"\\u0000"'),
    ],
)
def test_values_are_encoded_as_what_they_are(value: Any, json: bytes) -> None:
    """Subclasses of text and numbers by their content, tuples as lists, text as UTF-8 whatever it holds."""
    assert encode_json(value, "value n/k") == json


@pytest.mark.parametrize("terminate", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        UserMessage(content="ä\0\u2028" + "[" * 400),
        AssistantMessage(content=[TextContent(text="x"), ToolCall(id="c", name="t", arguments={"a": [1, {}]})], usage=Usage(input=1)),
        CustomMessage(custom_type="t", content="x", details=[[0]] * 400),
    ],
)
def test_a_message_is_encoded_alike_whichever_way_it_takes(message: Any, terminate: bool) -> None:
    """The short way, for what comes back as it was given, stores the same bytes as the thorough one."""
    row = encoded(MessageEntry(id="a", parent_id=None, message=message, terminate=terminate))
    fields = {"message": message, **({"terminate": True} if terminate else {})}
    assert row.payload == msgspec.json.encode(fields)
    decoded = row.decode()
    assert isinstance(decoded, MessageEntry)
    assert (decoded.message, decoded.terminate) == (message, terminate)


def test_a_subclass_of_a_write_is_that_write() -> None:
    """It is found by its kind; anything else is refused by its name."""

    class Mine(SetValue, frozen=True, tag="mine"):
        pass

    assert encode_commit([Mine("n", "k", 1)]).writes == encode_commit([SetValue("n", "k", 1)]).writes
    with pytest.raises(TypeError, match="dict, which is not a Write"):
        encode_commit([{"n": "k"}])  # type: ignore[list-item] - a caller without types


def test_json_in_bytes_is_taken_as_it_is_if_it_is_json() -> None:
    """What cannot be read again is refused before it is stored."""
    assert encode_json(msgspec.Raw(b'{"a": [1]}'), "value n/k") == b'{"a": [1]}'
    for wrong in (b"", b"{", b"nan", b'"\xff"', b'"\\ud800"', b"1 2", b"[" * 400 + b"]" * 400):
        with pytest.raises(TypeError, match="value n/k is not JSON-safe"):
            encode_json(msgspec.Raw(wrong), "value n/k")


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_is_limited_alike_everywhere() -> None:
    """What is stored can be read from any depth of calls; many shallow lists are no deep one."""
    assert encode_json(nested(MAX_DEPTH), "v")
    assert encode_json([[i] for i in range(10_000)], "v")
    with pytest.raises(TypeError, match="nested more than"):
        encode_json(nested(MAX_DEPTH + 1), "v")
    with pytest.raises(TypeError, match="nested more than"):
        encoded(CustomEntry(id="a", parent_id=None, custom_type="t", data=[[0]] * 400 + [nested(MAX_DEPTH + 1)]))


def test_the_error_names_the_write_and_the_path() -> None:
    """A person finds the place; a path that cannot be printed is cleaned."""
    with pytest.raises(TypeError, match=r"value n/k is not JSON-safe at \$\.a\[1\]: bytes is not JSON"):
        encode_commit([SetValue("n", "k", {"a": [0, b"x"]})])
    with pytest.raises(TypeError, match=r"entry 'e' is not JSON-safe at \$\.message\.content\[0\]\.arguments\.x"):
        encoded(MessageEntry(id="e", parent_id=None, message=AssistantMessage(content=[ToolCall(id="1", name="t", arguments={"x": {1}})])))
    with pytest.raises(TypeError, match="\ufffd"):
        encode_json({"\ud800": float("nan")}, "v")


def test_a_typed_object_may_not_stand_where_json_is_declared() -> None:
    """It would come back as something else."""
    with pytest.raises(TypeError, match="Usage is not JSON"):
        encoded(MessageEntry(id="e", parent_id=None, message=CustomMessage(custom_type="c", content="x", details=Usage())))


def test_fields_of_the_wrong_type_are_refused() -> None:
    """What could not be read again is not written."""
    wrong: Any = 5
    for entry in (
        CompactionEntry(id="a", parent_id=None, summary=wrong),
        CompactionEntry(id="a", parent_id=None, summary="s", tokens_before=1.5),  # type: ignore[arg-type]  # the point of the test
        MessageEntry(id="a", parent_id=None, message=UserMessage(content=wrong)),
        MessageEntry(id="a", parent_id=None, message=UserMessage(content="x"), terminate=wrong),
    ):
        with pytest.raises(TypeError, match="entry 'a' cannot be stored"):
            encoded(entry)
    with pytest.raises(MessageError, match="no message"):
        encoded(MessageEntry(id="a", parent_id=None, message=wrong))


def test_a_live_message_is_taken_as_it_is_at_this_moment() -> None:
    """A subclass that still grows is stored as the plain message that it is a view of; a pending one is refused."""

    class Live(AssistantMessage, kw_only=True, frozen=True, tag="assistant"):
        def __copy__(self) -> AssistantMessage:
            return AssistantMessage(content=[TextContent(text="now")], stop_reason=self.stop_reason, timestamp=1)

    row = encoded(MessageEntry(id="a", parent_id=None, message=Live(content=[], stop_reason="stop")))
    decoded = row.decode()
    assert isinstance(decoded, MessageEntry)
    assert decoded.message == AssistantMessage(content=[TextContent(text="now")], stop_reason="stop", timestamp=1)
    with pytest.raises(MessageError, match="still streams"):
        encoded(MessageEntry(id="a", parent_id=None, message=Live(content=[], stop_reason="pending")))


GOOD = encoded(MessageEntry(id="a", parent_id=None, message=UserMessage(content="x", timestamp=1)))


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": b""},
        {"payload": b"{"},
        {"payload": b"[]"},
        {"payload": b"\xff\xfe"},
        {"payload": b"{}"},
        {"payload": b'{"message":5}'},
        {"payload": b'{"message":{"role":"nobody"}}'},
        {"payload": b'{"message":{"role":"user"}}'},
        {"payload": b'{"message":{"role":"user","content":"x","timestamp":1},"more":1}'},
        {"payload": b'{"message":' + b"[" * 100_000 + b"]" * 100_000 + b"}"},
        {"type": "compaction"},
        {"type": "custom"},
        {"type": "unheard_of"},
    ],
)
def test_a_damaged_entry_is_named(changes: dict[str, Any]) -> None:
    """B88: an unknown type, role or field, or anything that is no entry, is `StorageCorruption` with the entry's id."""
    with pytest.raises(StorageCorruption, match="entry 'a'"):
        msgspec.structs.replace(GOOD, **changes).decode()


def test_damaged_values_ledger_rows_and_totals_are_named() -> None:
    """The text says what it was."""
    with pytest.raises(StorageCorruption, match="value n/k"):
        decode_json(b"{", "value n/k")
    with pytest.raises(StorageCorruption, match="usage row 'u'"):
        decode_usage(id="u", entry_id=None, seq=1, timestamp=1, payload=b'{"usage":5}')
    with pytest.raises(StorageCorruption, match="totals"):
        decode_stats(b"{}x")


def test_totals_come_back() -> None:
    """Optional counts included."""
    stats = SessionStats(message_count=3, usage=Usage(input=1, reasoning=2))
    assert decode_stats(encode_stats(stats)) == stats


def test_a_commits_totals_and_numbers() -> None:
    """Seqs go on from the next one; kept ones make gaps; totals grow by messages and ledger rows only."""
    kept = InsertEntry(CustomEntry(id="c", parent_id=None, custom_type="t", seq=20, timestamp=5), keep_seq=True)
    commit = encode_commit([SetValue("n", "k", 1), kept, InsertUsage(UsageRow(id="u", usage=Usage(input=2))), SetValue("n", "k", 2)])
    assert commit.number(3) == [3, 20, 21, 22]
    assert commit.stats_after(SessionStats(message_count=1)) == SessionStats(message_count=1, usage=Usage(input=2))
    with pytest.raises(ValueError, match="keep the seq 20"):
        commit.number(21)
