"""The order of commits: one after the other, each to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from laneway.abort import end_of, first_step, start_task

_T = TypeVar("_T")


class CommitLine:
    """Runs pieces of work in the order of the calls. A caller who is cancelled stops waiting; the work is done all the same."""

    def __init__(self) -> None:
        self._last: asyncio.Task[Any] | None = None  # each waits for the one before it

    async def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Do `work` when all before it is done; return its result or raise its exception."""
        loop = asyncio.get_running_loop()
        task = start_task(loop, _in_turn(work, self._last))
        self._last = task
        if not task.done():
            try:
                await end_of(task)
            except asyncio.CancelledError:
                task.add_done_callback(_see)
                raise
        return task.result()

    async def drain(self) -> None:
        """Wait until all that was asked for is done."""
        while self._last is not None and not self._last.done():
            await asyncio.wait([self._last])


async def _in_turn(work: Callable[[], Coroutine[Any, Any, _T]], before: asyncio.Task[Any] | None) -> _T:
    await first_step()
    if before is not None and not before.done():
        await asyncio.wait([before])
    return await work()


def _see(task: asyncio.Task[Any]) -> None:
    """Mark how it ended as seen: its caller is gone."""
    if not task.cancelled():
        task.exception()
