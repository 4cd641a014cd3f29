"""Reading a lane for somebody who watches: a snapshot from one position of the line, and a handle on what follows it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from laneway.errors import HarnessClosed, HarnessFault
from laneway.harness import keys
from laneway.harness._bus import Listener, Subscriber
from laneway.harness._events import HarnessEvent, Resnapshot, StatsUpdate, UsageRecorded
from laneway.harness._frames import rebuild
from laneway.harness._line import Decision, Line, Return
from laneway.harness._placing import queue
from laneway.harness._procedures._results import suspended_calls
from laneway.harness._snapshot import (
    DeferredSnapshot,
    LaneExecution,
    LaneInfo,
    LaneSnapshot,
    OperationInfo,
    OperationSnapshot,
    OperationState,
    RetrySnapshot,
    RunningTool,
    SessionSnapshot,
)
from laneway.harness.context import Context, in_context
from laneway.harness.results import OperationResult, SuspendedCallInfo, read_result
from laneway.harness.state import (
    AssistantEffectPending,
    AssistantRetryWait,
    DeferredEffectPending,
    DeferredSuspended,
    Lane,
    Operation,
    PendingCall,
    ReadyCall,
    SummaryRetryWait,
    Tools,
)
from laneway.messages import AssistantMessage, ToolCall, ToolResult
from laneway.session._mutation import Mutation
from laneway.storage.base import MAX_LIST_LIMIT, BranchScan, MessageEntry

if TYPE_CHECKING:
    from laneway.harness._runtime import Runtime

S = TypeVar("S", LaneSnapshot, SessionSnapshot)


# ---------------------------------------------------------------------------------------------------- in brief


def operation_state(line: Line, operation: Operation) -> OperationState:
    """Return whether the operation is being aborted, driven by this process, or just open."""
    if operation.cancelled:
        return "aborting"
    return "running" if line.drive is not None and line.drive.operation_id == operation.id else "open"


def operation_info(line: Line) -> OperationInfo | None:
    """Return the open operation in brief."""
    operation = line.state.operation
    if operation is None:
        return None
    meta = operation.meta
    return OperationInfo(id=operation.id, kind=meta.intent.kind, status=operation_state(line, operation), started_at=meta.started_at)


def lane_info(line: Line) -> LaneInfo:
    """Return the lane in brief."""
    return LaneInfo(name=line.name, tip_id=line.state.tip_id, operation=operation_info(line))


def execution(line: Line) -> LaneExecution:
    """Return where the lane's machine stands."""
    lane = line.state
    return LaneExecution(
        lane=line.name, tip_id=lane.tip_id, configured_model=lane.configuration.model.spec, current=operation_info(line),
        at=None if lane.operation is None else lane.operation.state.at, last_operation_id=lane.last_operation_id,
    )  # fmt: skip


async def result_of(runtime: Runtime, operation_id: str) -> OperationResult | None:
    """Return the record of an operation of any lane; None while it is open, or if there is none."""
    stored = await runtime.session.get_value(keys.OP_RESULT, operation_id)
    return None if stored is None else keys.decoded(stored, read_result)


# ---------------------------------------------------------------------------------------------------- snapshots


async def snapshot(line: Line, mutation: Mutation) -> LaneSnapshot:
    """Build a snapshot, on the line: nothing can be committed meanwhile. What streams is read last, at one instant."""
    lane = line.state
    transcript = []
    if lane.tip_id is not None:
        transcript = await mutation.scan_branch(BranchScan(start=lane.tip_id, stop_at_type="compaction"))
        transcript.reverse()
    queues = await queue(line, lane.inbox, mutation)
    stats = await mutation.get_stats()
    last = None if lane.last_operation_id is None else await mutation.get_value(keys.OP_RESULT, lane.last_operation_id)
    read = None if lane.operation is None else await _Reading(line, lane.operation).read(mutation)
    return LaneSnapshot(
        lane=line.name, transcript=transcript, tip_id=lane.tip_id, configuration=lane.configuration, stats=stats,
        last_result=None if last is None else keys.decoded(last, read_result), operation=None if read is None else read.now(), queues=queues,
        faulted=line.runtime.fault is not None,
    )  # fmt: skip


class _Reading:
    """What the store knows of an open operation; `now` adds what only memory knows."""

    def __init__(self, line: Line, operation: Operation) -> None:
        self.line, self.operation = line, operation
        self.frames: AssistantMessage | None = None
        self.message: AssistantMessage | None = None
        self.outputs: dict[str, ToolResult] = {}
        self.suspended: tuple[SuspendedCallInfo, ...] = ()
        self.deferred: DeferredSnapshot | None = None

    async def read(self, mutation: Mutation) -> _Reading:
        """Read what the leaf refers to."""
        state = self.operation.state
        if isinstance(state, (AssistantEffectPending, DeferredEffectPending)) and self.line.drive is None:
            await self._read_frames(state, mutation)
        if isinstance(state, Tools):
            await self._read_batch(state, mutation)
        if isinstance(state, (DeferredSuspended, DeferredEffectPending)):
            source = await self._message(state.source_entry_id, mutation)
            if source is not None and source.deferred is not None:
                self.deferred = DeferredSnapshot(handle=source.deferred, poll=state.poll)
        return self

    async def _read_frames(self, state: AssistantEffectPending | DeferredEffectPending, mutation: Mutation) -> None:
        key = keys.under(self.operation.id, state.response_entry_id)
        elements = await mutation.read_list(keys.PENDING_FRAMES, key, limit=MAX_LIST_LIMIT)
        if elements:
            configuration = state.configuration if isinstance(state, DeferredEffectPending) else state.context.configuration
            self.frames = AssistantMessage(
                content=rebuild(element.value for element in elements), api="unknown", provider=configuration.model.provider,
                model=configuration.model.model_id, stop_reason="pending", timestamp=self.operation.meta.started_at,
            )  # fmt: skip

    async def _read_batch(self, state: Tools, mutation: Mutation) -> None:
        self.message = await self._message(state.batch.assistant_entry_id, mutation)
        for call in state.batch.calls:
            if isinstance(call, PendingCall):
                stored = await mutation.get_value(keys.PENDING_TOOL_OUTPUT, keys.under(self.operation.id, call.result_entry_id))
                if stored is not None:
                    self.outputs[call.result_entry_id] = keys.decoded(stored, lambda value: msgspec.convert(value, ToolResult))
        if self.message is not None:
            self.suspended = await suspended_calls(self.line, state.batch, self.message)

    async def _message(self, entry_id: str, mutation: Mutation) -> AssistantMessage | None:
        entry = (await mutation.get_entries([entry_id])).get(entry_id)
        message = entry.message if isinstance(entry, MessageEntry) else None
        return message if isinstance(message, AssistantMessage) else None

    def now(self) -> OperationSnapshot:
        """Return the operation as it is at this instant."""
        meta, live = self.operation.meta, self.line.live
        streaming = self.frames if live.streaming is None else copy.copy(live.streaming)
        return OperationSnapshot(
            id=self.operation.id, kind=meta.intent.kind, status=operation_state(self.line, self.operation), started_at=meta.started_at,
            from_tip_id=meta.source_tip_id, streaming_message=streaming, running_tools=self._tools(), suspended_calls=self.suspended,
            retry=self._retry(), deferred=self.deferred,
        )  # fmt: skip

    def _tools(self) -> tuple[RunningTool, ...]:
        state, message = self.operation.state, self.message
        if not isinstance(state, Tools) or message is None:
            return ()
        found: list[RunningTool] = []
        for call in state.batch.calls:
            asked = message.content[call.source_index]
            if isinstance(asked, ToolCall) and isinstance(call, (PendingCall, ReadyCall)):
                partial = self.line.live.progress.get(call.result_entry_id, self.outputs.get(call.result_entry_id))
                pending = isinstance(call, PendingCall)
                found.append(
                    RunningTool(
                        tool_call_id=asked.id, tool_name=asked.name, args=asked.arguments, status="running" if pending else "settled",
                        partial_result=partial if pending else None,
                    )
                )  # fmt: skip
        return tuple(found)

    def _retry(self) -> RetrySnapshot | None:
        state = self.operation.state
        if not isinstance(state, (AssistantRetryWait, SummaryRetryWait)):
            return None
        step = state.context.step_id if isinstance(state, AssistantRetryWait) else state.task.task_id
        return RetrySnapshot(
            step=step, attempt=state.next_attempt, max_attempts=state.context.retry.max_attempts, not_before=state.not_before,
            error_message=state.error_message,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- watching


class WatchHandle(Generic[S]):
    """A snapshot, and every event after it: nothing in between is lost or told twice.

    Events are buffered until `start`. A watcher that falls too far behind gets a `resnapshot` event instead of what it missed.
    """

    def __init__(self, take: Callable[[Callable[[S], None]], Any], unsubscribe: Callable[[], None]) -> None:
        self._take, self._unsubscribe = take, unsubscribe
        self._subscriber: Subscriber | None = None
        self._started = self._busy = False
        self.snapshot: S

    def bind(self, subscriber: Subscriber, snapshot: S) -> None:
        """Complete the handle; done where the snapshot is taken."""
        self._subscriber, self.snapshot = subscriber, snapshot

    def start(self, listener: Listener) -> None:
        """Deliver what was buffered, then everything that follows.

        Raises:
            RuntimeError: it was started before.
        """
        if self._started:
            raise RuntimeError("this watch was started already; take another one with watch()")
        self._started = True
        assert self._subscriber is not None
        self._subscriber.attach(listener)

    @in_context
    async def resnapshot(self, *, context: Context | None = None) -> S:
        """Return (and keep) a fresh snapshot; events before it that were not delivered are dropped, later ones follow.

        Raises:
            RuntimeError: another one is under way.
        """
        if self._busy:
            raise RuntimeError("a resnapshot of this watch is under way already")
        subscriber = self._subscriber
        assert subscriber is not None
        self._busy = True

        def taken(snapshot: S) -> None:
            subscriber.forget()
            subscriber.held, subscriber.stale = True, False
            self.snapshot = snapshot

        try:
            await self._take(taken)
        finally:
            self._busy = False
            if self._started:
                subscriber.held = False
                asyncio.get_running_loop().call_soon(subscriber.drain)
        return self.snapshot

    def unsubscribe(self) -> None:
        """Deliver nothing any more."""
        self._unsubscribe()


async def watch_lane(line: Line) -> WatchHandle[LaneSnapshot]:
    """Return a watch of one lane: its own events, those of no lane, and everybody's usage."""

    async def take(done: Callable[[LaneSnapshot], None]) -> None:
        async def plan(_: Lane, mutation: Mutation) -> Decision[None]:
            done(await snapshot(line, mutation))
            return Return(None)

        await line.command(plan, observes=True)

    def wanted(event: HarnessEvent) -> bool:
        return event.lane is None or event.lane == line.name or isinstance(event, (UsageRecorded, StatsUpdate))

    return await _watch(line.runtime, f"watch of lane {line.name}", wanted, take, line.name)


async def watch_session(runtime: Runtime) -> WatchHandle[SessionSnapshot]:
    """Return a watch of all lanes."""

    async def take(done: Callable[[SessionSnapshot], None]) -> None:
        async def plan(mutation: Mutation) -> None:
            runtime.check()
            lanes = {name: await snapshot(line, mutation) for name, line in runtime.lines.items()}
            name = await mutation.get_value("session.name", "")
            stats = await mutation.get_stats()
            done(SessionSnapshot(name=None if name is None else name.value, lanes=lanes, stats=stats, faulted=runtime.fault is not None))

        await runtime.session.mutate(plan)

    return await _watch(runtime, "watch of the session", lambda _: True, take, None)


async def _watch(
    runtime: Runtime, name: str, wanted: Callable[[HarnessEvent], bool], take: Callable[[Callable[[S], None]], Any], lane: str | None
) -> WatchHandle[S]:
    tasks: set[asyncio.Task[None]] = set()

    async def catch_up() -> None:
        def taken(snapshot: S) -> None:
            subscriber.revive(Resnapshot(lane=lane, snapshot=snapshot))

        try:
            await take(taken)
        except (HarnessClosed, HarnessFault):
            return
        subscriber.drain()

    def overflow() -> None:
        task = asyncio.get_running_loop().create_task(catch_up(), name=f"laneway {name}")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    bound: list[Subscriber] = []
    handle: WatchHandle[S] = WatchHandle(take, lambda: runtime.bus.remove(bound[0]))

    def first(snapshot: S) -> None:
        bound.append(runtime.bus.subscribe(name, None, wanted, overflow=overflow, held=True))
        handle.bind(bound[0], snapshot)

    await take(first)
    subscriber = bound[0]
    return handle
