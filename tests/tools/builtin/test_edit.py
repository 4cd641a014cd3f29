"""The edit tool on real files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.errors import ToolError
from laneway.tools import _files, edit_tool, find_tool, grep_tool, ls_tool, write_tool

Run = Callable[..., Awaitable[Any]]


async def test_an_edit_says_what_it_did_and_shows_the_difference(tmp_path: Path, call: Run):
    """The model reads the count, a person the diff."""
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    result = await call(edit_tool(tmp_path), path="a.txt", edits=[{"old_text": "two", "new_text": "2"}, {"old_text": "three", "new_text": "3"}])
    assert result.content[0].text == "Replaced 2 passages in a.txt"
    assert result.details["edits"] == 2
    assert result.details["first_changed_line"] == 2
    assert "-2 two\n-3 three\n+2 2\n+3 3" in result.details["diff"]
    assert result.details["patch"].startswith("--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n")
    assert (tmp_path / "a.txt").read_text() == "one\n2\n3\n"


async def test_the_patch_names_the_file_from_the_working_directory(tmp_path: Path, call: Run):
    """Whatever detour the model took, the patch can be applied."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("one\n")
    result = await call(edit_tool(tmp_path), path="./x/../sub/a.txt", edits=[{"old_text": "one", "new_text": "1"}])
    assert result.details["patch"].startswith("--- a/sub/a.txt\n+++ b/sub/a.txt\n")


async def test_a_file_that_is_being_written_is_not_found_by_other_tools(tmp_path: Path, ask: Run, monkeypatch: pytest.MonkeyPatch):
    """The draft is an inner matter: a search in the same batch must not report it."""
    (tmp_path / "a.txt").write_text("one\n")
    real, seen = os.replace, list[list[str]]()

    def replace(*args: Any, **options: Any) -> None:
        seen.append(sorted(os.listdir(tmp_path)))
        for tool, arguments in ((find_tool, {"pattern": "*"}), (ls_tool, {}), (grep_tool, {"pattern": "1"})):
            shown = asyncio.run(tool(tmp_path).execute("2", arguments, AbortController().signal, lambda partial: None)).content[0].text
            assert shown in ("a.txt", "No matches found")
        real(*args, **options)

    monkeypatch.setattr(_files.os, "replace", replace)
    await ask(edit_tool(tmp_path), path="a.txt", edits=[{"old_text": "one", "new_text": "1"}])
    assert len(seen[0]) == 2


async def test_mark_and_crlf_survive(tmp_path: Path, ask: Run):
    """B110, byte by byte."""
    (tmp_path / "w.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    await ask(edit_tool(tmp_path), path="w.txt", edits=[{"old_text": "a\nb", "new_text": "a\nB"}])
    assert (tmp_path / "w.txt").read_bytes() == b"\xef\xbb\xbfa\r\nB\r\n"


async def test_bytes_that_are_no_text_survive(tmp_path: Path, ask: Run):
    """A Latin-1 line, a NUL, half a character: all stay as they are."""
    (tmp_path / "l.txt").write_bytes(b"caf\xe9\nx\n\0\xf0\x9f\n")
    await ask(edit_tool(tmp_path), path="l.txt", edits=[{"old_text": "x", "new_text": "y"}])
    assert (tmp_path / "l.txt").read_bytes() == b"caf\xe9\ny\n\0\xf0\x9f\n"


async def test_lone_surrogates_in_an_edit_become_marks(tmp_path: Path, ask: Run):
    """B44: what the model broke cannot break the file, nor turn into raw bytes."""
    (tmp_path / "a.txt").write_text("x")
    await ask(edit_tool(tmp_path), path="a.txt", edits=[{"old_text": "x", "new_text": "\udcff\ud83d"}])
    assert (tmp_path / "a.txt").read_text() == "\ufffd\ufffd"


async def test_a_failed_edit_leaves_the_file_untouched(tmp_path: Path, fails: Run):
    """B114: all or nothing, and not even the time stamp changes."""
    file = tmp_path / "a.txt"
    file.write_text("Hello")
    before = file.stat()
    error = await fails(edit_tool(tmp_path), path="a.txt", edits=[{"old_text": "Hello", "new_text": "Hi"}, {"old_text": "missing", "new_text": "x"}])
    assert "Edit 2" in str(error)
    assert file.read_text() == "Hello"
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert os.listdir(tmp_path) == ["a.txt"]


async def test_what_cannot_be_edited_is_explained(tmp_path: Path, fails: Run):
    """Missing, a directory, UTF-16, read-only."""
    tool = edit_tool(tmp_path)
    edits = [{"old_text": "a", "new_text": "b"}]
    assert "does not exist" in str(await fails(tool, path="nope", edits=edits))
    (tmp_path / "d").mkdir()
    assert "is a directory" in str(await fails(tool, path="d", edits=edits))
    (tmp_path / "u16").write_text("abc", encoding="utf-16")
    assert "iconv" in str(await fails(tool, path="u16", edits=edits))
    assert "edits is missing" in str(await fails(tool, path="u16", edits=[]))


async def test_a_file_that_another_program_changes_meanwhile_is_not_overwritten(tmp_path: Path, fails: Run, monkeypatch: pytest.MonkeyPatch):
    """Their change would be lost without a word."""
    file = tmp_path / "a.txt"
    file.write_text("old\n")
    original = _files.read_all

    def read_then_change(fd: int, check: Callable[[], None], shown: str) -> bytes:
        data = original(fd, check, shown)
        file.write_text("theirs, and longer\n")
        return data

    monkeypatch.setattr("laneway.tools.edit.read_all", read_then_change)
    assert "changed by another program" in str(await fails(edit_tool(tmp_path), path="a.txt", edits=[{"old_text": "old", "new_text": "new"}]))
    assert file.read_text() == "theirs, and longer\n"


async def test_a_change_that_comes_while_the_new_content_is_forced_to_disk_is_not_lost(tmp_path: Path, fails: Run, monkeypatch: pytest.MonkeyPatch):
    """B115: forcing it to disk takes long enough for another program to write; the last look is right before the rename."""
    file = tmp_path / "a.txt"
    file.write_text("old\n")
    force = os.fsync

    def force_then_change(fd: int) -> None:
        force(fd)
        file.write_text("theirs, and longer\n")

    monkeypatch.setattr(_files.os, "fsync", force_then_change)
    assert "changed by another program" in str(await fails(edit_tool(tmp_path), path="a.txt", edits=[{"old_text": "old", "new_text": "new"}]))
    assert file.read_text() == "theirs, and longer\n"
    assert os.listdir(tmp_path) == ["a.txt"]


async def test_parallel_edits_of_one_file_by_three_names_are_all_made(tmp_path: Path, call: Run):
    """B115, regression 52: the same file by its name, by a detour and by a link."""
    file = tmp_path / "f.txt"
    file.write_text("".join(f"{n}\n" for n in range(100)))
    os.chmod(file, 0o640)
    (tmp_path / "link.txt").symlink_to("f.txt")
    edit, write = edit_tool(tmp_path), write_tool(tmp_path)
    await asyncio.gather(
        call(edit, path="f.txt", edits=[{"old_text": "\n50\n", "new_text": "\nFIFTY\n"}]),
        call(edit, path="./sub/../f.txt", edits=[{"old_text": "\n75\n", "new_text": "\nSEVENTY-FIVE\n"}]),
        call(edit, path="link.txt", edits=[{"old_text": "\n25\n", "new_text": "\nTWENTY-FIVE\n"}]),
        call(write, path="other.txt", content="x"),
    )
    text = file.read_text()
    assert all(word in text for word in ("FIFTY", "SEVENTY-FIVE", "TWENTY-FIVE"))
    assert (tmp_path / "link.txt").is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["f.txt", "link.txt", "other.txt"]


async def test_edits_of_one_file_build_on_each_other_in_request_order(tmp_path: Path, call: Run):
    """Thirty edits, each of which needs the one before it."""
    (tmp_path / "f.txt").write_text("0")
    edit = edit_tool(tmp_path)
    await asyncio.gather(*(call(edit, path="f.txt", edits=[{"old_text": str(n), "new_text": str(n + 1)}]) for n in range(30)))
    assert (tmp_path / "f.txt").read_text() == "30"


async def test_an_aborted_edit_changes_nothing_and_lets_the_next_one_go(tmp_path: Path, call: Run):
    """The error says that the file was not changed."""
    (tmp_path / "f.txt").write_text("a")
    abort = AbortController()
    abort.abort()
    with pytest.raises(ToolError, match=r"Editing f\.txt was aborted: the file was not changed"):
        await call(edit_tool(tmp_path), abort=abort, path="f.txt", edits=[{"old_text": "a", "new_text": "b"}])
    await call(edit_tool(tmp_path), path="f.txt", edits=[{"old_text": "a", "new_text": "c"}])
    assert (tmp_path / "f.txt").read_text() == "c"


async def test_a_confined_edit_stays_inside(tmp_path: Path, fails: Run):
    """B116: through a link nothing outside is changed."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out.txt").write_text("a")
    (tmp_path / "in" / "link").symlink_to("../out.txt")
    assert "outside" in str(await fails(edit_tool(tmp_path / "in", confine=True), path="link", edits=[{"old_text": "a", "new_text": "b"}]))
    assert (tmp_path / "out.txt").read_text() == "a"


def test_an_interrupted_edit_is_not_run_again():
    """Its text is gone after it worked, and may be there again inside the new one."""
    assert edit_tool().replay == "never"
