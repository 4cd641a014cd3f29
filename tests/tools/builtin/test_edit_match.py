"""Finding the passages that edits name, and replacing nothing else."""

from __future__ import annotations

import re
import time
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from laneway.errors import ToolError
from laneway.tools._edit_match import BOM, Edit, apply_edits


def edited(original: str, *pairs: tuple[str, str]) -> str:
    """Return the text after the edits."""
    return apply_edits(original, [Edit(old_text=old, new_text=new) for old, new in pairs], "f.txt").text


def refused(original: str, *pairs: tuple[str, str]) -> str:
    """Return why the edits cannot be made."""
    with pytest.raises(ToolError) as caught:
        edited(original, *pairs)
    return str(caught.value)


class TestExact:
    """Passages that are in the file as they were written."""

    def test_one_passage_is_replaced(self):
        """And only that."""
        assert edited("a\nb\nc\n", ("b", "B")) == "a\nB\nc\n"

    def test_all_passages_are_searched_in_the_original(self):
        """4.3 rule 2: an edit does not see what another one wrote, nor does its order matter."""
        assert edited("a\nb\n", ("a", "b"), ("b", "c")) == "b\nc\n"
        assert edited("a\nb\n", ("b", "c"), ("a", "b")) == "b\nc\n"

    def test_a_replacement_is_taken_character_by_character(self):
        """B111: no templates, no regular expressions."""
        new = "\\1 \\g<0> $& $$ \\n {x}"
        assert edited("x a.b( y", ("a.b(", new)) == f"x {new} y"

    def test_text_can_be_deleted_and_inserted(self):
        """An empty new_text deletes."""
        assert edited("a\nb\nc\n", ("b\n", "")) == "a\nc\n"
        assert edited("a\nb", ("b", "b\nc")) == "a\nb\nc"

    def test_adjacent_passages_are_not_overlapping(self):
        """They only touch."""
        assert edited("ab", ("a", "1"), ("b", "2")) == "12"

    def test_blanks_in_the_middle_of_a_line_count(self):
        """A passage that ends with a blank is not the same without it."""
        assert edited("foo = 1\nfoo == 2\n", ("foo = ", "bar = ")) == "bar = 1\nfoo == 2\n"

    def test_a_passage_of_blanks_is_counted_as_it_is(self):
        """Normalising would leave nothing of it."""
        assert edited("a   b", ("   ", " ")) == "a b"
        assert edited("a\n\n\nb\n", ("\n\n\n", "\n")) == "a\nb\n"

    def test_a_passage_that_is_there_letter_by_letter_is_replaced_letter_by_letter(self):
        """Blanks around it stay, also those at a line's end, which do not count when it is searched."""
        assert edited("x  \na", (" \na", "")) == "x "
        assert edited("a   \nb", ("a ", "c")) == "c  \nb"


class TestEndings:
    """Byte-order marks and line endings stay what they are."""

    def test_a_file_with_a_mark_and_crlf_keeps_both(self):
        """B110: the passage is written with plain newlines."""
        assert edited(f"{BOM}a\r\nb\r\n", ("a\nb", "a\nB")) == f"{BOM}a\r\nB\r\n"

    def test_a_passage_written_with_crlf_is_found_in_an_lf_file(self):
        """B110: and LF is kept."""
        assert edited("a\nb\nc\n", ("a\r\nb", "x\r\ny")) == "x\ny\nc\n"

    def test_a_mark_in_the_passage_does_not_matter(self):
        """The model may have copied it, or not."""
        assert edited(f"{BOM}a\nb\n", (f"{BOM}a", "x")) == f"{BOM}x\nb\n"
        assert edited("a\nb\n", (f"{BOM}a", f"{BOM}x")) == "x\nb\n"

    def test_a_new_line_ends_as_the_line_where_the_replacement_starts(self):
        """4.3 rule 6, in a file with mixed endings."""
        mixed = "one\r\ntwo\nthree\rfour"
        assert edited(mixed, ("one", "1\n1b")) == "1\r\n1b\r\ntwo\nthree\rfour"
        assert edited(mixed, ("two", "2\n2b")) == "one\r\n2\n2b\nthree\rfour"
        assert edited(mixed, ("three", "3\n3b")) == "one\r\ntwo\n3\r3b\rfour"
        assert edited(mixed, ("four", "4\n4b")) == "one\r\ntwo\nthree\r4\r4b"

    def test_lines_that_old_and_new_text_share_keep_their_endings(self):
        """Context around a change is untouched, also inside the passage."""
        assert edited("a\r\nb\nc\r\nd\n", ("a\nb\nc\nd", "a\nB\nc\nD")) == "a\r\nB\nc\r\nD\n"
        assert edited("a\r\nb\nc\r\n", ("a\nb\nc", "a\nb\nnew\nc")) == "a\r\nb\nnew\nc\r\n"
        assert edited("a\r\nb\nc\r\n", ("a\nb\nc\n", "a\nc\n")) == "a\r\nc\r\n"


class TestFuzzy:
    """Passages that differ in what nobody sees."""

    @pytest.mark.parametrize(
        ("original", "old", "new", "result"),
        [
            ("say “hi”\n", 'say "hi"', "say bye", "say bye\n"),
            ("it’s\n", "it's", "it is", "it is\n"),
            ("a — b\n", "a - b", "a + b", "a + b\n"),
            ("a − b\n", "a - b", "a + b", "a + b\n"),
            ("a\u00a0b\n", "a b", "ab", "ab\n"),
            ("a  \nb\n", "a\nb", "x\ny", "x\ny\n"),
            ("ﬁle\n", "file", "dir", "dir\n"),
            ("cafe\u0301 x\n", "café x", "tea", "tea\n"),
            ("plain's\n", "plain’s", "p", "p\n"),
        ],
    )
    def test_typography_and_blanks_at_line_ends_do_not_matter(self, original: str, old: str, new: str, result: str):
        """4.3 rule 3."""
        assert edited(original, (old, new)) == result

    def test_indentation_and_similarity_are_not_tolerated(self):
        """4.3 rule 3: no guessing; but the error tells where the likely place is."""
        why = refused("x\n    return 1\n    return 2\n", ("return 1\nreturn 2", "return 3"))
        assert "Lines 2-3 are the same but for spaces or indentation" in why
        assert "not found" in refused("colour\n", ("color", "x"))

    def test_two_places_that_differ_only_in_quotes_are_two(self):
        """4.3 rule 4: uniqueness is counted after normalising, also when one of them fits exactly."""
        assert "2 times (lines 1, 2)" in refused('say “a”\nsay "a"\n', ('say "a"', "x"))

    def test_untouched_parts_of_a_touched_line_keep_their_characters(self):
        """Only what the passage covers changes."""
        assert edited("“x” — “y” and “z” \n", ('"y"', "Y")) == "“x” — Y and “z” \n"

    def test_shared_lines_keep_their_typography(self):
        """4.3 rule 5: unchanged lines keep their original bytes."""
        original = "say “a”  \r\nsay “b”\r\nsay “c”\t\r\nend\r\n"
        assert edited(original, ('say "a"\nsay "b"\nsay "c"\n', 'say "a"\nsay B\nsay "c"\n')) == "say “a”  \r\nsay B\r\nsay “c”\t\r\nend\r\n"

    def test_blanks_at_the_end_of_the_last_line_belong_to_the_passage_if_it_ends_with_blanks(self):
        """Otherwise they stay."""
        assert edited("say “a” \t\nb\n", ('say "a"  ', "x")) == "x\nb\n"
        assert edited("say “a” \t\nb\n", ('say "a"', "x")) == "x \t\nb\n"

    def test_half_of_a_character_that_stands_for_several_can_be_replaced(self):
        """A ligature is more letters than characters; the other half stays as plain letters."""
        assert edited("aﬁb “q”\n", ('ib "q"', "X")) == "afX\n"
        assert edited("“q” aﬁb\n", ('"q" af', "X")) == "Xib\n"

    def test_a_letter_under_an_accent_is_not_the_bare_letter(self):
        """The accent may be a character of its own; the passage is the other one."""
        assert edited("e\u0301\ne\n", ("e", "x")) == "e\u0301\nx\n"
        assert edited("e\u0301\n", ("\u0301", "")) == "e\n"

    def test_one_fuzzy_edit_makes_all_fuzzy_and_all_are_right(self):
        """4.3 rule 4."""
        assert edited("x  \n“a”\ny\n", ('"a"', "A"), ("y", "Y")) == "x  \nA\nY\n"

    def test_an_exact_file_is_not_called_fuzzy(self):
        """The outcome says how it was found."""
        assert not apply_edits("a “b”", [Edit(old_text="“b”", new_text="c")], "f").fuzzy
        assert apply_edits("a “b”", [Edit(old_text='"b"', new_text="c")], "f").fuzzy


class TestRefusals:
    """Errors say which edit, why, and what to do."""

    def test_of_a_list_with_a_missing_passage_nothing_is_done(self):
        """B114: the second edit is named."""
        why = refused("Hello\n", ("Hello", "Hi"), ("missing", "x"))
        assert why.startswith("Edit 2 of 2: old_text was not found in f.txt: nothing was changed")

    def test_a_passage_must_be_unique(self):
        """The places are listed; overlapping ones count."""
        assert "is in f.txt 3 times (lines 1, 3, 4) and must be unique" in refused("a x\nb\na y\na z\n", ("a ", "c "))
        assert "2 times" in refused("aaa", ("aa", "b"))

    def test_an_empty_passage_is_refused(self):
        """A mark alone is empty too."""
        assert "old_text is empty" in refused("a", ("", "b"))
        assert "Edit 2 of 2: old_text is empty" in refused("a", ("a", "b"), (BOM, "b"))

    def test_overlapping_passages_are_refused(self):
        """Both are named."""
        assert "Edit 1 and edit 3 overlap" in refused("abcdef", ("bcd", "x"), ("f", "y"), ("de", "z"))

    def test_a_change_that_changes_nothing_is_refused(self):
        """The model should know that it was for nothing."""
        assert "Nothing would change in f.txt" in refused("a\nb\n", ("a", "a"))

    def test_an_edit_that_was_made_before_is_recognised(self):
        """A repeated call gets the reason."""
        assert "new_text is already there (line 2): was this edit made before?" in refused("x\nnew line\n", ("old line", "new line"))

    def test_a_passage_that_goes_on_differently_is_pointed_at(self):
        """The first line is the likeliest to be right."""
        assert "Its first line is there (line 2)" in refused("x\ndef f():\n  return 1\n", ("def f():\n  return 2", "y"))


# ---------------------------------------------------------------------------------------------------- properties

BLANK = " \t"
line_text = st.text(alphabet="ab\"'“”’—-. \t\u00a0éﬁe\u0301\u4e2d😀\udc80", max_size=8)
ending = st.sampled_from(["\n", "\r\n", "\r"])
lines_of = st.lists(st.tuples(line_text, ending), min_size=1, max_size=8).map(
    lambda lines: [("x" if at and lines[at - 1][1] == "\r" and not text else text, end) for at, (text, end) in enumerate(lines)]
)  # an empty line after a lone carriage return would be read as one Windows line ending
files = st.tuples(st.booleans(), lines_of, st.booleans())
replacements = st.text(alphabet="ab“ \nx\u00e9\\$", max_size=12)


def whole(parts: list[tuple[str, str]]) -> str:
    """Join lines and endings."""
    return "".join(text + end for text, end in parts)


def ascii_typography(text: str) -> str:
    """Write as a model would that cannot type the fancy characters."""
    text = unicodedata.normalize("NFKC", text)
    return text.translate({ord(a): b for a, b in zip("“”’—\u00a0", '""\'- ', strict=True)})


@given(files, st.data(), replacements)
def test_every_byte_outside_of_the_passage_stays(file: tuple[bool, list[tuple[str, str]], bool], data: st.DataObject, new: str):
    """Marks, endings of any kind, undecodable bytes: before and after the replaced lines nothing moves."""
    marked, lines, terminated = file
    if not terminated:
        lines = [*lines[:-1], (lines[-1][0], "")]
    first = data.draw(st.integers(0, len(lines) - 1))
    last = data.draw(st.integers(first, len(lines) - 1))
    old = "\n".join(text for text, _ in lines[first : last + 1])
    if data.draw(st.booleans()):
        old = "\n".join(ascii_typography(line).rstrip(BLANK) for line in old.split("\n"))
    before = (BOM if marked else "") + whole(lines[:first])
    after = lines[last][1] + whole(lines[last + 1 :])
    original = before + whole(lines[first : last + 1]).removesuffix(lines[last][1] or "\0") + after
    try:
        result = apply_edits(original, [Edit(old_text=old, new_text=new)], "f").text
    except ToolError:
        assume(False)
    assert result.startswith(before)
    assert result.endswith(after)
    result.encode("utf-8", "surrogateescape")  # and it can be written back


@given(files, st.data())
def test_of_a_passage_with_one_changed_line_all_other_lines_stay(file: tuple[bool, list[tuple[str, str]], bool], data: st.DataObject):
    """Promise of the tool: untouched lines are byte-identical, wherever they are."""
    marked, lines, _ = file
    at = data.draw(st.integers(0, len(lines) - 1))
    old = [text for text, _ in lines]
    new = [*old[:at], "CHANGED", *old[at + 1 :]]
    original = (BOM if marked else "") + whole(lines)
    try:
        result = apply_edits(original, [Edit(old_text="\n".join(old), new_text="\n".join(new))], "f").text
    except ToolError:
        assume(False)
    expected = [*lines[:at], ("CHANGED", lines[at][1]), *lines[at + 1 :]]
    assert result == (BOM if marked else "") + whole(expected)


@given(st.text(alphabet="ab \n", max_size=30), st.text(alphabet="ab \n", min_size=1, max_size=4), st.text(alphabet="abx \n", max_size=6))
def test_plain_text_is_edited_like_a_plain_replacement(original: str, old: str, new: str):
    """For text without anything special, the outcome is what `str.replace` gives, or a refusal."""
    try:
        result = apply_edits(original, [Edit(old_text=old, new_text=new)], "f")
    except ToolError:
        return
    if not result.fuzzy:
        assert original.count(old) == 1
        assert result.text == original.replace(old, new)


@given(files, st.text(alphabet="ab\"'-. é\n", min_size=1, max_size=6), replacements)
def test_new_breaks_take_an_ending_of_the_file(file: tuple[bool, list[tuple[str, str]], bool], old: str, new: str):
    """No edit brings a line ending into a file that it did not have (a file without any gets newlines)."""
    marked, lines, _ = file
    lines = [(text, "\r\n" if end == "\r" else end) for text, end in lines]  # deleting after a lone return can make a Windows ending of two lines
    original = (BOM if marked else "") + whole(lines)
    try:
        result = apply_edits(original, [Edit(old_text=old, new_text=new)], "f").text
    except ToolError:
        return
    breaks = re.compile(r"\r\n|\r|\n")
    assert set(breaks.findall(result)) <= set(breaks.findall(original))


def test_a_large_file_is_edited_in_linear_time():
    """Two megabytes of lines, one of them fancy, and a passage of a thousand lines."""
    lines = [f"line {number} {'x' * 20}" for number in range(60_000)]
    lines[30_000] += " “quoted”"
    passage = lines[29_500:30_500]
    new = [line.upper() if number == 500 else line for number, line in enumerate(passage)]
    old = "\n".join(passage).replace("“", '"').replace("”", '"')
    result = edited("\r\n".join(lines) + "\r\n", (old, "\n".join(new)))
    assert result == "\r\n".join([*lines[:30_000], lines[30_000].upper(), *lines[30_001:]]) + "\r\n"


def test_a_long_run_of_blanks_takes_no_time():
    """It is not at the line's end, and must not be looked through once for each of its blanks."""
    started = time.monotonic()
    blanks = " " * (1 << 20)
    assert edited(f"a{blanks}x\nfoo\n", ("foo", "bar")) == f"a{blanks}x\nbar\n"
    assert time.monotonic() - started < 5
