"""The way back from a thread to an event loop, shorter than `call_soon_threadsafe`.

That one makes a handle with a copy of the context, and wakes the loop through a pair of sockets, for each answer. Here answers wait in
a queue, and one counter of the kernel's wakes the loop for all that have come. Where the system or the loop has no such thing, it is
`call_soon_threadsafe` after all.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import weakref
from collections import deque
from typing import Any, Protocol


class Answers(Protocol):
    """Takes outcomes on any thread and puts them into the futures of one event loop."""

    def give(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """Settle a future, unless its caller was cancelled or its loop is closed."""
        ...

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether it is that loop's."""
        ...


class _Bell:
    """Rings the loop through an eventfd, which is closed when neither the loop nor a thread has a use for it any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._given: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._rung = False
        self._bell = -1
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # In a context of its own: the loop would keep the caller's for as long as it lives.
        contextvars.Context().run(loop.add_reader, self._bell, self._deliver)

    def __del__(self) -> None:
        if self._bell >= 0:
            os.close(self._bell)

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop() is loop

    def give(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._given.append((future, result, error))
        if not self._rung:
            self._rung = True
            os.eventfd_write(self._bell, 1)

    def _deliver(self) -> None:
        os.eventfd_read(self._bell)
        self._rung = False  # before looking: what is given from now on rings again
        given = self._given
        for _ in range(len(given)):
            _settle(*given.popleft())


class _Calls:
    """Any loop on any system."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop is loop

    def give(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed while its caller waited: nobody is left to tell
            self._loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # its caller was cancelled; the work was done all the same
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = weakref.WeakKeyDictionary()


def answers(loop: asyncio.AbstractEventLoop) -> Answers:
    """Return the way to `loop`, which runs in the calling thread."""
    bell = _bells.get(loop)
    if bell is None:
        if not hasattr(os, "eventfd"):
            return _Calls(loop)
        try:
            bell = _bells[loop] = _Bell(loop)
        except (NotImplementedError, OSError):  # a loop without readers, or too many open files
            return _Calls(loop)
    return bell
