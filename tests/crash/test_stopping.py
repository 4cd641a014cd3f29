"""Every script survives a store that refuses one commit, and a close at any commit: nothing more is written, and the next process goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest

from crash.enumeration import Kept, Script, count, process, recover
from crash.scripts import HEARD, SCRIPTS
from crash.world import World
from laneway.errors import HarnessClosed, HarnessFault
from laneway.harness import AgentHarness
from laneway.storage.base import CommitResult, Storage, Write
from laneway.testing import Crash

STEP = 1 if os.environ.get("LANEWAY_CRASH") == "all" else 2


class DiskFull(Crash, OSError):
    """What a full disk raises; `process` takes it for the end of the process."""


class Refusing(Kept):
    """Refuses one commit, and would take every other."""

    def __init__(self, storage: Storage, at: int) -> None:
        super().__init__(storage)
        self.at = at
        self.refused = False
        self.late = 0

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        self.late += self.refused
        if not self.refused and len(self.commits) + 1 == self.at:
            self.refused = True
            raise DiskFull("disk full")
        return await super().commit(writes)


@pytest.mark.parametrize("script", SCRIPTS + HEARD, ids=lambda script: script.name)
async def test_a_store_that_fails_at_a_commit_loses_nothing(script: Script) -> None:
    """X-04, decision 22: the harness stops, tries to write nothing more, and reopening goes on; at every n with LANEWAY_CRASH=all."""
    commits = await count(script)
    for at in range(1, commits + 1, STEP):
        async with asyncio.timeout(60):
            world = script.world()
            refusing = Refusing(world.storage, at)
            stopped = await process(script, world, refusing, script.play)
            assert stopped == refusing.refused
            assert refusing.late == 0, f"something was written after commit {at} had failed"
            await recover(script, world)


class Closing(Kept):
    """Closes its harness in a commit: while it is made, or when it was."""

    def __init__(self, storage: Storage, at: int, *, during: bool) -> None:
        super().__init__(storage)
        self.at, self.during = at, during
        self.harness: AgentHarness
        self.closing: asyncio.Future[None] | None = None
        self.late = 0

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        self.late += self.closing is not None
        mine = len(self.commits) + 1 == self.at and hasattr(self, "harness")
        if mine and self.during:
            await self._close()
        result = await super().commit(writes)
        if mine and not self.during:
            await self._close()
        return result

    async def _close(self) -> None:
        self.closing = asyncio.ensure_future(self.harness.close())
        while not self.harness.closed:
            await asyncio.sleep(0)


async def closed_in(script: Script, at: int, *, during: bool) -> World:
    """Play a script in a process that is closed at a commit."""
    world = script.world()
    storage = Closing(world.storage, at, during=during)
    harness, lane, _ = await world.open(storage, **script.options(world))
    storage.harness = harness
    try:
        await script.play(world, harness, lane)
    except HarnessClosed:
        assert storage.closing is not None
    except HarnessFault as fault:
        raise AssertionError("a close is no fault") from fault
    await harness.close()
    if storage.closing is not None:
        await storage.closing
    assert storage.late == 0, f"something was written after the close in commit {at}"
    assert _fault_of(harness) is None
    return world


def _fault_of(harness: Any) -> Any:
    return harness._runtime.fault


@pytest.mark.parametrize("during", [False, True], ids=["after", "during"])
@pytest.mark.parametrize("script", SCRIPTS + HEARD, ids=lambda script: script.name)
async def test_a_close_at_a_commit_writes_nothing_more(script: Script, during: bool) -> None:
    """X-02, decision 18: closing is a controlled crash in every state; reopening goes on (at every commit with LANEWAY_CRASH=all)."""
    commits = await count(script)
    for at in range(1, commits + 1, STEP):
        async with asyncio.timeout(60):
            world = await closed_in(script, at, during=during)
            await recover(script, world)
