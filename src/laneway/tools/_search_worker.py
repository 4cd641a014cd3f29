"""The search program that stands in for ripgrep where it is not installed: started as a process of its own, so that a pattern that takes for
ever can be ended and cannot stop the event loop.

It prints what `rg --null --line-number --column --no-heading` prints: `path NUL line:column:text` for a match, `path NUL line-text` for a
line of context, and one line to standard error for each file or directory that could not be read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from laneway.tools._globs import POSIX_CLASSES, PathFilter
from laneway.tools._ignore import Walk
from laneway.tools._lines import blocks, encoding_of

MAX_CPU_SECONDS = 600
_HEAD = 64 * 1024
_LONGEST_LINE = 16 << 20  # a longer line is searched in pieces
_CROSSES_LINES = re.compile(r"\\[sWDAZ]|\[\^|\(\?(?!:|i\)|P<)|\n")


def compile_pattern(pattern: str, *, literal: bool, ignore_case: bool) -> re.Pattern[str]:
    """Return the pattern as Python's; raises `re.error`. Classes such as `[[:alpha:]]` are understood."""
    translated = re.escape(pattern) if literal else re.sub(r"\[:(\w+):\]", lambda match: POSIX_CLASSES.get(match[1], match[0]), pattern)
    return re.compile(translated, re.MULTILINE | (re.IGNORECASE if ignore_case else 0))


@dataclass(kw_only=True, frozen=True, slots=True)
class Search:
    """What to look for."""

    pattern: str
    literal: bool
    ignore_case: bool
    context: int
    glob: str | None
    file: str | None


class Searcher:
    """Searches files and prints what it finds to `out`, what it cannot read to `errors`."""

    def __init__(self, search: Search, out: BinaryIO, errors: BinaryIO) -> None:
        self._regex = compile_pattern(search.pattern, literal=search.literal, ignore_case=search.ignore_case)
        self._line_by_line = not search.literal and _CROSSES_LINES.search(search.pattern) is not None
        self._search, self._out, self._errors = search, out, errors

    def run(self) -> None:
        """Search the working directory, or the one file in it that is asked for."""
        if self._search.file is not None:
            return self._file(self._search.file, os.fsencode(self._search.file), explicit=True)
        wanted = None if self._search.glob is None else PathFilter(self._search.glob)
        walk = Walk(".", lambda: None)
        for entry in walk:
            if entry.is_file and (wanted is None or wanted.fits(entry.parts)):
                self._file(entry.path, os.fsencode("/".join(entry.parts)), explicit=False)
        for path in walk.unreadable:
            self._complain(os.fsencode(path), "Permission denied (os error 13)")
        return None

    def _complain(self, shown: bytes, what: str) -> None:
        self._errors.write(shown + b": " + what.encode() + b"\n")

    def _file(self, path: str, shown: bytes, *, explicit: bool) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if explicit else os.O_NOFOLLOW))
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOENT, errno.ENXIO):
                self._complain(shown, f"{error.strerror} (os error {error.errno})")
            return
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                self._open_file(fd, shown, explicit)
        except OSError as error:
            self._complain(shown, f"{error.strerror} (os error {error.errno})")
        finally:
            os.close(fd)

    def _open_file(self, fd: int, shown: bytes, explicit: bool) -> None:
        head = os.pread(fd, _HEAD, 0)
        encoding = encoding_of(head)
        if encoding == "utf-8" and b"\0" in head and not explicit:
            return
        printer = _Printer(self._out, shown, self._search.context)
        for text in _texts(fd, encoding, stop_at_nul=not explicit):
            matches = self._by_line(text) if self._line_by_line else self._by_block(text)
            printer.take(text, matches)

    def _by_line(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield index and column of the first match in each line that has one."""
        for index, line in enumerate(text.removesuffix("\n").split("\n")):
            match = self._regex.search(line)
            if match is not None:
                yield index, match.start()

    def _by_block(self, text: str) -> Iterator[tuple[int, int]]:
        """Do the same faster, by letting the pattern run over many lines at once and checking the line where it stops."""
        at = index = counted = 0
        while at < len(text) and (rough := self._regex.search(text, at)) is not None:
            start = text.rfind("\n", 0, rough.start()) + 1
            stop = text.find("\n", rough.start())
            stop = len(text) if stop < 0 else stop
            if start == len(text):
                return
            index += text.count("\n", counted, start)
            counted = start
            exact = self._regex.search(text[start:stop])
            if exact is not None:
                yield index, exact.start()
            at = stop + 1


class _Printer:
    """Prints the matches of one file with the lines around them."""

    def __init__(self, out: BinaryIO, shown: bytes, context: int) -> None:
        self._out, self._shown, self._context = out, shown, context
        self._first = 1  # number of the first line of the text at hand
        self._before: deque[str] = deque(maxlen=context)  # the last lines that were not printed
        self._after = 0  # how many more lines follow a match

    def take(self, text: str, matches: Iterator[tuple[int, int]]) -> None:
        """Take the next lines of the file and where the matches are in them."""
        found = dict(matches)
        count = text.count("\n") + (not text.endswith("\n"))
        lines = text.removesuffix("\n")
        if found or self._after:
            self._print(lines.split("\n"), found)
        elif self._context:
            self._before.extend(lines.rsplit("\n", self._context)[-self._context :])
        self._first += count

    def _print(self, lines: list[str], found: dict[int, int]) -> None:
        if not self._context:
            for index, column in found.items():
                self._match(self._first + index, column, lines[index])
            return
        for number, line in enumerate(lines, self._first):
            column = found.get(number - self._first)
            if column is not None:
                for earlier, text in enumerate(self._before, number - len(self._before)):
                    self._write(f"{earlier}-{text}")
                self._before.clear()
                self._match(number, column, line)
                self._after = self._context
            elif self._after:
                self._write(f"{number}-{line}")
                self._after -= 1
            else:
                self._before.append(line)

    def _match(self, number: int, column: int, line: str) -> None:
        self._write(f"{number}:{len(line[:column].encode()) + 1}:{line}")

    def _write(self, record: str) -> None:
        self._out.write(self._shown + b"\0" + record.encode() + b"\n")


def _texts(fd: int, encoding: str, *, stop_at_nul: bool) -> Iterator[str]:
    """Yield a file as text, whole lines at a time with `\\n` line ends."""
    rest = b""
    for block in blocks(fd, encoding, lambda: None):
        nul = block.find(b"\0") if stop_at_nul else -1
        data = rest + (block if nul < 0 else block[:nul])
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > _LONGEST_LINE:
            cut = len(data)
        rest = data[cut:]
        if cut:
            yield _text(data[:cut])
        if nul >= 0:
            return
    if rest:
        yield _text(rest)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n")


def main(arguments: dict[str, Any]) -> None:
    """Search in the working directory; `arguments` are the fields of `Search`."""
    search = Search(**arguments)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))  # a pattern that explodes must end even if nobody ends it
    try:
        Searcher(search, sys.stdout.buffer, sys.stderr.buffer).run()
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)  # nobody reads any more
