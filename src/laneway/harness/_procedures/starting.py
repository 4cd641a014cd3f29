"""`starting`: ask `before_run`, then go to the first boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.harness._hooks import BeforeRun
from laneway.harness._line import Done, Move
from laneway.harness._placing import Placement, added
from laneway.harness._procedures import checkpoint
from laneway.harness.keys import QueuedMessage
from laneway.harness.state import Checkpoint, CheckpointPayload, Lane, NeedAssistant, Operation, RunIntent, Starting, carried
from laneway.messages import AgentMessage
from laneway.session._mutation import Mutation
from laneway.storage.base import MessageEntry

if TYPE_CHECKING:
    from laneway.harness._drive import Drive
    from laneway.harness._events import HarnessEvent


async def start_run(drive: Drive, state: Starting) -> None:
    """Begin a run. Without handlers the first boundary is decided at once."""
    injected: list[AgentMessage] = []
    if drive.hooks.has("before_run"):
        injected = await drive.hooks.before_run(
            BeforeRun(**drive.asked, prompt=await _prompt(drive), resources=drive.environment.resources)
        )
        drive.gate.admit()
    if not injected:
        await checkpoint.decide_at(drive, CheckpointPayload(continuation=NeedAssistant(), trigger_entry_id=drive.line.state.tip_id))
        return

    def plan(lane: Lane, operation: Operation, _: Mutation) -> Move:
        placement = Placement(lane.tip_id, lane.inbox)
        for message in injected:
            placement.add(drive.new_id(), QueuedMessage(message=message), projects=True)
        next_state = Checkpoint(continuation=NeedAssistant(), trigger_entry_id=placement.trigger, **carried(operation.state))

        def events(done: Done) -> list[HarnessEvent]:
            return added(done, (entry.id for entry in placement.entries), **drive.told)

        return Move(state=next_state, writes=placement.writes(drive.line.name), tip_id=placement.tip_id, events=events)

    await drive.line.advance(drive.operation_id, plan)


async def _prompt(drive: Drive) -> list[AgentMessage]:
    """Read the prompt's messages by the ids that the acceptance recorded."""
    operation = drive.line.current(drive.operation_id)
    assert operation is not None
    assert isinstance(operation.meta.intent, RunIntent)
    ids = operation.meta.intent.prompt_entry_ids
    entries = await drive.runtime.session.get_entries(ids)
    return [entry.message for id in ids if isinstance(entry := entries.get(id), MessageEntry)]
