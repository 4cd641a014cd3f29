"""Find the passages that an edit names and replace them, leaving every other byte of the file alone.

The file is seen as text with `\\n` line ends and without its byte-order mark. A passage is searched as it is and, if it is not there, in a
normalised copy: NFKC, quotes and dashes made ASCII, special spaces made plain, spaces at line ends dropped. There is no guessing: no
similarity, no tolerance for indentation. A passage must be unique, counted in the normalised copy. All passages are searched in the
original, so edits do not see each other.

What is found is mapped back to the original characters. Inside a replaced passage, lines that old and new text share keep
their original bytes; a new line break is written as the line where the replacement starts ends.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import islice, pairwise

from laneway.errors import ToolError
from laneway.tools._truncate import printable

BOM = "\ufeff"
_BLANKS = " \t\f\v"
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_LISTED = 10  # places of an ambiguous passage that are named
_COUNTED = 1000  # and that are counted
_HINT_SIZE = 8 << 20  # in a larger file it would take seconds to find out why a passage is not there
_ALIGN_PAIRS = 100_000  # equal pairs of lines; past that only the lines shared at both ends are recognised

_PUNCTUATION = str.maketrans(dict.fromkeys("‘’‚‛", "'") | dict.fromkeys("“”„‟", '"') | dict.fromkeys("‐‑‒–—―−", "-") | dict.fromkeys(_SPACES, " "))
_BREAK = re.compile(r"\r\n|\r|\n")


@dataclass(kw_only=True, frozen=True, slots=True)
class Edit:
    """Replace `old_text`, which must be in the file exactly once, by `new_text`."""

    old_text: str
    new_text: str


@dataclass(kw_only=True, frozen=True, slots=True)
class Span:
    """One replacement: the characters `start:end` of the original become `text`."""

    start: int
    end: int
    text: str


@dataclass(kw_only=True, frozen=True, slots=True)
class Edited:
    """The outcome: the new text, what was replaced in order of position, and whether any passage was found only by normalising."""

    text: str
    spans: list[Span]
    fuzzy: bool


@dataclass(kw_only=True, frozen=True, slots=True)
class _Match:
    """A passage found at `start:end` of the text or, with `normal`, of the normalised copy.

    `first_blanks` and `last_blanks`: the passage also covers the blanks at the end of its first and last line.
    """

    start: int
    end: int
    normal: bool
    first_blanks: bool = False
    last_blanks: bool = False


@dataclass(kw_only=True, frozen=True, slots=True)
class _Range:
    """Where a passage is in the original. `lead` and `tail` are what a character that is only half replaced leaves over."""

    start: int
    end: int
    first_line: int
    lead: str = ""
    tail: str = ""


def apply_edits(original: str, edits: list[Edit], shown: str, check: Callable[[], None] = lambda: None) -> Edited:
    """Apply all edits to `original` or none: `ToolError` names the edit that cannot be applied and why. `shown` is the path to name.

    `check` is called between the steps and may raise.
    """
    source = _Source(original)
    wanted = [Edit(old_text=_clean(edit.old_text), new_text=_clean(edit.new_text)) for edit in edits]
    for index, edit in enumerate(wanted):
        if not edit.old_text:
            raise ToolError(f"{_which(index, edits)}old_text is empty: give the text to replace, or use write to make a whole file ({shown})")
    fuzzy = any(edit.old_text not in source.text for edit in wanted)
    ranges: list[_Range] = []
    for index, edit in enumerate(wanted):
        check()
        matches = source.find(edit.old_text)
        found = list(islice(matches, _COUNTED))
        if not found:
            raise ToolError(f"{_which(index, edits)}{_missing(source, edit, shown)}")
        if len(found) > 1:
            raise ToolError(f"{_which(index, edits)}{_ambiguous(source, found, shown)}")
        place = source.locate(found[0])
        ranges.append(place if fuzzy else source.exactly(edit.old_text, place))
    _refuse_overlap(ranges, shown)
    spans = [_span(source, place, edit) for place, edit in zip(ranges, wanted, strict=True)]
    spans.sort(key=lambda span: span.start)
    text = _replace(original, spans)
    if text == original:
        raise ToolError(f"Nothing would change in {shown}: new_text is the same as what is there. Was this edit made before?")
    return Edited(text=text, spans=spans, fuzzy=fuzzy)


def normalise(text: str) -> str:
    """Return the normalised form of a line or of a part of it; blanks at its end are kept."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text).translate(_PUNCTUATION)


class _Source:
    """A file's text and the views of it that passages are searched in."""

    def __init__(self, original: str) -> None:
        self.original = original
        self.skipped = len(BOM) if original.startswith(BOM) else 0
        body = original[self.skipped :]
        self.text = _BREAK.sub("\n", body) if "\r" in body else body

    @cached_property
    def normal(self) -> str:
        """The normalised copy."""
        return "\n".join(normalise(line).rstrip(_BLANKS) for line in self.text.split("\n"))

    @cached_property
    def starts(self) -> list[int]:
        """The offset of each line's first character in the original."""
        return [self.skipped, *(match.end() for match in _BREAK.finditer(self.original, self.skipped))]

    @cached_property
    def text_starts(self) -> list[int]:
        """The offset of each line's first character in `text`."""
        return _line_starts(self.text)

    @cached_property
    def normal_starts(self) -> list[int]:
        """The offset of each line's first character in `normal`."""
        return _line_starts(self.normal)

    def find(self, passage: str) -> Iterator[_Match]:
        """Yield where `passage` is, overlapping occurrences too, counted in the normalised copy.

        Blanks at the end of the passage are either in the middle of a line, where they count, or at a line's end, where they do not.
        A passage that is nothing but blanks and line breaks, or that splits an accent from its letter, is counted in the text itself.
        """
        found = False
        for match in self._find_normal(passage):
            found = True
            yield match
        if not found:
            yield from (_Match(start=at, end=at + len(passage), normal=False) for at in _find_all(self.text, passage))

    def _find_normal(self, passage: str) -> Iterator[_Match]:
        lines = [normalise(line) for line in passage.split("\n")]
        inner = [line.rstrip(_BLANKS) for line in lines[:-1]]
        blanks = len(lines) > 1 and not inner[0] and bool(lines[0])
        written, bare = "\n".join([*inner, lines[-1]]), "\n".join([*inner, lines[-1].rstrip(_BLANKS)])
        if not bare.strip("\n"):
            return
        for at in _find_all(self.normal, written):
            yield _Match(start=at, end=at + len(written), normal=True, first_blanks=blanks)
        for at in _find_all(self.normal, bare) if written != bare else ():
            end = at + len(bare)
            if end == len(self.normal) or self.normal.startswith("\n", end):
                yield _Match(start=at, end=end, normal=True, first_blanks=blanks, last_blanks=True)

    def locate(self, match: _Match) -> _Range:
        """Return where a match is in the original."""
        starts = self.normal_starts if match.normal else self.text_starts
        first, last = bisect_right(starts, match.start) - 1, bisect_right(starts, match.end) - 1
        begin, stop = match.start - starts[first], match.end - starts[last]
        if not match.normal:
            return _Range(start=self.starts[first] + begin, end=self.starts[last] + stop, first_line=first)
        start, lead = self._start_column(first, begin, match.first_blanks)
        end, tail = self._end_column(last, stop, match.last_blanks)
        return _Range(start=self.starts[first] + start, end=self.starts[last] + end, first_line=first, lead=lead, tail=tail)

    def exactly(self, passage: str, place: _Range) -> _Range:
        """Return where the passage is letter by letter if that is in `place`, which can have more blanks at its ends."""
        for at in _find_all(self.text, passage):
            exact = self.locate(_Match(start=at, end=at + len(passage), normal=False))
            if place.start <= exact.start and exact.end <= place.end:
                return exact
        return place

    def line(self, index: int) -> str:
        """Return a line of the original without its ending."""
        return self.original[self.starts[index] : self._content_end(index)]

    def ending(self, index: int) -> str:
        """Return how a line of the original ends; for the last line, how the line before does."""
        while index >= 0:
            stop = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.original)
            if ending := self.original[self._content_end(index) : stop]:
                return ending
            index -= 1
        return "\n"

    def line_number(self, match: _Match) -> int:
        """Return the 1-based number of the line where a match starts."""
        return bisect_right(self.normal_starts if match.normal else self.text_starts, match.start)

    def _content_end(self, index: int) -> int:
        stop = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.original)
        if stop > self.starts[index] and self.original[stop - 1] in "\r\n":
            stop -= 2 if self.original.endswith("\r\n", self.starts[index], stop) else 1
        return stop

    def _normal_length(self, index: int) -> int:
        stop = self.normal_starts[index + 1] - 1 if index + 1 < len(self.normal_starts) else len(self.normal)
        return stop - self.normal_starts[index]

    def _start_column(self, index: int, column: int, blanks: bool) -> tuple[int, str]:
        """Return where in a line a match starts, and what of a half replaced character stays before it."""
        line = self.line(index)
        if column == self._normal_length(index):  # at the line's end: its blanks, which the copy lacks, belong to the match or do not
            return (len(line.rstrip(_BLANKS + _SPACES)) if blanks else len(line)), ""
        for start, _, text in _clusters(line):
            if column < len(text):
                return start, text[:column]
            column -= len(text)
        return len(line), ""

    def _end_column(self, index: int, column: int, blanks: bool) -> tuple[int, str]:
        """Return where in a line a match ends, and what of a half replaced character stays after it."""
        line = self.line(index)
        if blanks:
            return len(line), ""
        if not column:
            return 0, ""
        for _, end, text in _clusters(line):
            if column <= len(text):
                return end, text[column:]
            column -= len(text)
        return len(line), ""


def _clean(text: str) -> str:
    """Return what a model wrote as text that can be stored, with `\\n` line ends and no byte-order mark."""
    return _BREAK.sub("\n", printable(text)).removeprefix(BOM)


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


def _find_all(text: str, passage: str) -> Iterator[int]:
    at = text.find(passage)
    while at >= 0:
        yield at
        at = text.find(passage, at + 1)


def _clusters(line: str) -> list[tuple[int, int, str]]:
    """Cut a line into pieces that are normalised independently: start, end, normalised text."""
    if line.isascii():
        return [(at, at + 1, char) for at, char in enumerate(line)]
    cuts = [at for at, char in enumerate(line) if at == 0 or not _joins(char)]
    pieces = [(start, end, normalise(line[start:end])) for start, end in zip(cuts, [*cuts[1:], len(line)], strict=True)]
    whole = normalise(line)
    return pieces if "".join(text for _, _, text in pieces) == whole else [(0, len(line), whole)]


def _joins(char: str) -> bool:
    """Return whether a character can melt into the one before it: combining marks, Hangul vowels and finals."""
    return unicodedata.combining(char) != 0 or "\u1160" <= char <= "\u11ff" or unicodedata.category(char).startswith("M")


def _span(source: _Source, place: _Range, edit: Edit) -> Span:
    """Return the replacement for one edit, with the original bytes of the lines that old and new text share."""
    old, new = edit.old_text.split("\n"), edit.new_text.split("\n")
    new[0] = place.lead + new[0]
    new[-1] += place.tail
    kept = _original_lines(source, place, len(old))
    pieces: list[tuple[str, str]] = []  # a line and its ending; the last ending is not used
    same = [] if place.lead or place.tail else _shared_blocks(old, new)
    before_old = before_new = 0
    for at_old, at_new, size in [*same, (len(old), len(new), 0)]:
        style_of = before_old if at_old > before_old or not before_old else before_old - 1
        style = source.ending(place.first_line + style_of)
        pieces += [(line, style) for line in new[before_new:at_new]]
        for index in range(at_old, at_old + size):
            pieces.append((kept[index], source.ending(place.first_line + index)))
        before_old, before_new = at_old + size, at_new + size
    text = "".join(line + ending for line, ending in pieces[:-1]) + pieces[-1][0]
    return Span(start=place.start, end=place.end, text=text)


def _original_lines(source: _Source, place: _Range, count: int) -> list[str]:
    """Return the lines of a range without endings, as many as the passage has."""
    lines: list[str] = []
    for index in range(place.first_line, place.first_line + count):
        start = source.starts[index]
        line = source.line(index)
        lines.append(source.original[max(start, place.start) : min(start + len(line), place.end)])
    return lines


def _shared_blocks(old: list[str], new: list[str]) -> list[tuple[int, int, int]]:
    """Return runs of lines that are the same in both, as start in `old`, start in `new` and length, in order."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    blocks = [(0, 0, head)] if head else []
    middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    if alignable(middle_old, middle_new):
        matcher = SequenceMatcher(None, middle_old, middle_new, autojunk=False)
        blocks += [(head + block.a, head + block.b, block.size) for block in matcher.get_matching_blocks() if block.size]
    if tail:
        blocks.append((len(old) - tail, len(new) - tail, tail))
    return blocks


def alignable(old: list[str], new: list[str]) -> bool:
    """Return whether aligning two runs of lines is cheap enough: the work grows with the number of equal pairs."""
    olds, news = Counter(old), Counter(new)
    return sum(count * news[line] for line, count in olds.items()) <= _ALIGN_PAIRS


def _replace(original: str, spans: list[Span]) -> str:
    pieces: list[str] = []
    at = 0
    for span in spans:
        pieces += [original[at : span.start], span.text]
        at = span.end
    return "".join([*pieces, original[at:]])


def _refuse_overlap(ranges: list[_Range], shown: str) -> None:
    order = sorted(range(len(ranges)), key=lambda index: ranges[index].start)
    for left, right in pairwise(order):
        if ranges[right].start < ranges[left].end:
            first, second = sorted((left + 1, right + 1))
            raise ToolError(f"Edit {first} and edit {second} overlap in {shown}: nothing was changed. Merge them into one edit")


def _which(index: int, edits: list[Edit]) -> str:
    return f"Edit {index + 1} of {len(edits)}: " if len(edits) > 1 else ""


def _ambiguous(source: _Source, found: list[_Match], shown: str) -> str:
    lines = ", ".join(str(number) for number in dict.fromkeys(source.line_number(match) for match in found[:_LISTED]))
    times = f"{len(found)} times" if len(found) < _COUNTED else f"{_COUNTED} times or more"
    return (
        f"old_text is in {shown} {times} (lines {lines}{', …' if len(found) > _LISTED else ''}) and must be unique: nothing was changed. "
        "Add lines around it until it is"
    )


def _missing(source: _Source, edit: Edit, shown: str) -> str:
    """Return the error text for a passage that is not there, with the likeliest reason."""
    text = f"old_text was not found in {shown}: nothing was changed. "
    if len(source.text) > _HINT_SIZE:
        return f"{text}Read the place again and copy the text exactly, without line numbers"
    lines = source.normal.split("\n")
    wanted = [_squeezed(line) for line in normalise(edit.old_text).strip().split("\n")]
    squeezed = [_squeezed(line) for line in lines]
    heads = [index for index, line in enumerate(squeezed) if line == wanted[0]] if wanted[0] else []
    for index in heads:
        if squeezed[index : index + len(wanted)] == wanted:
            where = f"Line {index + 1} is" if len(wanted) == 1 else f"Lines {index + 1}-{index + len(wanted)} are"
            return f"{text}{where} the same but for spaces or indentation: copy the text exactly as read shows it"
    if edit.new_text.strip() and edit.new_text in source.text:
        line = source.text.count("\n", 0, source.text.index(edit.new_text)) + 1
        return f"{text}new_text is already there (line {line}): was this edit made before?"
    if heads and len(wanted) > 1:
        numbers = ", ".join(str(index + 1) for index in heads[:5])
        return f"{text}Its first line is there (line {numbers}) but the lines after it differ: read the file again and copy the text exactly"
    return f"{text}Read the file again and copy the text exactly, without line numbers"


def _squeezed(line: str) -> str:
    return "".join(line.split())
