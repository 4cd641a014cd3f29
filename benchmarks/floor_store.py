"""Floors for the durable workloads: what the medium itself costs, by hand, with nothing around it.

w5: per turn two commits of one row of about 1 KB each; variants "sqlite" (WAL, not synced), "power" (WAL, synced), and "postgres"
(--db is a libpq string; one transaction per commit, psycopg, synchronous_commit off as `PostgresStorage` has it by default).
w5resume: open the SQLite file that `bench_harness.py` wrote, read every entry and decode it with msgspec.
"""

from __future__ import annotations

import os
import sqlite3
import time

import msgspec

from benchlib import Timer, cli, emit

ROW = "x" * 1000


def sqlite_turns(path: str, turns: int, synchronous: str) -> float:
    """Two commits per turn in a new file."""
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(path + suffix):
            os.remove(path + suffix)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, session TEXT, data TEXT)")
    with Timer() as timer:
        for number in range(2 * turns):
            connection.execute("INSERT INTO t VALUES (?, 's', ?)", (number, ROW))
    connection.close()
    return timer.seconds


def postgres_turns(dsn: str, turns: int) -> float:
    """Two transactions per turn."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS laneway_bench_floor")
        connection.execute("CREATE TABLE laneway_bench_floor (id int primary key, session text, data text)")
        with Timer() as timer:
            for number in range(2 * turns):
                with connection.transaction():
                    connection.execute("INSERT INTO laneway_bench_floor VALUES (%s, 's', %s)", (number, ROW))
        connection.execute("DROP TABLE laneway_bench_floor")
    return timer.seconds


def reopen(path: str) -> float:
    """Open, read, decode."""
    began = time.perf_counter()
    connection = sqlite3.connect(path)
    decode = msgspec.json.Decoder().decode
    entries = [decode(payload) for (payload,) in connection.execute("SELECT payload FROM entries ORDER BY seq")]
    seconds = time.perf_counter() - began
    assert entries
    connection.close()
    return seconds


def main() -> None:
    a = cli()
    if a.workload == "w5resume":
        emit("bare-store", "floor", a, 1, reopen(a.db))
    elif a.variant == "postgres":
        emit("bare-store", "floor", a, a.turns, postgres_turns(a.db, a.turns))
    else:
        emit("bare-store", "floor", a, a.turns, sqlite_turns(a.db + ".floor", a.turns, "FULL" if a.variant == "power" else "NORMAL"))


if __name__ == "__main__":
    main()
