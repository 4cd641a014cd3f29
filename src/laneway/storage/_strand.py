"""Threads for stores that block: many strands of work on a few shared threads.

A strand runs its jobs one at a time, in the order in which they were given, on whatever thread is free: what a thread of its
own would give, without five hundred threads for five hundred open sessions. The threads end soon after the last strand is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from laneway.errors import LeaseLost
from laneway.storage._answers import Answers, answers

_T = TypeVar("_T")

MAX_THREADS: Final = 8
"""More than the cores of a small machine: most of the time a thread waits for the disk."""
LINGER: Final = 1.0
"""Seconds that threads stay when no strand is left: whoever opens one session after another need not wait for a thread each time."""
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


class _Worker:
    """One of the shared threads, as those see it who give it something to do.

    It waits at an eventfd where there is one. Writing to that lets go of Python's lock, which the thread needs as soon as it is awake; one
    that is woken through a lock or a queue finds it held, and sleeps a second time.
    """

    __slots__ = ("_bell", "_given", "_queue")

    def __init__(self) -> None:
        self._given: list[Strand] = []
        self._queue: SimpleQueue[None] = SimpleQueue()
        self._bell = -1
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or too many open files
            self._bell = os.eventfd(0, os.EFD_CLOEXEC)

    def give(self, strand: Strand) -> None:
        """Wake the thread with its next strand."""
        self._given.append(strand)
        self.ring()

    def ring(self) -> None:
        """Wake the thread."""
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)
        else:
            self._queue.put(None)

    def take(self, patience: float | None) -> Strand | None:
        """Wait until something is given, or `patience` seconds; None if it is woken without anything."""
        if not self._given:
            if self._bell < 0:
                with contextlib.suppress(Empty):
                    self._queue.get(timeout=patience)
            elif patience is None or self._rings_within(patience):
                os.read(self._bell, 8)  # unlike `eventfd_read`, it is begun again after a signal
        return self._given.pop() if self._given else None

    def _rings_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Give the bell back; nobody rings any more."""
        if self._bell >= 0:
            os.close(self._bell)


class _Pool:
    """The shared threads: started when a strand is ready and none of them waits, ended when there has been no strand for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: deque[Strand] = deque()  # for whom there is no thread yet
        self._idle: list[_Worker] = []  # the last one first: it is the warmest
        self._threads = 0
        self._strands = 0
        self._deserted = 0.0  # since when there is no strand

    def join(self) -> None:
        with self._lock:
            self._strands += 1

    def leave(self) -> None:
        with self._lock:
            self._strands -= 1
            if self._strands > 0:
                return
            self._deserted = time.monotonic()
            idle = list(self._idle)
        for worker in idle:
            worker.ring()  # from now on it waits a while only

    def schedule(self, strand: Strand) -> None:
        with self._lock:
            if not self._idle:
                if self._threads < MAX_THREADS:
                    self._start_thread(strand)
                else:
                    self._ready.append(strand)
                return
            worker = self._idle.pop()
        worker.give(strand)

    def _start_thread(self, strand: Strand) -> None:
        threading.Thread(target=self._work, args=(deque([strand]),), name="laneway-storage", daemon=True).start()
        self._threads += 1

    def _work(self, first: deque[Strand]) -> None:
        worker = _Worker()
        strand: Strand | None = first.popleft()
        while strand is not None:
            strand.run_turn()
            strand = None  # an idle thread keeps nothing alive
            strand = self._next(worker)
        worker.close()

    def _next(self, worker: _Worker) -> Strand | None:
        """Wait for the next strand; None to end."""
        with self._lock:
            if self._ready:
                return self._ready.popleft()
            self._idle.append(worker)
        while True:
            strand = worker.take(None if self._strands else LINGER)
            if strand is not None:
                return strand
            with self._lock:
                if self._strands == 0 and worker in self._idle and time.monotonic() - self._deserted >= LINGER:
                    self._idle.remove(worker)
                    self._threads -= 1
                    return None


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
        """Do `work` after all before it and return its result. A caller who is cancelled stops waiting; the work is done all the same.

        Raises:
            LeaseLost: this process was forked from the one that made the strand.
        """
        if self.is_inherited:
            raise LeaseLost("this storage belongs to the process that this one was forked from: open the session again here")
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

    @property
    def is_inherited(self) -> bool:
        """Whether this is a child that was forked from the strand's process: it has none of the threads, and what they work on is the parent's."""
        return self._pool is not _pool

    def _add(self, job: _Job) -> bool:
        if self.is_inherited:
            return False
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
        if self.is_inherited:  # the lock may have been taken when the process was forked, for ever
            return
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
