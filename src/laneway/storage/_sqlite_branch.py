"""The branch index: every path of the tree as a few ranges of rows.

A **segment** is a run of entries in which each is the parent of the next. It continues a **base**: another segment, up to and with
the entry `base_seq`. The path to an entry is its home segment's rows up to it, then the base's rows up to `base_seq`, and so on.

- An entry whose parent is the last of its segment is added there: one row.
- Any other entry begins a segment. The rows after the newest compaction on the path to its parent are copied into it, and
  its base is the home of that compaction. So a context is one range of one segment.
- Where there is no compaction, or more than `MAX_COPIED` rows after it, nothing is copied and the base is the parent's home.
  Every segment on a path has a row of its own on it, so reading stays linear in the length of the path.

Rows after the newest compaction of a path are either all in its last segment or more than `MAX_COPIED`, for a segment that begins
without a copy has that many below it and its descendants only get more until they have a compaction of their own.

The index is a projection of the entries' parents: `rebuild` makes it anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from laneway.errors import StorageCorruption
from laneway.storage._sqlite_rows import StoredId, fetch

MAX_COPIED: Final = 1_000
"""How many rows a new segment may copy."""
_CACHED: Final = 4_096

# An entry's place by its id. (CROSS JOIN keeps SQLite from reordering the look-ups.)
PLACE_OF_ID: Final = "SELECT e.seq, e.segment FROM ids i CROSS JOIN entries e ON e.seq = i.seq WHERE i.id = ?"
_LAST_ROW: Final = "SELECT seq FROM segment_rows WHERE segment = ? ORDER BY seq DESC LIMIT 1"
_SEGMENT: Final = "SELECT base, base_seq, compaction_seq FROM segments WHERE segment = ?"
# (type 1 is a compaction; as a literal, so that the partial index over those rows is used)
NEWEST_COMPACTION: Final = "SELECT seq FROM segment_rows WHERE segment = ? AND seq <= ? AND type = 1 ORDER BY seq DESC LIMIT 1"
COUNT_ROWS: Final = "SELECT count(*) FROM (SELECT 1 FROM segment_rows WHERE segment = ? AND seq > ? AND seq <= ? LIMIT ?)"
COPY_ROWS: Final = "INSERT INTO segment_rows SELECT ?, seq, type FROM segment_rows WHERE segment = ? AND seq > ? AND seq <= ?"
_HOME: Final = "SELECT segment FROM entries WHERE seq = ?"
_ADD_SEGMENT: Final = "INSERT INTO segments VALUES (?, ?, ?, ?)"
_ADD_ROW: Final = "INSERT INTO segment_rows VALUES (?, ?, ?)"


class Place(Struct, frozen=True, gc=False):
    """Where an entry is: its seq and its home segment."""

    seq: int
    segment: int


class Segment(Struct, frozen=True, gc=False):
    """What a segment continues: `base` up to `base_seq` (0 and 0 at a root)."""

    base: int
    base_seq: int
    compaction_seq: int


class Range(Struct, frozen=True, gc=False):
    """A piece of a path: the rows of `segment` above `above`, up to and with `upto`."""

    segment: int
    above: int
    upto: int


class BranchIndex:
    """The index of one open file. Everything cached is what the file holds: call `forget` after a rollback."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._places: dict[StoredId, Place] = {}
        self._segments: dict[int, Segment] = {}
        self._tips: dict[int, int] = {}  # segment → its last seq
        self.next_segment = 1

    def forget(self) -> None:
        """Drop what is cached: a commit was rolled back."""
        self._places.clear()
        self._segments.clear()
        self._tips.clear()

    def trim(self) -> None:
        """Keep the caches small."""
        if len(self._places) > _CACHED or len(self._segments) > _CACHED or len(self._tips) > _CACHED:
            self.forget()

    # ------------------------------------------------------------------------------------------------ placing

    def place_of(self, id: StoredId) -> Place | None:
        """Return where an entry is; None if there is no such entry."""
        place = self._places.get(id)
        if place is None:
            row = fetch(self._cursor, PLACE_OF_ID, (id,))
            if row is None:
                return None
            place = self._places[id] = Place(*row)
        return place

    def add(self, id: StoredId, seq: int, type_number: int, parent: Place | None) -> int:
        """Take in a new entry and return its home segment."""
        if parent is None:
            segment = self._begin(Segment(0, 0, 0))
        elif parent.seq == self._tip(parent.segment):
            segment = parent.segment
        else:
            segment = self._diverge(parent)
        self._cursor.execute(_ADD_ROW, (segment, seq, type_number))
        self._tips[segment] = seq
        self._places[id] = Place(seq, segment)
        return segment

    def _begin(self, segment: Segment) -> int:
        number = self.next_segment
        self.next_segment += 1
        self._cursor.execute(_ADD_SEGMENT, (number, segment.base, segment.base_seq, segment.compaction_seq))
        self._segments[number] = segment
        return number

    def _diverge(self, parent: Place) -> int:
        old = self.segment(parent.segment)
        row = fetch(self._cursor, NEWEST_COMPACTION, (parent.segment, parent.seq))
        compaction_seq: int = old.compaction_seq if row is None else row[0]
        if compaction_seq == 0 or compaction_seq < old.base_seq or self._count(parent, compaction_seq) > MAX_COPIED:
            return self._begin(Segment(parent.segment, parent.seq, compaction_seq))
        home = fetch(self._cursor, _HOME, (compaction_seq,))
        if home is None:
            raise broken_index(parent.segment)
        number = self._begin(Segment(home[0], compaction_seq, compaction_seq))
        self._cursor.execute(COPY_ROWS, (number, parent.segment, compaction_seq, parent.seq))
        return number

    def _count(self, parent: Place, above: int) -> int:
        row = fetch(self._cursor, COUNT_ROWS, (parent.segment, above, parent.seq, MAX_COPIED + 1))
        return 0 if row is None else row[0]

    def _tip(self, segment: int) -> int:
        tip = self._tips.get(segment)
        if tip is None:
            row = fetch(self._cursor, _LAST_ROW, (segment,))
            if row is None:
                raise broken_index(segment)
            tip = self._tips[segment] = row[0]
        return tip

    # ------------------------------------------------------------------------------------------------ following

    def segment(self, number: int) -> Segment:
        """Return a segment."""
        segment = self._segments.get(number)
        if segment is None:
            row = fetch(self._cursor, _SEGMENT, (number,))
            if row is None:
                raise broken_index(number)
            segment = self._segments[number] = Segment(*row)
        return segment

    def ranges(self, start: Place) -> Iterator[Range]:
        """Yield the pieces of the path from `start` to the root, the newest first."""
        number, upto = start.segment, start.seq
        while True:
            segment = self.segment(number)
            if segment.base_seq >= upto or (segment.base == 0) != (segment.base_seq == 0):
                raise broken_index(number)
            yield Range(number, segment.base_seq, upto)
            if segment.base == 0:
                return
            number, upto = segment.base, segment.base_seq


def broken_index(segment: int) -> StorageCorruption:
    """The error for an index that contradicts itself or the entries."""
    return StorageCorruption(f"the branch index is damaged at segment {segment}: repair() makes it anew from the entries")


def rebuild(cursor: sqlite3.Cursor) -> int:
    """Make the index anew from the entries' parents, in the caller's transaction; return the next segment's number."""
    cursor.execute("DELETE FROM segments")
    cursor.execute("DELETE FROM segment_rows")
    index = BranchIndex(cursor)
    after = 0
    while rows := cursor.execute("SELECT seq, id, parent, type FROM entries WHERE seq > ? ORDER BY seq LIMIT 1000", (after,)).fetchall():
        for seq, id, parent, type_number in rows:
            row = None if parent is None else fetch(cursor, "SELECT seq, segment FROM entries WHERE seq = ?", (parent,))
            if parent is not None and (row is None or parent >= seq):
                raise StorageCorruption(f"the entry at seq {seq} is stored with a parent at seq {parent}, which is missing or younger than itself")
            segment = index.add(id, seq, type_number, None if row is None else Place(*row))
            cursor.execute("UPDATE entries SET segment = ? WHERE seq = ?", (segment, seq))
        index.trim()
        after = rows[-1][0]
    return index.next_segment
