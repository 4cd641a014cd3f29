"""Shared by the tests of the command line: an environment of the test's own, and a provider on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.running import environment


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Nobody's keys and settings."""
    home = tmp_path / "home"
    home.mkdir()
    return environment(home)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder to work in, with a file."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("The launch is on 14 March.\n")
    return folder
