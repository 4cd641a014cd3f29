"""The stores that misbehave or remember."""

from __future__ import annotations

import pytest

from laneway.errors import StorageClosed, StorageCorruption
from laneway.storage.base import BranchScan, EntryScan, SetValue, UsageScan
from laneway.storage.memory import MemoryStorage
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
