"""Ctrl-C and its relatives while something runs: the first one asks it to stop and settle, the second one leaves at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from laneway.cli._exit import ABORTED, HANGUP, INTERRUPTED, TERMINATED, leave_at_once

_HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAME_PRESS = 0.1
"""Seconds in which the same signal again is the same press of a key: terminals and wrappers often send it twice."""
_SETTLED = {signal.SIGINT: ABORTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HANGUP}
_AT_ONCE = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HANGUP}


class Signals:
    """Heeds SIGINT, SIGTERM and SIGHUP inside of `with`; those that were ignored before (`nohup`) stay ignored.

    `on_first` is called in the main thread between two instructions of whatever it does: it must only pass the word on.
    """

    def __init__(self, on_first: Callable[[signal.Signals], None]) -> None:
        self.received: signal.Signals | None = None
        self._on_first = on_first
        self._at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int | None:
        """The exit code of a run that settled after a signal; None if there was none."""
        return None if self.received is None else _SETTLED[self.received]

    def __enter__(self) -> Signals:
        for number in _HEEDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        heard, now = signal.Signals(number), time.monotonic()
        if self.received is None:
            self.received, self._at = heard, now
            self._on_first(heard)
        elif heard is not self.received or now - self._at > _SAME_PRESS:
            with suppress(OSError):
                os.write(2, b"\nlaneway: left at once; what was under way was not finished\n")
            leave_at_once(_AT_ONCE[heard])
