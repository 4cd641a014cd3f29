"""Costs of the session layer: listing, reading a context, the mutation line, appending, forking, searching.

Usage: python benchmarks/bench_session.py [--sessions 10000] [--history 100000] [--quick]
Prints one line per measure: its name, the number, and the target where there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from laneway.messages import AssistantMessage, TextContent, UserMessage
from laneway.session import Fork, JsonlRepo, LaneContext, MemoryRepo, Session, SqliteRepo
from laneway.session._catalogue import CatalogueRow, SessionInfo
from laneway.storage.base import CompactionEntry, Entry, InsertEntry, MessageEntry, SetValue, Write
from laneway.storage.memory import MemoryStorage

SINCE_COMPACTION = 200


def tell(name: str, value: float, unit: str, target: str = "") -> None:
    print(f"{name:<62} {value:>10.2f} {unit:<8} {target}", flush=True)


async def timed(work: Callable[[], Awaitable[object]], times: int) -> float:
    """Return the median seconds of one call."""
    taken: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def history(count: int) -> list[Entry]:
    """A chain of messages with one compaction `SINCE_COMPACTION` entries before its end."""
    entries: list[Entry] = []
    for i in range(count):
        parent = f"e{i - 1}" if i else None
        if i == count - SINCE_COMPACTION:
            entries.append(CompactionEntry(id=f"e{i}", parent_id=parent, summary="so far", tokens_before=1))
        elif i % 2:
            entries.append(MessageEntry(id=f"e{i}", parent_id=parent, message=AssistantMessage(content=[TextContent(text="answer " * 60)])))
        else:
            entries.append(MessageEntry(id=f"e{i}", parent_id=parent, message=UserMessage(content="question " * 20)))
    return entries


async def fill(session: Session, count: int) -> None:
    entries = history(count)
    for start in range(0, count, 2000):
        writes: list[Write] = [InsertEntry(entry) for entry in entries[start : start + 2000]]
        await session.mutate(lambda m, writes=writes: m.commit(writes))
    await session.mutate(lambda m: m.commit([SetValue("branch.tip", "main", entries[-1].id)]))


async def bench_listing(folder: Path, count: int) -> None:
    """Copies of one closed session, with their rows, as a long-used folder has them."""
    repo = SqliteRepo(folder / "many")
    async with await repo.create(id="template") as session:
        await session.append_message("hello")
    (info,) = await repo.list()
    rows: list[CatalogueRow] = []
    for i in range(count - 1):
        id = f"0195c8aa-{i:04x}-7000-8000-{i:012x}"
        shutil.copyfile(repo.path("template"), repo.path(id))
        made = SessionInfo(id, info.created_at + i, info.updated_at + i, f"session {i}", "/work", None, i, i * 100, i / 100, "fix the parser please")
        rows.append(CatalogueRow(made, closed=True, signature=None))
    repo._catalogue.write(rows)  # pyright: ignore[reportPrivateUsage] - as if each had been closed
    assert len(await repo.list()) == count
    tell(f"list {count:,} sessions", await timed(repo.list, 5) * 1e3, "ms", "<= 100 at 10,000")
    tell("list the newest 20 of them", await timed(lambda: repo.list(limit=20), 5) * 1e3, "ms")
    start = time.perf_counter()
    (repo.directory / ".catalogue.sqlite").unlink()
    await repo.list()
    tell("make a lost catalogue again, per session", (time.perf_counter() - start) / count * 1e3, "ms")


async def bench_context(folder: Path, sizes: Sequence[int]) -> None:
    """Open and read the context of a lane whose history is short or long, in turns; closing is told apart."""
    for kind in (SqliteRepo, JsonlRepo):
        repo = kind(folder / f"context-{kind.__name__}")
        for size in sizes:
            async with await repo.create(id=f"s{size}") as session:
                await fill(session, size)
        opening: dict[int, list[float]] = {size: [] for size in sizes}
        closing: list[float] = []
        for _, size in itertools.product(range(15), sizes):
            start = time.perf_counter()
            session = await repo.open(f"s{size}")
            branch = await session.branch("main")
            assert branch is not None
            assert len(await branch.context()) == SINCE_COMPACTION
            middle = time.perf_counter()
            await session.close()
            opening[size].append(middle - start)
            closing.append(time.perf_counter() - middle)
        found = [statistics.median(opening[size]) * 1e3 for size in sizes]
        target = "<= 10 on SQLite" if kind is SqliteRepo else "(reads the whole file)"
        for size, taken in zip(sizes, found, strict=True):
            tell(f"{kind.__name__}: open and read {SINCE_COMPACTION} of {size:,} entries", taken, "ms", target)
        tell(f"{kind.__name__}: long history against short", found[-1] / found[0], "x", "<= 1.5 on SQLite" if kind is SqliteRepo else "")
        tell(f"{kind.__name__}: close it again", statistics.median(closing) * 1e3, "ms", "(waits for the disk)" if kind is SqliteRepo else "")


async def bench_line(folder: Path) -> None:
    """What the line adds to a bare commit."""
    writes = [SetValue("app.bench", "k", {"n": 1})]
    storage = MemoryStorage()
    session = Session.over(storage)
    sqlite = await SqliteRepo(folder / "line").create()
    for name, store, owner in (("memory", storage, session), ("SQLite", sqlite.storage, sqlite)):
        count = 20_000 if name == "memory" else 2_000

        async def bare(store: object = store, count: int = count) -> None:
            for _ in range(count):
                await store.commit(writes)  # type: ignore[attr-defined] - a store

        async def in_line(owner: Session = owner, count: int = count) -> None:
            for _ in range(count):
                await owner.mutate(lambda m: m.commit(writes))

        alone, through = await timed(bare, 3) / count * 1e6, await timed(in_line, 3) / count * 1e6
        tell(f"{name}: a commit", alone, "us")
        tell(f"{name}: a commit through the mutation line", through, "us", f"(+{through - alone:.1f})")
    await sqlite.close()


async def bench_appends(count: int) -> None:
    """The last appends of a long session against the first, and what reading the whole context on from before costs each time."""
    session = await MemoryRepo().create()
    branch = await session.create_branch("main")
    context = LaneContext(session)
    appending: list[float] = []
    reading: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        await branch.append_message("message")
        middle = time.perf_counter()
        await context.read(await branch.get_tip())
        appending.append(middle - start)
        reading.append(time.perf_counter() - middle)
    for what, taken in (("append a message", appending), ("read the context on", reading)):
        first, last = statistics.median(taken[:1000]), statistics.median(taken[-1000:])
        tell(f"memory: {what}, the first 1,000 of {count:,}", first * 1e6, "us")
        tell(f"memory: {what}, the last 1,000", last * 1e6, "us", f"({last / first:.1f}x)")


async def bench_forks_and_search(folder: Path, count: int) -> None:
    repo = SqliteRepo(folder / "forks")
    async with await repo.create(id="long") as session:
        await fill(session, count)
    start = time.perf_counter()
    await (await repo.fork("long", Fork())).close()
    tell(f"SQLite: fork a branch of {count:,} entries", (time.perf_counter() - start) * 1e3, "ms", "<= 2,000 at 20,000")
    start = time.perf_counter()
    await repo.search("question")
    tell(f"SQLite: index {count * 2:,} entries for the first search", (time.perf_counter() - start) * 1e3, "ms")
    tell("SQLite: search again", await timed(lambda: repo.search("question answer"), 5) * 1e3, "ms")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--history", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    arguments = parser.parse_args()
    scale = 10 if arguments.quick else 1
    folder = Path(tempfile.mkdtemp(prefix="laneway-bench-"))
    try:
        await bench_listing(folder, arguments.sessions // scale)
        await bench_line(folder)
        await bench_context(folder, (1_000, arguments.history // scale))
        await bench_appends(20_000 // scale)
        await bench_forks_and_search(folder, 20_000 // scale)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main())
