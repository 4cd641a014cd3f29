"""The refusals that all stores share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.storage import _checks as checks


@given(st.text(), st.text())
def test_the_end_of_a_prefix_is_the_smallest_text_above_all_that_begin_with_it(prefix: str, text: str) -> None:
    """S-11: by code point, which is also the order of UTF-8 bytes."""
    end = checks.prefix_end(prefix)
    if end is None:
        assert set(prefix) <= {"\U0010ffff"}
    else:
        assert prefix + text < end
        assert prefix.encode() + text.encode() < end.encode()
        assert not end.startswith(prefix)


@pytest.mark.parametrize(("prefix", "end"), [("", None), ("a", "b"), ("a\U0010ffff", "b"), ("\U0010ffff", None), ("\ud7ff", "\ue000"), ("\0", "\1")])
def test_the_end_of_a_prefix_at_the_edges(prefix: str, end: str | None) -> None:
    """S-11: where the last code point has no next one, and where surrogates would come."""
    assert checks.prefix_end(prefix) == end


def test_any_whole_number_is_a_bound() -> None:
    """S-15: clamped to what a seq can be; anything else is refused."""
    assert [checks.seq_bound(v, "x") for v in (None, -5, 0, 7, 10**30)] == [None, 0, 0, 7, checks.MAX_SEQ]
    for bad in (1.5, "1", True):
        with pytest.raises(ValueError, match="x must be a whole number"):
            checks.seq_bound(bad, "x")


def test_ids_that_cannot_be_stored_are_not_looked_for() -> None:
    """S-11: and each of the others once, in order."""
    assert checks.possible_ids(["b", "", "a\0", "\ud800", "a", "b"]) == ["b", "a"]
    with pytest.raises(TypeError, match="sequence of ids"):
        checks.possible_ids("abc")
