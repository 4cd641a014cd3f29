"""WHERE it lives: the addresses of everything durable, and the writes that several transactions share.

| address | kind | content | lifetime |
|---|---|---|---|
| `branch.tip/{lane}` | value | entry id or None | branch |
| `lane.config/{lane}` | value | `LaneConfiguration` | lane |
| `lane.state/{lane}` | value | `LaneRecord`: current and last operation, the first 64 queued items | lane |
| `op.meta/{op}` | value | `OperationMeta`, immutable | open operation |
| `op.state/{op}` | value | the current leaf | open operation |
| `op.tool_args/{op}:{turn}:{source_index}` | value | validated arguments, if they are not those of the response | until the batch completes |
| `op.tool_memo/{op}:{invocation}:{name}` | value | a tool's own memo | until the outcome is staged |
| `op.preparation/{op}:{task}` | value | inputs of a summary | open operation |
| `op.result/{op}` | value | `OperationResult` | for ever |
| `pending.entry/{entry}` | value | queued input or staged tool result | until placed or cancelled |
| `pending.tool_output/{op}:{invocation}` | value | last checkpointed partial result | until staged |
| `pending.assistant_frames/{op}:{response}` | list | pieces of a response that streams | until settled |
| `session.name`, `entry.label/{entry}` | value | metadata | for ever |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from laneway.errors import StorageCorruption
from laneway.harness.state import (
    AssistantEffectPending,
    DeferredEffectPending,
    InboxItem,
    InboxKind,
    Lane,
    LaneConfiguration,
    Leaf,
    OperationMeta,
    ReadyCall,
    Tools,
)
from laneway.llm._writer import describe
from laneway.messages import AgentMessage, decode_message, encode
from laneway.storage.base import CustomEntry, DeleteList, DeleteValue, Entry, MessageEntry, SetValue, StoredValue, Write

T = TypeVar("T")

BRANCH_TIP = "branch.tip"
LANE_CONFIG = "lane.config"
LANE_STATE = "lane.state"
OP_META = "op.meta"
OP_STATE = "op.state"
OP_TOOL_ARGS = "op.tool_args"
OP_TOOL_MEMO = "op.tool_memo"
OP_PREPARATION = "op.preparation"
OP_RESULT = "op.result"
PENDING_ENTRY = "pending.entry"
PENDING_TOOL_OUTPUT = "pending.tool_output"
PENDING_FRAMES = "pending.assistant_frames"
ENTRY_LABEL = "entry.label"

_encode = msgspec.json.Encoder().encode

SWEPT = (OP_TOOL_ARGS, OP_TOOL_MEMO, OP_PREPARATION, PENDING_TOOL_OUTPUT)
"""Namespaces whose keys begin with `{op}:` and end with their operation."""


def plain(value: object) -> Any:
    """Return a value type as the JSON data that is stored."""
    return msgspec.to_builtins(value)


def stored(value: Struct) -> Any:
    """Return one of our own value types as the JSON that is stored, encoded already: nothing in it needs to be looked at again."""
    try:
        return Raw(_encode(value))
    except UnicodeEncodeError:  # a lone surrogate in somebody's text: the store replaces it
        return plain(value)


def under(operation_id: str, *parts: object) -> str:
    """Return the key `{op}:{part}:…`."""
    return ":".join((operation_id, *map(str, parts)))


# ---------------------------------------------------------------------------------------------------- writes of a lane


def set_tip(lane: str, tip_id: str | None) -> SetValue:
    return SetValue(BRANCH_TIP, lane, tip_id)


def set_config(lane: str, configuration: LaneConfiguration) -> SetValue:
    return SetValue(LANE_CONFIG, lane, plain(configuration))


def set_lane_state(lane: str, state: Lane) -> SetValue:
    return SetValue(LANE_STATE, lane, stored(state.record()))


def set_meta(meta: OperationMeta) -> SetValue:
    return SetValue(OP_META, meta.operation_id, stored(meta))


def set_state(operation_id: str, state: Leaf) -> SetValue:
    return SetValue(OP_STATE, operation_id, stored(state))


def set_label(entry_id: str, label: str | None) -> Write:
    return DeleteValue(ENTRY_LABEL, entry_id) if label is None else SetValue(ENTRY_LABEL, entry_id, label)


# ---------------------------------------------------------------------------------------------------- queued payloads


class QueuedMessage(Struct, kw_only=True, frozen=True):
    """A queued message, or a staged tool result (`terminate` is then the tool's hint)."""

    message: AgentMessage
    terminate: bool = False

    def entry(self, entry_id: str, parent_id: str | None) -> Entry:
        return MessageEntry(id=entry_id, parent_id=parent_id, message=self.message, terminate=self.terminate)

    def stored(self) -> dict[str, Any]:
        value: dict[str, Any] = {"message": plain(self.message)}
        return {**value, "terminate": True} if self.terminate else value


class QueuedCustom(Struct, kw_only=True, frozen=True):
    """A queued custom entry."""

    custom_type: str
    data: Any = None

    def entry(self, entry_id: str, parent_id: str | None) -> Entry:
        return CustomEntry(id=entry_id, parent_id=parent_id, custom_type=self.custom_type, data=self.data)

    def stored(self) -> dict[str, Any]:
        return {"custom_type": self.custom_type, "data": self.data}


Payload = QueuedMessage | QueuedCustom


def decoded(stored: StoredValue, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of a stored value.

    Raises:
        StorageCorruption: it cannot be read; the text names its address.
    """
    try:
        return read(stored.value)
    except Exception as error:
        raise StorageCorruption(f"{stored.namespace}/{stored.key} cannot be read: {describe(error)}") from error


def read_payload(value: dict[str, Any]) -> Payload:
    """Decode what `Payload.stored` made.

    Raises:
        MessageError: the message is of an unknown role or malformed.
    """
    if "message" in value:
        return QueuedMessage(message=decode_message(encode(value["message"])), terminate=bool(value.get("terminate")))
    return QueuedCustom(custom_type=str(value["custom_type"]), data=value.get("data"))


def set_pending(entry_id: str, payload: Payload) -> SetValue:
    return SetValue(PENDING_ENTRY, entry_id, payload.stored())


def set_unlisted(lane: str, item: InboxItem, payload: Payload) -> SetValue:
    """Return the write of a queued payload that the lane's record does not list."""
    return SetValue(PENDING_ENTRY, item.entry_id, {**payload.stored(), "lane": lane, "kind": item.kind})


def unlisted(lane: str, value: dict[str, Any]) -> InboxKind | None:
    """Return the kind of a queued payload of this lane that says itself where it belongs; None for any other."""
    return value["kind"] if value.get("lane") == lane else None


def delete_pending(entry_ids: Iterable[str]) -> list[Write]:
    return [DeleteValue(PENDING_ENTRY, entry_id) for entry_id in entry_ids]


# ---------------------------------------------------------------------------------------------------- the end of an operation


def cleanup(operation_id: str, state: Leaf, swept: Iterable[tuple[str, str]]) -> list[Write]:
    """Return the deletions that end an operation. `swept` are the (namespace, key) found under `SWEPT`."""
    writes: list[Write] = [DeleteValue(OP_META, operation_id), DeleteValue(OP_STATE, operation_id)]
    writes += [DeleteValue(namespace, key) for namespace, key in swept]
    if isinstance(state, (AssistantEffectPending, DeferredEffectPending)):
        writes.append(DeleteList(PENDING_FRAMES, under(operation_id, state.response_entry_id)))
    if isinstance(state, Tools):
        writes += delete_pending(call.result_entry_id for call in state.batch.calls if isinstance(call, ReadyCall))
    return writes
