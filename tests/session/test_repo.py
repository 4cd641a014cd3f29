"""The life of a session in a repository, on every backend."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import InvalidName, SessionExists, SessionLocked, SessionNotFound, StorageClosed, StorageError
from laneway.messages import Cost, Usage
from laneway.session import JsonlRepo, MemoryRepo, SessionRepo, SqliteRepo
from laneway.session._repo_files import CATALOGUE, FolderRepo
from laneway.storage.base import CommitResult, InsertUsage, UsageRow, Write


@pytest.fixture(params=[JsonlRepo, SqliteRepo])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> FolderRepo:
    """A repository in a folder that does not exist yet, of both kinds."""
    return request.param(tmp_path / "deep" / "sessions")


def files(repo: FolderRepo) -> list[str]:
    """What is in the folder, but for the catalogue and what SQLite's readers leave beside a file."""
    return sorted(p.name for p in repo.directory.iterdir() if p.name != CATALOGUE and not p.name.endswith(("-wal", "-shm")))


async def test_a_session_is_created_opened_and_deleted(repo: SessionRepo):
    """S-24: no implicit branch; a second handle is refused until the first is closed; a deleted session is gone."""
    session = await repo.create(id="s")
    assert await session.branches() == {}
    with pytest.raises(SessionExists):
        await repo.create(id="s")
    with pytest.raises(SessionLocked):
        await repo.open("s")
    with pytest.raises(SessionLocked):
        await repo.delete("s")
    tip = await session.append_message("hello")
    await session.close()
    with pytest.raises(StorageClosed):
        await session.get_name()
    async with await repo.open("s") as again:
        assert again is not session
        assert await again.branches() == {"main": tip}
    with pytest.raises(SessionExists):
        await repo.create(id="s")
    await repo.delete("s")
    for gone in (repo.open("s"), repo.delete("s"), repo.fork("s")):
        with pytest.raises(SessionNotFound):
            await gone
    assert await repo.list() == []
    await (await repo.create(id="s")).close()


async def test_ids_are_given_or_checked(repo: SessionRepo):
    """Without an id a session gets a UUIDv7; one that could leave the folder is refused."""
    async with await repo.create() as session:
        assert len(session.metadata.id) == 36
    for bad in ("", "../x", "a/b", ".hidden", "x\0", "a" * 200, "-", "x.", "ü"):
        with pytest.raises(InvalidName):
            await repo.create(id=bad)
        with pytest.raises(SessionNotFound):
            await repo.open(bad)
        with pytest.raises((SessionNotFound, InvalidName)):
            await repo.delete(bad)


async def test_an_unknown_session_is_not_created_by_opening_it(repo: SessionRepo):
    """B96: a failed open says so and leaves nothing."""
    with pytest.raises(SessionNotFound, match="nope"):
        await repo.open("nope")
    with pytest.raises(SessionNotFound):
        async with repo.reading("nope"):
            pass
    assert await repo.list() == []


async def test_a_list_shows_what_a_person_recognises(repo: SessionRepo):
    """Name, first words, counts, cost, parent; last changed first; filters and a limit."""
    async with await repo.create(id="a", cwd="/one") as a:
        await a.append_message("  fix the\nparser  ")
        await a.set_name("work")
        await a.mutate(lambda m: m.commit([InsertUsage(UsageRow(id="u", usage=Usage(total_tokens=12, cost=Cost(total=0.5))))]))
    await asyncio.sleep(0.005)
    await (await repo.create(id="b", cwd="/two", parent_session_id="a")).close()
    b, a_info = await repo.list()
    assert (a_info.id, a_info.name, a_info.preview, a_info.cwd) == ("a", "work", "fix the parser", "/one")
    assert (a_info.message_count, a_info.total_tokens, a_info.cost) == (1, 12, 0.5)
    assert a_info.created_at <= a_info.updated_at <= b.updated_at
    assert (b.id, b.name, b.preview, b.parent_session_id) == ("b", None, "", "a")
    assert [i.id for i in await repo.list(cwd="/one")] == ["a"]
    assert [i.id for i in await repo.list(parent_session_id="a")] == ["b"]
    assert [i.id for i in await repo.list(limit=1)] == ["b"]


async def test_a_list_is_true_while_a_session_is_open(repo: SessionRepo):
    """What an open session has committed is shown, without disturbing it."""
    async with await repo.create(id="s") as session:
        await session.append_message("first")
        assert (await repo.list())[0].message_count == 1
        await session.append_message("second")
        await session.set_name("n")
        info = (await repo.list())[0]
        assert (info.message_count, info.name, info.preview) == (2, "n", "first")
        await session.append_message("third")
    assert (await repo.list())[0].message_count == 3


async def test_anybody_may_read_a_session_that_somebody_has_open(repo: SessionRepo):
    """Reading takes no lease."""
    async with await repo.create(id="s") as session:
        await session.append_message("hello")
        async with repo.reading("s") as storage:
            view = await repo.view("s", storage)
            assert view.metadata == session.metadata
            assert len(await view.find_entries()) == 1
        await session.append_message("goes on")
    async with repo.reading("s") as storage:
        assert len(await (await repo.view("s", storage)).find_entries()) == 2


async def test_closing_a_repository_closes_its_sessions():
    """What nobody closed is closed with the repository."""
    repo = MemoryRepo()
    session = await repo.create()
    await repo.close()
    assert session.closed


async def test_opening_waits_for_the_owner(folder: FolderRepo):
    """`wait` seconds are given to another owner to finish."""
    first = await folder.create(id="s")
    other = type(folder)(folder.directory)
    with pytest.raises(SessionLocked):
        await other.open("s")
    waiting = asyncio.create_task(other.open("s", wait=10))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await first.close()
    async with asyncio.timeout(8):
        await (await waiting).close()
    with pytest.raises(SessionNotFound):
        await other.open("nope", wait=0.1)


async def test_a_creation_that_fails_leaves_no_file_and_frees_the_id(folder: FolderRepo, monkeypatch: pytest.MonkeyPatch):
    """S-24: a full disk during create, import or fork leaves the folder as it was."""
    async with await folder.create(id="source") as source:
        await source.append_message("hello")
    before = files(folder)
    real = folder._open_file  # pyright: ignore[reportPrivateUsage] - where the disk is

    async def full(path: Path, **options: Any) -> Any:
        storage = await real(path, **options)

        async def commit(writes: Sequence[Write]) -> CommitResult:
            raise StorageError(os.strerror(errno.ENOSPC))

        if options.get("create"):
            monkeypatch.setattr(storage, "commit", commit)
        return storage

    monkeypatch.setattr(folder, "_open_file", full)
    for failing in (folder.create(id="s"), folder.fork("source", new_id="s")):
        with pytest.raises(StorageError, match="space"):
            await failing
    assert files(folder) == before
    monkeypatch.undo()
    await (await folder.create(id="s")).close()


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    """The error says which folder and why."""
    (tmp_path / "file").write_text("x")
    for kind in (JsonlRepo, SqliteRepo):
        repo = kind(tmp_path / "file" / "sessions")
        with pytest.raises(StorageError, match="file"):
            await repo.create()
        assert await kind(tmp_path / "nowhere").list() == []


async def test_a_list_skips_what_it_cannot_read(folder: FolderRepo, caplog: pytest.LogCaptureFixture):
    """S-24: a broken file is left out with a warning, kept as it is, and can be deleted."""
    async with await folder.create(id="good") as session:
        await session.append_message("hello")
    broken = folder.path("broken")
    broken.write_bytes(b"this is no session\n" * 100)
    (folder.directory / "notes.txt").write_text("not ours")
    assert [i.id for i in await folder.list()] == ["good"]
    assert "broken" in caplog.text
    assert broken.read_bytes() == b"this is no session\n" * 100
    await folder.delete("broken")
    assert not broken.exists()


async def test_a_session_file_without_a_row_is_found(folder: FolderRepo):
    """A crash between the file's creation and its row heals at the next list, and so does a lost or damaged catalogue."""
    for id in ("a", "b"):
        async with await folder.create(id=id) as session:
            await session.append_message(id)
    before = await folder.list()
    catalogue = folder.directory / CATALOGUE
    with sqlite3.connect(catalogue) as db:
        db.execute("DELETE FROM sessions WHERE id = 'a'")
    db.close()
    assert await folder.list() == before
    catalogue.unlink()
    assert await folder.list() == before
    catalogue.write_bytes(b"garbage" * 1000)
    assert await folder.list() == before
    assert await folder.list() == before
    await folder.rebuild()
    assert await folder.list() == before
    folder.path("b").unlink()
    assert [i.id for i in await folder.list()] == ["a"]


async def test_a_list_opens_no_session_that_was_closed(folder: FolderRepo, monkeypatch: pytest.MonkeyPatch):
    """The catalogue is enough; only new, open and crashed sessions are looked at."""
    for i in range(5):
        await (await folder.create(id=f"s{i}")).close()
    opened: list[Path] = []
    real = folder._open_file  # pyright: ignore[reportPrivateUsage] - counts the openings

    async def counting(path: Path, **options: Any) -> Any:
        opened.append(path)
        return await real(path, **options)

    monkeypatch.setattr(folder, "_open_file", counting)
    assert len(await folder.list()) == 5
    assert opened == []


async def test_the_leftovers_of_old_crashed_creations_are_swept(folder: FolderRepo):
    """A half-made session is never shown; a day later its file goes."""
    await (await folder.create(id="s")).close()
    old = folder.directory / f".x.{'0' * 8}.tmp{folder.suffix}"
    new = folder.directory / f".y.{'0' * 8}.tmp{folder.suffix}"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, time.time() - 2 * 24 * 3600))
    assert [i.id for i in await folder.list()] == ["s"]
    assert not old.exists()
    assert new.exists()


KILLED = """
import asyncio, os, signal, sys
from laneway.session import JsonlRepo, SqliteRepo
async def main():
    repo = {kind}({directory!r})
    session = await repo.create(id="s")
    for i in range(20):
        await session.append_message(f"m{{i}}")
    await session.set_name("named before the kill")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def test_a_killed_owner_is_replaced_at_once_and_its_session_is_listed_truly(folder: FolderRepo):
    """After a SIGKILL the list shows what was committed, and the session can be opened without waiting."""
    program = textwrap.dedent(KILLED.format(kind=type(folder).__name__, directory=str(folder.directory)))
    process = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, timeout=60)
    assert process.returncode == -9, process.stderr.decode()
    info = (await folder.list())[0]
    assert (info.message_count, info.name, info.preview) == (20, "named before the kill", "m0")
    assert (await folder.list())[0] == info
    async with await folder.open("s") as session:
        await session.append_message("on")
    assert (await folder.list())[0].message_count == 21


async def test_what_a_waiting_opener_writes_is_listed(folder: FolderRepo):
    """S-24: the one before it says at its very end that the catalogue can be relied on; from then on it cannot, while somebody writes."""
    other = type(folder)(folder.directory)
    first = await folder.create(id="s")
    waiting = asyncio.create_task(other.open("s", wait=20))
    await asyncio.sleep(0.2)
    await first.append_message("one")
    await first.close()
    second = await waiting
    await second.append_message("two")
    assert [info.message_count for info in await folder.list()] == [2]
    await second.close()
    assert [info.message_count for info in await folder.list()] == [2]


async def test_a_session_is_deleted_while_it_is_owned(folder: FolderRepo, monkeypatch: pytest.MonkeyPatch):
    """S-24: or somebody who waits for it could open what is about to go, and write into nothing."""
    other = type(folder)(folder.directory)
    await (await folder.create(id="s")).close()
    refused: list[str] = []
    delete = folder._delete_file

    def looked_at(id: str) -> bool:
        with pytest.raises(SessionLocked) as locked:
            asyncio.run(closed_again(other, id))
        refused.append(str(locked.value))
        return delete(id)

    monkeypatch.setattr(folder, "_delete_file", looked_at)
    await folder.delete("s")
    assert len(refused) == 1
    assert files(folder) == []


async def closed_again(repo: SessionRepo, id: str) -> None:
    """Open a session and close it."""
    await (await repo.open(id)).close()


async def test_who_waits_for_a_session_that_is_deleted_gets_none(folder: FolderRepo):
    """S-24: not even one whose file is gone, whatever the moment."""
    other = type(folder)(folder.directory)
    for i in range(20):
        session = await folder.create(id=f"s{i}")
        waiting = asyncio.create_task(other.open(f"s{i}", wait=20))
        await asyncio.sleep(0.002 * i)
        await session.close()
        try:
            await folder.delete(f"s{i}")
            with pytest.raises(SessionNotFound):
                await waiting
        except SessionLocked:  # it was faster
            await (await waiting).close()


async def test_what_is_no_regular_file_is_left_out_of_the_list(folder: FolderRepo):
    """S-24: a pipe, a directory, a link to nowhere or to itself: none holds up the list, an opening or a deletion for ever."""
    await (await folder.create(id="s")).close()
    os.mkfifo(folder.path("pipe"))
    folder.path("folder").mkdir()
    folder.path("nowhere").symlink_to(folder.directory / "none")
    folder.path("itself").symlink_to(folder.path("itself"))
    async with asyncio.timeout(20):
        assert [info.id for info in await folder.list()] == ["s"]
        for id in ("pipe", "folder", "nowhere", "itself"):
            with pytest.raises(StorageError):
                await folder.open(id)
        with pytest.raises(StorageError):
            await folder.delete("folder")
        await folder.delete("pipe")


async def test_a_catalogue_without_its_table_is_made_anew(folder: FolderRepo):
    """S-24: whatever is wrong with it, it is never the truth."""
    await (await folder.create(id="s")).close()
    connection = sqlite3.connect(folder.directory / CATALOGUE)
    connection.execute("DROP TABLE sessions")
    connection.close()
    assert [info.id for info in await folder.list()] == ["s"]
    connection = sqlite3.connect(folder.directory / CATALOGUE)
    assert connection.execute("SELECT id FROM sessions").fetchall() == [("s",)]
    connection.close()


async def test_a_session_that_cannot_be_closed_keeps_no_other_open(folder: FolderRepo, monkeypatch: pytest.MonkeyPatch):
    """S-25: closing the repository tries all, and then says what failed."""
    one, two = await folder.create(id="one"), await folder.create(id="two")

    async def failing() -> None:
        raise StorageError("the disk is gone")

    close, one.storage.close = one.storage.close, failing
    with pytest.raises(StorageError, match="the disk is gone"):
        await folder.close()
    assert two.closed
    await (await folder.open("two")).close()
    await close()
