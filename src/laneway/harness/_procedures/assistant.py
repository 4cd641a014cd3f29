"""`assistant.ready`, `assistant.effect_pending`, `assistant.retry_wait`: getting one response, whatever it takes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from laneway.abort import abort_scope
from laneway.errors import StorageCorruption
from laneway.harness import keys
from laneway.harness._frames import rebuild
from laneway.harness._line import End, Move, ending
from laneway.harness._procedures import _asking, _assistant_step
from laneway.harness._procedures.checkpoint import run_end
from laneway.harness.results import OperationError, Waiting
from laneway.harness.state import (
    AssistantEffectPending,
    AssistantReady,
    AssistantRetryWait,
    DeferredEffectPending,
    Lane,
    Operation,
    SummaryRetryWait,
    carried,
)
from laneway.llm._writer import describe
from laneway.messages import AssistantContent, AssistantMessage, ErrorInfo
from laneway.session._mutation import Mutation
from laneway.storage.base import MAX_LIST_LIMIT

if TYPE_CHECKING:
    from laneway.harness._drive import Drive

INTERRUPTED = "Interrupted: the process ended while this response was under way. The request may have been answered; its answer is lost"


async def ready(drive: Drive, state: AssistantReady) -> None:
    """Ask `before_request`, commit the intent, perform the request."""
    context = state.context
    model = drive.environment.find_model(context.configuration.model)
    if model is None or not _assistant_step.can_ask(drive, context):
        await _cannot_ask(drive, state)
        return
    options = _asking.step_options(drive, context.configuration, context.stream_options)
    patch = await _asking.request_patch(drive, model, "assistant", state.next_attempt, options)
    drive.gate.admit()
    intents: list[AssistantEffectPending] = []

    def plan(_: Lane, operation: Operation, __: Mutation) -> Move:
        assert isinstance(operation.state, AssistantReady)
        begun = _assistant_step.intend(drive, operation.state, attempt=operation.state.next_attempt, max_tokens=patch.get("max_tokens"))
        assert isinstance(begun.state, AssistantEffectPending)
        intents.append(begun.state)
        return Move(state=begun.state, events=lambda _: begun.events)

    if await drive.line.advance(drive.operation_id, plan) == "moved":
        await _assistant_step.request(drive, intents[0], patch=patch)


async def _cannot_ask(drive: Drive, state: AssistantReady) -> None:
    """End the run: no entry, no usage, the queue as it is."""
    configuration = state.context.configuration
    if drive.environment.find_model(configuration.model) is None:
        ref = configuration.model
        error = OperationError(
            code="model_unavailable",
            message=f"this process has no model {ref.spec}: register it, or set_model() another",
            details={"provider": ref.provider, "model_id": ref.model_id},
        )
    else:
        missing = drive.environment.missing_tools(configuration)
        error = OperationError(
            code="configured_tools_unavailable",
            message=f"this process has no tool called {', '.join(missing)}: add it with set_tools(), or set_active_tools() without it",
            details={"tools": missing},
        )
    end = End(status="failed", error=error, events=lambda _, record: [run_end(drive, record)])
    await drive.line.advance(drive.operation_id, ending(end))


async def recover(drive: Drive, state: AssistantEffectPending) -> None:
    """Settle a response that an earlier process left: what its frames hold, as an interrupted one. It is never asked for again.

    An intent that this very pass has committed, with the results before it, is performed.
    """
    if drive.intent is state:
        await _assistant_step.request(drive, state, patch={})
        return
    await _assistant_step.settle(drive, state, await partial(drive, state, INTERRUPTED), recovery=True)


async def partial(drive: Drive, state: AssistantEffectPending | DeferredEffectPending, why: str) -> AssistantMessage:
    """Rebuild what the committed frames of a response hold; usage unknown, so zero."""
    key, after = keys.under(drive.operation_id, state.response_entry_id), None
    frames: list[list[list[object]]] = []
    while page := await drive.runtime.session.read_list(keys.PENDING_FRAMES, key, after=after, limit=MAX_LIST_LIMIT):
        frames += [element.value for element in page]
        after = page[-1].seq
    configuration = state.configuration if isinstance(state, DeferredEffectPending) else state.context.configuration
    return AssistantMessage(
        content=_rebuilt(key, frames),
        api="unknown",
        provider=configuration.model.provider,
        model=configuration.model.model_id,
        stop_reason="error",
        error_message=why,
        error=ErrorInfo(kind="incomplete"),
    )


def _rebuilt(key: str, frames: list[list[list[object]]]) -> list[AssistantContent]:
    try:
        return rebuild(frames)
    except Exception as error:
        raise StorageCorruption(f"{keys.PENDING_FRAMES}/{key} cannot be read: {describe(error)}") from error


async def retry_wait(drive: Drive, state: AssistantRetryWait) -> Waiting | None:
    """Wait until the next attempt is due, or say that it is not; then make it."""
    if (waiting := await until_due(drive, state)) is not None:
        return waiting
    intents: list[AssistantEffectPending] = []

    def plan(_: Lane, operation: Operation, __: Mutation) -> Move:
        now = operation.state
        assert isinstance(now, AssistantRetryWait)
        started = _assistant_step.RetryStart(**drive.told, step=now.context.step_id, attempt=now.next_attempt)
        if drive.hooks.has("before_request") or not _assistant_step.can_ask(drive, now.context):
            return Move(state=AssistantReady(context=now.context, next_attempt=now.next_attempt, **carried(now)), events=lambda _: [started])
        begun = _assistant_step.intend(drive, now, attempt=now.next_attempt)
        assert isinstance(begun.state, AssistantEffectPending)
        intents.append(begun.state)
        return Move(state=begun.state, events=lambda _: begun.events)

    if await drive.line.advance(drive.operation_id, plan) == "moved" and intents:
        await _assistant_step.request(drive, intents[0], patch={})
    return None


async def until_due(drive: Drive, state: AssistantRetryWait | SummaryRetryWait) -> Waiting | None:
    """Return None when the attempt is due; else wait for it if this pass may, or return the waiting outcome.

    A clock that went backwards cannot make the wait longer than it was scheduled to be.
    """
    left = min(state.not_before - drive.environment.clock(), state.delay_ms)
    if left > 0:
        if not drive.wait_for_retry:
            return Waiting(reason="retry", operation_id=drive.operation_id, not_before=state.not_before)
        drive.gate.admit()
        async with abort_scope(drive.gate.signal):
            await asyncio.sleep(left / 1000)
    drive.gate.admit()
    return None
