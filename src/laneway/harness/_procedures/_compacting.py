"""Reading what a compaction needs from the lane's path. Off the line: the tip of a busy lane moves through its own operation only."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from laneway.harness import _compaction, keys
from laneway.harness._compaction import UNSENT, Item, Preparation, Work
from laneway.harness._line import Invariant
from laneway.harness.state import CheckpointPayload, CompactionReason, Operation, Task
from laneway.messages import AgentMessage, AssistantMessage, BranchSummaryMessage, ToolResultMessage
from laneway.storage.base import BranchScan, BranchSummaryEntry, CompactionEntry, CustomEntry, Entry, MessageEntry
from laneway.transcript import refuses_an_image

if TYPE_CHECKING:
    from laneway.harness._drive import Drive
    from laneway.harness._line import Line


async def threshold_due(drive: Drive, at: CheckpointPayload) -> Preparation | None:
    """Return what a threshold compaction would summarise, None if none is due at this boundary."""
    line, operation = drive.line, drive.line.current(drive.operation_id)
    assert operation is not None
    settings = operation.meta.settings.compaction
    if not settings.enabled or line.state.tip_id is None:
        return None
    model = drive.environment.find_model(line.state.configuration.model)
    if model is None or model.context_window <= 0:
        return None
    messages = await line.messages()
    tokens = _compaction.context_tokens(messages, trusted_from=line.context.condensed)
    if not _compaction.is_due(tokens, settings, model.context_window):
        return None
    if await _compacted_since(line, at.trigger_entry_id):
        return None
    return await _prepare(line, "threshold", tokens=tokens, context_window=model.context_window)


def surely_not_due(line: Line, operation: Operation, added: Sequence[AgentMessage]) -> bool:
    """Whether it is plain, without reading anything, that no threshold compaction will be due once `added` is at the lane's tip."""
    settings = operation.meta.settings.compaction
    if not settings.enabled:
        return True
    model = line.runtime.environment.find_model(line.state.configuration.model)
    if model is None or model.context_window <= 0:
        return True
    known = line.context.at(line.state.tip_id)
    if known is None:
        return False
    tokens = _compaction.grown_tokens(known, added, trusted_from=line.context.condensed)
    return not _compaction.is_due(tokens, settings, model.context_window)


async def _compacted_since(line: Line, trigger: str | None) -> bool:
    """Whether the newest compaction is at or after the entry that asks for the next step: another one would not help."""
    path = await path_of(line)
    newest = path[0] if path else None
    if not isinstance(newest, CompactionEntry):
        return False
    return newest.id == trigger or not any(entry.id == trigger for entry in path[1:])


async def prepare_now(drive: Drive) -> Preparation | None:
    """Return what an overflow compaction would summarise, None if there is nothing."""
    line = drive.line
    model = drive.environment.find_model(line.state.configuration.model)
    messages = await line.messages()
    tokens = _compaction.context_tokens(messages, trusted_from=line.context.condensed)
    return await _prepare(line, "overflow", tokens=tokens, context_window=0 if model is None else model.context_window)


async def prepare_manual(line: Line) -> Preparation | None:
    """Return what `compact()` would summarise, None if there is nothing."""
    messages = await line.messages()
    tokens = _compaction.context_tokens(messages, trusted_from=line.context.condensed)
    return await _prepare(line, "manual", tokens=tokens, context_window=0)


async def _prepare(line: Line, reason: CompactionReason, *, tokens: int, context_window: int) -> Preparation | None:
    path = await path_of(line)
    if not path or line.state.tip_id is None or (isinstance(path[-1], CompactionEntry)):
        return None
    operation = line.state.operation
    settings = line.runtime.environment.compaction if operation is None else operation.meta.settings.compaction
    keep = _compaction.keep_recent(settings, context_window, reason)
    items = await items_of(line, path)
    return _compaction.prepare(line.state.tip_id, items, keep_tokens=keep, tokens_before=tokens, manual=reason == "manual")


async def path_of(line: Line, tip_id: str | None = None) -> list[Entry]:
    """Return the path from the newest compaction (included) to the tip, oldest first."""
    start = tip_id or line.state.tip_id
    if start is None:
        return []
    path = await line.runtime.session.scan_branch(BranchScan(start=start, stop_at_type="compaction"))
    path.reverse()
    return path


async def items_of(line: Line, path: Sequence[Entry]) -> list[Item]:
    """Return the numbered items of a path: the retained tail of its compaction, then one (or, where a projector says so, more) per entry."""
    items: list[Item] = []
    for entry in path:
        match entry:
            case CompactionEntry():
                items += [Item(message=message) for message in entry.retained_tail]
            case MessageEntry():
                hidden = isinstance(entry.message, AssistantMessage) and entry.message.stop_reason in UNSENT and not refuses_an_image(entry.message)
                items.append(Item(message=None if hidden else entry.message))
            case BranchSummaryEntry():
                shown = BranchSummaryMessage(summary=entry.summary, from_id=entry.from_id, timestamp=entry.timestamp)
                items.append(Item(message=shown if entry.summary.strip() else None))
            case CustomEntry():
                items += [Item(message=message) for message in await _projected(line, entry)] or [Item(message=None)]
    return items


async def _projected(line: Line, entry: CustomEntry) -> Sequence[AgentMessage]:
    projector = line.runtime.projectors.get(entry.custom_type)
    if projector is None:
        return ()
    projected = projector(entry)
    if inspect.isawaitable(projected):
        projected = await projected
    if projected is None:
        return ()
    return cast("Sequence[AgentMessage]", projected) if isinstance(projected, (list, tuple)) else (cast("AgentMessage", projected),)


# ---------------------------------------------------------------------------------------------------- a stored preparation


async def load(drive: Drive, task: Task) -> Work:
    """Return the stored preparation of a task with the messages that it names."""
    key = keys.under(drive.operation_id, task.task_id)
    stored = await drive.runtime.session.get_value(keys.OP_PREPARATION, key)
    if stored is None:
        raise Invariant(f"the preparation of summary {task.task_id} is missing")
    preparation = keys.decoded(stored, lambda value: msgspec.convert(value, Preparation))
    return await (_load_branch if preparation.kind == "branch" else _load_compaction)(drive.line, preparation)


async def _load_compaction(line: Line, preparation: Preparation) -> Work:
    path = await path_of(line, preparation.tip_id)
    items = await items_of(line, path)
    earlier = path[0] if path and isinstance(path[0], CompactionEntry) else None
    history_end = preparation.cut if preparation.turn_start is None else preparation.turn_start
    history, prefix = _messages(items[:history_end]), _messages(items[history_end : preparation.cut])
    own = [earlier.details] if earlier is not None and not earlier.from_hook else []
    return Work(
        kind="compaction",
        messages=history,
        turn_prefix=prefix,
        retained_tail=_messages(items[preparation.cut :]),
        previous_summary=None if earlier is None else earlier.summary,
        tokens_before=preparation.tokens_before,
        files=_compaction.files_of([*history, *prefix], own),
    )


async def _load_branch(line: Line, preparation: Preparation) -> Work:
    path = [] if preparation.tip_id is None else await branch_left(line, preparation.tip_id, preparation.ancestor_id)
    messages: list[AgentMessage] = []
    details: list[object] = []
    for entry in path:
        if isinstance(entry, CompactionEntry):
            messages.append(BranchSummaryMessage(summary=entry.summary, timestamp=entry.timestamp))
        if isinstance(entry, (BranchSummaryEntry, CompactionEntry)) and not entry.from_hook:
            details.append(entry.details)
    entries = [entry for entry in path if not isinstance(entry, CompactionEntry)]
    messages += [m for m in _messages(await items_of(line, entries)) if not isinstance(m, ToolResultMessage)]
    return Work(kind="branch", messages=messages, files=_compaction.files_of(messages, details))


async def branch_left(line: Line, tip_id: str, ancestor_id: str | None) -> list[Entry]:
    """Return the entries after the ancestor up to the tip, oldest first."""
    path = await line.runtime.session.scan_branch(BranchScan(start=tip_id, stop_at_id=ancestor_id))
    path.reverse()
    return [entry for entry in path if entry.id != ancestor_id]


def _messages(items: Sequence[Item]) -> list[AgentMessage]:
    return [item.message for item in items if item.message is not None]
