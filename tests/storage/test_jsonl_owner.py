"""One writer for a JSONL session: refusals that name the owner, dead owners, races, and kills at any moment."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from laneway.errors import SessionLocked
from laneway.storage.jsonl import JsonlStorage
from storage.child import numbered_commit
from storage.children import appended_until_killed, child, committed_by_child

KILLS = int(os.environ.get("LANEWAY_KILLS", "250"))
RACES = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's session is."""
    return tmp_path / "s.jsonl"


async def test_a_second_writer_in_the_same_process_is_refused(path: Path) -> None:
    """S-24: open twice; the error names this process."""
    storage = await JsonlStorage.open(path)
    with pytest.raises(SessionLocked, match="one process writes a session") as refused:
        await JsonlStorage.open(path)
    assert refused.value.owner is not None
    assert f"process {os.getpid()} on " in refused.value.owner
    await storage.commit(numbered_commit(0))
    await storage.close()
    await (await JsonlStorage.open(path)).close()


async def test_a_second_process_is_refused_with_the_owners_pid(path: Path) -> None:
    """B80: the second process learns who has it; a wait gets it when the owner closes."""
    async with child("hold", "jsonl", str(path)) as owner:
        pid = (await owner.line()).removeprefix("open ")
        with pytest.raises(SessionLocked, match=f"process {pid} on "):
            await JsonlStorage.open(path)
        waiting = asyncio.create_task(JsonlStorage.open(path, wait=20))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        owner.tell("close")
        storage = await waiting
        await storage.close()


async def test_a_killed_owner_holds_nothing(path: Path) -> None:
    """B81: the lock dies with its owner; the lock file it left is no obstacle, and the next owner clears it away."""
    async with child("hold", "jsonl", str(path)) as owner:
        await owner.line()
        await owner.kill()
        assert sorted(os.listdir(path.parent)) == ["s.jsonl", "s.jsonl.lock"]
        storage = await JsonlStorage.open(path)
        await storage.close()
        assert os.listdir(path.parent) == ["s.jsonl"]


async def test_a_lock_file_that_names_a_live_process_is_only_a_note(path: Path) -> None:
    """B81: a process id that was given to another process since does not block."""
    path.with_name("s.jsonl.lock").write_text(f"process {os.getppid()} on here\n")
    storage = await JsonlStorage.open(path)
    await storage.close()


async def test_a_forked_child_neither_keeps_the_lock_nor_writes(path: Path) -> None:
    """B81: when the owner is killed its lock is gone, though a child that it forked lives on."""
    async with child("fork", "jsonl", str(path)) as owner:
        forked = int(await owner.line())
        try:
            with pytest.raises(SessionLocked):
                await JsonlStorage.open(path)
            owner.process.kill()
            await owner.process.wait()
            storage = await JsonlStorage.open(path)
            assert await committed_by_child(storage) == 1
            await storage.close()
        finally:
            os.kill(forked, signal.SIGKILL)


async def test_of_two_processes_that_open_at_once_one_wins(tmp_path: Path) -> None:
    """B81: a hundred races, half of them for a stale lock; never two owners, never none, and the loser is told who won."""
    async with child("race", "jsonl", "-") as a, child("race", "jsonl", "-") as b:
        for i in range(RACES):
            target = tmp_path / f"{i}.jsonl"
            if i % 2:
                target.with_name(f"{i}.jsonl.lock").write_text("process 1 on gone\n")
            a.tell(str(target))
            b.tell(str(target))
            said = [await a.line(), await b.line()]
            winner = 0 if said[0] == "owner" else 1
            assert said[winner] == "owner"
            assert said[1 - winner].startswith("SessionLocked"), said
            a.tell("close")
            b.tell("close")
        for racer in (a, b):
            racer.tell()
            await racer.ends()
        assert len(os.listdir(tmp_path)) == RACES


async def test_a_kill_at_any_moment_leaves_exactly_the_acknowledged_commits(path: Path) -> None:
    """K: a process killed between or inside commits has committed what it was told, and at most the one that was under way."""
    moments = random.Random(7)
    async with child("nursery", "append", "jsonl", "-") as nursery:
        for i in range(KILLS):
            session = path.with_name(f"{i // 20}.jsonl")
            last = await appended_until_killed(nursery, str(session), moments.uniform(0, 0.02))
            storage = await JsonlStorage.open(session, create=False)
            found = await committed_by_child(storage)
            await storage.close()
            assert found in (last + 1, last + 2)
