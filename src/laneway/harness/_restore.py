"""Opening: which lanes there are, and what each has open. Reads tips, configurations, lane records, and of an open
operation only its meta and leaf. Writes nothing, runs nothing, tells nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from laneway.harness import keys
from laneway.harness._line import Invariant, Line
from laneway.harness.results import OpenOperation
from laneway.harness.state import InboxItem, Lane, LaneConfiguration, LaneRecord, Leaf, Operation, OperationMeta, mismatch
from laneway.session._mutation import Mutation

if TYPE_CHECKING:
    from laneway.harness._runtime import Runtime

T = TypeVar("T")


async def restore(runtime: Runtime) -> list[OpenOperation]:
    """Put every lane of the session into memory and return what is open.

    Raises:
        Invariant: the store holds something that cannot be; it names the address.
    """
    return await runtime.session.mutate(lambda mutation: _restore(runtime, mutation))


async def _restore(runtime: Runtime, mutation: Mutation) -> list[OpenOperation]:
    tips = {stored.key: stored.value for stored in await mutation.scan_values(keys.BRANCH_TIP)}
    configurations = {stored.key: stored.value for stored in await mutation.scan_values(keys.LANE_CONFIG)}
    records = {stored.key: stored.value for stored in await mutation.scan_values(keys.LANE_STATE)}
    found: list[OpenOperation] = []
    for name in sorted({*tips, *configurations, *records}):
        if name in tips and name not in configurations and name not in records:
            continue  # a branch that is data only
        for namespace, known in ((keys.BRANCH_TIP, tips), (keys.LANE_CONFIG, configurations), (keys.LANE_STATE, records)):
            if name not in known:
                raise Invariant(f"lane {name!r} is incomplete: {namespace}/{name} is missing")
        record = decode(records[name], LaneRecord, keys.LANE_STATE, name)
        operation = await _operation(mutation, name, record.current_operation_id)
        lane = Lane(
            tip_id=tips[name],
            configuration=decode(configurations[name], LaneConfiguration, keys.LANE_CONFIG, name),
            inbox=(*record.inbox, *(await _unlisted(mutation, name, record))),
            last_operation_id=record.last_operation_id,
            operation=operation,
        )
        runtime.lines[name] = Line(name, lane, runtime, restored=True)
        if operation is not None:
            found.append(_open(name, operation))
    return found


async def _unlisted(mutation: Mutation, lane: str, record: LaneRecord) -> list[InboxItem]:
    """Find the items of a long queue that the lane's record does not list, in the order of their arrival."""
    if not record.more:
        return []
    listed = {item.entry_id for item in record.inbox}
    stored = sorted(await mutation.scan_values(keys.PENDING_ENTRY), key=lambda found: found.seq)
    return [
        InboxItem(entry_id=found.key, kind=kind)
        for found in stored
        if found.key not in listed and isinstance(found.value, dict) and (kind := keys.unlisted(lane, found.value)) is not None  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - JSON
    ]


async def _operation(mutation: Mutation, lane: str, operation_id: str | None) -> Operation | None:
    if operation_id is None:
        return None
    stored_meta = await mutation.get_value(keys.OP_META, operation_id)
    stored_state = await mutation.get_value(keys.OP_STATE, operation_id)
    for namespace, stored in ((keys.OP_META, stored_meta), (keys.OP_STATE, stored_state)):
        if stored is None:
            raise Invariant(f"lane {lane!r} has operation {operation_id} open, but {namespace}/{operation_id} is missing")
    assert stored_meta is not None
    assert stored_state is not None
    meta = decode(stored_meta.value, OperationMeta, keys.OP_META, operation_id)
    state = decode(stored_state.value, Leaf, keys.OP_STATE, operation_id)
    if meta.operation_id != operation_id or meta.lane != lane:
        raise Invariant(f"{keys.OP_META}/{operation_id} is of operation {meta.operation_id} on lane {meta.lane!r}, not of this one on {lane!r}")
    if (problem := mismatch(meta, state)) is not None:
        raise Invariant(f"{keys.OP_STATE}/{operation_id} does not fit its intent: {problem}")
    return Operation(meta=meta, state=state)


def decode(value: Any, type: Any, namespace: str, key: str) -> Any:
    """Decode a stored value strictly; an `Invariant` names what cannot be read."""
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        raise Invariant(f"{namespace}/{key} cannot be read: {error}") from error


def _open(lane: str, operation: Operation) -> OpenOperation:
    meta = operation.meta
    return OpenOperation(
        lane=lane, operation_id=meta.operation_id, kind=meta.intent.kind, started_at=meta.started_at, aborting=operation.cancelled
    )
