"""Binary event-stream frames (`application/vnd.amazon.eventstream`): bytes in, events out.

A frame is: its length, the length of its headers, a checksum of these two, the headers, the payload, a checksum of everything before.
What cannot be a frame becomes an event of its own, so that what came before it keeps its place and nothing here raises. The cost is linear
in the bytes, however they are cut.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from laneway.llm._sse import MAX_EVENT_BYTES, SseEvent
from laneway.llm.base import encode_json

EXCEPTION = "!"
"""What the name of an event begins with that is an exception of the service: `!throttlingException`."""
BROKEN = "!!"
"""The name of the event that stands for bytes which are no frame; its data is a sentence."""
_PRELUDE = Struct(">III").unpack_from
_NUMBER = Struct(">I").unpack_from
_LENGTH = Struct(">H").unpack_from
_OVERHEAD = 16  # the prelude and the checksum at the end
_TEXT_BEGINS = 9
"""The first byte that a text may begin with (a tab); a frame begins with the highest byte of its length, which is smaller."""
_STRAY_LIMIT = 256 * 1024
_KNOWN_LIMIT = 100
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}  # value types of a fixed size: booleans, integers, a time, a UUID
_BYTES, _TEXT = 6, 7


class FrameDecoder:
    """Incremental decoder. Give it the bytes as they arrive, then `finish()`.

    Events have the frame's `:event-type` as their name and its payload as their data. After a broken frame nothing more is read.
    `stray` is the whole body (at most 256 KiB) where a server answered with something else than frames: JSON, an HTML page.
    """

    __slots__ = ("_broken", "_known", "_need", "_pieces", "_size", "_started", "_stray", "_stray_size", "max_frame_bytes")

    def __init__(self, *, max_frame_bytes: int = MAX_EVENT_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._pieces: list[bytes] = []  # of a frame that has not ended yet; joined once, when it ends
        self._size = 0
        self._need = _OVERHEAD  # how many bytes there must be before it is worth a look
        self._known: dict[bytes, str] = {}  # header bytes → event name; servers send the same few over and over
        self._broken = self._started = False
        self._stray: list[bytes] | None = None
        self._stray_size = 0

    @property
    def stray(self) -> bytes:
        """The body, if it is no event stream."""
        return b"".join(self._stray or ())

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes and return the events that they complete."""
        if self._broken:
            return []
        if not self._started and chunk:
            self._started = True
            if chunk[0] >= _TEXT_BEGINS:
                self._stray = []
        if self._stray is not None:
            self._keep_stray(chunk)
            return []
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size < self._need:
            return []
        return self._split(b"".join(self._pieces) if len(self._pieces) > 1 else chunk)

    def finish(self) -> list[SseEvent]:
        """Return what remains to be said at the end of the body: nothing, or that it ended inside of a frame."""
        if not self._size or self._broken:
            return []
        return [self._break(f"the stream ended inside of a frame, {self._size} bytes into it")]

    def _split(self, data: bytes) -> list[SseEvent]:
        events: list[SseEvent] = []
        known = self._known
        at, end = 0, len(data)
        need = _OVERHEAD
        while end - at >= _OVERHEAD:  # runs once per event: it is written to be cheap
            total, headers, check = _PRELUDE(data, at)
            if crc32(data[at : at + 8]) != check or headers > total - _OVERHEAD or total > self.max_frame_bytes:
                events.append(self._break(self._bad_prelude(total, headers, crc32(data[at : at + 8]) == check)))
                return events
            stop = at + total
            if stop > end:
                need = total
                break
            tail = stop - 4
            if crc32(data[at + 8 : tail], check) != _NUMBER(data, tail)[0]:
                events.append(self._break("the checksum of a frame does not match its bytes"))
                return events
            body = at + 12 + headers
            name = known.get(data[at + 12 : body])
            if name is not None:
                events.append(SseEvent(name, data[body:tail]))
            else:
                events.append(self._event(data[at + 12 : body], data[body:tail]))
            at = stop
        self._size = end - at
        self._pieces = [data[at:]] if self._size else []
        self._need = need
        return events

    def _bad_prelude(self, total: int, headers: int, sound: bool) -> str:
        if not sound:
            return "the checksum of a frame's lengths does not match them"
        if total > self.max_frame_bytes:
            return f"a frame of {total} bytes is larger than the {self.max_frame_bytes} bytes that are accepted"
        return f"a frame of {total} bytes cannot hold {headers} bytes of headers"

    def _break(self, what: str) -> SseEvent:
        self._broken = True
        self._pieces, self._size = [], 0
        return SseEvent(BROKEN, what.encode())

    def _keep_stray(self, chunk: bytes) -> None:
        if self._stray is not None and self._stray_size < _STRAY_LIMIT:
            self._stray.append(chunk)
            self._stray_size += len(chunk)

    def _event(self, raw: bytes, payload: bytes) -> SseEvent:
        """Make the event of a frame whose headers were not seen before."""
        try:
            headers = read_headers(raw)
        except (IndexError, ValueError) as error:
            return self._break(f"the headers of a frame cannot be read ({error})")
        kind = headers.get(":message-type", "event")
        if kind == "exception":
            return SseEvent(EXCEPTION + headers.get(":exception-type", "unknown"), payload)
        if kind == "error":
            code = headers.get(":error-code", "unknown")
            return SseEvent(EXCEPTION + code, encode_json({"message": headers.get(":error-message", ""), "code": code}))
        name = headers.get(":event-type", "")
        if len(self._known) < _KNOWN_LIMIT:
            self._known[raw] = name
        return SseEvent(name, payload)


def read_headers(data: bytes) -> dict[str, str]:
    """Return the headers of a frame that are text; those of other types are passed over.

    Raises:
        ValueError: the bytes are no headers.
        IndexError: they end too early.
    """
    headers: dict[str, str] = {}
    at = 0
    while at < len(data):
        start = at + 1 + data[at]
        name = data[at + 1 : start].decode("utf-8", "replace")
        kind = data[start]
        at = start + 1
        if kind in (_BYTES, _TEXT):
            if at + 2 > len(data):
                raise IndexError(f"{name} ends early")
            size = _LENGTH(data, at)[0]
            at += 2
            if kind == _TEXT:
                headers[name] = data[at : at + size].decode("utf-8", "replace")
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"{name} is of the unknown type {kind}")
        at += size
        if at > len(data):
            raise IndexError(f"{name} ends early")
    return headers
