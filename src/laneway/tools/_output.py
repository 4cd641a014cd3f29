"""What a command prints, made readable as it arrives and kept in bounded memory.

The stream of bytes loses terminal codes and control characters, also where they are split over chunks. A carriage return goes back to
the beginning of the line and a backspace over a character, as on a screen, so of a progress bar only the last state is left. The end of the clean
stream stays in memory; once it is longer than what will be shown, everything received goes, byte by byte as it came, into a private file.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, replace

from laneway.tools._truncate import MAX_BYTES, MAX_LINES, Truncation, truncate_tail

_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor, erase
    rb"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # operating system commands: titles, links
    rb"|[PX^_][^\x1b]*\x1b\\"  # device control and other strings
    rb"|[ -/]*[0-OQ-WYZ\\`-~])"  # two and three byte sequences
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
_LONGEST_ESCAPE = 8192  # what goes on for longer is no terminal code
_RETURNS = re.compile(rb"(?<!\r)\r+\n")  # begins at the first of them only: a long run that no newline ends is looked through once
_CHARACTER = re.compile(rb"[^\x80-\xbf][\x80-\xbf]*|[\x80-\xbf]+")
_CHARACTER_START = re.compile(rb"[^\x80-\xbf]")
_FARTHEST_BACK = 256  # characters that backspaces go back: what moves more redraws a screen
_CONTROLS = bytes(code for code in [*range(32), 127] if code not in b"\b\n\t\r")
_HELD_RAW = 1 << 20
_SPACE_TO_LEAVE = 512 << 20  # bytes of disk that a runaway command must not take
_SPACE_CHECK = 64 << 20


@dataclass(kw_only=True, frozen=True, slots=True)
class Shown:
    """What is to be shown of the output so far: `truncation` with its content, the size of the last line, how many states of lines were
    overwritten, the file with everything (if some is missing here) and how much of it could not be stored."""

    truncation: Truncation
    last_line_bytes: int
    overwritten: int
    full_output_path: str | None
    not_stored: int


class Cleaner:
    """Removes terminal codes and control characters from a stream of chunks; `\\r\\n` becomes `\\n`, other carriage returns and backspaces stay."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def waiting(self) -> bool:
        """Whether the last chunk ended inside something that the next one decides."""
        return bool(self._held)

    def feed(self, chunk: bytes, *, final: bool = False) -> bytes:
        """Return the clean form of what can be decided by now."""
        data = self._held + chunk if self._held else chunk
        self._held = b""
        if not final:
            data = self._hold_back(data)
        if b"\x1b" in data:
            data = _ESCAPE.sub(b"", data)
        if b"\r\n" in data:
            data = _RETURNS.sub(b"\n", data)
        return data.translate(None, _CONTROLS)

    def _hold_back(self, data: bytes) -> bytes:
        window = max(0, len(data) - _LONGEST_ESCAPE)
        last = data.rfind(b"\x1b", window)
        before = data.rfind(b"\x1b", window, last) if last >= 0 else -1  # the last one may only begin the end of a string
        start = next((at for at in (before, last) if at >= 0 and _UNFINISHED.match(data, at)), -1)
        if start >= 0:
            self._held = data[start:]
        elif data.endswith(b"\r"):
            self._held = data[len(data.rstrip(b"\r")) :]
        return data[: len(data) - len(self._held)] if self._held else data


class Output:
    """Collects a command's output. `feed` it, look at it with `shown`, and `finish` it once; one thread at a time."""

    def __init__(self, *, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES, spill_dir: str | None = None) -> None:
        self._max_lines, self._max_bytes = max_lines, max_bytes
        self._cleaner = Cleaner()
        self._tail = bytearray()
        self._keep = 2 * max_bytes + 4
        self._begins_in_line = False  # whether the first line of the tail is the end of a longer one
        self._breaks = 0
        self._bytes = 0
        self._line_bytes = 0  # of the line being written
        self._ended_line_bytes = 0  # of the line before it
        self._returned = False  # a carriage return came, and nothing after it yet
        self._back = 0  # how many characters before the line's end the next one is written
        self._overwritten = 0
        self._spill = _Spill(spill_dir)

    def feed(self, chunk: bytes) -> None:
        """Take what arrived."""
        self._spill.feed(chunk)
        self._take(self._cleaner.feed(self._skip_unseen(chunk)))

    def _skip_unseen(self, chunk: bytes) -> bytes:
        """Of a chunk of plain text that is longer than what will be shown, only count what comes before its end; return that end.

        This is what makes a command that prints gigabytes cheap. Total bytes then include control characters, which nobody sees.
        """
        start = len(chunk) - self._keep
        if start < self._keep or self._cleaner.waiting or self._back or any(code in chunk for code in (b"\x1b", b"\r", b"\x08")):
            return chunk
        start = chunk.find(b"\n", start) + 1
        if not start or len(chunk[start:].translate(None, _CONTROLS)) <= self._max_bytes:
            return chunk
        self._bytes += start
        self._breaks += chunk.count(b"\n", 0, start)
        self._line_bytes, self._returned, self._begins_in_line = 0, False, False
        self._tail.clear()
        return chunk[start:]

    def shown(self, *, final: bool = False) -> Shown:
        """Return what there is to show now."""
        truncation = self._truncation(final)
        if truncation.truncated:
            self._spill.start()
        return Shown(
            truncation=truncation,
            last_line_bytes=self._line_bytes or self._ended_line_bytes,
            overwritten=self._overwritten,
            full_output_path=self._spill.path if truncation.truncated or self._overwritten else None,
            not_stored=self._spill.not_stored,
        )

    def finish(self) -> Shown:
        """Return what there is to show after the last chunk; the file is kept only if something is missing here."""
        self._take(self._cleaner.feed(b"", final=True))
        shown = self.shown(final=True)
        self._spill.close(keep=shown.full_output_path is not None)
        return shown

    def discard(self) -> None:
        """Close without a result."""
        self._spill.close(keep=False)

    def _take(self, clean: bytes) -> None:
        for index, part in enumerate(clean.split(b"\r")):
            if index:
                self._returned, self._back = True, 0
            if not part:
                continue
            if self._returned:
                self._returned = False
                self._go_back(part)
            self._write(part)
        over = self._bytes > self._max_bytes or self._breaks > self._max_lines
        if over:
            self._spill.start()

    def _go_back(self, part: bytes) -> None:
        """Drop the line being written, unless the line ends here and now."""
        if not self._line_bytes or part.startswith(b"\n"):
            return
        self._overwritten += 1
        del self._tail[self._tail.rfind(b"\n") + 1 :]
        self._begins_in_line = self._begins_in_line and bool(self._tail)
        self._bytes -= self._line_bytes
        self._line_bytes = 0

    def _write(self, part: bytes) -> None:
        """Append what arrived; what follows backspaces replaces as many characters before them, and backspaces alone erase nothing."""
        for index, piece in enumerate(part.split(b"\b")):
            if index:
                self._back = min(self._back + 1, _FARTHEST_BACK)
            if piece:
                self._append(self._over(piece) if self._back else piece)

    def _over(self, piece: bytes) -> bytes:
        """Take away the last characters of the line being written that backspaces went over; return `piece` and those that it does not replace."""
        text, newline, rest = piece.partition(b"\n")
        begin = max(len(self._tail) - self._line_bytes, len(self._tail) - 4 * self._back, 0)
        old = _CHARACTER.findall(self._tail, begin)[-self._back :]
        size = sum(map(len, old))
        del self._tail[len(self._tail) - size :]
        self._bytes -= size
        self._line_bytes -= size
        kept = old[len(_CHARACTER_START.findall(text)) :]
        self._back = 0 if newline else len(kept)
        return b"".join([text, *kept, newline, rest])

    def _append(self, part: bytes) -> None:
        self._tail += part
        self._bytes += len(part)
        self._breaks += part.count(b"\n")
        last = part.rfind(b"\n")
        if last < 0:
            self._line_bytes += len(part)
        else:
            previous = part.rfind(b"\n", 0, last)
            self._ended_line_bytes = last - previous - 1 if previous >= 0 else self._line_bytes + last
            self._line_bytes = len(part) - last - 1
        if len(self._tail) > 2 * self._keep:
            cut = len(self._tail) - self._keep
            self._begins_in_line = self._tail[cut - 1] != ord("\n")
            del self._tail[:cut]

    def _truncation(self, final: bool) -> Truncation:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        start = 0
        if self._bytes > len(self._tail):  # the tail may begin inside a character
            while start < min(3, len(self._tail)) and self._tail[start] & 0xC0 == 0x80:
                start += 1
        text = decoder.decode(bytes(self._tail[start:]), final)
        if self._begins_in_line and "\n" in text[:-1]:
            text = text[text.index("\n") + 1 :]
        cut = truncate_tail(text, max_lines=self._max_lines, max_bytes=self._max_bytes)
        total_lines = self._breaks + (1 if self._line_bytes else 0)
        if total_lines == cut.total_lines and self._bytes <= len(self._tail):
            return cut
        return replace(
            cut,
            content=cut.content if cut.truncated else text.removesuffix("\n"),
            truncated=True,
            truncated_by=cut.truncated_by or "bytes",
            total_lines=total_lines,
            total_bytes=self._bytes,
        )


class _Spill:
    """Holds what came until it is known whether a file is needed, then writes it to one that only the user can read."""

    def __init__(self, directory: str | None) -> None:
        self.path: str | None = None
        self.not_stored = 0
        self._directory = directory
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._fd = -1
        self._failed = False
        self._unchecked = 0

    def feed(self, chunk: bytes) -> None:
        """Take what arrived."""
        if self._failed:
            self.not_stored += len(chunk)
        elif self._fd >= 0:
            self._write(chunk)
        else:
            self._held.append(chunk)
            self._held_bytes += len(chunk)
            if self._held_bytes > _HELD_RAW:
                self.start()

    def start(self) -> None:
        """Begin the file, unless there is one."""
        if self._fd >= 0 or self._failed:
            return
        try:
            self._fd, self.path = tempfile.mkstemp(prefix="laneway-bash-", suffix=".log", dir=self._directory)
        except OSError:
            self._failed = True
            self.not_stored, self._held = self._held_bytes, []
            return
        held, self._held = self._held, []
        for chunk in held:
            self.feed(chunk)

    def close(self, *, keep: bool) -> None:
        """End the file, or remove it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if not keep and self.path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            self.path = None

    def _write(self, chunk: bytes) -> None:
        try:
            self._unchecked += len(chunk)
            if self._unchecked > _SPACE_CHECK:
                self._unchecked = 0
                if self.path is not None and shutil.disk_usage(os.path.dirname(self.path)).free < _SPACE_TO_LEAVE:
                    raise OSError("the disk is nearly full")
            view = memoryview(chunk)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._failed = True
            self.not_stored += len(chunk)
