"""Disks of their own for tests that fill one or take it away from whoever writes; mounting needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")


@contextmanager
def mounted(where: Path, size: str) -> Iterator[Path]:
    """Mount a disk of a size such as "1m" at `where`, which is made, for as long as the block runs."""
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def make_read_only(disk: Path) -> None:
    """Refuse all writing to a disk from now on."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
