"""A stream of events fed by a run in its own task, with a result at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from laneway.abort import AbortController
from laneway.errors import WouldDeadlock

E = TypeVar("E")
R = TypeVar("R")


class _Channel(Generic[E]):
    """The queue between producer and consumer. It never refers to the stream, so that an abandoned stream is garbage."""

    __slots__ = ("done", "items", "waiters")

    def __init__(self) -> None:
        self.items: deque[E] = deque()
        self.waiters: list[asyncio.Future[None]] = []
        self.done = False

    async def put(self, event: E) -> None:
        self.items.append(event)
        self.wake()

    def wake(self) -> None:
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def news(self) -> None:
        """Wait for an event or the end; whoever else waits may have taken it."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter.cancelled() and waiter in self.waiters:
                self.waiters.remove(waiter)

    def finish(self, _: object = None) -> None:
        self.done = True
        self.wake()


class EventStream(Generic[E, R]):
    """`async for event in stream`, then `await stream.result()`.

    The run produces in its own task and never waits for the consumer. Events are delivered in order, once (each to one of several
    consumers). Abandoning the stream
    (`aclose()`, leaving `async with`, `break` out of `async for`, dropping the last reference) aborts the run. `result()` needs no iteration;
    it returns what the run returned, or raises what it raised. What the run raised also ends the iteration, after the last event.
    """

    def __init__(
        self,
        produce: Callable[[Callable[[E], Coroutine[Any, Any, None]]], Coroutine[Any, Any, R]],
        controller: AbortController,
        *,
        inside: Callable[[], bool] = lambda: False,
    ) -> None:
        self._channel: _Channel[E] = _Channel()
        self._controller = controller
        self._inside = inside  # whether the caller is part of the run, and would wait for itself
        self._task = asyncio.get_running_loop().create_task(produce(self._channel.put))
        self._task.add_done_callback(self._channel.finish)
        self._task.add_done_callback(partial(_retrieve, controller))

    async def __anext__(self) -> E:
        channel = self._channel
        while not channel.items:
            if channel.done:
                self._raise_failure()
                raise StopAsyncIteration
            await channel.news()
        return channel.items.popleft()

    async def __aiter__(self) -> AsyncGenerator[E]:
        finished = False
        channel = self._channel
        try:
            while True:
                while channel.items:
                    yield channel.items.popleft()
                if channel.done:
                    break
                await channel.news()
            finished = True
        finally:
            if not finished:
                self._abandon()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    async def result(self) -> R:
        """Wait for the run to end and return its result; cancelling the wait does not stop the run.

        Raises:
            WouldDeadlock: called from inside the run (a tool, a hook, a listener).
        """
        if self._inside():
            raise WouldDeadlock("result() was called from inside the run it waits for: return first")
        return await asyncio.shield(self._task)

    async def aclose(self) -> None:
        """Abort the run if it is still going, and wait until it has settled (not from inside the run, which would wait for itself)."""
        self._abandon()
        if self._inside():
            return
        with contextlib.suppress(Exception):
            await asyncio.shield(self._task)

    def _abandon(self) -> None:
        if not self._task.done():
            self._controller.abort("the consumer left the event stream")

    async def __aenter__(self) -> EventStream[E, R]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        task = getattr(self, "_task", None)
        if task is not None and not task.done() and not task.get_loop().is_closed():
            self._controller.abort("the event stream was dropped")


def _retrieve(controller: AbortController, task: asyncio.Task[Any]) -> None:
    """Mark the task's exception as seen: it belongs to whoever asks for the result. One cancelled before it began leaves a run to abort."""
    if task.cancelled():
        controller.abort("the task of the event stream was cancelled")
    else:
        task.exception()
