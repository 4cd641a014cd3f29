"""The read tool: text of any size by line numbers, and pictures."""

from __future__ import annotations

import codecs
import os
import shlex
from typing import Any

from laneway.abort import AbortSignal
from laneway.errors import ToolError
from laneway.messages import ImageContent, TextContent
from laneway.tools import _images
from laneway.tools._arguments import as_object, at_least_one, required
from laneway.tools._files import read_all, readable
from laneway.tools._lines import Stretch, encoding_of, read_stretch
from laneway.tools._paths import Place, Workspace
from laneway.tools._truncate import MAX_BYTES, MAX_LINES, format_size, printable, size_of, with_notices
from laneway.tools._work import Stop, in_thread
from laneway.tools.base import AgentTool, ToolResult, UpdateFn, text_result

__all__ = ["read_tool"]

_ALIASES = {"file_path": "path", "filename": "path", "file": "path", "start_line": "offset"}
_BINARY_HEAD = 8192
_HINTS = (
    (codecs.BOM_UTF32_LE, "It is UTF-32 text: iconv -f UTF-32 -t UTF-8 FILE prints it"),
    (codecs.BOM_UTF32_BE, "It is UTF-32 text: iconv -f UTF-32 -t UTF-8 FILE prints it"),
    (b"%PDF", "It is a PDF: pdftotext FILE - prints its text"),
    (b"PK\x03\x04", "It is a zip archive (or an office document): unzip -l FILE lists what is in it"),
    (b"\x1f\x8b", "It is gzip data: zcat FILE prints it"),
    (b"SQLite format 3", "It is an SQLite database: sqlite3 FILE .schema shows its tables"),
    (b"\x7fELF", "It is a compiled program or library"),
)
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "File to read, relative to the working directory or absolute"},
        "offset": {"type": "integer", "description": "First line to read, counted from 1 (default 1)"},
        "limit": {"type": "integer", "description": "How many lines to read (default: as many as fit)"},
    },
    "required": ["path"],
}


def read_tool(
    cwd: str | os.PathLike[str] = ".",
    *,
    confine: bool = False,
    root: str | os.PathLike[str] | None = None,
    max_lines: int = MAX_LINES,
    max_bytes: int = MAX_BYTES,
    images: bool = True,
) -> AgentTool:
    """Return the tool that reads files: `read(path, offset=1, limit=None)`.

    Text comes back as it is in the file, at most `max_lines` lines and `max_bytes` bytes of it, followed by a notice with the `offset` to
    go on from. PNG, JPEG, GIF, WebP and BMP pictures, known by their content, come back as images (`images=False`: as a note). UTF-16 with
    a byte-order mark is converted; other binary data is an error that says what it is.

    `confine=True` or `root` refuses every path that leads outside of `cwd` or `root`. `details` has `path`, `start_line`, `end_line`,
    `total_lines` (None if too many to count) and `truncated_by`; for a picture `path` and `mime_type`.
    """
    workspace = Workspace(cwd, confine=confine, root=root)

    async def execute(tool_call_id: str, args: Any, signal: AbortSignal, update: UpdateFn) -> ToolResult:
        arguments = _prepare(args)
        path = required(arguments, "path")
        first = at_least_one(arguments, "offset", 1)
        limit = at_least_one(arguments, "limit", max_lines)

        def work(stop: Stop) -> ToolResult:
            place = workspace.existing(path)
            fd = workspace.open(place)
            try:
                return look(place, fd, stop)
            finally:
                os.close(fd)

        def look(place: Place, fd: int, stop: Stop) -> ToolResult:
            with readable(place.shown):
                head = os.pread(fd, _images.SNIFF_BYTES, 0) if hasattr(os, "pread") else _head(fd)
                kind = _images.sniff(head)
                if kind is not None:
                    return _picture(place, os.dup(fd), kind, stop, images)
                encoding = encoding_of(head)
                if head.startswith(codecs.BOM_UTF32_LE) or (encoding == "utf-8" and b"\0" in head[:_BINARY_HEAD]):
                    raise ToolError(_binary(place, head, os.fstat(fd).st_size))
                stretch = read_stretch(fd, encoding, first, min(limit, max_lines), max_bytes, stop.check)
                bom = 3 if head.startswith(codecs.BOM_UTF8) and first == 1 else 0
            return _Report(place, first, stretch, encoding, bom, max_bytes, limit if limit < max_lines else None).result()

        return await in_thread(work, signal, aborted=f"Reading {printable(path)} was aborted")

    return AgentTool(
        name="read",
        label="Read",
        description=(
            f"Read a file. Text is returned as it is, up to {max_lines} lines or {format_size(max_bytes)}; a note at the end gives the offset to "
            "continue from. Images (png, jpeg, gif, webp, bmp) are shown."
        ),
        parameters=_PARAMETERS,
        execute=execute,
        prepare_arguments=_prepare,
        replay="safe",
    )


def _prepare(arguments: Any) -> Any:
    return as_object(arguments, _ALIASES)


class _Report:
    """Turns a stretch of lines into what the model reads."""

    def __init__(self, place: Place, first: int, stretch: Stretch, encoding: str, bom: int, max_bytes: int, limit: int | None) -> None:
        self.place, self.first, self.stretch, self.encoding, self.bom = place, first, stretch, encoding, bom
        self.max_bytes, self.limit = max_bytes, limit

    def result(self) -> ToolResult:
        """Return the text with its notice; `ToolError` if the stretch is past the end of the file."""
        stretch, total = self.stretch, self.stretch.total_lines
        if not stretch.lines and stretch.oversize is None:
            if total == 0 and self.first == 1:
                return text_result("(empty file)", details=self._details(0, None))
            lines = f"{total} line{'s' if total != 1 else ''}"
            raise ToolError(f"offset {self.first} is past the end of {self.place.shown}, which has {lines}: use an offset of at most {max(total, 1)}")
        if stretch.oversize is not None:
            return self._oversize(stretch.oversize)
        texts, stopped_by = self._texts()
        last = self.first + len(texts) - 1
        text = "".join(texts)
        if last >= total:
            return text_result(text, details=self._details(last, None))
        return text_result(with_notices(text, [self._notice(last, stopped_by)]), details=self._details(last, stopped_by))

    def _texts(self) -> tuple[list[str], str | None]:
        """Return the lines as text, fewer if the marks that stand for undecodable bytes made them too long."""
        texts: list[str] = []
        size = 0
        for line in self.stretch.lines:
            text = line.decode("utf-8", "replace").replace("\0", "\ufffd")
            size += size_of(text)
            if texts and size - text.endswith("\n") > self.max_bytes:
                return texts, "bytes"
            texts.append(text)
        return texts, self.stretch.stopped_by

    def _notice(self, last: int, stopped_by: str | None) -> str:
        total = f"{self.stretch.total_lines}" if self.stretch.counted_all else f"more than {self.stretch.total_lines}"
        go_on = f"Use offset={last + 1} to continue"
        if stopped_by == "lines" and self.limit is not None:
            more = self.stretch.total_lines - last
            lines = "line" if more == 1 and self.stretch.counted_all else "lines"
            return f"{more if self.stretch.counted_all else f'More than {more}'} more {lines} in the file. {go_on}"
        why = f" ({format_size(self.max_bytes)} limit)" if stopped_by == "bytes" else ""
        return f"Showing lines {self.first}-{last} of {total}{why}. {go_on}"

    def _oversize(self, head: bytes) -> ToolResult:
        """Return the beginning of a line that is over the limit alone, and a command that prints what follows."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(head).replace("\0", "\ufffd")
        used = len(head) - len(decoder.getstate()[0])
        file = printable(shlex.quote(self.place.path))
        source = f"sed -n '{self.first}{{p;q}}' {file}"
        if self.encoding != "utf-8":
            source = f"iconv -f UTF-16 -t UTF-8 {file} | sed -n '{self.first}{{p;q}}'"
        notices = [
            f"Line {self.first} is {format_size(self.stretch.oversize_bytes)}, over the limit of {format_size(self.max_bytes)}: shortened to its "
            f"first {used} bytes. The next part, with bash: {source} | tail -c +{used + self.bom + 1} | head -c {self.max_bytes}"
        ]
        if self.first < self.stretch.total_lines:
            notices.append(f"Use offset={self.first + 1} to continue with the next line")
        return text_result(with_notices(text, notices), details=self._details(self.first, "bytes"))

    def _details(self, last: int, truncated_by: str | None) -> dict[str, Any]:
        return {
            "path": printable(self.place.path),
            "start_line": self.first,
            "end_line": last,
            "total_lines": self.stretch.total_lines if self.stretch.counted_all else None,
            "truncated_by": truncated_by,
        }


def _picture(place: Place, fd: int, kind: _images.ImageType, stop: Stop, show: bool) -> ToolResult:
    """Return a picture as a note and an image; takes over the descriptor."""
    size = os.fstat(fd).st_size
    details = {"path": printable(place.path), "mime_type": kind}
    if not show or size > _images.MAX_FILE:
        os.close(fd)
        why = "pictures are turned off" if not show else "too large to show: make a smaller copy"
        return text_result(f"{place.shown} is a {kind} picture ({format_size(size)}); {why}", details=details)
    os.lseek(fd, 0, os.SEEK_SET)
    picture = _images.prepare(read_all(fd, stop.check, place.shown), kind, stop.check)
    if isinstance(picture, str):
        return text_result(f"{place.shown}: {picture}", details=details)
    note = f"Read image {place.shown} [{picture.mime_type}]" + (f"\n[{picture.note}]" if picture.note else "")
    return ToolResult(content=[TextContent(text=note), ImageContent(data=picture.data, mime_type=picture.mime_type)], details=details)


def _binary(place: Place, head: bytes, size: int) -> str:
    hint = next((hint for magic, hint in _HINTS if head.startswith(magic)), "With bash, xxd FILE | head or strings FILE show what is in it")
    return f"{place.shown} is a binary file ({format_size(size)}), not text. {hint}"


def _head(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    return os.read(fd, _images.SNIFF_BYTES)
