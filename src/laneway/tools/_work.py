"""Blocking work off the event loop that an abort or a cancellation can stop.

It runs in daemon threads, as many as are needed: a read that hangs on a dead network drive holds up no other tool and no exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from laneway.abort import AbortSignal
from laneway.errors import ToolError
from laneway.tools._threads import run_in_thread

T = TypeVar("T")

_CANCEL_GRACE = 1.0  # seconds that cancelled reading gets to notice before its thread is left to finish alone


class Stop:
    """What blocking work asks between two steps: whether to give up. Safe to read from any thread."""

    __slots__ = ("_cancelled", "_message", "_signal")

    def __init__(self, signal: AbortSignal, message: str) -> None:
        self._signal = signal
        self._message = message
        self._cancelled = False

    @property
    def requested(self) -> bool:
        """Whether the run was aborted or the awaiting task cancelled."""
        return self._cancelled or self._signal.aborted

    def check(self) -> None:
        """Raise `ToolError` with the message of this work if it should give up."""
        if self.requested:
            raise ToolError(self._message)

    def cancel(self) -> None:
        """Make `requested` true."""
        self._cancelled = True


async def in_thread(work: Callable[[Stop], T], signal: AbortSignal, *, aborted: str, finish: bool = False) -> T:
    """Run `work(stop)` in a thread and return what it returns; it should call `stop.check()` between steps.

    `aborted` is the text of the error when the work gives up. A cancellation of the caller tells the work to stop and waits for it: for
    ever with `finish` (a change to a file must never go on behind a lock that was let go), otherwise for a second.
    """
    stop = Stop(signal, aborted)
    stop.check()
    future = asyncio.ensure_future(run_in_thread(partial(work, stop), {}))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.cancel()
        await _settle(future, None if finish else _CANCEL_GRACE)
        raise


async def _settle(future: asyncio.Future[T], seconds: float | None) -> None:
    """Wait until `future` is done, at most `seconds`, through further cancellations."""
    loop = asyncio.get_running_loop()
    deadline = None if seconds is None else loop.time() + seconds
    while not future.done():
        left = None if deadline is None else deadline - loop.time()
        if left is not None and left <= 0:
            return
        try:
            await asyncio.wait([future], timeout=left)
        except asyncio.CancelledError:
            continue
