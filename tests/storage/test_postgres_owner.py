"""One writer for a session in Postgres: the lease, its fence, takeovers, races, and kills at any moment."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import time
from collections.abc import AsyncIterator

import pytest

from laneway.errors import LeaseLost, SessionLocked
from laneway.storage.base import SetValue
from laneway.storage.postgres import PostgresPool, PostgresStorage
from storage.child import numbered_commit
from storage.children import appended_until_killed, child, committed_by_child
from storage.pg import postgres, postgres_dsn, schema
from storage.proxy import proxy_to

__all__ = ["postgres", "postgres_dsn", "schema"]

KILLS = int(os.environ.get("LANEWAY_KILLS", "100"))
RACES = 100


@pytest.fixture
async def pool(postgres_dsn: str, schema: str) -> AsyncIterator[PostgresPool]:
    """Connections to an empty schema of the test's own."""
    pool = await PostgresPool.open(postgres_dsn, schema=schema)
    yield pool
    await pool.close()


async def fence(pool: PostgresPool) -> int:
    """The fence of the one session."""
    return (await pool.fetch("SELECT fence FROM sessions"))[0][0]


async def test_a_second_writer_in_the_same_process_is_refused(pool: PostgresPool) -> None:
    """S-24: open twice; the error names this process, and the owner goes on undisturbed."""
    storage = await PostgresStorage.open(pool, "s1")
    with pytest.raises(SessionLocked, match="one process writes a session") as refused:
        await PostgresStorage.open(pool, "s1")
    assert refused.value.owner is not None
    assert f"process {os.getpid()} on " in refused.value.owner
    await storage.commit(numbered_commit(0))
    await storage.close()
    await (await PostgresStorage.open(pool, "s1")).close()


async def test_a_second_process_is_refused_and_may_wait(pool: PostgresPool, postgres_dsn: str, schema: str) -> None:
    """B80: the owner is named; who waits gets the session as soon as the owner closes, not only when its lease runs out."""
    async with child("hold", "postgres", postgres_dsn, schema, "s1") as owner:
        pid = (await owner.line()).removeprefix("open ")
        with pytest.raises(SessionLocked, match=f"process {pid} on "):
            await PostgresStorage.open(pool, "s1")
        waiting = asyncio.create_task(PostgresStorage.open(pool, "s1", wait=20))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        owner.tell("close")
        storage = await waiting
        assert await fence(pool) == 2
        await storage.close()


async def test_a_killed_owner_is_replaced_at_once(pool: PostgresPool, postgres_dsn: str, schema: str) -> None:
    """B81: a dead process of this machine is recognised by its id and start time; its lease has half a minute to go."""
    async with child("hold", "postgres", postgres_dsn, schema, "s1") as owner:
        await owner.line()
        await owner.kill()
        storage = await PostgresStorage.open(pool, "s1")
        await storage.commit(numbered_commit(0))
        await storage.close()


async def test_a_process_id_that_was_given_again_does_not_block(pool: PostgresPool) -> None:
    """B81: our own id with another start time is not the owner."""
    storage = await PostgresStorage.open(pool, "s1")
    await storage.commit(numbered_commit(0))
    await pool.fetch("""UPDATE sessions SET owner = jsonb_set(owner::jsonb, '{started}', '"1"')::text""")
    successor = await PostgresStorage.open(pool, "s1")
    with pytest.raises(LeaseLost, match="taken over by process"):
        await storage.commit(numbered_commit(1))
    await storage.close()
    assert await committed_by_child(successor) == 1
    await successor.close()


async def test_an_owner_on_another_machine_is_waited_for(pool: PostgresPool) -> None:
    """Nothing is known of a process elsewhere, so only the end of its lease frees the session."""
    storage = await PostgresStorage.open(pool, "s1")
    await pool.fetch("""UPDATE sessions SET owner = '{"host":"far","machine":"away","pid":1,"started":"1"}'""")
    with pytest.raises(SessionLocked, match="process 1 on far"):
        await PostgresStorage.open(pool, "s1")
    await pool.fetch("UPDATE sessions SET expires_at = clock_timestamp() + interval '0.3 s'")
    successor = await PostgresStorage.open(pool, "s1", wait=20)
    await successor.close()
    await storage.close()


async def test_a_paused_owner_that_wakes_up_cannot_write(pool: PostgresPool, postgres_dsn: str, schema: str) -> None:
    """S-26, B80: it slept past the end of its lease; its commit is refused, nothing of it is written, its close frees nothing."""
    async with child("hold", "postgres", postgres_dsn, schema, "s1", "0.9") as owner:
        await owner.line()
        os.kill(owner.process.pid, signal.SIGSTOP)
        storage = await PostgresStorage.open(pool, "s1", wait=20)
        assert await fence(pool) == 2
        os.kill(owner.process.pid, signal.SIGCONT)
        owner.tell("commit")
        assert await owner.line() == "LeaseLost"
        owner.tell("close")
        assert await owner.line() == "closed"
        assert await storage.get_value("n", "child") is None
        with pytest.raises(SessionLocked):
            await PostgresStorage.open(pool, "s1")
        await storage.commit(numbered_commit(0))
        await storage.close()


async def test_a_lost_lease_stays_lost(pool: PostgresPool) -> None:
    """S-26: every later commit fails the same way, an empty one too; reading goes on."""
    storage = await PostgresStorage.open(pool, "s1")
    await storage.commit(numbered_commit(0))
    await pool.fetch("UPDATE sessions SET expires_at = clock_timestamp() - interval '1 s'")
    successor = await PostgresStorage.open(pool, "s1")
    await successor.commit(numbered_commit(1))
    await successor.close()
    for _ in range(2):
        with pytest.raises(LeaseLost, match="taken over"):
            await storage.commit(numbered_commit(2))
    with pytest.raises(LeaseLost):
        await storage.commit([])
    with pytest.raises(LeaseLost):
        await storage.repair()
    with pytest.raises(LeaseLost):
        await storage.erase()
    assert await committed_by_child(storage) == 2
    await storage.close()


async def test_times_do_not_decide_who_may_commit(pool: PostgresPool) -> None:
    """B82: a lease that has run out, by whatever clock, but was not taken is still the owner's, and a commit renews it."""
    storage = await PostgresStorage.open(pool, "s1")
    await pool.fetch("UPDATE sessions SET expires_at = clock_timestamp() - interval '1 hour'")
    await storage.commit(numbered_commit(0))
    with pytest.raises(SessionLocked):
        await PostgresStorage.open(pool, "s1")
    await storage.close()


async def test_an_idle_owner_keeps_its_lease(pool: PostgresPool) -> None:
    """The heartbeat renews it while nothing is committed."""
    storage = await PostgresStorage.open(pool, "s1", lease_life=0.6, heartbeat=0.1)
    await asyncio.sleep(1.2)
    with pytest.raises(SessionLocked):
        await PostgresStorage.open(pool, "s1")
    await storage.close()


async def test_an_owner_whose_event_loop_is_blocked_keeps_its_lease(pool: PostgresPool) -> None:
    """A tool that holds up everything must not cost the session: renewals have a thread and a connection of their own."""
    storage = await PostgresStorage.open(pool, "s1", lease_life=0.9, heartbeat=0.1)
    time.sleep(2)  # noqa: ASYNC251 - the point of the test
    with pytest.raises(SessionLocked):
        await PostgresStorage.open(pool, "s1")
    await storage.commit(numbered_commit(0))
    await storage.close()


async def test_an_owner_learns_of_its_loss_without_writing(pool: PostgresPool, caplog: pytest.LogCaptureFixture) -> None:
    """The heartbeat notices too, and says so once."""
    storage = await PostgresStorage.open(pool, "s1", lease_life=0.3, heartbeat=0.1)
    await pool.fetch("UPDATE sessions SET fence = fence + 1, owner = NULL")
    await asyncio.sleep(1)
    assert caplog.text.count("can no longer write") == 1
    await storage.close()


@pytest.mark.parametrize(("life", "heartbeat"), [(10, 10), (10, 11), (10, 0), (10, -1), (0, 0)])
async def test_a_heartbeat_must_be_shorter_than_the_lease(pool: PostgresPool, life: float, heartbeat: float) -> None:
    """S-26: or the lease would be lost between two beats."""
    with pytest.raises(ValueError, match="heartbeat"):
        await PostgresStorage.open(pool, "s1", lease_life=life, heartbeat=heartbeat)


async def test_a_session_that_was_deleted_cannot_be_written(pool: PostgresPool) -> None:
    """The row that holds the lease is gone."""
    storage = await PostgresStorage.open(pool, "s1")
    await pool.fetch("DELETE FROM sessions")
    with pytest.raises(LeaseLost, match="was deleted"):
        await storage.commit(numbered_commit(0))
    await storage.close()


async def test_a_storage_that_nobody_closed_warns_and_lets_its_lease_run_out(pool: PostgresPool) -> None:
    """It must not renew for ever what nobody can use any more."""
    storage = await PostgresStorage.open(pool, "s1", lease_life=0.4, heartbeat=0.1)
    with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031 - the collector finds it
        del storage
        gc.collect()
    successor = await PostgresStorage.open(pool, "s1", wait=20)
    await successor.close()


async def test_an_open_that_is_cancelled_leaves_the_session_free(postgres_dsn: str, schema: str) -> None:
    """The server may give the lease to a caller who has gone; it is given back, not left to run out."""
    async with asyncio.timeout(60), proxy_to(postgres_dsn) as (proxy, line):
        pool = await PostgresPool.open(line, schema=schema)
        await (await PostgresStorage.open(pool, "s1")).close()
        proxy.holding.clear()
        opening = asyncio.create_task(PostgresStorage.open(pool, "s1", create=False))
        await asyncio.sleep(0.2)
        opening.cancel()
        proxy.holding.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        successor = await PostgresStorage.open(pool, "s1")
        assert await fence(pool) > 2, "the lease had been given"
        await successor.commit([SetValue("n", "k", 1)])
        await successor.close()
        await pool.close()


async def test_of_two_processes_that_open_at_once_one_wins(postgres_dsn: str, schema: str) -> None:
    """B81: a hundred races for new sessions; never two owners, never none, and the loser is told who won."""
    async with child("race", "postgres", postgres_dsn, schema, "-") as a, child("race", "postgres", postgres_dsn, schema, "-") as b:
        for i in range(RACES):
            a.tell(f"s{i}")
            b.tell(f"s{i}")
            said = [await a.line(), await b.line()]
            winner = 0 if said[0] == "owner" else 1
            assert said[winner] == "owner"
            assert said[1 - winner].startswith("SessionLocked"), said
            a.tell("close")
            b.tell("close")
        for racer in (a, b):
            racer.tell()
            await racer.ends()


async def test_of_two_processes_that_replace_a_dead_owner_one_wins(pool: PostgresPool, postgres_dsn: str, schema: str) -> None:
    """B81: both see that the owner is dead; the fence lets one of them have it."""
    sessions = [await PostgresStorage.open(pool, f"s{i}") for i in range(20)]
    await pool.fetch("""UPDATE sessions SET owner = jsonb_set(owner::jsonb, '{started}', '"1"')::text""")
    async with child("race", "postgres", postgres_dsn, schema, "-") as a, child("race", "postgres", postgres_dsn, schema, "-") as b:
        for i in range(20):
            a.tell(f"s{i}")
            b.tell(f"s{i}")
            said = sorted([await a.line(), await b.line()])
            assert said[0].startswith("SessionLocked"), said
            assert said[1] == "owner"
            a.tell("close")
            b.tell("close")
        for racer in (a, b):
            racer.tell()
            await racer.ends()
    for session in sessions:
        with pytest.raises(LeaseLost):
            await session.commit(numbered_commit(0))
        await session.close()


async def test_a_kill_at_any_moment_leaves_exactly_the_acknowledged_commits(pool: PostgresPool, postgres_dsn: str, schema: str) -> None:
    """K: a process killed between or inside commits has committed what it was told, and at most the one that was under way."""
    moments = random.Random(7)
    async with child("nursery", "append", "postgres", postgres_dsn, schema, "-") as nursery:
        for i in range(KILLS):
            session = f"s{i // 20}"
            last = await appended_until_killed(nursery, session, moments.uniform(0, 0.02))
            storage = await PostgresStorage.open(pool, session, create=False)
            found = await committed_by_child(storage)
            await storage.close()
            assert found in (last + 1, last + 2)
