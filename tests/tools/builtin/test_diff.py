"""What an edit changed, for a person and for a program."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.tools._diff import diff_of, whole_diff
from laneway.tools._edit_match import Edit, apply_edits

numbers = "".join(f"{n}\n" for n in range(1, 101))


def test_changed_lines_are_shown_numbered_with_four_lines_around_them():
    """Old numbers for what went, new ones for what came."""
    edited = apply_edits(numbers, [Edit(old_text="\n50\n", new_text="\nfifty\nand more\n")], "n.txt")
    diff = diff_of(numbers, edited.text, edited.spans, "n.txt")
    assert diff.diff.split("\n") == [
        "    ...", " 46 46", " 47 47", " 48 48", " 49 49", "-50 50", "+50 fifty", "+51 and more", " 51 51", " 52 52", " 53 53", " 54 54",
    ]  # fmt: skip
    assert diff.first_changed_line == 50


def test_lines_deleted_at_the_end_of_a_file_are_all_that_the_diff_shows(tmp_path: Path):
    """The new text ends where they began; the lines before keep their partners, and git takes the patch."""
    edited = apply_edits(numbers, [Edit(old_text="99\n100\n", new_text="")], "n.txt")
    diff = diff_of(numbers, edited.text, edited.spans, "n.txt")
    assert diff.diff.split("\n") == ["     ...", "  95 95", "  96 96", "  97 97", "  98 98", "- 99 99", "-100 100"]
    assert diff.first_changed_line == 99
    (tmp_path / "n.txt").write_text(numbers)
    subprocess.run(["git", "apply", "-"], input=diff.patch.encode(), cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "n.txt").read_text() == edited.text


def test_distant_changes_are_shown_apart_and_near_ones_together():
    """Each hunk has its own place."""
    edited = apply_edits(numbers, [Edit(old_text="\n5\n", new_text="\nfive\n"), Edit(old_text="\n90\n", new_text="\nninety\n")], "n.txt")
    assert diff_of(numbers, edited.text, edited.spans, "n.txt").patch.count("@@ -") == 2
    edited = apply_edits(numbers, [Edit(old_text="\n5\n", new_text="\nfive\n"), Edit(old_text="\n9\n", new_text="\nnine\n")], "n.txt")
    assert diff_of(numbers, edited.text, edited.spans, "n.txt").patch.count("@@ -") == 1


def test_a_missing_newline_at_the_end_is_marked_in_the_patch():
    """As patch programs expect it."""
    assert whole_diff("a", "a\nb", "f").patch.count("\\ No newline at end of file") == 2


def test_a_change_too_large_to_align_is_still_a_right_patch():
    """Thousands of equal lines would take for ever to align."""
    old, new = "x\n" * 3000, "y\n" + "x\n" * 2999 + "z\n"
    diff = whole_diff(old, new, "f")
    assert diff.first_changed_line == 1
    assert diff.patch.count("\n") > 3000


@settings(max_examples=30)
@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12), st.booleans(), st.booleans())
def test_the_patch_makes_the_new_text_of_the_old_one(old_lines: list[str], new_lines: list[str], old_ends: bool, new_ends: bool):
    """Checked by a program that reads patches: git."""
    import tempfile

    old = "\n".join(old_lines) + ("\n" if old_ends and old_lines else "")
    new = "\n".join(new_lines) + ("\n" if new_ends and new_lines else "")
    if old == new:
        return
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "f")
        file.write_text(old)
        patch = whole_diff(old, new, "f").patch
        subprocess.run(["git", "apply", "--unidiff-zero", "-"], input=patch.encode(), cwd=directory, check=True, capture_output=True)
        assert file.read_text() == new
