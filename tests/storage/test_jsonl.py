"""The JSONL store: its text, torn tails, damaged files, and failures of the disk."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import SessionExists, SessionNotFound, StorageClosed, StorageCorruption, StorageError, StorageVersionError
from laneway.storage.base import AppendList, DeleteList, DeleteValue, InsertUsage, SetValue, UsageRow, Write
from laneway.storage.jsonl import JsonlStorage
from laneway.testing._storage_rows import everything, tokens
from storage.child import numbered_commit
from storage.children import committed_by_child

HEADER = b'{"format":"laneway-session","version":1,"created_at":1}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's session is."""
    return tmp_path / "s.jsonl"


async def write(path: Path, *commits: list[Write]) -> None:
    """Commit to a session and close it."""
    storage = await JsonlStorage.open(path)
    for writes in commits:
        await storage.commit(writes)
    await storage.close()


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Let the system refuse to make files larger: what fits is written, the rest fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---------------------------------------------------------------------------------------------------- the text


async def test_a_person_can_read_it(path: Path) -> None:
    """One line of JSON per commit: an object for one write, an array for several, after a line that says what the file is."""
    storage = await JsonlStorage.open(path, session_id="s1", metadata={"title": "a"})
    await storage.commit([*numbered_commit(0)[:2], InsertUsage(UsageRow(id="u", usage=tokens(2), entry_id="e0")), DeleteValue("n", "k")])
    await storage.commit([SetValue("n", "é", None)])
    await storage.close()
    header, several, one = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert header["format"] == "laneway-session"
    assert (header["version"], header["id"], header["metadata"]) == (1, "s1", {"title": "a"})
    assert [w["type"] for w in several] == ["message", "set", "usage", "delete"]
    assert [w["seq"] for w in several] == [1, 2, 3, 4]
    assert several[0]["payload"]["message"]["role"] == "user"
    assert one == {"type": "set", "seq": 5, "namespace": "n", "key": "é", "value": None}


async def test_its_repr_says_where_it_is(path: Path) -> None:
    """A person at a debugger sees the file, how far it is and whether it is closed."""
    storage = await JsonlStorage.open(path)
    assert repr(storage) == f"<JsonlStorage {path} at seq 0>"
    await storage.close()
    assert repr(storage).endswith(", closed>")


async def test_closing_leaves_only_the_file(path: Path) -> None:
    """No lock file, no temporary file."""
    await write(path, numbered_commit(0))
    assert os.listdir(path.parent) == ["s.jsonl"]


async def test_an_empty_commit_writes_no_line(path: Path) -> None:
    """A commit without writes changes no byte."""
    await write(path, numbered_commit(0))
    before = path.read_bytes()
    await write(path, [])
    assert path.read_bytes() == before


async def test_bytes_per_commit_do_not_grow(path: Path) -> None:
    """B94: a commit appends its own line and rewrites nothing."""
    storage = await JsonlStorage.open(path)
    sizes = [path.stat().st_size]
    for i in range(200):
        await storage.commit([AppendList("l", "k", "x" * 100), InsertUsage(UsageRow(id=f"u{i:03}", usage=tokens(1)))])
        sizes.append(path.stat().st_size)
    await storage.close()
    growth = [b - a for a, b in itertools.pairwise(sizes)]
    assert growth[-1] - growth[0] == 2 * len("40")  # the two seqs have grown from one digit to three


async def test_opening_can_create_refuse_to_create_and_insist_on_creating(path: Path) -> None:
    """S-24, S-25: `create=False` never makes a file, `exclusive` never takes one that is there."""
    with pytest.raises(SessionNotFound, match=r"s\.jsonl"):
        await JsonlStorage.open(path, create=False)
    with pytest.raises(SessionNotFound):
        await JsonlStorage.open(path, read_only=True)
    assert os.listdir(path.parent) == []
    await (await JsonlStorage.open(path, exclusive=True)).close()
    with pytest.raises(SessionExists, match=r"s\.jsonl"):
        await JsonlStorage.open(path, exclusive=True)
    assert os.listdir(path.parent) == ["s.jsonl"]


async def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    """A session opened through a symbolic link is compacted where it lies."""
    await write(path, [SetValue("n", "k", "x")])
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    storage = await JsonlStorage.open(link)
    await storage.compact()
    await storage.close()
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link.jsonl", "s.jsonl"]


# ---------------------------------------------------------------------------------------------------- torn tails


async def test_a_file_cut_at_any_byte_holds_the_commits_before_the_cut(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Issue: truncated at every byte offset, a session is the whole commits before it, goes on from there, or is refused by name."""
    await write(path, [SetValue("n", "k", "é"), AppendList("log", "main", 0)], [AppendList("log", "main", 1)], [DeleteList("log", "main")])
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    cut = path.with_name("cut.jsonl")
    for offset in range(len(whole)):
        cut.write_bytes(whole[:offset])
        if offset < ends[0]:
            with pytest.raises(StorageCorruption, match="not a laneway session"):
                await JsonlStorage.open(cut)
            assert cut.read_bytes() == whole[:offset]
            continue
        caplog.clear()
        reader = await JsonlStorage.open(cut, read_only=True)
        content = await everything(reader, ["n", "log"], ["main"])
        await reader.close()
        assert cut.read_bytes() == whole[:offset], "a read-only open changes nothing"
        kept = max(end for end in ends if end <= offset)
        assert bool(caplog.records) == (offset > kept)
        writer = await JsonlStorage.open(cut)
        assert await everything(writer, ["n", "log"], ["main"]) == content
        assert cut.read_bytes() == whole[:offset], "opening changes nothing before the next write"
        await writer.commit([SetValue("n", "next", 1)])
        await writer.close()
        assert cut.read_bytes().startswith(whole[:kept])
        assert cut.read_bytes().count(b"\n") == ends.index(kept) + 2
        again = await JsonlStorage.open(cut)
        assert (await again.get_value("n", "next")) is not None
        await again.close()


async def test_a_last_line_without_its_newline_did_not_happen(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Section 16: even if all of its text is there; a warning says so, with the line and its byte."""
    await write(path, [SetValue("n", "k", "first")], [SetValue("n", "k", "second")])
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, "laneway.storage"):
        storage = await JsonlStorage.open(path)
    value = await storage.get_value("n", "k")
    await storage.close()
    assert value is not None
    assert value.value == "first"
    assert "line (3, byte" in caplog.text
    assert "did not happen" in caplog.text


async def test_a_last_line_with_a_lost_page_did_not_happen(path: Path) -> None:
    """A machine that died may leave NULs where the text was, and still the newline: JSON has no NULs, so the line is torn."""
    await write(path, [SetValue("n", "k", "first")])
    good = path.read_bytes()
    path.write_bytes(good + b'{"type":"set"\0\0\0\0\0\0}\n')
    await write(path, [SetValue("n", "k", "third")])
    assert path.read_bytes().startswith(good)
    assert path.read_bytes().count(b"\n") == 3
    assert b"\0" not in path.read_bytes()


async def test_a_whole_last_line_that_is_no_commit_is_corruption(path: Path) -> None:
    """Section 16: a line that has its newline was written whole; if it is no commit, somebody damaged it."""
    await write(path, numbered_commit(0))
    path.write_bytes(path.read_bytes() + b"xx\n")
    with pytest.raises(StorageCorruption, match="line 3"):
        await JsonlStorage.open(path)


# ---------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("damage", [b"\0" * 300, b"xx", b"", b"[]", b'{"type":"set"', b"7", b'"\xff\xfe"'])
async def test_a_bad_line_inside_is_named(path: Path, damage: bytes) -> None:
    """B90: never a silently shorter history: the error names the line and its byte offset, and the file stays as it is."""
    await write(path, *[numbered_commit(i) for i in range(9)])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = damage + b"\n"
    path.write_bytes(b"".join(lines))
    offset = len(b"".join(lines[:4]))
    for read_only in (True, False):
        with pytest.raises(StorageCorruption, match=rf"line 5 \(at byte {offset}\)"):
            await JsonlStorage.open(path, read_only=read_only)
    assert path.read_bytes() == b"".join(lines)
    assert os.listdir(path.parent) == ["s.jsonl"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"type": "telepathy", "seq": 9}, "telepathy"),
        ({"type": "set", "seq": 9, "namespace": "n", "key": "k", "value": 1, "colour": "red"}, "colour"),
        ({"type": "set", "seq": 3, "namespace": "n", "key": "k", "value": 1}, "seq 3"),
        ({"type": "set", "seq": "9", "namespace": "n", "key": "k", "value": 1}, "seq"),
        ({"type": "custom", "seq": 9, "id": "e0", "parent_id": None, "timestamp": 1, "custom_type": "x", "payload": {}}, "e0"),
        ({"type": "custom", "seq": 9, "id": "y", "parent_id": "nobody", "timestamp": 1, "custom_type": "x", "payload": {}}, "nobody"),
        ({"type": "custom", "seq": 9, "id": "y", "parent_id": "y", "timestamp": 1, "custom_type": "x", "payload": {}}, "y"),
        ({"type": "usage", "seq": 9, "id": "u", "entry_id": None, "timestamp": 1, "payload": {"usage": {"input": "many"}}}, "u"),
    ],
)
async def test_a_line_that_breaks_a_rule_of_the_store_is_corruption(path: Path, line: dict[str, Any], why: str) -> None:
    """An unknown type or field, a repeated seq or id, a missing or own parent: refused on opening, by name."""
    await write(path, numbered_commit(0), numbered_commit(1)[1:])
    before = path.read_bytes() + json.dumps(line).encode() + b"\n"
    path.write_bytes(before)
    with pytest.raises(StorageCorruption, match=rf"line 4 .*{why}"):
        await JsonlStorage.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 40,
        b"SQLite format 3\0" + b"\0" * 4000,
        b"hello, world\n",
        b"{}\n",
        b"[1]\n",
        b'{"type":"session","version":3,"id":"x"}\n',
        b'{"format":"laneway-session"}\n',
        b'{"format":"laneway-session","version":"1"}\n',
        b'{"format":"other","version":1}\n',
        b'{"format":"other","version":99}\n',
        HEADER[:-1],
        b" " * 100_000,
    ],
)
async def test_a_file_that_is_not_ours_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    """03: foreign, binary, empty or half a header: `StorageCorruption`, byte-identical afterwards, nothing beside it."""
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(StorageCorruption, match="not a laneway session"):
            await JsonlStorage.open(path, read_only=read_only)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["s.jsonl"]


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_newer_file_is_refused_and_left_alone(path: Path, read_only: bool) -> None:
    """B88: a version that we do not know is not half understood."""
    content = b'{"format":"laneway-session","version":2,"created_at":{"new":1}}\n{"type":"telepathy"}\n'
    path.write_bytes(content)
    with pytest.raises(StorageVersionError, match=r"version 2.*upgrade laneway"):
        await JsonlStorage.open(path, read_only=read_only)
    assert path.read_bytes() == content


async def test_what_is_no_file_is_refused(path: Path) -> None:
    """A folder or a pipe of that name is an error, not a hang."""
    path.mkdir()
    with pytest.raises(StorageError, match=r"s\.jsonl"):
        await JsonlStorage.open(path)
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    async with asyncio.timeout(5):
        for read_only in (False, True):
            with pytest.raises(StorageError, match="pipe"):
                await JsonlStorage.open(pipe, read_only=read_only)


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The store makes files, not folders."""
    with pytest.raises(StorageError, match="nowhere"):
        await JsonlStorage.open(tmp_path / "nowhere" / "s.jsonl")


@pytest.mark.parametrize(
    "meddle",
    [
        lambda path: path.write_bytes(path.read_bytes() + b"# note\n"),
        lambda path: os.truncate(path, 60),
        lambda path: path.unlink(),
        lambda path: (path.rename(path.with_name("moved")), path.write_bytes(path.with_name("moved").read_bytes())),
    ],
    ids=["appended", "truncated", "removed", "replaced"],
)
async def test_a_file_that_another_program_changed_is_not_written_to(path: Path, meddle: Callable[[Path], object]) -> None:
    """Nothing is written into or over what we do not know; what was read stays readable."""
    storage = await JsonlStorage.open(path)
    await storage.commit(numbered_commit(0))
    meddle(path)
    after = path.read_bytes() if path.exists() else None
    for _ in range(2):
        with pytest.raises(StorageCorruption, match="nothing was written"):
            await storage.commit(numbered_commit(1))
    with pytest.raises(StorageError):
        await storage.compact()
    assert (path.read_bytes() if path.exists() else None) == after
    assert list(await storage.get_entries(["e0", "e1"])) == ["e0"]
    await storage.close()


async def test_a_read_only_session_cannot_be_written(path: Path) -> None:
    """It takes no lock either: a writer may have it open."""
    writer = await JsonlStorage.open(path)
    await writer.commit(numbered_commit(0))
    reader = await JsonlStorage.open(path, read_only=True)
    assert await committed_by_child(reader) == 1
    with pytest.raises(StorageError, match="read_only"):
        await reader.commit(numbered_commit(1))
    with pytest.raises(StorageError, match="read_only"):
        await reader.compact()
    await reader.close()
    await writer.commit(numbered_commit(1))
    await writer.close()


# ---------------------------------------------------------------------------------------------------- a disk that fails


@pytest.mark.parametrize("room", [0, 1, 50, 150])
async def test_a_disk_that_is_full_in_the_middle_of_a_line(path: Path, room: int) -> None:
    """The part that was written is taken back and the error raised; when there is room again, commits go on."""
    storage = await JsonlStorage.open(path)
    await storage.commit(numbered_commit(0))
    before = path.read_bytes()
    with files_no_larger_than(len(before) + room):
        for _ in range(2):
            with pytest.raises(StorageError, match=r"cannot write to .*s\.jsonl.*was not made"):
                await storage.commit(numbered_commit(1))
            assert path.read_bytes() == before
    assert await committed_by_child(storage) == 1
    await storage.commit(numbered_commit(1))
    await storage.close()
    storage = await JsonlStorage.open(path)
    assert await committed_by_child(storage) == 2
    await storage.close()


async def test_a_disk_that_cannot_even_take_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If truncating fails too, a reader drops the torn line, and the next commit takes it back before it writes."""
    storage = await JsonlStorage.open(path)
    await storage.commit(numbered_commit(0))
    before = path.read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", _failing)
        with files_no_larger_than(len(before) + 40), pytest.raises(StorageError):
            await storage.commit(numbered_commit(1))
        assert len(path.read_bytes()) == len(before) + 40
        with pytest.raises(StorageError):
            await storage.commit(numbered_commit(1))
        reader = await JsonlStorage.open(path, read_only=True)
        assert await committed_by_child(reader) == 1
        await reader.close()
    await storage.commit(numbered_commit(1))
    assert await committed_by_child(storage) == 2
    await storage.close()
    assert path.read_bytes().startswith(before)


def _failing(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_durability_power_waits_for_the_medium(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit is flushed before it is acknowledged; one that cannot be did not happen."""
    flushed: list[int] = []
    flush = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: flushed.append(fd) or flush(fd))
    process = await JsonlStorage.open(path.with_name("process.jsonl"))
    power = await JsonlStorage.open(path, durability="power")
    flushed.clear()
    await process.commit(numbered_commit(0))
    assert not flushed
    await power.commit(numbered_commit(0))
    assert len(flushed) == 1
    before = path.read_bytes()
    monkeypatch.setattr(os, "fdatasync", _failing)
    with pytest.raises(StorageError, match="was not made"):
        await power.commit(numbered_commit(1))
    monkeypatch.undo()
    assert path.read_bytes() == before
    await power.commit(numbered_commit(1))
    assert await committed_by_child(power) == 2
    await power.close()
    await process.close()


async def test_an_unknown_durability_is_refused(path: Path) -> None:
    """A typing slip must not mean less safety."""
    with pytest.raises(ValueError, match="durability"):
        await JsonlStorage.open(path, durability="disk")  # type: ignore[arg-type] - the mistake under test


async def test_a_session_that_cannot_be_created_leaves_nothing(path: Path) -> None:
    """S-24: a full disk at creation leaves no half file, no lock, no temporary file."""
    with files_no_larger_than(10), pytest.raises(StorageError, match=r"s\.jsonl"):
        await JsonlStorage.open(path)
    assert os.listdir(path.parent) == []
    await write(path, numbered_commit(0))


# ---------------------------------------------------------------------------------------------------- the thread


async def test_writing_happens_off_the_event_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on while a disk takes its time; a caller who gives up stops waiting, and the commit is made all the same."""
    storage = await JsonlStorage.open(path)
    go_on, writing = threading.Event(), threading.Event()
    pwrite = os.pwrite

    def slow(*arguments: Any) -> int:
        writing.set()
        assert go_on.wait(10)
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", slow)
    first = asyncio.create_task(storage.commit(numbered_commit(0)))
    second = asyncio.create_task(storage.commit(numbered_commit(1)))
    async with asyncio.timeout(10):
        await asyncio.to_thread(writing.wait)
        assert await storage.get_entries(["e0"]) == {}, "nothing shows before it is in the file"
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        closing = asyncio.create_task(storage.close())
        await asyncio.sleep(0)
        with pytest.raises(StorageClosed):
            await storage.commit(numbered_commit(2))
        assert not closing.done(), "close waits for admitted commits"
        go_on.set()
        assert (await second).first_seq == 4
        await closing
    storage = await JsonlStorage.open(path)
    assert await committed_by_child(storage) == 2
    await storage.close()


async def test_an_open_that_is_cancelled_holds_no_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may have got the lock after its caller had gone."""
    await write(path, numbered_commit(0))
    go_on = threading.Event()
    real_open = os.open

    def slow(*arguments: Any) -> int:
        assert go_on.wait(10)
        return real_open(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", slow)
        opening = asyncio.create_task(JsonlStorage.open(path))
        await asyncio.sleep(0.05)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go_on.set()
    async with asyncio.timeout(10):
        storage = await JsonlStorage.open(path, wait=9)
    await storage.close()
