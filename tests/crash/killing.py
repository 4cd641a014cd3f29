"""Run scripts over a real store in processes that kill themselves; for a process of its own (it forks).

Usage: killing.py KIND DIRECTORY SCRIPT STEP: kill at every STEP-th commit, before and after it, and once more during the recovery.
Prints how many processes were killed; anything wrong ends it with a traceback and a code of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crash.enumeration import Script, process
from crash.invariants import check_idle, check_transcript
from crash.scripts import SCRIPTS
from crash.world import World
from laneway.storage.base import CommitResult, Storage, Write
from laneway.testing import RecordingStorage


async def open_store(kind: str, path: Path) -> Storage:
    """Open a session's file; one whose owner was killed a moment ago is waited for."""
    if kind == "sqlite":
        from laneway.storage.sqlite import SqliteStorage

        return await SqliteStorage.open(path, wait=5.0)
    from laneway.storage.jsonl import JsonlStorage

    return await JsonlStorage.open(path, wait=5.0)


class Suicidal(RecordingStorage):
    """Kills its process at a commit: before it is made, or when it is durable and nobody has heard of it."""

    def __init__(self, storage: Storage, at: int, before: bool) -> None:
        super().__init__(storage)
        self.at, self.before = at, before

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        mine = len(self.commits) + 1 == self.at
        if mine and self.before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = await super().commit(writes)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


async def work(kind: str, path: Path, script: Script, *, finish: bool, at: int, before: bool) -> int:
    """One process: play or finish the script, killed at a commit (0: at none). Returns how many commits it made."""
    store = await open_store(kind, path)
    world = _world(script, store, path)
    recording = Suicidal(store, at, before)
    crashed = await process(script, world, recording, script.finish if finish else script.play)
    assert not crashed
    if finish:
        await _verify(kind, path, script)
    return len(recording.commits)


def _world(script: Script, store: Storage, path: Path) -> World:
    world = script.world()
    world.storage, world.log = store, path.with_suffix(".log")
    if world.log.exists():
        world.executed = Counter(world.log.read_text().split())
    return world


async def _verify(kind: str, path: Path, script: Script) -> None:
    store = await open_store(kind, path)
    try:
        await check_idle(store)
        await check_transcript(store)
        await script.check(_world(script, store, path))
    finally:
        await store.close()


def fork(job: Any) -> int:
    """Run a coroutine in a process of its own; returns its exit status (negative: the signal that killed it)."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if asyncio.run(job) is not None else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    job.close()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def main(kind: str, directory: Path, name: str, step: int) -> None:
    script = next(script for script in SCRIPTS if script.name == name)
    killed = number = 0
    for before in (True, False):
        at = 1
        while True:
            number += 1
            path = directory / f"{number}.{kind}"
            status = fork(work(kind, path, script, finish=False, at=at, before=before))
            if status == 0:
                break
            killed += _expect_kill(status, at)
            again = fork(work(kind, path, script, finish=True, at=1 + at % 3, before=False))
            killed += 0 if again == 0 else _expect_kill(again, at)
            if again != 0 and (last := fork(work(kind, path, script, finish=True, at=0, before=False))) != 0:
                raise SystemExit(f"{name} on {kind}: the recovery after a kill at commit {at} failed with {last}")
            at += step
    print(killed)


def _expect_kill(status: int, at: int) -> int:
    if status != -signal.SIGKILL:
        raise SystemExit(f"the process that was to be killed at commit {at} ended with {status}")
    return 1


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
