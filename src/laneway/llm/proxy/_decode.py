"""Frames of a proxied response → assistant events. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from laneway.events import AssistantEvent, StreamDone, StreamError, ToolCallEnd
from laneway.llm._lenient import lenient_json
from laneway.llm._writer import StreamWriter
from laneway.llm.base import ProviderFailure
from laneway.llm.proxy._protocol import VERSION
from laneway.messages import AssistantMessage, ErrorInfo, TextContent, ThinkingContent, ToolCall

_GOOD = ("stop", "length", "tool_use", "deferred")
_BLOCKS: dict[str, type[Struct]] = {"text": TextContent, "thinking": ThinkingContent, "tool_call": ToolCall}
_T = TypeVar("_T", bound=Struct)


class _Frame(Struct):
    """One frame; which fields are set depends on its type."""

    type: str
    content_index: int = -1
    delta: str = ""
    content: str = ""
    signature: str | None = None
    redacted: bool = False
    id: str = ""
    name: str = ""
    tool_call: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    version: int = 0
    api: str = ""
    provider: str = ""
    model: str = ""
    thinking_level: str | None = None


_decode = msgspec.json.Decoder(_Frame).decode


class FrameDecoder:
    """Turns frames into assistant events, through a `StreamWriter`.

    `feed` every frame, then `finish`. Both return the events that came of it and raise `ProviderFailure` for a response that breaks the
    protocol or ends too early. The last event's message is the server's own, with the time of this side's request.
    """

    def __init__(self, writer: StreamWriter) -> None:
        self.writer = writer
        self._kinds: list[str] = []
        self._last: AssistantEvent | None = None

    @property
    def complete(self) -> bool:
        """Whether the last frame has come."""
        return self._last is not None

    def feed(self, data: bytes, event: str = "") -> list[AssistantEvent]:
        """Take one frame.

        Raises:
            ProviderFailure: it is none, or it does not fit what came before.
        """
        if self._last is not None:
            return []
        try:
            frame = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            lenient_json(data, provider="proxy")
            raise ProviderFailure(
                "proxy: a frame does not have the protocol's shape; check that the URL is a laneway proxy's", kind="protocol"
            ) from None
        self._take(frame)
        return self.writer.take()

    def finish(self) -> list[AssistantEvent]:
        """End the response: no more data comes.

        Raises:
            ProviderFailure: the last frame has not come.
        """
        if self._last is None:
            raise ProviderFailure("proxy: the connection closed before the response was complete", kind="incomplete")
        return [self._last]

    def _take(self, frame: _Frame) -> None:
        match frame.type:
            case "text_delta" | "thinking_delta":
                self.writer.text(self._at(frame, frame.type.partition("_")[0]), frame.delta)
            case "toolcall_delta":
                self.writer.arguments(self._at(frame, "toolcall"), frame.delta)
            case "text_start" | "thinking_start" | "toolcall_start":
                self._open(frame)
            case "text_end" | "thinking_end":
                self._close(frame, self._at(frame, frame.type.partition("_")[0]))
            case "toolcall_end":
                self._close_call(frame, self._at(frame, "toolcall"))
            case "start":
                self._start(frame)
            case "done" | "error":
                self._end(frame)
            case _:
                self.writer.note(f"a frame of the type {frame.type[:50]} was ignored")

    def _at(self, frame: _Frame, kind: str) -> int:
        """Return the index of the open block that a frame speaks of."""
        index = frame.content_index
        if not (0 <= index < len(self._kinds) and self._kinds[index] == kind and self.writer.is_open(index)):
            raise ProviderFailure(f"proxy: {frame.type} for block {index}, which is no open {kind} block", kind="protocol")
        return index

    def _start(self, frame: _Frame) -> None:
        if frame.version > VERSION:
            text = f"proxy: it speaks version {frame.version} of the protocol, this side version {VERSION}; update laneway"
            raise ProviderFailure(text, kind="protocol")
        partial = self.writer.partial
        self.writer.set(
            api=frame.api or partial.api, provider=frame.provider or partial.provider, model=frame.model or partial.model,
            thinking_level=frame.thinking_level,
        )  # fmt: skip

    # -- blocks

    def _open(self, frame: _Frame) -> None:
        if frame.content_index != len(self._kinds):
            raise ProviderFailure(f"proxy: {frame.type} for block {frame.content_index}, but block {len(self._kinds)} is next", kind="protocol")
        kind = frame.type.partition("_")[0]
        self._kinds.append(kind)
        if kind == "text":
            self.writer.open_text()
        elif kind == "thinking":
            self.writer.open_thinking(signature=frame.signature, redacted=frame.redacted, text=frame.content if frame.redacted else "")
        else:
            self.writer.open_call(frame.id, frame.name)

    def _close(self, frame: _Frame, index: int) -> None:
        if frame.signature is not None:
            self.writer.sign(index, frame.signature)
        self.writer.close(index, content=frame.content)

    def _close_call(self, frame: _Frame, index: int) -> None:
        """Take the call as the server read it, its `arguments_error` included."""
        call = _converted(frame.tool_call, ToolCall)
        self.writer.partial.blocks[index] = call
        self.writer.events.append(ToolCallEnd(content_index=index, tool_call=call, partial=self.writer.partial))

    # -- the end

    def _end(self, frame: _Frame) -> None:
        partial = self.writer.partial
        value = dict(frame.message or {})
        content: Any = value.get("content")
        if value.get("role") != "assistant" or not isinstance(content, list):
            raise ProviderFailure(f"proxy: a frame of the type {frame.type} is without the final message", kind="protocol")
        blocks = [_known_block(block) for block in cast("list[Any]", content)]
        message = replace(_converted({**value, "content": blocks}, AssistantMessage), timestamp=partial.timestamp)
        good = frame.type == "done"
        if good != (message.stop_reason in _GOOD):
            raise ProviderFailure(f"proxy: a frame of the type {frame.type} ends with {message.stop_reason}", kind="protocol")
        if message.stop_reason == "aborted":  # nobody aborted on this side
            text = f"proxy: the server stopped the response ({message.error_message or 'without a reason'})"
            message = replace(message, stop_reason="error", error=ErrorInfo(kind="incomplete"), error_message=text)
        partial.blocks[:] = message.content
        self.writer.set(**{name: getattr(message, name) for name in AssistantMessage.__struct_fields__ if name != "content"})
        self._last = StreamDone(message=message) if good else StreamError(message=message)


def _known_block(value: Any) -> Any:
    fields: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    known = _BLOCKS.get(str(fields.get("type")))
    if known is None:
        return fields
    return {key: item for key, item in fields.items() if key == "type" or key in known.__struct_fields__}


def _converted(value: dict[str, Any] | None, to: type[_T]) -> _T:
    """Make a message or a call; fields that only a later version knows are left out."""
    tag = to.__struct_config__.tag_field
    known = {key: item for key, item in (value or {}).items() if key in to.__struct_fields__ or key == tag}
    try:
        return msgspec.convert(known, to)
    except msgspec.ValidationError as error:
        raise ProviderFailure(f"proxy: a {to.__name__} does not have the protocol's shape: {error}", kind="protocol") from None
