"""The rules of what a store takes: JSON, text, messages. The same outcome on every backend."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from msgspec import Struct

from laneway.errors import MessageError
from laneway.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    Cost,
    CustomMessage,
    DeferredHandle,
    ErrorInfo,
    ImageContent,
    StopReason,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    Usage,
    UserMessage,
    register_message,
)
from laneway.storage.base import (
    AppendList,
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    InsertEntry,
    InsertUsage,
    MessageEntry,
    SetValue,
    Storage,
    UsageRow,
    UsageScan,
    Write,
)
from laneway.testing._storage_rows import entry, everything, row, tokens

STOP_REASONS: tuple[StopReason, ...] = ("stop", "length", "tool_use", "error", "aborted", "deferred")

LONE = "\ud83d"
MESSAGES: tuple[AgentMessage, ...] = (
    SystemMessage(content="be brief", sections={"a": "x", "b": None}, tools_removed=["t"], timestamp=1,
                  tools_added=[ToolDeclaration(name="t", description="d", parameters={"type": "object", "properties": {}})]),
    UserMessage(content="text", timestamp=1),
    UserMessage(content=[TextContent(text="a"), ImageContent(data="aGk=", mime_type="image/png")], timestamp=1),
    AssistantMessage(
        content=[ThinkingContent(thinking="hm", signature="s", redacted=True), TextContent(text="b", signature="z"),
                 ToolCall(id="1", name="t", arguments={"x": [1, 2.5, None, True, {"y": "z"}]}, arguments_error="e", signature="q")],
        api="a", provider="p", model="m", usage=Usage(input=1, output=2, cost=Cost(total=0.25)), stop_reason="error", error_message="oops",
        error=ErrorInfo(kind="rate_limit", status=429, retry_after_ms=5), response_id="r", response_model="rm", raw_stop_reason="x",
        thinking_level="high", diagnostics=["d"], deferred=DeferredHandle(id="d", provider="p", model_id="m", api="a", data={"k": 1}), timestamp=1,
    ),
    ToolResultMessage(tool_call_id="1", tool_name="t", content=[TextContent(text="r")], details={"n": [1]}, usage=Usage(output=3), is_error=True,
                      timestamp=1),
    CustomMessage(custom_type="c", content="x", details=[1], timestamp=1),
    BashExecutionMessage(command="ls", output="a", exit_code=1, truncated=True, timestamp=1),
    CompactionSummaryMessage(summary="s", tokens_before=4, timestamp=1),
    BranchSummaryMessage(summary="s", from_id="f", timestamp=1),
)  # fmt: skip


class _Unregistered(Struct, tag_field="role", tag="conformance_unregistered", frozen=True):
    text: str


@register_message
class ConformanceNote(Struct, tag_field="role", tag="conformance_note", frozen=True):
    """An application's own message."""

    text: str
    data: Any = None


class _Colour(enum.Enum):
    RED = "red"


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def _itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


UNSAFE: tuple[tuple[Any, str], ...] = (
    (float("nan"), "$"),
    ({"a": [1, float("inf")]}, "$.a[1]"),
    ({"a": {"b": -float("inf")}}, "$.a.b"),
    ({1: "x"}, "$"),
    ({"a": {None: "x"}}, "$.a"),
    ({"a": [{(1, 2): "x"}]}, "$.a[0]"),
    ({"a": b"bytes"}, "$.a"),
    ([bytearray(b"x")], "$[0]"),
    ({"a": {1, 2}}, "$.a"),
    ({"a": frozenset({"x"})}, "$.a"),
    ({"a": object()}, "$.a"),
    ({"a": _Colour.RED}, "$.a"),
    ({"a": Usage()}, "$.a"),
    ({"a": lambda: None}, "$.a"),
    (_itself(), "nested"),
    (_nested(1_000), "nested"),
)


class ContentRules:
    """What goes in comes out, or is refused before anything is written."""

    @pytest.mark.parametrize("index", range(len(MESSAGES)))
    async def test_every_message_comes_back_equal(self, storage: Storage, index: int) -> None:
        """S-21, S-01: every built-in role, with every field set."""
        await storage.commit([entry("a", None, MESSAGES[index])])
        stored = (await storage.get_entries(["a"]))["a"]
        assert isinstance(stored, MessageEntry)
        assert stored.message == MESSAGES[index]
        assert type(stored.message) is type(MESSAGES[index])

    async def test_every_entry_comes_back_equal(self, storage: Storage) -> None:
        """S-01: all four types with every field set, and with none."""
        usage = Usage(input=4, cost=Cost(total=0.5))
        given: list[Entry] = [
            MessageEntry(id="a", parent_id=None, message=UserMessage(content="x", timestamp=1), terminate=True),
            CompactionEntry(id="b", parent_id="a", summary="s", retained_tail=list(MESSAGES), tokens_before=7, details={"x": 1}, usage=usage,
                            from_hook=True),
            BranchSummaryEntry(id="c", parent_id="b", from_id="a", summary="s", details=[None], usage=usage, from_hook=True),
            CustomEntry(id="d", parent_id="c", custom_type="t", data={"deep": [{"x": [1.5, "y", None, False]}]}),
            CompactionEntry(id="e", parent_id="d", summary=""),
            BranchSummaryEntry(id="f", parent_id="e", from_id=None, summary=""),
            CustomEntry(id="g", parent_id="f", custom_type=""),
        ]  # fmt: skip
        result = await storage.commit([InsertEntry(e) for e in given])
        stored = (await everything(storage)).entries
        assert [e.seq for e in stored] == result.seqs
        assert [type(e) for e in stored] == [type(e) for e in given]
        again = [InsertEntry(e) for e in stored]
        assert [(w.entry.id, w.entry.parent_id) for w in again] == [(e.id, e.parent_id) for e in given]
        for a, b in zip(stored, given, strict=True):
            for name in b.__struct_fields__:
                if name not in ("seq", "timestamp"):
                    assert getattr(a, name) == getattr(b, name)

    async def test_a_message_that_still_streams_is_refused(self, storage: Storage) -> None:
        """S-21: a pending assistant message never reaches a store, nor in a compaction's tail; settled ones do."""
        pending = AssistantMessage(content=[], stop_reason="pending")
        before = await everything(storage)
        for bad in (entry("a", None, pending), InsertEntry(CompactionEntry(id="a", parent_id=None, summary="s", retained_tail=[pending]))):
            with pytest.raises(MessageError):
                await storage.commit([SetValue("n", "k", 1), bad])
        assert await everything(storage) == before
        for i, reason in enumerate(STOP_REASONS):
            await storage.commit([entry(str(i), None, AssistantMessage(content=[], stop_reason=reason))])
            stored = (await storage.get_entries([str(i)]))[str(i)]
            assert isinstance(stored, MessageEntry)
            assert isinstance(stored.message, AssistantMessage)
            assert stored.message.stop_reason == reason

    async def test_an_unregistered_role_is_refused(self, storage: Storage) -> None:
        """S-21: before it is stored; a registered one comes back as its class."""
        before = await everything(storage)
        with pytest.raises(MessageError, match="register_message"):
            await storage.commit([SetValue("n", "k", 1), entry("a", None, _Unregistered(text="x"))])
        assert await everything(storage) == before
        note = ConformanceNote(text="x", data={"a": [1]})
        await storage.commit([entry("a", None, note)])
        stored = (await storage.get_entries(["a"]))["a"]
        assert isinstance(stored, MessageEntry)
        assert stored.message == note

    @pytest.mark.parametrize("index", range(len(UNSAFE)))
    async def test_what_is_not_json_is_refused_by_its_path(self, storage: Storage, index: int) -> None:
        """S-02: as a value, an element, an entry's data, a tool's details or arguments; the text names the path; nothing is written."""
        unsafe, path = UNSAFE[index]
        call = AssistantMessage(content=[ToolCall(id="1", name="t", arguments={"x": unsafe})])
        result = ToolResultMessage(tool_call_id="1", tool_name="t", details=unsafe)
        before = await everything(storage)
        bad: tuple[Write, ...] = (
            SetValue("n", "k", unsafe),
            AppendList("l", "k", unsafe),
            InsertEntry(CustomEntry(id="a", parent_id=None, custom_type="t", data=unsafe)),
            entry("a", None, result),
            entry("a", None, call),
            row("u", Usage(), details=unsafe),
        )
        for write in bad:
            with pytest.raises(TypeError) as raised:
                await storage.commit([SetValue("n", "fine", 1), write])
            assert path.removeprefix("$") in str(raised.value)
        assert await everything(storage) == before

    async def test_numbers_that_are_not_json_are_refused_in_typed_fields_too(self, storage: Storage) -> None:
        """S-16: a cost that is not a number would poison the totals; a count that is not whole could not be read again."""
        half: Any = 1.5
        for usage in (Usage(cost=Cost(total=float("nan"))), Usage(input=half)):
            with pytest.raises(TypeError):
                await storage.commit([row("u", usage)])
            with pytest.raises(TypeError):
                await storage.commit([entry("a", None, AssistantMessage(content=[], usage=usage))])
        assert (await storage.get_stats()).usage == Usage()

    async def test_json_values_come_back_equal(self, storage: Storage) -> None:
        """S-08: every kind of JSON; whole numbers of any size; tuples become lists; a float stays a float."""
        values: list[Any] = [
            None, True, False, 0, -1, 2**53 + 1, 2**63, -(2**63) - 1, 10**40, 0.1, -0.0, 1e300, 5e-324, 1.0, "", "x", [], {}, [[[]]], {"": {"": []}},
            {"a": (1, 2)}, {"é": "\u2028\u2029", "\U0001f600": "\x7f\x1f"},
        ]  # fmt: skip
        await storage.commit([SetValue("n", str(i), value) for i, value in enumerate(values)])
        await storage.commit([AppendList("l", "k", value) for value in values])
        values[-2] = {"a": [1, 2]}
        for i, value in enumerate(values):
            stored = await storage.get_value("n", str(i))
            assert stored is not None
            assert stored.value == value
            assert type(stored.value) is type(value)
        assert [e.value for e in await storage.read_list("l", "k")] == values

    async def test_nul_is_kept_and_lone_surrogates_are_replaced(self, storage: Storage) -> None:
        """S-11: in text of every kind, keys included; a split pair is joined; the same on every backend."""
        text, kept = f"a\0b{LONE}c\ud83d\ude00", "a\0b\ufffdc\U0001f600"
        await storage.commit([
            SetValue("n", "k", {text: [text]}),
            AppendList("l", "k", text),
            entry("a", None, text),
            entry("b", "a", AssistantMessage(content=[ToolCall(id="1", name=text, arguments={text: {"x": text}})])),
            InsertEntry(CustomEntry(id="c", parent_id="b", custom_type=f"t{LONE}", data=text)),
            InsertEntry(CompactionEntry(id="d", parent_id="c", summary=text, retained_tail=[UserMessage(content=text, timestamp=1)], details=text)),
            InsertUsage(UsageRow(id="u", usage=Usage(), details={text: text})),
        ])  # fmt: skip
        stored = {e.id: e for e in (await everything(storage)).entries}
        a, b, c, d = stored["a"], stored["b"], stored["c"], stored["d"]
        assert isinstance(a, MessageEntry)
        assert a.message == UserMessage(content=kept, timestamp=1)
        assert isinstance(b, MessageEntry)
        assert isinstance(b.message, AssistantMessage)
        assert b.message.tool_calls == [ToolCall(id="1", name=kept, arguments={kept: {"x": kept}})]
        assert isinstance(c, CustomEntry)
        assert (c.custom_type, c.data) == ("t\ufffd", kept)
        assert isinstance(d, CompactionEntry)
        assert (d.summary, d.details) == (kept, kept)
        assert d.retained_tail == [UserMessage(content=kept, timestamp=1)]
        value = await storage.get_value("n", "k")
        assert value is not None
        assert value.value == {kept: [kept]}
        assert [e.value for e in await storage.read_list("l", "k")] == [kept]
        assert [u.details for u in await storage.scan_usage(UsageScan())] == [{kept: kept}]

    async def test_lone_surrogates_in_an_address_are_replaced_before_it_is_compared(self, storage: Storage) -> None:
        """S-11: what was written under such a key is found under it."""
        await storage.commit([SetValue(f"n{LONE}", f"k{LONE}", 1), AppendList(f"n{LONE}", f"k{LONE}", 2)])
        value = await storage.get_value(f"n{LONE}", f"k{LONE}")
        assert value is not None
        assert (value.namespace, value.key) == ("n\ufffd", "k\ufffd")
        assert await storage.get_value("n\ufffd", "k\ufffd") == value
        assert await storage.scan_values(f"n{LONE}", f"k{LONE}") == [value]
        assert [e.value for e in await storage.read_list(f"n{LONE}", f"k{LONE}")] == [2]

    async def test_ids_and_custom_types_are_validated(self, storage: Storage) -> None:
        """S-11: empty ids, and NUL or lone surrogates in ids, are refused; so is NUL in a custom type."""
        number: Any = 7
        refused: list[Write] = [
            entry(""), entry("a\0"), entry(LONE), entry("a", ""), entry("a", "b\0"), row("", Usage()), row("u\0", Usage()), row("u", Usage(), "e\0"),
            entry(number), entry("a", number), row(number, Usage()),
            InsertEntry(CustomEntry(id="a", parent_id=None, custom_type="t\0")), InsertEntry(CustomEntry(id="a", parent_id=None, custom_type=number)),
        ]  # fmt: skip
        for write in refused:
            with pytest.raises((ValueError, TypeError)):
                await storage.commit([SetValue("n", "k", 1), write])
        assert await storage.scan_values("n") == []

    async def test_ids_of_any_shape_come_back_as_they_were(self, storage: Storage) -> None:
        """S-04: a UUID in another spelling is another id."""
        ids = [
            "0198c1f2-7a3b-7c4d-8e5f-a6b7c8d9e0f1",
            "0198C1F2-7A3B-7C4D-8E5F-A6B7C8D9E0F1",
            "0198c1f27a3b7c4d8e5fa6b7c8d9e0f1",
            "x" * 500,
            "é",
            "1",
            "01",
            " ",
            "a b",
        ]
        parent: str | None = None
        for id in ids:
            await storage.commit([entry(id, parent), row(f"u{id}", tokens(1), id)])
            parent = id
        assert [e.id for e in (await everything(storage)).entries] == ids
        assert list(await storage.get_entries(ids)) == ids
        assert [u.entry_id for u in await storage.scan_usage(UsageScan())] == ids
        assert {e.parent_id for e in (await storage.get_entries(ids)).values()} == {None, *ids[:-1]}

    async def test_large_payloads_are_stored_whole(self, storage: Storage) -> None:
        """B95: 10 MB in one entry and 10 MB in one value; the store caps nothing by itself."""
        text = "0123456789abcdef" * 64 * 1024 * 10
        await storage.commit([entry("a", None, text), SetValue("n", "k", {"text": text}), entry("b", "a")])
        stored = (await storage.get_entries(["a"]))["a"]
        assert isinstance(stored, MessageEntry)
        assert stored.message == UserMessage(content=text, timestamp=1)
        value = await storage.get_value("n", "k")
        assert value is not None
        assert value.value == {"text": text}
