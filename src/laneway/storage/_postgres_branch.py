"""Where the entries of a commit go in the branch index. Pure: facts in, rows out. The index is the same as SQLite's.

A **segment** is a run of entries in which each is the parent of the next. It continues a **base**: another segment, up to and with
the entry `base_seq`. The path to an entry is its home segment's rows up to it, then the base's rows up to `base_seq`, and so on.

- An entry whose parent is the last of its segment is added there: one row.
- Any other entry begins a segment. The rows after the newest compaction on the path to its parent are copied into it, and its base is
  the home of that compaction. So a context is one range of one segment, and a fork copies no more than a context.
- Where there is no compaction, or more than `MAX_COPIED` rows after it, nothing is copied and the base is the parent's home.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from laneway.storage.base import EntryType

MAX_COPIED: Final = 1_000
"""How many rows a new segment may copy."""


class Compaction(Struct, frozen=True, gc=False):
    """The newest compaction on a path: its home segment and its seq."""

    segment: int
    seq: int


class Place(Struct, frozen=True, gc=False):
    """Where an entry lives.

    `after` counts the rows from the compaction (exclusive) to the entry, if they are all in this segment and not more than
    `MAX_COPIED`; else it is None, and a fork here copies nothing.
    """

    segment: int
    seq: int
    is_tip: bool
    compaction: Compaction | None = None
    after: int | None = None


class Node(Struct, frozen=True, gc=False):
    """An entry as the index knows it."""

    id: str
    parent_id: str | None
    seq: int
    type: EntryType


class NewSegment(Struct, frozen=True, gc=False):
    """A row of `segments`; zeros stand for nothing."""

    segment: int
    base_segment: int
    base_seq: int
    compaction_seq: int


class Copy(Struct, frozen=True, gc=False):
    """Rows of the segment `source` above `above`, up to and with `upto`, that a new segment begins with."""

    segment: int
    source: int
    above: int
    upto: int


class BranchPlan(Struct, frozen=True):
    """What a commit adds to the index, beside a row for every entry in its home: one home per entry, in order.

    `places` are the entries' and the changed parents' places afterwards.
    """

    segments: list[NewSegment]
    copies: list[Copy]
    homes: list[int]
    places: dict[str, Place]
    next_segment: int


def parents_outside(entries: Sequence[Node]) -> list[str]:
    """Return the parents that are not in the commit: those whose places `plan` needs."""
    inside = {entry.id for entry in entries}
    return list(dict.fromkeys(e.parent_id for e in entries if e.parent_id is not None and e.parent_id not in inside))


def plan(entries: Sequence[Node], places: Mapping[str, Place], next_segment: int) -> BranchPlan:
    """Place the entries of a commit, in order; a parent is in `places` or earlier in the commit."""
    planner = _Planner(places, next_segment)
    homes = [planner.place(entry) for entry in entries]
    return BranchPlan(planner.segments, planner.copies, homes, planner.changed, planner.next_segment)


class _Planner:
    def __init__(self, places: Mapping[str, Place], next_segment: int) -> None:
        self.segments: list[NewSegment] = []
        self.copies: list[Copy] = []
        self.changed: dict[str, Place] = {}
        self.next_segment = next_segment
        self._places = places

    def place(self, entry: Node) -> int:
        """Place an entry and return its home."""
        parent = None if entry.parent_id is None else self.changed.get(entry.parent_id) or self._places[entry.parent_id]
        if entry.parent_id is None or parent is None:
            before = Place(self._begin(0, 0, 0), 0, False)
        elif parent.is_tip:
            before = parent
            self.changed[entry.parent_id] = structs.replace(parent, is_tip=False)
        else:
            before = self._diverge(parent)
        self.changed[entry.id] = _after(before, entry)
        return before.segment

    def _diverge(self, parent: Place) -> Place:
        """Begin a segment after `parent`; return the parent's place as it would be there."""
        compaction = parent.compaction
        if compaction is None or parent.after is None:
            segment = self._begin(parent.segment, parent.seq, compaction.seq if compaction else 0)
            return structs.replace(parent, segment=segment, after=None)
        segment = self._begin(compaction.segment, compaction.seq, compaction.seq)
        if parent.after > 0:
            self.copies.append(Copy(segment, parent.segment, compaction.seq, parent.seq))
        return structs.replace(parent, segment=segment)

    def _begin(self, base_segment: int, base_seq: int, compaction_seq: int) -> int:
        segment = self.next_segment
        self.next_segment += 1
        self.segments.append(NewSegment(segment, base_segment, base_seq, compaction_seq))
        return segment


def _after(parent: Place, entry: Node) -> Place:
    if entry.type == "compaction":
        return Place(parent.segment, entry.seq, True, Compaction(parent.segment, entry.seq), 0)
    after = None if parent.after is None or parent.after >= MAX_COPIED else parent.after + 1
    return Place(parent.segment, entry.seq, True, parent.compaction, after)
