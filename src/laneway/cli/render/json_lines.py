"""Shows a run to a program: one JSON object per line on stdout."""

from __future__ import annotations

import sys
from typing import Any, BinaryIO, cast

import msgspec

from laneway.cli._exit import complain
from laneway.events import AgentEvent, MessageUpdate
from laneway.messages import clean_json, encode


class JsonRenderer:
    """Prints the header, then every event, in UTF-8 whatever the terminal speaks; each line is out before the run goes on.

    A `message_update` carries only what is new: its `event` without the partial message.
    """

    def __init__(self, header: dict[str, Any], out: BinaryIO | None = None) -> None:
        self._out = out or sys.stdout.buffer
        self._header: dict[str, Any] | None = {"type": "run", **header}

    def __call__(self, event: AgentEvent, _: object = None) -> None:
        self._print_header()
        self._print(encode_event(event))

    def session(self, session_id: str) -> None:
        """Say in the header where the run is kept."""
        if self._header is not None:
            self._header["session"] = session_id
        self._print_header()

    def _print_header(self) -> None:
        if self._header is not None:
            header, self._header = self._header, None
            self._print(encode(clean_json(header)))

    def note(self, text: str) -> None:
        """Notes are for people: they go to stderr."""
        complain(text)

    def _print(self, line: bytes) -> None:
        self._out.write(line + b"\n")
        self._out.flush()


def encode_event(event: AgentEvent) -> bytes:
    """Return an event as one JSON object, tag first."""
    if isinstance(event, MessageUpdate):
        inner = {name: getattr(event.event, name) for name in event.event.__struct_fields__ if name != "partial"}
        return encode(clean_json({"type": event.type, "event": {"type": event.event.type, **msgspec.to_builtins(inner)}}))
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    parts = b",".join(b'"%s":%s' % (name.encode(), _encode(value)) for name, value in fields.items())
    return b'{"type":"%s"%s}' % (event.type.encode(), b"," + parts if parts else b"")


def _encode(value: Any) -> bytes:
    if isinstance(value, list):
        return b"[" + b",".join(encode(item) for item in cast("list[Any]", value)) + b"]"
    return encode(value)
