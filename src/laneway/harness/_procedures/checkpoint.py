"""`checkpoint`: the boundary between steps. Queued input, then compaction, then the next request or the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laneway.harness import _inbox, keys
from laneway.harness._compaction import Preparation
from laneway.harness._events import CompactionStart, HarnessEvent, RunEnd
from laneway.harness._hooks import BeforeRunEnd
from laneway.harness._line import Done, End, Move
from laneway.harness._placing import Placement, added, place, projecting, queue_update
from laneway.harness._procedures import _assistant_step, _compacting
from laneway.harness.keys import QueuedMessage
from laneway.harness.results import OperationResult
from laneway.harness.state import (
    AssistantEffectPending,
    CheckpointPayload,
    InboxItem,
    Lane,
    Leaf,
    MayFinish,
    NeedAssistant,
    Operation,
    ResumeCheckpoint,
    SummaryDeciding,
    Task,
    carried,
)
from laneway.messages import UserMessage
from laneway.session._mutation import Mutation
from laneway.storage.base import SetValue

if TYPE_CHECKING:
    from laneway.harness._drive import Drive
    from laneway.harness.state import Checkpoint

MAX_REPEATED_TRUNCATIONS = 3  # responses that the output limit cut off at the very same calls
Before = Callable[[], list[HarnessEvent]]


async def decide(drive: Drive, state: Checkpoint) -> None:
    """Decide what follows a step."""
    await decide_at(drive, state.payload)


async def decide_at(drive: Drive, at: CheckpointPayload, *, may_compact: bool = True, before: Before | None = None) -> None:
    """Decide at a boundary, whichever leaf the operation is at. `before` gives events that precede the decision's own."""
    due = await _compacting.threshold_due(drive, at) if may_compact else None
    boundary = _Boundary(drive, at, due, before)
    if await drive.line.advance(drive.operation_id, boundary.plan) == "stayed":
        follow_up = await drive.hooks.before_run_end(BeforeRunEnd(**drive.asked, messages=await drive.line.messages()))
        drive.gate.admit()
        if follow_up is not None:
            message = UserMessage(content=follow_up) if isinstance(follow_up, str) else follow_up
            boundary.follow_up = QueuedMessage(message=message)
        boundary.mediated = True
        await drive.line.advance(drive.operation_id, boundary.plan)
    if boundary.request is not None:
        await _assistant_step.request(drive, boundary.request, patch={})


@dataclass
class _Boundary:
    """One decision. It is planned once, or, where `before_run_end` has a say at the end of a run, twice."""

    drive: Drive
    at: CheckpointPayload
    due: Preparation | None
    before: Before | None
    mediated: bool = False
    follow_up: QueuedMessage | None = None
    seen: tuple[InboxItem, ...] = ()
    request: AssistantEffectPending | None = None

    async def plan(self, lane: Lane, operation: Operation, mutation: Mutation) -> Move | End | None:
        drive, at = self.drive, self.at
        settings = operation.meta.settings
        may_finish = isinstance(at.continuation, MayFinish)
        sees = await projecting(drive.line, lane.inbox, mutation)
        taken = _inbox.at_boundary(
            lane.inbox, settings.steering_mode, settings.follow_up_mode, may_finish=may_finish and self.due is None,
            projects=lambda item: item.entry_id in sees,
        )  # fmt: skip
        goes_on = any(item.entry_id in sees for item in taken)
        if (goes_on or not may_finish) and (limit := limit_reached(operation, drive.environment.clock())) is not None:
            return await self._end(lane, operation, [], mutation, limit=limit)
        if goes_on:
            return await self._ask(lane, operation, await place(drive.line, lane, taken, mutation), mutation)
        if self.due is not None:
            return await self._compact(lane, operation, taken, mutation, self.due)
        if isinstance(at.continuation, NeedAssistant):
            placement = await place(drive.line, lane, taken, mutation)
            placement.trigger = at.trigger_entry_id
            return await self._ask(lane, operation, placement, mutation, overflow_recovery_used=at.continuation.overflow_recovery_used)
        return await self._may_finish(lane, operation, taken, mutation)

    async def _may_finish(self, lane: Lane, operation: Operation, taken: list[InboxItem], mutation: Mutation) -> Move | End | None:
        if not self.mediated:
            if self.drive.hooks.has("before_run_end"):
                self.seen = tuple(taken)
                return None
        elif self.follow_up is not None and self.seen == tuple(taken):
            placement = await place(self.drive.line, lane, taken, mutation)
            placement.add(self.drive.new_id(), self.follow_up, projects=True)
            if limit_reached(operation, self.drive.environment.clock()) is None:
                return await self._ask(lane, operation, placement, mutation)
        return await self._end(lane, operation, taken, mutation)

    async def _ask(
        self, lane: Lane, operation: Operation, placement: Placement, mutation: Mutation, *, overflow_recovery_used: bool = False
    ) -> Move:
        drive = self.drive
        step = _assistant_step.begin(drive, lane, operation, placement.trigger, overflow_recovery_used=overflow_recovery_used)
        self.request = step.state if isinstance(step.state, AssistantEffectPending) else None
        return await self._move(operation, placement, step.state, mutation, after=lambda: step.events)

    async def _compact(self, lane: Lane, operation: Operation, taken: list[InboxItem], mutation: Mutation, due: Preparation) -> Move:
        placement = await place(self.drive.line, lane, taken, mutation)
        task = Task(task_id=self.drive.new_id(), reason="threshold", boundary=ResumeCheckpoint(resume_after=self.at))
        now = self.drive.environment.clock()
        started = CompactionStart(**self.drive.told, reason="threshold", started_at=now)
        move = await self._move(operation, placement, SummaryDeciding(task=task, **carried(operation.state)), mutation, after=lambda: [started])
        move.writes.append(SetValue(keys.OP_PREPARATION, keys.under(operation.id, task.task_id), keys.plain(due)))
        return move

    async def _move(self, operation: Operation, placement: Placement, state: Leaf, mutation: Mutation, *, after: Before) -> Move:
        drive, before = self.drive, self.before
        update = await queue_update(drive.line, operation.id, placement.inbox, mutation) if placement.taken else []

        def events(done: Done) -> list[HarnessEvent]:
            placed = added(done, (entry.id for entry in placement.entries), **drive.told)
            return [*(before() if before else ()), *placed, *update, *after()]

        inbox = placement.inbox if placement.taken else None
        return Move(state=state, writes=placement.writes(drive.line.name), tip_id=placement.tip_id, inbox=inbox, events=events)

    async def _end(
        self, lane: Lane, operation: Operation, taken: list[InboxItem], mutation: Mutation, *, limit: str | None = None
    ) -> End:
        drive, before = self.drive, self.before
        placement = await place(drive.line, lane, taken, mutation)
        update = await queue_update(drive.line, operation.id, placement.inbox, mutation) if taken else []

        def events(done: Done, record: OperationResult) -> list[HarnessEvent]:
            placed = added(done, (entry.id for entry in placement.entries), **drive.told)
            return [*(before() if before else ()), *placed, *update, run_end(drive, record)]

        return End(
            status="completed", limit=limit, writes=placement.writes(drive.line.name), tip_id=placement.tip_id, inbox=placement.inbox, events=events
        )


def run_end(drive: Drive, record: OperationResult) -> RunEnd:
    """Return the last event of a run."""
    return RunEnd(
        **drive.told, status=record.status, error=record.error, from_tip_id=record.from_tip_id, tip_id=record.tip_id, ended_at=record.ended_at,
        record=record,
    )  # fmt: skip


def limit_reached(operation: Operation, now: int) -> str | None:
    """Name the limit that forbids another response; None if there is none."""
    limits, spent = operation.meta.settings.limits, operation.state.spent
    if spent.repeats >= MAX_REPEATED_TRUNCATIONS:
        return "repeated_truncation"
    if limits is None:
        return None
    seconds = (now - operation.meta.started_at) / 1000
    used = (
        ("max_turns", limits.max_turns, spent.turns),
        ("max_tool_calls", limits.max_tool_calls, spent.tool_calls),
        ("max_output_tokens", limits.max_output_tokens, spent.output_tokens),
        ("max_cost", limits.max_cost, spent.cost),
        ("deadline", limits.deadline, seconds),
    )
    return next((name for name, most, now_used in used if most is not None and now_used >= most), None)
