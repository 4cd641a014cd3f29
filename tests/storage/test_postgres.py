"""The Postgres store: one database for many sessions, its queries, its upkeep, and how it hears of commits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from laneway.errors import MissingExtra, SessionExists, SessionNotFound, StorageClosed, StorageCorruption, StorageError, StorageVersionError
from laneway.storage import _postgres_migrate
from laneway.storage._postgres_branch import MAX_COPIED
from laneway.storage.base import BranchScan, CompactionEntry, CustomEntry, EntryScan, InsertEntry, InsertUsage, SetValue, UsageRow, UsageScan, Write
from laneway.storage.postgres import PostgresPool, PostgresStorage
from laneway.testing._storage_rows import entry, everything, tokens
from storage.child import numbered_commit
from storage.children import committed_by_child
from storage.pg import postgres, postgres_dsn, schema

__all__ = ["postgres", "postgres_dsn", "schema"]

TABLES = ("sessions", "entries", "usage_rows", "cells", "list_elements", "segments", "segment_rows")


@pytest.fixture
async def pool(postgres_dsn: str, schema: str) -> AsyncIterator[PostgresPool]:
    """Connections to an empty schema of the test's own."""
    pool = await PostgresPool.open(postgres_dsn, schema=schema)
    yield pool
    await pool.close()


@pytest.fixture
async def storage(pool: PostgresPool) -> AsyncIterator[PostgresStorage]:
    """A new session in it."""
    storage = await PostgresStorage.open(pool, "s1")
    yield storage
    await storage.close()


def compaction(id: str, parent_id: str | None) -> Write:
    """The write of a compaction."""
    return InsertEntry(CompactionEntry(id=id, parent_id=parent_id, summary="so far"))


async def grow(storage: PostgresStorage, first: int, last: int, parent: str | None) -> None:
    """Append entries e<first> to e<last - 1> after `parent`, many per commit."""
    for start in range(first, last, 500):
        ids = [parent, *(f"e{i}" for i in range(start, min(start + 500, last)))]
        await storage.commit([entry(str(id), before) for before, id in itertools.pairwise(ids)])
        parent = ids[-1]


# ---------------------------------------------------------------------------------------------------- many sessions


async def test_sessions_do_not_see_each_other(pool: PostgresPool, storage: PostgresStorage) -> None:
    """The same ids and addresses in two sessions are different things."""
    other = await PostgresStorage.open(pool, "s2")
    await storage.commit([entry("a"), SetValue("n", "k", 1), InsertUsage(UsageRow(id="u", usage=tokens(1)))])
    assert (await everything(other)).entries == []
    assert (await other.commit([entry("a"), SetValue("n", "k", 2), InsertUsage(UsageRow(id="u", usage=tokens(2)))])).first_seq == 1
    assert (await storage.get_stats()).usage.input == 1
    with pytest.raises(StorageCorruption):
        await storage.commit([entry("b", "nobody")])
    await other.close()


async def test_many_sessions_share_few_connections(postgres_dsn: str, schema: str, postgres: Any) -> None:
    """Forty sessions commit at once over a pool of two connections."""
    async with contextlib.AsyncExitStack() as stack:
        pool = await PostgresPool.open(f"{postgres_dsn}&application_name={schema}", schema=schema, max_size=2)
        stack.push_async_callback(pool.close)
        sessions = [await PostgresStorage.open(pool, f"s{i}") for i in range(40)]
        for session in sessions:
            stack.push_async_callback(session.close)
        await asyncio.gather(*(session.commit(numbered_commit(i)) for session in sessions for i in range(3)))
        assert [await committed_by_child(session) for session in sessions] == [3] * 40
        with psycopg.connect(postgres.dsn) as connection:
            count = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (schema,)).fetchone()
        assert count is not None
        assert count[0] <= 2


async def test_opening_can_create_refuse_to_create_and_insist_on_creating(pool: PostgresPool) -> None:
    """S-24: `create=False` makes nothing, `exclusive` takes nothing that is there."""
    with pytest.raises(SessionNotFound, match="'s1'"):
        await PostgresStorage.open(pool, "s1", create=False)
    with pytest.raises(SessionNotFound, match="'s1'"):
        await PostgresStorage.open(pool, "s1", read_only=True)
    await (await PostgresStorage.open(pool, "s1", exclusive=True)).close()
    with pytest.raises(SessionExists, match="'s1'"):
        await PostgresStorage.open(pool, "s1", exclusive=True)
    with pytest.raises(ValueError, match="id"):
        await PostgresStorage.open(pool, "a\0b")


async def test_a_read_only_session_follows_its_writer(pool: PostgresPool, storage: PostgresStorage) -> None:
    """It takes no lease, writes nothing, and each read shows what is committed by then."""
    reader = await PostgresStorage.open(pool, "s1", read_only=True)
    for i in range(3):
        await storage.commit(numbered_commit(i))
        assert await committed_by_child(reader) == i + 1
    for write in (reader.commit([]), reader.repair(), reader.erase()):
        with pytest.raises(StorageError, match="read_only"):
            await write
    await reader.close()


async def test_a_session_is_erased_whole(pool: PostgresPool, storage: PostgresStorage) -> None:
    """Nothing of it stays in any table, nothing of another goes, and its id may be used anew."""
    other = await PostgresStorage.open(pool, "s2")
    for session in (storage, other):
        await session.commit([*numbered_commit(0), InsertUsage(UsageRow(id="u", usage=tokens(1)))])
    await storage.erase()
    with pytest.raises(StorageClosed):
        await storage.get_stats()
    for table in TABLES:
        assert len(await pool.fetch(f"SELECT session_key FROM {table}")) == 1, table
    assert await committed_by_child(other) == 1
    again = await PostgresStorage.open(pool, "s1", exclusive=True)
    assert await committed_by_child(again) == 0
    await again.close()
    await other.close()


async def test_a_storage_has_its_own_pool_when_given_a_connection_string(postgres_dsn: str, schema: str) -> None:
    """`PostgresStorage.open(dsn, id)` is all that one session needs; `repr` says what it is."""
    storage = await PostgresStorage.open(postgres_dsn, "s1", schema=schema)
    assert repr(storage) == f"<PostgresStorage 's1' in {schema!r}>"
    await storage.commit(numbered_commit(0))
    await storage.close()
    assert repr(storage).endswith(", closed>")
    with pytest.raises(StorageClosed):
        await storage.pool.fetch("SELECT 1")


@pytest.mark.parametrize("setting", ["standard_conforming_strings = off", "client_encoding = 'SQL_ASCII'", "bytea_output = 'escape'"])
async def test_what_a_role_is_set_to_changes_no_byte(postgres_dsn: str, schema: str, setting: str) -> None:
    """Issue: a database that is kept compatible with an old program stores and returns what was given, as any other."""
    text = "\\x00 \\\\ ' \" \0 é漢"
    async with a_role_with(postgres_dsn, setting) as dsn:
        storage = await PostgresStorage.open(dsn, "s1", schema=schema)
        for i in range(8):  # the server prepares a statement that comes often
            await storage.commit([SetValue("n\\é", f"k{i}", {"t": text}), entry(f"e{i}")])
        assert [v.value for v in await storage.scan_values("n\\é")] == [{"t": text}] * 8
        assert list(await storage.get_entries([f"e{i}" for i in range(8)])) == [f"e{i}" for i in range(8)]
        await storage.close()


async def test_commits_and_renewals_wait_for_each_other_whatever_the_isolation(postgres_dsn: str, schema: str) -> None:
    """B82: a role whose transactions are "repeatable read" would have one of the two refused when they meet."""
    async with a_role_with(postgres_dsn, "default_transaction_isolation = 'repeatable read'") as dsn:
        pool = await PostgresPool.open(dsn, schema=schema)
        assert await pool.fetch("SHOW transaction_isolation") == [("read committed",)]
        seen: list[str] = []
        pool.renewals.post(lambda connection: seen.append(connection.execute("SHOW transaction_isolation").fetchall()[0][0]), "a look")
        await pool.close()
        assert seen == ["read committed"]


@contextlib.asynccontextmanager
async def a_role_with(dsn: str, setting: str) -> AsyncIterator[str]:
    """Make a role with a setting of its own; yield how to connect as it."""
    role = f"role_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER".encode())
        connection.execute(f"ALTER ROLE {role} SET {setting}".encode())
        yield psycopg.conninfo.make_conninfo(dsn, user=role)
        connection.execute(f"DROP OWNED BY {role} CASCADE".encode())
        connection.execute(f"DROP ROLE {role}".encode())


async def test_any_positive_limit_and_any_cursor_will_do(storage: PostgresStorage) -> None:
    """S-10, S-12: also one that is larger than what the server counts to."""
    await storage.commit([entry("a"), entry("b", "a")])
    huge = 2**70
    assert len(await storage.scan_branch(BranchScan(start="b", limit=huge))) == 2
    assert len(await storage.scan_branch(BranchScan(start="b", cursor=huge))) == 2
    assert await storage.scan_branch(BranchScan(start="b", cursor=huge, order="oldest_first")) == []
    assert len(await storage.scan_entries(EntryScan(limit=huge))) == 2
    assert await storage.scan_usage(UsageScan(limit=huge)) == []


async def test_entries_of_the_empty_custom_type_are_found(storage: PostgresStorage) -> None:
    """S-15: it is a type like any other."""
    await storage.commit([entry("a"), InsertEntry(CustomEntry(id="c", parent_id="a", custom_type=""))])
    assert [e.id for e in await storage.scan_entries(EntryScan(custom_type=""))] == ["c"]
    assert [e.id for e in await storage.scan_branch(BranchScan(start="c", custom_type=""))] == ["c"]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "é" * 32])
async def test_a_schema_name_that_the_server_would_refuse_or_cut_is_refused(postgres_dsn: str, name: str) -> None:
    """B88: under a cut name two schemas could be one."""
    with pytest.raises(ValueError, match="63 bytes"):
        await PostgresPool.open(postgres_dsn, schema=name)


async def test_a_schema_may_have_any_name(postgres_dsn: str) -> None:
    """The name is quoted wherever it is used."""
    name = 'odd "name", really; --'
    pool = await PostgresPool.open(postgres_dsn, schema=name)
    storage = await PostgresStorage.open(pool, "s1")
    await storage.commit(numbered_commit(0))
    assert await committed_by_child(storage) == 1
    await storage.close()
    await pool.fetch('DROP SCHEMA "odd ""name"", really; --" CASCADE')
    await pool.close()


# ---------------------------------------------------------------------------------------------------- cost


async def test_a_commit_is_one_round_trip(pool: PostgresPool, storage: PostgresStorage, tmp_path: Path) -> None:
    """One request and one answer, however many writes: counted on the wire."""
    await storage.commit(numbered_commit(0))
    with (tmp_path / "trace").open("wb") as trace:
        async with pool.connection() as connection:
            connection.pgconn.trace(trace.fileno())
        await storage.commit([*numbered_commit(1), InsertUsage(UsageRow(id="u", usage=tokens(1), entry_id="e1")), *numbered_commit(2)])
        async with pool.connection() as connection:
            connection.pgconn.untrace()
    wire = (tmp_path / "trace").read_text()
    assert wire.count("\tSync") == 1, wire
    assert wire.count("\tReadyForQuery") == 1, wire


async def test_a_fork_copies_only_what_follows_the_compaction(pool: PostgresPool, storage: PostgresStorage) -> None:
    """03: at depth 3,000 with 50 entries since the compaction, diverging writes at most those 50 and its own row."""
    await grow(storage, 0, 2950, None)
    await storage.commit([compaction("c", "e2949")])
    await grow(storage, 2950, 3000, "c")
    before = len(await pool.fetch("SELECT seq FROM segment_rows"))
    await storage.commit([entry("fork", "e2998")])
    rows = len(await pool.fetch("SELECT seq FROM segment_rows")) - before
    assert rows == 49 + 1
    path = [node.id for node in await storage.scan_branch_structure(BranchScan(start="fork"))]
    assert path == ["fork", *(f"e{i}" for i in range(2998, 2949, -1)), "c", *(f"e{i}" for i in range(2949, -1, -1))]
    context = await storage.scan_branch_structure(BranchScan(start="fork", stop_at_type="compaction"))
    assert len(context) == 51


async def test_a_fork_without_a_compaction_copies_nothing(pool: PostgresPool, storage: PostgresStorage) -> None:
    """What would be long to copy is referred to; forks of forks of forks still read as their true paths."""
    await grow(storage, 0, MAX_COPIED + 200, None)
    before = len(await pool.fetch("SELECT seq FROM segment_rows"))
    parent = f"e{MAX_COPIED + 100}"
    for i in range(5):
        await storage.commit([entry(f"f{i}", parent), entry(f"g{i}", f"f{i}")])
        parent = f"f{i}"
    assert len(await pool.fetch("SELECT seq FROM segment_rows")) - before == 10
    path = [node.id for node in await storage.scan_branch_structure(BranchScan(start="g4", limit=7))]
    assert path == ["g4", "f4", "f3", "f2", "f1", "f0", f"e{MAX_COPIED + 100}"]


async def _buffers(pool: PostgresPool, query: str) -> int:
    """How many pages a query touches."""
    plan = (await pool.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}"))[0][0][0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def test_reading_a_context_costs_what_is_in_it(pool: PostgresPool) -> None:
    """Promise 6: the pages touched do not grow with the history before the compaction, whether or not the server knows the tables' size."""
    touched: list[int] = []
    for history in (200, 4000):
        storage = await PostgresStorage.open(pool, f"history{history}")
        await grow(storage, 0, history, None)
        await storage.commit([compaction("c", f"e{history - 1}")])
        await grow(storage, history, history + 100, "c")
        [(key,)] = await pool.fetch("SELECT session_key FROM sessions WHERE session_id = %s", (f"history{history}",))
        tip = f"e{history + 99}"
        query = f"SELECT * FROM scan_branch({key}, '{tip}', 'compaction', NULL, NULL, NULL, false, NULL, NULL, true)"
        await pool.fetch(query)
        touched.append(await _buffers(pool, query))
        newest = f"SELECT * FROM scan_branch({key}, '{tip}', NULL, NULL, NULL, NULL, false, NULL, 5, true)"
        assert await _buffers(pool, newest) < 150
        await storage.close()
    assert touched[1] < touched[0] * 1.5 + 50, touched


@pytest.mark.parametrize(
    "query",
    [
        "SELECT payload FROM entries WHERE session_key = 1 AND id = ANY ('{a,b}')",
        "SELECT payload FROM entries WHERE session_key = 1 AND seq >= 5 AND type = 'custom' ORDER BY seq DESC LIMIT 5",
        "SELECT payload FROM usage_rows WHERE session_key = 1 AND seq >= 5 ORDER BY seq",
        "SELECT value FROM cells WHERE session_key = 1 AND namespace = 'n' AND key >= 'a' AND key < 'b' ORDER BY key",
        "SELECT value FROM list_elements WHERE session_key = 1 AND namespace = 'n' AND key = 'k' AND seq < 9 ORDER BY seq DESC LIMIT 5",
        "SELECT seq FROM segment_rows WHERE session_key = 1 AND segment = 1 AND seq > 0 AND seq <= 9 AND type = 'compaction' "
        "ORDER BY seq DESC LIMIT 1",
        "SELECT stats FROM sessions WHERE session_key = 1",
        "SELECT DISTINCT namespace, key FROM list_elements WHERE session_key = 1 ORDER BY namespace, key",
    ],
)
async def test_every_query_goes_through_an_index(pool: PostgresPool, query: str) -> None:
    """03: no scan of a table, no sorting; on tables that the server has never analysed."""
    plan = "\n".join(row[0] for row in await pool.fetch(f"EXPLAIN {query}"))
    assert "Seq Scan" not in plan, plan
    assert "Sort" not in plan, plan
    assert "Index" in plan


# ---------------------------------------------------------------------------------------------------- damage and upkeep


async def _key(pool: PostgresPool) -> int:
    return (await pool.fetch("SELECT session_key FROM sessions"))[0][0]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM segment_rows WHERE seq = 2",
        "DELETE FROM segment_rows WHERE seq = 1",
        "DELETE FROM segments",
        "UPDATE segments SET base_segment = 1, base_seq = 99",
        "UPDATE segments SET base_segment = segment, base_seq = 1 WHERE segment = 2",
        "UPDATE entries SET segment = 77",
        "INSERT INTO segment_rows SELECT session_key, 1, seq, 'message' FROM entries WHERE id = 'x'",
    ],
)
async def test_a_damaged_index_is_named_and_made_anew(pool: PostgresPool, storage: PostgresStorage, damage: str) -> None:
    """03: the index is a projection; a path that it breaks is never shown as if it were whole, and `repair()` restores it."""
    await storage.commit([entry("a"), entry("b", "a"), entry("c", "b"), entry("x", "b"), compaction("d", "c"), entry("y", "d"), entry("z", "d")])
    tips = ("c", "x", "y", "z")
    before = [await storage.scan_branch(BranchScan(start=tip)) for tip in tips]
    await pool.fetch(damage)
    answers = [await asyncio.gather(storage.scan_branch(BranchScan(start=tip)), return_exceptions=True) for tip in tips]
    assert any(isinstance(answer, StorageCorruption) and "repair()" in str(answer) for [answer] in answers)
    assert all(isinstance(answer, StorageCorruption) or answer == whole for [answer], whole in zip(answers, before, strict=True))
    await storage.repair()
    assert [await storage.scan_branch(BranchScan(start=tip)) for tip in tips] == before
    await storage.commit([entry("after", "x"), entry("after2", "b")])
    assert [node.id for node in await storage.scan_branch_structure(BranchScan(start="after"))] == ["after", "x", "b", "a"]


async def test_entries_that_are_no_tree_are_not_indexed(pool: PostgresPool, storage: PostgresStorage) -> None:
    """A missing parent is corruption, and the failed repair changes nothing."""
    await storage.commit([entry("a"), entry("b", "a"), entry("other")])
    await pool.fetch("DELETE FROM entries WHERE id = 'a'")
    with pytest.raises(StorageCorruption, match="'b'"):
        await storage.repair()
    assert len(await storage.scan_branch(BranchScan(start="other"))) == 1
    await storage.commit([entry("c", "other")])


@pytest.mark.parametrize(
    ("damage", "read"),
    [
        ("UPDATE entries SET payload = 'x'", lambda s: s.get_entries(["e0"])),
        ("UPDATE entries SET payload = '{}'", lambda s: s.scan_entries(EntryScan())),
        ("UPDATE entries SET type = 'telepathy'", lambda s: s.scan_entries(EntryScan())),
        ("UPDATE usage_rows SET payload = '[]'", lambda s: s.scan_usage(UsageScan())),
        ("UPDATE cells SET value = '{'", lambda s: s.get_value("branch.tip", "main")),
        ("UPDATE list_elements SET value = '\\xff'", lambda s: s.read_list("log", "main")),
        ("UPDATE sessions SET stats = 'x'", lambda s: s.get_stats()),
    ],
)
async def test_a_damaged_row_is_named(pool: PostgresPool, storage: PostgresStorage, damage: str, read: Any) -> None:
    """What cannot be decoded is `StorageCorruption`, never a wrong answer."""
    await storage.commit([*numbered_commit(0), InsertUsage(UsageRow(id="u", usage=tokens(1)))])
    await pool.fetch(damage)
    with pytest.raises(StorageCorruption):
        await read(storage)


@pytest.mark.parametrize("table", ["entries", "cells", "segment_rows"])
async def test_a_server_that_refuses_keeps_the_session_usable(pool: PostgresPool, storage: PostgresStorage, table: str) -> None:
    """A full disk in the middle of a commit: nothing of it is there, the error says so, and later commits work."""
    await storage.commit(numbered_commit(0))
    await pool.fetch(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full USING MESSAGE = 'no space left'; END $$"
    )
    await pool.fetch(f"CREATE TRIGGER full_disk BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION full_disk()")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"was not made.*no space left"):
            await storage.commit(numbered_commit(1))
    assert await committed_by_child(storage) == 1
    await pool.fetch(f"DROP TRIGGER full_disk ON {table}")
    assert (await storage.commit(numbered_commit(1))).first_seq == 4
    assert await committed_by_child(storage) == 2


# ---------------------------------------------------------------------------------------------------- migrations


async def test_tables_are_made_once_by_whoever_comes_first(postgres_dsn: str, schema: str) -> None:
    """B87: eight openers of an empty database at once; all work, and a later open changes nothing."""
    pools = await asyncio.gather(*(PostgresPool.open(postgres_dsn, schema=schema) for _ in range(8)))
    versions = [await pool.fetch("SELECT version FROM storage_version") for pool in pools]
    assert versions == [[(_postgres_migrate.migrations()[-1][0],)]] * 8
    for pool in pools:
        await pool.close()


@pytest.mark.parametrize("version", range(1, len(_postgres_migrate.migrations()) + 1))
async def test_tables_of_any_earlier_version_are_migrated(postgres: Any, schema: str, version: int) -> None:
    """B87: tables made by the first migrations alone are brought up to date in place, with what is in them."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"')
        connection.execute(f'SET search_path TO "{schema}"')
        for _, text in _postgres_migrate.migrations()[:version]:
            connection.execute(text.encode())
        connection.execute("UPDATE storage_version SET version = %s", (version,))
        connection.execute("INSERT INTO sessions (session_id, created_at, stats) VALUES ('old', 1, '{}')")
    pool = await PostgresPool.open(postgres.dsn, schema=schema)
    storage = await PostgresStorage.open(pool, "old", create=False)
    assert (await storage.commit(numbered_commit(0))).first_seq == 1
    assert await committed_by_child(storage) == 1
    await storage.close()
    await pool.close()


async def test_tables_of_a_newer_version_are_refused(postgres_dsn: str, pool: PostgresPool, schema: str) -> None:
    """B88: what a newer laneway made is not half understood."""
    await pool.fetch("UPDATE storage_version SET version = 99")
    with pytest.raises(StorageVersionError, match="version 99"):
        await PostgresPool.open(postgres_dsn, schema=schema)
    assert await pool.fetch("SELECT version FROM storage_version") == [(99,)]


async def test_tables_that_are_not_ours_are_left_alone(postgres: Any, schema: str) -> None:
    """A schema that holds another program's `entries` is refused whole: all or nothing."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"')
        connection.execute(f'CREATE TABLE "{schema}".entries (mine int)')
        with pytest.raises(StorageError, match="entries"):
            await PostgresPool.open(postgres.dsn, schema=schema)
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    assert tables == [("entries",)]


async def test_a_version_that_is_not_ours_is_refused(postgres: Any, schema: str) -> None:
    """B88: another program's `storage_version` is no number of ours."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.storage_version (version text)".encode())
        connection.execute(f"INSERT INTO {schema}.storage_version VALUES ('v2')".encode())
    with pytest.raises(StorageCorruption, match="not laneway's"):
        await PostgresPool.open(postgres.dsn, schema=schema)


async def test_migrations_are_numbered_without_a_gap() -> None:
    """A new one goes after the last."""
    numbers = [number for number, _ in _postgres_migrate.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


# ---------------------------------------------------------------------------------------------------- what is missing


async def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dependency is optional, and the error says how to get it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"laneway\[postgres\]"):
        await PostgresStorage.open("postgresql:///x", "s1")


async def test_a_server_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    """The first connection is tried once; the error says where, and not the secret."""
    with pytest.raises(StorageError, match="cannot connect to Postgres") as refused:
        await PostgresStorage.open(f"postgresql://me:hunter2@/x?host={tmp_path}", "s1")
    assert str(tmp_path) in str(refused.value)
    assert "hunter2" not in str(refused.value)


async def test_a_connection_string_that_is_none_is_refused() -> None:
    """As a storage error, not a driver's."""
    with pytest.raises(StorageError, match="connect"):
        await PostgresStorage.open("what is this", "s1")


# ---------------------------------------------------------------------------------------------------- hearing of commits


async def test_a_watcher_hears_of_commits(pool: PostgresPool, storage: PostgresStorage) -> None:
    """It gets the last seq at once, then again after every commit, those made between two looks included."""
    reader = await PostgresStorage.open(pool, "s1", read_only=True)
    await storage.commit(numbered_commit(0))
    async with asyncio.timeout(20), contextlib.aclosing(reader.watch()) as seqs:
        assert await anext(seqs) == 3
        for i in range(1, 4):
            result = await storage.commit(numbered_commit(i))
            assert await anext(seqs) == result.seqs[-1]
        last = [await storage.commit(numbered_commit(i)) for i in range(4, 9)][-1].seqs[-1]
        while await anext(seqs) < last:
            pass
    await reader.close()


async def test_watching_ends_with_the_storage(pool: PostgresPool, storage: PostgresStorage) -> None:
    """A closed storage, or a session that was erased, has nothing more to tell."""
    reader = await PostgresStorage.open(pool, "s1", read_only=True)
    async with asyncio.timeout(20):
        seqs = reader.watch()
        assert await anext(seqs) == 0
        await reader.close()
        assert [seq async for seq in seqs] == []


async def test_nobody_is_notified_when_nobody_watches(pool: PostgresPool, storage: PostgresStorage, postgres_dsn: str) -> None:
    """Notifying commits wait for one another across the whole database, so they do not notify for nothing."""
    with psycopg.connect(postgres_dsn, autocommit=True) as listener:
        listener.execute(f"LISTEN laneway_{await _key(pool)}")
        await storage.commit(numbered_commit(0))
        assert list(listener.notifies(timeout=0.2)) == []
        async with contextlib.aclosing(storage.watch()) as seqs:
            assert await anext(seqs) == 3
        await storage.commit(numbered_commit(1))
        assert [n.payload for n in listener.notifies(timeout=5, stop_after=1)] == [f"{pool.schema}/6"]


async def test_a_watcher_survives_a_restart(pool: PostgresPool, storage: PostgresStorage, postgres: Any) -> None:
    """The line is made anew and nothing is missed."""
    async with asyncio.timeout(60), contextlib.aclosing(storage.watch()) as seqs:
        assert await anext(seqs) == 0
        await asyncio.to_thread(postgres.restart)
        await storage.commit(numbered_commit(0))
        assert await anext(seqs) == 3
        await storage.commit(numbered_commit(1))
        assert await anext(seqs) == 6
