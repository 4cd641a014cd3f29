"""What becomes of a summary, for each of its three boundaries: back into the run, the end of a compaction, a moved tip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from laneway.harness import _inbox, keys
from laneway.harness._compaction import Work
from laneway.harness._events import CompactionEnd, EntryAdded, HarnessEvent, RetryEnd
from laneway.harness._line import Done, End, Move
from laneway.harness._line import ending as ending_of
from laneway.harness._placing import added, place, projecting, queue_update
from laneway.harness._procedures import _assistant_step, checkpoint
from laneway.harness._procedures.navigation import navigation_end, path_to
from laneway.harness.results import OperationError, OperationResult, OperationStatus
from laneway.harness.state import (
    AssistantEffectPending,
    Checkpoint,
    CommitNavigation,
    Finish,
    Lane,
    Leaf,
    MayFinish,
    NeedAssistant,
    Operation,
    ResumeCheckpoint,
    Task,
    carried,
)
from laneway.messages import Usage
from laneway.session._mutation import Mutation
from laneway.storage.base import BranchSummaryEntry, CompactionEntry, InsertEntry, InsertUsage, UsageRow, Write

if TYPE_CHECKING:
    from laneway.harness._drive import Drive


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A summary, by a model or by a hook."""

    summary: str
    details: Any
    usage: Usage | None
    work: Work
    from_hook: bool
    attempt: int = 1


# ---------------------------------------------------------------------------------------------------- success


async def succeed(drive: Drive, task: Task, made: Made) -> None:
    """Commit the summary and what follows from it."""
    match task.boundary:
        case ResumeCheckpoint():
            await _resume(drive, task, task.boundary, made)
        case Finish():
            await _finish(drive, task, made)
        case CommitNavigation():
            await _navigate(drive, task.boundary, task, made)


def _hook_usage(drive: Drive, made: Made) -> list[Write]:
    """A supplied summary's cost has a row of its own; a model's has been written request by request."""
    return [InsertUsage(UsageRow(id=drive.new_id(), usage=made.usage))] if made.from_hook and made.usage is not None else []


def _compaction_entry(drive: Drive, parent_id: str | None, made: Made) -> CompactionEntry:
    return CompactionEntry(
        id=drive.new_id(), parent_id=parent_id, summary=made.summary, retained_tail=made.work.retained_tail, tokens_before=made.work.tokens_before,
        details=made.details, usage=made.usage, from_hook=made.from_hook,
    )  # fmt: skip


async def _finish(drive: Drive, task: Task, made: Made) -> None:
    def plan(lane: Lane, _: Operation, __: Mutation) -> End:
        entry = _compaction_entry(drive, lane.tip_id, made)
        writes = [*_hook_usage(drive, made), InsertEntry(entry), keys.set_tip(drive.line.name, entry.id)]

        def events(done: Done, record: OperationResult) -> list[HarnessEvent]:
            return [*_made(drive, task, made, done, entry.id), _compaction_end(drive, task, "completed", entry_id=entry.id, record=record)]

        return End(status="completed", writes=writes, tip_id=entry.id, events=events)

    await drive.line.advance(drive.operation_id, plan)


async def _navigate(drive: Drive, boundary: CommitNavigation, task: Task, made: Made) -> None:
    async def plan(lane: Lane, _: Operation, mutation: Mutation) -> End:
        path = await path_to(drive, boundary.target_id, mutation)
        entry = BranchSummaryEntry(
            id=drive.new_id(), parent_id=boundary.target_id, from_id=lane.tip_id, summary=made.summary, details=made.details, usage=made.usage,
            from_hook=made.from_hook,
        )  # fmt: skip
        name = drive.line.name
        writes = [*_hook_usage(drive, made), keys.set_tip(name, boundary.target_id), InsertEntry(entry), keys.set_tip(name, entry.id)]
        if boundary.label is not None and boundary.target_id is not None:
            writes.append(keys.set_label(boundary.target_id, boundary.label))

        def events(done: Done, record: OperationResult) -> list[HarnessEvent]:
            return [*_made(drive, task, made, done, entry.id), navigation_end(drive, record, [*path, done.entries[entry.id]])]

        return End(status="completed", writes=writes, tip_id=entry.id, events=events)

    await drive.line.advance(drive.operation_id, plan)


async def _resume(drive: Drive, task: Task, boundary: ResumeCheckpoint, made: Made) -> None:
    at = boundary.resume_after
    requests: list[AssistantEffectPending] = []

    async def plan(lane: Lane, operation: Operation, mutation: Mutation) -> Move:
        entry = _compaction_entry(drive, lane.tip_id, made)
        settings = operation.meta.settings
        sees = await projecting(drive.line, lane.inbox, mutation)
        taken = _inbox.at_boundary(
            lane.inbox, settings.steering_mode, settings.follow_up_mode, may_finish=False, projects=lambda item: item.entry_id in sees
        )
        placement = await place(drive.line, lane, taken, mutation, after=entry.id)
        update = await queue_update(drive.line, operation.id, placement.inbox, mutation) if taken else []
        told: list[HarnessEvent] = []
        state: Leaf
        if placement.trigger is not None or isinstance(at.continuation, NeedAssistant):
            used = placement.trigger is None and isinstance(at.continuation, NeedAssistant) and at.continuation.overflow_recovery_used
            step = _assistant_step.begin(drive, lane, operation, placement.trigger or at.trigger_entry_id, overflow_recovery_used=used)
            state, told = step.state, step.events
            if isinstance(state, AssistantEffectPending):
                requests.append(state)
        else:
            state = Checkpoint(continuation=MayFinish(), trigger_entry_id=at.trigger_entry_id, **carried(operation.state))
        writes: list[Write] = [*_hook_usage(drive, made), InsertEntry(entry), keys.set_tip(drive.line.name, entry.id)]
        writes += placement.writes(drive.line.name)

        def events(done: Done) -> list[HarnessEvent]:
            first = [*_made(drive, task, made, done, entry.id), _compaction_end(drive, task, "completed", entry_id=entry.id)]
            return [*first, *added(done, (placed.id for placed in placement.entries), **drive.told), *update, *told]

        return Move(state=state, writes=writes, tip_id=placement.tip_id, inbox=placement.inbox, events=events)

    if await drive.line.advance(drive.operation_id, plan) == "moved" and requests:
        await _assistant_step.request(drive, requests[0], patch={})


def _made(drive: Drive, task: Task, made: Made, done: Done, entry_id: str) -> list[HarnessEvent]:
    """What is told of a stored summary."""
    events: list[HarnessEvent] = [EntryAdded(**drive.told, entry=done.entries[entry_id]), *done.usage(drive.line.name, drive.operation_id)]
    if made.attempt > 1:
        events.append(RetryEnd(**drive.told, step=task.task_id, attempt=made.attempt, success=True))
    return events


# ---------------------------------------------------------------------------------------------------- declined, failed


async def decline(drive: Drive, task: Task) -> None:
    """A hook does not want it: a run goes on without (unless it overflowed), an operation of its own ends."""
    if isinstance(task.boundary, ResumeCheckpoint) and task.reason == "threshold":
        told = _compaction_end(drive, task, "declined")
        await checkpoint.decide_at(drive, task.boundary.resume_after, may_compact=False, before=lambda: [told])
    elif isinstance(task.boundary, ResumeCheckpoint):
        error = OperationError(
            code="compaction_declined", message="the conversation no longer fits the model, and a before_compaction handler declined to compact it"
        )
        await _end(drive, task, "failed", error, inner="declined")
    else:
        await _end(drive, task, "declined", None)


async def fail(drive: Drive, task: Task, error: OperationError, *, attempt: int = 1) -> None:
    """No summary can be had: the operation fails, the tip and the queue stay."""
    await _end(drive, task, "failed", error, attempt=attempt)


async def _end(
    drive: Drive, task: Task, status: Literal["declined", "failed"], error: OperationError | None, *, attempt: int = 1,
    inner: OperationStatus | None = None,
) -> None:  # fmt: skip
    def events(_: Done, record: OperationResult) -> list[HarnessEvent]:
        told: list[HarnessEvent] = []
        if attempt > 1:
            told.append(RetryEnd(**drive.told, step=task.task_id, attempt=attempt, success=False, final_error=error.message if error else None))
        return [*told, *ending(drive, task, record, inner=inner)]

    await drive.line.advance(drive.operation_id, ending_of(End(status=status, error=error, events=events)))


def ending(drive: Drive, task: Task, record: OperationResult, *, inner: OperationStatus | None = None) -> list[HarnessEvent]:
    """Return the last events of an operation that ends in a summary; `inner` is the compaction's own status inside a run."""
    match task.boundary:
        case ResumeCheckpoint():
            return [_compaction_end(drive, task, inner or record.status, error=record.error), checkpoint.run_end(drive, record)]
        case Finish():
            return [_compaction_end(drive, task, record.status, error=record.error, record=record)]
        case CommitNavigation():
            return [navigation_end(drive, record)]


def _compaction_end(
    drive: Drive, task: Task, status: OperationStatus, *, entry_id: str | None = None, error: OperationError | None = None,
    record: OperationResult | None = None,
) -> CompactionEnd:  # fmt: skip
    return CompactionEnd(
        **drive.told, reason=cast("Any", task.reason), status=status, entry_id=entry_id, error=error, ended_at=drive.environment.clock(),
        record=record,
    )  # fmt: skip
