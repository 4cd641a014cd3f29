"""The order of commits: one after the other, each to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class CommitLine:
    """Runs pieces of work in the order of the calls. A caller who is cancelled stops waiting; the work is done all the same."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Do `work` when all before it is done; return its result or raise its exception."""
        task = asyncio.create_task(self._in_turn(work))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        await asyncio.wait([task])  # unlike awaiting the task itself, this can be cancelled without cancelling the task
        return task.result()

    async def _in_turn(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with self._lock:
            return await work()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, even if its caller is gone

    async def drain(self) -> None:
        """Wait until all that was asked for is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)
