"""The stores that misbehave or remember."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import RewriteError, StorageClosed, StorageCorruption
from laneway.messages import UserMessage
from laneway.session import Session
from laneway.storage.base import BranchScan, Content, EntryScan, SetValue, Storage, UsageScan
from laneway.storage.memory import MemoryStorage
from laneway.storage.sqlite import SqliteStorage
from laneway.testing import EnumerableConformance, RewritableConformance, StorageConformance, _storage
from laneway.testing._storage_doubles import Crash, CrashingStorage, RecordingStorage
from laneway.testing._storage_rows import entry


async def test_a_crashing_storage_lets_so_many_commits_through() -> None:
    """`at=2`: two commits are done and acknowledged; then everything raises, and the store is as the dead process left it."""
    inner = MemoryStorage()
    storage = CrashingStorage(inner, at=2)
    await storage.commit([entry("a")])
    assert list(await storage.get_entries(["a"])) == ["a"]
    await storage.commit([entry("b", "a")])
    for call in (
        lambda: storage.commit([]),
        lambda: storage.get_entries(["a"]),
        lambda: storage.get_value("n", "k"),
        lambda: storage.scan_values("n"),
        lambda: storage.read_list("n", "k"),
        lambda: storage.scan_branch(BranchScan(start="a")),
        lambda: storage.scan_branch_structure(BranchScan(start="a")),
        lambda: storage.scan_entries(EntryScan()),
        lambda: storage.scan_usage(UsageScan()),
        lambda: storage.get_stats(),
    ):
        with pytest.raises(Crash, match="after commit 2"):
            await call()
    await storage.close()
    assert (await inner.get_stats()).message_count == 2


async def test_before_means_that_the_commit_does_not_happen() -> None:
    """`at=2, before=True`: what follows the first commit runs, the second raises and is not applied."""
    inner = MemoryStorage()
    storage = CrashingStorage(inner, at=2, before=True)
    await storage.commit([entry("a")])
    assert (await storage.get_stats()).message_count == 1
    with pytest.raises(Crash, match="before commit 2"):
        await storage.commit([entry("b", "a")])
    with pytest.raises(Crash):
        await storage.get_stats()
    assert (await inner.get_stats()).message_count == 1


async def test_a_refused_commit_does_not_count() -> None:
    """A commit that did not happen is not the n-th one."""
    storage = CrashingStorage(MemoryStorage(), at=1)
    with pytest.raises(StorageCorruption):
        await storage.commit([entry("a", "missing")])
    await storage.commit([entry("a")])
    with pytest.raises(Crash):
        await storage.commit([entry("b")])


async def test_a_store_that_did_not_crash_closes_what_it_wraps() -> None:
    """So a test ends as a program does."""
    inner = MemoryStorage()
    await CrashingStorage(inner, at=5).close()
    with pytest.raises(StorageClosed):
        await inner.get_stats()


def test_there_is_no_commit_before_the_first() -> None:
    """A number that makes no sense is refused."""
    with pytest.raises(ValueError, match="at must be"):
        CrashingStorage(MemoryStorage(), at=0, before=True)
    with pytest.raises(ValueError, match="at must be"):
        CrashingStorage(MemoryStorage(), at=-1)


async def test_at_zero_everything_raises() -> None:
    """The process never got to its first commit."""
    with pytest.raises(Crash):
        await CrashingStorage(MemoryStorage(), at=0).get_stats()


async def test_a_recording_storage_remembers_the_commits_that_happened() -> None:
    """In order, each as it was given."""
    storage = RecordingStorage(MemoryStorage())
    first, second = [entry("a"), SetValue("n", "k", 1)], [SetValue("n", "k", 2)]
    await storage.commit(first)
    with pytest.raises(StorageCorruption):
        await storage.commit([entry("a")])
    await storage.commit(second)
    assert storage.commits == [tuple(first), tuple(second)]
    value = await storage.get_value("n", "k")
    assert value is not None
    assert value.value == 2


# ---------------------------------------------------------------------------------------------------- what only some stores have


class TestRecordingStorage(StorageConformance, EnumerableConformance, RewritableConformance):
    """A store that remembers keeps every rule of the store that it wraps."""

    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        """Around a fresh store in memory."""
        storage = RecordingStorage(MemoryStorage())
        yield storage
        await storage.close()


class TestCrashingStorage(StorageConformance, EnumerableConformance, RewritableConformance):
    """So does one whose crash is far away."""

    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        """Around a fresh store in memory."""
        storage = CrashingStorage(MemoryStorage(), at=1_000_000)
        yield storage
        await storage.close()


class Plain:
    """A store that has none of what is optional."""

    async def close(self) -> None:
        """Nothing is held."""


OPTIONAL = ("read_values", "rewrite", "verify", "repair")


@pytest.mark.parametrize("around", [RecordingStorage, lambda inner: CrashingStorage(inner, at=9)])
async def test_a_double_has_what_its_store_has(around: Any, tmp_path: Path) -> None:
    """Sessions ask a store what it can do; a double that says something else changes what is tested."""
    sqlite = await SqliteStorage.open(tmp_path / "s.db")
    for inner, there in ((Plain(), ()), (MemoryStorage(), OPTIONAL[:2]), (sqlite, OPTIONAL)):
        double = around(inner)
        assert [name for name in OPTIONAL if hasattr(double, name)] == list(there)
        with pytest.raises(AttributeError, match="no attribute 'other'"):
            _ = double.other
    assert await around(sqlite).verify() == []
    await sqlite.close()


async def test_a_session_over_a_double_erases_and_repairs(tmp_path: Path) -> None:
    """`rewrite` and `repair` of a session go through it; what was put in place of everything is remembered."""
    storage = RecordingStorage(await SqliteStorage.open(tmp_path / "s.db"))
    session = Session.over(storage)
    branch = await session.create_branch("main")
    first = await branch.append_message(UserMessage(content="a"))
    second = await branch.append_message(UserMessage(content="b"))
    report = await session.rewrite(lambda each: each.id != second)
    assert report.erased == [second]
    assert [[each.id for each in content.entries] for content in storage.rewrites] == [[first]]
    assert await session.repair() == []
    await session.close()
    with pytest.raises(RewriteError, match="RecordingStorage cannot replace its content"):
        await Session.over(RecordingStorage(Plain())).rewrite(lambda _: True)  # type: ignore[arg-type] - it is asked nothing else


async def test_a_rewrite_and_a_repair_are_crash_points(tmp_path: Path) -> None:
    """They write, so a process can die before and after each; one that was refused does not count."""
    inner = await SqliteStorage.open(tmp_path / "s.db")
    empty = Content(entries=[], usage=[], cells=[], lists={})
    storage: Any = CrashingStorage(inner, at=3)
    await storage.commit([entry("a")])
    with pytest.raises(ValueError, match="cannot keep the seq 0"):
        await storage.rewrite(Content(entries=[entry("b").entry], usage=[], cells=[], lists={}))
    await storage.repair()
    assert (storage.commits, storage.crashed) == (2, False)
    await storage.rewrite(empty)
    for call in (storage.repair, storage.verify, storage.read_values, lambda: storage.rewrite(empty)):
        with pytest.raises(Crash, match="after commit 3"):
            await call()
    before: Any = CrashingStorage(inner, at=2, before=True)
    await before.commit([entry("c")])
    with pytest.raises(Crash, match="before commit 2"):
        await before.rewrite(empty)
    assert list(await inner.get_entries(["a", "c"])) == ["c"]
    await inner.close()


def test_the_example_of_a_conformance_runs_as_it_stands(tmp_path: Path) -> None:
    """In a project that has not set up anything: pytest-asyncio is strict unless told otherwise."""
    example = inspect.cleandoc(re.search(r"::\n\n((?: {4}.*\n|\n)+)", _storage.__doc__ or "")[1])  # type: ignore[index]
    mine = "from laneway.storage.memory import MemoryStorage\n\nclass MyStorage(MemoryStorage):\n    @classmethod\n    async def open(cls, _):\n"
    (tmp_path / "test_mine.py").write_text(f"{mine}        return cls()\n\n{example}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "close or none_is_a_value", "test_mine.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
