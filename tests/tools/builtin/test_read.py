"""The read tool on real files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.abort import AbortController
from laneway.errors import ToolError
from laneway.tools import edit_tool, read_tool
from laneway.tools._lines import read_stretch

Run = Callable[..., Awaitable[Any]]


def output_of(argv: list[str]) -> bytes:
    """Run a program and return what it prints."""
    return subprocess.run(argv, capture_output=True, check=True).stdout


def shell(command: str) -> bytes:
    """Run a shell command as the model would."""
    return output_of(["bash", "-c", command])


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file of ten thousand numbered lines."""
    (tmp_path / "n.txt").write_text("".join(f"line {n}\n" for n in range(1, 10_001)))
    return tmp_path


async def test_text_comes_back_as_it_is(tmp_path: Path, ask: Run):
    """No line numbers, endings and last newline kept, a byte-order mark dropped."""
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n  two\n\nthree")
    assert await ask(read_tool(tmp_path), path="a.txt") == "one\r\n  two\n\nthree"


async def test_a_long_file_is_read_in_parts_by_following_the_advice(numbers: Path, call: Run):
    """Each notice names the range, the total and the next offset; together the parts are the file."""
    tool = read_tool(numbers)
    parts: list[str] = []
    offset: int | None = 1
    while offset is not None:
        result = await call(tool, path="n.txt", offset=offset)
        text, _, notice = result.content[0].text.partition("\n\n[")
        parts.append(text)
        if notice:
            assert notice == f"Showing lines {offset}-{offset + 1999} of 10000. Use offset={offset + 2000} to continue]"
            assert result.details["truncated_by"] == "lines"
        offset = offset + 2000 if notice else None
    assert "\n".join(part.removesuffix("\n") for part in parts) + "\n" == (numbers / "n.txt").read_text()


async def test_the_byte_limit_is_named_when_it_is_what_stopped_the_reading(tmp_path: Path, ask: Run):
    """Whole lines only."""
    (tmp_path / "w.txt").write_text(("x" * 99 + "\n") * 1000)
    text = await ask(read_tool(tmp_path), path="w.txt")
    assert text.endswith("[Showing lines 1-512 of 1000 (50.0KB limit). Use offset=513 to continue]")


async def test_a_limit_of_the_caller_says_how_many_lines_are_left(numbers: Path, ask: Run):
    """And where they begin."""
    assert (
        await ask(read_tool(numbers), path="n.txt", offset=5, limit=2) == "line 5\nline 6\n\n[9994 more lines in the file. Use offset=7 to continue]"
    )
    assert await ask(read_tool(numbers), path="n.txt", offset=9999, limit=2) == "line 9999\nline 10000\n"


async def test_an_offset_past_the_end_is_an_error_with_the_number_of_lines(tmp_path: Path, fails: Run, ask: Run):
    """A trailing newline does not count as a line; offsets below one mean one."""
    (tmp_path / "a.txt").write_text("a\nb\n")
    assert "offset 3 is past the end of a.txt, which has 2 lines" in str(await fails(read_tool(tmp_path), path="a.txt", offset=3))
    assert await ask(read_tool(tmp_path), path="a.txt", offset=0, limit=-1) == "a\n\n[1 more line in the file. Use offset=2 to continue]"


async def test_an_empty_file_says_so(tmp_path: Path, ask: Run, fails: Run):
    """B43: a result is never empty."""
    (tmp_path / "e").touch()
    assert await ask(read_tool(tmp_path), path="e") == "(empty file)"
    assert "past the end" in str(await fails(read_tool(tmp_path), path="e", offset=2))


async def test_a_line_over_the_limit_is_shown_in_part_with_advice_that_ends(tmp_path: Path, ask: Run):
    """B108: the beginning is shown, the command prints the rest, and following it arrives at the end of the line."""
    long = "".join(f"é{n:05}" for n in range(4000))  # 28000 bytes
    (tmp_path / "it's long.json").write_text(f"first\n{long}\nlast\n")
    tool = read_tool(tmp_path, max_bytes=10_000)
    assert (await ask(tool, path="it's long.json")).startswith("first\n\n[Showing lines 1-1 of 3 (9.8KB limit). Use offset=2 to continue]")
    text = await ask(tool, path="it's long.json", offset=2)
    shown, _, notice = text.partition("\n\n[")
    assert shown
    assert "Line 2 is 27.3KB, over the limit of 9.8KB: shortened to its first" in notice
    assert "Use offset=3 to continue with the next line" in notice
    command = notice.split("with bash: ")[1].split(". Use offset")[0]
    start = int(command.split("tail -c +")[1].split(" ")[0])
    rest = b""
    while piece := shell(command):
        rest += piece
        start, before = start + len(piece), start
        command = command.replace(f"tail -c +{before}", f"tail -c +{start}")
    assert shown + rest.decode() == long + "\n"
    assert await ask(tool, path="it's long.json", offset=3) == "last\n"


async def test_the_advice_counts_a_byte_order_mark(tmp_path: Path, ask: Run):
    """The mark is not shown, but the shell sees it."""
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf" + b"0123456789" * 3)
    text = await ask(read_tool(tmp_path, max_bytes=10), path="b.txt")
    command = text.split("with bash: ")[1].rstrip("]").replace("head -c 10", "cat")
    assert text.startswith("0123456789\n")
    assert shell(command) == b"01234567890123456789\n"


async def test_utf_16_is_converted_and_other_binary_data_is_explained(tmp_path: Path, ask: Run, fails: Run):
    """What a model cannot read, it is told how to look at."""
    (tmp_path / "u.txt").write_bytes("\ufeffwide é\n".encode("utf-16-le"))
    assert await ask(read_tool(tmp_path), path="u.txt") == "wide é\n"
    (tmp_path / "x.bin").write_bytes(b"\x7fELF\0\0\0")
    assert "x.bin is a binary file (7B), not text. It is a compiled program" in str(await fails(read_tool(tmp_path), path="x.bin"))


async def test_invalid_bytes_are_replaced_not_dropped(tmp_path: Path, ask: Run):
    """B104; also when marks are longer than what they stand for."""
    (tmp_path / "l.txt").write_bytes(b"caf\xe9\nplain\n")
    assert await ask(read_tool(tmp_path), path="l.txt") == "caf\ufffd\nplain\n"
    (tmp_path / "m.txt").write_bytes(b"\xff\xff\xff\xff\n" * 10)
    text = await ask(read_tool(tmp_path, max_bytes=40), path="m.txt")
    assert text.startswith("\ufffd" * 4 + "\n")
    assert "Showing lines 1-3 of 10" in text


async def test_one_line_of_a_huge_file_costs_no_memory(tmp_path: Path):
    """B108, regression 53: 200 MB, limit=1, in a process of its own whose peak is measured."""
    file = tmp_path / "big.log"
    with file.open("wb") as out:
        for _ in range(20):
            out.write((b"x" * 99 + b"\n") * 100_000)
    code = f"""
import asyncio, resource
from laneway.tools import read_tool
from laneway.abort import AbortController
tool = read_tool({str(tmp_path)!r})
async def go(**args):
    return (await tool.execute("1", args, AbortController().signal, print)).content[0].text
asyncio.run(go(path="big.log", limit=1, offset=1))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
text = asyncio.run(go(path="big.log", limit=1, offset=1500000))
assert "500000 more lines" in text, text
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = int(output_of([sys.executable, "-c", code]))
    assert grown < 10_000  # kilobytes


async def test_reading_stops_at_once_when_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Run):
    """The thread looks between blocks."""
    (tmp_path / "big").write_bytes(b"x\n" * 4_000_000)
    abort = AbortController()
    abort_after = iter(range(3))

    def stretch(*args: Any) -> Any:
        *rest, check = args

        def counted() -> None:
            if next(abort_after, None) is None:
                abort.abort()
            check()

        return read_stretch(*rest, counted)

    monkeypatch.setattr("laneway.tools.read.read_stretch", stretch)
    with pytest.raises(ToolError, match="Reading big was aborted"):
        await call(read_tool(tmp_path), abort=abort, path="big")


async def test_the_event_loop_goes_on_while_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Run):
    """Files are read in a thread."""
    (tmp_path / "a").write_text("x")
    gate, seen = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(*args: Any) -> Any:
        loop.call_soon_threadsafe(seen.set)
        gate.wait(5)
        return read_stretch(*args)

    monkeypatch.setattr("laneway.tools.read.read_stretch", slow)
    async with asyncio.timeout(5):
        task = asyncio.create_task(ask(read_tool(tmp_path), path="a"))
        await seen.wait()
        gate.set()
        assert await task == "x"


async def test_a_cancelled_read_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Run):
    """And its thread gives up."""
    (tmp_path / "a").write_bytes(b"x\n" * 1000)
    gate, stopped = threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        gate.wait(5)
        try:
            return read_stretch(*args)
        except ToolError:
            stopped.set()
            raise

    monkeypatch.setattr("laneway.tools.read.read_stretch", slow)
    task = asyncio.create_task(ask(read_tool(tmp_path), path="a"))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.wait(5)


def stretch_of(data: bytes, first: int, max_lines: int, max_bytes: int) -> Any:
    """Read a stretch from bytes."""
    fd = os.memfd_create("data")
    try:
        os.write(fd, data)
        return read_stretch(fd, "utf-8", first, max_lines, max_bytes, lambda: None)
    finally:
        os.close(fd)


@given(st.lists(st.text("ab\né", max_size=9), max_size=6).map("".join), st.integers(1, 6), st.integers(1, 6), st.integers(4, 12))
def test_a_stretch_is_the_lines_that_fit(text: str, first: int, max_lines: int, max_bytes: int):
    """Compared with splitting the whole text."""
    lines = text.encode().splitlines(keepends=True)
    expected: list[bytes] = []
    for line in lines[first - 1 :][:max_lines]:
        if len(b"".join([*expected, line]).removesuffix(b"\n")) > max_bytes:
            break
        expected.append(line)
    stretch = stretch_of(text.encode(), first, max_lines, max_bytes)
    assert stretch.lines == expected
    assert stretch.total_lines == len(lines)
    oversize = not expected and first <= len(lines)
    assert (stretch.oversize is not None) == oversize
    if oversize:
        assert stretch.oversize_bytes == len(lines[first - 1].removesuffix(b"\n"))


def test_reading_again_after_a_crash_is_safe():
    """It changes nothing."""
    assert read_tool().replay == "safe"


async def test_a_file_that_breaks_while_it_is_read_is_named(tmp_path: Path, fails: Run):
    """A failing disk, a network drive that left: here the kernel's own view of memory, which opens and cannot be read at its beginning."""
    assert str(await fails(read_tool(tmp_path), path="/proc/self/mem")).startswith("Cannot read /proc/self/mem: input/output error [EIO]")


async def test_utf_32_is_not_taken_for_utf_16(tmp_path: Path, fails: Run):
    """Its mark begins with that of UTF-16, and read as that every second character is a hole."""
    (tmp_path / "a.txt").write_text("hello", encoding="utf-32-le")
    data = b"\xff\xfe\0\0" + (tmp_path / "a.txt").read_bytes()
    (tmp_path / "a.txt").write_bytes(data)
    assert "iconv -f UTF-32" in str(await fails(read_tool(tmp_path), path="a.txt"))
    assert "is UTF-32 and edit works on UTF-8" in str(await fails(edit_tool(tmp_path), path="a.txt", edits=[{"old_text": "h", "new_text": "j"}]))
