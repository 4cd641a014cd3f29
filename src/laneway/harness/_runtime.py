"""What the lanes of one harness share: the session, the live configuration, hooks, events, and one end for all."""

from __future__ import annotations

import inspect

from laneway.errors import HarnessFault, LeaseLost
from laneway.harness._bus import Bus
from laneway.harness._environment import Environment
from laneway.harness._events import Fault
from laneway.harness._hooks import HookEvent, Hooks
from laneway.harness._line import Line
from laneway.harness.results import Closed
from laneway.llm._writer import describe
from laneway.session import EntryProjector, Session
from laneway.session._context import Projection
from laneway.storage.base import CustomEntry


class Runtime:
    """One per harness. It writes nothing itself."""

    def __init__(self, session: Session, environment: Environment) -> None:
        self.session = session
        self.environment = environment
        self.bus = Bus()
        self.hooks = Hooks(self._hook_failed)
        self.projectors = {name: self._guarded(name, projector) for name, projector in environment.entry_projectors.items()}
        self.lines: dict[str, Line] = {}
        self.closed = False
        self.fault: HarnessFault | None = None

    def check(self) -> None:
        """Return if the harness works.

        Raises:
            HarnessFault: the one fault, the same object every time.
            Closed: `close()` was called.
        """
        if self.fault is not None:
            raise self.fault
        if self.closed:
            raise Closed

    def fail(self, error: Exception) -> HarnessFault:
        """Stop the harness because of `error` and return the fault to raise. The first error counts."""
        if isinstance(error, HarnessFault):
            return error
        if self.fault is not None:
            return self.fault
        fault = HarnessFault(f"the harness of session {self.session.metadata.id} stopped: {describe(error)}; open the session again to go on")
        fault.__cause__ = error
        self.fault = fault
        self.stop_drives()
        code = "lease_lost" if isinstance(error, LeaseLost) else type(error).__name__
        self.bus.post(Fault(code=code, message=str(fault)))
        self.bus.seal()
        return fault

    def lost(self, error: LeaseLost) -> None:
        """Another process has the session now: stop what runs, which could not be settled any more."""
        if not self.closed:
            self.fail(error)

    def stop_drives(self) -> None:
        """Close every gate and wake everybody who waits."""
        for line in self.lines.values():
            if line.drive is not None:
                line.drive.gate.close()
            line.wake()

    def _guarded(self, name: str, projector: EntryProjector) -> EntryProjector:
        """Return a projector that never raises: what it cannot project is reported and left out of the context."""

        async def project(entry: CustomEntry) -> Projection:
            try:
                projected = projector(entry)
                return await projected if inspect.isawaitable(projected) else projected
            except Exception as error:
                self.bus.report("hook", f"entry projector {name}", describe(error))
                return None

        return project

    def _hook_failed(self, name: str, error: str, event: HookEvent) -> None:
        self.bus.report("hook", name, error, lane=event.lane, operation_id=event.operation_id)
