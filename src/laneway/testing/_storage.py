"""The rules of a store as tests, for any backend.

::

    import pytest_asyncio
    from laneway.testing import StorageConformance

    class TestMine(StorageConformance):
        @pytest_asyncio.fixture
        async def storage(self):
            storage = await MyStorage.open(...)
            yield storage
            await storage.close()

`StorageConformance` needs a fresh, empty store in the fixture `storage`. `DurableStorageConformance` has the rules of
stores that outlive their object too: it needs, beside it, a fixture `reopen`, an async function that closes the store it is
given and opens the same session anew.

A store that can say all that it holds, which forks and rewrites need, adds `EnumerableConformance` to its bases; one whose content can
be replaced adds `RewritableConformance`, or `DurableRewritableConformance` if it outlives its object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from msgspec import structs

from laneway.errors import StorageClosed, StorageCorruption, StorageError
from laneway.messages import UserMessage
from laneway.storage.base import (
    AppendList,
    BranchScan,
    CompactionEntry,
    CustomEntry,
    DeleteList,
    EntryScan,
    InsertEntry,
    SetValue,
    Storage,
    UsageScan,
)

# Before they are imported, so that a failing rule shows the values that it compared.
pytest.register_assert_rewrite(*(f"laneway.testing._storage_{name}" for name in ("commits", "content", "model", "queries", "whole")))

from laneway.testing._storage_commits import CommitRules  # noqa: E402
from laneway.testing._storage_content import ContentRules  # noqa: E402
from laneway.testing._storage_queries import QueryRules  # noqa: E402
from laneway.testing._storage_rows import entry, everything, row, tokens  # noqa: E402
from laneway.testing._storage_whole import EnumerableRules, RewritableRules, RewritableStorage, content_of, fill  # noqa: E402

Reopen: TypeAlias = Callable[[Storage], Awaitable[Storage]]

__all__ = [
    "DurableRewritableConformance",
    "DurableStorageConformance",
    "EnumerableConformance",
    "Reopen",
    "RewritableConformance",
    "StorageConformance",
]


class StorageConformance(CommitRules, QueryRules, ContentRules):
    """Subclass with an async fixture `storage` that gives a fresh, empty store; every rule of a store is a test."""

    pytestmark = pytest.mark.asyncio

    async def test_close_is_idempotent_and_refuses_what_comes_later(self, storage: Storage) -> None:
        """S-18: after `close()` everything raises `StorageClosed`, even an empty commit; closing again does nothing."""
        await storage.commit([entry("a")])
        await storage.close()
        await storage.close()
        with pytest.raises(StorageClosed):
            await storage.commit([])
        for read in (
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
            with pytest.raises(StorageClosed):
                await read()


class DurableStorageConformance(StorageConformance):
    """The rules of a store whose content outlives the object: subclass with the fixtures `storage` and `reopen`."""

    async def test_everything_is_there_after_reopening(self, storage: Storage, reopen: Reopen) -> None:
        """S-01, S-16: entries, values, lists, ledger and totals come back as they were, with their seqs and times."""
        await storage.commit(
            [entry("a"), entry("b", "a"), InsertEntry(CustomEntry(id="c", parent_id="b", custom_type="note", data={"x": [1, None]}))]
        )
        await storage.commit([
            InsertEntry(CompactionEntry(id="d", parent_id="c", summary="so far", retained_tail=[UserMessage(content="kept")], tokens_before=9)),
            row("u", tokens(7)),
            SetValue("n", "none", None),
            SetValue("n", "gone", 1),
            AppendList("l", "k", "first"),
            AppendList("l", "k", "second"),
        ])  # fmt: skip
        before = await everything(storage)
        storage = await reopen(storage)
        assert await everything(storage) == before
        await storage.close()

    async def test_numbering_goes_on_after_reopening(self, storage: Storage, reopen: Reopen) -> None:
        """S-01: a seq is never given twice, not even to a write whose row is gone."""
        await storage.commit([entry("a"), SetValue("n", "k", 1)])
        last = (await storage.commit([AppendList("l", "k", 1), DeleteList("l", "k")])).seqs[-1]
        storage = await reopen(storage)
        assert (await storage.commit([entry("b", "a")])).first_seq > last
        await storage.close()

    async def test_rules_hold_against_rows_of_before(self, storage: Storage, reopen: Reopen) -> None:
        """S-04, S-05: ids stay taken and parents stay known after reopening; branches go on from any entry."""
        await storage.commit([entry("a"), entry("b", "a"), row("u", tokens(1))])
        storage = await reopen(storage)
        for taken in (entry("a"), entry("u"), row("b", tokens(1)), row("u", tokens(1))):
            with pytest.raises(StorageCorruption):
                await storage.commit([taken])
        with pytest.raises(StorageCorruption):
            await storage.commit([entry("x", "u")])
        await storage.commit([entry("c", "b"), entry("d", "a"), entry("e", "d")])
        storage = await reopen(storage)
        for tip, path in (("c", ["c", "b", "a"]), ("e", ["e", "d", "a"]), ("b", ["b", "a"])):
            assert [e.id for e in await storage.scan_branch(BranchScan(start=tip))] == path
        await storage.close()

    async def test_a_refused_commit_leaves_nothing_behind(self, storage: Storage, reopen: Reopen) -> None:
        """S-02: what was refused is not there after reopening either."""
        await storage.commit([entry("a"), SetValue("n", "k", "old"), AppendList("l", "k", 1)])
        before = await everything(storage)
        with pytest.raises(StorageError):
            await storage.commit([SetValue("n", "k", "new"), entry("b", "a"), AppendList("l", "k", 2), row("u", tokens(5)), entry("a")])
        storage = await reopen(storage)
        assert await everything(storage) == before
        await storage.close()

    async def test_reopening_again_and_again_changes_nothing(self, storage: Storage, reopen: Reopen) -> None:
        """B87: an open that has nothing to do does nothing."""
        await storage.commit([entry("a"), SetValue("n", "k", {"deep": ["x"]}), row("u", tokens(3))])
        before = await everything(storage)
        for _ in range(3):
            storage = await reopen(storage)
            assert await everything(storage) == before
        await storage.close()

    async def test_an_empty_session_reopens(self, storage: Storage, reopen: Reopen) -> None:
        """B87: a session that was opened and never written to is a session."""
        storage = await reopen(storage)
        assert (await everything(storage)).entries == []
        assert (await storage.commit([entry("a")])).stats.message_count == 1
        await storage.close()


class EnumerableConformance(EnumerableRules):
    """The rules of `Enumerable`: a base beside `StorageConformance`, whose fixture `storage` it uses."""

    pytestmark = pytest.mark.asyncio


class RewritableConformance(RewritableRules):
    """The rules of `Rewritable` for a store that is `Enumerable` too: a base beside `StorageConformance`."""

    pytestmark = pytest.mark.asyncio


class DurableRewritableConformance(RewritableConformance):
    """The rules of `Rewritable` for a store that outlives its object: a base beside `DurableStorageConformance`."""

    async def test_a_rewrite_is_there_after_reopening(self, storage: RewritableStorage, reopen: Reopen) -> None:
        """What was put in place, and no seq is given twice."""
        await fill(storage)
        last = (await storage.commit([SetValue("n", "z", 1)])).seqs[-1]
        content = await content_of(storage)
        await storage.rewrite(structs.replace(content, entries=content.entries[:2], usage=[], lists={}))
        before = await everything(storage)
        again = await reopen(storage)
        assert await everything(again) == before
        assert (await again.commit([entry("c", "b")])).first_seq > last
        assert [each.id for each in await again.scan_branch(BranchScan(start="c"))] == ["c", "b", "a"]
        await again.close()
