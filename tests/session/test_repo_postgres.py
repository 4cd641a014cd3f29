"""What only a repository that many programs share can meet: sessions of others, and sessions that were never finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest

from laneway.errors import SessionExists, SessionLocked, SessionNotFound
from laneway.session import PostgresRepo
from laneway.session._session import SessionMetadata
from laneway.session.keys import SESSION_CREATING
from laneway.storage.base import SetValue, Write
from laneway.storage.postgres import PostgresStorage
from storage.child import numbered_commit
from storage.pg import PostgresForTests

_ENTRIES = "session_key = (SELECT session_key FROM {schema}.sessions WHERE session_id = 'other')"


@pytest.fixture
async def repo(postgres_dsn: str, schema: str) -> AsyncIterator[PostgresRepo]:
    """An empty repository."""
    async with PostgresRepo(postgres_dsn, schema=schema) as made:
        yield made


@pytest.mark.parametrize(
    ("damage", "listed"),
    [
        ("""UPDATE {schema}.entries SET payload = '{"message":{"role":"martian"}}' WHERE """ + _ENTRIES, ["mine", "other"]),
        ("""UPDATE {schema}.entries SET payload = '{"mess' WHERE """ + _ENTRIES, ["mine", "other"]),
        ("""UPDATE {schema}.cells SET value = '{"id":7}' WHERE namespace = 'session.metadata' AND """ + _ENTRIES, ["mine"]),
        ("""UPDATE {schema}.sessions SET stats = '{"mess' WHERE session_id = 'other'""", ["mine"]),
    ],
    ids=["a role that this program does not know", "a damaged entry", "damaged metadata", "damaged totals"],
)
async def test_a_session_that_cannot_be_read_does_not_hide_the_others(
    repo: PostgresRepo, postgres: PostgresForTests, schema: str, damage: str, listed: list[str]
):
    """S-24: its row is left out, or only its preview if no more is wrong."""
    for id in ("other", "mine"):
        async with await repo.create(id=id) as session:
            await session.append_message("hello")
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(damage.replace("{schema}", schema).encode())
    assert [info.id for info in await repo.list()] == listed


@pytest.mark.parametrize("cut_off_after", [0, 1, 2])
async def test_a_session_whose_creation_was_cut_off_is_none(repo: PostgresRepo, cut_off_after: int):
    """S-24, B87: a process was killed while it made one; nothing lists, opens, reads or forks it, and its id is free."""
    left = await PostgresStorage.open(await repo.pool(), "s")
    for writes in ([SetValue(SESSION_CREATING, "", True)], numbered_commit(0))[:cut_off_after]:
        await left.commit(writes)
    await left.close()
    assert await repo.list() == []
    assert not await repo.exists("s")
    if cut_off_after:
        with pytest.raises(SessionNotFound, match="not been finished"):
            await repo.open("s")
        with pytest.raises(SessionNotFound):
            await repo.fork("s", new_id="t")
    async with await repo.create(id="s") as session:
        assert await session.find_entries() == []
    assert [info.id for info in await repo.list()] == ["s"]
    assert await repo.exists("s")


async def test_an_id_that_another_process_is_making_a_session_of_is_taken(repo: PostgresRepo, postgres_dsn: str, schema: str):
    """F-09: the first one wins, also before it is done; what it makes is not disturbed."""
    half_way, go_on = asyncio.Event(), asyncio.Event()

    async def commits() -> AsyncIterator[Sequence[Write]]:
        yield numbered_commit(0)
        half_way.set()
        await go_on.wait()
        yield numbered_commit(1)
        yield numbered_commit(2)

    making = asyncio.create_task(repo.build(SessionMetadata(id="s", created_at=1), commits()))
    await half_way.wait()
    async with PostgresRepo(postgres_dsn, schema=schema) as other:
        with pytest.raises(SessionExists, match="being created"):
            await other.create(id="s")
        with pytest.raises(SessionLocked):
            await other.open("s")
        go_on.set()
        async with await making as session:
            assert (await session.get_stats()).message_count == 3
