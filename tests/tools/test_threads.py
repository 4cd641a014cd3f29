"""Threads for sync tools: reused, many at once, never in the way of the process."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from laneway.tools import _threads
from laneway.tools._threads import run_in_thread


async def test_an_idle_thread_is_used_again():
    """A run of a thousand calls does not start a thousand threads."""
    names: set[int] = set()
    for _ in range(30):
        names.add(await run_in_thread(threading.get_ident, {}))
        async with asyncio.timeout(5):
            while not _threads._idle:
                await asyncio.sleep(0)
    assert len(names) < 10


async def test_a_flood_leaves_only_a_few_idle_threads():
    """Threads beyond a handful end when their work is done."""
    barrier = threading.Barrier(40)
    async with asyncio.timeout(15):
        await asyncio.gather(*(run_in_thread(barrier.wait, {"timeout": 10}) for _ in range(40)))
        while len([t for t in threading.enumerate() if t.name == "laneway-tool"]) > 12:
            await asyncio.sleep(0.01)


def test_a_result_that_comes_after_the_loop_has_closed_is_dropped():
    """The thread ends quietly."""
    release = threading.Event()

    async def main() -> None:
        task = asyncio.ensure_future(run_in_thread(release.wait, {"timeout": 5}))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    release.set()
    assert asyncio.run(run_in_thread(lambda: "next", {})) == "next"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_threads_of_its_own():
    """Idle threads do not survive a fork: the child must not wait for them."""
    asyncio.run(run_in_thread(lambda: None, {}))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if asyncio.run(asyncio.wait_for(run_in_thread(lambda: 5, {}), 5)) == 5 else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
