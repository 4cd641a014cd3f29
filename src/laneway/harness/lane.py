"""`AgentLane`: one conversation of a session, as its user sees it. Thin verbs over the lane's line."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from laneway.errors import WouldDeadlock
from laneway.harness import _accept, _control, _observe, _queueing, keys
from laneway.harness._drive import Drive, inside
from laneway.harness._events import ConfigUpdate
from laneway.harness._line import Commit, Decision, Done
from laneway.harness._observe import WatchHandle
from laneway.harness._snapshot import LaneExecution, LaneSnapshot
from laneway.harness.context import Context, in_context
from laneway.harness.keys import QueuedCustom, QueuedMessage
from laneway.harness.results import (
    Aborting,
    Admission,
    Closed,
    Compact,
    DriveOutcome,
    Err,
    InvalidMessage,
    LaneBusy,
    Navigate,
    NoActiveOperation,
    NothingToResume,
    Ok,
    OperationMismatch,
    OperationResult,
    Prompt,
    Refused,
    Request,
    Settled,
    Skill,
    Template,
    Waiting,
)
from laneway.harness.state import Lane, LaneConfiguration, ModelRef
from laneway.llm.base import THINKING_LEVELS, ThinkingLevel
from laneway.messages import AgentMessage, ImageContent, Usage
from laneway.session._mutation import Mutation
from laneway.storage.base import BranchScan, Entry, EntryType, InsertUsage, ScanOrder, UsageRow

if TYPE_CHECKING:
    from laneway.harness._line import Line
    from laneway.llm.base import Model

T = TypeVar("T")
Input: TypeAlias = "str | AgentMessage | list[AgentMessage]"


class AgentLane:
    """A named cursor into the session's tree, with its own tip, configuration, queue, and at most one open operation.

    `accept`, `drive` and `request_abort` answer with `Ok` or `Err`; everything else raises what it is refused.
    What a method queued, accepted or changed is durable when it returns. Cancelling a caller ends its wait, never the work.

    Every method raises `HarnessClosed` after `close()`, and the one `HarnessFault` after a fault. Each takes the call's `Context`.
    """

    def __init__(self, line: Line) -> None:
        self._line = line

    def __repr__(self) -> str:
        return f"AgentLane({self.name!r})"

    @property
    def name(self) -> str:
        """The lane's name."""
        return self._line.name

    # ------------------------------------------------------------------------------------------------ the three values

    @in_context
    async def accept(self, request: Request, *, operation_id: str | None = None, context: Context | None = None) -> Ok[Admission] | Err[Refused]:
        """Make a request durable. It becomes the lane's operation, and waits for a drive.

        `operation_id` may be the caller's own, for hosts that must know it before; it has to be new in the session.
        """
        return await _valued(_accept.accept(self._line, request, operation_id))

    @in_context
    async def drive(
        self, operation_id: str, *, wait_for_retry: bool = False, poll_deferred: bool = False, context: Context | None = None
    ) -> Ok[DriveOutcome] | Err[Refused]:
        """Advance an operation until it is over or waits; several callers share one pass, with the options of the first.

        Without `wait_for_retry` a retry that is not due ends the pass as `Waiting`. With `poll_deferred` the pass may ask a provider
        once for a deferred response. The record of an operation that is over is returned from any lane.
        """
        return await _valued(self._drive(operation_id, wait_for_retry=wait_for_retry, poll_deferred=poll_deferred))

    @in_context
    async def request_abort(self, operation_id: str, *, context: Context | None = None) -> Ok[Aborting] | Err[Refused]:
        """Make cancellation durable and hand back queued steering and follow-ups. Starts no drive."""
        return await _valued(_control.request_abort(self._line, operation_id))

    async def _drive(self, operation_id: str, *, wait_for_retry: bool, poll_deferred: bool) -> DriveOutcome:
        line = self._line
        line.runtime.check()
        current = line.current(operation_id)
        if current is None:
            record = await _observe.result_of(line.runtime, operation_id)
            if record is not None:
                return Settled(record=record)
            if (current := line.current(operation_id)) is None:
                now = line.state.operation
                raise OperationMismatch(expected=operation_id, current=None if now is None else now.id, last=line.state.last_operation_id)
        if inside(operation_id):
            raise WouldDeadlock(f"operation {operation_id} cannot be waited for from inside itself (a tool, a hook or a listener of it)")
        drive = line.drive
        if drive is None or drive.operation_id != operation_id:
            drive = Drive(line, operation_id, wait_for_retry=wait_for_retry, poll_deferred=poll_deferred)
            if current.cancelled:
                drive.gate.fire()
            drive.start()
        return await drive.observe()

    # ------------------------------------------------------------------------------------------------ conveniences

    @in_context
    async def prompt(self, input: Input, *, images: list[ImageContent] | None = None, context: Context | None = None) -> OperationResult | Waiting:
        """Accept an input and drive the run to its end, waiting for retries. `Waiting` if it is suspended (deferred, approval)."""
        return await self._run(Prompt(input, images))

    @in_context
    async def skill(self, name: str, extra: str | None = None, *, context: Context | None = None) -> OperationResult | Waiting:
        """Run a skill of the harness's resources."""
        return await self._run(Skill(name, extra))

    @in_context
    async def prompt_from_template(self, name: str, args: Sequence[str] = (), *, context: Context | None = None) -> OperationResult | Waiting:
        """Run a prompt template of the harness's resources."""
        return await self._run(Template(name, list(args)))

    @in_context
    async def compact(self, instructions: str | None = None, *, context: Context | None = None) -> OperationResult:
        """Summarise the older part of the context; then start a run if input is queued. Returns the compaction's record."""
        return await self._structural(Compact(instructions))

    @in_context
    async def navigate(
        self,
        target_id: str | None,
        *,
        summarize: bool = False,
        label: str | None = None,
        instructions: str | None = None,
        context: Context | None = None,
    ) -> OperationResult:
        """Move the tip (None: before the first entry); then start a run if input is queued. Returns the navigation's record."""
        return await self._structural(Navigate(target_id, summarize, label, instructions))

    @in_context
    async def resume(self, *, context: Context | None = None) -> OperationResult | Waiting:
        """Go on with the open operation: after a crash, a suspension, a decision. Polls a deferred response once.

        Raises:
            NothingToResume: there is none.
        """
        operation = self._line.state.operation
        self._line.runtime.check()
        if operation is None:
            raise NothingToResume(self.name)
        return _plain(await self._drive(operation.id, wait_for_retry=True, poll_deferred=True))

    @in_context
    async def abort(self, *, context: Context | None = None) -> Aborting:
        """Abort the open operation and wait until it is over. Returns the messages taken out of the queue, and the record.

        Raises:
            NoActiveOperation: there is none.
        """
        operation = self._line.state.operation
        self._line.runtime.check()
        if operation is None:
            raise NoActiveOperation(self.name)
        aborting = await _control.request_abort(self._line, operation.id)
        outcome = await self._drive(operation.id, wait_for_retry=True, poll_deferred=False)
        return msgspec.structs.replace(aborting, result=outcome.record if isinstance(outcome, Settled) else None)

    @in_context
    async def approve(self, call_id: str, args: Any = None, *, context: Context | None = None) -> None:
        """Let a suspended tool call run, with other arguments if given; the next drive (or the one under way) runs it."""
        await _control.decide(self._line, call_id, args=args)

    @in_context
    async def reject(self, call_id: str, reason: str, *, context: Context | None = None) -> None:
        """Refuse a suspended tool call; the model reads the reason."""
        await _control.decide(self._line, call_id, reject=reason)

    async def _run(self, request: Request) -> OperationResult | Waiting:
        admission = await _accept.accept(self._line, request, None)
        return _plain(await self._drive(admission.operation_id, wait_for_retry=True, poll_deferred=False))

    async def _structural(self, request: Request) -> OperationResult:
        admission = await _accept.accept(self._line, request, None)
        outcome = await self._drive(admission.operation_id, wait_for_retry=True, poll_deferred=False)
        assert isinstance(outcome, Settled)
        if outcome.record.status != "aborted":
            with contextlib.suppress(LaneBusy, InvalidMessage):  # somebody else was faster, or nothing is queued
                await self._run(Prompt([]))
        return outcome.record

    # ------------------------------------------------------------------------------------------------ the queue

    @in_context
    async def steer(
        self, message: str | AgentMessage, *, images: list[ImageContent] | None = None, interrupt: bool = False, context: Context | None = None
    ) -> str:
        """Queue a message for the next boundary of the run; idle, for the next run. Returns the id that its entry will have.

        With `interrupt`, a tool batch that runs is stopped: calls that run are cancelled, the others are not started.
        """
        return await self._enqueue("steer", message, images, interrupt=interrupt)

    @in_context
    async def follow_up(self, message: str | AgentMessage, *, images: list[ImageContent] | None = None, context: Context | None = None) -> str:
        """Queue a message for the moment in which the run would end."""
        return await self._enqueue("follow_up", message, images)

    @in_context
    async def next_run(self, message: str | AgentMessage, *, images: list[ImageContent] | None = None, context: Context | None = None) -> str:
        """Queue a message for the next accepted run; an abort leaves it."""
        return await self._enqueue("next_run", message, images)

    async def _enqueue(self, kind: Any, message: str | AgentMessage, images: list[ImageContent] | None, *, interrupt: bool = False) -> str:
        self._line.runtime.check()
        payload = QueuedMessage(message=_accept.single_message(message, images))
        return await _queueing.enqueue(self._line, kind, payload, interrupt=interrupt)

    @in_context
    async def cancel_queued(self, entry_id: str, *, context: Context | None = None) -> _queueing.Cancelled:
        """Take an input out of the queue, if it is still there."""
        return await _queueing.cancel(self._line, entry_id)

    @in_context
    async def append_message(self, message: str | AgentMessage, *, context: Context | None = None) -> str:
        """Append a message without asking a model: at once if the lane is idle, else at the next boundary. Returns its entry's id."""
        self._line.runtime.check()
        return await _queueing.append(self._line, QueuedMessage(message=_accept.single_message(message)))

    @in_context
    async def append_custom_entry(self, type: str, data: Any = None, *, context: Context | None = None) -> str:
        """Append application data; see `append_message`.

        Raises:
            TypeError: `data` is not JSON.
        """
        return await _queueing.append(self._line, QueuedCustom(custom_type=type, data=data))

    # ------------------------------------------------------------------------------------------------ reading

    @in_context
    async def get_tip(self, *, context: Context | None = None) -> str | None:
        """Return the id of the lane's last entry; None while there is none."""
        self._line.runtime.check()
        return self._line.state.tip_id

    @in_context
    async def find_entries(
        self, *, start: str | None = None, type: EntryType | None = None, custom_type: str | None = None, stop_at_type: EntryType | None = None,
        stop_at_id: str | None = None, order: ScanOrder = "newest_first", cursor: int | None = None, limit: int | None = None,
        context: Context | None = None,
    ) -> list[Entry]:  # fmt: skip
        """Return entries of the path from `start` (default: the tip) to the root, newest first; see `BranchScan`."""
        self._line.runtime.check()
        start = start if start is not None else self._line.state.tip_id
        if start is None:
            return []
        scan = BranchScan(
            start=start, stop_at_type=stop_at_type, stop_at_id=stop_at_id, type=type, custom_type=custom_type,
            order=order, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._line.runtime.session.scan_branch(scan)

    @in_context
    async def find_entry(self, *, context: Context | None = None, **scan: Any) -> Entry | None:
        """Return the first entry that `find_entries(**scan)` would, or None."""
        scan["limit"] = 1
        found = await self.find_entries(**scan)
        return found[0] if found else None

    @in_context
    async def get_result(self, operation_id: str, *, context: Context | None = None) -> OperationResult | None:
        """Return the record of any operation of the session; None while it is open, or if there is none."""
        self._line.runtime.check()
        return await _observe.result_of(self._line.runtime, operation_id)

    @in_context
    async def inspect(self, *, context: Context | None = None) -> LaneExecution:
        """Return where the lane's machine stands."""
        self._line.runtime.check()
        return _observe.execution(self._line)

    @in_context
    async def watch(self, *, context: Context | None = None) -> WatchHandle[LaneSnapshot]:
        """Return a snapshot and a handle on every event after it."""
        return await _observe.watch_lane(self._line)

    # ------------------------------------------------------------------------------------------------ configuration

    @in_context
    async def get_model(self, *, context: Context | None = None) -> Model | None:
        """Return the lane's model; None if this process does not know it."""
        self._line.runtime.check()
        return self._line.runtime.environment.find_model(self._line.state.configuration.model)

    @in_context
    async def set_model(self, model: Model | ModelRef | str, *, context: Context | None = None) -> None:
        """Ask another model from the next step on. Whether this process knows it is found out when it is asked."""
        await self._configure("model", _model_ref(model))

    @in_context
    async def get_thinking_level(self, *, context: Context | None = None) -> ThinkingLevel:
        """Return the lane's thinking level."""
        self._line.runtime.check()
        return self._line.state.configuration.thinking_level

    @in_context
    async def set_thinking_level(self, level: ThinkingLevel, *, context: Context | None = None) -> None:
        """Think that much from the next step on. Raises ValueError if there is no such level."""
        if level not in THINKING_LEVELS:
            raise ValueError(f"there is no thinking level {level!r}; the levels are {', '.join(THINKING_LEVELS)}")
        await self._configure("thinking_level", level)

    @in_context
    async def get_active_tools(self, *, context: Context | None = None) -> list[str] | None:
        """Return the names of the tools that the lane may call; None: all that the process has."""
        self._line.runtime.check()
        return self._line.state.configuration.active_tools

    @in_context
    async def set_active_tools(self, names: Sequence[str] | None, *, context: Context | None = None) -> None:
        """Allow these tools from the next step on. Whether they exist is found out when the model is asked."""
        await self._configure("active_tools", None if names is None else list(names))

    async def _configure(self, name: str, value: Any) -> None:
        line = self._line

        def plan(lane: Lane, _: Mutation) -> Commit[None]:
            configuration: LaneConfiguration = msgspec.structs.replace(lane.configuration, **{name: value})
            told = ConfigUpdate(lane=line.name, property=name, value=value, previous=getattr(lane.configuration, name))
            after = msgspec.structs.replace(lane, configuration=configuration)
            return Commit(writes=[keys.set_config(line.name, configuration)], next=after, value=lambda _: None, events=lambda _: [told])

        await line.command(plan)

    # ------------------------------------------------------------------------------------------------ accounts and quiet

    @in_context
    async def record_usage(self, usage: Usage, *, entry_id: str | None = None, details: Any = None, context: Context | None = None) -> str:
        """Add an adjustment to the session's ledger and return its id. Allowed at any time."""
        line = self._line
        row = UsageRow(id=line.runtime.session.ids.new(), usage=usage, entry_id=entry_id, adjustment=True, details=details)

        def plan(lane: Lane, _: Mutation) -> Decision[str]:
            def events(done: Done) -> list[Any]:
                return done.usage(line.name, None if lane.operation is None else lane.operation.id)

            return Commit(writes=[InsertUsage(row)], next=lane, value=lambda _: row.id, events=events)

        return await line.command(plan)

    @in_context
    async def wait_for_idle(self, *, context: Context | None = None) -> None:
        """Return when the lane has neither an operation nor a drive.

        Raises:
            WouldDeadlock: called from inside the operation that would be waited for.
        """
        line = self._line
        while True:
            line.runtime.check()
            if line.idle:
                return
            self._refuse_inside()
            await line.changed()

    @in_context
    async def run_when_idle(self, fn: Callable[[], Awaitable[T]], *, context: Context | None = None) -> T:
        """Wait until the lane is idle and run `fn` with the lane to itself: nobody else can change the lane meanwhile.

        Callers take turns. Reading, `inspect` and `watch` go on. A call that changes the lane from inside `fn` raises `WouldDeadlock`.
        """
        self._refuse_inside()
        return await self._line.lease(fn)

    def _refuse_inside(self) -> None:
        operation = self._line.state.operation
        if operation is not None and inside(operation.id):
            raise WouldDeadlock(f"lane {self.name!r} cannot become idle for a call from inside its own operation (a tool, a hook or a listener)")


def _model_ref(model: Model | ModelRef | str) -> ModelRef:
    if isinstance(model, ModelRef):
        return model
    if isinstance(model, str):
        provider, slash, model_id = model.partition("/")
        if not slash or not provider or not model_id:
            raise ValueError(f"{model!r} names no model: write provider/model-id")
        return ModelRef(provider=provider, model_id=model_id)
    return ModelRef(provider=model.provider, model_id=model.id)


def _plain(outcome: DriveOutcome) -> OperationResult | Waiting:
    return outcome.record if isinstance(outcome, Settled) else outcome


async def _valued(done: Awaitable[T]) -> Ok[T] | Err[Refused]:
    """Turn what is refused into a value."""
    try:
        return Ok(await done)
    except Closed as closed:
        return Err(closed)
    except Refused as refusal:
        return Err(refusal)
