"""Compaction of a JSONL session: what is dead goes, what lives stays byte for byte, and a failure costs nothing."""

from __future__ import annotations

import itertools
import logging
import os
import stat
from pathlib import Path

import pytest

from laneway.errors import StorageError
from laneway.storage.base import AppendList, DeleteList, DeleteValue, InsertUsage, SetValue, Storage, UsageRow
from laneway.storage.jsonl import JsonlStorage
from laneway.testing._storage_rows import everything, tokens
from storage.child import numbered_commit

BIG = "x" * 20_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's session is."""
    return tmp_path / "s.jsonl"


async def content(storage: Storage) -> object:
    """All that the session holds."""
    return await everything(storage, ["n", "branch.tip", "log", "op.state"], ["main", "k"])


async def fill(storage: Storage) -> None:
    """Commits of every kind, some of them dead afterwards."""
    for i in range(5):
        await storage.commit([*numbered_commit(i), SetValue("op.state", "k", {"step": i})])
    await storage.commit([InsertUsage(UsageRow(id="u", usage=tokens(3))), SetValue("n", "gone", 1), AppendList("n", "k", "old")])
    await storage.commit([DeleteValue("n", "gone"), DeleteList("n", "k"), AppendList("n", "k", "new"), AppendList("n", "k", "newer")])
    await storage.commit([SetValue("n", "last", None), DeleteValue("n", "last")])


async def test_compaction_keeps_everything_but_the_dead(path: Path) -> None:
    """Entries, ledger, cells, lists, totals, seqs and times are as before, now and after reopening; numbering goes on."""
    storage = await JsonlStorage.open(path, session_id="s1", metadata=[1])
    await fill(storage)
    before, size = await content(storage), path.stat().st_size
    last = (await storage.commit([SetValue("n", "last", 1), DeleteValue("n", "last")])).seqs[-1]
    await storage.compact()
    assert path.stat().st_size < size
    assert b'"old"' not in path.read_bytes()
    assert await content(storage) == before
    await storage.commit([])
    await storage.close()
    storage = await JsonlStorage.open(path)
    assert await content(storage) == before
    assert (storage.header.id, storage.header.metadata) == ("s1", [1])
    assert (await storage.commit(numbered_commit(5))).first_seq == last + 1
    await storage.close()


async def test_compaction_copies_what_lives_byte_for_byte(path: Path) -> None:
    """B88: the lines that live are not written anew but copied; nothing in them can be lost on the way."""
    storage = await JsonlStorage.open(path)
    await storage.commit(numbered_commit(0)[:1])
    await storage.close()
    entry = path.read_bytes().splitlines()[1].replace(b'"payload":{', b'"payload" : { ')
    path.write_bytes(path.read_bytes().splitlines()[0] + b"\n" + entry + b"\n")
    storage = await JsonlStorage.open(path)
    await storage.commit([SetValue("n", "k", 1)])
    await storage.commit([SetValue("n", "k", 2)])
    await storage.compact()
    await storage.close()
    assert entry in path.read_bytes().splitlines()
    assert b'"value":1' not in path.read_bytes()


async def test_a_file_compacts_itself_when_most_of_it_is_dead(path: Path) -> None:
    """A cell that is set a thousand times does not make the file a thousand times as large; commits stay cheap on average."""
    storage = await JsonlStorage.open(path)
    await fill(storage)
    before = await content(storage)
    sizes = [path.stat().st_size]
    written = 0
    for i in range(200):
        await storage.commit([SetValue("big", "k", BIG), AppendList("frames", "k", i)])
        sizes.append(path.stat().st_size)
        written += len(BIG)
    assert path.stat().st_size < written / 5
    shrunk = sum(b < a for a, b in itertools.pairwise(sizes))
    assert 2 < shrunk < 30
    assert await content(storage) == before
    await storage.close()
    storage = await JsonlStorage.open(path)
    assert len(await storage.read_list("frames", "k")) == 200
    await storage.close()


async def test_a_session_of_entries_is_never_compacted(path: Path) -> None:
    """Entries never die, so there is nothing to gain."""
    storage = await JsonlStorage.open(path)
    inode = path.stat().st_ino
    for i in range(50):
        await storage.commit(numbered_commit(i))
    assert path.stat().st_ino == inode
    await storage.close()


async def test_a_compaction_that_fails_harms_no_commit(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file stays as it was, the commit stands, a warning says why, and it is not tried at every commit."""
    storage = await JsonlStorage.open(path)
    path.with_name(".s.jsonl.new").mkdir()
    with caplog.at_level(logging.WARNING, "laneway.storage"):
        for i in range(60):
            await storage.commit([SetValue("big", "k", f"{i}{BIG}")])
    assert len([r for r in caplog.records if "cannot compact" in r.getMessage()]) == 2
    with pytest.raises(StorageError, match="it stays as it was"):
        await storage.compact()
    await storage.close()
    storage = await JsonlStorage.open(path)
    value = await storage.get_value("big", "k")
    assert value is not None
    assert value.value.startswith("59")
    await storage.close()


async def test_what_a_dead_compaction_left_is_removed(path: Path) -> None:
    """A process killed while it compacts leaves a half copy beside the file; the next owner removes it."""
    await (await JsonlStorage.open(path)).close()
    path.with_name(".s.jsonl.new").write_bytes(b"half")
    await (await JsonlStorage.open(path, read_only=True)).close()
    assert len(os.listdir(path.parent)) == 2, "a read-only open changes nothing"
    await (await JsonlStorage.open(path)).close()
    assert os.listdir(path.parent) == ["s.jsonl"]


@pytest.mark.parametrize("step", ["replace", "fdatasync", "fchmod"])
async def test_a_compaction_that_dies_at_any_step_leaves_the_old_file(path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file takes the old one's place in one step, or not at all."""
    storage = await JsonlStorage.open(path)
    await fill(storage)
    before, whole = await content(storage), path.read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(os, step, _failing)
        with pytest.raises(StorageError, match="cannot compact"):
            await storage.compact()
    assert path.read_bytes() == whole
    assert sorted(os.listdir(path.parent)) == ["s.jsonl", "s.jsonl.lock"]
    await storage.commit([SetValue("x", "k", 1)])
    await storage.compact()
    assert await content(storage) == before
    await storage.close()


def _failing(*_: object) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("mode", [0o600, 0o640])
async def test_a_compacted_file_keeps_its_permissions(path: Path, mode: int) -> None:
    """What was private stays private."""
    storage = await JsonlStorage.open(path)
    path.chmod(mode)
    await storage.commit([SetValue("n", "k", 1)])
    await storage.compact()
    await storage.close()
    assert stat.S_IMODE(path.stat().st_mode) == mode
