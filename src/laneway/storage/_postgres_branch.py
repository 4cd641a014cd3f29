"""Where the entries of a commit go in the branch index. Pure: facts in, rows out.

A branch is a chain of segments: a segment's own rows, then those of its base up to `base_seq`. An entry's *home* is the segment that
it was first written in; read from there downwards, the chain is exactly the entry's path to the root.

- A root begins a segment without a base.
- An entry whose parent is the last row of the parent's home is added there: one row.
- Any other entry diverges: a new segment gets a copy of the path from the parent back to the newest compaction (or the root), and its
  base is the home of what comes before that. So a context is always read from one segment, and a fork copies no more than a context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from laneway.storage.base import EntryType


class Place(Struct, frozen=True):
    """Where an entry lives: its home, its seq, and whether nothing follows it there."""

    segment: int
    seq: int
    is_tip: bool


class Node(Struct, frozen=True):
    """An entry as the index knows it."""

    id: str
    parent_id: str | None
    seq: int
    type: EntryType
    custom_type: str | None


class NewSegment(Struct, frozen=True):
    """A row of `segments`."""

    segment: int
    base_segment: int | None
    base_seq: int | None


class SegmentRow(Struct, frozen=True):
    """A row of `segment_rows`."""

    segment: int
    seq: int
    type: EntryType
    custom_type: str | None


class BranchPlan(Struct, frozen=True):
    """What a commit adds to the index; `homes` has the segment of every new entry, `tips` those that nothing follows."""

    segments: list[NewSegment]
    rows: list[SegmentRow]
    homes: list[int]
    tips: dict[str, int]
    next_segment: int


def parents_outside(entries: Sequence[Node]) -> list[str]:
    """Return the parents that are not in the commit: what must be looked up."""
    inside = {entry.id for entry in entries}
    return list(dict.fromkeys(e.parent_id for e in entries if e.parent_id is not None and e.parent_id not in inside))


def diverges(entries: Sequence[Node], places: Mapping[str, Place]) -> bool:
    """Whether the commit needs more than rows at the ends of segments, so that `plan` needs the paths of its outside parents."""
    parents = [entry.parent_id for entry in entries if entry.parent_id is not None]
    return len(set(parents)) < len(parents) or any(not places[p].is_tip for p in parents_outside(entries))


def plan(entries: Sequence[Node], places: Mapping[str, Place], paths: Mapping[str, Sequence[Node]], next_segment: int) -> BranchPlan:
    """Place the entries of a commit, in order.

    Args:
        places: of every parent outside the commit and, where paths are given, of the parent of each path's last node.
        paths: if the commit `diverges`, of each such parent: itself and what precedes it, newest first, to the newest compaction
            (inclusive) or the root.
    """
    return _Planner(places, paths, next_segment).place_all(entries)


class _Planner:
    def __init__(self, places: Mapping[str, Place], paths: Mapping[str, Sequence[Node]], next_segment: int) -> None:
        self._places = dict(places)
        self._known = {node.id: node for path in paths.values() for node in path}
        self._next = next_segment
        self._segments: list[NewSegment] = []
        self._rows: list[SegmentRow] = []

    def place_all(self, entries: Sequence[Node]) -> BranchPlan:
        homes = [self._place(entry) for entry in entries]
        tips = {entry.id: place.segment for entry in entries if (place := self._places[entry.id]).is_tip}
        return BranchPlan(self._segments, self._rows, homes, tips, self._next)

    def _place(self, entry: Node) -> int:
        parent = None if entry.parent_id is None else self._places[entry.parent_id]
        if entry.parent_id is None or parent is None:
            segment = self._begin([], None)
        elif parent.is_tip:
            segment = parent.segment
            self._places[entry.parent_id] = Place(segment, parent.seq, False)
        else:
            path = self._path(entry.parent_id)
            segment = self._begin(path, path[-1].parent_id)
        self._add(segment, entry)
        self._known[entry.id] = entry
        self._places[entry.id] = Place(segment, entry.seq, True)
        return segment

    def _begin(self, path: Sequence[Node], before: str | None) -> int:
        segment = self._next
        self._next += 1
        base = None if before is None else self._places[before]
        self._segments.append(NewSegment(segment, base.segment if base else None, base.seq if base else None))
        for node in reversed(path):
            self._add(segment, node)
        return segment

    def _add(self, segment: int, node: Node) -> None:
        self._rows.append(SegmentRow(segment, node.seq, node.type, node.custom_type))

    def _path(self, id: str) -> list[Node]:
        path = [self._known[id]]
        while path[-1].type != "compaction" and path[-1].parent_id is not None:
            path.append(self._known[path[-1].parent_id])
        return path
