"""Shows a run to a program: one JSON object per line on stdout."""

from __future__ import annotations

import sys
from typing import Any, BinaryIO, cast

from laneway.cli._exit import complain
from laneway.cli.render._plain import plain
from laneway.events import AgentEvent, BlockEvent, MessageUpdate, ToolCallStart
from laneway.messages import ToolCall, clean_json, encode


class JsonRenderer:
    """Prints the header, then every event, in UTF-8 whatever the terminal speaks; each line is out before the run goes on.

    A `message_update` carries only what is new: its `event` without the partial message. `stop_reason`, `is_error` and `usage` are
    always there, whatever their value.
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
        return encode({"type": event.type, "event": _news(event.event)})
    return encode({"type": event.type, **{name: plain(getattr(event, name)) for name in event.__struct_fields__}})


def _news(event: BlockEvent) -> dict[str, Any]:
    """Return what an event of a stream adds; the start of a call names it, as nothing else does before its end."""
    told = {name: getattr(event, name) for name in event.__struct_fields__ if name != "partial"}
    if isinstance(event, ToolCallStart):
        call = cast("ToolCall", event.partial.content[event.content_index])
        told |= {"id": call.id, "tool_name": call.name}
    return {"type": event.type, **told}
