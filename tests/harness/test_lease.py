"""A session that another process takes over while an effect runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crash.invariants import check_idle, check_transcript
from harness.conftest import Opener, tool
from harness.double import call, text
from laneway.errors import HarnessFault, LeaseLost
from laneway.harness import AgentHarness, RetryPolicy
from laneway.session import Session
from laneway.storage.base import Storage
from laneway.storage.postgres import PostgresStorage
from laneway.storage.sqlite import SqliteStorage
from laneway.testing import Scripted
from storage.children import Child
from storage.pg import postgres, postgres_dsn, schema

__all__ = ["postgres", "postgres_dsn", "schema"]


@asynccontextmanager
async def losing(*arguments: str) -> AsyncIterator[Child]:
    """A process of `losing.py`; killed at the end if it still lives."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(Path(__file__).with_name("losing.py")), *arguments, stdin=pipe, stdout=pipe)
    running = Child(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            await running.kill()
        assert process.stdin is not None
        process.stdin.close()


async def _is_lost_while(what: str, owner: Child, successor: Any) -> Storage:
    """Stop the owner in its effect, take the session over, let it wake up; it must notice by itself, and write nothing more."""
    assert await owner.line() == "running"
    os.kill(owner.process.pid, signal.SIGSTOP)
    storage: Storage = await successor()
    before = (await storage.scan_values("op.state"))[0]
    os.kill(owner.process.pid, signal.SIGCONT)
    told = "['told']" if what == "tool" else "[]"
    assert await owner.line() == f"LeaseLost ['lease_lost'] {told}"
    assert await owner.line() == "closed"
    await owner.ends()
    assert (await storage.scan_values("op.state"))[0] == before
    return storage


async def _goes_on(storage: Storage) -> None:
    """The new owner finishes what the other had begun."""
    script = Scripted([text("done")])
    harness, _ = await AgentHarness.create(
        session=Session.over(storage), model=script.model, stream_fn=script.stream_fn, tools=[tool("work")], retry=RetryPolicy(base_delay=0.0)
    )
    assert (await (await harness.lane("main")).resume()).status == "completed"
    await check_idle(storage)
    await check_transcript(storage)
    await harness.close()


@pytest.mark.parametrize("what", ["tool", "model"])
async def test_a_sqlite_session_that_is_lost_stops_what_runs(tmp_path: Path, what: str) -> None:
    """Decision 5, S-26: a process that slept finds out at its next heartbeat, not only at its next commit."""
    path = tmp_path / "s.sqlite"
    async with asyncio.timeout(60), losing("sqlite", str(path), what) as owner:
        storage = await _is_lost_while(what, owner, lambda: SqliteStorage.open(path, wait=20))
        await _goes_on(storage)


@pytest.mark.parametrize("what", ["tool", "model"])
async def test_a_postgres_session_that_is_lost_stops_what_runs(postgres_dsn: str, schema: str, what: str) -> None:
    """Decision 5, S-26: as on SQLite."""
    async with asyncio.timeout(60), losing("postgres", postgres_dsn, schema, "s1", what) as owner:
        storage = await _is_lost_while(what, owner, lambda: PostgresStorage.open(postgres_dsn, "s1", schema=schema, wait=20))
        await _goes_on(storage)


async def test_an_idle_harness_learns_of_its_loss(tmp_path: Path) -> None:
    """Decision 5: every later call says so, without having tried to write."""
    path = tmp_path / "s.sqlite"
    storage = await SqliteStorage.open(path, lease_life=0.6, heartbeat=0.05)
    script = Scripted([])
    harness, _ = await AgentHarness.create(session=Session.over(storage), model=script.model, stream_fn=script.stream_fn)
    lane = await harness.lane("main")
    waiting = asyncio.ensure_future(lane.run_when_idle(asyncio.Event().wait))
    faults: list[Any] = []
    harness.events.on("fault", faults.append)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE state SET fence = fence + 1")
    connection.close()
    async with asyncio.timeout(20):
        while not faults:  # the heartbeat beats on a thread of its own
            await asyncio.sleep(0.02)
    assert faults[0].code == "lease_lost"
    with pytest.raises(HarnessFault) as caught:
        await lane.steer("x")
    assert isinstance(caught.value.__cause__, LeaseLost)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await harness.close()


async def test_a_closed_harness_is_not_told(lane_of: Opener) -> None:
    """A loss after the end is nobody's fault."""
    lost: list[Any] = []

    def on_lost(callback: Any) -> Any:
        lost.append(callback)
        return lost.clear

    fixture = await lane_of(call("t"), text("ok"), tools=[tool("t")])
    await fixture.harness.close()
    fixture.storage = fixture.storage.reopen()
    fixture.storage.on_lost = on_lost  # type: ignore[attr-defined] - a store in memory has no lease to lose
    fixture.recording.storage = fixture.storage
    await fixture.open()
    (tell,) = lost
    await fixture.lane.prompt("go")
    await fixture.harness.close()
    assert lost == []
    tell(LeaseLost("too late"))
    await asyncio.sleep(0)
    assert fixture.harness._runtime.fault is None
