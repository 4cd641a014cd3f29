"""Read a stretch of lines from a file of any size in constant memory."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_BLOCK = 256 * 1024
_COUNT_ON = 1 << 30  # bytes scanned past the stretch to count the lines that follow; more makes a reader wait for seconds


@dataclass(kw_only=True, frozen=True, slots=True)
class Stretch:
    """Lines `first`, `first + 1`, … of a file (from 1), endings included, as bytes of UTF-8.

    `lines` ends before the first line that did not fit. If that is the very first one, `oversize` is its beginning and
    `oversize_bytes` its size. `total_lines` counts the whole file unless `counted_all` is false. `stopped_by` says what ended the stretch.
    """

    lines: list[bytes]
    oversize: bytes | None
    oversize_bytes: int
    total_lines: int
    counted_all: bool
    stopped_by: str | None


def encoding_of(head: bytes) -> str:
    """Return the encoding that a byte-order mark names: `utf-8` (also without a mark), `utf-16-le` or `utf-16-be`.

    UTF-32 is not told apart: its mark begins like that of `utf-16-le`, and ripgrep takes it for that too.
    """
    if head.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    return "utf-16-be" if head.startswith(codecs.BOM_UTF16_BE) else "utf-8"


def blocks(fd: int, encoding: str, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield a file from its beginning as UTF-8 without a byte-order mark; bytes that are no UTF-8 are passed on as they are."""
    decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)("replace")
    os.lseek(fd, 0, os.SEEK_SET)
    first = True
    while True:
        check()
        raw = os.read(fd, _BLOCK)
        block = raw if decoder is None else decoder.decode(raw, final=not raw).encode()
        if first:
            block = block.removeprefix(codecs.BOM_UTF8)
            first = False
        if block:
            yield block
        if not raw:
            return


def read_stretch(fd: int, encoding: str, first: int, max_lines: int, max_bytes: int, check: Callable[[], None]) -> Stretch:
    """Read from line `first`, at most `max_lines` whole lines and `max_bytes` bytes."""
    reader = _Reader(first, max_lines, max_bytes)
    scanned = 0
    for block in blocks(fd, encoding, check):
        if reader.stopped_by is None:
            reader.feed(block)
        else:
            reader.count(block)
            scanned += len(block)
            if scanned > _COUNT_ON:
                return reader.result(counted_all=False)
    return reader.result(counted_all=True)


class _Reader:
    """Takes a file block by block and keeps the stretch."""

    def __init__(self, first: int, max_lines: int, max_bytes: int) -> None:
        self.first, self.max_lines, self.max_bytes = first, max_lines, max_bytes
        self.breaks = 0  # line breaks seen
        self.open_line = False  # whether bytes came after the last one
        self.lines: list[bytes] = []
        self.size = 0
        self.line = bytearray()  # the beginning of the line being read
        self.line_bytes = 0
        self.oversize: bytes | None = None
        self.oversize_bytes = 0
        self.stopped_by: str | None = None

    def feed(self, block: bytes) -> None:
        """Take one block."""
        at = self._skip(block)
        while at < len(block) and self.stopped_by is None:
            stop = block.find(b"\n", at) + 1
            piece = block[at : stop or len(block)]
            self._grow(piece)
            at += len(piece)
            if stop:
                self.breaks += 1
                self._end_line()
        self.open_line = not block.endswith(b"\n")
        self.count(block[at:])

    def count(self, block: bytes) -> None:
        """Take one block after the stretch: only its line breaks matter, and the end of an oversize line."""
        if not block:
            return
        if self.oversize is not None and self.line_bytes:
            stop = block.find(b"\n") + 1
            self.line_bytes += stop or len(block)
            self.oversize_bytes = self.line_bytes - (1 if stop else 0)
            if stop:
                self.line_bytes = 0
        self.breaks += block.count(b"\n")
        self.open_line = not block.endswith(b"\n")

    def result(self, *, counted_all: bool) -> Stretch:
        """Return what was read."""
        if self.stopped_by is None and self.line_bytes:
            self._end_line()
        return Stretch(
            lines=self.lines,
            oversize=self.oversize,
            oversize_bytes=self.oversize_bytes,
            total_lines=self.breaks + self.open_line,
            counted_all=counted_all,
            stopped_by=self.stopped_by,
        )

    def _skip(self, block: bytes) -> int:
        """Return where in the block the stretch goes on; count the breaks before it."""
        missing = self.first - 1 - self.breaks
        if missing <= 0:
            return 0
        in_block = block.count(b"\n")
        if in_block < missing:
            self.breaks += in_block
            return len(block)
        at = 0
        for _ in range(missing):
            at = block.index(b"\n", at) + 1
        self.breaks += missing
        return at

    def _grow(self, piece: bytes) -> None:
        self.line_bytes += len(piece)
        if len(self.line) <= self.max_bytes + 1:
            self.line += piece[: self.max_bytes + 2 - len(self.line)]
        content = self.line_bytes - piece.endswith(b"\n")
        if self.size + content > self.max_bytes:
            self._stop_in_line(ended=piece.endswith(b"\n"))

    def _stop_in_line(self, *, ended: bool) -> None:
        self.stopped_by = "bytes"
        if not self.lines:
            self.oversize = bytes(self.line[: self.max_bytes])
            self.oversize_bytes = self.line_bytes - ended
        if ended:
            self.line_bytes = 0

    def _end_line(self) -> None:
        if self.stopped_by is None and self.line_bytes:
            self.lines.append(bytes(self.line))
            self.size += self.line_bytes
            if len(self.lines) == self.max_lines:
                self.stopped_by = "lines"
        self.line.clear()
        self.line_bytes = 0
