"""A timer that does not need the event loop."""

from __future__ import annotations

import gc
import threading
import time

from laneway.storage._heartbeat import Heartbeats


class Counter:
    """Something that beats."""

    def __init__(self) -> None:
        self.beats = 0
        self.enough = threading.Event()

    def beat(self) -> None:
        self.beats += 1
        if self.beats == 3:
            self.enough.set()


def threads() -> int:
    """Return how many timers run."""
    return sum(thread.name == "laneway-heartbeats" for thread in threading.enumerate())


def gone(limit: float = 20) -> bool:
    """Wait until no timer runs."""
    deadline = time.monotonic() + limit
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return threads() == 0


def test_it_beats_while_nothing_else_runs() -> None:
    """S-26: the caller's thread is blocked all the time."""
    heartbeats, counter = Heartbeats(), Counter()
    key = heartbeats.add(counter.beat, 0.01)
    assert counter.enough.wait(20)
    heartbeats.remove(key)
    assert gone()
    after = counter.beats
    time.sleep(0.05)
    assert counter.beats == after


def test_each_has_its_own_interval() -> None:
    """A slow one does not slow a quick one, whichever came first."""
    heartbeats, slow, quick = Heartbeats(), Counter(), Counter()
    keys = [heartbeats.add(slow.beat, 60), heartbeats.add(quick.beat, 0.01)]
    assert quick.enough.wait(20)
    assert slow.beats == 0
    for key in keys:
        heartbeats.remove(key)
        heartbeats.remove(key)
    assert gone()


def test_what_is_gone_does_not_beat() -> None:
    """The timer keeps nobody alive, and ends when nobody is left."""
    heartbeats, counter = Heartbeats(), Counter()
    heartbeats.add(counter.beat, 0.01)
    assert counter.enough.wait(20)
    del counter
    gc.collect()
    assert gone()


def test_it_starts_again() -> None:
    """After an end, or while it is ending."""
    heartbeats = Heartbeats()
    for _ in range(20):
        counter = Counter()
        key = heartbeats.add(counter.beat, 0.001)
        assert counter.enough.wait(20)
        heartbeats.remove(key)
    assert gone()
