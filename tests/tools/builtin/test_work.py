"""Blocking work off the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from laneway.abort import AbortController
from laneway.errors import ToolError
from laneway.tools._work import Stop, in_thread


async def test_work_that_hangs_holds_up_nobody_else():
    """A dead network drive under fifty reads must not stop the fifty-first."""
    gate = threading.Event()
    signal = AbortController().signal
    hung = [asyncio.create_task(in_thread(lambda stop: gate.wait(30), signal, aborted="aborted")) for _ in range(50)]
    try:
        async with asyncio.timeout(10):
            await asyncio.sleep(0.05)
            assert await in_thread(lambda stop: 7, signal, aborted="aborted") == 7
    finally:
        gate.set()
        await asyncio.gather(*hung)


async def test_an_abort_before_the_start_runs_nothing():
    """And says so in the words of the work."""
    abort = AbortController()
    abort.abort()
    ran: list[int] = []
    with pytest.raises(ToolError, match="it was aborted"):
        await in_thread(lambda stop: ran.append(1), abort.signal, aborted="it was aborted")
    assert ran == []


async def test_work_sees_an_abort_between_its_steps():
    """`check` raises in the thread, and the caller gets it."""
    abort = AbortController()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(stop: Stop) -> None:
        loop.call_soon_threadsafe(begun.set)
        while True:
            stop.check()

    task = asyncio.create_task(in_thread(work, abort.signal, aborted="aborted"))
    async with asyncio.timeout(5):
        await begun.wait()
        abort.abort()
        with pytest.raises(ToolError, match="aborted"):
            await task


@pytest.mark.parametrize("again", [False, True])
async def test_a_cancelled_change_is_waited_for(again: bool):
    """The lock on a file must not be let go while something still writes to it, however often the caller is cancelled."""
    gate, done = threading.Event(), threading.Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(stop: Stop) -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(5)
        assert stop.requested
        done.set()

    task = asyncio.create_task(in_thread(work, AbortController().signal, aborted="aborted", finish=True))
    async with asyncio.timeout(5):
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0.02)
        if again:
            task.cancel()
            await asyncio.sleep(0.02)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert done.is_set()


async def test_a_cancelled_look_is_waited_for_only_briefly(monkeypatch: pytest.MonkeyPatch):
    """It changes nothing, so it may be left behind."""
    monkeypatch.setattr("laneway.tools._work._CANCEL_GRACE", 0.05)
    gate = threading.Event()
    task = asyncio.create_task(in_thread(lambda stop: gate.wait(10), AbortController().signal, aborted="aborted"))
    await asyncio.sleep(0.02)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task
    gate.set()
