"""A check of a whole session file: every page, every row, every total, every path."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Final

from laneway.errors import StorageError
from laneway.messages import Usage
from laneway.storage._sqlite_lease import read_position
from laneway.storage._sqlite_read import read_usage
from laneway.storage._sqlite_rows import ENTRY_COLUMNS, Row, fetch, read_element, read_entry, read_value
from laneway.storage.base import SessionStats

MAX_PROBLEMS: Final = 20
"""A damaged file has many; the first ones say enough."""

_ROWS: Final[tuple[tuple[str, Callable[[Row], object]], ...]] = (
    (f"SELECT {ENTRY_COLUMNS} FROM entries e LEFT JOIN entries p ON p.seq = e.parent ORDER BY e.seq", lambda row: read_entry(row).decode()),
    ("SELECT seq, id, entry_id, timestamp, checksum, payload FROM usage_rows ORDER BY seq", read_usage),
    ("SELECT namespace, key, seq, checksum, value FROM cells ORDER BY namespace, key", read_value),
    ("SELECT namespace, key, seq, checksum, value FROM elements ORDER BY namespace, key, seq", read_element),
)
# An entry is in its home segment, under its type, right above its parent or at the beginning of a segment whose base ends with it.
_MISPLACED: Final = """
SELECT e.seq FROM entries e LEFT JOIN segment_rows r ON r.segment = e.segment AND r.seq = e.seq
WHERE r.type IS NOT e.type
OR e.parent IS NOT coalesce(
    (SELECT b.seq FROM segment_rows b WHERE b.segment = e.segment AND b.seq < e.seq ORDER BY b.seq DESC LIMIT 1),
    (SELECT nullif(s.base_seq, 0) FROM segments s WHERE s.segment = e.segment)
)
"""
# A row of a segment follows the one that its entry names as its parent, copied rows included.
_TORN: Final = """
SELECT r.seq FROM segment_rows r LEFT JOIN entries e ON e.seq = r.seq
WHERE e.seq IS NULL OR e.parent IS NOT coalesce(
    (SELECT b.seq FROM segment_rows b WHERE b.segment = r.segment AND b.seq < r.seq ORDER BY b.seq DESC LIMIT 1),
    (SELECT nullif(s.base_seq, 0) FROM segments s WHERE s.segment = r.segment)
)
"""
_BASES: Final = """
SELECT s.segment FROM segments s
WHERE s.base <> 0 AND NOT EXISTS (SELECT 1 FROM segment_rows r WHERE r.segment = s.base AND r.seq = s.base_seq)
"""
_IDS: Final = """
SELECT count(*) FROM ids i LEFT JOIN entries e ON e.seq = i.seq AND e.id = i.id LEFT JOIN usage_rows u ON u.seq = i.seq AND u.id = i.id
WHERE e.seq IS NULL AND u.seq IS NULL
"""


def problems_of(cursor: sqlite3.Cursor) -> list[str]:
    """Return what is wrong with the file, at most `MAX_PROBLEMS` texts; [] if nothing is."""
    problems: list[str] = []
    for problem in _all_problems(cursor):
        problems.append(problem)
        if len(problems) == MAX_PROBLEMS:
            break
    return problems


def _all_problems(cursor: sqlite3.Cursor) -> Iterator[str]:
    connection = cursor.connection  # cursors of their own: these queries run inside one another
    yield from (f"SQLite: {text}" for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok")
    for sql, read in _ROWS:
        for row in connection.execute(sql):
            try:
                read(row)
            except StorageError as error:
                yield str(error)
    yield from _wrong_totals(connection.cursor())
    for sql, what in ((_MISPLACED, "entry"), (_TORN, "entry"), (_BASES, "segment")):
        for (number,) in connection.execute(sql):
            yield f"the branch index is wrong at {what} {number}: repair() makes it anew"


def _wrong_totals(cursor: sqlite3.Cursor) -> Iterator[str]:
    try:
        position = read_position(cursor)
        ledger = [read_usage(row).usage for row in cursor.execute(_ROWS[1][0]).fetchall()]
    except StorageError as error:
        yield str(error)
        return
    entries, messages = _count(cursor, "SELECT count(*) FROM entries"), _count(cursor, "SELECT count(*) FROM entries WHERE type = 0")
    if (entries, len(ledger)) != (position.entry_count, position.usage_count):
        yield f"{position.entry_count} entries and {position.usage_count} usage rows were committed; {entries} and {len(ledger)} are there"
    if position.stats != SessionStats(message_count=messages, usage=sum(ledger, Usage())):
        yield "the session's totals are not the sum of its ledger and messages"
    if _count(cursor, "SELECT count(*) FROM ids") != entries + len(ledger) or _count(cursor, _IDS):
        yield "the table of ids does not fit the entries and usage rows"


def _count(cursor: sqlite3.Cursor, sql: str) -> int:
    row = fetch(cursor, sql)
    return 0 if row is None else row[0]
