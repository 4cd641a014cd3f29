"""Frames of a streamed response → assistant events. Pure: no I/O, no clock."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from laneway.events import AssistantEvent
from laneway.llm._errors import event_failure, read_error_body
from laneway.llm._lenient import HalfPairs, lenient_json
from laneway.llm._transform import short_hash
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ProviderFailure
from laneway.llm.wire.bedrock_converse._events import (
    BlockDelta,
    Delta,
    Thought,
    as_dict,
    as_index,
    as_str,
    decode_delta,
    delta_from,
    read_usage,
    whole_message,
)
from laneway.llm.wire.bedrock_converse._frames import BROKEN, EXCEPTION
from laneway.messages import ErrorKind, StopReason

STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_use", "max_tokens": "length", "model_context_window_exceeded": "length",
}  # fmt: skip
"""The stop reasons that mean an answer. All other words end the response as an error that names them."""
BAD_REASONS: dict[str, ErrorKind] = {
    "guardrail_intervened": "content_filter", "content_filtered": "content_filter", "malformed_model_output": "server",
    "malformed_tool_use": "server",
}  # fmt: skip
"""What the other known words mean. A malformed answer is worth another try."""
EXCEPTION_TEXTS = {
    "throttlingexception": "Throttling error",
    "serviceunavailableexception": "Service unavailable",
    "internalserverexception": "Internal server error",
    "validationexception": "Validation error",
    "modelstreamerrorexception": "Model stream error",
}
"""How the text of an exception begins; classifiers of texts know these."""
REDACTED = "(reasoning that the provider keeps to itself)"
"""What stands in the place of redacted thinking."""


class _Block:
    """A block of the response: which kind it is, where it is in the message."""

    __slots__ = ("at", "halves", "kind", "plain", "secret")

    def __init__(self, kind: Literal["text", "thinking", "redacted", "call", "ignored"], at: int = -1) -> None:
        self.kind = kind
        self.at = at
        self.halves: HalfPairs | None = None
        self.secret: list[str] = []  # the pieces of what the provider keeps to itself, base64 each
        self.plain = kind == "text"  # a text that nothing waits for


class Decoder:
    """Turns events into assistant events, through a `StreamWriter`.

    `feed` every event's data with its name, then `finish`. Both return the events that came of it and raise `ProviderFailure` for a response
    that failed; what had been collected by then is in the writer. Several blocks may be open at once; each ends when the server says
    so. `names` maps a tool's name on the wire to its real one; `turn` is how many messages come before the response, for ids that have to be made.
    """

    def __init__(self, model: Model, writer: StreamWriter, *, names: Mapping[str, str] | None = None, turn: int = 0) -> None:
        self.writer = writer
        self._model = model
        self._names = names or {}
        self._turn = turn
        self._open: dict[int, _Block] = {}
        self._last = 0  # the index that is meant where none is named
        self._ids: set[str] = set()
        self._ignored: set[str] = set()
        self._reason: str | None = None
        self._counted = False
        self._mend = False  # whether the event at hand may hold half a character

    @property
    def complete(self) -> bool:
        """Whether nothing more comes: the usage is told after the end of the message."""
        return self._counted and self._reason is not None

    def feed(self, data: bytes, event: str = "") -> list[AssistantEvent]:
        """Take the data of one event.

        Raises:
            ProviderFailure: the server reports an error, or what it sends cannot be understood.
        """
        self._mend = False
        writer = self.writer
        if event == "contentBlockDelta":  # by far the most common
            try:
                found = decode_delta(data)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                found = self._read_leniently(data)
            delta, block = found.delta, self._open.get(found.contentBlockIndex)  # pyright: ignore[reportArgumentType] - None is no key of ours
            if block is not None and block.plain and delta is not None and delta.text and not self._mend:
                writer.text(block.at, delta.text)
            else:
                self._take_delta(found, data)
        elif event.startswith(EXCEPTION):
            raise self._failure(data, event)
        else:
            self._take(event, as_dict(lenient_json(data, provider=self._model.provider)) if data else {})
        events, writer.events = writer.events, []
        return events

    def finish(self) -> list[AssistantEvent]:
        """End the response: no more data comes.

        Raises:
            ProviderFailure: the response is not complete, or it ended for a reason that is not an answer.
        """
        if self._reason is None:
            text = f"{self._model.provider}: the stream ended without messageStop, so the response is incomplete"
            raise ProviderFailure(text, kind="incomplete")
        for index in list(self._open):
            self._end_block(index)
        if not self._counted:
            self.writer.note("the provider did not tell the usage")
        self.writer.done(self._stop_reason(self._reason), raw=self._reason)
        return self.writer.take()

    def _stop_reason(self, reason: str) -> StopReason:
        stop = STOP_REASONS.get(reason)
        if stop is None:
            self.writer.set(raw_stop_reason=reason)
            text = f"{self._model.provider} stopped the response (stopReason: {reason})"
            raise ProviderFailure(text, kind=BAD_REASONS.get(reason, "unknown"))
        if stop == "length":
            return stop
        return "tool_use" if self._ids else "stop"  # the calls that arrived count, not the word

    # -- failures

    def _failure(self, data: bytes, event: str) -> ProviderFailure:
        provider = self._model.provider
        if event == BROKEN:
            text = data.decode("utf-8", "replace")
            kind: ErrorKind = "incomplete" if text.startswith("the stream ended") else "protocol"
            return ProviderFailure(f"{provider}: {text}, so the response is incomplete", kind=kind)
        code = event.removeprefix(EXCEPTION)
        message = read_error_body(data).message.removeprefix("{}") or "the service gave no details"
        prefix = EXCEPTION_TEXTS.get(code.lower(), code)
        return event_failure({"message": f"{prefix}: {message}", "code": code}, provider=provider)

    # -- events

    def _take(self, event: str, fields: dict[str, Any] | None) -> None:
        if fields is None:
            self._ignore(f"an event {event} that is no object")
            return
        match event:
            case "contentBlockDelta":
                self._take_delta(delta_from(fields), b"")
            case "contentBlockStart":
                self._start_block(as_index(fields), as_dict(fields.get("start")) or {})
            case "contentBlockStop":
                index = as_index(fields)
                self._end_block(self._last if index is None else index)
            case "messageStop":
                self._reason = as_str(fields.get("stopReason")) or "(none)"
            case "metadata":
                self._take_metadata(fields)
            case "":
                self._take_body(fields)
            case _:
                pass  # the start of the message, and what a later version of the protocol may bring

    def _take_metadata(self, fields: dict[str, Any]) -> None:
        usage = as_dict(fields.get("usage"))
        if usage is not None:
            tier = as_str((as_dict(fields.get("serviceTier")) or {}).get("type"))
            self.writer.set(usage=read_usage(usage, self._model, tier))
        router = as_dict((as_dict(fields.get("trace")) or {}).get("promptRouter")) or {}
        self.writer.set(response_model=as_str(router.get("invokedModelId")) or self.writer.partial.response_model)
        self._counted = True

    def _take_body(self, fields: dict[str, Any]) -> None:
        """Take an answer that is one JSON object: a whole response, or an error."""
        if "output" not in fields:
            raise event_failure(fields, provider=self._model.provider)
        for event, content in whole_message(fields):
            self._take(event, content)

    # -- blocks

    def _start_block(self, index: int | None, start: dict[str, Any]) -> None:
        index = max(self._open, default=self._last - 1) + 1 if index is None else index
        self._last = index
        call = as_dict(start.get("toolUse"))
        if call is None and not start:
            return  # a text: it begins with its first piece
        if index in self._open:
            self._end_block(index)
        if call is None or call.get("type") == "server_tool_use":
            self._ignore(f"a block {next(iter(start))}{' of the service' if call is not None else ''}")
            self._open[index] = _Block("ignored")
            return
        given, name = as_str(call.get("toolUseId")) or "", as_str(call.get("name")) or ""
        if not given or given in self._ids:
            given = f"tooluse_{short_hash(f'{self.writer.partial.response_id}|{self._turn}|{len(self._ids)}|{name}', 20)}"
        self._ids.add(given)
        self._open[index] = _Block("call", self.writer.open_call(given, self._names.get(name, name)))

    def _take_delta(self, found: BlockDelta, data: bytes) -> None:
        delta = found.delta
        if delta is None:
            return
        index = self._last if found.contentBlockIndex is None else found.contentBlockIndex
        self._last = index
        block = self._open.get(index)
        if block is not None and block.kind == "ignored":
            return
        if delta.text is not None:
            self._append(index, block, "text", delta.text)
        elif delta.toolUse is not None:
            self._take_input(block, delta.toolUse.input)
        elif delta.reasoningContent is not None:
            self._take_thought(index, block, delta.reasoningContent)
        elif delta == Delta():
            self._ignore_delta(data)

    def _take_input(self, block: _Block | None, text: str | None) -> None:
        if block is None or block.kind != "call":
            self._ignore("a piece of a call that never began")
        elif text:
            self.writer.arguments(block.at, self._mended(block, text))

    def _take_thought(self, index: int, block: _Block | None, thought: Thought) -> None:
        if thought.redactedContent is not None:
            if block is None:
                block = self._open[index] = _Block("redacted", self.writer.open_thinking(redacted=True, text=REDACTED))
            if block.kind == "redacted":
                block.secret.append(thought.redactedContent)
                return
            self._ignore(f"redacted thinking in a {block.kind} block")
        if thought.text:
            self._append(index, block, "thinking", thought.text)
            block = self._open.get(index)
        if thought.signature:
            if block is None:
                block = self._open[index] = _Block("thinking", self.writer.open_thinking())
            if block.kind == "thinking":
                self.writer.sign(block.at, thought.signature, append=True)

    def _append(self, index: int, block: _Block | None, kind: Literal["text", "thinking"], text: str) -> None:
        """Add to a block of text or thinking; it begins with its first piece."""
        if not text:
            return
        if block is not None and block.kind != kind:
            self._end_block(index)
            block = None
        if block is None:
            at = self.writer.open_text() if kind == "text" else self.writer.open_thinking()
            block = self._open[index] = _Block(kind, at)
        self.writer.text(block.at, self._mended(block, text))

    def _mended(self, block: _Block, text: str) -> str:
        if not self._mend and block.halves is None:
            return text
        block.halves = block.halves or HalfPairs()
        text = block.halves.join(0, text)
        if not block.halves.pending:
            block.halves = None
        block.plain = block.kind == "text" and block.halves is None
        return text

    def _end_block(self, index: int) -> None:
        block = self._open.pop(index, None)
        if block is None or block.kind == "ignored":
            return
        if block.halves is not None:
            for half in block.halves.flush().values():
                (self.writer.arguments if block.kind == "call" else self.writer.text)(block.at, half)
        if block.secret:
            self.writer.sign(block.at, _joined(block.secret))
        self.writer.close(block.at)

    # -- what is not understood

    def _ignore(self, what: str) -> None:
        """Record, once, something that has no place in a message."""
        if what not in self._ignored and len(self._ignored) < 20:
            self._ignored.add(what)
            self.writer.note(f"{what[:100]} was ignored")

    def _ignore_delta(self, data: bytes) -> None:
        value = as_dict(lenient_json(data, provider=self._model.provider)) if data else None
        delta = as_dict((value or {}).get("delta"))
        if delta:
            self._ignore(f"a delta {next(iter(delta))}")

    def _read_leniently(self, data: bytes) -> BlockDelta:
        """Read what the typed decoder refuses; texts may hold half a character then."""
        value = lenient_json(data, provider=self._model.provider)
        self._mend = True
        if not isinstance(value, dict):
            self._ignore("an event that is no object")
        return delta_from(value)


def _joined(pieces: list[str]) -> str:
    """Return the base64 of what several pieces, base64 each, are together."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return b64encode(b"".join(b64decode(piece) for piece in pieces)).decode()
    except ValueError:
        return "".join(pieces)
