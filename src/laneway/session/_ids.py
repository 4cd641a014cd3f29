"""Ids: UUIDv7, strictly increasing within a process, with a timestamp that can be inherited.

An id sorts by its time. Ids of one millisecond are ordered by a 12-bit counter, so that `new()` never goes backwards and
`after()` can place a tool result right behind its assistant message, however much later the tool ran.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from threading import Lock

from laneway.messages import now_ms

_COUNTER_BITS = 12
_COUNTER_MAX = (1 << _COUNTER_BITS) - 1
_RANDOM_BITS = 62
_REMEMBERED = 256


class Ids:
    """Makes a session's entry, usage and operation ids. Thread-safe.

    `clock` gives Unix milliseconds and `random_bits` that many random bits; both exist for tests.
    """

    def __init__(self, *, clock: Callable[[], int] = now_ms, random_bits: Callable[[int], int] | None = None) -> None:
        self._clock = clock
        self._random_bits = random_bits or _random_bits
        self._lock = Lock()
        self._last_ms = 0
        self._counters: dict[int, int] = {}

    def new(self) -> str:
        """Return an id of now that sorts after every id this object made with `new()`."""
        with self._lock:
            ms = self._clock()
            if ms < self._last_ms:
                ms = self._last_ms
            made, self._last_ms = self._next(ms, -1)
        return made

    def at(self, timestamp: int) -> str:
        """Return an id of the given time (Unix ms) that sorts after the others this object made for that millisecond."""
        with self._lock:
            return self._next(timestamp, -1)[0]

    def after(self, id: str) -> str:
        """Return an id that inherits the time of `id`, sorts after it, and after what `after(id)` gave before.

        Raises:
            ValueError: `id` is not a UUIDv7.
        """
        ms, counter = _parse(id)
        with self._lock:
            return self._next(ms, counter)[0]

    @staticmethod
    def timestamp_of(id: str) -> int:
        """Return the time inside an id, in Unix milliseconds. Raises ValueError if it is not a UUIDv7."""
        return _parse(id)[0]

    def _next(self, ms: int, above: int) -> tuple[str, int]:
        counters = self._counters
        counter = counters.get(ms, -1) + 1
        if counter <= above:
            counter = above + 1
        while counter > _COUNTER_MAX:  # more than 4096 ids in this millisecond: go on in the next one, the order holds
            ms += 1
            counter = counters.get(ms, -1) + 1
        if ms not in counters and len(counters) >= _REMEMBERED:
            del counters[next(iter(counters))]
        counters[ms] = counter
        return _format(ms, counter, self._random_bits(_RANDOM_BITS)), ms


_DRAWN = 128  # ids
_pool: list[int] = []


def _random_bits(bits: int) -> int:
    """Return that many random bits (at most 64). They are drawn for many ids at once: a system call per id would cost as much as the id."""
    try:
        return _pool.pop() >> (64 - bits)
    except IndexError:
        _pool.extend(struct.unpack(f"{_DRAWN}Q", os.urandom(8 * _DRAWN)))
        return int.from_bytes(os.urandom(8), "big") >> (64 - bits)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)  # a child must not give the ids that its parent gives


def _format(ms: int, counter: int, random: int) -> str:
    time = f"{ms:012x}"
    return f"{time[:8]}-{time[8:]}-7{counter:03x}-{0x8000 | random >> 48:04x}-{random & 0xFFFFFFFFFFFF:012x}"


def _parse(id: str) -> tuple[int, int]:
    digits = id.replace("-", "")
    try:
        value = int(digits, 16)
    except ValueError:
        value = -1
    if len(digits) != 32 or value < 0 or (value >> 76) & 0xF != 0x7:
        raise ValueError(f"{id!r} is not a UUIDv7: only ids made by session.ids carry a time to inherit")
    return value >> 80, (value >> 64) & _COUNTER_MAX
