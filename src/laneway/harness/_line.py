"""WHO writes: the line of a lane, the only caller of the session's commit line for lanes.

A *planner* runs alone, reads and decides; it awaits nothing outside the scope it is given. It returns `Commit` or `Return`, or
raises a `Refused`. After a successful commit, in this order: memory is published, waiters wake, the value is computed, events
are bound to their listeners, the line is left, the events are delivered.

Operations move through two narrower doors: `Line.advance` (refused once cancellation is durable) and `Line.settle`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec

from laneway.errors import HarnessClosed, HarnessFault, MessageError, StorageClosed, WouldDeadlock
from laneway.harness import keys
from laneway.harness._events import HarnessEvent, QueuedItem, StatsUpdate, UsageRecorded
from laneway.harness._live import Live
from laneway.harness.keys import Payload
from laneway.harness.results import Closed, Drained, OperationError, OperationResult, OperationStatus, Refused, read_result
from laneway.harness.state import END, NEXT, InboxItem, Lane, Leaf, Operation
from laneway.messages import AgentMessage, Message, SystemMessage
from laneway.session._context import LaneContext
from laneway.session._mutation import Mutation
from laneway.storage.base import (
    CommitResult,
    CompactionEntry,
    DeleteValue,
    Entry,
    InsertEntry,
    InsertUsage,
    MessageEntry,
    SessionStats,
    SetValue,
    UsageRow,
    Write,
)
from laneway.transcript import Projection

if TYPE_CHECKING:
    from laneway.harness._drive import Drive
    from laneway.harness._runtime import Runtime

T = TypeVar("T")
KEPT_CONTEXT = 2_000  # messages that an idle lane may keep in memory, so that the next prompt need not read them


class Invariant(Exception):
    """The machine is in a state that cannot be; becomes the cause of a `HarnessFault`."""


class Done:
    """What a commit gave: lets events show entries and ledger rows as they are stored."""

    __slots__ = ("_entries", "_rows", "_writes", "result")

    def __init__(self, writes: Sequence[Write], result: CommitResult) -> None:
        self._writes, self.result = writes, result
        self._entries: dict[str, Entry] | None = None
        self._rows: list[UsageRow] = []

    @property
    def entries(self) -> dict[str, Entry]:
        """The inserted entries, stamped, by id and in order."""
        if self._entries is None:
            stamp = self.result.timestamp
            self._entries = {}
            for write, seq in zip(self._writes, self.result.seqs, strict=True):
                if type(write) is InsertEntry:
                    self._entries[write.entry.id] = msgspec.structs.replace(write.entry, seq=seq, timestamp=stamp)
                elif type(write) is InsertUsage:
                    self._rows.append(msgspec.structs.replace(write.row, seq=seq, timestamp=stamp))
        return self._entries

    def usage(self, lane: str, operation_id: str | None) -> list[HarnessEvent]:
        """The `usage` events of this commit: totals are those after it."""
        _ = self.entries
        totals: SessionStats = self.result.stats
        return [UsageRecorded(lane=lane, operation_id=operation_id, row=row, totals=totals) for row in self._rows]


Events: TypeAlias = Callable[[Done], Iterable[HarnessEvent]]


@dataclass(slots=True, kw_only=True)
class Commit(Generic[T]):
    """Write this, then be that. `value` and `events` are computed after the commit; neither may wait."""

    writes: list[Write]
    next: Lane
    value: Callable[[Done], T]
    events: Events | None = None


@dataclass(slots=True)
class Return(Generic[T]):
    """Write nothing."""

    value: T


Decision: TypeAlias = Commit[T] | Return[T]
Planner: TypeAlias = Callable[[Lane, Mutation], "Decision[T] | Awaitable[Decision[T]]"]


_KEEP: Any = object()
_LEASED: Any = object()
_SWEPT = frozenset(keys.SWEPT)


@dataclass(slots=True, kw_only=True)
class Move:
    """A step of an operation: `writes`, then the leaf, then the lane's record if the inbox is given."""

    state: Leaf
    writes: list[Write] = field(default_factory=list[Write])
    tip_id: str | None = _KEEP
    inbox: tuple[InboxItem, ...] | None = None
    events: Events | None = None


@dataclass(slots=True, kw_only=True)
class End:
    """The end of an operation: `writes`, the cleanup, the record, the lane's record. `events` also get the record."""

    status: OperationStatus
    error: OperationError | None = None
    limit: str | None = None
    writes: list[Write] = field(default_factory=list[Write])
    tip_id: str | None = _KEEP
    inbox: tuple[InboxItem, ...] | None = None
    events: Callable[[Done, OperationResult], Iterable[HarnessEvent]]


Step: TypeAlias = Move | End
StepPlanner: TypeAlias = Callable[[Lane, Operation, Mutation], "Step | Awaitable[Step | None] | None"]
Advance = Literal["moved", "stayed", "cancelled"]


def ending(end: End) -> StepPlanner:
    """Return the planner of an end that needs nothing of the moment."""

    def plan(_: Lane, __: Operation, ___: Mutation) -> End:
        return end

    return plan


class Line:
    """One lane in memory, and its way to the store."""

    def __init__(self, name: str, state: Lane, runtime: Runtime, *, restored: bool) -> None:
        self.name = name
        self.state = state
        self.runtime = runtime
        self.drive: Drive | None = None
        self.live = Live()
        self.payloads: dict[str, Payload] = {}
        self.shown: dict[str, QueuedItem] = {}  # the queue as it is told
        self.context = LaneContext(runtime.session, runtime.projectors)
        self.projection = Projection()
        self._projected: list[AgentMessage] | None = None  # what the projection has seen, and only grows
        self.system: SystemMessage | None = None
        self.system_of: tuple[Any, str, list[str] | None] | None = None  # what it was made of
        self.leased = False  # whether somebody has the idle lane to himself
        self._lessee: asyncio.Task[Any] | None = None
        self.last_result: OperationResult | None = None
        self._transient: set[tuple[str, str]] | None = None if restored and state.operation is not None else set()
        self._waiters: list[asyncio.Future[None]] = []

    # ------------------------------------------------------------------------------------------------ commands

    async def command(self, plan: Planner[T], *, blame: Literal["caller", "machine"] = "caller", observes: bool = False) -> T:
        """Run a planner on the line and return its value. While somebody has leased the idle lane, only what `observes` goes through.

        With `blame="caller"`, a commit that the store refuses because of what it was given (not JSON, a pending message) raises that
        error and changes nothing. Everything else that goes wrong faults the harness.

        Raises:
            Refused: the planner's refusal, `Closed` included.
            HarnessFault: now or earlier.
        """
        runtime = self.runtime
        while True:
            mutation = self._enter_now() or await self._enter()
            done: Done | None = None
            try:
                runtime.check()
                if self.leased and not observes:
                    value = cast(T, _LEASED)
                else:
                    decision = plan(self.state, mutation)
                    if not isinstance(decision, (Commit, Return)):
                        decision = await decision
                    if isinstance(decision, Return):
                        value = decision.value
                    else:
                        done = self._publish(decision.next, decision.writes, await _committed(mutation, decision.writes, blame))
                        value = decision.value(done)
                        if hasattr(value, "__await__"):
                            raise Invariant("a command's value must not be awaitable: the line has been left by then")
                        if runtime.bus.listened:
                            self._bind(decision.events, done)
            except _CallersFault as fault:
                raise fault.error from None
            except (Refused, HarnessFault, HarnessClosed):
                raise
            except Exception as error:
                raise runtime.fail(error) from error
            finally:
                cancelled = runtime.session.line.leave(mutation)
            if cancelled is not None:
                raise cancelled
            if value is not _LEASED:
                break
            await self._lease_end()
        if runtime.bus.listened:
            await runtime.bus.deliver()
        return value

    def _enter_now(self) -> Mutation | None:
        """Take the session's line if it is free."""
        self.runtime.check()
        try:
            return self.runtime.session.line.enter_now()
        except StorageClosed:
            self.runtime.check()
            raise Closed from None

    async def _enter(self) -> Mutation:
        """Wait for the session's line."""
        try:
            return await self.runtime.session.line.enter()
        except StorageClosed:
            self.runtime.check()
            raise Closed from None

    def _publish(self, lane: Lane, writes: Sequence[Write], result: CommitResult) -> Done:
        """Let memory be what was committed, and wake who waits for a change."""
        self.state = lane
        transient, entries = self._transient, list[Entry]()
        for write in writes:  # exact types: this is per write, and isinstance is slow on structs
            if type(write) is SetValue:
                if transient is not None and write.namespace in _SWEPT:
                    transient.add((write.namespace, write.key))
            elif type(write) is InsertEntry:
                entries.append(write.entry)
            elif type(write) is DeleteValue:
                if write.namespace == keys.PENDING_ENTRY:
                    self.payloads.pop(write.key, None)
                    self.shown.pop(write.key, None)
                elif transient:
                    transient.discard((write.namespace, write.key))
        if self._waiters:
            self._wake()
        done = Done(writes, result)
        if entries and self.context.started:
            self._extend_context(entries, done)
        return done

    def _extend_context(self, entries: Sequence[Entry], done: Done) -> None:
        """Let the context have what was just added; only a compaction must be read with its time."""
        stamped = any(type(entry) is CompactionEntry for entry in entries)
        self.context.extend(list(done.entries.values()) if stamped else entries)

    def _bind(self, events: Events | None, done: Done) -> None:
        """Fix who is told of a commit; for somebody who listens."""
        if events is not None:
            self.runtime.bus.bind(events(done))
        if any(type(entry) is MessageEntry for entry in done.entries.values()):
            self.runtime.bus.bind([StatsUpdate(totals=done.result.stats)])

    async def write(self, writes: list[Write], *, while_: Callable[[Operation], bool]) -> bool:
        """Write something that changes no memory (frames, checkpoints, memos), if the operation still is where it belongs."""

        def plan(lane: Lane, _: Mutation) -> Decision[bool]:
            if lane.operation is None or not while_(lane.operation):
                return Return(False)
            return Commit(writes=writes, next=lane, value=lambda _: True)

        return await self.command(plan)

    # ------------------------------------------------------------------------------------------------ operations

    async def advance(self, operation_id: str, plan: StepPlanner) -> Advance:
        """Move the operation unless its cancellation is durable; the planner may also decide to stay (None)."""
        return await self._step(operation_id, plan, settle=False)

    async def settle(self, operation_id: str, plan: StepPlanner) -> Advance:
        """Move the operation, cancelled or not: for outcomes of effects that have happened."""
        return await self._step(operation_id, plan, settle=True)

    async def _step(self, operation_id: str, plan: StepPlanner, *, settle: bool) -> Advance:
        runtime = self.runtime
        mutation = self._enter_now() or await self._enter()
        try:
            runtime.check()
            lane = self.state
            operation = lane.operation
            if operation is None or operation.meta.operation_id != operation_id:
                raise Invariant(f"operation {operation_id} of lane {self.name!r} moved, but it is not open")
            if operation.state.cancel_requested_at is not None and not settle:
                return "cancelled"
            step = plan(lane, operation, mutation)
            if hasattr(step, "__await__"):
                step = await cast("Awaitable[Step | None]", step)
            if step is None:
                return "stayed"
            if isinstance(step, Move):
                lane, writes = self._moved(lane, operation, step)
                done = self._publish(lane, writes, await mutation.commit(writes))
                if runtime.bus.listened:
                    self._bind(step.events, done)
            else:
                await self._end(lane, operation, cast(End, step), mutation)
        except (Refused, HarnessFault, HarnessClosed):
            raise
        except Exception as error:
            raise runtime.fail(error) from error
        finally:
            cancelled = runtime.session.line.leave(mutation)
        if cancelled is not None:
            raise cancelled
        if runtime.bus.listened:
            await runtime.bus.deliver()
        return "moved"

    def _moved(self, lane: Lane, operation: Operation, move: Move) -> tuple[Lane, list[Write]]:
        state, meta = move.state, operation.meta
        _check_step(operation, state.at)
        lane = Lane(
            tip_id=lane.tip_id if move.tip_id is _KEEP else move.tip_id,
            configuration=lane.configuration,
            inbox=lane.inbox if move.inbox is None else move.inbox,
            last_operation_id=lane.last_operation_id,
            operation=Operation(meta=meta, state=state),
        )
        writes = move.writes
        writes.append(keys.set_state(meta.operation_id, state))
        if move.inbox is not None:
            writes.append(keys.set_lane_state(self.name, lane))
        return lane, writes

    async def _end(self, lane: Lane, operation: Operation, end: End, mutation: Mutation) -> None:
        _check_step(operation, END)
        tip_id = lane.tip_id if end.tip_id is _KEEP else end.tip_id
        drained = operation.state.drained
        record = OperationResult(
            operation_id=operation.id,
            kind=operation.meta.intent.kind,
            status=end.status,
            error=end.error,
            limit=end.limit,
            drained=None if drained is None else Drained(steer=drained.steer, follow_up=drained.follow_up),
            from_tip_id=operation.meta.source_tip_id,
            tip_id=tip_id,
            started_at=operation.meta.started_at,
            ended_at=self.runtime.environment.clock(),
        )
        stored = keys.plain(record)
        if drained is not None:
            record = read_result(stored)
        lane = Lane(
            tip_id=tip_id,
            configuration=lane.configuration,
            inbox=lane.inbox if end.inbox is None else end.inbox,
            last_operation_id=operation.id,
        )
        writes = [
            *end.writes,
            *keys.cleanup(operation.id, operation.state, await self._swept(operation.id, mutation)),
            SetValue(keys.OP_RESULT, operation.id, stored),
            keys.set_lane_state(self.name, lane),
        ]

        done = self._publish(lane, writes, await mutation.commit(writes))
        self.last_result = record
        self._transient = set()
        self.live.clear()
        self._let_go()
        if self.runtime.bus.listened:
            self._bind(lambda done: end.events(done, record), done)

    async def _swept(self, operation_id: str, mutation: Mutation) -> list[tuple[str, str]]:
        """Find what the operation still has under `keys.SWEPT`; only one that an earlier process began must be looked up."""
        if self._transient is not None:
            return sorted(self._transient, key=lambda address: (keys.SWEPT.index(address[0]), address[1]))
        prefix = f"{operation_id}:"
        return [(namespace, found.key) for namespace in keys.SWEPT for found in await mutation.scan_values(namespace, prefix)]

    def transient(self) -> frozenset[tuple[str, str]] | None:
        """Return the addresses under `keys.SWEPT` that the operation has; None if an earlier process began it."""
        return None if self._transient is None else frozenset(self._transient)

    # ------------------------------------------------------------------------------------------------ payloads and waiting

    async def payload(self, entry_id: str, mutation: Mutation | None = None) -> Payload:
        """Return a queued or staged payload, from memory or the store."""
        known = self.payloads.get(entry_id)
        if known is None:
            stored = await (mutation or self.runtime.session).get_value(keys.PENDING_ENTRY, entry_id)
            if stored is None:
                raise Invariant(f"lane {self.name!r} has {entry_id} queued, but its payload is missing")
            known = self.payloads[entry_id] = keys.decoded(stored, keys.read_payload)
        return known

    def _let_go(self) -> None:
        """Drop a long context when its run is over: an idle lane must not cost its history."""
        if self.context.size > KEPT_CONTEXT:
            self.context.reset(self.runtime.projectors)
            self.projection, self._projected = Projection(), None

    async def messages(self) -> list[AgentMessage]:
        """Return the messages of the lane's context; the list is the caller's own."""
        return await self.context.read(self.state.tip_id)

    async def projected(self) -> list[Message]:
        """Return the lane's context as a provider may be sent it; the list is the caller's own. Costs what is new, and a copy."""
        tip_id = self.state.tip_id
        known = self.context.at(tip_id)
        if known is None:
            await self.context.read(tip_id)
            known = self.context.at(tip_id)
            assert known is not None
        same, self._projected = known is self._projected, known
        return self.projection.project(known, append_only=same)

    def project(self, messages: Sequence[AgentMessage]) -> list[Message]:
        """Return any messages as a provider may be sent them."""
        self._projected = None
        return self.projection.project(messages)

    def current(self, operation_id: str) -> Operation | None:
        """Return the operation if it is open."""
        operation = self.state.operation
        return operation if operation is not None and operation.meta.operation_id == operation_id else None

    @property
    def idle(self) -> bool:
        """Whether there is neither an operation nor a drive."""
        return self.state.operation is None and self.drive is None

    async def lease(self, callback: Callable[[], Awaitable[T]]) -> T:
        """Run `callback` when the lane is idle, with nobody else changing the lane meanwhile."""

        def plan(lane: Lane, _: Mutation) -> Decision[bool]:
            free = lane.operation is None and self.drive is None and not self.leased
            self.leased = self.leased or free
            return Return(free)

        while not (self.idle and not self.leased and await self.command(plan, observes=True)):
            await self.changed()
        self._lessee = asyncio.current_task()
        try:
            return await callback()
        finally:
            self._lessee = None
            self.leased = False
            self._wake()

    async def _lease_end(self) -> None:
        if self._lessee is not None and self._lessee is asyncio.current_task():
            raise WouldDeadlock(f"lane {self.name!r} is leased to this callback of run_when_idle(), which a change of the lane would wait for")
        if self.leased:
            await self.changed()

    async def changed(self) -> None:
        """Return when the lane's state, or its drive, has changed.

        Raises:
            HarnessClosed, HarnessFault: the harness stopped instead.
        """
        self.runtime.check()
        await self.waiter()
        self.runtime.check()

    def waiter(self) -> asyncio.Future[None]:
        """Return a future that is set when the lane's state, or its drive, changes, or the harness stops."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    wake = _wake


def _check_step(operation: Operation, to: str) -> None:
    if to not in NEXT[operation.state.at]:
        raise Invariant(f"operation {operation.id} cannot go from {operation.state.at} to {to}")


async def _committed(mutation: Mutation, writes: Sequence[Write], blame: str) -> CommitResult:
    try:
        return await mutation.commit(writes)
    except (TypeError, ValueError, MessageError) as error:
        if blame == "caller":
            raise _CallersFault(error) from error
        raise


class _CallersFault(Exception):
    """Carries an error of the caller's out of the scope."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
