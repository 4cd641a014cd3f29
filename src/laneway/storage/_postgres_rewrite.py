"""Putting other content in place of a session's in Postgres, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from laneway.storage._codec import EncodedElement, EncodedEntry, EncodedUsage, EncodedValue, encode_stats
from laneway.storage._postgres_pool import execute
from laneway.storage._postgres_repair import rebuild
from laneway.storage._rewrite import NewContent

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_PAGE: Final = 1_000
_LOCK = "UPDATE sessions SET next_seq = %s, stats = %s WHERE session_key = %s AND fence = %s RETURNING true"
_TABLES: Final = ("entries", "usage_rows", "cells", "list_elements")
_ENTRIES = """
INSERT INTO entries (session_key, seq, timestamp, id, parent_id, type, custom_type, segment, payload)
SELECT %s, r.seq, r.timestamp, r.id, r.parent_id, r.type, r.custom_type, 0, r.payload
FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bytea[])
    AS r (seq, timestamp, id, parent_id, type, custom_type, payload)
"""
_USAGE = """
INSERT INTO usage_rows (session_key, seq, timestamp, id, entry_id, payload)
SELECT %s, r.seq, r.timestamp, r.id, r.entry_id, r.payload
FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::bytea[]) AS r (seq, timestamp, id, entry_id, payload)
"""
_CELLS = """
INSERT INTO {} (session_key, namespace, key, seq, value)
SELECT %s, r.namespace, r.key, r.seq, r.value FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bytea[]) AS r (namespace, key, seq, value)
"""


async def replace(connection: AsyncConnection[Any], key: int, fence: int, content: NewContent) -> int | None:
    """Replace everything in the caller's transaction; return the next segment's number, or None if the session is somebody else's."""
    if not await execute(connection, _LOCK, (content.rows.next_seq, encode_stats(content.rows.stats), key, fence)):
        return None
    for table in _TABLES:
        await execute(connection, f"DELETE FROM {table} WHERE session_key = %s", (key,))
    groups: dict[str, list[tuple[Any, ...]]] = {_ENTRIES: [], _USAGE: [], _CELLS.format("cells"): [], _CELLS.format("list_elements"): []}
    for numbered in content.writes:
        write, seq, at = numbered.write, numbered.seq, numbered.timestamp
        match write:
            case EncodedEntry():
                groups[_ENTRIES].append((seq, at, write.id, write.parent_id, write.type, write.custom_type, write.payload))
            case EncodedUsage():
                groups[_USAGE].append((seq, at, write.id, write.entry_id, write.payload))
            case EncodedValue():
                groups[_CELLS.format("cells")].append((write.namespace, write.key, seq, write.value))
            case EncodedElement():
                groups[_CELLS.format("list_elements")].append((write.namespace, write.key, seq, write.value))
            case _:
                pass
    for statement, rows in groups.items():
        for start in range(0, len(rows), _PAGE):
            await execute(connection, statement, (key, *(list(column) for column in zip(*rows[start : start + _PAGE], strict=True))))
    return await rebuild(connection, key, fence)
