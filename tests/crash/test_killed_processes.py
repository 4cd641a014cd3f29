"""Processes that are really killed, over files."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from crash.scripts import SCRIPTS

STEP = 1 if os.environ.get("LANEWAY_CRASH") == "all" else 5
NAMES = [script.name for script in SCRIPTS]


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_process_killed_at_a_commit_is_survived(kind: str, name: str, tmp_path: Path) -> None:
    """K-01 … K-31 with SIGKILL, before and after commits, and once more in the recovery (every commit with LANEWAY_CRASH=all)."""
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(here.parent)}
    async with asyncio.timeout(300):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(here / "killing.py"), kind, str(tmp_path), name, str(STEP),
            env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert int(out) > 1
