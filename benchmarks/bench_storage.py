"""What SQLite sessions cost, against bare `sqlite3` on a file of the same tables.

    python benchmarks/bench_storage.py [--commits N] [--history N]

The bare commit writes the rows of the same commit (an entry of 1 KB, its id, two cells) to the same tables by the same statements, in one
immediate transaction, on the calling thread, with nothing around it. Blocks of both alternate, so that what else the machine does
strikes both. A median says what a commit usually takes; a mean includes moving the log into the file, which waits for the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from laneway.messages import UserMessage
from laneway.storage._codec import EncodedEntry, encode_commit
from laneway.storage._sqlite_file import Durability, connect, create_file, sync
from laneway.storage.base import BranchScan, CompactionEntry, InsertEntry, MessageEntry, SetValue, Write
from laneway.storage.sqlite import SqliteStorage

BLOCK = 50
SINCE_COMPACTION = 200


def row(name: str, target: str, *columns: str) -> None:
    """Print one measure."""
    print(f"{name:58s} {target:22s} {'  '.join(columns)}")


def new_id() -> str:
    """Return an id of the usual kind: it begins with the time."""
    return str(uuid.UUID(int=(time.time_ns() // 1_000_000 << 80 | random.getrandbits(80)) & ~(0xF << 76) | 7 << 76))


def turn(id: str, parent_id: str | None, text: str) -> list[Write]:
    """Return a commit as a turn makes it: an entry, the branch's tip, the lane's state."""
    entry = MessageEntry(id=id, parent_id=parent_id, message=UserMessage(content=text, timestamp=1))
    state = {"current_operation_id": new_id(), "last_operation_id": None, "inbox": []}
    return [InsertEntry(entry), SetValue("branch.tip", "main", id), SetValue("lane.state", "main", state)]


class Bare:
    """The same rows by hand."""

    def __init__(self, path: Path, durability: Durability) -> None:
        create_file(path, durability)
        self._cursor = connect(path).cursor()
        sync(self._cursor.connection, durability)
        self._seq = 0

    def commit(self) -> None:
        """Write the rows of one commit."""
        seq, execute = self._seq, self._cursor.execute
        self._seq += 3
        payload = b'{"message":{"role":"user","content":"' + b"x" * 1000 + b'","timestamp":1}}'
        cell = "INSERT INTO cells VALUES (?, ?, ?, 0, ?) ON CONFLICT DO UPDATE SET seq = excluded.seq, value = excluded.value"
        execute("BEGIN IMMEDIATE")
        execute("INSERT INTO ids VALUES (?, ?)", (id := uuid.uuid4().bytes, seq))
        execute("INSERT INTO entries VALUES (?, ?, ?, 0, 0, NULL, 0, ?)", (seq, id, seq - 3, payload))
        execute(cell, ("branch.tip", "main", seq + 1, b'"0198c1f2-7a3b-7c4d-8e5f-a6b7c8d9e0f1"'))
        execute(cell, ("lane.state", "main", seq + 2, b'{"current_operation_id":"0198c1f2-7a3b-7c4d-8e5f-a6b7c8d9e0f1","inbox":[]}'))
        execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._cursor.connection.close()


async def commits(folder: Path, durability: Durability, count: int, target: str) -> None:
    """Compare commits, hop to the thread and back included."""
    bare = Bare(folder / f"bare-{durability}", durability)
    storage = await SqliteStorage.open(folder / f"ours-{durability}", durability=durability)
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    parent: str | None = None
    for _ in range(count // BLOCK):
        for _ in range(BLOCK):
            started = time.perf_counter()
            bare.commit()
            times["bare"].append(time.perf_counter() - started)
        for _ in range(BLOCK):
            writes = turn(id := new_id(), parent, "x" * 1000)
            started = time.perf_counter()
            await storage.commit(writes)
            times["ours"].append(time.perf_counter() - started)
            parent = id
    bare.close()
    await storage.close()
    for name, measure in (("median", statistics.median), ("mean", statistics.fmean)):
        a, b = measure(times["bare"]), measure(times["ours"])
        row(f"commit of 1 KB and two values, {durability}, {name}", target, f"{b / a:5.2f}x", f"({b * 1e6:.0f} us, bare {a * 1e6:.0f} us)")


async def fill(storage: SqliteStorage, history: int) -> str:
    """Write a long history, a compaction and what follows it; return the tip."""
    parent: str | None = None
    numbers = iter(range(history))
    while chunk := list(itertools.islice(numbers, 5_000)):
        writes: list[Write] = []
        for _ in chunk:
            writes.append(turn(id := new_id(), parent, "x" * 1000)[0])
            parent = id
        await storage.commit(writes)
    await storage.commit([InsertEntry(CompactionEntry(id=(id := new_id()), parent_id=parent, summary="so far"))])
    parent = id
    for _ in range(SINCE_COMPACTION):
        await storage.commit(turn(id := new_id(), parent, "x" * 1000))
        parent = id
    return parent


async def contexts(folder: Path, histories: list[int]) -> None:
    """Compare opening a session and reading a lane's context, by the length of its history."""
    tips: dict[int, str] = {}
    for history in histories:
        storage = await SqliteStorage.open(folder / f"history-{history}")
        tips[history] = await fill(storage, history)
        await storage.close()
    times: dict[int, list[float]] = {history: [] for history in histories}
    for _, history in itertools.product(range(15), histories):
        started = time.perf_counter()
        storage = await SqliteStorage.open(folder / f"history-{history}")
        found = await storage.scan_branch(BranchScan(start=tips[history], stop_at_type="compaction"))
        times[history].append(time.perf_counter() - started)
        assert len(found) == SINCE_COMPACTION + 1
        await storage.close()
    short, long = (statistics.median(times[history]) for history in histories)
    name = f"open and read the context, {histories[1]:,} against {histories[0]:,}"
    row(name, "<= 1.5x, <= 10 ms", f"{long / short:5.2f}x", f"({long * 1e3:.1f} ms, {short * 1e3:.1f} ms)")
    await forks(folder / f"history-{histories[1]}", tips[histories[1]])


async def forks(path: Path, tip: str) -> None:
    """Compare a commit that forks deep in a long history with one that goes on at its tip."""
    storage = await SqliteStorage.open(path)
    path_to_compaction = await storage.scan_branch_structure(BranchScan(start=tip, stop_at_type="compaction"))
    fork_points = [node.id for node in path_to_compaction[1:21]]
    copied = _copies(path)
    forking = [await _timed(storage, turn(new_id(), id, "x")) for id in fork_points]
    copied = (_copies(path) - copied) / len(fork_points)
    going_on: list[float] = []
    for _ in fork_points:
        going_on.append(await _timed(storage, turn(id := new_id(), tip, "x")))
        tip = id
    deep = await storage.scan_branch_structure(BranchScan(start=tip, limit=50_000))
    unpinned = await _timed(storage, turn(new_id(), deep[-1].id, "x"))
    await storage.close()
    a, b = statistics.median(going_on), statistics.median(forking)
    row("fork at the end of a long history", "copies what follows", f"{copied:.0f} rows copied", f"({b * 1e6:.0f} us, at the tip {a * 1e6:.0f} us)")
    row("fork in the middle of it, no compaction below", "copies nothing", f"({unpinned * 1e6:.0f} us)")


async def _timed(storage: SqliteStorage, writes: list[Write]) -> float:
    started = time.perf_counter()
    await storage.commit(writes)
    return time.perf_counter() - started


def _copies(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT count(*) FROM copies").fetchone()[0]
    finally:
        connection.close()


async def sizes(folder: Path) -> None:
    """Compare the file's size with the JSON of the entries in it."""
    dice = random.Random(1)
    kinds: dict[str, Callable[[], int]] = {
        "1 KB": lambda: 1000,
        "300 bytes": lambda: 300,
        "100 bytes to 8 KB": lambda: int(100 * 80 ** dice.random()),
    }
    for name, size in kinds.items():
        path = folder / f"size-{name}"
        storage = await SqliteStorage.open(path)
        payload, parent = 0, None
        for _ in range(3_000):
            writes = turn(id := new_id(), parent, "x" * size())
            payload += sum(len(write.payload) for write in encode_commit(writes).writes if isinstance(write, EncodedEntry))
            await storage.commit(writes)
            parent = id
        await storage.close()
        row(f"bytes on disk per byte of JSON, entries of {name}", "<= 1.6x", f"{_size(path) / payload:5.2f}x")


def _size(path: Path) -> int:
    return os.path.getsize(path)


async def growth(folder: Path) -> None:
    """Compare the last commits of a long session with its first ones."""
    storage = await SqliteStorage.open(folder / "growth")
    times: list[float] = []
    parent: str | None = None
    for _ in range(20_000):
        times.append(await _timed(storage, turn(id := new_id(), parent, "x" * 200)))
        parent = id
    await storage.close()
    first, last = statistics.median(times[:1000]), statistics.median(times[-1000:])
    row("the last 1,000 of 20,000 commits against the first", "< 3x", f"{last / first:5.2f}x", f"({last * 1e6:.0f} us, {first * 1e6:.0f} us)")


def folders(parent: Path) -> Iterator[Path]:
    """Yield new folders."""
    for i in itertools.count():
        (folder := parent / str(i)).mkdir()
        yield folder


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=3_000)
    parser.add_argument("--history", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, help="where to write; a temporary directory if not given")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laneway-bench-", dir=arguments.dir) as parent:
        where = folders(Path(parent))
        await commits(next(where), "process", arguments.commits, "<= 2.5x")
        await commits(next(where), "power", max(BLOCK, arguments.commits // 10), "<= 1.3x")
        await contexts(next(where), [1_000, arguments.history])
        await sizes(next(where))
        await growth(next(where))


if __name__ == "__main__":
    asyncio.run(main())
