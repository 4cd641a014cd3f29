"""Saving a damaged JSONL session (B90)."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.errors import SessionLocked, SessionNotFound, StorageCorruption
from laneway.session import JsonlRepo
from laneway.storage.base import MessageEntry


@pytest.fixture
async def repo(tmp_path: Path) -> JsonlRepo:
    """A repository with a session of ten messages, one line each."""
    made = JsonlRepo(tmp_path)
    async with await made.create(id="s") as session:
        for i in range(10):
            await session.append_message(f"m{i}")
    return made


def damage(repo: JsonlRepo, **lines: bytes) -> bytes:
    """Replace lines, counted from the first message's, and return the file's bytes."""
    found = repo.path("s").read_bytes().splitlines(keepends=True)
    start = next(i for i, line in enumerate(found) if b'"m0"' in line)
    for number, replacement in lines.items():
        found[start + int(number[1:])] = replacement
    repo.path("s").write_bytes(b"".join(found))
    return b"".join(found)


async def context(repo: JsonlRepo) -> list[str]:
    async with await repo.open("s") as session:
        branch = await session.branch("main")
        assert branch is not None
        return [str(entry.message.content) for entry in await branch.find_entries(order="oldest_first") if isinstance(entry, MessageEntry)]  # type: ignore[union-attr] - users


async def test_holes_are_bridged_reported_and_the_original_is_kept(repo: JsonlRepo):
    """B90: opening refuses; after a salvage every readable line is there and the context is not the old prefix."""
    damaged = damage(repo, l4=b"\0" * 300 + b"\n", l6=b"xx\n")
    with pytest.raises(StorageCorruption):
        await repo.open("s")
    report = await repo.salvage("s")
    assert len(report.lost) == 2
    assert len(report.reattached) == 2
    assert report.original is not None
    assert report.original.read_bytes() == damaged
    assert await context(repo) == [f"m{i}" for i in (0, 1, 2, 3, 5, 7, 8, 9)]
    assert [info.message_count for info in await repo.list()] == [8]
    async with await repo.open("s") as session:
        assert await session.repair() == []
        await session.append_message("on")


async def test_a_whole_session_is_left_alone(repo: JsonlRepo):
    """Nothing lost, nothing changed, no copy."""
    before = repo.path("s").read_bytes()
    report = await repo.salvage("s")
    assert (report.lost, report.reattached, report.original) == ([], [], None)
    assert repo.path("s").read_bytes() == before
    assert [p.name for p in repo.directory.iterdir() if "damaged" in p.name] == []


async def test_lines_that_break_a_rule_are_not_kept(repo: JsonlRepo):
    """A line that stands twice, out of order, has ids that are taken."""
    lines = repo.path("s").read_bytes().splitlines(keepends=True)
    repo.path("s").write_bytes(b"".join([*lines, lines[-1], lines[3]]))
    report = await repo.salvage("s")
    assert report.lost
    assert await context(repo) == [f"m{i}" for i in range(10)]


async def test_what_is_no_session_or_is_open_is_refused(repo: JsonlRepo):
    """The file is left as it was."""
    with pytest.raises(SessionNotFound):
        await repo.salvage("nope")
    async with await repo.open("s"):
        with pytest.raises(SessionLocked):
            await repo.salvage("s")
    repo.path("s").write_bytes(b"hello\nworld\n")
    with pytest.raises(StorageCorruption):
        await repo.salvage("s")
    assert repo.path("s").read_bytes() == b"hello\nworld\n"


@pytest.mark.parametrize("cut", [1, 50, 200, 500])
async def test_a_torn_tail_is_lost_and_nothing_else(repo: JsonlRepo, cut: int):
    """Whatever was cut off the end, what stands before it opens."""
    path = repo.path("s")
    path.write_bytes(path.read_bytes()[:-cut])
    await repo.salvage("s")
    texts = await context(repo)
    assert texts == [f"m{i}" for i in range(len(texts))]
    assert len(texts) >= 6
