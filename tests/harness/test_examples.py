"""The examples of the harness run as they stand."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_a_durable_conversation_goes_on_in_the_next_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """04: the second run has the history of the first."""
    main = runpy.run_path(str(EXAMPLES / "04_durable.py"))["main"]
    for _ in range(2):
        await main(str(tmp_path))
    first, second = capsys.readouterr().out.split("[add: 42]")[1:]
    assert first.count("assistant") == 2
    assert second.count("assistant") == 4


async def test_a_killed_agent_is_resumed_and_charges_once(tmp_path: Path) -> None:
    """05: the finished tool is not run again; the harmless one is."""
    async with asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLES / "05_crash_and_resume.py"), str(tmp_path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "found open: ['run']" in out.decode()
    assert "ended: completed" in out.decode()
    assert (tmp_path / "world.txt").read_text().splitlines() == ["charged 5.0", "report begun", "report begun"]


async def test_lanes_share_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    """06: two lanes grow from one entry, and moving the first leaves them alone."""
    await runpy.run_path(str(EXAMPLES / "06_lanes.py"))["main"]()
    out = capsys.readouterr().out
    assert "review ['user', 'assistant', 'user', 'assistant']" in out
    assert "main begins anew: []" in out
