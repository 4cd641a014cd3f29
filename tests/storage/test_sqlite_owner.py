"""One writer for a SQLite session: the fenced lease, dead and sleeping owners, races, kills at any moment."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sqlite3
import time
from pathlib import Path

import msgspec
import pytest

from laneway.errors import LeaseLost, SessionLocked
from laneway.storage._owner import this_process
from laneway.storage.base import SetValue
from laneway.storage.sqlite import SqliteStorage
from storage.child import numbered_commit
from storage.children import appended_until_killed, child, committed_by_child

KILLS = int(os.environ.get("LANEWAY_KILLS", "200"))
RACES = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's session is."""
    return tmp_path / "s.sqlite"


def lease_of(path: Path) -> tuple[int, str | None, int, int]:
    """Return fence, owner and both times of the lease in the file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT fence, owner, expires_at, expires_in_boot FROM state").fetchone()
    finally:
        connection.close()


def set_lease(path: Path, **columns: object) -> None:
    """Change columns of the lease behind its owner's back."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(f"UPDATE state SET {', '.join(f'{name} = ?' for name in columns)}", tuple(columns.values()))
    finally:
        connection.close()


def owner_text(**changes: object) -> str:
    """Return what an owner that differs from this process in some way leaves in the file."""
    return msgspec.structs.replace(this_process("other"), **changes).encode()


def in_ms(seconds: float) -> dict[str, object]:
    """Return the columns of a lease that ends in so many seconds, by both clocks."""
    return {"expires_at": int((time.time() + seconds) * 1000), "expires_in_boot": int((time.monotonic() + seconds) * 1000)}


# ---------------------------------------------------------------------------------------------------- refusals


async def test_a_second_writer_in_the_same_process_is_refused(path: Path) -> None:
    """S-24: open twice, under whatever name; the error names this process; after a close it opens again."""
    storage = await SqliteStorage.open(path)
    link = path.with_name("link.sqlite")
    link.symlink_to(path)
    for name in (path, link, path.parent / "." / path.name):
        with pytest.raises(SessionLocked, match="in this process") as refused:
            await SqliteStorage.open(name)
        assert refused.value.owner == str(this_process())
    await storage.commit(numbered_commit(0))
    await storage.close()
    await (await SqliteStorage.open(link)).close()


async def test_a_second_process_is_refused_with_the_owners_pid(path: Path) -> None:
    """B80: the second process learns who has it; a wait gets it when the owner closes."""
    async with child("hold", "sqlite", str(path)) as owner:
        pid = (await owner.line()).removeprefix("open ")
        before = lease_of(path)
        with pytest.raises(SessionLocked, match=f"process {pid} on ") as refused:
            await SqliteStorage.open(path)
        assert refused.value.owner is not None
        assert f"process {pid}" in refused.value.owner
        assert lease_of(path) == before
        waiting = asyncio.create_task(SqliteStorage.open(path, wait=20))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        owner.tell("close")
        await (await waiting).close()


async def test_a_wait_ends(path: Path) -> None:
    """B81: after `wait` seconds the refusal comes all the same."""
    storage = await SqliteStorage.open(path)
    started = time.monotonic()
    with pytest.raises(SessionLocked):
        await SqliteStorage.open(path, wait=0.2)
    assert time.monotonic() - started >= 0.2
    await storage.close()


async def test_a_reader_needs_no_lease(path: Path) -> None:
    """B80: beside its owner a session can be read, as of what the owner has committed, and not written."""
    async with child("hold", "sqlite", str(path)) as owner:
        await owner.line()
        before = lease_of(path)
        reader = await SqliteStorage.open(path, read_only=True)
        assert await reader.scan_values("n") == []
        owner.tell("commit")
        await owner.line()
        assert len(await reader.scan_values("n")) == 1
        assert lease_of(path)[:2] == before[:2]
        await reader.close()


# ---------------------------------------------------------------------------------------------------- dead and sleeping owners


async def test_a_killed_owner_is_replaced_at_once(path: Path) -> None:
    """B81: its process is gone, so nobody waits for its lease; the fence moves on."""
    async with child("hold", "sqlite", str(path)) as owner:
        await owner.line()
        fence = lease_of(path)[0]
        owner.process.kill()
        await owner.process.wait()
        storage = await SqliteStorage.open(path)
        assert lease_of(path)[0] == fence + 1
        await storage.close()


async def test_a_process_id_that_was_given_away_does_not_block(path: Path) -> None:
    """B81: a living process that started at another time is not the owner."""
    await (await SqliteStorage.open(path)).close()
    set_lease(path, owner=owner_text(pid=os.getppid(), started="1"), **in_ms(30))
    await (await SqliteStorage.open(path)).close()


async def test_an_owner_on_another_machine_is_waited_for(path: Path) -> None:
    """B81: nothing is known of its process, so only the time of its lease counts."""
    await (await SqliteStorage.open(path)).close()
    set_lease(path, owner=owner_text(host="elsewhere", machine="elsewhere"), **in_ms(30))
    with pytest.raises(SessionLocked, match="on elsewhere"):
        await SqliteStorage.open(path)
    set_lease(path, **in_ms(0.3))
    await (await SqliteStorage.open(path, wait=10)).close()


async def test_a_jump_of_the_clock_takes_no_lease_away(path: Path) -> None:
    """B82: between processes of one machine the time since its start counts, not the wall clock."""
    async with child("hold", "sqlite", str(path)) as owner:
        await owner.line()
        set_lease(path, expires_at=0)
        with pytest.raises(SessionLocked):
            await SqliteStorage.open(path)
        owner.tell("close")
        await owner.ends()


async def test_commits_do_not_look_at_clocks(path: Path) -> None:
    """B82: the owner commits however long ago its lease ran out, as long as nobody has taken it; numbers go on."""
    storage = await SqliteStorage.open(path)
    for i in range(50):
        set_lease(path, expires_at=0, expires_in_boot=0)
        await storage.commit(numbered_commit(i))
    assert await committed_by_child(storage) == 50
    await storage.close()


async def test_a_paused_owner_that_was_replaced_has_lost_the_session(path: Path) -> None:
    """S-26: it wakes up, may not write, and cannot free its successor's lease; the successor goes on."""
    async with child("hold", "sqlite", str(path), "0.5") as sleeper:
        pid = int((await sleeper.line()).removeprefix("open "))
        sleeper.tell("commit")
        await sleeper.line()
        os.kill(pid, signal.SIGSTOP)
        successor = await SqliteStorage.open(path, wait=20)
        taken = lease_of(path)
        os.kill(pid, signal.SIGCONT)
        for _ in range(2):
            sleeper.tell("commit")
            assert await sleeper.line() == "LeaseLost"
        sleeper.tell("close")
        assert await sleeper.line() == "closed"
        await sleeper.ends()
        assert lease_of(path)[:2] == taken[:2]
        await successor.commit([SetValue("n", "successor", 1)])
        assert {value.key for value in await successor.scan_values("n")} == {"child", "successor"}
        await successor.close()


async def test_lost_is_lost_for_good_and_nothing_is_written(path: Path) -> None:
    """S-26: a commit under an old fence is refused whatever it holds, the lease's time plays no part, and reads still answer."""
    storage = await SqliteStorage.open(path)
    await storage.commit(numbered_commit(0))
    assert storage.lost is None
    set_lease(path, fence=99, owner=owner_text(pid=1))
    with pytest.raises(LeaseLost, match="taken over by process 1 "):
        await storage.commit(numbered_commit(0))
    set_lease(path, fence=1)
    with pytest.raises(LeaseLost):
        await storage.commit(numbered_commit(1))
    assert storage.lost is not None
    assert await committed_by_child(storage) == 1
    await storage.close()
    assert lease_of(path)[0:2] == (1, owner_text(pid=1))


async def test_what_a_successor_wrote_can_be_read_by_the_one_it_replaced(path: Path) -> None:
    """S-26: a stale owner that has not noticed yet reads what is there, not what it remembers."""
    storage = await SqliteStorage.open(path)
    await storage.commit(numbered_commit(0))
    set_lease(path, fence=99, owner=None)
    async with child("append", "sqlite", str(path)) as successor:
        for _ in range(5):
            await successor.line()
        await successor.kill()
    assert await committed_by_child(storage) > 5
    await storage.close()


# ---------------------------------------------------------------------------------------------------- renewal and release


async def test_the_lease_is_renewed_while_the_event_loop_is_busy(path: Path) -> None:
    """S-26: by a thread of its own; nobody can take the session over meanwhile."""
    storage = await SqliteStorage.open(path, lease_life=0.6, heartbeat=0.1)
    first = lease_of(path)
    deadline = time.monotonic() + 30
    while lease_of(path)[3] < first[3] + 1000:
        time.sleep(0.05)  # noqa: ASYNC251 - the loop is blocked on purpose
        assert time.monotonic() < deadline
    assert lease_of(path)[:2] == first[:2]
    await storage.commit(numbered_commit(0))
    await storage.close()


async def test_the_heartbeat_notices_a_loss(path: Path) -> None:
    """S-26: an idle owner learns it without a commit."""
    storage = await SqliteStorage.open(path, lease_life=0.6, heartbeat=0.05)
    set_lease(path, fence=99)
    async with asyncio.timeout(20):
        while storage.lost is None:
            await asyncio.sleep(0.02)
    await storage.close()


@pytest.mark.parametrize(("life", "heartbeat"), [(10.0, 10.0), (1.0, 2.0), (5.0, 0.0)])
async def test_a_heartbeat_must_be_shorter_than_the_lease(path: Path, life: float, heartbeat: float) -> None:
    """S-26: anything else is refused before anything is made."""
    with pytest.raises(ValueError, match="heartbeat"):
        await SqliteStorage.open(path, lease_life=life, heartbeat=heartbeat)
    assert os.listdir(path.parent) == []


async def test_a_close_frees_the_lease(path: Path) -> None:
    """S-26: the next owner has the next fence and waits for nobody."""
    for fence in (1, 2, 3):
        storage = await SqliteStorage.open(path)
        assert lease_of(path)[0] == fence
        await storage.close()
        assert lease_of(path)[1] is None


async def test_a_storage_that_nobody_closed_is_closed_with_a_warning(path: Path) -> None:
    """S-24: a forgotten object does not keep the session for ever."""
    storage = await SqliteStorage.open(path)
    await storage.commit(numbered_commit(0))
    with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031 - two ways to be rid of it
        del storage
        gc.collect()
    storage = await SqliteStorage.open(path, wait=20)
    assert await committed_by_child(storage) == 1
    await storage.close()


async def test_a_cancelled_open_leaves_the_session_free(path: Path) -> None:
    """S-24: whatever it had opened is closed again."""
    await (await SqliteStorage.open(path)).close()
    for i in range(20):
        opening = asyncio.create_task(SqliteStorage.open(path, wait=20))
        await asyncio.sleep(i * 0.0005)
        opening.cancel()
        done, _ = await asyncio.wait([opening])
        for task in done:
            if not task.cancelled():
                await task.result().close()
    async with asyncio.timeout(20):
        storage = await SqliteStorage.open(path, wait=20)
    await storage.commit(numbered_commit(0))
    await storage.close()


async def test_a_forked_child_is_another_process(path: Path) -> None:
    """B81: it is refused while its parent lives, and is no owner when the parent is killed."""
    async with child("fork", "sqlite", str(path)) as owner:
        forked = int(await owner.line())
        try:
            with pytest.raises(SessionLocked):
                await SqliteStorage.open(path)
            owner.process.kill()
            await owner.process.wait()
            storage = await SqliteStorage.open(path)
            assert await committed_by_child(storage) == 1
            await storage.close()
        finally:
            os.kill(forked, signal.SIGKILL)


# ---------------------------------------------------------------------------------------------------- races and kills


async def test_of_two_processes_that_open_at_once_one_wins(tmp_path: Path) -> None:
    """B81, B83: a hundred races, half of them to make the file, half for a dead owner's; never two owners, never none."""
    async with child("race", "sqlite", "-") as a, child("race", "sqlite", "-") as b:
        for i in range(RACES):
            target = tmp_path / f"{i}.sqlite"
            if i % 2:
                await (await SqliteStorage.open(target)).close()
                set_lease(target, owner=owner_text(pid=2**22 + 1), **in_ms(30))
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


async def test_a_kill_at_any_moment_leaves_exactly_the_acknowledged_commits(tmp_path: Path) -> None:
    """S-25: a process killed between or inside commits has committed what it was told, and at most the one that was under way."""
    moments = random.Random(7)
    async with child("nursery", "append", "sqlite", "-") as nursery:
        for i in range(KILLS):
            session = tmp_path / f"{i // 20}.sqlite"
            last = await appended_until_killed(nursery, str(session), moments.uniform(0, 0.03))
            storage = await SqliteStorage.open(session, create=False)
            found = await committed_by_child(storage)
            assert await storage.verify() == []
            await storage.close()
            assert found in (last + 1, last + 2)


async def test_an_owner_whose_file_was_taken_away_learns_it(path: Path) -> None:
    """S-26: a file that was deleted or replaced takes every commit without a word, and all of them are lost."""
    told: list[LeaseLost] = []
    storage = await SqliteStorage.open(path, heartbeat=0.05)
    await storage.commit(numbered_commit(0))
    storage.on_lost(told.append)
    path.unlink()
    async with asyncio.timeout(20):
        while not told:
            await asyncio.sleep(0.01)
    with pytest.raises(LeaseLost, match="deleted, moved or replaced"):
        await storage.commit(numbered_commit(1))
    await storage.close()
    assert not path.exists()
