"""The rules of a store's reads."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from laneway.errors import StorageError
from laneway.storage.base import (
    AppendList,
    BranchScan,
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    DeleteList,
    DeleteValue,
    EntryNode,
    EntryScan,
    InsertEntry,
    SetValue,
    Storage,
    UsageScan,
    Write,
)
from laneway.testing._storage_rows import entry, row, tokens

BAD_LIMITS = (0, -1, 1.5, True, "3")


class QueryRules:
    """Values, lists, paths and scans, and their limits and cursors."""

    # ------------------------------------------------------------------------------------------------ values

    async def test_none_is_a_value(self, storage: Storage) -> None:
        """S-08: a stored None is not an absent cell; deleting makes it absent."""
        assert await storage.get_value("n", "k") is None
        await storage.commit([SetValue("n", "k", None)])
        stored = await storage.get_value("n", "k")
        assert stored is not None
        assert stored.value is None
        await storage.commit([DeleteValue("n", "k")])
        assert await storage.get_value("n", "k") is None

    async def test_addresses_are_validated(self, storage: Storage) -> None:
        """S-11: an empty namespace and NUL in a namespace or key are refused, on writing and on reading; an empty key is fine."""
        for namespace, key in (("", "k"), ("a\0b", "k"), ("n", "a\0b")):
            writes: list[Write] = [
                SetValue(namespace, key, 1), DeleteValue(namespace, key), AppendList(namespace, key, 1), DeleteList(namespace, key),
            ]  # fmt: skip
            for write in writes:
                with pytest.raises(ValueError, match=r"namespace|key"):
                    await storage.commit([SetValue("n", "fine", 1), write])
            with pytest.raises(ValueError, match=r"namespace|key"):
                await storage.get_value(namespace, key)
            with pytest.raises(ValueError, match=r"namespace|key"):
                await storage.scan_values(namespace, key)
            with pytest.raises(ValueError, match=r"namespace|key"):
                await storage.read_list(namespace, key)
        assert await storage.scan_values("n") == []
        await storage.commit([SetValue("n", "", "empty key")])
        assert [v.key for v in await storage.scan_values("n")] == [""]

    async def test_a_value_and_a_list_of_one_address_are_two_things(self, storage: Storage) -> None:
        """S-11: value and list kinds do not collide; equal (kind, namespace, key) is the same slot."""
        await storage.commit([SetValue("n", "k", "cell"), AppendList("n", "k", "element"), SetValue("n", "k", "cell again")])
        assert [v.value for v in await storage.scan_values("n")] == ["cell again"]
        assert [e.value for e in await storage.read_list("n", "k")] == ["element"]
        await storage.commit([DeleteValue("n", "k")])
        assert [e.value for e in await storage.read_list("n", "k")] == ["element"]

    async def test_namespaces_are_apart_and_scans_are_ordered_by_key(self, storage: Storage) -> None:
        """S-11: a scan gives the keys of one namespace that begin with the prefix, by code point."""
        keys = ["b", "ab", "a", "", "a/1", "a/2", "a0", "Z", "é", "\U0001f600", "a\U0010ffff", "ab%", "a_", "\uffff"]
        await storage.commit([SetValue("n", key, key) for key in keys])
        await storage.commit([SetValue("nn", "a", "other"), SetValue("m", "a", "other")])
        assert [v.key for v in await storage.scan_values("n")] == sorted(keys)
        for prefix in ("a", "a/", "ab", "ab%", "a_", "z", "é", "\U0001f600", "\uffff", "a\U0010ffff"):
            found = await storage.scan_values("n", prefix)
            assert [v.key for v in found] == sorted(key for key in keys if key.startswith(prefix))
            assert all(v.value == v.key and v.namespace == "n" for v in found)

    # ------------------------------------------------------------------------------------------------ lists

    async def test_lists_keep_order_and_global_seqs(self, storage: Storage) -> None:
        """S-10: an element's seq is the seq of its write; other writes leave gaps; cursors are exclusive; delete removes all."""
        seqs: list[int] = []
        for i in range(5):
            result = await storage.commit([SetValue("n", "k", i), AppendList("l", "k", i), AppendList("l", "other", i)])
            seqs.append(result.seqs[1])
        assert [(e.seq, e.value) for e in await storage.read_list("l", "k")] == list(zip(seqs, range(5), strict=True))
        assert [e.value for e in await storage.read_list("l", "k", order="desc")] == [4, 3, 2, 1, 0]
        assert [e.value for e in await storage.read_list("l", "k", after=seqs[1])] == [2, 3, 4]
        assert [e.value for e in await storage.read_list("l", "k", after=seqs[1], order="desc")] == [0]
        assert [e.value for e in await storage.read_list("l", "k", after=seqs[1] + 1, limit=1)] == [2]
        assert [e.value for e in await storage.read_list("l", "k", limit=2, order="desc")] == [4, 3]
        assert await storage.read_list("l", "k", after=seqs[-1]) == []
        assert await storage.read_list("l", "k", after=-5, order="desc") == []
        assert await storage.read_list("l", "absent") == []
        await storage.commit([DeleteList("l", "k")])
        assert await storage.read_list("l", "k") == []
        assert len(await storage.read_list("l", "other")) == 5

    async def test_list_pages_are_limited(self, storage: Storage) -> None:
        """S-10: 1,000 by default, 10,000 at most; a limit that is not a positive whole number is refused."""
        await storage.commit([AppendList("l", "k", i) for i in range(10_050)])
        assert len(await storage.read_list("l", "k")) == 1_000
        clamped = await storage.read_list("l", "k", limit=20_000)
        assert [e.value for e in clamped] == list(range(10_000))
        rest = await storage.read_list("l", "k", after=clamped[-1].seq)
        assert [e.value for e in rest] == list(range(10_000, 10_050))

    @pytest.mark.parametrize("limit", BAD_LIMITS)
    async def test_a_limit_is_a_positive_whole_number(self, storage: Storage, limit: Any) -> None:
        """S-10: the same for lists and for scans."""
        await storage.commit([entry("a"), AppendList("l", "k", 1)])
        with pytest.raises(ValueError, match="limit"):
            await storage.read_list("l", "k", limit=limit)
        with pytest.raises(ValueError, match="limit"):
            await storage.scan_branch(BranchScan(start="a", limit=limit))
        with pytest.raises(ValueError, match="limit"):
            await storage.scan_entries(EntryScan(limit=limit))
        with pytest.raises(ValueError, match="limit"):
            await storage.scan_usage(UsageScan(limit=limit))

    async def test_orders_and_cursors_are_validated(self, storage: Storage) -> None:
        """S-10, S-12, S-15: a misspelt order or type, or a cursor that is no number, is refused rather than guessed at."""
        await storage.commit([entry("a")])
        up: Any = "upwards"
        half: Any = 1.5
        for scan in (BranchScan(start="a", order=up), BranchScan(start="a", type=up), BranchScan(start="a", stop_at_type=up)):
            with pytest.raises(ValueError, match="upwards"):
                await storage.scan_branch(scan)
        with pytest.raises(ValueError, match="cursor"):
            await storage.scan_branch(BranchScan(start="a", cursor=half))
        for order in (EntryScan(order=up), EntryScan(type=up)):
            with pytest.raises(ValueError, match="upwards"):
                await storage.scan_entries(order)
        for filtered in ("t\0", "t\ud800"):
            with pytest.raises(ValueError, match="custom_type"):
                await storage.scan_branch(BranchScan(start="a", custom_type=filtered))
            with pytest.raises(ValueError, match="custom_type"):
                await storage.scan_entries(EntryScan(custom_type=filtered))
        with pytest.raises(ValueError, match="to_seq"):
            await storage.scan_usage(UsageScan(to_seq=half))
        with pytest.raises(ValueError, match="after"):
            await storage.read_list("l", "k", after=half)

    # ------------------------------------------------------------------------------------------------ entries by id

    async def test_entries_are_read_by_id(self, storage: Storage) -> None:
        """S-05: unknown ids are left out, usage ids are no entries, the order is the one asked for."""
        await storage.commit([entry("a"), entry("b", "a"), row("u", tokens(1))])
        assert list(await storage.get_entries(["b", "x", "a", "u", "b", "", "a\0"])) == ["b", "a"]
        assert await storage.get_entries([]) == {}
        assert len(await storage.get_entries(["b", *(f"missing{i}" for i in range(2_000)), "a"])) == 2

    # ------------------------------------------------------------------------------------------------ paths

    async def _path(self, storage: Storage) -> None:
        """root(message) — c1(custom x) — m1 — cp(compaction) — m2 — c2(custom y) — bs(branch summary) — tip(message); and a side branch."""
        await storage.commit([entry("root"), SetValue("n", "gap", 1)])
        await storage.commit([InsertEntry(CustomEntry(id="c1", parent_id="root", custom_type="x")), entry("m1", "c1")])
        await storage.commit([entry("side1", "m1"), entry("side2", "side1")])
        await storage.commit([InsertEntry(CompactionEntry(id="cp", parent_id="m1", summary="s")), entry("m2", "cp")])
        await storage.commit([InsertEntry(CustomEntry(id="c2", parent_id="m2", custom_type="y")), row("u", tokens(1))])
        await storage.commit([InsertEntry(BranchSummaryEntry(id="bs", parent_id="c2", from_id="side2", summary="s")), entry("tip", "bs")])

    async def _ids(self, storage: Storage, **scan: Any) -> list[str]:
        """Scan by both methods; they give the same rows."""
        entries = await storage.scan_branch(BranchScan(**scan))
        nodes = await storage.scan_branch_structure(BranchScan(**scan))
        assert nodes == [
            EntryNode(
                id=e.id,
                parent_id=e.parent_id,
                seq=e.seq,
                timestamp=e.timestamp,
                type=e.type,
                custom_type=e.custom_type if isinstance(e, CustomEntry) else None,
            )
            for e in entries
        ]
        return [e.id for e in entries]

    async def test_a_path_leads_from_its_start_to_the_root(self, storage: Storage) -> None:
        """S-12, S-14, E-09: newest first by default; siblings are invisible; every entry is a start of its own."""
        await self._path(storage)
        assert await self._ids(storage, start="tip") == ["tip", "bs", "c2", "m2", "cp", "m1", "c1", "root"]
        assert await self._ids(storage, start="tip", order="oldest_first") == ["root", "c1", "m1", "cp", "m2", "c2", "bs", "tip"]
        assert await self._ids(storage, start="side2") == ["side2", "side1", "m1", "c1", "root"]
        assert await self._ids(storage, start="m1") == ["m1", "c1", "root"]
        assert await self._ids(storage, start="root") == ["root"]

    @pytest.mark.parametrize("order", ["newest_first", "oldest_first"])
    async def test_a_path_stops_inclusively(self, storage: Storage, order: str) -> None:
        """S-12, E-08: at the first entry, walking from the start, that matches the type or the id; the start itself counts."""
        await self._path(storage)

        async def walk(**scan: Any) -> list[str]:
            ids = await self._ids(storage, order=order, **scan)
            return ids if order == "newest_first" else ids[::-1]

        assert await walk(start="tip", stop_at_type="compaction") == ["tip", "bs", "c2", "m2", "cp"]
        assert await walk(start="tip", stop_at_id="c2") == ["tip", "bs", "c2"]
        assert await walk(start="tip", stop_at_id="m1", stop_at_type="compaction") == ["tip", "bs", "c2", "m2", "cp"]
        assert await walk(start="tip", stop_at_id="c2", stop_at_type="compaction") == ["tip", "bs", "c2"]
        assert await walk(start="tip", stop_at_id="tip") == ["tip"]
        assert await walk(start="tip", stop_at_type="message") == ["tip"]
        assert await walk(start="side2", stop_at_type="compaction") == ["side2", "side1", "m1", "c1", "root"]
        assert await walk(start="tip", stop_at_id="side1") == ["tip", "bs", "c2", "m2", "cp", "m1", "c1", "root"]
        for elsewhere in ("unknown", "u", "", "a\0"):
            assert await walk(start="tip", stop_at_id=elsewhere) == ["tip", "bs", "c2", "m2", "cp", "m1", "c1", "root"]

    async def test_a_path_is_filtered_after_the_stop(self, storage: Storage) -> None:
        """S-12: by type and custom type; what is filtered out can still be what the path stops at."""
        await self._path(storage)
        assert await self._ids(storage, start="tip", type="message") == ["tip", "m2", "m1", "root"]
        assert await self._ids(storage, start="tip", type="message", stop_at_type="compaction") == ["tip", "m2"]
        assert await self._ids(storage, start="tip", type="custom") == ["c2", "c1"]
        assert await self._ids(storage, start="tip", custom_type="x") == ["c1"]
        assert await self._ids(storage, start="tip", custom_type="x", stop_at_id="m2") == []
        assert await self._ids(storage, start="tip", custom_type="x", type="message") == []
        assert await self._ids(storage, start="tip", type="branch_summary") == ["bs"]

    async def test_cursor_and_limit_come_last(self, storage: Storage) -> None:
        """S-12: the cursor is exclusive, below it for newest_first and above it for oldest_first; the limit follows the filters."""
        await self._path(storage)
        seq = {e.id: e.seq for e in await storage.scan_entries(EntryScan())}
        assert await self._ids(storage, start="tip", cursor=seq["m2"]) == ["cp", "m1", "c1", "root"]
        assert await self._ids(storage, start="tip", cursor=seq["m2"], order="oldest_first") == ["c2", "bs", "tip"]
        assert await self._ids(storage, start="tip", limit=2) == ["tip", "bs"]
        assert await self._ids(storage, start="tip", limit=2, order="oldest_first") == ["root", "c1"]
        assert await self._ids(storage, start="tip", type="message", limit=2, cursor=seq["tip"]) == ["m2", "m1"]
        assert await self._ids(storage, start="tip", type="message", limit=1, cursor=seq["root"], order="oldest_first") == ["m1"]
        assert await self._ids(storage, start="tip", stop_at_type="compaction", cursor=seq["cp"]) == []
        assert await self._ids(storage, start="tip", stop_at_type="compaction", limit=2, order="oldest_first") == ["cp", "m2"]
        assert await self._ids(storage, start="tip", limit=100) == await self._ids(storage, start="tip")
        assert await self._ids(storage, start="tip", cursor=0) == []
        assert await self._ids(storage, start="tip", cursor=10**30) == await self._ids(storage, start="tip")

    async def test_a_path_can_be_read_in_pages(self, storage: Storage) -> None:
        """S-12: the last seq of a page is the cursor of the next; together they are the path."""
        await self._path(storage)
        orders: tuple[Literal["newest_first", "oldest_first"], ...] = ("newest_first", "oldest_first")
        for order in orders:
            pages: list[str] = []
            cursor: int | None = None
            while page := await storage.scan_branch(BranchScan(start="tip", order=order, limit=3, cursor=cursor)):
                pages += [e.id for e in page]
                cursor = page[-1].seq
            assert pages == await self._ids(storage, start="tip", order=order)

    async def test_an_unknown_start_is_an_error(self, storage: Storage) -> None:
        """S-12: a usage row's id is no start either."""
        await storage.commit([entry("a"), row("u", tokens(1))])
        for start in ("missing", "u", "", "a\0"):
            with pytest.raises(StorageError):
                await storage.scan_branch(BranchScan(start=start))
            with pytest.raises(StorageError):
                await storage.scan_branch_structure(BranchScan(start=start))

    async def test_many_branches_are_each_a_true_path(self, storage: Storage) -> None:
        """E-09: in a tree that forks again and again, with compactions on some branches, every path is the chain of parents."""
        parents: dict[str, str | None] = {"0": None}
        compactions = {str(i) for i in (5, 17, 18, 40)}
        await storage.commit([entry("0")])
        for i in range(1, 60):
            parent = str(i - 1 if i % 3 else (i * 7) % i)
            made = CompactionEntry(id=str(i), parent_id=parent, summary="s")
            await storage.commit([InsertEntry(made) if str(i) in compactions else entry(str(i), parent)])
            parents[str(i)] = parent
        for start in parents:
            path: list[str] = []
            at: str | None = start
            while at is not None:
                path.append(at)
                at = parents[at]
            assert await self._ids(storage, start=start) == path
            assert await self._ids(storage, start=start, order="oldest_first") == path[::-1]
            cut = next((i + 1 for i, id in enumerate(path) if id in compactions), len(path))
            assert await self._ids(storage, start=start, stop_at_type="compaction") == path[:cut]
            assert await self._ids(storage, start=start, type="compaction", limit=1) == [id for id in path if id in compactions][:1]

    # ------------------------------------------------------------------------------------------------ scans

    async def test_entries_are_scanned_by_seq(self, storage: Storage) -> None:
        """S-15: both ends are included; filters, order and limit apply."""
        await self._path(storage)
        entries = await storage.scan_entries(EntryScan())
        ids = [e.id for e in entries]
        assert ids == ["root", "c1", "m1", "side1", "side2", "cp", "m2", "c2", "bs", "tip"]
        seq = {e.id: e.seq for e in entries}

        async def scan(**fields: Any) -> list[str]:
            return [e.id for e in await storage.scan_entries(EntryScan(**fields))]

        assert await scan(order="desc") == ids[::-1]
        assert await scan(from_seq=seq["m1"], to_seq=seq["cp"]) == ["m1", "side1", "side2", "cp"]
        assert await scan(from_seq=seq["root"] + 1, to_seq=seq["c1"] - 1) == []
        assert await scan(to_seq=seq["c1"], order="desc") == ["c1", "root"]
        assert await scan(to_seq=0, order="desc") == []
        assert await scan(from_seq=-3, to_seq=10**30) == ids
        assert await scan(type="custom") == ["c1", "c2"]
        assert await scan(custom_type="y") == ["c2"]
        assert await scan(type="message", limit=2, order="desc") == ["tip", "m2"]
        assert await scan(type="message", from_seq=seq["m2"]) == ["m2", "tip"]

    async def test_the_ledger_is_scanned_by_seq(self, storage: Storage) -> None:
        """S-16: both ends are included; order and limit apply; entries leave gaps."""
        for i in range(4):
            await storage.commit([entry(f"e{i}"), row(f"u{i}", tokens(i), f"e{i}")])
        rows = await storage.scan_usage(UsageScan())
        assert [(r.id, r.entry_id, r.usage) for r in rows] == [(f"u{i}", f"e{i}", tokens(i)) for i in range(4)]
        middle = await storage.scan_usage(UsageScan(from_seq=rows[1].seq, to_seq=rows[2].seq))
        assert [r.id for r in middle] == ["u1", "u2"]
        assert [r.id for r in await storage.scan_usage(UsageScan(order="desc", limit=3))] == ["u3", "u2", "u1"]
