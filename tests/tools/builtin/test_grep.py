"""The grep tool, with each way to search."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneway.abort import AbortController
from laneway.errors import ToolError
from laneway.tools import grep_tool

Run = Callable[..., Awaitable[Any]]


def make(root: Path, files: dict[str, str | bytes]) -> Path:
    """Make files under a directory."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project."""
    return make(
        tmp_path,
        {
            ".gitignore": "*.log\nbuild/\n",
            "src/main.py": "import os\n\ndef main():\n    return 1\n",
            "src/util.py": "def util():\n    pass\n\n\n\ndef other():\n    pass\n",
            "src/web/app.ts": "function main() {}\n",
            ".hidden/conf": "def hidden\n",
            "debug.log": "def log\n",
            "build/out.py": "def out\n",
            ".git/config": "def git\n",
            "win.txt": b"def one\r\nend\r\n",
            "data.bin": b"def \0 bin",
        },
    )


async def test_matches_come_back_with_file_and_line(project: Path, call: Run, backend: Any):
    """Hidden files are searched, ignored, binary and repository files are not; in the order of names."""
    result = await call(grep_tool(project, backend=backend), pattern="def ")
    assert result.content[0].text.split("\n") == [
        ".hidden/conf:1: def hidden", "src/main.py:3: def main():", "src/util.py:1: def util():", "src/util.py:6: def other():", "win.txt:1: def one",
    ]  # fmt: skip
    assert result.details["matches"] == 5
    assert result.details["files"] == 4
    assert result.details["backend"] == backend


async def test_context_lines_are_marked_and_groups_are_separated(project: Path, ask: Run, backend: Any):
    """`file-line- text` for context, `--` between groups that do not touch."""
    tool = grep_tool(project, backend=backend)
    assert await ask(tool, pattern="def ", path="src/util.py", context=1) == "\n".join(
        ["util.py:1: def util():", "util.py-2-     pass", "--", "util.py-5- ", "util.py:6: def other():", "util.py-7-     pass"]
    )
    assert "--" not in await ask(tool, pattern="def ", path="src/util.py", context=2)


async def test_no_match_is_no_error(project: Path, ask: Run, backend: Any):
    """The model learns that it is not there."""
    assert await ask(grep_tool(project, backend=backend), pattern="nowhere_to_be_found") == "No matches found"


async def test_case_literal_and_end_of_line(project: Path, ask: Run, backend: Any):
    """The options, and a dollar before a Windows line end."""
    tool = grep_tool(project, backend=backend)
    assert await ask(tool, pattern="DEF MAIN", ignore_case=True) == "src/main.py:3: def main():"
    assert await ask(tool, pattern="DEF MAIN") == "No matches found"
    assert await ask(tool, pattern="main():", literal=True) == "src/main.py:3: def main():"
    assert await ask(tool, pattern="one$") == "win.txt:1: def one"
    assert await ask(tool, pattern="[[:alpha:]]+ util") == "src/util.py:1: def util():"


@pytest.mark.parametrize(
    ("glob", "files"),
    [
        ("*.py", {"main.py", "util.py"}),
        ("main.py", {"main.py"}),
        ("*.{py,ts}", {"main.py", "util.py", "web/app.ts"}),
        ("web/*.ts", {"web/app.ts"}),
        ("/main.py", {"main.py"}),
        ("**/*.ts", {"web/app.ts"}),
        ("src/*.py", set[str]()),
        ("!*.py", {"web/app.ts"}),
        ("[mu]*.py", {"main.py", "util.py"}),
    ],
)
async def test_a_glob_is_relative_to_the_searched_path(project: Path, ask: Run, backend: Any, glob: str, files: set[str]):
    """Regression 55."""
    text = await ask(grep_tool(project, backend=backend), pattern="main|util", path="src", glob=glob)
    assert {line.split(":")[0] for line in text.split("\n") if ":" in line} == files


async def test_a_glob_does_not_bring_back_what_is_ignored(project: Path, ask: Run, backend: Any):
    """Ignored stays ignored, also if a repository's own rules whitelist something else."""
    make(project, {"src/.gitignore": "!kept.md\n", "src/kept.md": "def kept\n"})
    tool = grep_tool(project, backend=backend)
    assert await ask(tool, pattern="def", glob="*.log") == "No matches found"
    assert "kept.md" not in await ask(tool, pattern="def", glob="*.py")


async def test_an_ignored_file_can_be_searched_by_name(project: Path, ask: Run, backend: Any):
    """Who names it wants it."""
    assert await ask(grep_tool(project, backend=backend), pattern="def", path="debug.log") == "debug.log:1: def log"
    assert await ask(grep_tool(project, backend=backend), pattern="def", path="build") == "out.py:1: def out"


async def test_the_limit_is_reached_only_if_there_is_more(tmp_path: Path, call: Run, backend: Any):
    """Regression 55: exactly `limit` matches are not a limit."""
    make(tmp_path, {"a": "x\n" * 5, "b": "x\n"})
    tool = grep_tool(tmp_path, backend=backend)
    exact = await call(tool, pattern="x", limit=6)
    assert not exact.details["limit_reached"]
    assert "[" not in exact.content[0].text
    more = await call(tool, pattern="x", limit=5)
    assert more.details["limit_reached"]
    assert more.content[0].text.endswith("a:5: x\n\n[5 matches limit reached: there are more. Use limit=10, or a narrower pattern, path or glob]")
    assert (await call(tool, pattern="x", limit=0)).details["matches"] == 1


async def test_context_after_the_last_match_is_shown_and_before_the_next_is_not(tmp_path: Path, ask: Run, backend: Any):
    """The limit cuts between groups."""
    make(tmp_path, {"a": "1\nx\n3\n4\n5\n6\nx\n"})
    text = await ask(grep_tool(tmp_path, backend=backend), pattern="x", context=1, limit=1)
    assert text.split("\n\n")[0] == "a-1- 1\na:2: x\na-3- 3"


async def test_a_long_line_is_shortened_around_the_match(tmp_path: Path, call: Run, backend: Any):
    """B106: a minified line of three megabytes; the match is visible, and the mark is told apart from other notices."""
    make(tmp_path, {"min.js": "a" * 1_500_000 + "needle" + "é" * 1_000_000 + "\nneedle short\n" + "needle" + "b" * 1000})
    async with asyncio.timeout(10):
        result = await call(grep_tool(tmp_path, backend=backend), pattern="needle")
    first, second, third = result.content[0].text.split("\n\n[")[0].split("\n")
    assert first.startswith("min.js:1: …aaaa")
    assert "needleéééé" in first
    assert first.endswith("é…")
    assert len(first) <= 515
    assert second == "min.js:2: needle short"
    assert third.startswith("min.js:3: needlebbb")
    assert "2 lines were shortened to 500 characters: use read to see whole lines" in result.content[0].text
    assert result.details["lines_shortened"] == 2


async def test_output_past_the_byte_limit_is_counted_not_shown(tmp_path: Path, call: Run, backend: Any):
    """How many there are is still known."""
    make(tmp_path, {"a": f"{'x' * 100}\n" * 1000})
    result = await call(grep_tool(tmp_path, backend=backend, max_bytes=5000), pattern="x", limit=2000)
    assert len(result.content[0].text.encode()) < 5200
    assert "4.9KB limit reached: 46 of the 1000 matches are shown" in result.content[0].text
    assert result.details["truncated_by"] == "bytes"


async def test_what_cannot_be_searched_is_explained(project: Path, fails: Run, backend: Any):
    """A broken pattern, a line break, a missing path, a pipe."""
    tool = grep_tool(project, backend=backend)
    assert "literal=true" in str(await fails(tool, pattern="a("))
    for pattern in ("a\nb", "a\\nb"):
        assert "each line is searched on its own" in str(await fails(tool, pattern=pattern))
    assert "does not exist" in str(await fails(tool, pattern="x", path="gone"))
    os.mkfifo(project / "pipe")
    assert "neither a directory nor a regular file" in str(await fails(tool, pattern="x", path="pipe"))


async def test_an_escaped_backslash_before_an_n_is_no_line_break(tmp_path: Path, ask: Run, backend: Any):
    """It searches for the two characters."""
    make(tmp_path, {"a": "print('\\n')\n"})
    assert await ask(grep_tool(tmp_path, backend=backend), pattern="\\\\n") == "a:1: print('\\n')"
    assert await ask(grep_tool(tmp_path, backend=backend), pattern="\\n", literal=True) == "a:1: print('\\n')"


async def test_look_around_works_with_every_backend(project: Path, ask: Run, backend: Any):
    """What ripgrep refuses is searched without it."""
    assert await ask(grep_tool(project, backend=backend), pattern="(?<=def )main(?=\\()") == "src/main.py:3: def main():"


async def test_links_pipes_and_sockets_do_not_hang_a_search(tmp_path: Path, ask: Run, backend: Any):
    """B107: only regular files are read, and a loop is not followed; a linked root is."""
    make(tmp_path, {"d/a": "x\n"})
    (tmp_path / "d" / "up").symlink_to("..")
    (tmp_path / "root").symlink_to("d")
    os.mkfifo(tmp_path / "d" / "pipe")
    async with asyncio.timeout(10):
        assert await ask(grep_tool(tmp_path, backend=backend), pattern="x") == "d/a:1: x"
        assert await ask(grep_tool(tmp_path, backend=backend), pattern="x", path="root") == "a:1: x"


async def test_odd_names_and_odd_bytes_do_not_crash(tmp_path: Path, ask: Run, backend: Any):
    """B44: undecodable names and content, UTF-16, colons in names."""
    make(
        tmp_path,
        {os.fsdecode(b"\xff"): "find me\n", "a:1-b": "find me\n", "latin": b"find m\xe9\n", "wide": "\ufefffind me too\n".encode("utf-16-le")},
    )
    assert await ask(grep_tool(tmp_path, backend=backend), pattern="find") == "\n".join(
        ["a:1-b:1: find me", "latin:1: find m\ufffd", "wide:1: find me too", "\ufffd:1: find me"]
    )
    assert await ask(grep_tool(tmp_path, backend=backend), pattern="x\ud83d") == "No matches found"


async def test_the_persons_own_ripgrep_configuration_is_not_used(project: Path, ask: Run, monkeypatch: pytest.MonkeyPatch, backend: Any):
    """Regression 55."""
    make(project, {"rc": "--max-count=1\n--glob=!*.py\n"})
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(project / "rc"))
    assert "util.py:6" in await ask(grep_tool(project, backend=backend), pattern="def ")


async def test_large_files_are_searched_with_context_in_bounded_time(tmp_path: Path, ask: Run, backend: Any):
    """B106: the match is near the end of sixty megabytes."""
    with (tmp_path / "big.log").open("wb") as file:
        for _ in range(60):
            file.write(b"some line of a log\n" * 55_000)
        file.write(b"before\nneedle\nafter\n")
    begun = time.monotonic()
    async with asyncio.timeout(60):
        text = await ask(grep_tool(tmp_path, backend=backend), pattern="needle", context=1)
    assert text == "big.log-3300001- before\nbig.log:3300002: needle\nbig.log-3300003- after"
    assert time.monotonic() - begun < 30


async def test_a_pattern_that_explodes_can_be_aborted(tmp_path: Path, call: Run):
    """Python's own expressions can take for ever; they do it in a process that can be ended."""
    make(tmp_path, {"a": "a" * 64 + "\n"})
    abort = AbortController()
    asyncio.get_running_loop().call_later(0.5, abort.abort)
    async with asyncio.timeout(10):
        with pytest.raises(ToolError, match="The search was aborted"):
            await call(grep_tool(tmp_path, backend="python"), abort=abort, pattern="(a+)+$b")


async def test_a_cancelled_search_leaves_nothing_behind(tmp_path: Path, call: Run, backend: Any, monkeypatch: pytest.MonkeyPatch):
    """No process, no temporary file."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    make(tmp_path, {"a.txt": "a" * 64 + "\n"})
    task = asyncio.create_task(call(grep_tool(tmp_path, backend=backend), pattern="(a+)+$b(?!c)", glob="*.txt"))
    await asyncio.sleep(0.2)
    task.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert os.listdir(tmp_path / "tmp") == []


async def test_a_confined_search_stays_inside(tmp_path: Path, ask: Run, fails: Run, backend: Any):
    """B116: a link does not lead out, neither as path nor on the way."""
    make(tmp_path, {"app/in": "secret?\n", "out/x": "secret\n"})
    (tmp_path / "app" / "link").symlink_to("../out")
    (tmp_path / "app" / "file").symlink_to("../out/x")
    tool = grep_tool(tmp_path / "app", confine=True, backend=backend)
    assert await ask(tool, pattern="secret") == "in:1: secret?"
    for path in ("link", "file", "../out", str(tmp_path / "out")):
        assert "outside" in str(await fails(tool, pattern="secret", path=path))


async def test_without_ripgrep_it_must_not_be_asked_for(tmp_path: Path, fails: Run, ask: Run, monkeypatch: pytest.MonkeyPatch):
    """`rg` is an explicit wish, `auto` is not."""
    make(tmp_path, {"a": "x\n"})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ripgrep (rg) is not installed" in str(await fails(grep_tool(tmp_path, backend="rg"), pattern="x"))
    assert await ask(grep_tool(tmp_path), pattern="x") == "a:1: x"


lines = st.lists(st.text("ab x\té😀", max_size=12), max_size=8)


@pytest.mark.skipif(shutil.which("rg") is None, reason="compares with ripgrep, which is not installed")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(["a", "b/c", "b/d.txt", "e.txt"]), st.tuples(lines, st.booleans())),
    st.sampled_from(["a", "a.b", "^a", "b$", "^$", "x+", "\\s", "[^a]b", "a|é", "\\w+ x", "."]),
    st.integers(0, 2),
    st.integers(1, 6),
)
def test_both_ways_to_search_give_the_same(tmp_path: Path, files: dict[str, tuple[list[str], bool]], pattern: str, context: int, limit: int):
    """Our own search stands in for ripgrep without a difference."""
    root = tmp_path / "t"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    make(root, {name: "\n".join(content) + ("\n" if ends and content else "") for name, (content, ends) in files.items()})

    async def search(backend: Any) -> str:
        arguments = {"pattern": pattern, "context": context, "limit": limit}
        return (await grep_tool(root, backend=backend).execute("1", arguments, AbortController().signal, lambda partial: None)).content[0].text  # type: ignore[union-attr] - always text

    assert asyncio.run(search("python")) == asyncio.run(search("rg"))


async def test_a_name_with_a_line_break_is_one_name(tmp_path: Path, ask: Run, backend: Any):
    """B107: both halves of it, on one line, and a glob sees it whole."""
    make(tmp_path, {"a\nb.txt": "x\nneedle\n", "c.txt": "needle\nx\n", "d/e\n--\nf.txt": "needle"})
    tool = grep_tool(tmp_path, backend=backend)
    expected = ["a\ufffdb.txt-1- x", "a\ufffdb.txt:2: needle", "--", "c.txt:1: needle", "c.txt-2- x", "--", "d/e\ufffd--\ufffdf.txt:1: needle"]
    assert (await ask(tool, pattern="needle", context=1)).split("\n") == expected
    assert await ask(tool, pattern="needle", glob="a?b.*") == "a\ufffdb.txt:2: needle"


async def test_a_binary_file_that_is_named_is_searched(tmp_path: Path, ask: Run, backend: Any):
    """B106: "no matches" would not be true; in a directory binary files are passed over."""
    make(tmp_path, {"data.bin": b"first match\nmatch \0 two\n"})
    tool = grep_tool(tmp_path, backend=backend)
    assert await ask(tool, pattern="match", path="data.bin") == "data.bin:1: first match\ndata.bin:2: match \ufffd two"
    assert await ask(tool, pattern="match") == "No matches found"


async def test_the_end_of_a_long_line_is_not_marked_as_cut(tmp_path: Path, ask: Run, backend: Any):
    """B106: nothing was left out there, and a Windows line end is none of the line."""
    make(tmp_path, {"long.txt": b"x" * 2000 + b"needle" + b"y" * 20 + b"\r\n"})
    first = (await ask(grep_tool(tmp_path, backend=backend), pattern="needle")).split("\n")[0]
    assert first.startswith("long.txt:1: …x")
    assert first.endswith("xneedle" + "y" * 20)
