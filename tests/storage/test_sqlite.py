"""The store in one SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from laneway.storage._sqlite_session import CHECKPOINT_DUE
from laneway.storage._sqlite_verify import problems_of
from laneway.storage._strand import MAX_THREADS
from laneway.storage.base import BranchScan, SetValue, Storage
from laneway.storage.sqlite import SqliteStorage
from laneway.testing._storage import DurableRewritableConformance, DurableStorageConformance, EnumerableConformance, Reopen
from laneway.testing._storage_model import assert_behaves_like_memory
from laneway.testing._storage_rows import entry
from storage.children import child, committed_by_child


class TestSqliteStorage(DurableStorageConformance, EnumerableConformance, DurableRewritableConformance):
    """S-01 to S-18 over a file."""

    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Storage]:
        """A fresh session."""
        storage = await SqliteStorage.open(tmp_path / "session.sqlite")
        yield storage
        await storage.close()

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        """Close and open the file again."""

        async def reopen(storage: Storage) -> Storage:
            await storage.close()
            return await SqliteStorage.open(tmp_path / "session.sqlite", create=False)

        return reopen


def test_it_behaves_like_memory(tmp_path: Path) -> None:
    """S-01 to S-17: random scripts, closed and opened again at random points, answer as the store in memory does; the file stays sound."""

    def is_sound(name: str) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as connection:
            assert problems_of(connection.cursor()) == []

    assert_behaves_like_memory(lambda name: SqliteStorage.open(tmp_path / name), while_closed=is_sound)


async def test_many_sessions_at_once_need_few_threads(tmp_path: Path) -> None:
    """Two hundred open sessions that all commit share a handful of threads, which end with them."""
    sessions = [await SqliteStorage.open(tmp_path / str(i)) for i in range(200)]
    for turn in range(3):
        await asyncio.gather(*(session.commit([entry(str(turn), str(turn - 1) if turn else None)]) for session in sessions))
    assert len(_store_threads()) <= MAX_THREADS + 1
    assert [(await session.get_stats()).message_count for session in sessions] == [3] * 200
    await asyncio.gather(*(session.close() for session in sessions))
    async with asyncio.timeout(20):
        while _store_threads():
            await asyncio.sleep(0.01)


def _store_threads() -> list[str]:
    """The threads of stores; those of tools may linger from elsewhere in the process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("laneway-storage", "laneway-heartbeats"))]


async def test_a_busy_session_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """B83: one that waits for another program's lock leaves threads for the rest."""
    stuck, free = await SqliteStorage.open(tmp_path / "stuck"), await SqliteStorage.open(tmp_path / "free")
    other = sqlite3.connect(tmp_path / "stuck", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(stuck.commit([entry("a")]))
    async with asyncio.timeout(5):
        for i in range(50):
            await free.commit([SetValue("n", "k", i)])
    assert not waiting.done()
    other.execute("ROLLBACK")
    other.close()
    await waiting
    await stuck.close()
    await free.close()


async def test_the_log_is_moved_into_the_file_behind_a_commit(tmp_path: Path) -> None:
    """S-12: it does not grow without end, and the file needs no closing for it."""
    storage = await SqliteStorage.open(tmp_path / "s")
    log = tmp_path / "s-wal"
    for round_ in range(4):
        await storage.commit([SetValue("n", str(i), str(round_) * CHECKPOINT_DUE * 1_000) for i in range(5)])
        await storage.get_stats()  # in line behind it
        assert (tmp_path / "s").stat().st_size > CHECKPOINT_DUE * 4_000
    assert log.stat().st_size < 2 * 5 * CHECKPOINT_DUE * 1_000
    await storage.close()
    assert problems_in(tmp_path / "s") == []


def problems_in(path: Path) -> list[str]:
    """Return what is wrong in a file that nobody has open."""
    connection = sqlite3.connect(path)
    try:
        return problems_of(connection.cursor())
    finally:
        connection.close()


async def test_processes_take_turns_with_a_session(tmp_path: Path) -> None:
    """B83: four processes open a fresh session at once, each waits for its turn and appends; a reader looks on; no error, no gap."""
    path = tmp_path / "s.sqlite"
    async with contextlib.AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(child("turns", "sqlite", str(path))) for _ in range(4)]
        for writer in writers:
            assert await writer.line() == "ready"
        for writer in writers:
            writer.tell("25")
        done = [asyncio.create_task(writer.line()) for writer in writers]
        seen = 0
        while not all(task.done() for task in done):
            if await asyncio.to_thread(path.exists):
                reader = await SqliteStorage.open(path, read_only=True)
                if tip := await reader.get_value("branch.tip", "main"):
                    nodes = await reader.scan_branch_structure(BranchScan(start=tip.value, order="oldest_first"))
                    assert [node.id for node in nodes] == [f"e{i}" for i in range(len(nodes))]
                    assert len(nodes) >= seen
                    seen = len(nodes)
                await reader.close()
            await asyncio.sleep(0.02)
        assert [task.result() for task in done] == ["done"] * 4
        for writer in writers:
            await writer.ends()
    storage = await SqliteStorage.open(path)
    assert await committed_by_child(storage) == 100
    assert await storage.verify() == []
    await storage.close()
