"""Names, labels, branches, appends and application values, on every backend."""

from __future__ import annotations

import asyncio

import pytest

from laneway.errors import BranchExists, BranchNotFound, DuplicateToolResult, EntryNotFound, InvalidName, SessionError
from laneway.messages import AssistantMessage, TextContent, ToolCall, ToolResultMessage, UserMessage
from laneway.session import Ids, Mutation, Session, SessionRepo
from laneway.storage.base import CompactionEntry, CustomEntry, MessageEntry, SetValue
from laneway.storage.memory import MemoryStorage


def result(call_id: str, text: str = "ok") -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name="t", content=[TextContent(text=text)])


def asks(*call_ids: str) -> AssistantMessage:
    return AssistantMessage(content=[ToolCall(id=i, name="t") for i in call_ids], stop_reason="tool_use")


async def test_a_name_is_set_trimmed_and_removed(session: Session):
    """R-01."""
    assert await session.get_name() is None
    await session.set_name("  fix\nthe parser ")
    assert await session.get_name() == "fix the parser"
    await session.set_name(None)
    assert await session.get_name() is None
    await session.set_name("x")
    await session.set_name(" \n ")
    assert await session.get_name() is None


async def test_labels_belong_to_entry_ids_and_survive_compaction(session: Session):
    """R-02: a label needs no entry, stays through a compaction, and None removes it."""
    branch = await session.create_branch("main")
    e1 = await branch.append_message("hello")
    await session.set_label(e1, "x")
    await session.set_label("unknown-id", "y")
    await branch.append_compaction("summary")
    assert await session.labels() == {e1: "x", "unknown-id": "y"}
    await session.set_label(e1, None)
    assert await session.get_label(e1) is None
    assert await session.get_label("unknown-id") == "y"


async def test_a_branch_is_created_once_with_a_valid_name_at_an_entry(session: Session):
    """R-03: each mistake has its own error, and only the tip is written."""
    await session.create_branch("a")
    before = (await session.get_stats()).message_count
    for name in ("", "a\0b"):
        with pytest.raises(InvalidName):
            await session.create_branch(name)
    with pytest.raises(BranchExists):
        await session.create_branch("a")
    with pytest.raises(EntryNotFound):
        await session.create_branch("b", at="nowhere")
    made = await asyncio.gather(session.create_branch("b"), session.create_branch("b"), return_exceptions=True)
    assert sorted(type(m).__name__ for m in made) == ["Branch", "BranchExists"]
    assert await session.branches() == {"a": None, "b": None}
    assert (await session.get_stats()).message_count == before
    assert await session.branch("nowhere") is None


async def test_concurrent_appends_make_a_chain(session: Session):
    """R-04: entry and tip are one commit, and the parent is the tip before, however many append at once."""
    branch = await session.create_branch("main")
    e0 = await branch.append_message("e0")
    ids = await asyncio.gather(*(branch.append_message(f"m{i}") for i in range(10)))
    path = await branch.find_entries(order="oldest_first")
    assert [entry.id for entry in path] == [e0, *ids]
    assert [entry.parent_id for entry in path] == [None, e0, *ids[:-1]]
    assert await branch.get_tip() == ids[-1]


async def test_find_entries_walks_the_branch_from_its_tip(session: Session):
    """R-11: newest first by default; an empty branch has none."""
    branch = await session.create_branch("main")
    assert await branch.find_entries() == []
    assert await branch.find_entry() is None
    ids = [await branch.append_message(f"m{i}") for i in range(3)]
    assert [e.id for e in await branch.find_entries()] == ids[::-1]
    assert [e.id for e in await branch.find_entries(limit=2, order="oldest_first")] == ids[:2]
    assert [e.id for e in await branch.find_entries(start=ids[1])] == ids[1::-1]
    found = await branch.find_entry(limit=5)
    assert found is not None
    assert found.id == ids[-1]


async def test_the_whole_sessions_entries_can_be_paged_both_ways(session: Session):
    """S-15: newest first by default, an exclusive cursor, nothing below the first."""
    branch = await session.create_branch("main")
    ids = [await branch.append_message("m") if i % 2 else await branch.append_custom_entry("note", i) for i in range(5)]
    assert [e.id for e in await session.find_entries()] == ids[::-1]
    newest = (await session.find_entries(limit=1))[0]
    assert [e.id for e in await session.find_entries(cursor=newest.seq)] == ids[-2::-1]
    oldest = (await session.find_entries(order="asc", limit=1))[0]
    assert [e.id for e in await session.find_entries(order="asc", cursor=oldest.seq)] == ids[1:]
    assert await session.find_entries(cursor=1) == []
    assert await session.find_entries(cursor=0) == []
    assert [e.id for e in await session.find_entries(type="custom", custom_type="note")] == ids[4::-2]


async def test_the_main_branch_is_made_by_the_first_append_and_no_other(session: Session):
    """S-24: a new session has no branch; a mistyped name creates none."""
    assert await session.branches() == {}
    first = await session.append_message("hello")
    assert await session.branches() == {"main": first}
    with pytest.raises(BranchNotFound, match="mian"):
        await session.append_message("hello", branch="mian")
    custom = await session.get_entry(await session.append_custom_entry("note", {"a": [1, None]}))
    assert isinstance(custom, CustomEntry)
    assert (custom.parent_id, custom.custom_type, custom.data) == (first, "note", {"a": [1, None]})


async def test_a_results_id_sorts_right_behind_its_response(session: Session):
    """A call and its results stay together in the order of ids, however late the tool ends."""
    branch = await session.create_branch("main")
    asked = await branch.append_message(asks("k1", "k2"))
    await asyncio.sleep(0.005)
    other = session.ids.new()
    r1 = await branch.append_message(result("k1"))
    r2 = await branch.append_message(result("k2"))
    assert sorted([other, r2, r1, asked]) == [asked, r1, r2, other]
    assert Ids.timestamp_of(r2) == Ids.timestamp_of(asked)


async def test_a_call_has_exactly_one_result(session: Session):
    """B32: a second result for a finished call is refused by the store; a call id used again later is a new call."""
    branch = await session.create_branch("main")
    await branch.append_message(asks("k"))
    first = await branch.append_message(result("k", "A"))
    await branch.append_custom_entry("note")
    with pytest.raises(DuplicateToolResult, match=first):
        await branch.append_message(result("k", "interrupted"))
    for i in range(40):
        await branch.append_message(f"filler {i}")
    with pytest.raises(DuplicateToolResult):
        await branch.append_message(result("k", "late"))
    await branch.append_message(asks("k"))
    await branch.append_message(result("k", "B"))
    await branch.append_message(result("never asked for"))


async def test_a_branch_can_be_moved_and_then_diverges(session: Session):
    """Moving a tip rewrites nothing; what comes next is a sibling."""
    branch = await session.create_branch("main")
    root, old = await branch.append_message("root"), await branch.append_message("old")
    await branch.move_to(root)
    new = await branch.append_message("new")
    assert [e.id for e in await branch.find_entries()] == [new, root]
    assert await session.get_entry(old) is not None
    with pytest.raises(EntryNotFound):
        await branch.move_to("nowhere")
    await branch.move_to(None)
    assert await branch.find_entries() == []


async def test_appends_under_a_lane_that_is_live_or_busy_are_refused(session: Session):
    """A tip that a lane holds in memory, or an open operation, is not moved from outside."""
    branch = await session.create_branch("main")
    release = session.claim_branch("main")
    with pytest.raises(SessionError, match="live"):
        await branch.append_message("x")
    with pytest.raises(BranchExists):
        session.claim_branch("main")
    release()
    await session.mutate(lambda m: m.commit([SetValue("lane.state", "main", {"current_operation_id": "op", "last_operation_id": None, "inbox": []})]))
    with pytest.raises(SessionError, match="open operation"):
        await branch.append_message("x")
    await session.mutate(lambda m: m.commit([SetValue("lane.state", "main", {"current_operation_id": None, "last_operation_id": "op", "inbox": []})]))
    await branch.append_message("x")


async def test_application_values_have_a_namespace_of_their_own(session: Session):
    """Cells and lists under `app.*`; None is a value; a read-modify-write has no writer in between."""
    notes = session.app("notes")
    assert await notes.get("a", 1) == 1
    await notes.set("a", None)
    assert await notes.has("a")
    assert await notes.get("a", 1) is None
    await asyncio.gather(*(notes.update("count", lambda n: n + 1, 0) for _ in range(20)))
    assert await notes.get("count") == 20
    first = await notes.append("log", "x")
    await notes.append("log", {"y": 1})
    assert [e.value for e in await notes.read("log")] == ["x", {"y": 1}]
    assert [e.value for e in await notes.read("log", after=first)] == [{"y": 1}]
    await notes.clear("log")
    await notes.delete("a")
    assert await notes.items() == {"count": 20}
    stored = await session.get_value("app.notes", "count")
    assert stored is not None
    assert stored.value == 20
    with pytest.raises(TypeError, match=r"\$\.deep"):
        await notes.set("bad", {"deep": object()})
    with pytest.raises(InvalidName):
        session.app("")


async def test_a_reopened_session_has_everything(repo: SessionRepo):
    """Whatever was committed is there after closing and opening."""
    async with await repo.create(id="s", cwd="/tmp", metadata={"k": [1]}) as session:
        tip = await session.append_message(UserMessage(content="hello"))
        await session.set_name("n")
        await session.app("a").set("k", 1)
    async with await repo.open("s") as again:
        assert again.metadata == session.metadata
        assert (again.metadata.id, again.metadata.cwd, again.metadata.metadata) == ("s", "/tmp", {"k": [1]})
        assert await again.get_name() == "n"
        assert await again.branches() == {"main": tip}
        assert await again.app("a").get("k") == 1
        entry = await again.get_entry(tip)
        assert isinstance(entry, MessageEntry)
        assert entry.message == UserMessage(content="hello", timestamp=entry.message.timestamp)  # type: ignore[union-attr] - a user message
    assert again.closed


async def test_a_session_can_be_put_over_any_storage():
    """`Session.over` reads and writes nothing; stored metadata can be taken over."""
    storage = MemoryStorage()
    first = Session.over(storage)
    assert first.storage is storage
    tip = await first.append_message("hello")
    second = Session.over(storage)
    assert second.metadata.id != first.metadata.id
    assert await second.load_metadata() == second.metadata
    assert await second.branches() == {"main": tip}
    await first.mutate(lambda m: m.commit([SetValue("session.metadata", "", {"id": "kept", "created_at": 5})]))
    assert (await second.load_metadata()).id == "kept"
    assert second.metadata.created_at == 5


async def test_a_compaction_and_a_branch_summary_can_be_appended(session: Session):
    """The two summaries are entries like others."""
    branch = await session.create_branch("main")
    root = await branch.append_message("root")
    made = await session.get_entry(await branch.append_compaction("all of it", retained_tail=[UserMessage(content="kept")], tokens_before=7))
    assert isinstance(made, CompactionEntry)
    assert (made.parent_id, made.summary, made.tokens_before, len(made.retained_tail)) == (root, "all of it", 7, 1)
    await branch.append_branch_summary("the other way", from_id=root)
    assert [e.type for e in await branch.find_entries()] == ["branch_summary", "compaction", "message"]


async def test_the_tree_shows_branches_labels_and_forks(session: Session):
    """Every entry in its place, with the names of the branches that end there."""
    main = await session.create_branch("main")
    root, left = await main.append_message("root"), await main.append_message("left")
    side = await session.create_branch("side", at=root)
    right = await side.append_message("right")
    await session.set_label(root, "start")
    tree = await session.tree()
    assert [node.entry.id for node in tree.roots] == [root]
    assert [child.entry.id for child in tree.nodes[root].children] == [left, right]
    assert tree.nodes[root].label == "start"
    assert tree.nodes[right].branches == ["side"]
    assert [node.entry.id for node in tree.activate("side")] == [root, right]
    assert [(row.indent, row.node.entry.id) for row in tree.rows()] == [("", root), ("├─ ", left), ("└─ ", right)]
    assert [row.node.entry.id for row in tree.rows(lambda entry: entry.id != root)] == [left, right]


async def test_a_mutation_reads_what_the_session_reads(session: Session):
    """Every query of a store is there inside a scope."""
    tip = await session.append_message("hello")

    async def plan(mutation: Mutation) -> None:
        assert tip in await mutation.get_entries([tip])
        assert [v.key for v in await mutation.scan_values("branch.tip")] == ["main"]
        assert await mutation.read_list("app.x", "y") == []
        assert (await mutation.get_stats()).message_count == 1

    await session.mutate(plan)
