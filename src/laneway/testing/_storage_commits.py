"""The rules of `Storage.commit`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from laneway.errors import StorageCorruption
from laneway.messages import Cost, Usage
from laneway.storage.base import (
    AppendList,
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    DeleteList,
    DeleteValue,
    InsertEntry,
    SetValue,
    Storage,
    StoredValue,
    UsageScan,
    Write,
)
from laneway.testing._storage_rows import entry, everything, row, tokens


class CommitRules:
    """One commit is all or nothing, in order, and numbered."""

    async def test_a_mixed_commit_is_numbered_in_the_order_of_its_writes(self, storage: Storage) -> None:
        """S-01: seqs strictly increase in write order, rows carry their own seq and one time, stats are the totals after."""
        result = await storage.commit([entry("e1"), SetValue("n", "k", {"a": 1}), row("u1", tokens(3), "e1")])
        assert result.first_seq == result.seqs[0]
        assert len(result.seqs) == 3
        assert result.seqs == sorted(set(result.seqs))
        stored = (await storage.get_entries(["e1"]))["e1"]
        value = await storage.get_value("n", "k")
        usage = (await storage.scan_usage(UsageScan()))[0]
        assert value is not None
        assert [stored.seq, value.seq, usage.seq] == result.seqs
        assert stored.timestamp == usage.timestamp == result.timestamp
        assert usage.entry_id == "e1"
        assert result.stats == await storage.get_stats()
        assert result.stats.message_count == 1
        assert result.stats.usage == tokens(3)

    async def test_seqs_grow_from_commit_to_commit(self, storage: Storage) -> None:
        """S-01: every commit is numbered above all before it, whatever kind of write it has."""
        writes: list[Write] = [
            entry("a"), SetValue("n", "k", 1), DeleteValue("n", "k"), AppendList("l", "k", 1), DeleteList("l", "k"), row("u", tokens(1)),
        ]  # fmt: skip
        seqs = [seq for write in writes for seq in (await storage.commit([write])).seqs]
        assert seqs == sorted(set(seqs))

    async def test_what_the_caller_puts_into_seq_and_timestamp_is_ignored(self, storage: Storage) -> None:
        """S-01: storage sets both."""
        written = InsertEntry(CustomEntry(id="a", parent_id=None, custom_type="t", seq=77, timestamp=5))
        result = await storage.commit([written])
        stored = (await storage.get_entries(["a"]))["a"]
        assert (stored.seq, stored.timestamp) == (result.first_seq, result.timestamp)
        assert result.first_seq != 77

    async def test_a_commit_is_all_or_nothing(self, storage: Storage) -> None:
        """S-02: a commit that is refused at its last write changes nothing, and its seqs are given to the next one."""
        first = await storage.commit([row("taken", tokens(2))])
        before = await everything(storage)
        with pytest.raises(StorageCorruption, match="taken"):
            await storage.commit([SetValue("n", "k", 1), entry("a"), row("u", tokens(9)), AppendList("l", "k", 1), entry("taken")])
        assert await everything(storage) == before
        assert (await storage.commit([SetValue("n", "k", 1)])).first_seq == first.seqs[-1] + 1

    async def test_a_refused_commit_restores_overwritten_and_deleted_values(self, storage: Storage) -> None:
        """S-03: both keep their old value and their old seq; a deleted list keeps its elements."""
        await storage.commit([SetValue("n", "v", "old"), SetValue("n", "w", "kept"), AppendList("l", "k", "x"), entry("a")])
        before = await everything(storage)
        with pytest.raises(StorageCorruption):
            await storage.commit([SetValue("n", "v", "new"), DeleteValue("n", "w"), DeleteList("l", "k"), AppendList("l", "k", "y"), entry("a")])
        assert await everything(storage) == before

    async def test_entries_and_usage_rows_share_one_namespace_of_ids(self, storage: Storage) -> None:
        """S-04: a duplicate is refused across commits and within one, in either order; nothing is ever overwritten."""
        await storage.commit([entry("e"), row("u", tokens(1))])
        before = await everything(storage)
        refused: list[list[Write]] = [
            [entry("e")],
            [row("u", tokens(1))],
            [row("e", tokens(1))],
            [entry("u")],
            [entry("k"), row("k", tokens(1))],
            [row("k", tokens(1)), entry("k")],
            [entry("k"), entry("k")],
            [row("k", tokens(1)), row("k", tokens(1))],
        ]
        for writes in refused:
            with pytest.raises(StorageCorruption):
                await storage.commit(writes)
        assert await everything(storage) == before
        await storage.commit([entry("k")])

    async def test_a_parent_is_an_entry_written_before(self, storage: Storage) -> None:
        """S-05: in an earlier commit or earlier in the same one; a later, missing, own or usage id refuses the whole commit."""
        await storage.commit([entry("root"), row("usage", tokens(1))])
        await storage.commit([entry("child", "root"), entry("grandchild", "child")])
        before = await everything(storage)
        refused: list[list[Write]] = [
            [entry("x", "later"), entry("later")],
            [SetValue("n", "k", 1), entry("orphan", "missing")],
            [entry("y", "usage")],
            [row("fresh", tokens(1)), entry("y", "fresh")],
            [entry("self", "self")],
        ]
        for writes in refused:
            with pytest.raises(StorageCorruption):
                await storage.commit(writes)
        assert await everything(storage) == before

    async def test_there_may_be_several_roots(self, storage: Storage) -> None:
        """S-05: an entry without a parent begins a tree of its own."""
        await storage.commit([entry("a"), entry("b"), entry("c", "a")])
        assert {e.id: e.parent_id for e in (await storage.get_entries(["a", "b", "c"])).values()} == {"a": None, "b": None, "c": "a"}

    async def test_writes_apply_in_order(self, storage: Storage) -> None:
        """S-07: the last write of a cell wins with its own seq; a list that is deleted begins anew."""
        writes: list[Write] = [
            SetValue("n", "v", 1), DeleteValue("n", "v"), SetValue("n", "w", 1), SetValue("n", "w", 2),
            AppendList("l", "k", "a"), DeleteList("l", "k"), AppendList("l", "k", "b"),
        ]  # fmt: skip
        seqs = (await storage.commit(writes)).seqs
        assert await storage.get_value("n", "v") is None
        assert await storage.get_value("n", "w") == StoredValue(namespace="n", key="w", value=2, seq=seqs[3])
        assert [(e.seq, e.value) for e in await storage.read_list("l", "k")] == [(seqs[6], "b")]

    async def test_deleting_what_is_absent_does_nothing(self, storage: Storage) -> None:
        """S-07: it is no error, and it takes a seq like any write."""
        result = await storage.commit([DeleteValue("n", "absent"), DeleteList("l", "absent")])
        assert len(result.seqs) == 2

    async def test_a_deleted_value_can_be_set_again(self, storage: Storage) -> None:
        """S-07: across commits too."""
        await storage.commit([SetValue("n", "k", 1)])
        await storage.commit([DeleteValue("n", "k")])
        assert await storage.get_value("n", "k") is None
        await storage.commit([SetValue("n", "k", 2)])
        assert [v.value for v in await storage.scan_values("n")] == [2]

    async def test_an_empty_commit_writes_nothing(self, storage: Storage) -> None:
        """S-18: an empty commit is a commit: no seqs, and the totals."""
        await storage.commit([entry("a")])
        result = await storage.commit([])
        assert result.seqs == []
        assert result.stats.message_count == 1
        assert (await storage.commit([SetValue("n", "k", 1)])).first_seq == result.first_seq

    async def test_stats_are_the_ledgers_sum(self, storage: Storage) -> None:
        """S-16: message entries only are counted; every optional count, adjustments included, is summed."""
        await storage.commit([entry("a"), InsertEntry(CompactionEntry(id="b", parent_id="a", summary="s"))])
        await storage.commit([
            InsertEntry(BranchSummaryEntry(id="c", parent_id="b", from_id="a", summary="s")),
            InsertEntry(CustomEntry(id="d", parent_id="c", custom_type="t")),
            entry("e", "d"),
        ])  # fmt: skip
        rows = [
            Usage(input=1, output=2, cache_read=3, cache_write=4, total_tokens=10, cost=Cost(input=0.1, total=0.1)),
            Usage(cache_write_1h=5, cost=Cost(cache_read=0.2, cache_write=0.3, output=0.4, total=0.9)),
            Usage(reasoning=6, cache_write_1h=1),
            Usage(input=-1, cost=Cost(total=-0.05)),
        ]
        assert (await storage.get_stats()).usage.reasoning is None
        total = Usage()
        for i, usage in enumerate(rows):
            total = total + usage
            result = await storage.commit([row(f"u{i}", usage, adjustment=i == 3, details={"n": i})])
            assert result.stats.usage == total
        stats = await storage.get_stats()
        assert stats.message_count == 2
        assert stats.usage == total
        ledger = await storage.scan_usage(UsageScan())
        assert [(u.usage, u.adjustment, u.details) for u in ledger] == [(u, i == 3, {"n": i}) for i, u in enumerate(rows)]

    async def test_commits_are_serialised_in_the_order_of_their_calls(self, storage: Storage) -> None:
        """S-17: a child's commit may be issued before its parent's has returned."""
        results = await asyncio.gather(*(storage.commit([entry(str(i), str(i - 1) if i else None)]) for i in range(20)))
        firsts = [result.first_seq for result in results]
        assert firsts == sorted(firsts)
        assert [result.stats.message_count for result in results] == list(range(1, 21))

    async def test_a_refused_commit_does_not_hold_up_the_next(self, storage: Storage) -> None:
        """S-17: concurrent commits succeed or fail each for itself."""
        commits: list[list[Write]] = [[entry("a")], [entry("a")], [entry("b", "missing")], [entry("c", "a")]]
        results: list[Any] = await asyncio.gather(*(storage.commit(writes) for writes in commits), return_exceptions=True)
        assert [isinstance(result, StorageCorruption) for result in results] == [False, True, True, False]

    async def test_a_commit_takes_the_callers_objects_as_they_are_at_the_call(self, storage: Storage) -> None:
        """S-01: what a caller changes later, or changes in what it got back, never reaches the store."""
        data: dict[str, Any] = {"list": [1]}
        await storage.commit([SetValue("n", "k", data), InsertEntry(CustomEntry(id="a", parent_id=None, custom_type="t", data=data))])
        data["list"].append(2)
        for _ in range(2):
            value = await storage.get_value("n", "k")
            stored = (await storage.get_entries(["a"]))["a"]
            assert value is not None
            assert isinstance(stored, CustomEntry)
            assert value.value == stored.data == {"list": [1]}
            value.value["list"].append(3)
            stored.data["list"].append(3)

    async def test_an_entry_may_keep_its_seq(self, storage: Storage) -> None:
        """A fork's copies keep their seqs and times; what follows is numbered above them."""
        copies = [
            InsertEntry(CustomEntry(id="a", parent_id=None, custom_type="t", seq=10, timestamp=111), keep_seq=True),
            InsertEntry(CustomEntry(id="b", parent_id="a", custom_type="t", seq=20, timestamp=222), keep_seq=True),
        ]
        assert (await storage.commit([*copies, SetValue("n", "k", 1)])).seqs == [10, 20, 21]
        kept = await storage.get_entries(["a", "b"])
        assert [(e.seq, e.timestamp) for e in kept.values()] == [(10, 111), (20, 222)]
        assert (await storage.commit([entry("c", "b")])).first_seq == 22

    @pytest.mark.parametrize("seq", [0, -1, 5, 1.5, True])
    async def test_a_kept_seq_must_be_above_all_before_it(self, storage: Storage, seq: Any) -> None:
        """A copy cannot be put between rows that are there already."""
        await storage.commit([SetValue("n", str(i), i) for i in range(5)])
        before = await everything(storage)
        with pytest.raises(ValueError, match="keep the seq"):
            await storage.commit([InsertEntry(CustomEntry(id="a", parent_id=None, custom_type="t", seq=seq, timestamp=1), keep_seq=True)])
        assert await everything(storage) == before

    async def test_what_is_not_a_write_is_refused(self, storage: Storage) -> None:
        """A commit takes writes, and a write takes rows of its kind."""
        insert: Any = InsertEntry
        bad: list[Any] = ["x", None, entry("a").entry, insert("a"), insert(row("u", tokens(1)).row)]
        for write in bad:
            with pytest.raises((TypeError, ValueError)):
                await storage.commit([entry("fine"), write])
        assert (await everything(storage)).entries == []
