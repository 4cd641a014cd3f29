"""Which files version control leaves out."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.tools._ignore import Rules, Walk


def tree(root: Path, files: dict[str, str]) -> Path:
    """Make files under a directory."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def walked(root: Path) -> list[str]:
    """Return the paths that a walk gives, directories with a slash."""
    return ["/".join(found.parts) + ("/" if found.is_directory else "") for found in Walk(str(root), lambda: None)]


def test_a_walk_is_in_the_order_of_names_directories_before_what_is_in_them(tmp_path: Path):
    """The same every time."""
    tree(tmp_path, {"b": "", "a/x": "", "a-b/y": "", "Z": "", ".hidden": ""})
    assert walked(tmp_path) == [".hidden", "Z", "a/", "a/x", "a-b/", "a-b/y", "b"]


def test_rules_of_all_directories_count_the_nearest_wins(tmp_path: Path):
    """Nested ignore files, negation, directories only."""
    tree(
        tmp_path,
        {
            ".gitignore": "*.log\n/build/\n# comment\n\n!keep.log\n",
            "a.log": "", "keep.log": "", "build/x": "", "sub/build/x": "",
            "sub/.gitignore": "!b.log\nkeep.log\n", "sub/b.log": "", "sub/c.log": "", "sub/keep.log": "",
        },
    )  # fmt: skip
    assert walked(tmp_path) == [".gitignore", "keep.log", "sub/", "sub/.gitignore", "sub/b.log", "sub/build/", "sub/build/x"]


def test_rules_above_the_searched_directory_count(tmp_path: Path):
    """A search in a part of the project."""
    tree(tmp_path, {".gitignore": "*.log\n/sub/x\n", "sub/a.log": "", "sub/x": "", "sub/y": ""})
    assert walked(tmp_path / "sub") == ["y"]


def test_a_nested_repository_inherits_nothing(tmp_path: Path):
    """4.2: its files are its own."""
    tree(tmp_path, {".git/config": "", ".gitignore": "*.log\n", "lib/.git/config": "", "lib/a.log": "", "lib/.gitignore": "*.tmp\n", "lib/b.tmp": ""})
    assert walked(tmp_path) == [".gitignore", "lib/", "lib/.gitignore", "lib/a.log"]


def test_the_repositorys_own_exclude_file_and_the_search_tools_files_count(tmp_path: Path):
    """`.ignore` wins over `.gitignore`."""
    tree(
        tmp_path,
        {".git/info/exclude": "secret\n", "secret": "", ".gitignore": "*.gen\n", "a.gen": "", ".ignore": "!a.gen\n*.big\n", "b.big": "", "c": ""},
    )
    assert walked(tmp_path) == [".gitignore", ".ignore", "a.gen", "c"]


def test_links_are_listed_and_not_followed(tmp_path: Path):
    """B107: a loop is no trouble, and nothing outside is reached."""
    tree(tmp_path, {"d/x": ""})
    (tmp_path / "d" / "up").symlink_to("..")
    (tmp_path / "link").symlink_to("d")
    assert walked(tmp_path) == ["d/", "d/up", "d/x", "link"]


def test_the_root_may_be_a_link(tmp_path: Path):
    """B107."""
    tree(tmp_path, {"d/x": ""})
    (tmp_path / "link").symlink_to("d")
    assert walked(tmp_path / "link") == ["x"]


def test_an_ignore_file_that_is_none_is_passed_over(tmp_path: Path):
    """A directory or a pipe of that name neither fails nor blocks."""
    (tmp_path / ".gitignore").mkdir()
    os.mkfifo(tmp_path / ".ignore")
    tree(tmp_path, {"a": ""})
    assert walked(tmp_path) == [".gitignore/", ".ignore", "a"]


def test_a_deep_tree_is_walked(tmp_path: Path):
    """Deeper than Python's own stack would allow by half."""
    path = tmp_path
    for _ in range(600):
        path = path / "d"
    os.makedirs(path)
    assert len(walked(tmp_path)) == 600


def test_a_directory_that_vanishes_or_refuses_is_noted(tmp_path: Path):
    """The rest is still walked."""
    tree(tmp_path, {"a/x": "", "b/y": ""})
    walk = Walk(str(tmp_path), lambda: None)
    seen: list[str] = []
    for found in walk:
        seen.append("/".join(found.parts))
        if seen[-1] == "a":
            shutil.rmtree(tmp_path / "a")
    assert seen == ["a", "b", "b/y"]
    assert walk.unreadable == ["a"]


names = st.sampled_from(["a", "b", "ab", "a b", "foo", "foo.txt", "bar.log", "#x", "!y", "x*", ".env"])
patterns = st.lists(
    st.sampled_from(
        ["a", "/a", "a/", "/a/", "*", "*.txt", "!a", "!*.txt", "foo*", "**/foo", "foo/**", "a/b", "/a/b", "a/**/b", "!a/b", "a/*", "!/a", "?",
         "[ab]", "[!a]", "\\#x", "\\!y", "#x", "a ", "a\\ b", "a b", "*/foo", "**", "/**/b", "x\\*", ".env", "!.env", "foo.*", "/*", "!/foo/", "b/"]
    ),
    max_size=5,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(patterns, patterns, st.sets(st.lists(names, min_size=1, max_size=3).map("/".join), min_size=1, max_size=8))
def test_a_walk_leaves_out_exactly_what_git_does(top: list[str], nested: list[str], paths: set[str]):
    """Compared with `git ls-files`, on random trees with two ignore files."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for path in sorted(paths):
            try:
                tree(root, {path: ""})
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue
        if (root / "a").is_dir():
            (root / "a" / ".gitignore").write_text("\n".join(nested))
        (root / ".gitignore").write_text("\n".join(top))
        subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
        listed = subprocess.run(
            ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "-z", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
        )
        expected = sorted(name for name in listed.stdout.decode().split("\0") if name)
        assert sorted(path for path in walked(root) if not path.endswith("/")) == expected


def test_many_rules_and_many_files_are_fast():
    """A hundred rules against twenty thousand paths."""
    rules = Rules("\n".join(f"name{n}.*" for n in range(90)) + "\n" + "\n".join(f"/dir{n}/*/x" for n in range(10)))
    begun = time.monotonic()
    for n in range(20_000):
        rules.verdict(["src", "package", f"module{n}.py"], False)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("line", ["[", "a[", "\\", "/", "//", "!", "!/", "**/", "***", "[]", "[!]", "\udcff*", " "])
def test_broken_rules_are_harmless(line: str):
    """Whatever is in an ignore file."""
    Rules(line).verdict(["a", "b"], False)


def test_a_rule_with_a_long_run_of_spaces_takes_no_time():
    """A repository must not be able to hang a search."""
    started = time.monotonic()
    assert Rules("a" + " " * 200_000 + "x\n").verdict(["a"], False) is None
    assert time.monotonic() - started < 5


def test_spaces_at_the_end_of_a_rule_count_only_behind_a_backslash():
    """The first of them, as git reads it; two backslashes are one that is meant as it is."""
    assert Rules("a  \n").verdict(["a"], False) is True
    assert Rules("a\\  \n").verdict(["a "], False) is True
    assert Rules("a\\\\  \n").verdict(["a\\"], False) is True
