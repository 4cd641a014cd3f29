"""One assistant step: its intent, its request, its settlement. The settlement is shared with polls and recovery."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from laneway._effects.call_tools import Prepared, look_up, plain_args
from laneway.harness import keys
from laneway.harness._classify import Circumstances, Verdict, classify
from laneway.harness._environment import retry_delay
from laneway.harness._events import (
    CompactionStart,
    EntryAdded,
    HarnessEvent,
    MessageEnd,
    MessageStart,
    RetryEnd,
    RetryScheduled,
    RetryStart,
    RunSuspend,
    ToolStart,
    TurnEnd,
    TurnStart,
)
from laneway.harness._line import Done, End, Move
from laneway.harness._procedures import _asking, _compacting
from laneway.harness.results import OperationResult
from laneway.harness.state import (
    AssistantEffectPending,
    AssistantReady,
    AssistantRetryWait,
    Batch,
    Call,
    Checkpoint,
    CheckpointPayload,
    DeferredEffectPending,
    DeferredSuspended,
    GenerationContext,
    Lane,
    Leaf,
    MayFinish,
    NeedAssistant,
    Operation,
    PendingCall,
    PlannedCall,
    ResumeCheckpoint,
    Spent,
    SummaryDeciding,
    Task,
    Tools,
    carried,
)
from laneway.messages import AssistantMessage, ToolCall
from laneway.session._mutation import Mutation
from laneway.storage.base import DeleteList, InsertEntry, InsertUsage, MessageEntry, SetValue, UsageRow, Write

if TYPE_CHECKING:
    from laneway.harness._compaction import Preparation
    from laneway.harness._drive import Drive

InFlight = AssistantEffectPending | DeferredEffectPending


# ---------------------------------------------------------------------------------------------------- intent


@dataclass(slots=True)
class Begun:
    """The leaf that a boundary leads to, and what is told of it."""

    state: AssistantReady | AssistantEffectPending
    events: list[HarnessEvent]


def begin(drive: Drive, lane: Lane, operation: Operation, trigger: str | None, *, overflow_recovery_used: bool) -> Begun:
    """Begin a step: capture what it asks with. Where nobody needs to be asked first, the same commit is its intent."""
    environment = drive.environment
    context = GenerationContext(
        step_id=drive.new_id(),
        trigger_entry_id=trigger,
        configuration=lane.configuration,
        stream_options=environment.captured_options(),
        retry=environment.captured_retry(),
        overflow_recovery_used=overflow_recovery_used,
    )
    ready = AssistantReady(context=context, **carried(operation.state))
    if drive.hooks.has("before_request") or drive.gate.state != "open" or not can_ask(drive, context):
        return Begun(ready, [])
    return intend(drive, ready, attempt=1)


def nothing_to_decide(drive: Drive, lane: Lane, operation: Operation) -> bool:
    """Whether nobody may have a say at the boundary that comes next, so that the commit before it can carry its decision."""
    return not lane.inbox and operation.state.cancel_requested_at is None and drive.gate.state == "open" and not drive.runtime.bus.listened


def can_ask(drive: Drive, context: GenerationContext) -> bool:
    """Whether this process has the model and the tools that the step captured."""
    environment = drive.environment
    return environment.find_model(context.configuration.model) is not None and not environment.missing_tools(context.configuration)


def intend(drive: Drive, state: AssistantReady | AssistantRetryWait, *, attempt: int, max_tokens: int | None = None) -> Begun:
    """Return the intent of an attempt: the ids that its outcome will have."""
    context = state.context
    model = drive.environment.find_model(context.configuration.model)
    assert model is not None
    asked = max_tokens if max_tokens is not None else context.stream_options.get("max_tokens")
    pending = drive.intent = AssistantEffectPending(
        context=context,
        attempt=attempt,
        response_entry_id=drive.new_id(),
        usage_id=drive.new_id(),
        intended_output_limit=min(asked, model.max_tokens) if asked and model.max_tokens else asked or model.max_tokens,
        context_window=model.context_window,
        **carried(state),
    )
    events: list[HarnessEvent] = []
    if not drive.runtime.bus.listened:
        return Begun(pending, events)
    if attempt == 1:
        events.append(TurnStart(**drive.told, turn_id=context.step_id))
    elif isinstance(state, AssistantRetryWait):
        events.append(RetryStart(**drive.told, step=context.step_id, attempt=attempt))
    return Begun(pending, events)


# ---------------------------------------------------------------------------------------------------- request


async def request(drive: Drive, state: AssistantEffectPending, *, patch: Mapping[str, Any]) -> None:
    """Perform the request of a committed intent and settle its outcome."""
    drive.gate.admit()
    drive.intent = None
    model = drive.environment.find_model(state.context.configuration.model)
    assert model is not None
    message, streaming = await _asking.ask(drive, state, model=model, patch=patch)
    await settle(drive, state, message, started=streaming.started, framed=streaming.framed)


async def settle(
    drive: Drive, state: InFlight, message: AssistantMessage, *, started: bool = False, recovery: bool = False, framed: bool = True
) -> None:
    """Commit a response and what follows from it, in one transaction.

    `started`: its `message_start` has been told. `framed`: frames of it may be stored.
    """
    settlement = _Settlement(drive, state, message, started, recovery)
    settlement.framed = framed
    await settlement.look_ahead()
    await drive.line.settle(drive.operation_id, settlement.plan)
    drive.line.live.streaming = None


class _Settlement:
    """One response on its way into the history."""

    def __init__(self, drive: Drive, state: InFlight, message: AssistantMessage, started: bool, recovery: bool) -> None:
        self.drive, self.state, self.message = drive, state, message
        self.started, self.recovery, self.framed = started, recovery, True
        if isinstance(state, DeferredEffectPending):
            self.poll: DeferredEffectPending | None = state
            self.turn_id, self.configuration = f"{state.step_id}:poll:{state.poll}", state.configuration
        else:
            self.poll = None
            self.turn_id, self.configuration = state.context.step_id, state.context.configuration
        self.foreseen: Verdict | None = None  # what the verdict is unless the operation is cancelled first
        self.preparation: Preparation | None = None
        self.cleared: Prepared | None = None
        self.why_not = "is off"

    @property
    def generation(self) -> AssistantEffectPending:
        assert isinstance(self.state, AssistantEffectPending)
        return self.state

    # -- what must be known before the line is taken

    async def look_ahead(self) -> None:
        """Prepare what the plan may need: the inputs of an overflow compaction, or the clearance of a single call."""
        verdict = self._verdict(cancelled=False, can_compact=True)
        if verdict.kind == "compact":
            operation = self.drive.line.current(self.drive.operation_id)
            assert operation is not None
            if not operation.meta.settings.compaction.enabled:
                self.why_not = "is off"
            elif self.generation.context.overflow_recovery_used:
                self.why_not = "was already tried for this prompt"
            else:
                self.preparation = await _compacting.prepare_now(self.drive)
                self.why_not = "has nothing to summarise"
            return
        self.foreseen = verdict
        if verdict.kind == "tools" and not self.recovery:
            self.cleared = self._clear_single(verdict.message)

    def _clear_single(self, message: AssistantMessage) -> Prepared | None:
        """Prepare the only call of a response, if nobody has a say: its intent can then be part of the settlement."""
        drive, calls = self.drive, message.tool_calls
        if len(calls) != 1 or message.stop_reason == "length" or drive.hooks.has("before_tool") or drive.gate.state != "open":
            return None
        tools = drive.environment.active(self.configuration)
        if calls[0].name not in tools or drive.environment.tool_context is not None:
            return None
        prepared = look_up(calls[0], tools)
        return prepared if isinstance(prepared, Prepared) else None

    # -- the plan

    def _verdict(self, *, cancelled: bool, can_compact: bool) -> Verdict:
        if self.poll is not None:
            return classify(self.message, Circumstances(cancelled=cancelled, poll=True))
        state = self.generation
        return classify(
            self.message,
            Circumstances(
                cancelled=cancelled,
                recovery=self.recovery,
                attempt=state.attempt,
                max_attempts=state.context.retry.max_attempts,
                max_delay_ms=state.context.retry.max_delay_ms,
                output_limit=state.intended_output_limit,
                context_window=state.context_window,
                can_compact=can_compact,
                why_not=self.why_not,
            ),
        )

    def plan(self, lane: Lane, operation: Operation, _: Mutation) -> Move | End:
        """Return the settlement: the entry, its ledger row, the tip, the next leaf."""
        verdict = self.foreseen
        if verdict is None or operation.cancelled:
            verdict = self._verdict(cancelled=operation.cancelled, can_compact=self.preparation is not None)
        entry_id = self.state.response_entry_id
        writes: list[Write] = [
            InsertEntry(MessageEntry(id=entry_id, parent_id=lane.tip_id, message=verdict.message)),
            InsertUsage(UsageRow(id=self.state.usage_id, usage=verdict.message.usage, entry_id=entry_id)),
            keys.set_tip(self.drive.line.name, entry_id),
        ]
        self.drive.responses = {entry_id: verdict.message}
        if verdict.kind == "failed":
            return self._failed(verdict, writes)
        if verdict.kind == "done" and self._may_end(lane, operation, verdict):
            return End(status="completed", writes=writes, tip_id=entry_id, events=_untold)
        common = {**carried(operation.state), "latest_assistant_entry_id": entry_id, "spent": _spent(operation.state.spent, verdict)}
        if self.framed:
            writes.append(DeleteList(keys.PENDING_FRAMES, keys.under(operation.id, entry_id)))
        state, more, told = self._next(verdict, common)
        writes += more
        return Move(state=state, writes=writes, tip_id=entry_id, events=lambda done: [*self._settled(done, verdict), *told])

    def _may_end(self, lane: Lane, operation: Operation, verdict: Verdict) -> bool:
        """Whether this response ends the run, as nobody and nothing could make it go on."""
        drive = self.drive
        if self.recovery or self.poll is not None or drive.hooks.has("before_run_end") or not nothing_to_decide(drive, lane, operation):
            return False
        return _compacting.surely_not_due(drive.line, operation, [verdict.message])

    def _next(self, verdict: Verdict, common: dict[str, Any]) -> tuple[Leaf, list[Write], list[HarnessEvent]]:
        entry_id = self.state.response_entry_id
        match verdict.kind:
            case "aborted" | "done":
                state = Checkpoint(continuation=MayFinish(), trigger_entry_id=entry_id, **common)
                if self.recovery:
                    return state, [], []
                return state, [], [*self._retried(success=verdict.kind == "done", verdict=verdict), self._turn_end(verdict)]
            case "compact":
                return self._compact(verdict, common)
            case "suspended":
                return self._suspended(verdict, common)
            case "retry":
                return self._retry(verdict, common)
            case "tools":
                return self._tools(verdict, common)
            case "failed":
                raise AssertionError("a failed run has no next leaf")

    def _compact(self, verdict: Verdict, common: dict[str, Any]) -> tuple[Leaf, list[Write], list[HarnessEvent]]:
        assert self.preparation is not None
        resume = CheckpointPayload(
            continuation=NeedAssistant(overflow_recovery_used=True), trigger_entry_id=self.generation.context.trigger_entry_id
        )
        task = Task(task_id=self.drive.new_id(), reason="overflow", boundary=ResumeCheckpoint(resume_after=resume))
        key = keys.under(self.drive.operation_id, task.task_id)
        started = CompactionStart(**self.drive.told, reason="overflow", started_at=self.drive.environment.clock())
        told = [*self._retried(success=False, verdict=verdict), *([] if self.recovery else [self._turn_end(verdict)]), started]
        return SummaryDeciding(task=task, **common), [SetValue(keys.OP_PREPARATION, key, keys.plain(self.preparation))], told

    def _suspended(self, verdict: Verdict, common: dict[str, Any]) -> tuple[Leaf, list[Write], list[HarnessEvent]]:
        poll, entry_id = self.poll, self.state.response_entry_id
        if poll is not None:
            where = {"step_id": poll.step_id, "poll": poll.poll, "configuration": poll.configuration, "stream_options": poll.stream_options}
        else:
            context = self.generation.context
            where = {"step_id": context.step_id, "poll": 0, "configuration": context.configuration, "stream_options": context.stream_options}
        state = DeferredSuspended(source_entry_id=entry_id, **where, **common)
        suspend = RunSuspend(**self.drive.told, reason="deferred", deferred=verdict.message.deferred, poll=state.poll)
        return state, [], [*self._retried(success=True, verdict=verdict), self._turn_end(verdict), suspend]

    def _retry(self, verdict: Verdict, common: dict[str, Any]) -> tuple[Leaf, list[Write], list[HarnessEvent]]:
        state = self.generation
        delay = retry_delay(state.context.retry, verdict.message, state.attempt)
        waiting = AssistantRetryWait(
            context=state.context,
            next_attempt=state.attempt + 1,
            not_before=self.drive.environment.clock() + delay,
            delay_ms=delay,
            error_message=verdict.message.error_message or "",
            **common,
        )
        scheduled = RetryScheduled(
            **self.drive.told, recovery=self.recovery, step=state.context.step_id, attempt=waiting.next_attempt,
            max_attempts=state.context.retry.max_attempts, delay=delay / 1000, not_before=waiting.not_before, error_message=waiting.error_message,
        )  # fmt: skip
        return waiting, [], [scheduled]

    def _tools(self, verdict: Verdict, common: dict[str, Any]) -> tuple[Leaf, list[Write], list[HarnessEvent]]:
        ids = self.drive.runtime.session.ids
        calls: list[Call] = [
            PlannedCall(source_index=index, result_entry_id=ids.after(self.state.response_entry_id))
            for index, block in enumerate(verdict.message.content)
            if isinstance(block, ToolCall)
        ]
        writes: list[Write] = []
        told = self._retried(success=True, verdict=verdict)
        if self.cleared is not None:
            pending = self._single_intent(self.cleared, calls[0], writes)
            calls = [pending]
            if self.drive.runtime.bus.listened:
                asked = self.cleared.call
                told.append(
                    ToolStart(**self.drive.told, turn_id=self.turn_id, tool_call_id=asked.id, tool_name=asked.name, args=asked.arguments)
                )
        batch = Batch(assistant_entry_id=self.state.response_entry_id, turn_id=self.turn_id, configuration=self.configuration, calls=calls)
        return Tools(batch=batch, **common), writes, told

    def _single_intent(self, cleared: Prepared, call: Call, writes: list[Write]) -> PendingCall:
        self.drive.cleared[call.result_entry_id] = cleared
        args = plain_args(cleared.args)
        as_asked = args == cleared.call.arguments
        if not as_asked:
            writes.append(SetValue(keys.OP_TOOL_ARGS, keys.under(self.drive.operation_id, self.turn_id, call.source_index), args))
        return PendingCall(
            source_index=call.source_index, result_entry_id=call.result_entry_id, replay=cleared.tool.replay, as_asked=as_asked
        )

    def _failed(self, verdict: Verdict, writes: list[Write]) -> End:
        def events(done: Done, record: OperationResult) -> list[HarnessEvent]:
            from laneway.harness._procedures.checkpoint import run_end

            turn = [] if self.recovery else [*self._retried(success=False, verdict=verdict), self._turn_end(verdict)]
            return [*self._settled(done, verdict), *turn, run_end(self.drive, record)]

        return End(status="failed", error=verdict.error, writes=writes, tip_id=self.state.response_entry_id, events=events)

    # -- what is told

    def _settled(self, done: Done, verdict: Verdict) -> list[HarnessEvent]:
        told, entry_id = self.drive.told, self.state.response_entry_id
        events: list[HarnessEvent] = []
        if not self.started:
            events.append(MessageStart(**told, recovery=self.recovery, message=verdict.message))
        events.append(MessageEnd(**told, recovery=self.recovery, message=verdict.message, entry_id=entry_id))
        events.append(EntryAdded(**told, recovery=self.recovery, entry=done.entries[entry_id]))
        return [*events, *done.usage(self.drive.line.name, self.drive.operation_id)]

    def _turn_end(self, verdict: Verdict) -> TurnEnd:
        return TurnEnd(**self.drive.told, turn_id=self.turn_id, message=verdict.message, tool_results=[])

    def _retried(self, *, success: bool, verdict: Verdict) -> list[HarnessEvent]:
        if self.poll is not None or self.generation.attempt == 1 or self.recovery:
            return []
        if verdict.kind == "aborted":
            return []
        error = None if success else verdict.message.error_message
        step = self.generation.context.step_id
        return [RetryEnd(**self.drive.told, step=step, attempt=self.generation.attempt, success=success, final_error=error)]


def _untold(_: Done, __: OperationResult) -> list[HarnessEvent]:
    """The events of an end that nobody listens to."""
    return []


def _spent(spent: Spent, verdict: Verdict) -> Spent:
    usage = verdict.message.usage
    asked = verdict.message.tool_calls if verdict.kind == "tools" else ()
    cut = _truncated(verdict) if asked else None
    return Spent(
        truncated=cut,
        repeats=0 if cut is None else spent.repeats + 1 if cut == spent.truncated else 1,
        turns=spent.turns + (verdict.kind in ("tools", "done")),
        tool_calls=spent.tool_calls + len(asked),
        output_tokens=spent.output_tokens + usage.output,
        cost=spent.cost + usage.cost.total,
    )


def _truncated(verdict: Verdict) -> str | None:
    """Return what recognises the calls of a response that was cut off; None if it was not."""
    if verdict.message.stop_reason != "length":
        return None
    calls = [[call.name, call.arguments] for call in verdict.message.tool_calls]
    return hashlib.blake2b(msgspec.json.encode(calls), digest_size=8).hexdigest()
