"""Forks: what is copied, what never is, and from which moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import BranchNotFound, ForkError, SessionExists, SessionNotFound
from laneway.messages import AssistantMessage, Cost, TextContent, ToolCall, ToolResultMessage, Usage
from laneway.session import Fork, Mutation, Session, SessionRepo, SqliteRepo
from laneway.session._fork import INTERRUPTED
from laneway.storage.base import AppendList, DeleteValue, InsertUsage, MessageEntry, SetValue, UsageRow

IDLE: dict[str, Any] = {"current_operation_id": None, "last_operation_id": None, "inbox": []}
CONFIG = {"model": {"provider": "p", "model_id": "m"}, "thinking_level": "low", "active_tool_names": ["read"]}


async def lane(session: Session, name: str, at: str | None = None) -> None:
    """What the harness writes for a lane."""
    await session.create_branch(name, at)
    await put(session, SetValue("lane.config", name, CONFIG), SetValue("lane.state", name, {**IDLE, "last_operation_id": "op9"}))


async def put(session: Session, *writes: object) -> None:
    await session.mutate(lambda m: m.commit(writes))  # type: ignore[arg-type] - writes


async def value(session: Session, namespace: str, key: str) -> object:
    stored = await session.get_value(namespace, key)
    return "absent" if stored is None else stored.value


async def test_a_branch_fork_copies_one_path_and_what_belongs_to_it(repo: SessionRepo, session: Session):
    """F-01, U-07: entries of the path, the lane's configuration, the name, labels of copied entries; no usage, an idle lane."""
    await lane(session, "main")
    root = await session.append_message("root")
    child = await session.append_message("child")
    await session.append_message("later")
    await lane(session, "review", at=root)
    sibling = await session.append_message("sibling", branch="review")
    await session.set_name("work")
    await session.set_label(child, "here")
    await session.set_label(sibling, "there")
    await session.app("a").set("k", 1)
    await put(session, InsertUsage(UsageRow(id="u", usage=Usage(input=5, total_tokens=5, cost=Cost(total=1.0)))))

    async with await repo.fork("one", Fork(lane="main", entry_id=child), new_id="two") as fork:
        assert await fork.branches() == {"main": child}
        copied, source = await fork.find_entries(order="asc"), await session.find_entries(order="asc")
        assert copied == source[:2]
        assert await value(fork, "lane.config", "main") == CONFIG
        assert await value(fork, "lane.state", "main") == IDLE
        assert await value(fork, "lane.config", "review") == "absent"
        assert await fork.get_name() == "work"
        assert await fork.labels() == {child: "here"}
        assert await fork.app("a").items() == {}
        stats = await fork.get_stats()
        assert (stats.message_count, stats.usage) == (2, Usage())
        assert fork.metadata.parent_session_id == "one"
        new = await fork.get_entry(await fork.append_message("new"))
        assert new is not None
        assert new.seq > copied[-1].seq
        assert new.parent_id == child


async def test_the_position_decides_where_a_fork_ends(repo: SessionRepo, session: Session):
    """F-02: at, before, before the root; what is not on the branch is refused and the id is free again."""
    root = await session.append_message("root")
    child = await session.append_message("child")
    side = await session.create_branch("side", at=root)
    sibling = await side.append_message("sibling")
    await session.create_branch("empty")

    async def tip(fork: Fork) -> str | None:
        async with await repo.fork("one", fork) as made:
            return (await made.branches())[fork.lane]

    assert await tip(Fork()) == child
    assert await tip(Fork(entry_id=root)) == root
    assert await tip(Fork(entry_id=child, position="before")) == root
    assert await tip(Fork(entry_id=root, position="before")) is None
    assert await tip(Fork(lane="empty")) is None
    for refused in (Fork(entry_id=sibling), Fork(entry_id="nowhere"), Fork(lane="empty", entry_id=root)):
        with pytest.raises(ForkError):
            await repo.fork("one", refused, new_id="two")
    with pytest.raises(BranchNotFound):
        await repo.fork("one", Fork(lane="nowhere"), new_id="two")
    with pytest.raises(SessionNotFound):
        await repo.fork("nowhere", new_id="two")
    await (await repo.create("two")).close()


async def test_a_tree_fork_copies_everything_but_the_running(repo: SessionRepo, session: Session):
    """F-03, F-05: every entry, tip, configuration and application value; no queue, result, operation or frame."""
    await lane(session, "main")
    root = await session.append_message("root")
    lost = await session.append_message("unreachable")
    branch = await session.branch("main")
    assert branch is not None
    await branch.move_to(root)
    tip = await session.append_message("tip")
    await session.create_branch("data", at=lost)
    await lane(session, "review", at=root)
    await session.set_label("unknown", "kept")
    await session.app("a").set("k", None)
    await session.app("a").append("l", 1)
    await session.app("a").append("l", 2)
    await put(
        session,
        SetValue("lane.state", "main", {"current_operation_id": "op", "last_operation_id": None, "inbox": [{"entry_id": "q", "kind": "steer"}]}),
        SetValue("op.meta", "op", {}), SetValue("op.state", "op", {}), SetValue("op.result", "op0", {}),
        SetValue("pending.entry", "q", {}), AppendList("pending.assistant_frames", "op:x", "frame"), SetValue("pi2.x", "k", 5),
    )  # fmt: skip

    async with await repo.fork("one", Fork(scope="tree"), new_id="two") as fork:
        assert await fork.find_entries() == await session.find_entries()
        assert await fork.branches() == {"main": tip, "data": lost, "review": root}
        assert await value(fork, "lane.state", "main") == IDLE
        assert await value(fork, "lane.config", "review") == CONFIG
        assert await value(fork, "lane.config", "data") == "absent"
        assert await fork.app("a").items() == {"k": None}
        assert [e.value for e in await fork.app("a").read("l")] == [1, 2]
        assert await value(fork, "pi2.x", "k") == 5
        assert await fork.labels() == {"unknown": "kept"}
        for namespace in ("op.meta", "op.state", "op.result", "pending.entry"):
            assert await fork.scan_values(namespace) == []
        assert await fork.read_list("pending.assistant_frames", "op:x") == []
    with pytest.raises(ForkError, match="entry_id"):
        await repo.fork("one", Fork(scope="tree", entry_id=root))


async def test_the_tip_of_a_fork_is_the_tip_not_the_newest_entry(repo: SessionRepo, session: Session):
    """B92: a session that had been navigated back stays there in its fork."""
    branch = await session.create_branch("main")
    ids = [await branch.append_message(text) for text in ("u1", "a1", "u2", "a2")]
    await branch.move_to(ids[1])
    for scope in ("tree", "branch"):
        async with await repo.fork("one", Fork(scope=scope)) as fork:  # type: ignore[arg-type] - a scope
            main = await fork.branch("main")
            assert main is not None
            assert await main.get_tip() == ids[1]
            assert len(await main.context()) == 2


async def test_a_call_that_still_runs_has_an_interrupted_result_in_the_fork(repo: SessionRepo, session: Session):
    """B91: the fork is whole at once, the parent is untouched, and a later result goes to the parent alone."""
    asked = AssistantMessage(content=[ToolCall(id="k1", name="t"), ToolCall(id="k2", name="t")], stop_reason="tool_use")
    await session.append_message("u")
    await session.append_message(asked)
    first = await session.append_message(ToolResultMessage(tool_call_id="k1", tool_name="t", content=[TextContent(text="done")]))
    for scope in ("branch", "tree"):
        async with await repo.fork("one", Fork(scope=scope)) as fork:  # type: ignore[arg-type] - a scope
            main = await fork.branch("main")
            assert main is not None
            newest = await main.find_entry()
            assert isinstance(newest, MessageEntry)
            assert newest.parent_id == first
            assert isinstance(newest.message, ToolResultMessage)
            assert newest.message.tool_call_id == "k2"
            assert newest.message.is_error
            assert newest.message.content == [TextContent(text=INTERRUPTED)]
    late = await session.append_message(ToolResultMessage(tool_call_id="k2", tool_name="t"))
    assert (await session.branches())["main"] == late


async def test_data_of_a_newer_laneway_is_not_guessed_at(repo: SessionRepo, session: Session):
    """F-06: an unknown reserved namespace refuses both scopes; once deleted it does not."""
    await session.append_message("u")
    for namespace in ("lane", "lane.mood"):
        await put(session, SetValue(namespace, "k", 1))
        for scope in ("branch", "tree"):
            with pytest.raises(ForkError, match=namespace):
                await repo.fork("one", Fork(scope=scope))  # type: ignore[arg-type] - a scope
        await put(session, DeleteValue(namespace, "k"))
    await put(session, AppendList("lanes2.events", "k", 1), SetValue("pi", "k", 1))
    await (await repo.fork("one", Fork(scope="tree"))).close()


async def test_a_fork_sees_the_commits_before_it_in_the_line(repo: SessionRepo, session: Session):
    """F-08: asked for between two queued commits, it has exactly the first."""
    inside, go = asyncio.Event(), asyncio.Event()

    async def hold(mutation: Mutation) -> None:
        inside.set()
        await go.wait()

    await session.create_branch("main")
    holder = asyncio.create_task(session.mutate(hold))
    await inside.wait()
    first = asyncio.create_task(session.append_message("first"))
    await asyncio.sleep(0.01)
    fork = asyncio.create_task(repo.fork("one", Fork(scope="tree")))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(session.append_message("second"))
    await asyncio.sleep(0.01)
    go.set()
    await asyncio.gather(holder, first, second)
    async with await fork as made:
        assert [e.id for e in await made.find_entries()] == [first.result()]
        assert await made.branches() == {"main": first.result()}


async def test_one_id_makes_one_session_whoever_asks_first(repo: SessionRepo, session: Session):
    """F-09: create against fork with one id, in both orders."""
    await session.append_message("u")
    for i, order in enumerate(("create first", "fork first")):
        calls = [repo.create(id=f"d{i}"), repo.fork("one", new_id=f"d{i}")]
        made = await asyncio.gather(*(calls if order == "create first" else calls[::-1]), return_exceptions=True)
        kinds = [type(m) for m in made]
        assert kinds.count(SessionExists) == 1
        assert kinds.count(Session) == 1
        for m in made:
            if isinstance(m, Session):
                await m.close()


async def test_closed_and_open_sources_can_be_forked(repo: SessionRepo):
    """F-10: a source need not be open, and one that is open goes on undisturbed."""
    source = await repo.create(id="source")
    await source.append_message("u")
    async with await repo.fork("source", new_id="of-open") as fork:
        assert len(await fork.find_entries()) == 1
    await source.append_message("v")
    await source.close()
    async with await repo.fork("source", new_id="of-closed") as fork:
        assert len(await fork.find_entries()) == 2
        with pytest.raises(SessionExists):
            await repo.fork("source", new_id="of-open")
    assert {info.id for info in await repo.list(parent_session_id="source")} == {"of-open", "of-closed"}


async def test_a_fork_of_thousands_of_entries_is_copied_in_pages(repo: SessionRepo, session: Session):
    """B94: more than a page of entries arrives whole and in order."""
    from laneway.storage.base import InsertEntry

    entries = [MessageEntry(id=f"e{i}", parent_id=f"e{i - 1}" if i else None, message=AssistantMessage(content=[])) for i in range(2500)]
    await put(session, *(InsertEntry(entry) for entry in entries), SetValue("branch.tip", "main", "e2499"))
    async with await repo.fork("one") as fork:
        assert [e.id for e in await fork.find_entries(order="asc")] == [e.id for e in entries]
        assert len(await (await fork.branch("main")).context()) == 2500  # type: ignore[union-attr] - it is there


@pytest.mark.parametrize("scope", ["branch", "tree"])
async def test_a_session_that_somebody_else_is_writing_is_copied_as_it_was_at_one_moment(tmp_path: Path, scope: str):
    """The source is open elsewhere: the tip of the fork is there, and its whole path, whatever is committed meanwhile."""
    owner, other = SqliteRepo(tmp_path), SqliteRepo(tmp_path)
    stop = False

    async def write(session: Session) -> None:
        for i in range(10_000):
            tip = await session.append_message(f"m{i}")
            await session.app("a").set("tip", tip)
            if stop:
                return

    async with await owner.create(id="one") as session:
        await session.append_message("first")
        writing = asyncio.create_task(write(session))
        for _ in range(5):
            async with await other.fork("one", Fork(scope=scope)) as fork:  # type: ignore[arg-type] - a scope
                tip = (await fork.branches())["main"]
                entries = await fork.find_entries(order="asc")
                assert tip == entries[-1].id
                assert [e.parent_id for e in entries] == [None, *(e.id for e in entries[:-1])]
                if scope == "tree":
                    assert (await fork.app("a").get("tip")) in (tip, entries[-1].parent_id, None)
        stop = True
        await writing
