"""A timer with a thread of its own: leases are renewed however busy the event loop is."""

from __future__ import annotations

import heapq
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

LINGER: Final = 1.0
"""Seconds that the thread stays when there is nothing to beat for: the next lease need not wait for a thread to start."""


class Heartbeats:
    """Calls methods again and again until they are removed, or the objects that they belong to are gone.

    A beat must be short and must not raise: it hands the work on to whatever thread does it.
    """

    def __init__(self, first_key: int = 0) -> None:
        self._changed = threading.Condition()
        self._beats: dict[int, tuple[float, weakref.WeakMethod[Callable[[], object]]]] = {}  # key → interval, what to call
        self._due: list[tuple[float, int]] = []  # a heap of times and keys
        self._next_key = first_key
        self._thread: threading.Thread | None = None

    def add(self, beat: Callable[[], object], interval: float) -> int:
        """Call the bound method `beat` every `interval` seconds from now on; return what `remove` takes."""
        with self._changed:
            key = self._next_key
            self._next_key += 1
            self._beats[key] = (interval, weakref.WeakMethod(beat))
            heapq.heappush(self._due, (time.monotonic() + interval, key))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="laneway-heartbeats", daemon=True)
                self._thread.start()
            self._changed.notify()
            return key

    @property
    def next_key(self) -> int:
        """Above every key that was given."""
        return self._next_key

    def remove(self, key: int) -> None:
        """Stop calling it."""
        with self._changed:
            self._beats.pop(key, None)
            if not self._beats:
                self._changed.notify()

    def _run(self) -> None:
        while (beat := self._next()) is not None:
            beat()
            del beat  # while waiting, this thread keeps nothing alive

    def _next(self) -> Callable[[], object] | None:
        """Wait for the next beat that is due; None when there has been nothing to beat for for a while, which ends the thread."""
        with self._changed:
            while self._beats or self._changed.wait_for(lambda: self._beats, LINGER):
                due, key = self._due[0]
                delay = due - time.monotonic()
                if key in self._beats and delay > 0:
                    self._changed.wait(delay)
                    continue
                heapq.heappop(self._due)
                interval, reference = self._beats.get(key, (0.0, None))
                beat = None if reference is None else reference()
                if beat is None:
                    self._beats.pop(key, None)
                    continue
                heapq.heappush(self._due, (time.monotonic() + interval, key))
                return beat
            self._due.clear()
            self._thread = None
            return None


_heartbeats = Heartbeats()


def heartbeats() -> Heartbeats:
    """Return the running process's own."""
    return _heartbeats


def _forget_the_parents_thread() -> None:
    global _heartbeats
    # A forked child has none of its parent's threads. What it inherited and closes must not stop a beat of its own.
    _heartbeats = Heartbeats(_heartbeats.next_key)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parents_thread)
