"""A process for the storage tests to start, and to kill.

`python child.py WHAT jsonl PATH`, `python child.py WHAT sqlite PATH [LIFE]` or `python child.py WHAT postgres DSN SCHEMA SESSION [LIFE]`.
With `nursery` before WHAT it does so in forked children of its own, one after the other. It tells what it did line by line on its
standard output and obeys lines from its standard input.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable

from laneway.errors import SessionLocked, StorageError
from laneway.messages import UserMessage
from laneway.storage.base import AppendList, InsertEntry, MessageEntry, SetValue, Storage, Write
from laneway.storage.jsonl import JsonlStorage
from laneway.storage.postgres import PostgresPool, PostgresStorage
from laneway.storage.sqlite import SqliteStorage


def numbered_commit(i: int) -> list[Write]:
    """The i-th commit of a child: an entry after the last one, and the tip, in one. Every tenth carries more than a page."""
    text = "x" * (20_000 if i % 10 == 9 else 50)
    message = MessageEntry(id=f"e{i}", parent_id=f"e{i - 1}" if i else None, message=UserMessage(content=text, timestamp=1))
    return [InsertEntry(message), SetValue("branch.tip", "main", f"e{i}"), AppendList("log", "main", i)]


def say(line: object) -> None:
    os.write(1, f"{line}\n".encode())  # at once and whole, or not at all


async def heard() -> str:
    return (await asyncio.to_thread(sys.stdin.readline)).strip()


async def append(open_: Callable[[str], Awaitable[Storage]], target: str) -> None:
    """Commit for ever; say the number of each commit once it is acknowledged."""
    storage = await open_(target)
    value = await storage.get_value("branch.tip", "main")
    start = int(value.value[1:]) + 1 if value else 0
    for i in range(start, start + 100_000):
        await storage.commit(numbered_commit(i))
        say(i)


async def hold(open_: Callable[[str], Awaitable[Storage]], target: str) -> None:
    """Open, say so, and close when a line comes. A line "commit" commits instead, and says how that went."""
    storage = await open_(target)
    say(f"open {os.getpid()}")
    while await heard() == "commit":
        try:
            say((await storage.commit([SetValue("n", "child", os.getpid())])).first_seq)
        except StorageError as error:
            say(type(error).__name__)
    await storage.close()
    say("closed")


async def turns(open_: Callable[[str], Awaitable[Storage]], target: str) -> None:
    """Told a number, open the session as soon as nobody else has it, append so many commits and close it."""
    say("ready")
    count = int(await heard())
    while True:
        try:
            storage = await open_(target)
            break
        except SessionLocked:
            await asyncio.sleep(0.01)
    value = await storage.get_value("branch.tip", "main")
    start = int(value.value[1:]) + 1 if value else 0
    for i in range(start, start + count):
        await storage.commit(numbered_commit(i))
    await storage.close()
    say("done")


async def race(open_: Callable[[str], Awaitable[Storage]], _: str) -> None:
    """For every line, open the session it names at once, and say "owner" or why not; close at the next line."""
    while target := await heard():
        try:
            storage = await open_(target)
        except StorageError as error:
            say(f"{type(error).__name__} {error}".replace("\n", " "))
            await heard()
            continue
        say("owner")
        await heard()
        await storage.close()


async def fork(open_: Callable[[str], Awaitable[Storage]], target: str) -> None:
    """Open, fork a child that outlives us, and wait to be killed."""
    storage = await open_(target)
    await storage.commit(numbered_commit(0))
    if (child := os.fork()) == 0:
        os.close(0)
        os.close(1)
        threading.Event().wait(30)
        os._exit(0)
    say(child)
    await heard()


async def inherit(open_: Callable[[str], Awaitable[Storage]], target: str) -> None:
    """Open, fork a child that uses what is open, say how that went, and go on."""
    storage = await open_(target)
    await storage.commit(numbered_commit(0))
    if (child := os.fork()) == 0:
        asyncio.run(use_inherited(storage))
        os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    await storage.commit(numbered_commit(1))
    await storage.close()
    say("closed")


async def use_inherited(storage: Storage) -> None:
    """Try to write to a parent's session, and leave it."""
    try:
        async with asyncio.timeout(10):
            await storage.commit(numbered_commit(9))
            say("committed")
    except (StorageError, TimeoutError) as error:
        say(type(error).__name__)
    await storage.close()
    say("left")


def nursery() -> None:
    """For every line, fork a child that does what the command line says, to the session the line names; say when it has died."""
    importlib.import_module("psycopg")  # once, not in every child
    while target := sys.stdin.readline().strip():
        sys.argv[-1] = target
        if (pid := os.fork()) == 0:
            asyncio.run(main())
            os._exit(0)
        say(f"born {pid}")
        os.waitpid(pid, 0)
        say("died")


async def main() -> None:
    """Do what the command line says."""
    what, kind, where, *rest = sys.argv[2:] if sys.argv[1] == "nursery" else sys.argv[1:]
    if kind == "jsonl":

        async def open_jsonl(path: str) -> Storage:
            return await JsonlStorage.open(path)

        await globals()[what](open_jsonl, where)
    elif kind == "sqlite":
        life = float(rest[0]) if rest else 30.0

        async def open_sqlite(path: str) -> Storage:
            return await SqliteStorage.open(path, lease_life=life, heartbeat=life / 3)

        await globals()[what](open_sqlite, where)
    else:
        pool = await PostgresPool.open(where, schema=rest[0])
        life = float(rest[2]) if len(rest) > 2 else 30.0

        async def open_postgres(session_id: str) -> Storage:
            return await PostgresStorage.open(pool, session_id, lease_life=life, heartbeat=life / 3)

        await globals()[what](open_postgres, rest[1])
        await pool.close()


if __name__ == "__main__":
    if sys.argv[1] == "nursery":
        nursery()
    else:
        asyncio.run(main())
