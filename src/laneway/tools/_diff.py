"""What an edit changed, as lines for a person and as a patch for a program, worked out around the changes only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from laneway.tools._edit_match import Span, alignable

_CONTEXT = 4


@dataclass(kw_only=True, frozen=True, slots=True)
class Diff:
    """`diff` shows numbered lines (` 12 same`, `-13 old`, `+13 new`), `patch` is a unified diff; the first changed line counts from 1."""

    diff: str
    patch: str
    first_changed_line: int


@dataclass(kw_only=True, slots=True)
class _Hunk:
    """Lines `old_start:old_stop` of the old text (from 0) and the same place in the new one: lines with their endings and a tag, ` `, `-` or `+`."""

    old_start: int
    new_start: int
    lines: list[tuple[str, str]]


def diff_of(old: str, new: str, spans: Sequence[Span], path: str) -> Diff:
    """Return the difference that replacing `spans` (sorted, not overlapping) in `old` made."""
    old_starts, new_starts = _starts(old), _starts(new)
    hunks: list[_Hunk] = []
    for old_from, old_to, new_from, new_to in _regions(old, new, spans, old_starts, new_starts):
        old_lines, new_lines = _lines(old, old_starts, old_from, old_to), _lines(new, new_starts, new_from, new_to)
        hunks += _hunks(old_lines, new_lines, old_from, new_from)
    return Diff(diff=_numbered(hunks), patch=_unified(hunks, path), first_changed_line=_first_change(hunks))


def whole_diff(old: str, new: str, path: str) -> Diff:
    """Return the difference between two whole texts."""
    return diff_of(old, new, [Span(start=0, end=len(old), text=new)], path)


def _regions(old: str, new: str, spans: Sequence[Span], old_starts: list[int], new_starts: list[int]) -> list[tuple[int, int, int, int]]:
    """Return the line ranges to compare, old and new: the lines of each span with context, merged where they touch."""
    regions: list[tuple[int, int, int, int]] = []
    moved = 0
    for span in spans:
        new_at = span.start + moved
        moved += len(span.text) - (span.end - span.start)
        old_first, old_last = _line_at(old_starts, span.start), _line_at(old_starts, span.end)
        new_first, new_last = _line_after(new, new_starts, new_at), _line_after(new, new_starts, new_at + len(span.text))
        before = min(_CONTEXT, old_first, new_first)
        after = max(0, min(_CONTEXT, len(old_starts) - 1 - old_last, len(new_starts) - 1 - new_last))
        region = (old_first - before, old_last + 1 + after, new_first - before, new_last + 1 + after)
        if regions and region[0] <= regions[-1][1]:
            last = regions.pop()
            region = (last[0], max(last[1], region[1]), last[2], max(last[3], region[3]))
        regions.append(region)
    return regions


def _hunks(old: list[str], new: list[str], old_from: int, new_from: int) -> list[_Hunk]:
    hunks: list[_Hunk] = []
    if old == new:
        return hunks
    for group in _aligned(old, new) if alignable(old, new) else [_coarse(old, new)]:
        hunk = _Hunk(old_start=old_from + group[0][1], new_start=new_from + group[0][3], lines=[])
        for tag, old_at, old_to, new_at, new_to in group:
            if tag == "equal":
                hunk.lines += [(" ", line) for line in old[old_at:old_to]]
            else:
                hunk.lines += [("-", line) for line in old[old_at:old_to]]
                hunk.lines += [("+", line) for line in new[new_at:new_to]]
        hunks.append(hunk)
    return hunks


def _aligned(old: list[str], new: list[str]) -> list[list[tuple[str, int, int, int, int]]]:
    return [list(group) for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT)]


def _coarse(old: list[str], new: list[str]) -> list[tuple[str, int, int, int, int]]:
    """Return one change between the lines that both begin and both end with, with context."""
    head, shortest = 0, min(len(old), len(new))
    while head < shortest and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shortest - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    before, after = min(head, _CONTEXT), min(tail, _CONTEXT)
    old_stop, new_stop = len(old) - tail, len(new) - tail
    return [
        ("equal", head - before, head, head - before, head),
        ("replace", head, old_stop, head, new_stop),
        ("equal", old_stop, old_stop + after, new_stop, new_stop + after),
    ]


def _numbered(hunks: list[_Hunk]) -> str:
    last = max((hunk.old_start + len(hunk.lines) for hunk in hunks), default=0)
    width = len(str(max(last, *(hunk.new_start + len(hunk.lines) for hunk in hunks)) if hunks else 0))
    shown: list[str] = []
    for index, hunk in enumerate(hunks):
        if index or hunk.old_start:
            shown.append(f" {'':>{width}} ...")
        old_number, new_number = hunk.old_start + 1, hunk.new_start + 1
        for tag, line in hunk.lines:
            number = new_number if tag == "+" else old_number
            shown.append(f"{tag}{number:>{width}} {line.rstrip(chr(13) + chr(10))}")
            old_number += tag != "+"
            new_number += tag != "-"
    return "\n".join(shown)


def _unified(hunks: list[_Hunk], path: str) -> str:
    out = [f"--- a/{path}\n", f"+++ b/{path}\n"]
    for hunk in hunks:
        olds, news = sum(tag != "+" for tag, _ in hunk.lines), sum(tag != "-" for tag, _ in hunk.lines)
        out.append(f"@@ -{hunk.old_start + (olds > 0)},{olds} +{hunk.new_start + (news > 0)},{news} @@\n")
        for tag, line in hunk.lines:
            out.append(f"{tag}{line}" if line.endswith("\n") else f"{tag}{line}\n\\ No newline at end of file\n")
    return "".join(out)


def _first_change(hunks: list[_Hunk]) -> int:
    for hunk in hunks:
        number = hunk.new_start + 1
        for tag, _ in hunk.lines:
            if tag != " ":
                return number
            number += 1
    return 1


def _starts(text: str) -> list[int]:
    """Return where each line begins; a text that ends with a newline has no empty line after it."""
    starts = [0]
    at = text.find("\n")
    while 0 <= at < len(text) - 1:
        starts.append(at + 1)
        at = text.find("\n", at + 1)
    return starts


def _line_at(starts: list[int], at: int) -> int:
    return bisect_right(starts, at) - 1


def _line_after(text: str, starts: list[int], at: int) -> int:
    """Return the line that begins or goes on at `at`: after the newline that ends a text, the one that would follow."""
    return len(starts) if at == len(text) and text.endswith("\n") else _line_at(starts, at)


def _lines(text: str, starts: list[int], first: int, stop: int) -> list[str]:
    ends = [*starts[1:], len(text)]
    return [line for start, end in zip(starts[first:stop], ends[first:stop], strict=True) if (line := text[start:end])]
