"""Input that waits: queued, cancelled, appended. Each is one commit, and each item has the id that its entry will have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from laneway.harness import _inbox, keys
from laneway.harness._answers import refuse_second_results
from laneway.harness._events import HarnessEvent
from laneway.harness._line import Commit, Decision, Done, Return
from laneway.harness._placing import added, place, queue_update
from laneway.harness.keys import Payload, QueuedMessage
from laneway.harness.state import LISTED, InboxItem, InboxKind, Lane, Tools
from laneway.session._mutation import Mutation

if TYPE_CHECKING:
    from laneway.harness._line import Line

Cancelled = Literal["cancelled", "already_consumed", "not_found"]


async def enqueue(line: Line, kind: InboxKind, payload: Payload, *, interrupt: bool = False) -> str:
    """Queue an input, durably, and return its id. `interrupt` stops the tool batch that runs, durably as well."""
    entry_id = line.runtime.session.ids.new()

    async def plan(lane: Lane, mutation: Mutation) -> Decision[str]:
        return await queued(line, lane, mutation, InboxItem(entry_id=entry_id, kind=kind), payload, interrupt=interrupt)

    return await line.command(plan)


async def queued(
    line: Line, lane: Lane, mutation: Mutation, item: InboxItem, payload: Payload, *, interrupt: bool = False
) -> Commit[str]:
    """Return the commit that queues an item."""
    await _refuse(line, lane, payload, mutation)
    after = msgspec.structs.replace(lane, inbox=(*lane.inbox, item))
    listed = len(lane.inbox) < LISTED
    writes = [keys.set_pending(item.entry_id, payload) if listed else keys.set_unlisted(line.name, item, payload)]
    operation = lane.operation
    if interrupt and operation is not None and isinstance(operation.state, Tools) and not operation.cancelled:
        stopped = msgspec.structs.replace(operation.state, batch=msgspec.structs.replace(operation.state.batch, interrupted=True))
        after = after.at(stopped)
        writes.append(keys.set_state(operation.id, stopped))
    else:
        interrupt = False
    if len(lane.inbox) <= LISTED:  # beyond that the record does not change
        writes.append(keys.set_lane_state(line.name, after))
    line.payloads[item.entry_id] = payload
    operation_id = None if operation is None else operation.id
    update = await queue_update(line, operation_id, after.inbox, mutation)

    def value(_: Done) -> str:
        if interrupt and line.drive is not None and line.drive.interrupted is not None:
            line.drive.interrupted.abort("a new message")
        return item.entry_id

    return Commit(writes=[*writes], next=after, value=value, events=lambda _: update)


async def _refuse(line: Line, lane: Lane, payload: Payload, mutation: Mutation) -> None:
    if isinstance(payload, QueuedMessage):
        await refuse_second_results(line, lane, (payload.message,), mutation)


async def cancel(line: Line, entry_id: str) -> Cancelled:
    """Take an item out of the queue, if it is still there."""

    async def plan(lane: Lane, mutation: Mutation) -> Decision[Cancelled]:
        item = next((item for item in lane.inbox if item.entry_id == entry_id), None)
        if item is None:
            consumed = entry_id in await mutation.get_entries([entry_id])
            return Return[Cancelled]("already_consumed" if consumed else "not_found")
        after = msgspec.structs.replace(lane, inbox=_inbox.without(lane.inbox, [item]))
        operation_id = None if lane.operation is None else lane.operation.id
        update = await queue_update(line, operation_id, after.inbox, mutation)
        writes = [*keys.delete_pending([entry_id]), keys.set_lane_state(line.name, after)]
        return Commit[Cancelled](writes=writes, next=after, value=lambda _: "cancelled", events=lambda _: update)

    return await line.command(plan)


async def append(line: Line, payload: Payload) -> str:
    """Append to an idle lane at once (queued writes first), or queue a write for the next boundary of a busy one."""
    entry_id = line.runtime.session.ids.new()

    async def plan(lane: Lane, mutation: Mutation) -> Decision[str]:
        if lane.operation is not None:
            return await queued(line, lane, mutation, InboxItem(entry_id=entry_id, kind="write"), payload)
        await _refuse(line, lane, payload, mutation)
        taken = _inbox.writes_only(lane.inbox)
        placement = await place(line, lane, taken, mutation)
        placement.add(entry_id, payload, projects=False)
        after = msgspec.structs.replace(lane, tip_id=placement.tip_id, inbox=placement.inbox)
        update = await queue_update(line, None, after.inbox, mutation) if taken else []

        def events(done: Done) -> list[HarnessEvent]:
            return [*added(done, (entry.id for entry in placement.entries), lane=line.name, operation_id=None), *update]

        writes: list[Any] = [*placement.writes(line.name), keys.set_lane_state(line.name, after)]
        return Commit(writes=writes, next=after, value=lambda _: entry_id, events=events)

    return await line.command(plan)
