"""`summary.*`: one summary, for a compaction or for a branch that is left. A hook may decline or supply it; else a model is asked.

An attempt may take several requests (a long history is rolled up, a split turn has a part of its own). Each request is an
intent and an outcome with its own ledger row; a crash in between costs the attempt, never a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from laneway._effects.respond import respond
from laneway.harness import _compaction, _telemetry
from laneway.harness._compaction import Ask, Work
from laneway.harness._environment import retry_delay
from laneway.harness._events import RetryScheduled, RetryStart
from laneway.harness._hooks import BeforeCompaction, BeforeNavigation, Decline, patched
from laneway.harness._line import Done, Move
from laneway.harness._procedures import _asking, _compacting
from laneway.harness._procedures._summary_outcome import Made, decline, fail, succeed
from laneway.harness._procedures.assistant import until_due
from laneway.harness.results import OperationError, Waiting
from laneway.harness.state import (
    CommitNavigation,
    Lane,
    Operation,
    SummaryContext,
    SummaryDeciding,
    SummaryEffectPending,
    SummaryReady,
    SummaryRequest,
    SummaryRetryWait,
    Task,
    carried,
)
from laneway.llm._overflow import is_context_overflow
from laneway.llm._retry import RetryPolicy, is_retryable
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.messages import AssistantMessage, SystemMessage, Usage, UserMessage
from laneway.session._mutation import Mutation
from laneway.storage.base import InsertUsage, UsageRow

if TYPE_CHECKING:
    from laneway.harness._drive import Drive

INTERRUPTED = "the process ended while the summary was being made"


async def deciding(drive: Drive, state: SummaryDeciding) -> None:
    """Ask the hook about the stored preparation."""
    task = state.task
    answer = None
    if drive.hooks.has("before_navigation" if isinstance(task.boundary, CommitNavigation) else "before_compaction"):
        answer = await _ask_hook(drive, task, await _compacting.load(drive, task))
        drive.gate.admit()
    if isinstance(answer, Decline):
        await decline(drive, task)
        return
    if answer is not None:
        work = await _compacting.load(drive, task)
        made = Made(summary=answer.summary, details=answer.details, usage=answer.usage, work=work, from_hook=True)
        await succeed(drive, task, made)
        return

    def plan(lane: Lane, operation: Operation, _: Mutation) -> Move:
        options = {name: value for name, value in drive.environment.captured_options().items() if name != "deferred"}
        context = SummaryContext(configuration=lane.configuration, stream_options=options, retry=drive.environment.captured_retry())
        return Move(state=SummaryReady(task=task, context=context, **carried(operation.state)))

    await drive.line.advance(drive.operation_id, plan)


async def _ask_hook(drive: Drive, task: Task, work: Work) -> Any:
    boundary = task.boundary
    if isinstance(boundary, CommitNavigation):
        event = BeforeNavigation(**drive.asked, target_id=boundary.target_id, preparation=work, instructions=task.instructions)
        return await drive.hooks.before_navigation(event)
    assert task.reason is not None
    return await drive.hooks.before_compaction(
        BeforeCompaction(**drive.asked, reason=task.reason, preparation=work, instructions=task.instructions)
    )


async def ready(drive: Drive, state: SummaryReady) -> None:
    """Commit the attempt, then make it."""
    task, context = state.task, state.context
    model = drive.environment.find_model(context.configuration.model)
    if model is None:
        ref = context.configuration.model
        details = {"provider": ref.provider, "model_id": ref.model_id}
        await fail(drive, task, OperationError(code="model_unavailable", message=f"this process has no model {ref.spec}", details=details))
        return
    drive.gate.admit()

    def plan(_: Lane, operation: Operation, __: Mutation) -> Move:
        pending = SummaryEffectPending(task=task, context=context, attempt=state.next_attempt, **carried(operation.state))
        return Move(state=pending)

    if await drive.line.advance(drive.operation_id, plan) == "moved":
        await _Attempt(drive, task, context, state.next_attempt, model).make()


async def recover(drive: Drive, state: SummaryEffectPending) -> None:
    """An attempt of an earlier process is lost: make another one, or give up. What it had cost is in the ledger already."""
    if state.attempt < state.context.retry.max_attempts:
        await _schedule(drive, state.task, state.context, state.attempt, AssistantMessage(content=[], error_message=INTERRUPTED), recovery=True)
        return
    error = OperationError(code="structural_interrupted", message=f"{INTERRUPTED}, and no attempt is left")
    await fail(drive, state.task, error)


async def retry_wait(drive: Drive, state: SummaryRetryWait) -> Waiting | None:
    """Wait until the next attempt is due, or say that it is not."""
    if (waiting := await until_due(drive, state)) is not None:
        return waiting

    def plan(_: Lane, operation: Operation, __: Mutation) -> Move:
        next_state = SummaryReady(task=state.task, context=state.context, next_attempt=state.next_attempt, **carried(operation.state))
        return Move(state=next_state, events=lambda _: [RetryStart(**drive.told, step=state.task.task_id, attempt=state.next_attempt)])

    await drive.line.advance(drive.operation_id, plan)
    return None


class _Attempt:
    """One attempt at a summary: its requests, one after the other."""

    def __init__(self, drive: Drive, task: Task, context: SummaryContext, number: int, model: Model) -> None:
        self.drive, self.task, self.context, self.number, self.model = drive, task, context, number, model
        self.branch = isinstance(task.boundary, CommitNavigation)
        self.usage: Usage | None = None

    async def make(self) -> None:
        """Make all requests and commit what comes of them."""
        work = await _compacting.load(self.drive, self.task)
        output = _compaction.BRANCH_OUTPUT_TOKENS if self.branch else self.model.max_tokens
        asks = _compaction.plan_requests(work, context_window=self.model.context_window, output_tokens=output)
        parts: dict[str, str | None] = {"history": None, "prefix": None}
        for index, ask in enumerate(asks):
            message = await self._request(index, ask, parts[ask.part] if ask.rolling else ask.previous)
            if message is None:
                return
            if (problem := _compaction.rejected(message)) is not None:
                await self._failed(message, OperationError(code=problem[0], message=problem[1]))
                return
            parts[ask.part] = message.text.strip()
        history = parts["history"]
        if self.branch and history is None:
            history = _compaction.NO_CONTENT
        summary = _compaction.assemble(work, history, parts["prefix"])
        made = Made(summary=summary, details=work.files.details(), usage=self.usage, work=work, from_hook=False, attempt=self.number)
        await succeed(self.drive, self.task, made)

    async def _request(self, index: int, ask: Ask, previous: str | None) -> AssistantMessage | None:
        """Make one request; None if the operation was cancelled."""
        drive = self.drive
        options = self._options()
        patch = await _asking.request_patch(drive, self.model, "navigation" if self.branch else "compaction", self.number, options)
        drive.gate.admit()
        usage_id = drive.new_id()

        def intend(_: Lane, operation: Operation, __: Mutation) -> Move:
            assert isinstance(operation.state, SummaryEffectPending)
            return Move(state=msgspec.structs.replace(operation.state, request=SummaryRequest(index=index, usage_id=usage_id)))

        if await drive.line.advance(drive.operation_id, intend) != "moved":
            return None
        drive.gate.admit()
        wire = _asking.Wire(drive, msgspec.structs.replace(patched(options, patch), deferred=False, cache_retention="none"))
        request = Transcript(messages=[SystemMessage(content=_compaction.SYSTEM, timestamp=0), self._user(ask, previous)])
        step = "navigation" if self.branch else "compaction"
        with _telemetry.request_span(provider=self.model.provider, model_id=self.model.id, step=step, attempt=self.number) as span:
            message = await respond(self.model, request, wire.options(), stream_fn=drive.environment.streamer(), on_event=_ignore)
            _telemetry.answered(span, message, request.messages)
        if drive.gate.state == "closed":
            drive.gate.admit()
        await self._outcome(message, usage_id)
        return message

    def _user(self, ask: Ask, previous: str | None) -> UserMessage:
        return UserMessage(content=ask.prompt(previous, self.task.instructions), timestamp=self.drive.environment.clock())

    def _options(self) -> StreamOptions:
        options = _asking.step_options(self.drive, self.context.configuration, self.context.stream_options)
        changes: dict[str, Any] = {"deferred": False, "cache_retention": "none", "tool_choice": None}
        changes["session_id"] = f"{options.session_id}:{self.task.task_id}"
        changes["max_tokens"] = _compaction.BRANCH_OUTPUT_TOKENS if self.branch else self.model.max_tokens or None
        if self.branch:
            changes["reasoning"] = None
        return msgspec.structs.replace(options, **changes)

    async def _outcome(self, message: AssistantMessage, usage_id: str) -> None:
        """Commit what a request cost, whatever came of it."""
        self.usage = message.usage if self.usage is None else self.usage + message.usage
        drive = self.drive

        def settle(_: Lane, operation: Operation, __: Mutation) -> Move:
            state = operation.state
            assert isinstance(state, SummaryEffectPending)
            next_state = msgspec.structs.replace(state, request=None, usage_ids=[*state.usage_ids, usage_id])

            def events(done: Done) -> list[Any]:
                return done.usage(drive.line.name, operation.id)

            return Move(state=next_state, writes=[InsertUsage(UsageRow(id=usage_id, usage=message.usage))], events=events)

        await drive.line.settle(drive.operation_id, settle)

    async def _failed(self, message: AssistantMessage, error: OperationError) -> None:
        retry = self.context.retry
        worth = is_retryable(message, RetryPolicy(max_delay=retry.max_delay_ms / 1000)) and not is_context_overflow(message)
        self.drive.gate.admit()
        if worth and self.number < retry.max_attempts:
            await _schedule(self.drive, self.task, self.context, self.number, message, recovery=False)
        else:
            await fail(self.drive, self.task, error, attempt=self.number)


async def _schedule(
    drive: Drive, task: Task, context: SummaryContext, failed_attempt: int, message: AssistantMessage, *, recovery: bool
) -> None:
    """Commit the wait before the next attempt."""
    delay = retry_delay(context.retry, message, failed_attempt)
    waiting = SummaryRetryWait(
        task=task, context=context, next_attempt=failed_attempt + 1, not_before=drive.environment.clock() + delay, delay_ms=delay,
        error_message=message.error_message or "",
    )  # fmt: skip
    told = RetryScheduled(
        **drive.told, recovery=recovery, step=task.task_id, attempt=waiting.next_attempt, max_attempts=context.retry.max_attempts,
        delay=delay / 1000, not_before=waiting.not_before, error_message=waiting.error_message,
    )  # fmt: skip

    def plan(_: Lane, operation: Operation, __: Mutation) -> Move:
        return Move(state=msgspec.structs.replace(waiting, **carried(operation.state)), events=lambda _: [told])

    await drive.line.advance(drive.operation_id, plan)


async def _ignore(_: object) -> None:
    """A summary streams for nobody."""
