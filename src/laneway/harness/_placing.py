"""Queued input becomes history: the writes of a placement, and what is told of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from laneway.harness import _inbox, keys
from laneway.harness._events import EntryAdded, HarnessEvent, MessageEnd, MessageStart, QueuedItem, QueueUpdate
from laneway.harness.keys import Payload, QueuedCustom, QueuedMessage
from laneway.harness.state import InboxItem, Lane
from laneway.session._mutation import Mutation
from laneway.storage.base import Entry, InsertEntry, MessageEntry, Write

if TYPE_CHECKING:
    from laneway.harness._line import Done, Line


@dataclass(slots=True)
class Placement:
    """Entries in a chain from the lane's tip, and what is left behind. `trigger` is the last entry that the model will see."""

    tip_id: str | None
    inbox: tuple[InboxItem, ...]
    entries: list[Entry] = field(default_factory=list[Entry])
    taken: list[InboxItem] = field(default_factory=list[InboxItem])
    trigger: str | None = None

    def add(self, entry_id: str, payload: Payload, *, projects: bool) -> None:
        """Append one entry to the chain."""
        self.entries.append(payload.entry(entry_id, self.tip_id))
        self.tip_id = entry_id
        if projects:
            self.trigger = entry_id

    def writes(self, lane: str) -> list[Write]:
        """Return the entries, the deletions of their payloads, and the tip if it moved."""
        writes: list[Write] = [InsertEntry(entry) for entry in self.entries]
        writes += keys.delete_pending(item.entry_id for item in self.taken)
        if self.entries:
            writes.append(keys.set_tip(lane, self.tip_id))
        return writes


def projects(line: Line, payload: Payload) -> bool:
    """Whether a queued payload will be seen by the model."""
    return isinstance(payload, QueuedMessage) or payload.custom_type in line.runtime.projectors


async def place(line: Line, lane: Lane, taken: Sequence[InboxItem], mutation: Mutation, *, after: str | None = None) -> Placement:
    """Return the placement of queued items after the lane's tip (or after another entry that is inserted first)."""
    placement = Placement(lane.tip_id if after is None else after, _inbox.without(lane.inbox, taken), taken=list(taken))
    for item in taken:
        payload = await line.payload(item.entry_id, mutation)
        placement.add(item.entry_id, payload, projects=projects(line, payload))
    return placement


async def projecting(line: Line, inbox: Iterable[InboxItem], mutation: Mutation) -> set[str]:
    """Return the ids of the queued items that the model will see; only custom entries need their payload for it."""
    return {item.entry_id for item in inbox if item.kind != "write" or projects(line, await line.payload(item.entry_id, mutation))}


async def queue(line: Line, inbox: Collection[InboxItem], mutation: Mutation | None = None) -> list[QueuedItem]:
    """Return the queue as a person may see it."""
    shown = line.shown
    for item in inbox:
        if item.entry_id not in shown:
            shown[item.entry_id] = queued_item(item, await line.payload(item.entry_id, mutation))
    return [shown[item.entry_id] for item in inbox]


def queued_item(item: InboxItem, payload: Payload) -> QueuedItem:
    if isinstance(payload, QueuedCustom):
        return QueuedItem(entry_id=item.entry_id, kind=item.kind, custom_type=payload.custom_type, data=payload.data)
    return QueuedItem(entry_id=item.entry_id, kind=item.kind, message=payload.message)


async def queue_update(line: Line, operation_id: str | None, inbox: Collection[InboxItem], mutation: Mutation) -> list[HarnessEvent]:
    """Return the event of a changed queue; nothing if nobody listens."""
    if not line.runtime.bus.listened:
        return []
    return [QueueUpdate(lane=line.name, operation_id=operation_id, queues=await queue(line, inbox, mutation))]


def added(done: Done, entry_ids: Iterable[str], *, lane: str, operation_id: str | None, recovery: bool = False) -> list[HarnessEvent]:
    """Return what is told of entries that this commit added: start and end of a message, then the entry itself."""
    events: list[HarnessEvent] = []
    for entry_id in entry_ids:
        entry = done.entries[entry_id]
        if isinstance(entry, MessageEntry):
            events.append(MessageStart(lane=lane, operation_id=operation_id, recovery=recovery, message=entry.message))
            events.append(MessageEnd(lane=lane, operation_id=operation_id, recovery=recovery, message=entry.message, entry_id=entry_id))
        events.append(EntryAdded(lane=lane, operation_id=operation_id, recovery=recovery, entry=entry))
    return events
