"""Making the branch index of a session in Postgres anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from laneway.storage import _checks as checks
from laneway.storage import _postgres_branch as branch
from laneway.storage._postgres_pool import execute

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_PAGE: Final = 1_000
_LOCK = "SELECT true FROM sessions WHERE session_key = %s AND fence = %s FOR UPDATE"
_ENTRIES = "SELECT id, parent_id, seq, type FROM entries WHERE session_key = %s AND seq > %s ORDER BY seq LIMIT %s"
_ADD = f"SELECT add_to_branches(%s::bigint, %s::bigint[], %s::text[], {', '.join(['%s::bigint[]'] * 9)})"
_MOVE = """
UPDATE entries e SET segment = n.segment FROM unnest(%s::bigint[], %s::bigint[]) AS n (seq, segment)
WHERE e.session_key = %s AND e.seq = n.seq AND e.segment <> n.segment
"""
_DONE = "UPDATE sessions SET next_segment = %s WHERE session_key = %s"


async def rebuild(connection: AsyncConnection[Any], key: int, fence: int) -> int | None:
    """Make the index anew in the caller's transaction; return the next segment's number, or None if the session is somebody else's.

    Raises:
        StorageCorruption: the entries themselves are no tree.
    """
    if not await execute(connection, _LOCK, (key, fence)):
        return None
    for table in ("segments", "segment_rows"):
        await execute(connection, f"DELETE FROM {table} WHERE session_key = %s", (key,))
    places: dict[str, branch.Place] = {}
    next_segment, after = 1, 0
    while rows := await execute(connection, _ENTRIES, (key, after, _PAGE)):
        nodes = [branch.Node(*row) for row in rows]
        _check_parents(nodes, places)
        planned = branch.plan(nodes, places, next_segment)
        seqs = [node.seq for node in nodes]
        groups = [*_columns(planned.segments, 4), *_columns(planned.copies, 4)]
        await execute(connection, _ADD, (key, seqs, [node.type for node in nodes], planned.homes, *groups))
        await execute(connection, _MOVE, (seqs, planned.homes, key))
        places |= planned.places
        next_segment, after = planned.next_segment, seqs[-1]
    await execute(connection, _DONE, (next_segment, key))
    return next_segment


def _check_parents(nodes: Sequence[branch.Node], places: dict[str, branch.Place]) -> None:
    known = set[str]()
    for node in nodes:
        if node.parent_id is not None and node.parent_id not in places and node.parent_id not in known:
            raise checks.broken_parent(node.id, node.parent_id)
        known.add(node.id)


def _columns(rows: Sequence[branch.NewSegment | branch.Copy], width: int) -> list[list[int] | None]:
    if not rows:
        return [None] * width
    return [list(column) for column in zip(*(structs.astuple(row) for row in rows), strict=True)]
