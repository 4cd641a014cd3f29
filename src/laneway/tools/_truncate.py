"""Cut text to what a model should read: whole lines, at most so many lines and so many bytes, with an exact account of what was left out.

Sizes are counted in UTF-8 bytes. A newline at the very end does not count as one more line.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

MAX_LINES = 2000
MAX_BYTES = 50 * 1024
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(kw_only=True, frozen=True, slots=True)
class Truncation:
    """What was kept of a text and what was there before.

    `content` is what was kept. `first_line_exceeds_limit`: the first line alone is over the byte limit, so nothing was kept (head only).
    `last_line_partial`: the last line alone is over the byte limit and only its end was kept (tail only).
    """

    content: str
    truncated: bool
    truncated_by: Literal["lines", "bytes"] | None
    total_lines: int
    total_bytes: int
    output_lines: int
    output_bytes: int
    last_line_partial: bool
    first_line_exceeds_limit: bool
    max_lines: int
    max_bytes: int

    def as_details(self) -> dict[str, Any]:
        """Return every count as JSON data, without the content, which the result carries already."""
        details = asdict(self)
        del details["content"]
        return details


def printable(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone surrogates replaced by U+FFFD, so that it can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def one_line_name(name: str) -> str:
    """Return a file name as a list with one name a line shows it: printable, U+FFFD for each line break or other control character."""
    return _CONTROLS.sub("\ufffd", printable(name))


def size_of(text: str) -> int:
    """Return the size of `text` in UTF-8 bytes; a lone surrogate counts as the U+FFFD that will stand for it."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def format_size(size: int) -> str:
    """Return a byte count as a person reads it: `312B`, `50.0KB`, `1.2MB`, `2.9GB`."""
    if size < 1024:
        return f"{size}B"
    for unit, scale in (("KB", 1024), ("MB", 1024**2)):
        if size < scale * 1024:
            return f"{size / scale:.1f}{unit}"
    return f"{size / 1024**3:.1f}GB"


def count_lines(text: str) -> int:
    """Return the number of lines; a newline at the very end adds none."""
    return text.count("\n") + (0 if not text or text.endswith("\n") else 1)


def truncate_head(text: str, *, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> Truncation:
    """Keep whole lines from the beginning. A text within both limits is kept as it is, its last newline included."""
    text = printable(text)
    total_lines, total_bytes = count_lines(text), size_of(text)
    if total_lines <= max_lines and total_bytes - text.endswith("\n") <= max_bytes:
        return _whole(text, total_lines, total_bytes, max_lines, max_bytes)
    kept: list[str] = []
    size, by = 0, "lines"
    for line in _lines(text):
        if len(kept) == max_lines:
            break
        size_with = size + size_of(line) + (1 if kept else 0)
        if size_with > max_bytes:
            by = "bytes"
            break
        kept.append(line)
        size = size_with
    return Truncation(
        content="\n".join(kept),
        truncated=True,
        truncated_by="bytes" if by == "bytes" or len(kept) == total_lines else "lines",
        total_lines=total_lines,
        total_bytes=total_bytes,
        output_lines=len(kept),
        output_bytes=size,
        last_line_partial=False,
        first_line_exceeds_limit=not kept,
        max_lines=max_lines,
        max_bytes=max_bytes,
    )


def truncate_tail(text: str, *, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> Truncation:
    """Keep whole lines from the end; of a last line that is over the byte limit alone, keep its end, cut between characters."""
    text = printable(text)
    total_lines, total_bytes = count_lines(text), size_of(text)
    if total_lines <= max_lines and total_bytes - text.endswith("\n") <= max_bytes:
        return _whole(text, total_lines, total_bytes, max_lines, max_bytes)
    lines = _lines(text)
    start, size, by = len(lines), 0, "lines"
    while start > 0 and len(lines) - start < max_lines:
        size_with = size + size_of(lines[start - 1]) + (1 if start < len(lines) else 0)
        if size_with > max_bytes:
            by = "bytes"
            break
        start -= 1
        size = size_with
    partial = start == len(lines)
    content = keep_end(lines[-1], max_bytes) if partial else "\n".join(lines[start:])
    return Truncation(
        content=content,
        truncated=True,
        truncated_by="bytes" if by == "bytes" or start == 0 else "lines",
        total_lines=total_lines,
        total_bytes=total_bytes,
        output_lines=1 if partial else len(lines) - start,
        output_bytes=size_of(content),
        last_line_partial=partial,
        first_line_exceeds_limit=False,
        max_lines=max_lines,
        max_bytes=max_bytes,
    )


def keep_start(text: str, max_bytes: int) -> str:
    """Return the longest beginning of `text` of at most `max_bytes`, cut between characters."""
    return text.encode("utf-8", "surrogatepass")[:max_bytes].decode("utf-8", "ignore")


def keep_end(text: str, max_bytes: int) -> str:
    """Return the longest end of `text` of at most `max_bytes`, cut between characters."""
    return text.encode("utf-8", "surrogatepass")[-max_bytes:].decode("utf-8", "ignore") if max_bytes > 0 else ""


def with_notices(text: str, notices: list[str]) -> str:
    """Return `text` followed by the notices in one bracket, after a blank line."""
    if not notices:
        return text
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{gap}[{'. '.join(notices)}]"


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "" and len(lines) > 1:
        lines.pop()
    return lines


def _whole(text: str, lines: int, size: int, max_lines: int, max_bytes: int) -> Truncation:
    return Truncation(
        content=text if size <= max_bytes else text[:-1],  # all that did not fit was the last newline
        truncated=False,
        truncated_by=None,
        total_lines=lines,
        total_bytes=size,
        output_lines=lines,
        output_bytes=min(size, max_bytes),
        last_line_partial=False,
        first_line_exceeds_limit=False,
        max_lines=max_lines,
        max_bytes=max_bytes,
    )
