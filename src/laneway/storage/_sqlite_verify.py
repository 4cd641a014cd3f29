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
# Runs are apart and leave no entry out; only the last one is open.
_BAD_RUNS: Final = """
SELECT r.segment FROM runs r WHERE r.last_seq < r.first_seq
OR r.last_seq <> coalesce(
    (SELECT max(e.seq) FROM entries e WHERE e.seq < (SELECT min(n.first_seq) FROM runs n WHERE n.first_seq > r.first_seq)),
    9223372036854775807
)
"""
# An entry follows its parent in its segment, or is the first of a segment that begins at its parent.
_MISPLACED: Final = """
WITH placed (seq, parent, segment) AS (
    SELECT e.seq, e.parent, (SELECT r.segment FROM runs r WHERE r.first_seq <= e.seq ORDER BY r.first_seq DESC LIMIT 1) FROM entries e
), chained (seq, parent, segment, before) AS (SELECT seq, parent, segment, lag(seq) OVER (PARTITION BY segment ORDER BY seq) FROM placed)
SELECT c.segment FROM chained c LEFT JOIN segments s ON s.segment = c.segment
WHERE s.segment IS NULL OR c.seq <= s.fork_seq OR c.parent IS NOT coalesce(c.before, nullif(s.fork_seq, 0))
"""
# A copied entry follows its parent among the copies, or is the first above the base; the last one is the fork point.
_MISCOPIED: Final = """
SELECT c.segment FROM copies c LEFT JOIN entries e ON e.seq = c.seq LEFT JOIN segments s ON s.segment = c.segment
WHERE s.segment IS NULL OR e.seq IS NULL OR c.seq > s.fork_seq OR e.parent IS NOT coalesce(
    (SELECT b.seq FROM copies b WHERE b.segment = c.segment AND b.seq < c.seq ORDER BY b.seq DESC LIMIT 1),
    s.base_seq
)
"""
_MISBASED: Final = """
SELECT s.segment FROM segments s
WHERE s.base <> coalesce((
    SELECT r.segment FROM entries b CROSS JOIN runs r ON r.first_seq <= b.seq WHERE b.seq = s.base_seq ORDER BY r.first_seq DESC LIMIT 1
), 0)
OR s.fork_seq <> coalesce((SELECT max(c.seq) FROM copies c WHERE c.segment = s.segment), s.base_seq)
"""
_BAD_COMPACTIONS: Final = """
WITH found (segment, seq) AS (
    SELECT (SELECT r.segment FROM runs r WHERE r.first_seq <= e.seq ORDER BY r.first_seq DESC LIMIT 1), e.seq
    FROM entries e WHERE e.type = 1 AND e.type <> 0
)
SELECT segment FROM (SELECT * FROM found EXCEPT SELECT segment, seq FROM compactions)
UNION ALL SELECT segment FROM (SELECT segment, seq FROM compactions EXCEPT SELECT * FROM found)
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
    for sql in (_BAD_RUNS, _MISPLACED, _MISCOPIED, _MISBASED, _BAD_COMPACTIONS):
        for (number,) in connection.execute(sql):
            yield f"the branch index is wrong at segment {number}: repair() makes it anew"


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
