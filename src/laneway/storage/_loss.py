"""That a lease was lost: found out by whatever thread is the first to see it, and told to those who asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from laneway.abort import void
from laneway.errors import LeaseLost

Told: TypeAlias = Callable[[LeaseLost], None]


class Loss:
    """Noted once, for good. `error` says who has the session now."""

    __slots__ = ("_lock", "_told", "error")

    def __init__(self) -> None:
        self.error: LeaseLost | None = None
        self._told: dict[object, Told] = {}
        self._lock = threading.Lock()

    def note(self, error: LeaseLost) -> LeaseLost:
        """Remember the loss, tell of it, and return the error that counts: the first one."""
        with self._lock:
            if self.error is not None:
                return self.error
            self.error = error
            told, self._told = self._told, {}
        for callback in told.values():
            callback(error)
        return error

    def tell(self, callback: Told) -> Callable[[], None]:
        """Call `callback`, which must not raise or wait, once, in the thread that finds out (at once if it is known); return how to stop that."""
        key = object()
        with self._lock:
            if self.error is None:
                self._told[key] = callback
                return lambda: void(self._told.pop(key, None))
        callback(self.error)
        return lambda: None
