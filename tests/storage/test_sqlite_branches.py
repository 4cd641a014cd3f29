"""The branch index of a SQLite session: true paths, bounded copies, pinned plans, and a way to make it anew."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from itertools import product
from pathlib import Path
from typing import Literal

import pytest

from laneway.errors import StorageCorruption
from laneway.messages import UserMessage
from laneway.storage import _sqlite_branch, _sqlite_lease, _sqlite_read, _sqlite_session
from laneway.storage._sqlite_branch import MAX_COPIED
from laneway.storage._sqlite_read import entries_sql, newest_sql, range_sql, read_list_sql, usage_sql
from laneway.storage.base import BranchScan, CompactionEntry, EntryScan, EntryType, InsertEntry, MessageEntry, SetValue, Write
from laneway.storage.sqlite import SqliteStorage
from laneway.testing._storage_rows import entry


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SqliteStorage]:
    """A fresh session."""
    storage = await SqliteStorage.open(tmp_path / "s.sqlite")
    yield storage
    await storage.close()


def compaction(id: str, parent_id: str) -> InsertEntry:
    """Return the write of a compaction."""
    return InsertEntry(CompactionEntry(id=id, parent_id=parent_id, summary="so far"))


def chain(prefix: str, count: int, parent: str | None = None) -> list[Write]:
    """Return the writes of entries that follow one another."""
    ids = [f"{prefix}{i}" for i in range(count)]
    return [entry(id, before, "x") for id, before in zip(ids, [parent, *ids[:-1]], strict=True)]


def rows(storage: SqliteStorage, sql: str) -> list[tuple[int, ...]]:
    """Look into the file."""
    connection = sqlite3.connect(storage.path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def count(storage: SqliteStorage, table: str) -> int:
    """Return how many rows a table has."""
    return rows(storage, f"SELECT count(*) FROM {table}")[0][0]


async def ids(storage: SqliteStorage, start: str, *, order: Literal["newest_first", "oldest_first"] = "newest_first") -> list[str]:
    """Return the ids of a whole path."""
    return [e.id for e in await storage.scan_branch(BranchScan(start=start, order=order))]


# ---------------------------------------------------------------------------------------------------- what is written


async def test_going_on_in_a_branch_writes_nothing_to_the_index(storage: SqliteStorage) -> None:
    """B94: one lane, one run, however long; what other kinds of writes come between makes no difference."""
    await storage.commit(chain("a", 500))
    for i in range(20):
        await storage.commit([*chain(f"b{i}-", 1, f"b{i - 1}-0" if i else "a499"), SetValue("n", "k", i)])
    assert [count(storage, table) for table in ("segments", "runs", "copies", "compactions")] == [1, 1, 0, 0]
    assert len(await ids(storage, "b19-0")) == 520


async def test_lanes_that_take_turns_have_a_run_each_turn(storage: SqliteStorage) -> None:
    """E-09: every entry is in its own lane's path and in no other."""
    await storage.commit([entry("root")])
    tips = dict.fromkeys("abc", "root")
    for i in range(60):
        lane = "abc"[i % 3]
        await storage.commit([entry(f"{lane}{i}", tips[lane])])
        tips[lane] = f"{lane}{i}"
    assert count(storage, "segments") == 3
    for lane, tip in tips.items():
        path = await ids(storage, tip)
        assert len(path) == 21
        assert all(id.startswith(lane) for id in path[:-1])
        assert (await ids(storage, tip, order="oldest_first")) == path[::-1]
    assert await storage.verify() == []


async def test_a_fork_copies_only_what_follows_the_newest_compaction(storage: SqliteStorage) -> None:
    """03: whatever the depth; the fork point included; what is older is a reference."""
    await storage.commit([*chain("a", 3000), compaction("c1", "a2999"), *chain("b", 50, "c1"), compaction("c2", "b49"), *chain("d", 20, "c2")])
    await storage.commit([entry("fork1", "d9")])
    assert count(storage, "copies") == 10
    await storage.commit([entry("fork2", "b7")])
    assert count(storage, "copies") == 10 + 8
    await storage.commit([entry("fork3", "c2")])
    assert count(storage, "copies") == 18
    await storage.commit([entry("fork4", "a1500")])
    assert count(storage, "copies") == 18
    assert await ids(storage, "fork1") == ["fork1", *[f"d{i}" for i in range(9, -1, -1)], *(await ids(storage, "c2"))]
    assert await ids(storage, "fork2") == ["fork2", *[f"b{i}" for i in range(7, -1, -1)], *(await ids(storage, "c1"))]
    assert await ids(storage, "fork3") == ["fork3", *(await ids(storage, "c2"))]
    assert await ids(storage, "fork4") == ["fork4", *(await ids(storage, "a1500"))]
    assert await storage.verify() == []


async def test_a_fork_of_a_fork_copies_from_both(storage: SqliteStorage) -> None:
    """03: the newest compaction is searched through the whole chain of bases, and a base itself covers the fork point."""
    await storage.commit([*chain("a", 5), compaction("c", "a4"), *chain("b", 10, "c")])
    await storage.commit(chain("x", 5, "b6"))
    await storage.commit(chain("y", 5, "x2"))
    assert count(storage, "copies") == 7 + (7 + 3)
    await storage.commit(chain("z", 5, "y0"))
    assert count(storage, "copies") == 17 + (7 + 3 + 1)
    path = ["z4", "z3", "z2", "z1", "z0", "y0", "x2", "x1", "x0", *[f"b{i}" for i in range(6, -1, -1)], "c", *[f"a{i}" for i in range(4, -1, -1)]]
    assert await ids(storage, "z4") == path
    context = await storage.scan_branch(BranchScan(start="z4", stop_at_type="compaction"))
    assert [e.id for e in context] == path[: path.index("c") + 1]
    assert rows(storage, "SELECT base FROM segments") == [(0,), (1,), (1,), (1,)]
    assert await storage.verify() == []


async def test_a_fork_without_a_compaction_copies_nothing(storage: SqliteStorage) -> None:
    """03: so forking again and again costs no more than the entries themselves."""
    await storage.commit(chain("a", 2000))
    tip = "a1000"
    for i in range(50):
        await storage.commit([entry(f"f{i}", tip), entry(f"g{i}", f"f{i}")])
        tip = f"f{i}"
    assert count(storage, "copies") == 0
    assert await ids(storage, "g49") == ["g49", *[f"f{i}" for i in range(49, -1, -1)], *[f"a{i}" for i in range(1000, -1, -1)]]


async def test_copies_are_bounded(storage: SqliteStorage) -> None:
    """03: where very much follows a compaction, a reference is cheaper than a copy; descendants stay true paths."""
    await storage.commit([entry("root"), compaction("c", "root"), *chain("a", MAX_COPIED + 5, "c")])
    await storage.commit([entry("at", f"a{MAX_COPIED - 1}")])
    assert count(storage, "copies") == MAX_COPIED
    await storage.commit([entry("above", f"a{MAX_COPIED}")])
    await storage.commit([entry("above2", "above"), entry("above3", "above")])
    assert count(storage, "copies") == MAX_COPIED
    context = await storage.scan_branch_structure(BranchScan(start="above3", stop_at_type="compaction"))
    assert [n.id for n in context[:3]] == ["above3", "above", f"a{MAX_COPIED}"]
    assert len(context) == MAX_COPIED + 4
    await storage.commit([compaction("c2", "above3"), *chain("b", 3, "c2"), entry("again", "b1")])
    assert count(storage, "copies") == MAX_COPIED + 2
    assert await storage.verify() == []


@pytest.mark.parametrize("seed", range(6))
async def test_every_path_of_a_random_tree_is_the_chain_of_its_parents(storage: SqliteStorage, seed: int) -> None:
    """03: following a chain gives exactly the root path, for every entry, every cut and every filter; `repair` makes the same index."""
    dice = random.Random(seed)
    parents: dict[str, str | None] = {}
    types: dict[str, str] = {}
    while len(parents) < 220:
        writes: list[Write] = []
        for _ in range(dice.randint(1, 6)):
            id = f"e{len(parents)}"
            known = list(parents)
            parent = dice.choice([None, known[-1], *known[-8:]] if dice.random() < 0.3 else known[-1:]) if known else None
            is_compaction = parent is not None and dice.random() < 0.06
            writes.append(compaction(id, parent) if is_compaction and parent else entry(id, parent, "x"))
            parents[id], types[id] = parent, "compaction" if is_compaction else "message"
        await storage.commit(writes)
    await _check_paths(storage, parents, types, dice)
    assert await storage.verify() == []
    await storage.repair()
    assert await storage.verify() == []
    await _check_paths(storage, parents, types, dice)
    await storage.commit([entry("after", "e5"), entry("after2", "e219")])
    assert (await ids(storage, "after"))[1:] == await ids(storage, "e5")


async def _check_paths(storage: SqliteStorage, parents: dict[str, str | None], types: dict[str, str], dice: random.Random) -> None:
    for start in parents:
        path: list[str] = []
        at: str | None = start
        while at is not None:
            path.append(at)
            at = parents[at]
        assert await ids(storage, start) == path
        stop = dice.choice(list(parents))
        cut = path[: path.index(stop) + 1] if stop in path else path
        found = await storage.scan_branch_structure(BranchScan(start=start, stop_at_id=stop, order="oldest_first"))
        assert [n.id for n in found] == cut[::-1]
        first = next((i + 1 for i, id in enumerate(path) if types[id] == "compaction"), len(path))
        found = await storage.scan_branch_structure(BranchScan(start=start, stop_at_type="compaction"))
        assert [n.id for n in found] == path[:first]
        compactions = await storage.scan_branch_structure(BranchScan(start=start, type="compaction", limit=2))
        assert [n.id for n in compactions] == [id for id in path if types[id] == "compaction"][:2]


# ---------------------------------------------------------------------------------------------------- damage and repair


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM segments WHERE segment = 2",
        "DELETE FROM runs WHERE segment = 2",
        "DELETE FROM runs",
        "UPDATE runs SET segment = 1",
        "UPDATE runs SET last_seq = last_seq - 1 WHERE segment = 1 AND first_seq = 1",
        "UPDATE segments SET base_seq = base_seq - 1 WHERE segment = 2",
        "UPDATE segments SET fork_seq = fork_seq + 3 WHERE segment = 2",
        "UPDATE segments SET base = 2, base_seq = 1 WHERE segment = 1",
        "DELETE FROM copies WHERE seq = 9",
        "DELETE FROM copies",
        "UPDATE copies SET seq = seq - 1",
    ],
)
async def test_a_damaged_index_is_noticed_and_made_anew(storage: SqliteStorage, damage: str) -> None:
    """03: a path that is no chain of parents is never returned; `repair` makes the index from the entries; a repair that fails changes nothing."""
    await storage.commit([*chain("a", 5), compaction("c", "a4"), *chain("b", 5, "c")])
    await storage.commit([*chain("x", 3, "b3")])
    await storage.commit([*chain("d", 2, "b4"), *chain("y", 2, "x2")])
    tips = ("d1", "y1", "b4")
    before = [await ids(storage, tip) for tip in tips]
    connection = sqlite3.connect(storage.path)
    with connection:
        connection.execute(damage)
    connection.close()
    storage._session._branches.forget()
    assert await storage.verify() != []
    noticed: list[str] = []
    for tip, path in zip(tips, before, strict=True):
        try:
            assert await ids(storage, tip) == path
        except StorageCorruption as error:
            noticed.append(str(error))
    assert noticed != []
    assert all("repair()" in text for text in noticed)
    await storage.repair()
    assert await storage.verify() == []
    assert [await ids(storage, tip) for tip in tips] == before


async def test_a_tree_that_is_none_cannot_be_repaired(storage: SqliteStorage) -> None:
    """S-12: the entries themselves are damaged; nothing is changed."""
    await storage.commit(chain("a", 5))
    connection = sqlite3.connect(storage.path)
    with connection:
        connection.execute("UPDATE entries SET parent = 4 WHERE seq = 3")
    connection.close()
    before = rows(storage, "SELECT * FROM segments")
    with pytest.raises(StorageCorruption, match="missing or younger"):
        await storage.repair()
    assert rows(storage, "SELECT * FROM segments") == before
    assert before != []


# ---------------------------------------------------------------------------------------------------- plans

_TYPES: tuple[EntryType | None, ...] = (None, "message", "compaction", "branch_summary", "custom")
_ORDERS: tuple[Literal["newest_first", "oldest_first"], ...] = ("newest_first", "oldest_first")
_DIRECTIONS: tuple[Literal["asc", "desc"], ...] = ("asc", "desc")


def _queries() -> list[str]:
    modules = (_sqlite_branch, _sqlite_read, _sqlite_session, _sqlite_lease)
    named = [item for module in modules for item in vars(module).items() if not item[0].startswith("ALL_")]  # those read everything
    fixed = [value for _, value in named if isinstance(value, str)]
    fixed = [sql for sql in fixed if sql.strip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE")) and "sqlite_master" not in sql]
    flags = (False, True)
    paths = [
        range_sql(order, copied=copied, payloads=payloads, of_type=of_type, of_custom_type=of_custom_type)
        for order, copied, payloads, of_type, of_custom_type in product(_ORDERS, flags, flags, flags, flags)
    ]
    newest = [newest_sql(copied=copied, what=what) for copied, what in product(flags, ("type = 1", "seq = ?"))]
    scans = [
        entries_sql(EntryScan(type=type, custom_type=custom_type, order=order))
        for type, custom_type, order in product(_TYPES, (None, "x"), _DIRECTIONS)
        if custom_type is None or type in (None, "custom")
    ]
    lists = [read_list_sql(order, after=after) for order, after in product(_DIRECTIONS, flags)]
    return [*fixed, *paths, *newest, *scans, *lists, *(usage_sql(order) for order in _DIRECTIONS)]


async def test_every_query_is_driven_by_an_index(storage: SqliteStorage) -> None:
    """03, B84: no query sorts in a temporary b-tree or walks a table; what has one row excepted."""
    await storage.commit(chain("a", 3))
    queries = _queries()
    assert len(queries) > 80
    for sql in queries:
        for step in _plan(storage.path, sql):
            assert "TEMP B-TREE" not in step, f"{step}\n{sql}"
            may_scan = ("SCAN state", "SCAN CONSTANT ROW", "SCAN (subquery", "SCAN cells USING", "SCAN elements USING", "SCAN (SELECT")
            if step.startswith("SCAN"):
                newest_only = sql in (_sqlite_branch.LAST_RUN, _sqlite_branch.LAST_ENTRY)  # the last row of a table
                assert newest_only or step.startswith(may_scan), f"{step}\n{sql}"


async def test_scans_of_rare_entries_use_their_index(storage: SqliteStorage) -> None:
    """B84: compactions, summaries and custom entries are found without reading the messages between them."""
    for type in ("compaction", "branch_summary", "custom"):
        assert any("entries_by_type" in step for step in _plan(storage.path, entries_sql(EntryScan(type=type))))
    assert any("entries_by_custom_type" in step for step in _plan(storage.path, entries_sql(EntryScan(custom_type="x"))))


def _plan(path: Path, sql: str) -> Sequence[str]:
    connection = sqlite3.connect(path)
    try:
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * sql.count("?"))]
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------------------- cost


async def test_reading_a_context_does_not_depend_on_the_history(tmp_path: Path) -> None:
    """E-08, B94: the same number of SQLite's own steps whether a hundred or twenty thousand entries lie below the compaction."""
    steps: list[int] = []
    for history in (100, 20_000):
        storage = await SqliteStorage.open(tmp_path / f"{history}")
        await storage.commit([*chain("a", history), compaction("c", f"a{history - 1}"), *chain("b", 100, "c")])
        steps.append(await _steps_of_context(storage, "b99"))
        await storage.close()
    assert steps[1] <= steps[0] * 1.2


async def test_forking_deep_in_a_long_history_costs_what_follows_the_compaction(storage: SqliteStorage) -> None:
    """B94: the commit's steps are bounded by the copies, not by the depth."""
    await storage.commit([*chain("a", 20_000), compaction("c", "a19999"), *chain("b", 100, "c")])
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    storage._session._connection.set_progress_handler(tick, 100)
    await storage.commit([entry("fork", "b50")])
    assert ticks * 100 < 5_000
    ticks = 0
    await storage.commit([entry("deep", "a10000")])
    assert ticks * 100 < 5_000
    storage._session._connection.set_progress_handler(None, 0)


async def _steps_of_context(storage: SqliteStorage, tip: str) -> int:
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    storage._session._connection.set_progress_handler(tick, 10)
    found = await storage.scan_branch(BranchScan(start=tip, stop_at_type="compaction"))
    storage._session._connection.set_progress_handler(None, 0)
    assert len(found) == 101
    assert isinstance(found[0], MessageEntry)
    assert found[0].message.content == "x" if isinstance(found[0].message, UserMessage) else False
    return ticks
