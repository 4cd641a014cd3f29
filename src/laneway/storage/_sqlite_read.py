"""The queries of a session's file. Each uses an index, in the order that it has: their plans are pinned by tests."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from laneway.errors import StorageCorruption
from laneway.storage import _checks as checks
from laneway.storage._codec import decode_usage
from laneway.storage._sqlite_branch import OF_SEGMENT, BranchIndex, Place, Range, broken_index, of_segment
from laneway.storage._sqlite_lease import read_position
from laneway.storage._sqlite_rows import (
    ENTRY_COLUMNS,
    NODE_COLUMNS,
    TYPE_NUMBERS,
    Row,
    check_usage_row,
    fetch,
    pack_id,
    read_element,
    read_entry,
    read_node,
    read_value,
)
from laneway.storage.base import (
    BranchScan,
    Entry,
    EntryNode,
    EntryScan,
    ListElement,
    ScanOrder,
    SeqOrder,
    SessionStats,
    StoredValue,
    UsageRow,
    UsageScan,
    Values,
)

_T = TypeVar("_T")

_CELL: Final = "namespace, key, seq, checksum, value"
GET_VALUE: Final = f"SELECT {_CELL} FROM cells WHERE namespace = ? AND key = ?"
SCAN_VALUES: Final = f"SELECT {_CELL} FROM cells WHERE namespace = ? AND key >= ? AND key < ? ORDER BY key"
SCAN_VALUES_TO_END: Final = f"SELECT {_CELL} FROM cells WHERE namespace = ? AND key >= ? ORDER BY key"
ALL_VALUES: Final = f"SELECT {_CELL} FROM cells ORDER BY namespace, key"
ALL_ELEMENTS: Final = f"SELECT {_CELL} FROM elements ORDER BY namespace, key, seq"
NEWEST_SEQ: Final = "SELECT seq FROM entries ORDER BY seq DESC LIMIT 1"
_PARENTS: Final = "LEFT JOIN entries p ON p.seq = e.parent"
GET_ENTRY: Final = f"SELECT {ENTRY_COLUMNS} FROM ids i CROSS JOIN entries e ON e.seq = i.seq {_PARENTS} WHERE i.id = ?"
SEQ_OF_ID: Final = "SELECT seq FROM ids WHERE id = ?"
_DIRECTIONS: Final[dict[ScanOrder | SeqOrder, str]] = {"newest_first": "DESC", "oldest_first": "ASC", "asc": "ASC", "desc": "DESC"}


def read_list_sql(order: SeqOrder, *, after: bool) -> str:
    """Return the query of one page of a list."""
    beyond = "" if not after else " AND seq > ?" if order == "asc" else " AND seq < ?"
    return f"SELECT {_CELL} FROM elements WHERE namespace = ? AND key = ?{beyond} ORDER BY seq {_DIRECTIONS[order]} LIMIT ?"


def range_sql(order: ScanOrder, *, copied: bool, payloads: bool, of_type: bool, of_custom_type: bool) -> str:
    """Return the query of one piece of a path; its parameters are the piece's, what is filtered by, and the limit."""
    columns = ENTRY_COLUMNS if payloads else NODE_COLUMNS
    filters = (" AND e.type = ?" if of_type else "") + (" AND e.custom_type = ?" if of_custom_type else "")
    return f"SELECT {columns} {_piece(copied)}{filters} ORDER BY {_piece_order(copied, _DIRECTIONS[order])} LIMIT ?"


def newest_sql(*, copied: bool, what: str) -> str:
    """Return the query of the newest entry of a piece of a path that has a type ("type = 2") or a seq ("seq = ?")."""
    return f"SELECT e.seq {_piece(copied)} AND e.{what} ORDER BY {_piece_order(copied, 'DESC')} LIMIT 1"


def _piece(copied: bool) -> str:
    if copied:
        return f"FROM copies c CROSS JOIN entries e ON e.seq = c.seq {_PARENTS} WHERE c.segment = ? AND c.seq > ? AND c.seq <= ?"
    return OF_SEGMENT.format(joins=_PARENTS)


def _piece_parameters(piece: Range) -> Row:
    return (piece.segment, piece.above, piece.upto) if piece.copied else of_segment(piece.segment, piece.above, piece.upto)


def _piece_order(copied: bool, direction: str) -> str:
    return f"c.seq {direction}" if copied else f"r.first_seq {direction}, e.seq {direction}"


def entries_sql(scan: EntryScan) -> str:
    """Return the query of a scan by seq; types other than messages, the rare ones, have an index."""
    conditions = ["e.seq >= ?", "e.seq <= ?"]
    if scan.custom_type is not None:
        conditions.append("e.custom_type = ? AND e.type = 3")
    if scan.type is not None:
        number = TYPE_NUMBERS[scan.type]
        conditions.append("e.type = 0" if number == 0 else f"e.type = {number} AND e.type <> 0")
    return f"SELECT {ENTRY_COLUMNS} FROM entries e {_PARENTS} WHERE {' AND '.join(conditions)} ORDER BY e.seq {_DIRECTIONS[scan.order]} LIMIT ?"


def usage_sql(order: SeqOrder) -> str:
    """Return the query of a scan of the ledger."""
    return (
        "SELECT seq, id, entry_id, timestamp, checksum, payload FROM usage_rows "
        f"WHERE seq >= ? AND seq <= ? ORDER BY seq {_DIRECTIONS[order]} LIMIT ?"
    )


class SqliteReader:
    """Answers the reads of `Storage` from one connection; used by one thread at a time."""

    def __init__(self, cursor: sqlite3.Cursor, branches: BranchIndex) -> None:
        self._cursor = cursor
        self._branches = branches

    # ------------------------------------------------------------------------------------------------ values and lists

    def value(self, namespace: str, key: str) -> StoredValue | None:
        """Answer `Storage.get_value`."""
        row = fetch(self._cursor, GET_VALUE, (namespace, key))
        return None if row is None else read_value(row)

    def values(self, namespace: str, key_prefix: str) -> list[StoredValue]:
        """Answer `Storage.scan_values`."""
        end = checks.prefix_end(key_prefix)
        sql, parameters = (SCAN_VALUES_TO_END, (namespace, key_prefix)) if end is None else (SCAN_VALUES, (namespace, key_prefix, end))
        rows = self._cursor.execute(sql, parameters).fetchall()
        return [read_value(row) for row in rows]

    def elements(self, namespace: str, key: str, after: int | None, order: SeqOrder, limit: int) -> list[ListElement]:
        """Answer `Storage.read_list`."""
        bound = () if after is None else (after,)
        sql = read_list_sql(order, after=after is not None)
        return [read_element(row) for row in self._cursor.execute(sql, (namespace, key, *bound, limit)).fetchall()]

    def all_values(self) -> Values:
        """Answer `Enumerable.read_values`."""
        lists: dict[tuple[str, str], list[ListElement]] = {}
        for row in self._cursor.execute(ALL_ELEMENTS).fetchall():
            lists.setdefault((row[0], row[1]), []).append(read_element(row))
        newest = fetch(self._cursor, NEWEST_SEQ)
        cells = [read_value(row) for row in self._cursor.execute(ALL_VALUES).fetchall()]
        return Values(last_seq=0 if newest is None else newest[0], cells=cells, lists=lists)

    # ------------------------------------------------------------------------------------------------ entries and ledger

    def entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Answer `Storage.get_entries`."""
        found: dict[str, Entry] = {}
        for id in ids:
            row = fetch(self._cursor, GET_ENTRY, (pack_id(id),))
            if row is None:
                self._branches.check_absent(id)
            else:
                found[id] = read_entry(row).decode()
        return found

    def scan_entries(self, scan: EntryScan) -> list[Entry]:
        """Answer `Storage.scan_entries`. Of a whole scan the number of rows is checked too."""
        parameters = (*_bounds(scan), *(() if scan.custom_type is None else (scan.custom_type,)), _limit(scan.limit))
        if scan.custom_type is not None and scan.type not in (None, "custom"):
            return []
        entries = [read_entry(row).decode() for row in self._cursor.execute(entries_sql(scan), parameters).fetchall()]
        if scan == EntryScan(order=scan.order):
            _check_count("entries", read_position(self._cursor).entry_count, len(entries))
        return entries

    def scan_usage(self, scan: UsageScan) -> list[UsageRow]:
        """Answer `Storage.scan_usage`. Of a whole scan the number of rows is checked too."""
        rows = self._cursor.execute(usage_sql(scan.order), (*_bounds(scan), _limit(scan.limit))).fetchall()
        if scan == UsageScan(order=scan.order):
            _check_count("usage rows", read_position(self._cursor).usage_count, len(rows))
        return [read_usage(row) for row in rows]

    def stats(self) -> SessionStats:
        """Answer `Storage.get_stats`."""
        return read_position(self._cursor).stats

    # ------------------------------------------------------------------------------------------------ paths

    def branch(self, scan: BranchScan) -> list[Entry]:
        """Answer `Storage.scan_branch`."""
        return [entry.decode() for entry in self._path(scan, read_entry, payloads=True)]

    def structure(self, scan: BranchScan) -> list[EntryNode]:
        """Answer `Storage.scan_branch_structure`."""
        return self._path(scan, read_node, payloads=False)

    def _path(self, scan: BranchScan, read: Callable[[Row], _T], *, payloads: bool) -> list[_T]:
        start = self._start(scan.start)
        pieces = self._pieces(scan, start)
        filters: Row = (() if scan.type is None else (TYPE_NUMBERS[scan.type],)) + (() if scan.custom_type is None else (scan.custom_type,))
        rows: list[Row] = []
        for piece in pieces:
            left = -1 if scan.limit is None else _limit(scan.limit) - len(rows)
            sql = range_sql(
                scan.order, copied=piece.copied, payloads=payloads, of_type=scan.type is not None, of_custom_type=scan.custom_type is not None
            )
            rows += self._cursor.execute(sql, (*_piece_parameters(piece), *filters, left)).fetchall()
            if len(rows) == scan.limit:
                break
        if not filters:
            self._check_chain(scan, start, rows, complete=len(rows) != scan.limit)
        return [read(row) for row in rows]

    def _start(self, id: str) -> Place:
        possible = checks.possible_ids([id])
        place = self._branches.place_of(id) if possible else None
        if place is None:
            raise checks.unknown_start(id)
        return place

    def _pieces(self, scan: BranchScan, start: Place) -> list[Range]:
        """Return the ranges that the scan covers, in its order: cut at the stop and at the cursor."""
        stop_id = None if scan.stop_at_id is None else self._seq_of(scan.stop_at_id)
        cursor = checks.seq_bound(scan.cursor, "cursor")
        newest_first = scan.order == "newest_first"
        highest = start.seq if cursor is None or not newest_first else cursor - 1
        lowest = 0 if cursor is None or newest_first else cursor
        pieces: list[Range] = []
        for piece in self._branches.ranges(start):
            stop = self._stop_in(piece, scan.stop_at_type, stop_id)
            above, upto = max(piece.above, lowest, stop - 1), min(piece.upto, highest)
            if above < upto:
                pieces.append(Range(piece.segment, piece.copied, above, upto))
            if stop or piece.above <= lowest:
                break
        return pieces if newest_first else pieces[::-1]

    def _stop_in(self, piece: Range, stop_type: str | None, stop_seq: int | None) -> int:
        """Return the seq of the newest row of the piece that the path stops at; 0 if there is none."""
        stop = 0
        where = _piece_parameters(piece)
        if stop_seq is not None and piece.above < stop_seq <= piece.upto:
            row = fetch(self._cursor, newest_sql(copied=piece.copied, what="seq = ?"), (*where, stop_seq))
            stop = 0 if row is None else row[0]
        if stop_type is not None:
            row = fetch(self._cursor, newest_sql(copied=piece.copied, what=f"type = {TYPE_NUMBERS[stop_type]}"), where)
            stop = stop if row is None else max(stop, row[0])
        return stop

    def _seq_of(self, id: str) -> int | None:
        row = fetch(self._cursor, SEQ_OF_ID, (pack_id(id),)) if checks.possible_ids([id]) else None
        return None if row is None else row[0]

    def _check_chain(self, scan: BranchScan, start: Place, rows: list[Row], *, complete: bool) -> None:
        """Refuse rows that are no path: each must be the parent of the newer one, and neither end may be missing."""
        path = rows if scan.order == "newest_first" else rows[::-1]
        for newer, older in itertools.pairwise(path):
            if newer[2] != older[0]:
                raise broken_index(start.segment)
        if scan.cursor is not None or not complete:
            return
        if not path or path[0][0] != start.seq:
            raise broken_index(start.segment)
        stopped = scan.stop_at_type is not None or scan.stop_at_id is not None
        if path[-1][2] is not None and not stopped:
            raise broken_index(start.segment)


def read_usage(row: Row) -> UsageRow:
    """Return the ledger row of a stored row, or raise that it was damaged."""
    seq, id, entry_id, timestamp, payload = check_usage_row(row)
    return decode_usage(id=id, entry_id=entry_id, seq=seq, timestamp=timestamp, payload=payload)


def _check_count(what: str, committed: int, found: int) -> None:
    if committed != found:
        raise StorageCorruption(f"{committed} {what} were committed and {found} are there: the file is damaged; restore the session from a copy")


def _bounds(scan: EntryScan | UsageScan) -> tuple[int, int]:
    first, last = checks.seq_bound(scan.from_seq, "from_seq"), checks.seq_bound(scan.to_seq, "to_seq")
    return (0 if first is None else first, checks.MAX_SEQ if last is None else last)


def _limit(limit: int | None) -> int:
    return -1 if limit is None else min(limit, checks.MAX_SEQ)
