"""Builds a response from its pieces: owns the life of every block, so that a wire cannot break the order of events.

The cost of a response of D deltas is O(D): text and argument pieces are kept as lists and joined when somebody reads the
partial message; arguments of a call that still streams are parsed when read, and again only after they grew by a tenth; the
strict parse happens once, at the end.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec.structs import replace

from laneway.errors import Aborted
from laneway.events import (
    AssistantEvent,
    StreamDone,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from laneway.llm._partial_json import parse_arguments, parse_partial
from laneway.llm.base import Model, ProviderFailure
from laneway.messages import (
    AssistantContent,
    AssistantMessage,
    DeferredHandle,
    ErrorInfo,
    ErrorKind,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
    now_ms,
)

_NO_USAGE = Usage()


class _Text:
    """A text or thinking block that is still open."""

    __slots__ = ("parts", "redacted", "signature", "thinking")

    def __init__(self, thinking: bool, signature: str | None, redacted: bool) -> None:
        self.thinking, self.signature, self.redacted = thinking, signature, redacted
        self.parts: list[str] = []

    def joined(self) -> str:
        if len(self.parts) > 1:
            self.parts[:] = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def block(self) -> AssistantContent:
        if self.thinking:
            return ThinkingContent(thinking=self.joined(), signature=self.signature, redacted=self.redacted)
        return TextContent(text=self.joined(), signature=self.signature)


class _Call:
    """A tool call whose arguments are still arriving."""

    __slots__ = ("id", "name", "parsed", "parsed_size", "parts", "signature", "size")

    def __init__(self, call_id: str, name: str, signature: str | None) -> None:
        self.id, self.name, self.signature = call_id, name, signature
        self.parts: list[str] = []
        self.size = 0
        self.parsed: dict[str, Any] = {}
        self.parsed_size = 0

    def joined(self) -> str:
        if len(self.parts) > 1:
            self.parts[:] = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def block(self) -> ToolCall:
        if self.size > self.parsed_size * 1.1 + 64 or (self.parsed_size == 0 and self.size):
            self.parsed = parse_partial(self.joined())
            self.parsed_size = self.size
        return ToolCall(id=self.id, name=self.name, arguments=self.parsed, signature=self.signature)

    def final(self) -> ToolCall:
        arguments, problem = parse_arguments(self.joined())
        return ToolCall(id=self.id, name=self.name, arguments=arguments, arguments_error=problem, signature=self.signature)


_slot = cast(Any, AssistantMessage.content)  # the descriptor under the property below


class PartialMessage(AssistantMessage, kw_only=True, frozen=True, tag="assistant"):
    """The live message of a stream: an `AssistantMessage` whose `content` is brought up to date when it is read.

    `copy.copy(partial)` gives a plain `AssistantMessage` of this moment.
    """

    blocks: list[Any] = msgspec.field(default_factory=list[Any])

    def snapshot(self, content: list[AssistantContent] | None = None) -> AssistantMessage:
        """Return the message as it is now, as a plain `AssistantMessage`; who knows that all blocks have ended may give them as `content`."""
        return AssistantMessage(
            content=self.content if content is None else content,
            api=self.api, provider=self.provider, model=self.model, usage=self.usage, stop_reason=self.stop_reason,
            error_message=self.error_message, error=self.error, response_id=self.response_id, response_model=self.response_model,
            raw_stop_reason=self.raw_stop_reason, thinking_level=self.thinking_level, diagnostics=self.diagnostics, deferred=self.deferred,
            timestamp=self.timestamp,
        )  # fmt: skip

    def __copy__(self) -> AssistantMessage:
        return self.snapshot()

    def __deepcopy__(self, memo: dict[int, Any]) -> AssistantMessage:
        return msgspec.json.decode(msgspec.json.encode(self.snapshot()), type=AssistantMessage)

    def __repr__(self) -> str:
        return f"Partial{self.snapshot()!r}"


def _read_content(self: PartialMessage) -> list[AssistantContent]:
    content = [b.block() if isinstance(b, (_Text, _Call)) else b for b in self.blocks]
    _slot.__set__(self, content)
    return content


PartialMessage.content = property(_read_content)  # pyright: ignore - reading the field joins what has arrived so far


class StreamWriter:
    """Collects one response. Each call appends the matching events to `events`; `take()` hands them over.

    Blocks are addressed by the index that `open_*` returned; several may be open at once. A wire sets `usage`,
    `response_id`, … as it learns them, then calls `done()` or raises. `fallback` is what `AssistantStream` needs.
    """

    __slots__ = ("_blocks", "_force", "events", "partial")

    def __init__(self, model: Model, *, timestamp: int | None = None, thinking_level: str | None = None) -> None:
        self.partial = PartialMessage(
            content=[], api=model.api, provider=model.provider, model=model.id, usage=_NO_USAGE, stop_reason="pending",
            thinking_level=thinking_level, timestamp=now_ms() if timestamp is None else timestamp,
        )  # fmt: skip
        self._blocks = self.partial.blocks
        self.events: list[AssistantEvent] = []
        self._force = msgspec.structs.force_setattr

    def take(self) -> list[AssistantEvent]:
        """Return the events collected since the last call."""
        events, self.events = self.events, []
        return events

    def set(self, **fields: Any) -> None:
        """Set fields of the message: `usage`, `response_id`, `response_model`, `raw_stop_reason`, `diagnostics`, …"""
        for name, value in fields.items():
            self._force(self.partial, name, value)

    def note(self, diagnostic: str) -> None:
        """Record something odd that did not stop the response (an unknown block, a repaired id)."""
        self.set(diagnostics=[*(self.partial.diagnostics or ()), diagnostic])

    def start(self) -> None:
        """Begin the response."""
        self.events.append(StreamStart(partial=self.partial))

    # -- text and thinking

    def open_text(self, *, signature: str | None = None) -> int:
        """Begin a text block and return its index."""
        return self._open(_Text(False, signature, False))

    def open_thinking(self, *, signature: str | None = None, redacted: bool = False, text: str = "") -> int:
        """Begin a thinking block and return its index; a redacted one may come with its placeholder text."""
        block = _Text(True, signature, redacted)
        if text:
            block.parts.append(text)
        return self._open(block)

    def _open(self, block: _Text) -> int:
        index = len(self.partial.blocks)
        self.partial.blocks.append(block)
        self.events.append((ThinkingStart if block.thinking else TextStart)(content_index=index, partial=self.partial))
        return index

    def text(self, index: int, delta: str) -> None:
        """Append to an open text or thinking block."""
        block: _Text = self._blocks[index]
        block.parts.append(delta)
        self.events.append((ThinkingDelta if block.thinking else TextDelta)(content_index=index, delta=delta, partial=self.partial))

    def sign(self, index: int, signature: str, *, append: bool = False) -> None:
        """Set (or extend) the signature of an open block."""
        block: _Text | _Call = self.partial.blocks[index]
        block.signature = (block.signature or "") + signature if append else signature

    def sign_again(self, index: int, signature: str) -> None:
        """Replace the signature of a block that has ended, for a provider that sends it only with the end of the response."""
        block: TextContent | ThinkingContent | ToolCall = self.partial.blocks[index]
        self.partial.blocks[index] = replace(block, signature=signature)

    # -- tool calls

    def open_call(self, call_id: str, name: str, *, signature: str | None = None) -> int:
        """Begin a tool call and return its index."""
        index = len(self.partial.blocks)
        self.partial.blocks.append(_Call(call_id, name, signature))
        self.events.append(ToolCallStart(content_index=index, partial=self.partial))
        return index

    def name_call(self, index: int, *, call_id: str | None = None, name: str | None = None) -> None:
        """Fill in an id or name that arrived late."""
        block: _Call = self.partial.blocks[index]
        block.id, block.name = call_id or block.id, name or block.name

    def arguments(self, index: int, delta: str) -> None:
        """Append to the arguments' JSON text of an open call."""
        block: _Call = self._blocks[index]
        block.parts.append(delta)
        block.size += len(delta)
        self.events.append(ToolCallDelta(content_index=index, delta=delta, partial=self.partial))

    def arguments_text(self, index: int) -> str:
        """Return the arguments' JSON text of an open call so far."""
        return cast(_Call, self.partial.blocks[index]).joined()

    # -- ends

    def is_open(self, index: int) -> bool:
        """Whether the block still takes deltas."""
        return isinstance(self.partial.blocks[index], (_Text, _Call))

    def close(self, index: int, *, content: str | None = None, arguments: str | None = None) -> None:
        """End a block; `content` (or, for a call, the JSON text `arguments`) replaces what had been collected. Ending twice is nothing."""
        block = self.partial.blocks[index]
        if isinstance(block, _Text):
            if content is not None:
                block.parts = [content]
            final = self.partial.blocks[index] = block.block()
            text = final.thinking if isinstance(final, ThinkingContent) else cast(TextContent, final).text
            self.events.append((ThinkingEnd if block.thinking else TextEnd)(content_index=index, content=text, partial=self.partial))
        elif isinstance(block, _Call):
            if arguments is not None:
                block.parts = [arguments]
            call = self.partial.blocks[index] = block.final()
            self.events.append(ToolCallEnd(content_index=index, tool_call=call, partial=self.partial))

    def close_all(self) -> None:
        """End every open block, in index order."""
        for index in range(len(self.partial.blocks)):
            self.close(index)

    def done(self, stop_reason: StopReason, *, raw: str | None = None, deferred: DeferredHandle | None = None) -> None:
        """End the response well; `stop_reason` is stop, length, tool_use or deferred."""
        self.close_all()
        force, partial = self._force, self.partial
        force(partial, "stop_reason", stop_reason)
        if deferred is not None:
            force(partial, "deferred", deferred)
        if raw is not None:
            force(partial, "raw_stop_reason", raw)
        self.events.append(StreamDone(message=partial.snapshot(partial.blocks.copy())))

    def fail(self, error: BaseException, aborted: bool) -> AssistantMessage:
        """Return the message of a response that failed, with what had arrived; blocks still open get no end event."""
        info = error.info if isinstance(error, ProviderFailure) else ErrorInfo(kind=kind_of(error))
        if aborted or isinstance(error, Aborted):
            self.set(stop_reason="aborted", error_message=describe(error), error=None)
        else:
            self.set(stop_reason="error", error_message=describe(error), error=info)
        return self.partial.snapshot()

    fallback = fail


def describe(error: BaseException) -> str:
    """Return a sentence for an exception; the type's name where it has no text."""
    try:
        text = str(error)
    except Exception:  # even that can fail; its type is left to tell
        text = ""
    if not text:
        return type(error).__name__
    return text if isinstance(error, (ProviderFailure, Aborted)) else f"{type(error).__name__}: {text}"


def kind_of(error: BaseException) -> ErrorKind:
    """Classify an exception that no wire classified."""
    if isinstance(error, TimeoutError):
        return "timeout"
    return "network" if isinstance(error, (ConnectionError, OSError)) else "unknown"


__all__ = ["PartialMessage", "StreamWriter", "Usage", "describe"]
