"""Threads for stores that block: many strands of work on a few shared threads.

A strand runs its jobs one at a time, in the order in which they were given, on whatever thread is free: what a thread of its
own would give, without five hundred threads for five hundred open sessions. The threads end when the last strand is closed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from laneway.storage._answers import Answers, answers

_T = TypeVar("_T")

MAX_THREADS: Final = 8
"""More than the cores of a small machine: most of the time a thread waits for the disk."""
_TURN: Final = 32  # jobs that a strand may run before another strand has its turn


class _Job:
    """Work, and who waits for its outcome, if anybody does."""

    __slots__ = ("_answers", "_future", "_work")

    def __init__(self, work: Callable[[], Any], answers: Answers | None, future: asyncio.Future[Any] | None) -> None:
        self._work = work
        self._answers = answers
        self._future = future

    def run(self) -> None:
        """Do the work, on a thread of the pool, and hand its outcome to the event loop."""
        result, error = None, None
        try:
            result = self._work()
        except BaseException as raised:
            error = raised
        if self._answers is not None and self._future is not None:
            self._answers.give(self._future, result, error)


class _Pool:
    """The shared threads: started when more strands are ready than threads wait, ended when the last strand has left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: SimpleQueue[Strand | None] = SimpleQueue()
        self._queued = 0  # strands in _ready
        self._waiting = 0  # threads that wait for one
        self._threads = 0
        self._strands = 0

    def join(self) -> None:
        with self._lock:
            self._strands += 1

    def leave(self) -> None:
        with self._lock:
            self._strands -= 1
            if self._strands == 0:
                for _ in range(self._threads):
                    self._ready.put(None)

    def schedule(self, strand: Strand) -> None:
        with self._lock:
            self._queued += 1
            self._ready.put(strand)
            if self._queued > self._waiting and self._threads < MAX_THREADS:
                self._start_thread()

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="laneway-storage", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._waiting += 1
            strand = self._ready.get()
            with self._lock:
                self._waiting -= 1
                if strand is not None:
                    self._queued -= 1
                elif self._strands == 0:
                    self._end_thread()
                    return
            if strand is not None:
                strand.run_turn()
                strand = None  # an idle thread keeps nothing alive

    def _end_thread(self) -> None:
        self._threads -= 1
        if self._threads == 0 and self._queued > 0:  # a strand joined behind the call to end
            self._start_thread()


class Strand:
    """Jobs done one at a time, in order, off the event loop. `close` it when the last one is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[_Job] = deque()
        self._active = False
        self._closed = False
        self._answers: Answers | None = None  # the way to the loop that asked last
        self._pool = _pool
        self._pool.join()

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do `work` after all before it and return its result. A caller who is cancelled stops waiting; the work is done all the same."""
        loop = asyncio.get_running_loop()
        way = self._answers
        if way is None or not way.belongs_to(loop):
            way = self._answers = answers(loop)
        future: asyncio.Future[_T] = loop.create_future()
        if not self._add(_Job(work, way, future)):
            raise RuntimeError("the strand is closed")
        return await future

    def post(self, work: Callable[[], object]) -> bool:
        """Do `work`, which must not raise, when its turn comes; callable from any thread. False if the strand is closed."""
        return self._add(_Job(work, None, None))

    def _add(self, job: _Job) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._jobs.append(job)
            if self._active:
                return True
            self._active = True
        self._pool.schedule(self)
        return True

    def run_turn(self) -> None:
        """Run some of the jobs; for the pool's threads only."""
        for _ in range(_TURN):
            with self._lock:
                if not self._jobs:
                    self._active = False
                    return
                job = self._jobs.popleft()
            job.run()
        self._pool.schedule(self)

    def close(self) -> None:
        """Take no more jobs; what was given is still done."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._pool.leave()


_pool = _Pool()


def _forget_the_parents_threads() -> None:
    global _pool
    _pool = _Pool()  # a forked child has none of its parent's threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parents_threads)
