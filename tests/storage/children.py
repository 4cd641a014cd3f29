"""Starting `child.py`, and never leaving one behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from laneway.storage.base import BranchScan, Storage

_PROGRAM = Path(__file__).with_name("child.py")


class Child:
    """A running child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        """Wait for its next line."""
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            return (await self.process.stdout.readline()).decode().strip()

    def tell(self, line: str = "") -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    async def kill(self) -> list[str]:
        """SIGKILL it; return what it had still said."""
        assert self.process.stdout is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        rest = (await self.process.stdout.read()).decode()
        await self.process.wait()
        return rest.split("\n")[:-1]  # a line that lacks its end was cut by the kill

    async def ends(self) -> None:
        """Wait until it has ended well."""
        async with asyncio.timeout(30):
            assert await self.process.wait() == 0


@contextlib.asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[Child]:
    """Start a child; it is killed at the end if it still lives."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(_PROGRAM), *arguments, stdin=pipe, stdout=pipe, limit=1 << 24)
    running = Child(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            await running.kill()
        if process.stdin is not None:
            process.stdin.close()
            with contextlib.suppress(ConnectionError):
                await process.stdin.wait_closed()


async def appended_until_killed(nursery: Child, session: str, after: float) -> int:
    """Let a nursery's child append, and SIGKILL it `after` seconds from its first commit; return the number of its last known one, or -1."""
    nursery.tell(session)
    born = (await nursery.line()).removeprefix("born ")
    said = await nursery.line()
    await asyncio.sleep(after)
    os.kill(int(born), signal.SIGKILL)
    last = -1
    while said != "died":
        last = int(said)
        said = await nursery.line()
    return last


async def committed_by_child(storage: Storage) -> int:
    """Check that the session holds exactly the first commits of a child, each whole; return how many."""
    elements = [e.value for e in await storage.read_list("log", "main", limit=10_000)]
    assert elements == list(range(len(elements)))
    tip = await storage.get_value("branch.tip", "main")
    if not elements:
        assert tip is None
        return 0
    assert tip is not None
    assert tip.value == f"e{len(elements) - 1}"
    path = await storage.scan_branch_structure(BranchScan(start=tip.value, order="oldest_first"))
    assert [node.id for node in path] == [f"e{i}" for i in elements]
    assert (await storage.get_stats()).message_count == len(elements)
    return len(elements)
