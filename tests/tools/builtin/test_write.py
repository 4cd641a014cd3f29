"""The write tool on real files."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from laneway.messages import ToolResult
from laneway.tools import _files, write_tool
from laneway.tools.base import set_current_host

Run = Callable[..., Awaitable[Any]]


async def test_a_new_file_is_created_with_its_directories(tmp_path: Path, call: Run):
    """With the permissions that any new file has."""
    result = await call(write_tool(tmp_path), path="a/b/c.txt", content="x\ny\n")
    assert result.content[0].text == "Created a/b/c.txt"
    assert result.details == {"path": str(tmp_path / "a/b/c.txt"), "created": True, "lines": 2}
    assert (tmp_path / "a/b/c.txt").read_text() == "x\ny\n"
    (tmp_path / "plain").touch()
    assert (tmp_path / "a/b/c.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


async def test_a_file_is_replaced_with_its_mode_and_the_change_is_shown(tmp_path: Path, call: Run):
    """B115: a script stays executable."""
    file = tmp_path / "run.sh"
    file.write_text("echo 1\n")
    file.chmod(0o755)
    result = await call(write_tool(tmp_path), path="run.sh", content="echo 2\n")
    assert result.details["diff"] == "-1 echo 1\n+1 echo 2"
    assert not result.details["created"]
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("echo 2\n", 0o755)


async def test_a_link_stays_a_link(tmp_path: Path, ask: Run):
    """Also one to a file that does not exist yet."""
    (tmp_path / "link").symlink_to("target")
    await ask(write_tool(tmp_path), path="link", content="x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "x"


async def test_hard_links_stay_together(tmp_path: Path, ask: Run):
    """A rename would leave the other name with the old content."""
    (tmp_path / "a").write_text("a longer text than the new one")
    os.link(tmp_path / "a", tmp_path / "b")
    await ask(write_tool(tmp_path), path="a", content="new")
    assert (tmp_path / "b").read_text() == "new"


async def test_a_full_disk_leaves_the_old_content(tmp_path: Path, fails: Run, monkeypatch: pytest.MonkeyPatch):
    """Never half a file, and no draft left behind."""
    (tmp_path / "a").write_text("old")
    real = os.write

    def full(fd: int, data: bytes) -> int:
        real(fd, data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_files.os, "write", full)
    error = await fails(write_tool(tmp_path), path="a", content="new content")
    monkeypatch.undo()
    assert "the disk is full [ENOSPC]" in str(error)
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


async def test_a_read_only_file_is_not_replaced(tmp_path: Path, fails: Run, monkeypatch: pytest.MonkeyPatch):
    """A rename could do it, but the owner said no. (The superuser may write anything, so access is answered for an ordinary user.)"""
    file = tmp_path / "a"
    file.write_text("old")
    file.chmod(0o444)
    monkeypatch.setattr(_files.os, "access", lambda path, mode, **_: False)
    assert "read-only" in str(await fails(write_tool(tmp_path), path="a", content="new"))
    assert file.read_text() == "old"


async def test_extended_attributes_are_kept(tmp_path: Path, ask: Run):
    """B115: access lists are among them, and without one the group would get what its mask allowed."""
    file = tmp_path / "a"
    file.write_text("old")
    try:
        os.setxattr(file, "user.origin", b"here")
    except (OSError, AttributeError):
        pytest.skip("files have no extended attributes here")
    await ask(write_tool(tmp_path), path="a", content="new")
    assert (file.read_text(), os.getxattr(file, "user.origin")) == ("new", b"here")


async def test_an_attribute_that_cannot_be_kept_has_the_file_rewritten_in_place(tmp_path: Path, ask: Run, monkeypatch: pytest.MonkeyPatch):
    """B115: like an owner that cannot be kept."""
    file = tmp_path / "a"
    file.write_text("old")
    inode = file.stat().st_ino

    def refuse(*_: object) -> list[str]:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(_files.os, "listxattr", refuse, raising=False)
    await ask(write_tool(tmp_path), path="a", content="new")
    assert (file.read_text(), file.stat().st_ino) == ("new", inode)
    assert os.listdir(tmp_path) == ["a"]


async def test_a_file_that_is_a_mount_is_rewritten_in_place(tmp_path: Path, ask: Run, monkeypatch: pytest.MonkeyPatch):
    """Containers mount single files; nothing can be renamed over them."""
    file = tmp_path / "a"
    file.write_text("old")

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(_files.os, "replace", busy)
    await ask(write_tool(tmp_path), path="a", content="new")
    assert file.read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


async def test_a_full_disk_leaves_a_file_with_two_names_as_it_was(tmp_path: Path, fails: Run, monkeypatch: pytest.MonkeyPatch):
    """It is rewritten in place, so the space is taken before the old content is touched."""
    (tmp_path / "a").write_text("old")
    os.link(tmp_path / "a", tmp_path / "b")

    def full(fd: int, start: int, size: int) -> None:
        os.ftruncate(fd, size)  # part of it may have been given
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_files.os, "posix_fallocate", full, raising=False)
    assert "the disk is full [ENOSPC]" in str(await fails(write_tool(tmp_path), path="a", content="new content"))
    assert (tmp_path / "b").read_text() == "old"


async def test_a_read_only_file_system_is_called_that(tmp_path: Path, fails: Run, monkeypatch: pytest.MonkeyPatch):
    """Changing permissions, which is the advice for a read-only file, would not help."""
    (tmp_path / "a").write_text("old")
    real = os.open

    def read_only(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_WRONLY:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(_files.os, "access", lambda path, mode, **_: False)
    monkeypatch.setattr(_files.os, "open", read_only)
    assert "the file system is read-only [EROFS]" in str(await fails(write_tool(tmp_path), path="a", content="new"))


async def test_places_that_take_no_file_are_explained(tmp_path: Path, fails: Run):
    """A directory, a pipe, a file as a directory, a name too long."""
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "p")
    (tmp_path / "f").write_text("")
    tool = write_tool(tmp_path)
    assert "is a directory" in str(await fails(tool, path="d", content=""))
    assert "named pipe" in str(await fails(tool, path="p", content=""))
    assert "Cannot use the directory" in str(await fails(tool, path="f/x", content=""))
    assert "names a directory" in str(await fails(tool, path="new/", content=""))
    assert "too long" in str(await fails(tool, path="n" * 300, content=""))


async def test_lone_surrogates_become_marks(tmp_path: Path, ask: Run):
    """B44: the file is valid UTF-8, and an emoji in two halves is joined."""
    await ask(write_tool(tmp_path), path="a", content="x\udc9f \ud83d\ude00")
    assert (tmp_path / "a").read_text() == "x\ufffd 😀"


async def test_the_last_of_many_writes_wins(tmp_path: Path, call: Run):
    """Request order, whatever the threads do."""
    tool = write_tool(tmp_path)
    await asyncio.gather(*(call(tool, path="a", content=str(n)) for n in range(20)))
    assert (tmp_path / "a").read_text() == "19"


async def test_a_confined_write_stays_inside(tmp_path: Path, fails: Run, ask: Run):
    """B116: nothing is created outside."""
    root = tmp_path / "app"
    (tmp_path / "app-evil").mkdir()
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "d").symlink_to(tmp_path / "new")
    tool = write_tool(root, confine=True)
    for path in ("../app-evil/x", "out/x", "d", str(tmp_path / "y")):
        assert "outside" in str(await fails(tool, path=path, content="x"))
    assert sorted(os.listdir(tmp_path)) == ["app", "app-evil"]
    await ask(tool, path="deep/in/side.txt", content="x")
    assert (root / "deep/in/side.txt").read_text() == "x"


class Host:
    """The durable harness as the tool sees it."""

    idempotency_key = "k"

    def __init__(self) -> None:
        self.memos: dict[str, Any] = {}

    async def update(self, partial: ToolResult, checkpoint: bool) -> None:
        """Take a partial result."""

    async def get_memo(self, name: str) -> Any:
        """Return a memo."""
        return self.memos.get(name)

    async def set_memo(self, name: str, value: Any) -> None:
        """Keep a memo."""
        self.memos[name] = value


@pytest.fixture
def host() -> Host:
    """A host, to be made current in the test's own context."""
    return Host()


class TestReplay:
    """A write is run again after a crash; that must not undo anybody's work."""

    async def test_a_write_that_did_not_happen_is_made(self, tmp_path: Path, ask: Run, host: Host):
        """The crash came after the note and before the change."""
        (tmp_path / "a").write_text("old")
        set_current_host(host)
        state = (tmp_path / "a").stat()
        host.memos["write.before"] = f"{state.st_ino}:{state.st_size}:{state.st_mtime_ns}"
        assert await ask(write_tool(tmp_path), path="a", content="new") == "Replaced the content of a"
        assert (tmp_path / "a").read_text() == "new"

    async def test_a_write_that_happened_is_reported_again(self, tmp_path: Path, ask: Run, host: Host):
        """The crash came after the change."""
        set_current_host(host)
        tool = write_tool(tmp_path)
        await ask(tool, path="a", content="new")
        assert await ask(tool, path="a", content="new") == "Replaced the content of a"
        assert (tmp_path / "a").read_text() == "new"

    async def test_what_a_person_wrote_in_the_meantime_is_left_alone(self, tmp_path: Path, ask: Run, fails: Run, host: Host):
        """The model is told, and decides."""
        set_current_host(host)
        tool = write_tool(tmp_path)
        await ask(tool, path="a", content="new")
        (tmp_path / "a").write_text("repaired by hand")
        assert "was changed after this write was interrupted" in str(await fails(tool, path="a", content="new"))
        assert (tmp_path / "a").read_text() == "repaired by hand"

    def test_so_replay_is_safe(self):
        """The declared policy."""
        assert write_tool().replay == "safe"
