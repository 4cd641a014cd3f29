"""What can go wrong with a SQLite session's file: each is named, nothing is half written, a refused file stays as it was."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from disks import make_read_only, mounted, needs_root
from laneway.errors import SessionExists, SessionNotFound, StorageCorruption, StorageError, StorageVersionError
from laneway.messages import Usage, UserMessage
from laneway.storage import _sqlite_file
from laneway.storage._sqlite_file import APPLICATION_ID, migrations
from laneway.storage.base import AppendList, BranchScan, CustomEntry, InsertEntry, InsertUsage, MessageEntry, SetValue, Storage, UsageRow, UsageScan
from laneway.storage.sqlite import SqliteStorage
from laneway.testing._storage_rows import Content, entry, everything
from storage.child import numbered_commit
from storage.children import committed_by_child

FLIPS = 120


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's session is."""
    return tmp_path / "s.sqlite"


@contextlib.asynccontextmanager
async def opened(path: Path, **options: object) -> AsyncIterator[SqliteStorage]:
    """Open a session for a block."""
    storage = await SqliteStorage.open(path, **options)  # type: ignore[arg-type]  # options are checked by the callee
    try:
        yield storage
    finally:
        await storage.close()


def content_of(path: Path) -> bytes:
    """Return a file's bytes."""
    return path.read_bytes()


def put(path: Path, content: bytes) -> None:
    """Make a file of these bytes."""
    path.write_bytes(content)


async def write_some(storage: Storage) -> None:
    """Fill a session with rows of every kind."""
    for i in range(12):
        message = UserMessage(content=f"message {i} " + "x" * 50 * i, timestamp=1)
        await storage.commit(
            [
                InsertEntry(MessageEntry(id=f"e{i}", parent_id=f"e{i - 1}" if i % 5 else None, message=message)),
                InsertUsage(UsageRow(id=f"u{i}", usage=Usage(input=i), entry_id=f"e{i}")),
                SetValue("n", f"k{i}", {"value": i}),
                AppendList("l", "k", i),
            ]
        )
    await storage.commit([InsertEntry(CustomEntry(id="side", parent_id="e2", custom_type="note", data=[1])), InsertEntry(
        CustomEntry(id="side2", parent_id="side", custom_type="note"))])  # fmt: skip


# ---------------------------------------------------------------------------------------------------- opening


async def test_what_is_not_there_is_made_only_when_asked(path: Path) -> None:
    """S-25: `create=False` and `read_only=True` never make a file; `exclusive` never opens one that is there."""
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(SessionNotFound, match=r"s\.sqlite"):
            await SqliteStorage.open(path, **options)
        assert os.listdir(path.parent) == []
    async with opened(path, exclusive=True) as storage:
        await storage.commit(numbered_commit(0))
        assert repr(storage) == f"<SqliteStorage {path} at seq 3>"
    before = content_of(path)
    with pytest.raises(SessionExists):
        await SqliteStorage.open(path, exclusive=True)
    assert content_of(path) == before
    assert os.listdir(path.parent) == ["s.sqlite"]
    async with opened(path) as storage:
        assert await committed_by_child(storage) == 1


async def test_a_session_without_its_directory_is_an_error(tmp_path: Path) -> None:
    """S-24: the text says where; nothing is made."""
    with pytest.raises(StorageError, match="missing"):
        await SqliteStorage.open(tmp_path / "missing" / "s.sqlite")
    assert os.listdir(tmp_path) == []
    with pytest.raises(StorageError):
        await SqliteStorage.open(tmp_path)


async def test_names_of_files_are_taken_as_they_are(tmp_path: Path) -> None:
    """S-25: what means something in a URI means nothing here."""
    for name in ("a b?mode=memory", "100%41", "c#d", "é\n", ":memory:"):
        async with opened(tmp_path / name) as storage:
            await storage.commit(numbered_commit(0))
    assert sorted(os.listdir(tmp_path)) == sorted(["a b?mode=memory", "100%41", "c#d", "é\n", ":memory:"])


@pytest.mark.parametrize("content", [b"", b"hello", b"{}\n" * 500, b"SQLite format 3\0", b"SQLite format 3\0" + bytes(5_000), os.urandom(9_000)])
async def test_a_file_that_is_not_ours_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    """B88: also an empty one; the text says so; the file is the same afterwards."""
    put(path, content)
    for options in ({}, {"create": False}, {"read_only": True}):
        with pytest.raises(StorageCorruption, match="not a laneway session"):
            await SqliteStorage.open(path, **options)
    assert content_of(path) == content
    assert os.listdir(path.parent) == ["s.sqlite"]


async def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    """B88: it is a SQLite file, and not ours."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE entries (seq)")
    connection.close()
    before = content_of(path)
    with pytest.raises(StorageCorruption, match="another program"):
        await SqliteStorage.open(path)
    assert content_of(path) == before
    assert os.listdir(path.parent) == ["s.sqlite"]


async def test_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    """B88: to write and to read; the text says what to do; the same when the version is still in the log only."""
    async with opened(path) as storage:
        await write_some(storage)
    newer = len(migrations()) + 1
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {newer}")
    connection.close()
    before = content_of(path)
    for options in ({}, {"read_only": True}):
        with pytest.raises(StorageVersionError, match=f"version {newer}.*upgrade laneway"):
            await SqliteStorage.open(path, **options)
    assert content_of(path) == before
    assert os.listdir(path.parent) == ["s.sqlite"]


async def test_a_newer_version_in_the_log_is_refused(path: Path) -> None:
    """B88: a newer laneway was killed after it had brought the file up to date."""
    async with opened(path) as storage:
        await write_some(storage)
    connection = sqlite3.connect(path)
    try:
        connection.execute(f"PRAGMA user_version = {len(migrations()) + 1}")
        for options in ({}, {"read_only": True}):
            with pytest.raises(StorageVersionError):
                await SqliteStorage.open(path, **options)
    finally:
        connection.close()


async def test_opening_and_reading_leave_nothing_beside_the_file(path: Path) -> None:
    """S-25: the log and its index are gone when nobody has the session open."""
    async with opened(path) as storage:
        await write_some(storage)
        assert path.with_name("s.sqlite-wal").exists()
    async with opened(path, read_only=True) as storage:
        assert (await everything(storage)).stats.message_count == 12
        with pytest.raises(StorageError, match="read_only"):
            await storage.commit([])
        with pytest.raises(StorageError, match="read_only"):
            await storage.repair()
        assert "read-only" in repr(storage)
    async with opened(path) as storage:
        assert await storage.verify() == []
    assert os.listdir(path.parent) == ["s.sqlite"]


# ---------------------------------------------------------------------------------------------------- migrations

ADDED = "-- The next version; with a semicolon in a comment;\nCREATE TABLE added (x);\nINSERT INTO added VALUES ('a;b');\n"


async def test_an_older_file_is_brought_up_to_date_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B87: in place, with its content; the second open has nothing to do; a reader does not do it."""
    async with opened(path) as storage:
        await write_some(storage)
        before = await everything(storage)
    _add_migration(monkeypatch, ADDED)
    with pytest.raises(StorageError, match="older storage version"):
        await SqliteStorage.open(path, read_only=True)
    for _ in range(2):
        async with opened(path) as storage:
            assert await everything(storage) == before
            assert await storage.verify() == []
    assert _rows(path, "SELECT x FROM added") == [("a;b",)]
    assert _rows(path, "PRAGMA user_version") == [(len(migrations()) + 1,)]
    async with opened(path.with_name("new.sqlite")) as storage:
        assert await storage.verify() == []


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B87: old or new, never half: the version, the tables and the lease are as they were."""
    async with opened(path) as storage:
        await write_some(storage)
    before = _rows(path, "SELECT * FROM sqlite_master"), _rows(path, "SELECT * FROM state")
    with monkeypatch.context() as patch:
        _add_migration(patch, ADDED + "INSERT INTO missing VALUES (1);\n")
        with pytest.raises(StorageError):
            await SqliteStorage.open(path)
    assert (_rows(path, "SELECT * FROM sqlite_master"), _rows(path, "SELECT * FROM state")) == before
    async with opened(path) as storage:
        assert await storage.verify() == []


async def test_a_session_that_somebody_owns_is_not_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B87: migrations run under the lease."""
    async with opened(path):
        before = _rows(path, "SELECT owner FROM state")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE state SET owner = ?, expires_at = ?", ('{"host":"h","machine":"m","pid":1,"started":"1"}', 2**60))
    connection.commit()
    connection.close()
    assert before != []
    _add_migration(monkeypatch, ADDED)
    with pytest.raises(StorageError, match="process 1 on h"):
        await SqliteStorage.open(path)
    assert _rows(path, "PRAGMA user_version") == [(len(migrations()),)] or _rows(path, "SELECT name FROM sqlite_master WHERE name = 'added'") == []


def _add_migration(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    scripts = (*migrations(), script)
    for module in ("laneway.storage._sqlite_file.migrations", "laneway.storage._sqlite_session.migrations"):
        monkeypatch.setattr(module, lambda: scripts)
    monkeypatch.setattr(_sqlite_file, "_empty", [])


def _rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------------------- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk of one megabyte."""
    with mounted(tmp_path / "disk", "1m") as where:
        yield where


def fill(ballast: Path) -> None:
    """Take all that is left of a disk."""
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes(4096))


@needs_root
async def test_a_full_disk_refuses_a_commit_whole(small_disk: Path) -> None:
    """S-02: the text says that the disk is full; what was committed is there; with some space it goes on."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    storage = await SqliteStorage.open(small_disk / "s.sqlite")
    done = 0
    with pytest.raises(StorageError, match=r"disk is full.*s\.sqlite"):  # noqa: PT012 - one of many commits is the one
        for i in range(10_000):
            await storage.commit(numbered_commit(i))
            done = i + 1
    assert await committed_by_child(storage) == done
    ballast.unlink()
    for i in range(done, done + 3):
        await storage.commit(numbered_commit(i))
    await storage.close()
    async with opened(small_disk / "s.sqlite") as storage:
        assert await committed_by_child(storage) == done + 3
        assert await storage.verify() == []


@needs_root
async def test_a_full_disk_makes_no_half_session(small_disk: Path) -> None:
    """S-24: a session that cannot be made leaves no file."""
    fill(small_disk / "ballast")
    with pytest.raises(StorageError, match=r"s\.sqlite"):
        await SqliteStorage.open(small_disk / "s.sqlite")
    assert os.listdir(small_disk) == ["ballast"]


@needs_root
async def test_a_read_only_directory_can_be_read_and_says_why_it_cannot_be_written(small_disk: Path) -> None:
    """S-24: opening to write is refused by name, opening to read works, the file is untouched."""
    path = small_disk / "s.sqlite"
    async with opened(path) as storage:
        await write_some(storage)
        before = await everything(storage)
    content = content_of(path)
    make_read_only(small_disk)
    with pytest.raises(StorageError, match=r"s\.sqlite"):
        await SqliteStorage.open(path)
    with pytest.raises(StorageError, match=r"new\.sqlite"):
        await SqliteStorage.open(small_disk / "new.sqlite")
    async with opened(path, read_only=True) as storage:
        assert await everything(storage) == before
    assert content_of(path) == content
    assert os.listdir(small_disk) == ["s.sqlite"]


# ---------------------------------------------------------------------------------------------------- damage


async def test_a_truncated_file_is_named(path: Path) -> None:
    """A file cut at any place is refused when it is opened, or what is lost is named; what was left is untouched by the refusal."""
    async with opened(path) as storage:
        await write_some(storage)
    whole = content_of(path)
    for length in [*range(0, 200, 13), *range(200, len(whole), 1777), len(whole) - 1]:
        put(path, whole[:length])
        with pytest.raises(StorageCorruption, match=r"s\.sqlite"):
            await SqliteStorage.open(path)
        assert content_of(path) == whole[:length]
        assert os.listdir(path.parent) == ["s.sqlite"]


async def test_a_flipped_bit_is_harmless_or_named(path: Path) -> None:
    """Wherever a bit flips, what is read is what was written, or `StorageCorruption`; what a read cannot know, `verify` does."""
    async with opened(path) as storage:
        await write_some(storage)
        before = await _all(storage)
    whole = content_of(path)
    places = random.Random(3)
    found = harmless = 0
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        damaged[places.randrange(len(whole))] ^= 1 << places.randrange(8)
        put(path, damaged)
        try:
            async with opened(path) as storage:
                problems = await storage.verify()
                same = await _all(storage) == before
            assert same or problems
            harmless += same
            found += not same
        except StorageCorruption:
            found += 1
        for name in os.listdir(path.parent):
            (path.parent / name).unlink()
    assert found > FLIPS / 20
    assert harmless > 0


async def _all(storage: Storage) -> tuple[Content, object]:
    paths = [[e.id for e in await storage.scan_branch(BranchScan(start=tip))] for tip in ("e11", "e4", "side2")]
    return (await everything(storage)), (paths, await storage.get_entries([f"e{i}" for i in range(12)]))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET payload = substr(payload, 1, 20) WHERE seq = 9",
        "UPDATE entries SET payload = replace(payload, 'message 2', 'message 3') WHERE seq = 9",
        "UPDATE entries SET payload = 5 WHERE seq = 9",
        "UPDATE entries SET parent = 1 WHERE seq = 9",
        "UPDATE entries SET parent = 40 WHERE seq = 9",
        "UPDATE entries SET parent = 9 WHERE seq = 9",
        "UPDATE entries SET timestamp = timestamp + 1 WHERE seq = 9",
        "UPDATE entries SET type = 7 WHERE seq = 9",
        "UPDATE entries SET type = 1 WHERE seq = 9",
        "UPDATE entries SET type = 'x' WHERE seq = 9",
        "UPDATE entries SET custom_type = 'x' WHERE seq = 9",
        "UPDATE entries SET id = 'other' WHERE seq = 9",
        "UPDATE entries SET checksum = 0 WHERE seq = 9",
        "UPDATE entries SET checksum = NULL WHERE seq = 9",
        "DELETE FROM entries WHERE seq = 9",
        "DELETE FROM entries WHERE seq = 13",
        "DROP TABLE entries",
    ],
)
async def test_a_damaged_entry_is_never_taken_for_a_good_one(path: Path, damage: str) -> None:
    """S-12: a missing parent, a cycle, a changed column, a row that is gone: a read that meets it says so."""
    async with opened(path) as storage:
        await write_some(storage)
    connection = sqlite3.connect(path)
    with contextlib.suppress(sqlite3.IntegrityError), connection:
        connection.execute(damage.replace("checksum = NULL", "checksum = 'x'"))
    connection.close()
    async with opened(path) as storage:
        with pytest.raises(StorageCorruption):
            await everything(storage)
        with pytest.raises(StorageCorruption):
            await storage.scan_branch(BranchScan(start="e3"))
        if "payload" not in damage:
            with pytest.raises(StorageCorruption):
                await storage.scan_branch_structure(BranchScan(start="e3"))
        if "DROP" not in damage:
            assert await storage.verify() != []


@pytest.mark.parametrize(
    ("damage", "read"),
    [
        ("UPDATE cells SET value = '{}'", "get_value"),
        ("UPDATE cells SET value = x'7b7d'", "get_value"),
        ("UPDATE cells SET seq = seq + 1", "get_value"),
        ("UPDATE elements SET value = x'30' WHERE seq > 6", "read_list"),
        ("UPDATE elements SET checksum = checksum + 1", "read_list"),
        ("UPDATE usage_rows SET payload = x'7b7d' WHERE seq = 2", "scan_usage"),
        ("UPDATE usage_rows SET entry_id = 'e2' WHERE seq = 2", "scan_usage"),
        ("DELETE FROM usage_rows WHERE seq = 2", "scan_usage"),
        ("UPDATE state SET stats = x'7b7d'", "get_stats"),
        ("UPDATE state SET entry_count = 3", "get_stats"),
    ],
)
async def test_damaged_values_lists_and_ledger_rows_are_named(path: Path, damage: str, read: str) -> None:
    """S-16: each row has a checksum over all of it."""
    async with opened(path) as storage:
        await write_some(storage)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(damage)
    connection.close()
    with pytest.raises(StorageCorruption):  # noqa: PT012 - the damage of the state's row is found when it is opened
        async with opened(path) as storage:
            assert await storage.verify() != []
            if read == "get_value":
                await storage.get_value("n", "k3")
            elif read == "read_list":
                await storage.read_list("l", "k")
            elif read == "scan_usage":
                await storage.scan_usage(UsageScan())
            else:
                await storage.get_stats()


async def test_a_changed_position_is_no_place_to_go_on_from(path: Path) -> None:
    """S-25: something else than laneway moved the session on; the commit is refused rather than numbered twice."""
    async with opened(path) as storage:
        await storage.commit(numbered_commit(0))
        connection = sqlite3.connect(path)
        with connection:
            connection.execute("UPDATE state SET next_seq = next_seq + 1")
        connection.close()
        with pytest.raises(StorageCorruption, match="something else"):
            await storage.commit(numbered_commit(1))
        assert len(await storage.read_list("log", "main")) == 1


# ---------------------------------------------------------------------------------------------------- other programs


async def test_another_program_that_holds_the_file_is_waited_for_off_the_event_loop(path: Path) -> None:
    """B83: a transaction of two seconds delays the commit and not the loop."""
    async with opened(path) as storage:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        commit = asyncio.create_task(storage.commit(numbered_commit(0)))
        longest = 0.0
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)
        assert not commit.done()
        other.execute("ROLLBACK")
        other.close()
        await commit
        assert longest < 1.0  # a generous guard: were the loop blocked it would be two seconds


async def test_a_commit_whose_caller_is_cancelled_is_done_all_the_same(path: Path) -> None:
    """S-17: and the next one builds on it."""
    async with opened(path) as storage:
        for i in range(0, 40, 2):
            commit = asyncio.create_task(storage.commit(numbered_commit(i)))
            await asyncio.sleep(0)
            commit.cancel()
            await asyncio.wait([commit])
            await storage.commit(numbered_commit(i + 1))
        assert await committed_by_child(storage) == 40


async def test_commits_that_were_asked_for_before_a_close_are_done(path: Path) -> None:
    """S-18: a close waits for them; two closes at once wait for the same."""
    storage = await SqliteStorage.open(path)
    commits = [asyncio.create_task(storage.commit(numbered_commit(i))) for i in range(30)]
    await asyncio.sleep(0)
    await asyncio.gather(storage.close(), storage.close())
    assert all(commit.done() and commit.exception() is None for commit in commits)
    async with opened(path) as storage:
        assert await committed_by_child(storage) == 30


async def test_power_means_that_every_commit_reaches_the_disk(path: Path, tmp_path: Path) -> None:
    """S-25: SQLite is told to sync the log at every commit, or only when it is moved into the file."""
    for durability, level in (("process", 1), ("power", 2)):
        async with opened(tmp_path / durability, durability=durability) as storage:
            await storage.commit(numbered_commit(0))
            assert storage._session._cursor.execute("PRAGMA synchronous").fetchone() == (level,)
    with pytest.raises(ValueError, match="durability"):
        await SqliteStorage.open(path, durability="forever")  # type: ignore[arg-type]  # what an untyped caller may do


async def test_the_log_does_not_grow_for_ever(path: Path) -> None:
    """B94: it is moved into the file beside the commits."""
    async with opened(path) as storage:
        for i in range(2_500):
            await storage.commit(numbered_commit(i))
        assert len(content_of(path)) > 1_000_000
        assert len(content_of(path.with_name("s.sqlite-wal"))) < 40_000_000
        assert await committed_by_child(storage) == 2_500


async def test_it_marks_its_files(path: Path) -> None:
    """B88: with an application id of its own, and its storage version."""
    async with opened(path):
        pass
    header = content_of(path)[:100]
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID
    assert int.from_bytes(header[60:64], "big") == len(migrations())


async def test_a_session_needs_no_other_folder_than_its_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-24: in a container whose only writable folder is the one with the sessions, they can be made, and nothing else stays there."""
    monkeypatch.setattr(_sqlite_file, "_empty", [])
    monkeypatch.setattr(tempfile, "tempdir", str(path.parent / "no such folder"))
    await (await SqliteStorage.open(path)).close()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


async def test_any_positive_limit_will_do(path: Path) -> None:
    """S-10, S-12: also one that is larger than what SQLite counts to; it is not taken for damage."""
    storage = await SqliteStorage.open(path)
    await storage.commit([entry("a"), entry("b", "a")])
    for order in ("newest_first", "oldest_first"):
        assert len(await storage.scan_branch(BranchScan(start="b", limit=2**70, order=order))) == 2
    await storage.close()


_HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux says what a process has open")
async def test_a_refused_opening_leaves_nothing_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-24: also when a statement of it failed; or nobody could remove its log, or unmount its disk, while somebody keeps the error."""
    await (await SqliteStorage.open(path)).close()
    monkeypatch.setattr(_sqlite_file, "BUSY_TIMEOUT", 0.01)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdin=pipe, stdout=pipe) as other:  # noqa: ASYNC220 - nothing else runs here
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match="locked by another program") as refused:
            await SqliteStorage.open(path)
        left = [name for fd in os.listdir("/proc/self/fd") if str(path) in (name := _opened_as(fd))]
        assert left == [], refused.value
        other.communicate(b"")


def _opened_as(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # it was for the listing itself
        return ""
