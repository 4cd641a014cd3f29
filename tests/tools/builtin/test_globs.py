"""Glob patterns over paths."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.tools._globs import Glob, PathFilter, component_regex, expand_braces, rooted


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("*.py", ["a.py", ".py"], ["a.pyc", "d/a.py"]),
        ("src/*.py", ["src/a.py"], ["src/d/a.py", "src", "x/src/a.py"]),
        ("src/**", ["src/a", "src/a/b"], ["src", "x/src/a"]),
        ("**/test", ["test", "a/test", "a/b/test"], ["test/a", "atest"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a", "b", "a/bx"]),
        ("**", ["a", "a/b"], []),
        ("a/**/b/**/c", ["a/b/c", "a/b/x/b/c", "a/1/b/2/3/c"], ["a/c", "a/b"]),
        ("?[a-c][!x]", ["zay", "1b2"], ["zax", "zdy", "ab"]),
        ("[[:digit:]]*", ["1x"], ["x1"]),
        ("\\*.txt", ["*.txt"], ["a.txt"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("[]x]", ["]", "x"], ["[]"]),
        ("[z-a]", [], ["z", "-"]),
        ("[open", ["[open"], ["o"]),
        ("*a*b*c", ["abc", "xaxbxc", "aabbcc"], ["acb", "abcd"]),
    ],
)
def test_patterns_fit_what_they_should(pattern: str, fitting: list[str], others: list[str]):
    """Stars stay in their component, double stars cross components."""
    glob = Glob(pattern)
    assert [path for path in fitting if not glob.matches(path.split("/"))] == []
    assert [path for path in others if glob.matches(path.split("/"))] == []


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_a_component_fits_as_the_textbook_says(pattern: str, name: str):
    """Compared with a regular expression that backtracks."""
    naive = re.compile("".join({"*": ".*", "?": "."}.get(char, char) for char in pattern))
    assert bool(re.fullmatch(component_regex(pattern), name)) == bool(naive.fullmatch(name))


@given(st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=6), st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6))
def test_a_path_fits_as_the_textbook_says(pattern: list[str], path: list[str]):
    """Compared with the definition: `**` is any number of components, but at the end at least one."""

    def fits(pattern: list[str], path: list[str]) -> bool:
        if not pattern:
            return not path
        if pattern[0] == "**":
            return any(fits(pattern[1:], path[skip:]) for skip in range(1 if len(pattern) == 1 else 0, len(path) + 1))
        return bool(path) and pattern[0] in ("*", path[0]) and fits(pattern[1:], path[1:])

    if any(left == right == "**" for left, right in pairwise(pattern)):
        pattern = [part for at, part in enumerate(pattern) if at == 0 or part != "**" or pattern[at - 1] != "**"]
    assert Glob("/".join(pattern)).matches(path) == fits(pattern, path)


def test_a_hostile_pattern_takes_no_time():
    """Patterns come from models and from repositories; none may hang a search."""
    begun = time.monotonic()
    assert not Glob("*a" * 60 + "b").matches(["a" * 255])
    assert not Glob("/".join(["**", "a"] * 30) + "/b").matches(["a"] * 200)
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    ("pattern", "expanded"),
    [
        ("a.{ts,tsx}", ["a.ts", "a.tsx"]),
        ("{a,b}/{c,d}", ["a/c", "a/d", "b/c", "b/d"]),
        ("{a,{b,c}}x", ["ax", "bx", "cx"]),
        ("{a,}b", ["ab", "b"]),
        ("{a}", ["{a}"]),
        ("{a,b", ["{a,b"]),
        ("a}b", ["a}b"]),
        ("\\{a,b}", ["\\{a,b}"]),
    ],
)
def test_braces_are_alternatives(pattern: str, expanded: list[str]):
    """Nested ones too; what is no group stands for itself."""
    assert sorted(expand_braces(pattern)) == sorted(expanded)


def test_too_many_alternatives_are_not_expanded():
    """Sixteen groups of two would be sixty thousand patterns."""
    assert expand_braces("{a,b}" * 16) == ["{a,b}" * 16]


def test_a_pattern_without_a_slash_is_for_any_depth():
    """And a leading dot or slash anchors it."""
    assert rooted("*.py") == "**/*.py"
    assert rooted("src/*.py") == "src/*.py"
    assert rooted("./src/*.py") == "src/*.py"
    assert rooted("/src") == "src"
    assert rooted("./*.py") == "*.py"


def test_a_filter_can_be_turned_around():
    """`!` means everything else."""
    assert PathFilter("!*.{min.js,map}").fits(["a", "b.js"])
    assert not PathFilter("!*.{min.js,map}").fits(["a", "b.min.js"])
