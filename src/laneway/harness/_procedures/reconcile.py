"""What remains to be done once cancellation is durable: settle what is open, then end. Asks no hook, no model and no tool."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from laneway._effects.call_tools import NOT_STARTED, failure
from laneway.harness._classify import CANCELLED
from laneway.harness._events import HarnessEvent, TurnStart
from laneway.harness._line import End
from laneway.harness._line import ending as ending_of
from laneway.harness._procedures import _assistant_step
from laneway.harness._procedures._results import interrupted_outcome, settle_outcome
from laneway.harness._procedures._summary_outcome import ending
from laneway.harness._procedures.assistant import partial
from laneway.harness._procedures.checkpoint import run_end
from laneway.harness._procedures.deferred import handle_of
from laneway.harness._procedures.navigation import navigation_end
from laneway.harness._procedures.tools import response_of
from laneway.harness.results import OperationResult
from laneway.harness.state import (
    AssistantEffectPending,
    CompletedCall,
    DeferredEffectPending,
    DeferredSuspended,
    Leaf,
    NavigationReadyToCommit,
    PendingCall,
    ReadyCall,
    SummaryDeciding,
    SummaryEffectPending,
    SummaryReady,
    SummaryRetryWait,
    Tools,
)

if TYPE_CHECKING:
    from laneway.harness._drive import Drive

CANCEL_PATIENCE = 5.0  # seconds for a provider to confirm that it stopped
logger = logging.getLogger("laneway")


async def reconcile(drive: Drive, state: Leaf) -> None:
    """Do one step towards the aborted end."""
    match state:
        case AssistantEffectPending() if drive.intent is not None and drive.intent.response_entry_id == state.response_entry_id:
            await _end(drive, state)  # this very pass has committed the intent, and not made the request
        case AssistantEffectPending():
            await _assistant_step.settle(drive, state, await partial(drive, state, CANCELLED), recovery=True)
        case DeferredEffectPending():
            await _tell_provider(drive, state)
            await _assistant_step.settle(drive, state, await partial(drive, state, CANCELLED), recovery=True)
        case Tools():
            await _settle_calls(drive, state)
        case DeferredSuspended():
            await _tell_provider(drive, state)
            await _end(drive, state)
        case _:
            await _end(drive, state)


async def _settle_calls(drive: Drive, state: Tools) -> None:
    """Give every call a result: the staged one, what an interrupted one had checkpointed, or that it was not started."""
    message = await response_of(drive, state.batch)
    orphan = any(isinstance(call, (PendingCall, ReadyCall)) and call.result_entry_id not in drive.cleared for call in state.batch.calls)
    if orphan and not drive.progressed:
        drive.runtime.bus.post(TurnStart(**drive.told, recovery=True, turn_id=state.batch.turn_id))
    for call in state.batch.calls:
        match call:
            case CompletedCall():
                continue
            case ReadyCall():
                await settle_outcome(drive, message, call, None, recovery=True)
            case PendingCall() if call.result_entry_id not in drive.cleared:
                await settle_outcome(drive, message, call, await interrupted_outcome(drive, call), recovery=True)
            case PendingCall():
                await settle_outcome(drive, message, call, failure(NOT_STARTED, cut="aborted"))
            case _:
                await settle_outcome(drive, message, call, failure(NOT_STARTED, cut="aborted"), synthetic=True)


async def _tell_provider(drive: Drive, state: DeferredSuspended | DeferredEffectPending) -> None:
    """Ask the provider to stop its work; whether it does changes nothing here."""
    try:
        handle = await handle_of(drive, state)
        async with asyncio.timeout(CANCEL_PATIENCE):
            await drive.environment.deferred_models().cancel_deferred(handle)
    except Exception:
        logger.info("a deferred response could not be cancelled at its provider", exc_info=True)


async def _end(drive: Drive, state: Leaf) -> None:
    def events(_: object, record: OperationResult) -> list[HarnessEvent]:
        match state:
            case SummaryDeciding() | SummaryReady() | SummaryEffectPending() | SummaryRetryWait():
                return ending(drive, state.task, record)
            case NavigationReadyToCommit():
                return [navigation_end(drive, record)]
            case _:
                return [run_end(drive, record)]

    await drive.line.settle(drive.operation_id, ending_of(End(status="aborted", events=events)))
