"""What a command prints, made readable and kept in bounded memory."""

from __future__ import annotations

import os
import stat
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.tools import _output
from laneway.tools._output import Cleaner, Output
from laneway.tools._truncate import truncate_tail


def cleaned(*chunks: bytes) -> bytes:
    """Return the clean form of a stream of chunks."""
    cleaner = Cleaner()
    return b"".join(cleaner.feed(chunk) for chunk in chunks) + cleaner.feed(b"", final=True)


def shown(*chunks: bytes, max_lines: int = 100, max_bytes: int = 1000) -> str:
    """Return what is shown of a stream of chunks."""
    output = Output(max_lines=max_lines, max_bytes=max_bytes)
    for chunk in chunks:
        output.feed(chunk)
    try:
        return output.finish().truncation.content
    finally:
        output.discard()


ESCAPES = [
    b"\x1b[31m", b"\x1b[0;1;38;5;200m", b"\x1b[2K", b"\x1b[?25l", b"\x1b]0;title\x07", b"\x1b]8;;http://x\x1b\\",
    b"\x1bP1;2q\x1b\\", b"\x1b(B", b"\x1bM", b"\x1b=",
]  # fmt: skip


@pytest.mark.parametrize("escape", ESCAPES)
def test_terminal_codes_are_removed_wherever_they_are_split(escape: bytes):
    """Regression 49: no stray letters."""
    data = b"a" + escape + b"b"
    assert cleaned(data) == b"ab"
    for at in range(len(data)):
        assert cleaned(data[:at], data[at:]) == b"ab"
    assert cleaned(*(data[at : at + 1] for at in range(len(data)))) == b"ab"


@given(
    st.lists(st.sampled_from([*ESCAPES, b"text", "é—😀".encode(), b"\n", b"\r\n", b"\x1b", b"\x1b["]), max_size=8),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_how_a_stream_is_cut_into_chunks_does_not_matter(pieces: list[bytes], cuts: list[int]):
    """The clean form depends on the bytes alone."""
    data = b"".join(pieces)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert cleaned(*(data[a:b] for a, b in pairwise(bounds))) == cleaned(data)


@given(st.binary(max_size=300))
def test_nothing_a_program_prints_can_break_it(data: bytes):
    """Regression 49: binary output becomes text without control characters."""
    text = shown(data)
    text.encode()
    assert all(char in "\n\t" or char >= " " for char in text)


def test_an_escape_that_never_ends_is_let_go():
    """Text after a broken code must not disappear for ever."""
    assert b"end" in cleaned(b"\x1b]0;" + b"x" * 10_000, b"end")


def test_a_character_split_over_two_reads_is_whole():
    """B104."""
    assert shown(b"cleanup \xe2", b"\x80\x94 end") == "cleanup \u2014 end"


def test_invalid_bytes_are_replaced_not_dropped():
    """B104."""
    assert shown(b"a\xffb") == "a\ufffdb"


def test_of_a_progress_bar_the_last_state_is_left():
    """As on a screen; how many states were left out is counted."""
    output = Output()
    for percent in range(101):
        output.feed(f"\r{percent}%".encode())
    output.feed(b"\ndone\n")
    shown = output.finish()
    assert shown.truncation.content == "100%\ndone\n"
    assert shown.overwritten == 100
    assert shown.truncation.total_bytes == len("100%\ndone\n")


def test_windows_line_endings_are_plain_ones():
    """Also when the two characters come in two chunks."""
    assert shown(b"a\r\nb\r", b"\nc\r\r\n") == "a\nb\nc\n"


def test_a_carriage_return_at_the_end_erases_nothing():
    """Nothing came after it."""
    assert shown(b"a\nworking...\r") == "a\nworking..."


def test_a_spinner_and_bold_print_are_readable():
    """Backspaces let what follows take the place of what was there."""
    assert shown(b"|\x08/\x08-\x08done\n") == "done\n"
    assert shown(b"N\x08NA\x08AM\x08ME\x08E\n") == "NAME\n"
    assert shown(b"kept\x08\x08\x08\x08\n") == "kept\n"


def test_backspaces_work_over_chunks_and_inside_a_line():
    """B104: a spinner draws each of its states on its own; the cursor goes back over characters, and what is not overwritten stays."""
    assert shown(b"working |", b"\x08/", b"\x08-", b"\x08", b"done\n") == "working done\n"
    assert shown(b"abcd\x08\x08\x08", b"X\n") == "aXcd\n"
    assert shown(b"abcd\x08\x08\x08X", b"Y", b"\nnext") == "aXYd\nnext"
    assert shown("né\x08\x08a".encode()) == "aé"
    assert shown("é".encode()[:1], "é".encode()[1:] + b"\x08e\n") == "e\n"
    assert shown(b"ab\x08\r", b"c") == "c"


@given(st.lists(st.sampled_from([b"abc", b"\n", b"\r", b"\x08", b"\x08\x08", "é".encode(), b"\x1b[1m"]), max_size=30), st.data())
def test_it_does_not_matter_how_the_output_is_cut_into_chunks(pieces: list[bytes], data: st.DataObject):
    """B104: not inside of an escape, of a character, of a line end or of a backspace."""
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    assert shown(*(whole[start:stop] for start, stop in pairwise([0, *cuts, len(whole)]))) == shown(whole)


def test_a_long_run_of_carriage_returns_takes_no_time():
    """One megabyte of them in front of a line end is looked through once, not once for each."""
    started = time.monotonic()
    assert shown(b"\r" * (1 << 20) + b"x\r\n") == "x\n"
    assert shown(b"x" + b"\r" * (1 << 20) + b"\n") == "x\n"
    assert time.monotonic() - started < 5


def test_short_output_leaves_no_file(tmp_path: Path):
    """Nothing is missing, so nothing is saved."""
    output = Output(spill_dir=str(tmp_path))
    output.feed(b"x\n" * 2000)
    assert output.finish().full_output_path is None
    assert os.listdir(tmp_path) == []


def test_long_output_is_all_in_a_private_file(tmp_path: Path):
    """Regression 46: also when only the number of lines is over the limit. Byte by byte as it came, for the user alone."""
    output = Output(max_lines=2, spill_dir=str(tmp_path))
    data = b"\x1b[31ma\x1b[0m\nb\r\nc\nd\xff"
    output.feed(data)
    shown = output.finish()
    assert shown.truncation.content == "c\nd\ufffd"
    assert shown.full_output_path is not None
    assert Path(shown.full_output_path).read_bytes() == data
    assert stat.S_IMODE(os.stat(shown.full_output_path).st_mode) == 0o600


def test_the_end_of_one_huge_line_is_shown_with_its_size():
    """Regression 45."""
    output = Output(max_bytes=51_199)
    output.feed("é".encode() * 75_000)
    shown = output.finish()
    output.discard()
    assert shown.truncation.last_line_partial
    assert shown.last_line_bytes == 150_000
    assert shown.truncation.content == "é" * 25_599


@pytest.mark.parametrize("size", [1, 1000, 300_000, 1 << 20])
def test_counts_are_right_however_much_is_printed_at_once(size: int):
    """Skipping what will not be shown must not change what is."""
    data = b"".join(f"line {n}\n".encode() for n in range(200_000))
    output = Output()
    for at in range(0, len(data), size) if size > 1 else range(0):
        output.feed(data[at : at + size])
    if size == 1:
        output.feed(data)
    shown = output.finish()
    output.discard()
    assert shown.truncation.total_lines == 200_000
    assert shown.truncation.total_bytes == len(data)
    assert shown.truncation.content == "\n".join(f"line {n}" for n in range(198_000, 200_000))


@given(st.lists(st.sampled_from([b"abc", b"\n", b"\r", b"x" * 30, "é".encode(), b"\x1b[1m"]), max_size=40), st.integers(1, 5), st.integers(4, 40))
def test_what_is_shown_is_the_end_of_what_a_screen_shows(pieces: list[bytes], max_lines: int, max_bytes: int):
    """As if everything had been kept; only a line that outgrows the memory before it is overwritten can take earlier lines with it."""
    everything = shown(*pieces, max_lines=10_000, max_bytes=1 << 20)
    expected = truncate_tail(everything, max_lines=max_lines, max_bytes=max_bytes).content
    kept = shown(*pieces, max_lines=max_lines, max_bytes=max_bytes)
    assert kept == expected if b"\r" not in pieces else expected.endswith(kept)


def test_a_full_disk_costs_the_file_and_not_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What could not be stored is counted."""

    def full(fd: int, data: bytes) -> int:
        raise OSError("No space left on device")

    monkeypatch.setattr(_output.os, "write", full)
    output = Output(max_lines=1, spill_dir=str(tmp_path))
    output.feed(b"a\nb\n")
    output.feed(b"c\n")
    shown = output.finish()
    assert shown.truncation.content == "c"
    assert shown.not_stored == 6


def test_a_directory_that_takes_no_file_costs_only_the_file(tmp_path: Path):
    """The output is still shown."""
    output = Output(max_lines=1, spill_dir=str(tmp_path / "missing"))
    output.feed(b"a\nb\n")
    shown = output.finish()
    assert (shown.truncation.content, shown.full_output_path, shown.not_stored) == ("b", None, 4)


def test_a_nearly_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A runaway command must not take the last of the disk."""
    monkeypatch.setattr(_output, "_SPACE_CHECK", 10)
    monkeypatch.setattr(_output, "_SPACE_TO_LEAVE", 1 << 60)
    output = Output(max_lines=1, spill_dir=str(tmp_path))
    for _ in range(10):
        output.feed(b"a\nb\n")
    assert output.finish().not_stored > 0
