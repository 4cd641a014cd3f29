"""Erasing entries for good, on every backend, and looking a session over."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from laneway.errors import RewriteError, StorageError
from laneway.messages import AssistantMessage, Cost, Usage, UserMessage
from laneway.session import JsonlRepo, Session, SessionRepo, SqliteRepo
from laneway.session._repo_files import FolderRepo
from laneway.storage.base import CompactionEntry, Entry, InsertUsage, MessageEntry, SetValue, UsageRow, UsageScan

SECRET = "hunter2-the-password"


def without(secret: str):
    """Erase every message that has the secret."""
    return lambda entry: not (isinstance(entry, MessageEntry) and isinstance(entry.message, UserMessage) and secret in str(entry.message.content))


async def test_an_erased_entry_is_gone_and_its_children_move_up(session: Session):
    """Tips and labels follow; everything else keeps its id, seq and time; the ledger stays."""
    main = await session.create_branch("main")
    root = await main.append_message("root")
    secret = await main.append_message(f"my password is {SECRET}")
    child = await main.append_message("child")
    await session.create_branch("at-secret", at=secret)
    await session.set_label(secret, "oops")
    await session.set_label(child, "fine")
    await session.app("a").append("l", 1)
    await session.mutate(lambda m: m.commit([InsertUsage(UsageRow(id="u", usage=Usage(total_tokens=3, cost=Cost(total=1.0)), entry_id=secret))]))
    before = {entry.id: entry for entry in await session.find_entries()}

    report = await session.rewrite(without(SECRET))
    assert (report.erased, report.changed, report.moved) == ([secret], [], ["at-secret"])
    entries = await session.find_entries(order="asc")
    assert [(e.id, e.parent_id) for e in entries] == [(root, None), (child, root)]
    assert all((e.seq, e.timestamp) == (before[e.id].seq, before[e.id].timestamp) for e in entries)
    assert await session.branches() == {"at-secret": root, "main": child}
    assert await session.labels() == {child: "fine"}
    assert [e.value for e in await session.app("a").read("l")] == [1]
    row = (await session.scan_usage(UsageScan()))[0]
    assert (row.id, row.entry_id, row.usage.total_tokens) == ("u", None, 3)
    stats = await session.get_stats()
    assert (stats.message_count, stats.usage.cost.total) == (2, 1.0)
    assert [e.id for e in await main.find_entries()] == [child, root]

    new = await session.get_entry(await main.append_message("new"))
    assert new is not None
    assert new.seq > max(e.seq for e in before.values())
    assert await session.repair() == []


async def test_an_entry_can_be_redacted_in_its_place(session: Session):
    """Another entry of the same id, and its copies in compactions are dropped."""
    main = await session.create_branch("main")
    message = UserMessage(content=SECRET)
    told = await main.append_message(message)
    await main.append_compaction("summary", retained_tail=[message, UserMessage(content="fine")])

    def redact(entry: Entry) -> bool | Entry:
        if isinstance(entry, MessageEntry) and entry.message == message:
            return msgspec.structs.replace(entry, id="ignored", message=UserMessage(content="[redacted]"))
        return True

    report = await session.rewrite(redact)
    assert report.erased == []
    assert len(report.changed) == 2
    first, compaction = await session.find_entries(order="asc")
    assert isinstance(first, MessageEntry)
    assert (first.id, first.message.content) == (told, "[redacted]")  # type: ignore[union-attr] - a user message
    assert isinstance(compaction, CompactionEntry)
    assert [m.content for m in compaction.retained_tail] == ["fine"]  # type: ignore[union-attr] - a user message


async def test_a_whole_branch_can_be_erased(session: Session):
    """Down to an empty session."""
    await session.append_message("a")
    await session.append_message("b")
    report = await session.rewrite(lambda entry: None)
    assert len(report.erased) == 2
    assert await session.find_entries() == []
    assert await session.branches() == {"main": None}
    await session.append_message("c")


async def test_nothing_is_erased_under_a_running_lane(session: Session):
    """A live lane or an open operation refuses; nothing was changed."""
    await session.append_message(SECRET)
    release = session.claim_branch("main")
    with pytest.raises(RewriteError, match="live"):
        await session.rewrite(without(SECRET))
    release()
    await session.mutate(lambda m: m.commit([SetValue("lane.state", "main", {"current_operation_id": "op"})]))
    with pytest.raises(RewriteError, match="open operation"):
        await session.rewrite(without(SECRET))
    assert len(await session.find_entries()) == 1


async def test_a_plan_that_raises_changes_nothing(session: Session):
    """The caller's mistake is the caller's exception, and the session goes on."""
    await session.append_message("a")
    with pytest.raises(ZeroDivisionError):
        await session.rewrite(lambda entry: 1 / 0)  # type: ignore[arg-type, return-value] - raises
    assert (await session.rewrite(lambda entry: True)).erased == []
    assert len(await session.find_entries()) == 1


async def test_a_rewritten_session_is_the_same_after_reopening(repo: SessionRepo):
    """Branches, forks in the tree, compactions and all."""
    async with await repo.create(id="s") as session:
        main = await session.create_branch("main")
        ids = [await main.append_message(f"m{i}") for i in range(30)]
        await main.append_compaction("c")
        side = await session.create_branch("side", at=ids[10])
        for i in range(5):
            await side.append_message(AssistantMessage(content=[], error_message=str(i)))
        await session.rewrite(lambda entry: entry.id not in ids[5:15:2])
        expected = {name: await (await session.branch(name)).find_entries() for name in ("main", "side")}  # type: ignore[union-attr] - both are there
        assert await session.repair() == []
    async with await repo.open("s") as again:
        for name, entries in expected.items():
            branch = await again.branch(name)
            assert branch is not None
            assert await branch.find_entries() == entries
        await again.append_message("on")
        assert await again.repair() == []


@pytest.mark.parametrize("kind", [JsonlRepo, SqliteRepo])
async def test_no_file_has_the_erased_bytes(kind: type[FolderRepo], tmp_path: Path):
    """Neither the session, nor its log, nor the catalogue, nor the search index: while it is open, and after."""
    repo = kind(tmp_path)

    def traces() -> list[str]:
        return [path.name for path in tmp_path.iterdir() if SECRET[8:].encode() in path.read_bytes()]

    async with await repo.create(id="s") as session:
        await session.append_message(f"{SECRET} is the first thing said")
        for i in range(50):
            await session.append_message(f"filler {i} " * 50)
        assert len(await repo.search("password")) == 1
        assert traces() != []
        await session.rewrite(without(SECRET))
        assert traces() == []
        assert await repo.search("password") == []
        assert (await repo.list())[0].preview.startswith("filler 0")
    assert traces() == []
    async with await repo.open("s") as again:
        assert len(await again.find_entries()) == 50


async def test_a_rewrite_that_fails_leaves_everything(tmp_path: Path):
    """A JSONL session whose folder is gone cannot be rewritten; what is in memory and on disk stays."""
    repo = JsonlRepo(tmp_path / "sessions")
    session = await repo.create(id="s")
    await session.append_message(SECRET)
    (tmp_path / "sessions").rename(tmp_path / "moved")
    with pytest.raises(StorageError):
        await session.rewrite(without(SECRET))
    assert len(await session.find_entries()) == 1
    (tmp_path / "moved").rename(tmp_path / "sessions")
    await session.rewrite(without(SECRET))
    await session.close()
    assert SECRET.encode() not in repo.path("s").read_bytes()
