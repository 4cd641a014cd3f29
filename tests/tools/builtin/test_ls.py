"""The ls tool on real directories."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from laneway.tools import find_tool, ls_tool, read_tool

Run = Callable[..., Awaitable[Any]]


async def test_names_are_sorted_without_regard_to_case(tmp_path: Path, call: Run):
    """Hidden files too; directories and links to them with a slash, dangling links without."""
    for name in ("b", "A", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "Dir").mkdir()
    (tmp_path / "link").symlink_to("Dir")
    (tmp_path / "nowhere").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe")
    result = await call(ls_tool(tmp_path))
    assert result.content[0].text == ".hidden\nA\nb\nDir/\nlink/\nnowhere\npipe"
    assert result.details == {"path": str(tmp_path), "entries": 7, "limit_reached": False, "truncated_by": None}


async def test_an_empty_directory_says_so(tmp_path: Path, ask: Run):
    """B43."""
    assert await ask(ls_tool(tmp_path)) == "(empty directory)"


async def test_limits_say_how_many_there_are(tmp_path: Path, ask: Run):
    """By number and by bytes; exactly the limit is no limit."""
    for number in range(10):
        (tmp_path / f"f{number}").touch()
    assert await ask(ls_tool(tmp_path), limit=10) == "\n".join(f"f{n}" for n in range(10))
    assert await ask(ls_tool(tmp_path), limit=2) == "f0\nf1\n\n[2 entries limit reached: 10 are there. Use limit=4, or find with a pattern]"
    assert await ask(ls_tool(tmp_path, max_bytes=8)) == "f0\nf1\nf2\n\n[8B limit reached: 3 of 10 entries are shown]"


async def test_what_cannot_be_listed_is_explained(tmp_path: Path, fails: Run):
    """A file, nothing, a directory that is gone."""
    (tmp_path / "file").touch()
    assert "is not a directory" in str(await fails(ls_tool(tmp_path), path="file"))
    assert "does not exist" in str(await fails(ls_tool(tmp_path), path="gone"))
    assert "does not exist" in str(await fails(ls_tool(tmp_path / "gone")))


async def test_odd_names_do_not_crash(tmp_path: Path, ask: Run):
    """B44."""
    (tmp_path / os.fsdecode(b"\xff.txt")).touch()
    assert await ask(ls_tool(tmp_path)) == "\ufffd.txt"


async def test_a_confined_listing_stays_inside(tmp_path: Path, fails: Run, ask: Run):
    """B116."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "up").symlink_to("..")
    tool = ls_tool(tmp_path / "app", confine=True)
    assert await ask(tool) == "up/"
    assert "outside" in str(await fails(tool, path="up"))


async def test_a_name_with_a_line_break_is_one_line(tmp_path: Path, ask: Run):
    """B107: a name must not look like two entries or like a notice; what is shown leads back to the file."""
    (tmp_path / "a\nb\x1b[31m.txt").write_text("found")
    shown = await ask(ls_tool(tmp_path))
    assert shown == "a\ufffdb\ufffd[31m.txt"
    assert await ask(find_tool(tmp_path), pattern="*.txt") == shown
    assert await ask(read_tool(tmp_path), path=shown) == "found"
