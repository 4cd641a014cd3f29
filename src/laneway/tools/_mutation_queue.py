"""One change at a time to each file, in the order they were asked for; different files do not wait for each other.

A file is known by its real path, so `a.txt`, `./sub/../a.txt` and a link to it stand in one line. There is one queue per event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable

from laneway.abort import AbortSignal, abort_scope
from laneway.errors import Aborted, ToolError
from laneway.tools._paths import Place
from laneway.tools._work import in_thread

_Ticket = asyncio.Future[None]


class _Queue:
    """The lines of one event loop: per real path the tickets, the first of which holds the file."""

    def __init__(self) -> None:
        self.entrance = asyncio.Lock()
        self.lines: dict[str, deque[_Ticket]] = {}

    def join(self, key: str) -> _Ticket:
        ticket: _Ticket = asyncio.get_running_loop().create_future()
        line = self.lines.setdefault(key, deque())
        line.append(ticket)
        if line[0] is ticket:
            ticket.set_result(None)
        return ticket

    def leave(self, key: str, ticket: _Ticket) -> None:
        line = self.lines[key]
        line.remove(ticket)
        if not line:
            del self.lines[key]
        elif not line[0].done():
            line[0].set_result(None)


_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = weakref.WeakKeyDictionary()


@contextlib.asynccontextmanager
async def exclusive(find: Callable[[], Place], signal: AbortSignal, *, aborted: str) -> AsyncGenerator[Place]:
    """Hold the file that `find()` (called in a thread) leads to; enter in the order of the calls.

    Finding goes through one entrance, so that a slow look-up cannot let a later call go first. An abort or a cancellation while waiting
    leaves the line, with `ToolError(aborted)` or `CancelledError`; whoever holds the file keeps it until its block ends.
    """
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _Queue()
    try:
        async with abort_scope(signal), queue.entrance:
            place = await in_thread(lambda _: find(), signal, aborted=aborted)
            ticket = queue.join(place.real)
    except Aborted:
        raise ToolError(aborted) from None
    try:
        await _wait(ticket, signal, aborted)
        yield place
    finally:
        queue.leave(place.real, ticket)


async def _wait(ticket: _Ticket, signal: AbortSignal, aborted: str) -> None:
    if ticket.done():
        return
    try:
        async with abort_scope(signal):
            await asyncio.shield(ticket)
    except Aborted:
        raise ToolError(aborted) from None
