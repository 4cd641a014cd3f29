"""Reading entries, naming namespaces, drawing trees: the pure parts."""

from __future__ import annotations

import pytest

from laneway.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from laneway.session import Session
from laneway.session.entries import one_line, open_calls, preview_of, role_of_entry, text_of, thinking_of, with_parent
from laneway.session.keys import is_session_id, kind_of
from laneway.storage.base import BranchSummaryEntry, CompactionEntry, CustomEntry, Entry, MessageEntry


def entry(message: AgentMessage) -> MessageEntry:
    return MessageEntry(id="e", parent_id=None, message=message)


def asks(*ids: str, stop: str = "tool_use") -> MessageEntry:
    return entry(AssistantMessage(content=[ToolCall(id=i, name=f"t{i}") for i in ids], stop_reason=stop))  # type: ignore[arg-type] - a stop reason


def answers(id: str) -> MessageEntry:
    return entry(ToolResultMessage(tool_call_id=id, tool_name="t"))


def test_a_preview_lets_a_person_recognise_an_entry():
    """Its text on one line, else what it is."""
    assert preview_of(entry(UserMessage(content="  two\n lines "))) == "two lines"
    assert preview_of(entry(UserMessage(content="x" * 99)), 10) == "xxxxxxxxx…"
    assert preview_of(asks("1", "2")) == "→ t1, t2"
    assert preview_of(entry(AssistantMessage(content=[], stop_reason="error", error_message="boom"))) == "boom"
    assert preview_of(entry(AssistantMessage(content=[], stop_reason="aborted"))) == "(aborted)"
    assert preview_of(entry(UserMessage(content=[ImageContent(data="", mime_type="image/png")]))) == "(image)"
    assert preview_of(entry(UserMessage(content=""))) == "(empty)"
    assert preview_of(CustomEntry(id="e", parent_id=None, custom_type="note", data=1)) == "(note)"
    assert preview_of(CompactionEntry(id="e", parent_id=None, summary="so far")) == "so far"
    assert one_line("a" * 5, 5) == "aaaaa"


def test_the_text_of_an_entry_is_what_a_person_reads():
    """Without thinking, calls and details."""
    blocks = [ThinkingContent(thinking="hm"), TextContent(text="a"), ToolCall(id="k", name="t"), TextContent(text="b")]
    assert text_of(entry(AssistantMessage(content=blocks))) == "a\n\nb"
    assert thinking_of(AssistantMessage(content=[*blocks, ThinkingContent(thinking="secret", redacted=True)])) == "hm"
    assert thinking_of(UserMessage(content="x")) == ""
    assert text_of(entry(SystemMessage(content="a", sections={"x": "b", "y": None}))) == "a\n\nb"
    assert text_of(entry(BashExecutionMessage(command="ls", output="x"))) == "$ ls\nx"
    assert text_of(entry(BranchSummaryMessage(summary="s"))) == "s"
    assert text_of(BranchSummaryEntry(id="e", parent_id=None, from_id=None, summary="s")) == "s"
    assert text_of(CustomEntry(id="e", parent_id=None, custom_type="note")) == ""


def test_roles_and_parents():
    """A message's role, a custom entry's own type, else the entry's type."""
    assert [role_of_entry(e) for e in (entry(UserMessage(content="")), CustomEntry(id="e", parent_id=None, custom_type="n"))] == ["user", "n"]
    assert role_of_entry(CompactionEntry(id="e", parent_id=None, summary="")) == "compaction"
    first = answers("k")
    assert with_parent(first, None) is first
    assert with_parent(first, "p").parent_id == "p"


@pytest.mark.parametrize(
    ("path", "open_ids"),
    [
        ([], []),
        ([asks("1", "2")], ["1", "2"]),
        ([asks("1", "2"), answers("1")], ["2"]),
        ([asks("1"), answers("1")], []),
        ([asks("1", stop="aborted")], []),
        ([asks("1", stop="length")], ["1"]),
        ([asks("1"), entry(UserMessage(content="x"))], []),
        ([asks("1"), CompactionEntry(id="c", parent_id=None, summary="")], []),
        ([asks("1"), CustomEntry(id="c", parent_id=None, custom_type="n")], ["1"]),
        ([asks("1"), answers("1"), asks("1")], ["1"]),
    ],
)
def test_open_calls_are_those_of_the_newest_response(path: list[Entry], open_ids: list[str]):
    """Older calls without a result are healed when they are sent; a failed response has none."""
    assert [call.id for call in open_calls(path)] == open_ids


def test_every_namespace_has_a_kind():
    """Ours, the application's, and what only a newer version knows."""
    assert kind_of("branch.tip") == "tip"
    assert kind_of("op.result") == "runtime"
    assert {kind_of(n) for n in ("app.x", "app", "lanes.x", "pi", "other")} == {"app"}
    assert {kind_of(n) for n in ("lane", "lane.mood", "op.x", "session.mood", "entry.x", "pending.y", "branch")} == {"unknown"}


def test_session_ids_are_safe_file_names():
    """Nothing that leaves the folder, hides, or is too long."""
    assert all(map(is_session_id, ("a", "A-1_b.c", "0195c8aa-0000-7000-8000-000000000000", "x" * 128)))
    assert not any(map(is_session_id, ("", ".", "..", "a/b", "a\\b", ".a", "a.", "-a", "a b", "a\n", "x" * 129, "é")))


async def test_a_long_tree_is_read_and_drawn_without_recursion(session: Session):
    """Thousands of entries in one line of descent are one column."""
    from laneway.storage.base import InsertEntry

    chain = [MessageEntry(id=f"e{i}", parent_id=f"e{i - 1}" if i else None, message=UserMessage(content="x")) for i in range(3000)]
    await session.mutate(lambda m: m.commit([InsertEntry(e) for e in chain]))
    tree = await session.tree()
    rows = list(tree.rows())
    assert len(rows) == 3000
    assert {row.indent for row in rows} == {""}
    assert len(list(tree.rows(lambda e: e.id in ("e0", "e2999")))) == 2
    assert len(tree.path("e2999")) == 3000
    assert tree.path(None) == tree.path("nowhere") == []
