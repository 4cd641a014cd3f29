"""What becomes of a commit when the line to Postgres breaks in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from laneway.errors import CommitUnknown, LeaseLost, StorageClosed, StorageError
from laneway.storage.base import Content, EntryScan
from laneway.storage.postgres import PostgresPool, PostgresStorage
from storage.child import numbered_commit
from storage.children import committed_by_child
from storage.pg import PostgresForTests, postgres, postgres_dsn, schema
from storage.proxy import Fault, Proxy, proxy_to

__all__ = ["postgres", "postgres_dsn", "schema"]


@contextlib.asynccontextmanager
async def through_proxy(dsn: str, schema: str, reconnect_timeout: float) -> AsyncIterator[tuple[Proxy, PostgresStorage]]:
    """A session over a line that can be broken, with one commit made."""
    async with asyncio.timeout(60), proxy_to(dsn) as (proxy, line):
        pool = await PostgresPool.open(line, schema=schema, reconnect_timeout=reconnect_timeout)
        storage = await PostgresStorage.open(pool, "s1")
        await storage.commit(numbered_commit(0))
        yield proxy, storage
        await storage.close()
        await pool.close()


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("fault", ["lose_request", "lose_reply", "delay_request"])
async def test_a_commit_survives_a_broken_line(postgres_dsn: str, schema: str, fault: Fault, prepared: bool) -> None:
    """Issue: the caller learns that it happened, exactly once, whether it was lost on the way there, on the way back, or came late."""
    async with through_proxy(postgres_dsn, schema, 10) as (proxy, storage):
        done = 10 if prepared else 1
        for i in range(1, done):
            await storage.commit(numbered_commit(i))
        proxy.fault = fault
        result = await storage.commit(numbered_commit(done))
        assert proxy.struck.is_set()
        assert result.seqs == [3 * done + 1, 3 * done + 2, 3 * done + 3]
        assert result.stats.message_count == done + 1
        proxy.deliver.set()
        await asyncio.sleep(0.4)  # the late request has come by now, with a fence that is gone
        assert await committed_by_child(storage) == done + 1
        assert (await storage.commit(numbered_commit(done + 1))).first_seq == result.seqs[-1] + 1
        assert await committed_by_child(storage) == done + 2


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply"])
@pytest.mark.parametrize("then", ["read", "commit"])
async def test_a_commit_that_cannot_be_settled_is_unknown_and_read_back_later(postgres_dsn: str, schema: str, fault: Fault, then: str) -> None:
    """Issue: with the server out of reach the caller is told that it is not known; the next call finds out, and both truths are right."""
    async with through_proxy(postgres_dsn, schema, 0.3) as (proxy, storage):
        proxy.fault, proxy.refusing = fault, True
        with pytest.raises(CommitUnknown, match=r"not known.*next call"):
            await storage.commit(numbered_commit(1))
        for call in (storage.get_stats(), storage.commit(numbered_commit(1))):
            with pytest.raises(CommitUnknown):
                await call
        proxy.refusing = False
        happened = fault == "lose_reply"
        if then == "read":
            assert await committed_by_child(storage) == (2 if happened else 1)
        result = await storage.commit(numbered_commit(2 if happened else 1))
        assert result.first_seq == (7 if happened else 4)
        assert result.stats.message_count == (3 if happened else 2)
        assert await committed_by_child(storage) == (3 if happened else 2)


async def test_a_commit_that_was_never_sent_is_not_unknown(postgres_dsn: str, schema: str) -> None:
    """If no connection could be had to begin with, it certainly was not made."""
    async with through_proxy(postgres_dsn, schema, 0.3) as (proxy, storage):
        await storage.pool.drop_idle()
        proxy.refusing = True
        with pytest.raises(StorageError, match="was not made") as refused:
            await storage.commit(numbered_commit(1))
        assert not isinstance(refused.value, CommitUnknown)
        proxy.refusing = False
        await storage.commit(numbered_commit(1))
        assert await committed_by_child(storage) == 2


async def test_a_commit_lost_together_with_the_lease(postgres_dsn: str, schema: str) -> None:
    """Somebody took the session over while we could not reach it: nothing is sent again."""
    async with through_proxy(postgres_dsn, schema, 0.3) as (proxy, storage):
        proxy.fault, proxy.refusing = "lose_request", True
        with pytest.raises(CommitUnknown):
            await storage.commit(numbered_commit(1))
        direct = await PostgresPool.open(postgres_dsn, schema=schema)
        await direct.fetch("UPDATE sessions SET expires_at = clock_timestamp() - interval '1 s'")
        successor = await PostgresStorage.open(direct, "s1")
        proxy.refusing = False
        with pytest.raises(LeaseLost, match="taken over"):
            await storage.commit(numbered_commit(1))
        with pytest.raises(LeaseLost):
            await storage.commit(numbered_commit(1))
        assert await committed_by_child(storage) == 1
        await successor.commit(numbered_commit(1))
        assert await committed_by_child(successor) == 2
        await successor.close()
        await direct.close()


async def test_a_line_that_breaks_again_and_again(postgres_dsn: str, schema: str) -> None:
    """A commit that never gets through is given up, not sent for ever."""
    async with through_proxy(postgres_dsn, schema, 10) as (proxy, storage):
        striking = asyncio.create_task(_strike(proxy))
        with pytest.raises(StorageError, match="broke 3 times"):
            await storage.commit(numbered_commit(1))
        striking.cancel()
        await asyncio.wait([striking])
        proxy.fault = None
        await storage.commit(numbered_commit(1))
        assert await committed_by_child(storage) == 2


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply"])
@pytest.mark.parametrize("upkeep", ["repair", "rewrite"])
async def test_upkeep_survives_a_line_that_breaks_at_its_end(postgres_dsn: str, schema: str, upkeep: str, fault: Fault) -> None:
    """Issue: whether the server has made it or not, it is made once more on a new line, and what follows is numbered on."""
    async with through_proxy(postgres_dsn, schema, 10) as (proxy, storage):
        await storage.commit(numbered_commit(1))
        proxy.strikes, proxy.fault = b"COMMIT", fault
        await (storage.repair() if upkeep == "repair" else storage.rewrite(await content_of(storage)))
        assert proxy.struck.is_set()
        assert (await storage.commit(numbered_commit(2))).first_seq == 7
        assert await committed_by_child(storage) == 3


@pytest.mark.parametrize("upkeep", ["repair", "rewrite"])
async def test_upkeep_that_cannot_be_settled_is_unknown_and_read_back_later(postgres_dsn: str, schema: str, upkeep: str) -> None:
    """Issue: the server goes away for good at the end of it; the next call finds out how far the session has come."""
    async with through_proxy(postgres_dsn, schema, 0.3) as (proxy, storage):
        content = await content_of(storage)
        proxy.strikes, proxy.fault, proxy.refusing = b"COMMIT", "lose_reply", True
        with pytest.raises(CommitUnknown):
            await (storage.repair() if upkeep == "repair" else storage.rewrite(content))
        proxy.refusing = False
        assert (await storage.commit(numbered_commit(1))).first_seq == 4
        assert await committed_by_child(storage) == 2


async def content_of(storage: PostgresStorage) -> Content:
    """Everything that a session holds, as a rewrite takes it."""
    values = await storage.read_values()
    return Content(entries=await storage.scan_entries(EntryScan()), usage=[], cells=values.cells, lists=values.lists)


@pytest.mark.parametrize("what", ["commit", "read", "repair", "rewrite"])
async def test_connections_that_the_server_has_ended_cost_nothing(postgres_dsn: str, schema: str, what: str) -> None:
    """Issue: an administrator, or a limit on idle connections, has cut them all; whatever is asked for next is done on a new one."""
    storage = await PostgresStorage.open(postgres_dsn, "s1", schema=schema)
    await storage.commit(numbered_commit(0))
    content = await content_of(storage)
    with psycopg.connect(postgres_dsn, autocommit=True) as administrator:
        administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'laneway'")
    match what:
        case "commit":
            await storage.commit([])
        case "read":
            await storage.get_stats()
        case "repair":
            await storage.repair()
        case _:
            await storage.rewrite(content)
    await storage.commit(numbered_commit(1))
    assert await committed_by_child(storage) == 2
    await storage.close()


async def test_a_line_that_breaks_before_it_is_ready(postgres_dsn: str, schema: str) -> None:
    """Issue: the server goes away between the greeting and the first statement; that is a lost connection like any other."""
    async with through_proxy(postgres_dsn, schema, 10) as (proxy, storage):
        proxy.strikes = b"set_config"
        for call in (storage.get_stats, lambda: storage.commit(numbered_commit(1))):
            await storage.pool.drop_idle()
            proxy.struck.clear()
            proxy.fault = "lose_request"
            await call()
            assert proxy.struck.is_set()
        proxy.fault = "lose_request"
        with pytest.raises(StorageError, match="lost"):
            await storage.pool.connect()
        assert await committed_by_child(storage) == 2


async def test_a_renewal_that_comes_after_the_close_is_no_loss(postgres_dsn: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """S-26: a heartbeat was on its way when the lease was given back; nobody is told that the session was taken over."""
    pool = await PostgresPool.open(postgres_dsn, schema=schema)
    told: list[LeaseLost] = []
    for end in ("close", "erase"):
        storage = await PostgresStorage.open(pool, "s1")
        storage.on_lost(told.append)
        await (storage.close() if end == "close" else storage.erase())
        assert storage._writer is not None
        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            storage._writer.lease._renew(connection)  # what the thread of the renewals does
    assert told == []
    assert "no longer write" not in caplog.text
    await pool.close()


async def _strike(proxy: Proxy) -> None:
    while True:
        proxy.fault = "lose_request"
        await proxy.struck.wait()
        proxy.struck.clear()


async def test_a_cancelled_commit_is_made_all_the_same(postgres_dsn: str, schema: str) -> None:
    """Decision 18: cancelling the caller ends its wait only; the storage is usable, and closing waits for what was begun."""
    async with through_proxy(postgres_dsn, schema, 10) as (proxy, storage):
        proxy.holding.clear()
        commits = [asyncio.create_task(storage.commit(numbered_commit(i))) for i in (1, 2)]
        await asyncio.sleep(0.1)
        commits[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await commits[0]
        proxy.holding.set()
        assert (await commits[1]).first_seq == 7
        assert await committed_by_child(storage) == 3
        proxy.holding.clear()
        last = asyncio.create_task(storage.commit(numbered_commit(3)))
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(storage.close())
        await asyncio.sleep(0.1)
        with pytest.raises(StorageClosed):
            await storage.commit([])
        assert not closing.done()
        proxy.holding.set()
        assert (await last).first_seq == 10
        await closing


async def test_a_cancelled_read_harms_nothing(postgres_dsn: str, schema: str) -> None:
    """Its connection is cleaned or replaced."""
    async with through_proxy(postgres_dsn, schema, 10) as (proxy, storage):
        for _ in range(3):
            proxy.holding.clear()
            read = asyncio.create_task(storage.scan_values("branch.tip"))
            await asyncio.sleep(0.05)
            read.cancel()
            proxy.holding.set()
            with pytest.raises(asyncio.CancelledError):
                await read
            assert await committed_by_child(storage) == 1
        await storage.commit(numbered_commit(1))


async def test_a_statement_that_the_server_cancels(postgres: Any, schema: str) -> None:
    """An administrator cancels a commit that waits for a lock: it was not made, the error says so, the next one works."""
    pool = await PostgresPool.open(postgres.dsn, schema=schema)
    storage = await PostgresStorage.open(pool, "s1")
    with psycopg.connect(postgres.dsn) as blocker:
        blocker.execute(f'SELECT * FROM "{schema}".sessions FOR UPDATE')
        commit = asyncio.create_task(storage.commit(numbered_commit(0)))
        await asyncio.sleep(0.3)
        blocker.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT commit_writes%' AND state = 'active'")
        with pytest.raises(StorageError, match="was not made"):
            await commit
    await storage.commit(numbered_commit(0))
    assert await committed_by_child(storage) == 1
    await storage.close()
    await pool.close()


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_the_server_restarts_in_the_middle_of_commits(postgres: PostgresForTests, schema: str, mode: str) -> None:
    """Issue: crashed or stopped politely, the server comes back with exactly what was acknowledged, and commits go on by themselves."""
    async with asyncio.timeout(120):
        pool = await PostgresPool.open(postgres.dsn, schema=schema, reconnect_timeout=60)
        storage = await PostgresStorage.open(pool, "s1")
        done = asyncio.Event()

        async def write() -> int:
            i = 0
            while not done.is_set():
                await storage.commit(numbered_commit(i))
                i += 1
            return i

        async def read() -> None:
            while not done.is_set():
                await storage.get_value("branch.tip", "main")

        writing, reading = asyncio.create_task(write()), asyncio.create_task(read())
        for _ in range(2):
            await asyncio.sleep(0.2)
            await asyncio.to_thread(postgres.restart, mode)
        await asyncio.sleep(0.2)
        done.set()
        count = await writing
        await reading
        assert await committed_by_child(storage) == count
        await storage.close()
        again = await PostgresStorage.open(pool, "s1")
        assert await committed_by_child(again) == count
        await again.close()
        await pool.close()


async def test_closing_without_a_server(postgres: PostgresForTests, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """Close does not hang or fail: the lease runs out by itself, and a warning says so."""
    pool = await PostgresPool.open(postgres.dsn, schema=schema)
    storage = await PostgresStorage.open(pool, "s1")
    await asyncio.to_thread(postgres.stop)
    try:
        async with asyncio.timeout(20):
            await storage.close()
            await pool.close()
    finally:
        await asyncio.to_thread(postgres.start)
    assert "will run out by itself" in caplog.text
