"""The queries of a session in Postgres. Each is one round trip and goes through an index."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from laneway.errors import SessionNotFound, StorageCorruption
from laneway.storage import _checks as checks
from laneway.storage._codec import EncodedEntry, decode_json, decode_stats, decode_usage
from laneway.storage._postgres_pool import PostgresPool, StatementRefused
from laneway.storage.base import BranchScan, Entry, EntryScan, ListElement, SeqOrder, SessionStats, StoredValue, UsageRow, UsageScan, Values

_ENTRY = "id, parent_id, type, custom_type, payload, seq, timestamp"
_SCAN_BRANCH = f"SELECT {_ENTRY} FROM scan_branch(%s::bigint, %s, %s, %s, %s, %s, %s, %s::bigint, %s::bigint, %s)"
_ALL_VALUES = """
SELECT 'cell', namespace, key, seq, value FROM cells WHERE session_key = %s
UNION ALL SELECT 'element', namespace, key, seq, value FROM list_elements WHERE session_key = %s
UNION ALL SELECT 'newest', '', '', max(seq), NULL FROM entries WHERE session_key = %s
ORDER BY 1, 2, 3, 4
"""
_NO_DATA_FOUND, _DATA_CORRUPTED = "P0002", "XX001"


async def session_key(pool: PostgresPool, session_id: str) -> int:
    """Return the short stand-in of a session's id; `SessionNotFound` if there is none."""
    rows = await pool.fetch("SELECT session_key FROM sessions WHERE session_id = %s", (session_id,))
    if not rows:
        raise SessionNotFound(f"there is no session {session_id!r} in Postgres schema {pool.schema!r}")
    return rows[0][0]


async def get_entries(pool: PostgresPool, key: int, ids: Sequence[str]) -> dict[str, Entry]:
    """Answer `Storage.get_entries`."""
    wanted = checks.possible_ids(ids)
    rows = await pool.fetch(f"SELECT {_ENTRY} FROM entries WHERE session_key = %s AND id = ANY (%s)", (key, wanted)) if wanted else []
    found = {row.id: row for row in _encoded(rows)}
    return {id: found[id].decode() for id in wanted if id in found}


async def get_value(pool: PostgresPool, key: int, namespace: str, name: str) -> StoredValue | None:
    """Answer `Storage.get_value`."""
    namespace, name = checks.address(namespace, name)
    rows = await pool.fetch("SELECT seq, value FROM cells WHERE session_key = %s AND namespace = %s AND key = %s", (key, namespace, name))
    return _value(namespace, name, *rows[0]) if rows else None


async def scan_values(pool: PostgresPool, key: int, namespace: str, key_prefix: str) -> list[StoredValue]:
    """Answer `Storage.scan_values`."""
    namespace, key_prefix = checks.address(namespace, key_prefix)
    query = "SELECT key, seq, value FROM cells WHERE session_key = %s AND namespace = %s AND key >= %s"
    parameters: list[Any] = [key, namespace, key_prefix]
    if (end := checks.prefix_end(key_prefix)) is not None:
        query += " AND key < %s"
        parameters.append(end)
    return [_value(namespace, *row) for row in await pool.fetch(query + " ORDER BY key", parameters)]


def _value(namespace: str, key: str, seq: int, data: bytes) -> StoredValue:
    return StoredValue(namespace=namespace, key=key, value=decode_json(data, f"value {namespace}/{key}"), seq=seq)


async def read_list(pool: PostgresPool, key: int, namespace: str, name: str, after: int | None, order: SeqOrder, limit: int) -> list[ListElement]:
    """Answer `Storage.read_list`."""
    namespace, name = checks.address(namespace, name)
    limit, after, order = checks.page_limit(limit), checks.seq_bound(after, "after"), checks.seq_order(order)
    query = "SELECT seq, value FROM list_elements WHERE session_key = %s AND namespace = %s AND key = %s"
    parameters: list[Any] = [key, namespace, name]
    if after is not None:
        query += " AND seq > %s" if order == "asc" else " AND seq < %s"
        parameters.append(after)
    rows = await pool.fetch(f"{query} ORDER BY seq {order} LIMIT %s", [*parameters, limit])
    return [ListElement(seq=seq, value=decode_json(data, f"list element {namespace}/{name}")) for seq, data in rows]


async def scan_branch(pool: PostgresPool, key: int, scan: BranchScan, *, with_payload: bool) -> list[EncodedEntry]:
    """Answer `Storage.scan_branch` with encoded rows; without payloads these are empty."""
    checks.check_branch_scan(scan)
    if not checks.possible_ids([scan.start]):
        raise checks.unknown_start(scan.start)
    newest_first = scan.order == "newest_first"
    cursor = None if scan.cursor is None else min(checks.seq_bound(scan.cursor, "cursor") or 0, checks.MAX_SEQ - 1)  # one more must fit too
    parameters = (
        *(key, scan.start, scan.stop_at_type, _findable(scan.stop_at_id), scan.type, scan.custom_type),
        *(not newest_first, cursor, checks.scan_limit(scan.limit), with_payload),
    )
    try:
        rows = await pool.fetch(_SCAN_BRANCH, parameters)
    except StatementRefused as error:
        if error.sqlstate == _NO_DATA_FOUND:
            raise checks.unknown_start(scan.start) from None
        if error.sqlstate == _DATA_CORRUPTED:
            raise _broken_index(scan.start) from error
        raise
    path = list(_encoded(rows))
    if scan.type is None and scan.custom_type is None:
        _check_chain(scan, path)
    return path


def _check_chain(scan: BranchScan, rows: list[EncodedEntry]) -> None:
    """Refuse rows that are no path: each must be the parent of the newer one, and neither end may be missing."""
    path = rows if scan.order == "newest_first" else rows[::-1]
    broken = any(newer.parent_id != older.id for newer, older in itertools.pairwise(path))
    if scan.cursor is None and (scan.limit is None or len(path) < scan.limit):
        stopped = scan.stop_at_type is not None or scan.stop_at_id is not None
        broken = broken or not path or path[0].id != scan.start or (path[-1].parent_id is not None and not stopped)
    if broken:
        raise _broken_index(scan.start)


def _broken_index(id: str) -> StorageCorruption:
    return StorageCorruption(f"the branch index is damaged on the path of entry {id!r}: repair() makes it anew from the entries")


def _findable(id: str | None) -> str | None:
    """Return an id that may be stored, else None."""
    return id if id is not None and checks.possible_ids([id]) else None


async def scan_entries(pool: PostgresPool, key: int, scan: EntryScan) -> list[EncodedEntry]:
    """Answer `Storage.scan_entries` with encoded rows."""
    checks.check_entry_scan(scan)
    conditions = {"type = %s": scan.type, "custom_type = %s": scan.custom_type}
    return list(_encoded(await _by_seq(pool, key, _ENTRY, "entries", scan, conditions)))


async def scan_usage(pool: PostgresPool, key: int, scan: UsageScan) -> list[UsageRow]:
    """Answer `Storage.scan_usage`."""
    checks.check_usage_scan(scan)
    rows = await _by_seq(pool, key, "id, entry_id, seq, timestamp, payload", "usage_rows", scan, {})
    return [decode_usage(id=id, entry_id=entry_id, seq=seq, timestamp=timestamp, payload=payload) for id, entry_id, seq, timestamp, payload in rows]


async def _by_seq(
    pool: PostgresPool, key: int, columns: str, table: str, scan: EntryScan | UsageScan, conditions: dict[str, Any]
) -> list[tuple[Any, ...]]:
    conditions = {"seq >= %s": checks.seq_bound(scan.from_seq, "from_seq"), "seq <= %s": checks.seq_bound(scan.to_seq, "to_seq"), **conditions}
    given = {condition: value for condition, value in conditions.items() if value is not None}
    query = " AND ".join([f"SELECT {columns} FROM {table} WHERE session_key = %s", *given]) + f" ORDER BY seq {scan.order}"
    parameters = [key, *given.values()]
    if scan.limit is not None:
        query += " LIMIT %s"
        parameters.append(checks.scan_limit(scan.limit))
    return await pool.fetch(query, parameters)


async def read_values(pool: PostgresPool, key: int) -> Values:
    """Answer `Enumerable.read_values`. One statement, so all of it is of one moment."""
    last_seq, cells, lists = 0, list[StoredValue](), dict[tuple[str, str], list[ListElement]]()
    for kind, namespace, name, seq, data in await pool.fetch(_ALL_VALUES, (key, key, key)):
        if kind == "cell":
            cells.append(_value(namespace, name, seq, data))
        elif kind == "element":
            lists.setdefault((namespace, name), []).append(ListElement(seq=seq, value=decode_json(data, f"list element {namespace}/{name}")))
        else:
            last_seq = seq or 0
    return Values(last_seq=last_seq, cells=cells, lists=lists)


async def get_stats(pool: PostgresPool, key: int) -> SessionStats:
    """Answer `Storage.get_stats`."""
    rows = await pool.fetch("SELECT stats FROM sessions WHERE session_key = %s", (key,))
    if not rows:
        raise SessionNotFound(f"the session was deleted from Postgres schema {pool.schema!r}")
    return decode_stats(rows[0][0])


def _encoded(rows: Iterable[tuple[Any, ...]]) -> Iterable[EncodedEntry]:
    return (EncodedEntry(*row) for row in rows)
