"""The find tool on real trees."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from laneway.abort import AbortController
from laneway.errors import ToolError
from laneway.tools import find_tool

Run = Callable[..., Awaitable[Any]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project under `src/app`, so that a pattern `src/**` must not be confused by its own path."""
    root = tmp_path / "src" / "app"
    for name in ("src/a.ts", "src/deep/b.ts", "lib/src/c.ts", ".github/ci.yml", "README.md", "node_modules/x/y.ts", "empty/"):
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    (root / ".gitignore").write_text("node_modules\n")
    return root


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.ts", ["lib/src/c.ts", "src/a.ts", "src/deep/b.ts"]),
        ("src/*.ts", ["src/a.ts"]),
        ("./src/*.ts", ["src/a.ts"]),
        ("src/**", ["src/a.ts", "src/deep/", "src/deep/b.ts"]),
        ("**/src/*.ts", ["lib/src/c.ts", "src/a.ts"]),
        ("src", ["lib/src/", "src/"]),
        ("src/", ["lib/src/", "src/"]),
        ("readme*", ["README.md"]),
        ("Readme*", []),
        ("*.{yml,md}", [".github/ci.yml", "README.md"]),
        ("empty", ["empty/"]),
        ("y.ts", []),
    ],
)
async def test_patterns_find_what_they_should(project: Path, ask: Run, pattern: str, found: list[str]):
    """Regression 56: anchoring; directories with a slash, hidden files, ignore rules, smart case."""
    text = await ask(find_tool(project), pattern=pattern)
    assert text == ("\n".join(found) if found else "No files found matching the pattern")


async def test_results_are_relative_to_the_searched_path(project: Path, ask: Run):
    """Also for a pattern that begins with that path."""
    assert await ask(find_tool(project), pattern="*.ts", path="src") == "a.ts\ndeep/b.ts"
    assert await ask(find_tool(project), pattern=f"{project}/src/*.ts") == "src/a.ts"


async def test_an_absolute_pattern_elsewhere_is_explained(project: Path, fails: Run):
    """The directory belongs in `path`."""
    assert "pass its directory as path" in str(await fails(find_tool(project), pattern="/etc/*.conf"))


async def test_the_limit_is_reached_only_if_there_is_more(project: Path, call: Run):
    """And the notice says what to do."""
    exact = await call(find_tool(project), pattern="*.ts", limit=3)
    assert not exact.details["limit_reached"]
    more = await call(find_tool(project), pattern="*.ts", limit=2)
    assert more.content[0].text == ("lib/src/c.ts\nsrc/a.ts\n\n[2 results limit reached: there are more. Use limit=4, or a narrower pattern or path]")
    assert (await call(find_tool(project), pattern="*.ts", limit=-3)).details["results"] == 1


async def test_output_past_the_byte_limit_is_counted_not_shown(tmp_path: Path, ask: Run):
    """How many there are is still known."""
    for number in range(100):
        (tmp_path / f"file{number:03}").touch()
    text = await ask(find_tool(tmp_path, max_bytes=100), pattern="file*")
    assert text.endswith("file011\n\n[100B limit reached: 12 of the 100 results are shown]")


async def test_odd_files_do_not_hang_a_search(tmp_path: Path, ask: Run):
    """B107: a loop of links, a pipe, a socket, an undecodable name."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff")).touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock"))
        async with asyncio.timeout(5):
            assert await ask(find_tool(tmp_path), pattern="*") == "d/\nd/up\npipe\nsock\n\ufffd"


async def test_what_cannot_be_searched_is_explained(project: Path, fails: Run):
    """A file, a missing directory."""
    assert "README.md is not a directory" in str(await fails(find_tool(project), pattern="*", path="README.md"))
    assert "does not exist" in str(await fails(find_tool(project), pattern="*", path="gone"))


async def test_an_abort_stops_the_walk(tmp_path: Path, call: Run, monkeypatch: pytest.MonkeyPatch):
    """The thread looks at every entry."""
    abort = AbortController()
    seen: list[str] = []
    for number in range(50):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "x").touch()
    real = os.scandir

    def scandir(path: Any) -> Any:
        seen.append(str(path))
        if len(seen) == 5:
            abort.abort()
        return real(path)

    monkeypatch.setattr("laneway.tools._ignore.os.scandir", scandir)
    with pytest.raises(ToolError, match="The search was aborted"):
        await call(find_tool(tmp_path), abort=abort, pattern="*")
    assert len(seen) == 5


async def test_a_confined_search_stays_inside(tmp_path: Path, ask: Run, fails: Run):
    """B116."""
    (tmp_path / "app").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    (tmp_path / "app" / "link").symlink_to("../out")
    tool = find_tool(tmp_path / "app", confine=True)
    assert await ask(tool, pattern="*") == "link"
    assert "outside" in str(await fails(tool, pattern="*", path="link"))
