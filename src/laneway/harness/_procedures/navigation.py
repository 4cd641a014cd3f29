"""`navigation.ready_to_commit`: move the tip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.harness import keys
from laneway.harness._events import NavigationEnd
from laneway.harness._line import End, Invariant
from laneway.harness.results import OperationResult
from laneway.harness.state import Lane, NavigationReadyToCommit, Operation
from laneway.session._mutation import Mutation
from laneway.storage.base import BranchScan, Entry, Write

if TYPE_CHECKING:
    from laneway.harness._drive import Drive


async def commit(drive: Drive, state: NavigationReadyToCommit) -> None:
    """Move the tip to the target and label it."""

    async def plan(_: Lane, __: Operation, mutation: Mutation) -> End:
        target = state.target_id
        if target is not None and target not in await mutation.get_entries([target]):
            raise Invariant(f"the target {target} of a navigation does not exist any more")
        writes: list[Write] = [keys.set_tip(drive.line.name, target)]
        if state.label is not None and target is not None:
            writes.append(keys.set_label(target, state.label))
        path = await path_to(drive, target, mutation)
        return End(status="completed", writes=writes, tip_id=target, events=lambda _, record: [navigation_end(drive, record, path)])

    await drive.line.advance(drive.operation_id, plan)


async def path_to(drive: Drive, target: str | None, mutation: Mutation) -> list[Entry]:
    """Return the path to an entry from its newest compaction on, for the event; nothing if nobody listens."""
    if target is None or not drive.runtime.bus.listened:
        return []
    path = await mutation.scan_branch(BranchScan(start=target, stop_at_type="compaction"))
    path.reverse()
    return path


def navigation_end(drive: Drive, record: OperationResult, transcript: list[Entry] | None = None) -> NavigationEnd:
    """Return the last event of a navigation."""
    return NavigationEnd(
        **drive.told, status=record.status, from_tip_id=record.from_tip_id, tip_id=record.tip_id, error=record.error, ended_at=record.ended_at,
        record=record, transcript=transcript,
    )  # fmt: skip
