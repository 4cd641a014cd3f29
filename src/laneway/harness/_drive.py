"""HOW it moves: one pass over a lane's operation, leaf by leaf, until it is over or must wait.

A pass is of this process alone and holds nothing that matters: what it does next is read from the state, and what it did is
committed before the next step. See `laneway/harness/README.md` for the map.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from laneway._effects.call_tools import Prepared
from laneway._effects.respond import StreamGuard
from laneway.abort import Sharing
from laneway.errors import Aborted, HarnessClosed, HarnessFault
from laneway.harness import _telemetry
from laneway.harness._events import OperationPresence
from laneway.harness._frames import FrameClock
from laneway.harness._gate import Gate
from laneway.harness._hooks import BeforeDrive
from laneway.harness._line import Invariant, Line
from laneway.harness._procedures import assistant, checkpoint, deferred, navigation, reconcile, starting, summary, tools
from laneway.harness.results import Closed, DriveOutcome, Settled, Waiting
from laneway.harness.state import (
    AssistantEffectPending,
    AssistantReady,
    AssistantRetryWait,
    Checkpoint,
    DeferredEffectPending,
    DeferredSuspended,
    Leaf,
    NavigationReadyToCommit,
    Operation,
    Starting,
    SummaryDeciding,
    SummaryEffectPending,
    SummaryReady,
    SummaryRetryWait,
    Tools,
)
from laneway.llm._writer import describe
from laneway.messages import AssistantMessage, ToolResultMessage

if TYPE_CHECKING:
    from laneway.harness._environment import Environment
    from laneway.harness._hooks import Hooks
    from laneway.harness._runtime import Runtime
    from laneway.harness.state import LaneConfiguration
    from laneway.llm.base import StreamOptions

Procedure: TypeAlias = "Waiting | None"

_driving: ContextVar[frozenset[str]] = ContextVar("laneway_driving", default=frozenset())


class Drive:
    """One pass: its operation, its gate, its caller's options, and what it remembers to spare reads.

    `permits` is how many deferred polls it may make (0 or 1). What it remembers can all be read from the store.
    """

    def __init__(self, line: Line, operation_id: str, *, wait_for_retry: bool, poll_deferred: bool) -> None:
        self.line = line
        self.runtime: Runtime = line.runtime
        self.environment: Environment = line.runtime.environment
        self.hooks: Hooks = line.runtime.hooks
        self.operation_id = operation_id
        self.wait_for_retry = wait_for_retry
        self.permits = 1 if poll_deferred else 0
        self.gate = Gate()
        self.told: dict[str, Any] = {"lane": line.name, "operation_id": operation_id}
        """What every event of this pass says."""
        self.asked: dict[str, Any] = {**self.told, "signal": self.gate.signal}
        """What every hook event of this pass says."""
        self.options: tuple[Any, LaneConfiguration, StreamOptions, StreamOptions] | None = None  # the last request's, and what they are made of
        self.clock = FrameClock()
        self.guard: StreamGuard | None = None  # cuts off a request that does not end after an abort
        self.cleared: dict[str, Prepared] = {}  # calls whose intent this pass has committed, by result entry id
        self.responses: dict[str, AssistantMessage] = {}  # the newest response, by entry id
        self.results: dict[str, ToolResultMessage] = {}  # placed results of the batch, by entry id
        self.intent: AssistantEffectPending | None = None  # committed by this pass, not performed yet
        self.interrupted: Any = None  # the AbortController of the batch that runs
        self.traced = _telemetry.traced()
        self.sharing = Sharing()
        self.progressed = False  # whether this pass has committed anything
        self.done: asyncio.Future[DriveOutcome] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_retrieve)
        self.task: asyncio.Task[None] | None = None

    def new_id(self) -> str:
        return self.runtime.session.ids.new()

    # ------------------------------------------------------------------------------------------------ life

    def start(self) -> None:
        """Install the pass on its lane and let it run."""
        self.line.drive = self
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"laneway drive {self.line.name}")
        self._present(True)

    async def _run(self) -> None:
        _driving.set(_driving.get() | {self.operation_id})
        outcome: DriveOutcome | None = None
        error: BaseException | None = None
        self.guard = StreamGuard(self.gate.signal)
        try:
            outcome = await run(self)
        except (asyncio.CancelledError, HarnessClosed):
            error = self.runtime.fault or Closed()
        except HarnessFault as fault:
            error = fault
        except Exception as failure:
            error = failure if isinstance(failure, _PassFailed) else self.runtime.fail(failure)
        except GeneratorExit:  # the loop was closed on it
            raise
        except BaseException as failure:  # what a test framework raises, or Ctrl-C: whoever waits must not wait for ever
            error = self.runtime.fail(RuntimeError(describe(failure)))
            if isinstance(failure, (KeyboardInterrupt, SystemExit)):
                self._over(outcome, error)
                raise
        finally:
            self.guard.close()
            self.clock.stop()
        self._over(outcome, error)

    def _over(self, outcome: DriveOutcome | None, error: BaseException | None) -> None:
        self._uninstall()
        if self.done.done():
            return
        if isinstance(error, _PassFailed):
            self.done.set_exception(error.error)
        elif error is not None:
            self.done.set_exception(error)
        else:
            assert outcome is not None
            self.done.set_result(outcome)

    def _uninstall(self) -> None:
        if self.line.drive is self:
            self.line.drive = None
            self.line.live.clear()
            self._present(False)
            self.line.wake()

    def _present(self, driven: bool) -> None:
        if self.runtime.bus.listened:
            self.runtime.bus.post(OperationPresence(**self.told, driven=driven))

    def refuse(self) -> None:
        """Tell all observers that the harness closed; the pass itself unwinds on its own."""
        if not self.done.done():
            self.done.set_exception(Closed())

    async def observe(self) -> DriveOutcome:
        """Return the outcome of the pass. Cancelling the observer does not touch the pass."""
        return await asyncio.shield(self.done)


class _PassFailed(Exception):
    """Ends a pass with the user's own exception; the operation stays open."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def run(drive: Drive) -> DriveOutcome:
    """Advance the operation until it is over or waits."""
    operation = drive.line.current(drive.operation_id)
    kind = "run" if operation is None else operation.meta.intent.kind
    session_id = drive.runtime.session.metadata.id
    with _telemetry.operation_span(kind, lane=drive.line.name, operation_id=drive.operation_id, session_id=session_id) as span:
        outcome = await _advance(drive)
        error = outcome.record.error if isinstance(outcome, Settled) else None
        _telemetry.ended(span, failed=None if error is None else error.code)
        return outcome


async def _advance(drive: Drive) -> DriveOutcome:
    line = drive.line
    operation = line.current(drive.operation_id)
    if operation is not None and not operation.cancelled and drive.hooks.has("before_drive"):
        await _before_drive(drive, operation)
    while True:
        if drive.sharing.due():
            await drive.sharing.turn()
        drive.runtime.check()
        operation = line.current(drive.operation_id)
        if operation is None:
            assert line.last_result is not None
            return Settled(record=line.last_result)
        try:
            waiting = await (reconcile.reconcile(drive, operation.state) if operation.cancelled else step(drive, operation.state))
        except Aborted:
            await _durable_cancellation(drive)
            continue
        if waiting is not None:
            return waiting
        now = line.current(drive.operation_id)
        if now is not None and now.state is operation.state:
            raise Invariant(f"operation {operation.id} made no progress at {now.state.at}")
        drive.progressed = True


async def step(drive: Drive, state: Leaf) -> Procedure:
    """Do what the leaf asks for. Returns why the operation waits, None if it moved."""
    match state:
        case Starting():
            return await starting.start_run(drive, state)
        case Checkpoint():
            return await checkpoint.decide(drive, state)
        case AssistantReady():
            return await assistant.ready(drive, state)
        case AssistantEffectPending():
            return await assistant.recover(drive, state)
        case AssistantRetryWait():
            return await assistant.retry_wait(drive, state)
        case Tools():
            return await tools.work_off(drive, state)
        case DeferredSuspended():
            return await deferred.suspended(drive, state)
        case DeferredEffectPending():
            return await deferred.poll_again(drive, state)
        case SummaryDeciding():
            return await summary.deciding(drive, state)
        case SummaryReady():
            return await summary.ready(drive, state)
        case SummaryEffectPending():
            return await summary.recover(drive, state)
        case SummaryRetryWait():
            return await summary.retry_wait(drive, state)
        case NavigationReadyToCommit():
            return await navigation.commit(drive, state)
        case _:
            assert_never(state)


async def _before_drive(drive: Drive, operation: Operation) -> None:
    try:
        await drive.hooks.before_drive(BeforeDrive(**drive.asked, operation=operation.meta.intent.kind))
    except Aborted:
        return  # the loop reconciles
    except Exception as error:
        raise _PassFailed(error) from error


async def _durable_cancellation(drive: Drive) -> None:
    """Wait until the abort that closed the gate is committed, or the operation is over anyway."""
    if drive.gate.state == "closed":
        drive.runtime.check()
        raise Closed
    while (operation := drive.line.current(drive.operation_id)) is not None and not operation.cancelled:
        await drive.line.changed()


def inside(operation_id: str) -> bool:
    """Whether the current task runs inside a drive of this operation (its tools and hooks do)."""
    return operation_id in _driving.get()


def _retrieve(done: asyncio.Future[DriveOutcome]) -> None:
    """Mark an outcome that nobody observes as seen."""
    if not done.cancelled():
        done.exception()
