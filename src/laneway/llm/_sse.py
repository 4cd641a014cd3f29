"""Server-sent events: bytes in, events out.

Written for what model servers really send: any line ending, a last event without its blank line, events of many
megabytes, data that is not UTF-8, a body that is not an event stream at all. The cost is linear in the bytes, however they are cut.
"""

from __future__ import annotations

from msgspec import Struct

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Above this an event is not a model's answer any more, but somebody filling our memory."""
_STRAY_LIMIT = 256 * 1024
_BOM = b"\xef\xbb\xbf"


class SseEvent(Struct, frozen=True, gc=False):
    """One event: its name ("" where the server gave none) and its data, lines joined by a newline."""

    event: str
    data: bytes


class SseTooLarge(ValueError):
    """One event is larger than the decoder accepts."""


class SseDecoder:
    """Incremental decoder. Give it the bytes as they arrive, then `finish()` for an event that the end cut short.

    `stray` collects the lines that are no SSE field (at most 256 KiB): a server that answered with plain JSON or an HTML page
    instead of a stream has its whole body there.
    """

    __slots__ = ("_names", "_open", "_open_size", "_skip_lf", "_started", "_stray", "_stray_size", "max_event_bytes")

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.max_event_bytes = max_event_bytes
        self._open: list[bytes] = []  # the pieces of an event that has not ended yet; joined once, when it ends
        self._open_size = 0
        self._skip_lf = False
        self._started = False
        self._names: dict[bytes, str] = {}
        self._stray: list[bytes] = []
        self._stray_size = 0

    @property
    def stray(self) -> bytes:
        """What arrived that is no server-sent event."""
        return b"\n".join(self._stray)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes and return the events that they complete.

        Raises:
            SseTooLarge: an event passes `max_event_bytes`.
        """
        if self._skip_lf or not self._started:
            chunk = self._prepare(chunk)
        if b"\r" in chunk:
            self._skip_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not chunk:
            return []
        pieces = self._open
        pieces.append(chunk)
        self._open_size += len(chunk)
        if b"\n\n" not in chunk and not (chunk[:1] == b"\n" and len(pieces) > 1 and pieces[-2].endswith(b"\n")):
            self._check()
            return []
        blocks = (b"".join(pieces) if len(pieces) > 1 else chunk).split(b"\n\n")
        rest = blocks.pop()
        self._open = [rest] if rest else []
        if self._open_size > self.max_event_bytes:
            for self._open_size in map(len, blocks):
                self._check()
        self._open_size = len(rest)
        self._check()
        return self._events(blocks)

    def finish(self) -> list[SseEvent]:
        """Return the last event if the body ended before its blank line."""
        rest = b"".join(self._open)
        self._open, self._open_size = [], 0
        return self._events([rest]) if rest else []

    def _prepare(self, chunk: bytes) -> bytes:
        """Drop the newline of a CRLF that was cut in two, and a byte order mark at the very start."""
        if self._skip_lf and chunk:
            self._skip_lf = False
            chunk = chunk.removeprefix(b"\n")
        if not self._started and chunk:
            chunk = b"".join([*self._open, chunk])
            self._open, self._open_size = [], 0
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._open, self._open_size = [chunk], len(chunk)
                return b""
            self._started = True
            chunk = chunk.removeprefix(_BOM)
        return chunk

    def _events(self, blocks: list[bytes]) -> list[SseEvent]:
        """Read complete events; the two shapes that model servers send in bulk go without a loop over lines."""
        events: list[SseEvent] = []
        for block in blocks:
            if block[:6] == b"data: ":
                data = block[6:]
                if data and b"\n" not in data:
                    events.append(SseEvent("", data))
                    continue
            elif block[:7] == b"event: ":
                name, _, data = block.partition(b"\n")
                if data[:6] == b"data: " and len(data) > 6 and b"\n" not in data:
                    events.append(SseEvent(self._name(name[7:]), data[6:]))
                    continue
            self._event_by_lines(block, events)
        return events

    def _event_by_lines(self, block: bytes, events: list[SseEvent]) -> None:
        name = ""
        data: list[bytes] = []
        for line in block.split(b"\n"):
            field, colon, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = self._name(value.removeprefix(b" "))
            elif field and not (colon and field in (b"id", b"retry")) and self._stray_size < _STRAY_LIMIT:
                self._stray.append(line)
                self._stray_size += len(line)
        if any(data):
            events.append(SseEvent(name, b"\n".join(data)))

    def _name(self, raw: bytes) -> str:
        name = self._names.get(raw)
        if name is None:
            name = raw.decode("utf-8", "replace")
            if len(self._names) < 100:
                self._names[raw] = name
        return name

    def _check(self) -> None:
        if self._open_size > self.max_event_bytes:
            raise SseTooLarge(f"one server-sent event is larger than {self.max_event_bytes} bytes")
