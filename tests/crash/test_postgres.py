"""The scripts over Postgres: crashed in place, recovered by another connection's session."""

from __future__ import annotations

import asyncio
import os

import pytest

from crash.enumeration import Script, process, recover, wrap
from crash.scripts import SCRIPTS
from laneway.storage.postgres import PostgresStorage
from storage.pg import PostgresForTests

STEP = 1 if os.environ.get("LANEWAY_CRASH") == "all" else 7


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
async def test_a_crash_over_postgres_is_survived(script: Script, postgres: PostgresForTests) -> None:
    """K-01 … K-31 on the third kind of store: before a commit, and in it (every commit with LANEWAY_CRASH=all)."""
    at = 1
    while True:
        ended = True
        for mode in ("before", "lost"):
            async with asyncio.timeout(60):
                world = script.world()
                world.storage = await PostgresStorage.open(postgres.dsn, f"{script.name}-{at}-{mode}-{os.getpid()}")
                ended = not await process(script, world, wrap(world.storage, at, mode), script.play) and ended
                await recover(script, world)
                await world.storage.close()
        if ended:
            return
        at += STEP
