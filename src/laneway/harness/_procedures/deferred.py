"""`deferred.suspended`, `deferred.effect_pending`: the provider works on its own, and somebody asks now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway._effects.respond import respond
from laneway.harness import _telemetry, keys
from laneway.harness._events import RunResume, TurnStart
from laneway.harness._hooks import patched
from laneway.harness._line import End, Invariant, Move, ending
from laneway.harness._procedures import _asking, _assistant_step
from laneway.harness._procedures.checkpoint import run_end
from laneway.harness.results import OperationError, Waiting
from laneway.harness.state import DeferredEffectPending, DeferredSuspended, Lane, Operation, carried
from laneway.llm.base import Model, StreamOptions, Transcript
from laneway.messages import AssistantMessage, DeferredHandle
from laneway.session._mutation import Mutation
from laneway.storage.base import DeleteList, MessageEntry, Write

if TYPE_CHECKING:
    from laneway.harness._drive import Drive

Waits = DeferredSuspended | DeferredEffectPending


async def suspended(drive: Drive, state: DeferredSuspended) -> Waiting | None:
    """Poll once if this pass may; else say what is waited for."""
    return await _poll(drive, state, number=state.poll + 1)


async def poll_again(drive: Drive, state: DeferredEffectPending) -> Waiting | None:
    """A poll of an earlier process may have been answered: ask again under the same number, with new ids."""
    return await _poll(drive, state, number=state.poll)


async def handle_of(drive: Drive, state: Waits) -> DeferredHandle:
    """Read the handle from the entry that has it."""
    entry = await drive.runtime.session.get_entry(state.source_entry_id)
    message = entry.message if isinstance(entry, MessageEntry) else None
    if not isinstance(message, AssistantMessage) or message.deferred is None:
        raise Invariant(f"the deferred response {state.source_entry_id} is missing or has no handle")
    return message.deferred


async def _poll(drive: Drive, state: Waits, *, number: int) -> Waiting | None:
    handle = await handle_of(drive, state)
    if drive.permits == 0:
        return Waiting(reason="deferred", operation_id=drive.operation_id, deferred=handle)
    model = drive.environment.find_model(state.configuration.model)
    if model is None:
        await _no_model(drive, state)
        return None
    captured = {name: value for name, value in state.stream_options.items() if name != "deferred"}
    options = msgspec.structs.replace(_asking.step_options(drive, state.configuration, captured), deferred=False)
    patch = await _asking.request_patch(drive, model, "deferred", 1, options)
    drive.gate.admit()
    pending = await _intend(drive, state, number)
    if pending is not None:
        options = msgspec.structs.replace(patched(options, patch), deferred=False)
        await _fetch(drive, pending, model, handle, options, recovery=isinstance(state, DeferredEffectPending))
    return None


async def _intend(drive: Drive, state: Waits, number: int) -> DeferredEffectPending | None:
    recovery = isinstance(state, DeferredEffectPending)
    intents: list[DeferredEffectPending] = []

    def plan(_: Lane, operation: Operation, __: Mutation) -> Move:
        now = operation.state
        assert isinstance(now, (DeferredSuspended, DeferredEffectPending))
        pending = DeferredEffectPending(
            step_id=now.step_id, source_entry_id=now.source_entry_id, poll=number, configuration=now.configuration,
            stream_options=now.stream_options, response_entry_id=drive.new_id(), usage_id=drive.new_id(), **carried(now),
        )  # fmt: skip
        intents.append(pending)
        writes: list[Write] = []
        if isinstance(now, DeferredEffectPending):
            writes.append(DeleteList(keys.PENDING_FRAMES, keys.under(operation.id, now.response_entry_id)))
        turn = TurnStart(**drive.told, recovery=recovery, turn_id=f"{now.step_id}:poll:{number}")
        told = [RunResume(**drive.told, recovery=recovery, poll=number), turn]
        return Move(state=pending, writes=writes, events=lambda _: told)

    if await drive.line.advance(drive.operation_id, plan) != "moved":
        return None
    drive.permits = 0
    return intents[0]


async def _fetch(
    drive: Drive, state: DeferredEffectPending, model: Model, handle: DeferredHandle, options: StreamOptions, *, recovery: bool
) -> None:
    drive.gate.admit()
    streaming = _asking.Streaming(drive, state, recovery=recovery)
    wire = _asking.Wire(drive, options)
    models = drive.environment.deferred_models()
    with _telemetry.request_span(provider=model.provider, model_id=model.id, step="deferred", attempt=state.poll) as span:
        message = await respond(
            model, Transcript(messages=[]), wire.options(), stream_fn=lambda model, _, options: models.fetch_deferred(handle, options),
            on_event=streaming.on_event,
        )  # fmt: skip
        _telemetry.answered(span, message)
    message = await _asking.finished(drive, wire, streaming, message)
    await _assistant_step.settle(drive, state, message, started=streaming.started)


async def _no_model(drive: Drive, state: Waits) -> None:
    ref = state.configuration.model
    error = OperationError(
        code="model_unavailable",
        message=f"this process has no model {ref.spec}, which a deferred response is to be fetched from: register it",
        details={"provider": ref.provider, "model_id": ref.model_id},
    )
    end = End(status="failed", error=error, events=lambda _, record: [run_end(drive, record)])
    await drive.line.advance(drive.operation_id, ending(end))
