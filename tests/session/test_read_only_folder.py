"""A folder of sessions that cannot be written, as on a snapshot or a mounted backup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import make_read_only, mounted, needs_root
from laneway import JsonlRepo, SqliteRepo, StorageError
from laneway.storage import JsonlStorage

pytestmark = needs_root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk of its own."""
    with mounted(tmp_path / "disk", "8m") as where:
        yield where


@pytest.mark.parametrize("kind", [JsonlRepo, SqliteRepo])
async def test_sessions_in_it_are_listed_and_read_and_every_change_is_refused_by_name(disk: Path, kind: type[JsonlRepo] | type[SqliteRepo]) -> None:
    """S-24, F-01: opening, creating and forking say which file, and that the system refused; nothing is left behind."""
    async with kind(disk) as repo, await repo.create("one") as session:
        await session.append_message("hello")
    before = sorted(os.listdir(disk))
    make_read_only(disk)
    async with kind(disk) as repo:
        assert [(info.id, info.preview) for info in await repo.list()] == [("one", "hello")]
        with pytest.raises(StorageError, match="one"):
            await repo.open("one")
        with pytest.raises(StorageError, match="two"):
            await repo.create("two")
        with pytest.raises(StorageError, match="three"):
            await repo.fork("one", new_id="three")
        async with repo.reading("one") as storage:
            assert (await storage.get_stats()).message_count == 1
    assert sorted(os.listdir(disk)) == before


async def test_a_jsonl_session_in_it_is_read_only(disk: Path) -> None:
    """S-24: with the same file untouched."""
    path = disk / "s.jsonl"
    await (await JsonlStorage.open(path)).close()
    content = path.read_bytes()
    make_read_only(disk)
    for refused in (path, disk / "new.jsonl"):
        with pytest.raises(StorageError, match=refused.name):
            await JsonlStorage.open(refused)
    storage = await JsonlStorage.open(path, read_only=True)
    assert (await storage.get_stats()).message_count == 0
    await storage.close()
    assert path.read_bytes() == content
