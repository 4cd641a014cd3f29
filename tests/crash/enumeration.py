"""Crash a script at every commit, in three ways, recover, and look at what is left; then crash the recovery as well."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from crash.invariants import check_idle, check_transcript
from crash.world import LosingStorage, World
from laneway.errors import HarnessClosed, HarnessFault
from laneway.harness import AgentHarness, AgentLane, Waiting
from laneway.storage.base import Storage, UsageScan
from laneway.testing import Crash, CrashingStorage, RecordingStorage

Mode = Literal["before", "lost", "after"]
MODES: tuple[Mode, ...] = ("before", "lost", "after")


@dataclass
class Script:
    """`play` does the work of the first process; `finish` brings the work to its end in any later one (it must be idempotent)."""

    name: str
    world: Callable[[], World]
    play: Callable[[World, AgentHarness, AgentLane], Awaitable[None]]
    finish: Callable[[World, AgentHarness, AgentLane], Awaitable[None]]
    check: Callable[[World], Awaitable[None]]
    options: Callable[[World], dict[str, Any]]


async def process(script: Script, world: World, storage: Storage, work: Callable[..., Awaitable[None]]) -> bool:
    """Run one process over a store. Returns whether it crashed."""
    harness: AgentHarness | None = None
    try:
        harness, lane, _ = await world.open(storage, **script.options(world))
        await work(world, harness, lane)
    except (Crash, HarnessFault, HarnessClosed) as error:
        if not _is_crash(error):
            raise
        return True
    finally:
        if harness is not None:
            await asyncio.wait_for(_quiet_close(harness), 10)
    return False


async def _quiet_close(harness: AgentHarness) -> None:
    with contextlib.suppress(Crash):
        await harness.close()


def _is_crash(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, (Crash, HarnessClosed)):
            return True
        error = error.__cause__
    return False


def wrap(storage: Storage, at: int, mode: Mode) -> Storage:
    """A store that dies at a commit."""
    return LosingStorage(Kept(storage), at) if mode == "lost" else CrashingStorage(Kept(storage), at, before=mode == "before")


class Kept(RecordingStorage):
    """A store that the next process will use: nobody closes it."""

    async def close(self) -> None:
        return


async def count(script: Script) -> int:
    """How many commits the undisturbed script makes."""
    world = script.world()
    recording = Kept(world.storage)
    assert not await process(script, world, recording, script.play)
    await _verify(script, world)
    return len(recording.commits)


async def crash_once(script: Script, at: int, mode: Mode) -> World:
    """Crash the first process at one commit and let a second one finish."""
    world = script.world()
    await process(script, world, wrap(world.storage, at, mode), script.play)
    await recover(script, world)
    return world


async def crash_twice(script: Script, at: int, mode: Mode, again: Mode) -> int:
    """Crash the first process at one commit, and the second at every commit of its recovery. Returns how many there were."""
    number = 0
    while True:
        number += 1
        world = script.world()
        await process(script, world, wrap(world.storage, at, mode), script.play)
        crashed = await process(script, world, wrap(world.storage, number, again), script.finish)
        await recover(script, world)
        if not crashed:
            return number


async def recover(script: Script, world: World) -> None:
    """Let a process that lives finish, and look at what is left."""
    assert not await process(script, world, Kept(world.storage), script.finish)
    await _verify(script, world)


async def _verify(script: Script, world: World) -> None:
    await check_idle(world.storage)
    await check_transcript(world.storage)
    rows = await world.storage.scan_usage(UsageScan())
    if not world.summaries:
        sent = [messages for messages in world.requests if messages]  # a poll that was lost is asked again
        assert len(sent) <= len(rows), "a request was sent again under the same intent"
    await script.check(world)


async def drive_to_end(lane: AgentLane) -> None:
    """Resume whatever is open until nothing is."""
    while (await lane.inspect()).current is not None:
        outcome = await lane.resume()
        if isinstance(outcome, Waiting):
            assert outcome.reason == "approval"
            for call in outcome.calls:
                await lane.approve(call.tool_call_id)
