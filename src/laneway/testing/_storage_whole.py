"""The rules of stores that can say all that they hold, and of those whose content can be replaced."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pytest
from msgspec import structs

from laneway.errors import StorageClosed, StorageCorruption
from laneway.storage.base import (
    MAX_LIST_LIMIT,
    AppendList,
    BranchScan,
    CompactionEntry,
    Content,
    CustomEntry,
    DeleteList,
    DeleteValue,
    Entry,
    EntryScan,
    Enumerable,
    InsertEntry,
    Rewritable,
    SetValue,
    Storage,
    UsageScan,
    Values,
)
from laneway.testing._storage_rows import entry, everything, row, tokens


class EnumerableStorage(Storage, Enumerable, Protocol):
    """A store that can say all that it holds."""


class RewritableStorage(Storage, Enumerable, Rewritable, Protocol):
    """One whose content can be replaced as well."""


def cells_of(values: Values) -> dict[tuple[str, str], tuple[Any, int]]:
    """Return the cells by address: their value and seq."""
    return {(cell.namespace, cell.key): (cell.value, cell.seq) for cell in values.cells}


def elements_of(values: Values) -> dict[tuple[str, str], list[tuple[Any, int]]]:
    """Return the lists by address: the value and seq of each element."""
    return {address: [(element.value, element.seq) for element in elements] for address, elements in values.lists.items()}


async def content_of(storage: EnumerableStorage) -> Content:
    """Return all that a store holds, as a rewrite would be given it."""
    values = await storage.read_values()
    return Content(
        entries=await storage.scan_entries(EntryScan()), usage=await storage.scan_usage(UsageScan()), cells=values.cells, lists=values.lists
    )


class EnumerableRules:
    """`Enumerable.read_values` gives every cell and list, as they are at one moment."""

    async def test_an_empty_store_has_no_values(self, storage: EnumerableStorage) -> None:
        """And no entry, so the seq of the newest is 0."""
        assert await storage.read_values() == Values(last_seq=0, cells=[], lists={})

    async def test_all_values_are_those_that_are_there(self, storage: EnumerableStorage) -> None:
        """Of every namespace, a stored None too, each with its own seq; what was deleted or overwritten is not among them."""
        await storage.commit([SetValue("n", "k", "old"), SetValue("n", "gone", 1), AppendList("l", "gone", 1), SetValue("other", "", {"a": [1]})])
        await storage.commit([DeleteValue("n", "gone"), DeleteList("l", "gone")])
        told = await storage.commit([SetValue("n", "k", "new"), SetValue("n", "none", None), AppendList("l", "k", "x"), AppendList("l", "k", None)])
        values = await storage.read_values()
        new, none, first, second = told.seqs
        assert cells_of(values) == {("n", "k"): ("new", new), ("n", "none"): (None, none), ("other", ""): ({"a": [1]}, 4)}
        assert elements_of(values) == {("l", "k"): [("x", first), (None, second)]}

    async def test_a_cell_and_a_list_may_have_one_address(self, storage: EnumerableStorage) -> None:
        """They are two things."""
        await storage.commit([SetValue("n", "k", "cell"), AppendList("n", "k", "element")])
        values = await storage.read_values()
        assert [cell.value for cell in values.cells] == ["cell"]
        assert [element.value for element in values.lists["n", "k"]] == ["element"]

    async def test_the_last_seq_is_that_of_the_newest_entry(self, storage: EnumerableStorage) -> None:
        """Not of a value or a ledger row that came later."""
        await storage.commit([entry("a"), SetValue("n", "k", 1)])
        seq = (await storage.commit([entry("b", "a")])).first_seq
        await storage.commit([SetValue("n", "k", 2), row("u", tokens(1)), AppendList("l", "k", 1)])
        assert (await storage.read_values()).last_seq == seq

    async def test_a_long_list_is_there_to_its_end(self, storage: EnumerableStorage) -> None:
        """No page limit applies."""
        await storage.commit([AppendList("l", "k", i) for i in range(MAX_LIST_LIMIT + 1)])
        assert [element.value for element in (await storage.read_values()).lists["l", "k"]] == list(range(MAX_LIST_LIMIT + 1))

    async def test_it_is_one_moment_whoever_is_writing(self, storage: EnumerableStorage) -> None:
        """A commit is seen whole or not at all."""
        writing = True

        async def write() -> None:
            number = 0
            while writing:
                number += 1
                parent = f"e{number - 1}" if number > 1 else None
                await storage.commit(
                    [SetValue("n", "a", number), entry(f"e{number}", parent), AppendList("l", "k", number), SetValue("n", "b", number)]
                )
                await asyncio.sleep(0)

        writer = asyncio.create_task(write())
        try:
            for _ in range(20):
                values = await storage.read_values()
                cells = cells_of(values)
                if cells:
                    (a, before), (b, after) = cells["n", "a"], cells["n", "b"]
                    assert a == b == len(values.lists["l", "k"])
                    assert before < values.last_seq < after
                await asyncio.sleep(0)
        finally:
            writing = False
            await writer

    async def test_a_closed_store_says_nothing(self, storage: EnumerableStorage) -> None:
        """S-18: `StorageClosed`, as for every read."""
        await storage.close()
        with pytest.raises(StorageClosed):
            await storage.read_values()


async def fill(storage: Storage) -> None:
    """Store a small tree with everything in it that a store can hold."""
    await storage.commit([entry("a"), entry("b", "a"), entry("c", "b"), SetValue("n", "k", {"x": 1}), SetValue("n", "none", None)])
    await storage.commit([
        InsertEntry(CompactionEntry(id="d", parent_id="c", summary="so far", retained_tail=[], tokens_before=9)),
        InsertEntry(CustomEntry(id="e", parent_id="b", custom_type="note", data=[1])),
        row("u1", tokens(2), "c"), row("u2", tokens(5), adjustment=True), AppendList("l", "k", "x"), AppendList("l", "k", "y"),
    ])  # fmt: skip


async def branch(storage: Storage, tip: str) -> list[str]:
    """Return the ids of a path, newest first."""
    return [each.id for each in await storage.scan_branch(BranchScan(start=tip))]


class RewritableRules:
    """`Rewritable.rewrite` puts other content in place of everything, all or nothing."""

    async def test_a_rewrite_with_its_own_content_changes_nothing(self, storage: RewritableStorage) -> None:
        """Entries, ledger and values keep their seqs, entries and ledger their times, and the totals follow."""
        await fill(storage)
        before, values = await everything(storage), await storage.read_values()
        await storage.rewrite(await content_of(storage))
        assert await everything(storage) == before
        after = await storage.read_values()
        assert (cells_of(after), elements_of(after), after.last_seq) == (cells_of(values), elements_of(values), values.last_seq)

    async def test_what_is_left_out_is_gone(self, storage: RewritableStorage) -> None:
        """Whatever it is; totals are those of what is left."""
        await fill(storage)
        content = await content_of(storage)
        left: list[Entry] = [each for each in content.entries if each.id in ("a", "b")]
        await storage.rewrite(Content(entries=left, usage=content.usage[1:], cells=[c for c in content.cells if c.key == "none"], lists={}))
        assert [each.id for each in await storage.scan_entries(EntryScan())] == ["a", "b"]
        assert await storage.get_entries(["c", "d", "e"]) == {}
        assert (await storage.get_value("n", "k"), await storage.read_list("l", "k")) == (None, [])
        stored = await storage.get_value("n", "none")
        assert stored is not None
        assert stored.value is None
        assert [each.id for each in await storage.scan_usage(UsageScan())] == ["u2"]
        stats = await storage.get_stats()
        assert (stats.message_count, stats.usage) == (2, tokens(5))

    async def test_an_entry_may_get_another_parent_and_other_words(self, storage: RewritableStorage) -> None:
        """Paths are those of the new tree, and can be continued."""
        await fill(storage)
        content = await content_of(storage)
        kept = [structs.replace(each, parent_id="a") if each.parent_id == "b" else each for each in content.entries if each.id != "b"]
        await storage.rewrite(structs.replace(content, entries=kept))
        assert await branch(storage, "d") == ["d", "c", "a"]
        assert await branch(storage, "e") == ["e", "a"]
        await storage.commit([entry("f", "d"), entry("g", "e"), entry("h", "a")])
        assert await branch(storage, "f") == ["f", "d", "c", "a"]
        assert await branch(storage, "g") == ["g", "e", "a"]

    async def test_seqs_go_on_above_all_that_were_ever_given(self, storage: RewritableStorage) -> None:
        """Even if what had the highest is gone."""
        await fill(storage)
        last = (await storage.commit([entry("z", "d"), SetValue("n", "z", 1)])).seqs[-1]
        content = await content_of(storage)
        await storage.rewrite(Content(entries=content.entries[:1], usage=[], cells=[], lists={}))
        assert (await storage.commit([entry("y", "a")])).first_seq > last

    async def test_everything_can_go(self, storage: RewritableStorage) -> None:
        """An empty store is left, which can be written to."""
        await fill(storage)
        await storage.rewrite(Content(entries=[], usage=[], cells=[], lists={}))
        assert await storage.read_values() == Values(last_seq=0, cells=[], lists={})
        assert await storage.scan_entries(EntryScan()) == []
        assert (await storage.commit([entry("new")])).stats.message_count == 1

    async def test_content_that_is_no_tree_is_refused(self, storage: RewritableStorage) -> None:
        """A missing parent, an id that is used twice; nothing is changed."""
        await fill(storage)
        before, content = await everything(storage), await content_of(storage)
        wrong = (
            [each for each in content.entries if each.id != "b"],
            [*content.entries, structs.replace(content.entries[0], seq=99)],
            [structs.replace(each, id="u1") if each.id == "e" else each for each in content.entries],
        )
        for entries in wrong:
            with pytest.raises(StorageCorruption):
                await storage.rewrite(structs.replace(content, entries=entries))
            assert await everything(storage) == before
        await storage.commit([entry("f", "d")])

    async def test_a_closed_store_is_not_rewritten(self, storage: RewritableStorage) -> None:
        """S-18: `StorageClosed`."""
        await fill(storage)
        content = await content_of(storage)
        await storage.close()
        with pytest.raises(StorageClosed):
            await storage.rewrite(content)
