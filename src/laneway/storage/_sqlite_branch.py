"""The branch index: every path of the tree as a few ranges of rows.

A **segment** is a chain of entries in which each is the parent of the next. It continues a **base**: another segment, up to and with
the entry `base_seq`. The path to an entry is the entries of its segment up to it, then the base's up to `base_seq`, and so on.
A **run** is a range of seqs in which all entries are of one segment; a session with one lane has one run.

- An entry whose parent is the last of its segment joins it. Nothing is written for that, unless another lane wrote in between.
- Any other entry begins a segment at its parent, the fork point. References to the entries after the newest compaction at or
  below the fork point are copied into it, and its base is the segment of that compaction. So what a context needs is in one segment.
- Where there is no compaction, or more than `MAX_COPIED` entries after it, nothing is copied and the base is the parent's segment.
  Every segment on a path has entries of its own on it, so reading stays linear in the length of the path.

Entries after the newest compaction of a path are thus either all in its last segment or more than `MAX_COPIED`: a segment that
began without a copy has that many below it, and what descends from it only gets more until it has a compaction of its own.

The index is a projection of the entries' parents: `rebuild` makes it anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from laneway.errors import StorageCorruption
from laneway.storage._checks import MAX_SEQ
from laneway.storage._sqlite_rows import Row, fetch, pack_id

MAX_COPIED: Final = 1_000
"""How many references a new segment may copy."""
_CACHED: Final = 4_096

_OPEN: Final = MAX_SEQ
"""Where the last run ends: nowhere yet."""

# (CROSS JOIN keeps SQLite from reordering the look-ups.)
_SEGMENT_OF: Final = "(SELECT r.segment FROM runs r WHERE r.first_seq <= e.seq ORDER BY r.first_seq DESC LIMIT 1)"
PLACE_OF_ID: Final = f"SELECT e.seq, {_SEGMENT_OF} FROM ids i CROSS JOIN entries e ON e.seq = i.seq WHERE i.id = ?"
LOST_ID: Final = "SELECT i.seq FROM ids i WHERE i.id = ? AND NOT EXISTS (SELECT 1 FROM usage_rows u WHERE u.seq = i.seq)"
PLACE_OF_SEQ: Final = f"SELECT e.seq, {_SEGMENT_OF} FROM entries e WHERE e.seq = ?"
LAST_RUN: Final = "SELECT first_seq, last_seq, segment FROM runs ORDER BY first_seq DESC LIMIT 1"
LAST_RUN_OF_SEGMENT: Final = "SELECT last_seq FROM runs WHERE segment = ? ORDER BY first_seq DESC LIMIT 1"
LAST_ENTRY: Final = "SELECT seq FROM entries ORDER BY seq DESC LIMIT 1"
NEWEST_COMPACTION: Final = "SELECT seq FROM compactions WHERE segment = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
# The entries of a segment in a range of seqs, by the runs that meet the range; its parameters are `of_segment()`.
OF_SEGMENT: Final = (
    "FROM runs r CROSS JOIN entries e ON e.seq >= max(r.first_seq, ? + 1) AND e.seq <= min(r.last_seq, ?) {joins} "
    "WHERE r.segment = ? AND r.first_seq <= ? "
    "AND r.first_seq >= coalesce((SELECT max(q.first_seq) FROM runs q WHERE q.segment = ? AND q.first_seq <= ? + 1), 0)"
)
COUNT_ENTRIES: Final = f"SELECT count(*) FROM (SELECT 1 {OF_SEGMENT.format(joins='')} LIMIT ?)"
COUNT_COPIES: Final = "SELECT count(*) FROM copies WHERE segment = ? AND seq > ?"
COPY_ENTRIES: Final = f"INSERT INTO copies SELECT ?, e.seq {OF_SEGMENT.format(joins='')}"
COPY_COPIES: Final = "INSERT INTO copies SELECT ?, seq FROM copies WHERE segment = ? AND seq > ?"
_SEGMENT: Final = "SELECT base, base_seq, fork_seq, compaction_seq FROM segments WHERE segment = ?"
_ADD_SEGMENT: Final = "INSERT INTO segments VALUES (?, ?, ?, ?, ?)"
_END_RUN: Final = "UPDATE runs SET last_seq = ? WHERE first_seq = ?"
_ADD_RUN: Final = "INSERT INTO runs VALUES (?, ?, ?)"
_ADD_COMPACTION: Final = "INSERT INTO compactions VALUES (?, ?)"


def of_segment(segment: int, above: int, upto: int) -> Row:
    """Return the parameters of `OF_SEGMENT`: the entries of `segment` above `above`, up to and with `upto`."""
    return above, upto, segment, upto, segment, above


class Place(Struct, frozen=True, gc=False):
    """Where an entry is: its seq and its segment."""

    seq: int
    segment: int


class Segment(Struct, frozen=True, gc=False):
    """What a segment continues: `base` up to `base_seq`, then copies up to `fork_seq`. All 0 at a root."""

    base: int
    base_seq: int
    fork_seq: int
    compaction_seq: int


class _Run(Struct, frozen=True, gc=False):
    first_seq: int
    last_seq: int
    segment: int


class Range(Struct, frozen=True, gc=False):
    """A piece of a path: the entries of `segment`, or those copied into it, above `above`, up to and with `upto`."""

    segment: int
    copied: bool
    above: int
    upto: int


class BranchIndex:
    """The index of one open file. Everything cached is what the file holds: call `forget` after a rollback."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._places: dict[str, Place] = {}
        self._segments: dict[int, Segment] = {}
        self._tips: dict[int, int] = {}  # segment → the seq of its last entry
        self._run: _Run | None = None  # the open run, if it is known
        self.next_segment = 1

    def forget(self) -> None:
        """Drop what is cached: a commit was rolled back."""
        self._places.clear()
        self._segments.clear()
        self._tips.clear()
        self._run = None

    def trim(self) -> None:
        """Keep the caches small."""
        if len(self._places) > _CACHED or len(self._segments) > _CACHED or len(self._tips) > _CACHED:
            self.forget()

    # ------------------------------------------------------------------------------------------------ placing

    def place_of(self, id: str) -> Place | None:
        """Return where an entry is; None if there is no such entry."""
        place = self._places.get(id)
        if place is None:
            row = fetch(self._cursor, PLACE_OF_ID, (pack_id(id),))
            if row is None:
                self.check_absent(id)
                return None
            place = self._places[id] = Place(*row)
        return place

    def check_absent(self, id: str) -> None:
        """Raise `StorageCorruption` if an entry that is not there was there once: its id is taken, and by no usage row."""
        if fetch(self._cursor, LOST_ID, (pack_id(id),)) is not None:
            raise StorageCorruption(f"entry {id!r} was committed and is gone: the file is damaged; restore the session from a copy")

    def add(self, id: str, seq: int, parent: Place | None, *, is_compaction: bool) -> None:
        """Take in a new entry, newer than all others; the caller writes it."""
        if parent is None:
            segment = self._begin(Segment(0, 0, 0, 0))
        elif parent.seq == self._tip(parent.segment):
            segment = parent.segment
        else:
            segment = self._diverge(parent)
        if self._run is None or self._run.segment != segment:
            self._begin_run(segment, seq)
        if is_compaction:
            self._cursor.execute(_ADD_COMPACTION, (segment, seq))
        self._tips[segment] = seq
        self._places[id] = Place(seq, segment)

    def _begin_run(self, segment: int, seq: int) -> None:
        last = self._run or self._last_run()
        if last is not None and last.segment == segment:
            self._run = last
            return
        if last is not None:
            self._cursor.execute(_END_RUN, (self._last_entry(), last.first_seq))
        self._cursor.execute(_ADD_RUN, (seq, _OPEN, segment))
        self._run = _Run(seq, _OPEN, segment)

    def _last_run(self) -> _Run | None:
        row = fetch(self._cursor, LAST_RUN)
        if row is not None and row[1] != _OPEN:
            raise broken_index(row[2])
        return None if row is None else _Run(*row)

    def _last_entry(self) -> int:
        row = fetch(self._cursor, LAST_ENTRY)
        return 0 if row is None else row[0]

    def _begin(self, segment: Segment) -> int:
        number = self.next_segment
        self.next_segment += 1
        self._cursor.execute(_ADD_SEGMENT, (number, segment.base, segment.base_seq, segment.fork_seq, segment.compaction_seq))
        self._segments[number] = segment
        return number

    def _diverge(self, parent: Place) -> int:
        old = self.segment(parent.segment)
        row = fetch(self._cursor, NEWEST_COMPACTION, (parent.segment, parent.seq))
        compaction_seq: int = old.compaction_seq if row is None else row[0]
        if compaction_seq == 0 or compaction_seq < old.base_seq or self._count(parent, compaction_seq) > MAX_COPIED:
            return self._begin(Segment(parent.segment, parent.seq, parent.seq, compaction_seq))
        home = fetch(self._cursor, PLACE_OF_SEQ, (compaction_seq,))
        if home is None:
            raise broken_index(parent.segment)
        number = self._begin(Segment(home[1], compaction_seq, parent.seq, compaction_seq))
        self._cursor.execute(COPY_COPIES, (number, parent.segment, compaction_seq))
        self._cursor.execute(COPY_ENTRIES, (number, *of_segment(parent.segment, compaction_seq, parent.seq)))
        return number

    def _count(self, parent: Place, above: int) -> int:
        entries = fetch(self._cursor, COUNT_ENTRIES, (*of_segment(parent.segment, above, parent.seq), MAX_COPIED + 1))
        copies = fetch(self._cursor, COUNT_COPIES, (parent.segment, above))
        return sum(row[0] for row in (entries, copies) if row is not None)

    def _tip(self, segment: int) -> int:
        tip = self._tips.get(segment)
        if tip is None:
            row = fetch(self._cursor, LAST_RUN_OF_SEGMENT, (segment,))
            if row is None:
                raise broken_index(segment)
            tip = self._tips[segment] = self._last_entry() if row[0] == _OPEN else row[0]
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
            if not segment.base_seq <= segment.fork_seq < upto or (segment.base == 0) != (segment.base_seq == 0):
                raise broken_index(number)
            yield Range(number, False, segment.fork_seq, upto)
            if segment.base_seq < segment.fork_seq:
                yield Range(number, True, segment.base_seq, segment.fork_seq)
            if segment.base == 0:
                return
            number, upto = segment.base, segment.base_seq


def broken_index(segment: int) -> StorageCorruption:
    """The error for an index that contradicts itself or the entries."""
    return StorageCorruption(f"the branch index is damaged at segment {segment}: repair() makes it anew from the entries")


def rebuild(cursor: sqlite3.Cursor) -> int:
    """Make the index anew from the entries' parents, in the caller's transaction; return the next segment's number."""
    for table in ("segments", "runs", "copies", "compactions"):
        cursor.execute(f"DELETE FROM {table}")
    index = _Rebuilding(cursor)
    after = 0
    while rows := cursor.execute("SELECT seq, parent, type FROM entries WHERE seq > ? ORDER BY seq LIMIT 1000", (after,)).fetchall():
        for seq, parent, type_number in rows:
            index.add_again(seq, parent, is_compaction=type_number == 1)
        after = rows[-1][0]
    return index.next_segment


class _Rebuilding(BranchIndex):
    """Adds entries that are there already: the newest is the last one added, whatever the table says."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        super().__init__(cursor)
        self._added: dict[int, Place] = {}
        self._newest = 0

    def add_again(self, seq: int, parent: int | None, *, is_compaction: bool) -> None:
        place = None if parent is None else self._added.get(parent)
        if parent is not None and place is None:
            raise StorageCorruption(f"the entry at seq {seq} is stored with a parent at seq {parent}, which is missing or younger than itself")
        self.add("", seq, place, is_compaction=is_compaction)
        self._added[seq] = self._places[""]
        self._newest = seq

    def _last_entry(self) -> int:
        return self._newest
