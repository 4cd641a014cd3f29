"""Which queued inputs a boundary takes. Pure: selections keep the order of arrival, and never change the lane.

| boundary | write | next_run | steer | follow_up |
|---|---|---|---|---|
| acceptance of a run | all | all | by mode | by mode |
| checkpoint, after a compaction in a run | all | – | by mode | only where the run may finish and nothing else projects |
| append while idle | all | – | – | – |
| an end by failure, cancellation or a structural operation | – | – | – | – |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from laneway.harness.state import InboxItem, InboxKind, QueueMode

Inbox = tuple[InboxItem, ...]
Projects = Callable[[InboxItem], bool]


def at_acceptance(inbox: Inbox, steering: QueueMode, follow_up: QueueMode) -> list[InboxItem]:
    """Everything, except what the modes hold back."""
    return _in_order(inbox, [*_of(inbox, "write", "next_run"), *_by_mode(inbox, "steer", steering), *_by_mode(inbox, "follow_up", follow_up)])


def at_boundary(
    inbox: Inbox, steering: QueueMode, follow_up: QueueMode, *, may_finish: bool, projects: Projects
) -> list[InboxItem]:
    """Writes and steering; a follow-up only where the run would otherwise end."""
    taken = [*_of(inbox, "write"), *_by_mode(inbox, "steer", steering)]
    if may_finish and not any(projects(item) for item in taken):
        taken += _by_mode(inbox, "follow_up", follow_up)
    return _in_order(inbox, taken)


def writes_only(inbox: Inbox) -> list[InboxItem]:
    """What an append to an idle lane must bring in first."""
    return _of(inbox, "write")


def without(inbox: Inbox, taken: Iterable[InboxItem]) -> Inbox:
    """The inbox after its items were taken; the rest keeps its order."""
    gone = {item.entry_id for item in taken}
    return tuple(item for item in inbox if item.entry_id not in gone) if gone else inbox


def drained_by_abort(inbox: Inbox) -> tuple[list[InboxItem], list[InboxItem]]:
    """What an abort hands back: (steering, follow-ups)."""
    return _of(inbox, "steer"), _of(inbox, "follow_up")


def _of(inbox: Inbox, *kinds: InboxKind) -> list[InboxItem]:
    return [item for item in inbox if item.kind in kinds]


def _by_mode(inbox: Inbox, kind: InboxKind, mode: QueueMode) -> list[InboxItem]:
    items = _of(inbox, kind)
    return items if mode == "all" else items[:1]


def _in_order(inbox: Inbox, taken: Collection[InboxItem]) -> list[InboxItem]:
    chosen = {item.entry_id for item in taken}
    return [item for item in inbox if item.entry_id in chosen]
