"""Run a search program and turn what it prints into what a model reads, in bounded memory.

The program is ripgrep or the one in `_search_worker`; both print the same records. Nothing is kept of a line but the part around the
match, and the program is ended as soon as one match more than wanted is seen.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field

from laneway.tools._globs import ANY_DEPTH, PathFilter
from laneway.tools._ignore import DRAFT
from laneway.tools._process import Control
from laneway.tools._truncate import MAX_BYTES, one_line_name, size_of

LINE_LIMIT = 500  # characters shown of one line
_BEFORE_MATCH = 150  # characters shown before the match in a shortened line
_KEEP = 4 * LINE_LIMIT + 16  # bytes that hold that many characters
_MAX_ERRORS = 64 * 1024
_START_WORKER = """
import json, sys, types
for name, path in (("laneway", []), ("laneway.tools", [sys.argv[1]])):  # stand-ins: importing the real ones takes longer than most searches
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
from laneway.tools import _search_worker
_search_worker.main(json.loads(sys.argv[2]))
"""
_HEADER = re.compile(rb"([^\0]*)\0(\d+)(?:-|:(\d+):)", re.DOTALL)
_MAX_HEADER = 16 * 1024


@dataclass(kw_only=True, frozen=True, slots=True)
class Query:
    """What to search for: `directory` is searched, or only the entry `file` of it."""

    pattern: str
    directory: str
    file: str | None
    glob: str | None
    literal: bool
    ignore_case: bool
    context: int
    limit: int


@dataclass(slots=True)
class Record:
    """One printed line: where it is, whether it is a match, its text (shortened around the match) and whether it was shortened."""

    path: str
    number: int
    is_match: bool
    text: str
    shortened: bool


def ripgrep_command(program: str, query: Query, prefilter: str | None) -> list[str]:
    """Return the command for ripgrep; `prefilter` is a file of ignore rules that leaves only what the glob wants."""
    return [
        program,
        "--no-config",
        "--color=never",
        "--no-heading",
        "--with-filename",
        "--line-number",
        "--column",
        "--null",
        "--hidden",
        "--no-require-git",
        "--no-ignore-global",
        "--crlf",
        "--sort=path",
        "--glob=!.git",
        f"--glob=!{'*'.join(DRAFT)}",
        *([f"--ignore-file={prefilter}"] if prefilter else []),
        *(["--fixed-strings"] if query.literal else []),
        *(["--text"] if query.file is not None else []),  # whoever names a file wants its matches, not the word that it is binary
        "--ignore-case" if query.ignore_case else "--case-sensitive",
        f"--context={query.context}",
        f"--regexp={query.pattern}",
        "--",
        "./" if query.file is None else f"./{query.file}",
    ]


def worker_command(query: Query) -> list[str]:
    """Return the command for our own search program: this interpreter, with the program's modules and nothing else of the package."""
    fields = {
        "pattern": query.pattern,
        "literal": query.literal,
        "ignore_case": query.ignore_case,
        "context": query.context,
        "glob": query.glob,
        "file": query.file,
    }
    return [sys.executable, "-I", "-S", "-W", "ignore", "-c", _START_WORKER, os.path.dirname(__file__), json.dumps(fields)]


def write_prefilter(glob: PathFilter) -> str | None:
    """Write ignore rules that leave only files that the glob wants; return their path, None if they cannot say it."""
    if not glob.simple:
        return None
    rules = ["*", "!*/"]
    for choice in glob.alternatives:
        name = choice.removeprefix(f"{ANY_DEPTH}/")
        rules.append(f"!{name}" if "/" not in name and name != choice else f"!/{choice}")
    fd, path = tempfile.mkstemp(prefix="laneway-grep-")
    with os.fdopen(fd, "w") as file:
        file.write("\n".join(rules) + "\n")
    return path


@dataclass(slots=True)
class Findings:
    """What a search found, as the lines to show, and what was left out."""

    lines: list[str] = field(default_factory=list[str])
    matches: int = 0
    files: int = 0
    shown_matches: int = 0
    more: bool = False
    over_bytes: bool = False
    shortened: int = 0


class Collector:
    """Takes the program's output and keeps what is to be shown; ends the program when there is enough."""

    def __init__(self, query: Query, control: Control, max_bytes: int = MAX_BYTES) -> None:
        self.findings = Findings()
        self.errors = bytearray()
        self._query, self._control, self._max_bytes = query, control, max_bytes
        self._wanted = None if query.glob is None else PathFilter(query.glob)
        self._record = _PartialRecord()
        self._size = 0
        self._last: tuple[str, int] | None = None  # file and number of the last line shown or counted
        self._last_match: tuple[str, int] | None = None
        self._waiting: list[Record] = []  # context that belongs to a match that is still to come

    def feed(self, chunk: bytes) -> None:
        """Take a chunk of standard output."""
        at = 0
        while at < len(chunk) and not self.findings.more:
            stop = chunk.find(b"\n", at)
            self._record.add(chunk[at : stop if stop >= 0 else len(chunk)])
            if stop < 0:
                return
            at = stop + 1
            if self._record.in_path:  # a name can have line breaks
                self._record.add(b"\n")
                continue
            record = self._record.finish()
            self._record = _PartialRecord()
            if record is not None:
                self._take(record)

    def feed_error(self, chunk: bytes) -> None:
        """Take a chunk of standard error."""
        self.errors += chunk[: max(0, _MAX_ERRORS - len(self.errors))]

    def _take(self, record: Record) -> None:
        if self._wanted is not None and not self._wanted.fits(record.path.split("/")):
            return
        if not record.is_match:
            self._take_context(record)
            return
        if self.findings.matches == self._query.limit:
            self.findings.more = True
            self._control.end("enough")
            return
        self.findings.matches += 1
        if self._last_match is None or self._last_match[0] != record.path:
            self.findings.files += 1
        self._last_match = (record.path, record.number)
        for line in self._waiting:
            if line.path == record.path:
                self._show(line)
        self._waiting.clear()
        self._show(record)

    def _take_context(self, record: Record) -> None:
        """Show context that follows a match; what comes before one waits until it is known to be wanted."""
        last = self._last_match
        if last is not None and last[0] == record.path and record.number <= last[1] + self._query.context:
            self._show(record)
        else:
            self._waiting = [*self._waiting[-self._query.context + 1 :], record] if self._query.context > 1 else [record]

    def _show(self, record: Record) -> None:
        if self.findings.over_bytes:
            return
        mark = ":" if record.is_match else "-"
        lines = [f"{one_line_name(record.path)}{mark}{record.number}{mark} {record.text}"]
        if self._query.context and self._last is not None and self._last != (record.path, record.number - 1):
            lines.insert(0, "--")
        size = sum(size_of(line) + 1 for line in lines)
        if self._size + size > self._max_bytes:
            self.findings.over_bytes = True
            return
        self._size += size
        self._last = (record.path, record.number)
        self.findings.lines += lines
        self.findings.shortened += record.shortened
        self.findings.shown_matches += record.is_match


class _PartialRecord:
    """A record that is still arriving; keeps its header and the part of the text around the match."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._header: tuple[bytes, int, int | None] | None = None
        self._text = bytearray()
        self._from = 0  # where in the line `_text` begins
        self._length = 0  # of the line, as far as it has arrived

    @property
    def in_path(self) -> bool:
        """Whether the end of the file's name has not arrived yet."""
        return self._header is None and b"\0" not in self._head

    def add(self, piece: bytes) -> None:
        """Take the next part."""
        if self._header is None:
            self._head += piece[: _MAX_HEADER + _KEEP]
            if len(self._head) < _MAX_HEADER:
                return
            rest = piece[_MAX_HEADER + _KEEP :]
            self._parse()
            self._grow(rest)
        else:
            self._grow(piece)

    def finish(self) -> Record | None:
        """Return the record, None if it is none (a separator, a message)."""
        if self._header is None:
            self._parse()
        if self._header is None or not self._header[0]:
            return None
        path, number, column = self._header
        text, shortened = self._shown_text(0 if column is None else column - 1)
        name = os.fsdecode(path.removeprefix(b"./"))
        return Record(path=name, number=number, is_match=column is not None, text=text, shortened=shortened)

    def _parse(self) -> None:
        match = _HEADER.match(self._head)
        if match is None:
            self._header = (b"", 0, None)
            return
        path = match[1].rpartition(b"\n./")[2]  # a separator or a message on a line of its own can have come before it
        self._header = (path, int(match[2]), int(match[3]) if match[3] else None)
        self._from = max(0, (self._header[2] or 1) - 1 - 4 * _BEFORE_MATCH)
        self._grow(bytes(self._head[match.end() :]))
        self._head.clear()

    def _grow(self, piece: bytes) -> None:
        start, stop = self._length, self._length + len(piece)
        self._length = stop
        low, high = max(start, self._from), min(stop, self._from + _KEEP)
        if low < high:
            self._text += piece[low - start : high - start]

    def _shown_text(self, column: int) -> tuple[str, bool]:
        """Return the text of the line, shortened around the byte `column` if it is long."""
        raw = bytes(self._text)
        to_end = self._from + len(raw) == self._length
        if to_end:
            raw = raw.removesuffix(b"\r")
        skipped = 0
        while self._from and skipped < len(raw) and raw[skipped] & 0xC0 == 0x80:
            skipped += 1
        text = raw[skipped:].decode("utf-8", "replace").replace("\0", "\ufffd").replace("\r", "\ufffd")
        if to_end and not self._from and len(text) <= LINE_LIMIT:
            return text, False
        at = len(raw[skipped : max(skipped, column - self._from)].decode("utf-8", "replace"))
        start = max(0, at - _BEFORE_MATCH) if at + LINE_LIMIT - _BEFORE_MATCH > LINE_LIMIT else 0
        left = "…" if start or self._from else ""
        right = "…" if not to_end or start + LINE_LIMIT - len(left) < len(text) else ""
        return f"{left}{text[start : start + LINE_LIMIT - len(left) - len(right)]}{right}", True
