"""The gate of a drive pass: what an effect must pass before it starts."""

from __future__ import annotations

from typing import Literal

from laneway.abort import AbortController, AbortSignal
from laneway.errors import Aborted
from laneway.harness.results import Closed


class Gate:
    """Open, then aborting or closed, for good.

    `hold()` comes first and is immediate: nothing new is let in. `fire()` follows when the cancellation is durable: what runs is told
    through `signal`. `close()` does both, for a harness that stops.
    """

    __slots__ = ("_controller", "state")

    def __init__(self) -> None:
        self.state: Literal["open", "aborting", "closed"] = "open"
        self._controller = AbortController()

    @property
    def signal(self) -> AbortSignal:
        """Set when what runs should stop."""
        return self._controller.signal

    def admit(self) -> None:
        """Return if an effect may start now.

        Raises:
            Aborted: an abort was requested; the machine reconciles once it is durable.
            Closed: the harness stops.
        """
        if self.state == "closed":
            raise Closed
        if self.state == "aborting":
            raise Aborted("the operation is being aborted")

    def hold(self) -> None:
        """Let nothing new in."""
        if self.state == "open":
            self.state = "aborting"

    def fire(self) -> None:
        """Tell what runs that cancellation is durable."""
        self.hold()
        self._controller.abort("the operation was aborted")

    def close(self) -> None:
        """Let nothing in any more and stop what runs."""
        self.state = "closed"
        self._controller.abort("the harness closed")
