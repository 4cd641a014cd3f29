"""Cutting text to what a model should read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.tools._truncate import count_lines, format_size, keep_end, printable, size_of, truncate_head, truncate_tail, with_notices

texts = st.text(alphabet="ab\n é😀", max_size=60)
limits = st.integers(1, 12)


def test_a_text_within_both_limits_is_kept_with_its_last_newline():
    """Nothing is cut, and a final newline adds no line."""
    cut = truncate_head("a\nb\n", max_lines=2, max_bytes=100)
    assert (cut.content, cut.truncated, cut.truncated_by, cut.total_lines, cut.output_lines) == ("a\nb\n", False, None, 2, 2)
    assert truncate_tail("a\nb\n", max_lines=2, max_bytes=100).content == "a\nb\n"


def test_a_last_newline_alone_over_the_limit_is_dropped_without_a_notice():
    """The limit is about what is read, and nobody reads that newline."""
    cut = truncate_head("abc\n", max_lines=5, max_bytes=3)
    assert (cut.content, cut.truncated) == ("abc", False)


def test_head_keeps_whole_lines_from_the_beginning():
    """The first limit that is hit ends it and is named."""
    by_lines = truncate_head("a\nb\nc", max_lines=2, max_bytes=100)
    assert (by_lines.content, by_lines.truncated_by, by_lines.output_lines, by_lines.total_lines) == ("a\nb", "lines", 2, 3)
    by_bytes = truncate_head("aaa\nbbb\nccc", max_lines=10, max_bytes=8)
    assert (by_bytes.content, by_bytes.truncated_by, by_bytes.output_bytes) == ("aaa\nbbb", "bytes", 7)


def test_head_keeps_nothing_of_a_first_line_over_the_limit_and_says_so():
    """A caller can then show a part of it with advice of its own."""
    cut = truncate_head("x" * 20 + "\ny", max_bytes=10)
    assert (cut.content, cut.first_line_exceeds_limit, cut.output_lines) == ("", True, 0)


def test_tail_keeps_whole_lines_from_the_end():
    """The last lines are the ones that say how a command went."""
    cut = truncate_tail("a\nb\nc\n", max_lines=2)
    assert (cut.content, cut.truncated_by, cut.total_lines, cut.output_lines) == ("b\nc", "lines", 3, 2)


def test_tail_keeps_the_end_of_a_last_line_that_is_too_long():
    """Regression 45: the end of the line is shown, cut between characters."""
    cut = truncate_tail("a\n" + "é" * 100, max_bytes=51)
    assert cut.last_line_partial
    assert cut.content == "é" * 25
    assert cut.output_bytes == 50


@given(texts, limits, limits)
def test_whatever_is_kept_is_within_the_limits_and_whole(text: str, max_lines: int, max_bytes: int):
    """The kept part is a run of whole lines of the text (or the end of its last one), and the counts are true."""
    for cut in (truncate_head(text, max_lines=max_lines, max_bytes=max_bytes), truncate_tail(text, max_lines=max_lines, max_bytes=max_bytes)):
        assert size_of(cut.content) <= max_bytes
        assert count_lines(cut.content) <= max_lines
        assert cut.total_lines == count_lines(text)
        assert cut.total_bytes == size_of(text)
        assert cut.output_bytes == size_of(cut.content)
        assert cut.truncated or text in (cut.content, f"{cut.content}\n")
        if not cut.last_line_partial:
            assert f"\n{cut.content}" in f"\n{text}"


@given(st.text(), st.integers(0, 40))
def test_keep_end_is_the_longest_end_that_fits(text: str, max_bytes: int):
    """B104: never a broken character, never over the limit."""
    kept = keep_end(printable(text), max_bytes)
    assert printable(text).endswith(kept)
    assert size_of(kept) <= max_bytes
    assert "\ufffd" not in kept or "\ufffd" in printable(text)


def test_lone_surrogates_become_marks_and_pairs_become_characters():
    """B44: what cannot be encoded is replaced; an emoji in two halves is joined; a proper one is untouched."""
    assert printable("x\ud83d y") == "x\ufffd y"
    assert printable("\ud83d\ude00😀") == "😀😀"
    assert truncate_tail("\udcff" * 10, max_bytes=6).content == "\ufffd\ufffd"


@pytest.mark.parametrize(("size", "shown"), [(0, "0B"), (1023, "1023B"), (1024, "1.0KB"), (51200, "50.0KB"), (5 << 20, "5.0MB"), (3 << 30, "3.0GB")])
def test_sizes_are_shown_as_people_read_them(size: int, shown: str):
    """B, then one decimal of KB, MB, GB."""
    assert format_size(size) == shown


def test_notices_come_in_one_bracket_after_a_blank_line():
    """Whether or not the text ends with a newline."""
    assert with_notices("a\n", ["x", "y"]) == "a\n\n[x. y]"
    assert with_notices("a", ["x"]) == "a\n\n[x]"
    assert with_notices("", ["x"]) == "[x]"
    assert with_notices("a", []) == "a"
