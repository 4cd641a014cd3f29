"""Abort signals: set once, seen everywhere, and turned into `Aborted` at an await."""

from __future__ import annotations

import asyncio
import threading

import pytest

from laneway import AbortController, Aborted
from laneway.abort import abort_scope


def test_a_signal_is_set_once_and_keeps_its_reason() -> None:
    """The first reason stays."""
    controller = AbortController()
    controller.signal.raise_if_aborted()
    controller.abort("first")
    controller.abort("second")
    assert controller.signal.aborted
    assert controller.signal.reason == "first"
    with pytest.raises(Aborted, match="first"):
        controller.signal.raise_if_aborted()


def test_callbacks_run_once_and_can_be_taken_back() -> None:
    """Also at once when it is too late to wait."""
    controller = AbortController()
    seen: list[int] = []
    controller.signal.on_abort(lambda: seen.append(1))
    controller.signal.on_abort(lambda: seen.append(2))()
    controller.abort()
    controller.signal.on_abort(lambda: seen.append(3))
    assert seen == [1, 3]


def test_a_child_follows_its_parent_until_closed() -> None:
    """And never the other way round."""
    parent = AbortController()
    with AbortController(parent.signal) as left:
        pass
    child, other = AbortController(parent.signal), AbortController(parent.signal)
    other.abort()
    assert not parent.signal.aborted
    parent.abort("stop")
    assert (child.signal.aborted, child.signal.reason, left.signal.aborted) == (True, "stop", False)


async def test_waiting_ends_when_another_thread_aborts() -> None:
    """A signal may be set from anywhere."""
    controller = AbortController()
    thread = threading.Timer(0.02, controller.abort)
    thread.start()
    async with asyncio.timeout(5):
        await controller.signal.wait()
    await controller.signal.wait()
    thread.join()


async def test_a_scope_turns_the_abort_into_an_exception_at_the_await() -> None:
    """The task itself is not left cancelled."""
    controller = AbortController()
    asyncio.get_running_loop().call_later(0.01, controller.abort, "enough")
    with pytest.raises(Aborted, match="enough"):
        async with abort_scope(controller.signal):
            await asyncio.sleep(5)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)
    with pytest.raises(Aborted):
        async with abort_scope(controller.signal):
            raise AssertionError("never entered")


async def test_a_scope_leaves_other_cancellations_alone() -> None:
    """Somebody else's cancellation still ends the task, also together with an abort."""
    controller = AbortController()

    async def work(abort: bool) -> None:
        async with abort_scope(controller.signal):
            if abort:
                controller.abort()
            await asyncio.sleep(5)

    for abort in (False, True):
        task = asyncio.create_task(work(abort))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_scope_that_ends_well_does_not_hear_a_later_abort() -> None:
    """Nor does one without a signal."""
    controller = AbortController()
    async with abort_scope(controller.signal):
        await asyncio.sleep(0)
    async with abort_scope(None):
        await asyncio.sleep(0)
    controller.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
