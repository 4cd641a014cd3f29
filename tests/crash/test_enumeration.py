"""Every script survives a crash at every commit, whether the commit was lost, applied unheard, or followed by its effect."""

from __future__ import annotations

import asyncio
import os

import pytest

from crash.enumeration import MODES, Mode, Script, count, crash_once, crash_twice
from crash.scripts import HEARD, SCRIPTS

ALL = os.environ.get("LANEWAY_CRASH") == "all"


@pytest.mark.parametrize("script", SCRIPTS + HEARD, ids=lambda script: script.name)
async def test_a_script_runs_undisturbed(script: Script) -> None:
    """Each script ends well on its own (the base of comparison)."""
    async with asyncio.timeout(20):
        assert await count(script) > 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("script", SCRIPTS + HEARD, ids=lambda script: script.name)
async def test_a_crash_at_every_commit_is_survived(script: Script, mode: Mode) -> None:
    """K-01 … K-31: reopen, resume, and nothing is lost, doubled or left over."""
    commits = await count(script)
    for at in range(1, commits + 1):
        async with asyncio.timeout(20):
            await crash_once(script, at, mode)


PAIRS = [(first, again) for first in MODES for again in MODES] if ALL else [("lost", "lost"), ("before", "after")]


@pytest.mark.parametrize(("first", "again"), PAIRS)
@pytest.mark.parametrize("script", SCRIPTS + HEARD, ids=lambda script: script.name)
async def test_a_second_crash_during_the_recovery_is_survived(script: Script, first: Mode, again: Mode) -> None:
    """K-31: the recovery of a recovery converges too, at every commit of it (of every commit with LANEWAY_CRASH=all)."""
    commits = await count(script)
    for at in range(1, commits + 1, 1 if ALL else max(1, commits // 6)):
        async with asyncio.timeout(60):
            await crash_twice(script, at, first, again)
