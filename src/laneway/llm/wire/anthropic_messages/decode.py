"""Events of a streamed message → assistant events. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import replace

from laneway.events import AssistantEvent
from laneway.llm._errors import event_failure
from laneway.llm._lenient import HalfPairs, lenient_json
from laneway.llm._transform import short_hash
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ProviderFailure
from laneway.llm.wire.anthropic_messages._events import Counts, Delta, Event, as_dict, as_str, decode_event, event_from, json_text, whole_message
from laneway.llm.wire.anthropic_messages.compat import AnthropicCompat
from laneway.messages import StopReason

STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "stop", "stop_sequence": "stop", "pause_turn": "stop", "tool_use": "tool_use", "max_tokens": "length",
    "model_context_window_exceeded": "length",
}  # fmt: skip
"""The stop reasons that mean an answer. All other words end the response as an error that names them."""
REFUSALS = frozenset({"refusal", "sensitive", "content_filter"})
REDACTED = "(reasoning that the provider keeps to itself)"
"""What stands in the place of redacted thinking."""


class _Block:
    """A block of the response: which kind it is, where it is in the message, what it came with."""

    __slots__ = ("at", "halves", "kind", "plain", "started_with")

    def __init__(self, kind: Literal["text", "thinking", "call"], at: int, started_with: Any = None) -> None:
        self.kind = kind
        self.at = at
        self.started_with = started_with  # arguments that came whole; pieces that follow replace them
        self.halves: HalfPairs | None = None
        self.plain = kind == "text"  # a text that nothing waits for


class Decoder:
    """Turns the data of server-sent events into assistant events, through a `StreamWriter`.

    `feed` every event's data, then `finish`. Both return the events that came of it and raise `ProviderFailure` for a response
    that failed; what had been collected by then is in the writer. Several blocks may be open at once; each ends when the server says
    so. `names` maps a tool's name on the wire to its real one; `turn` is how many messages come before the response, for ids that have to be made.
    """

    def __init__(
        self, model: Model, compat: AnthropicCompat, writer: StreamWriter, *, names: Mapping[str, str] | None = None, turn: int = 0
    ) -> None:
        self.writer = writer
        self._model = model
        self._priced = model
        self._compat = compat
        self._names = names or {}
        self._turn = turn
        self._open: dict[int, _Block] = {}
        self._ids: set[str] = set()
        self._ignored: set[str] = set()
        self._counts = Counts()
        self._reason: str | None = None
        self._details: dict[str, Any] = {}
        self._done = False
        self._mend = False  # whether the event at hand may hold half a character

    @property
    def complete(self) -> bool:
        """Whether the server said that nothing more comes."""
        return self._done

    def feed(self, data: bytes, event: str = "") -> list[AssistantEvent]:
        """Take the data of one event.

        Raises:
            ProviderFailure: the server reports an error, or what it sends cannot be understood.
        """
        if self._done:
            return []
        self._mend = False
        try:
            found = decode_event(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = self._read_leniently(data)
        if found.type == "content_block_delta":  # by far the most common
            delta, block = found.delta, self._open.get(found.index)  # pyright: ignore[reportArgumentType] - None is in no dictionary of ours
            if block is not None and block.plain and delta is not None and delta.type == "text_delta" and delta.text and not self._mend:
                self.writer.text(block.at, delta.text)
            else:
                self._take_delta(found.index, delta)
        elif found.type == "error" or event == "error" or found.error is not None:
            raise event_failure(lenient_json(data, provider=self._model.provider), provider=self._model.provider)
        elif found.type == "message":
            for part in whole_message(lenient_json(data, provider=self._model.provider)):
                self._take(part)
        else:
            self._take(found)
        writer = self.writer
        events, writer.events = writer.events, []
        return events

    def finish(self) -> list[AssistantEvent]:
        """End the response: no more data comes.

        Raises:
            ProviderFailure: the response is not complete, or it ended for a reason that is not an answer.
        """
        if not self._done:
            text = f"{self._model.provider}: the stream ended before message_stop, so the response is incomplete"
            raise ProviderFailure(text, kind="incomplete")
        for index in list(self._open):
            self._end_block(index)
        self.writer.done(self._stop_reason(), raw=self._reason)
        return self.writer.take()

    def _stop_reason(self) -> StopReason:
        reason, provider = self._reason, self._model.provider
        if reason is None:
            raise ProviderFailure(f"{provider}: the stream ended without stop_reason, so the response is incomplete", kind="incomplete")
        stop = STOP_REASONS.get(reason)
        if stop is None:
            self.writer.set(raw_stop_reason=reason)
            if reason in REFUSALS:
                why = as_str(self._details.get("explanation")) or "the provider gave no explanation"
                raise ProviderFailure(f"{provider} refused to answer (stop_reason: {reason}): {why}", kind="content_filter")
            raise ProviderFailure(f"{provider} stopped with: {reason}, which is no stop_reason known here")
        if stop == "length":
            return stop
        return "tool_use" if self._ids else "stop"  # the calls that arrived count, not the word

    # -- events

    def _take(self, event: Event) -> None:
        match event.type:
            case "content_block_start":
                self._start_block(event.index, event.content_block or {})
            case "content_block_stop":
                self._end_block(event.index)
            case "message_start":
                self._start_message(event.message or {})
            case "message_delta":
                self._take_end(event)
            case "message_stop":
                self._done = True
            case _:
                pass  # pings, and what a later version of the protocol may bring

    def _start_message(self, message: dict[str, Any]) -> None:
        name = as_str(message.get("model")) or None
        self.writer.set(response_id=as_str(message.get("id")) or None, response_model=name if name != self._model.id else None)
        self._price_as(name)
        usage = as_dict(message.get("usage"))
        if usage is not None:
            self.writer.set(usage=self._counts.take(usage, self._priced))
        self._note_transformations(message.get("input_transformations"))

    def _price_as(self, name: str | None) -> None:
        """Use the prices of the model that really answers, where it is a known stand-in."""
        prices = self._compat.allowed_fallback_models.get(name or "")
        if prices is not None:
            self._priced = replace(self._model, cost=prices)

    def _take_end(self, event: Event) -> None:
        if event.delta is not None:
            self._reason = event.delta.stop_reason or self._reason
            self._details = event.delta.stop_details or self._details
        if event.usage is not None:
            self.writer.set(usage=self._counts.take(event.usage, self._priced))
        self._note_transformations(event.input_transformations)

    def _note_transformations(self, value: Any) -> None:
        """Record what the provider changed in the request's own messages."""
        for entry in cast("list[Any]", value)[:20] if isinstance(value, list) else ():
            fields = as_dict(entry) or {}
            self.writer.note(f"the provider reports {fields.get('type')} at {fields.get('path')} ({fields.get('reason')})"[:200])

    # -- blocks

    def _start_block(self, index: int | None, block: dict[str, Any]) -> None:
        if index is None:
            index = max(self._open, default=-1) + 1
        if index in self._open:
            self._end_block(index)
        match block.get("type"):
            case "text":
                self._open[index] = _Block("text", self.writer.open_text())
                self._append(self._open[index], as_str(block.get("text")))
            case "thinking":
                self._open[index] = _Block("thinking", self.writer.open_thinking(signature=as_str(block.get("signature")) or None))
                self._append(self._open[index], as_str(block.get("thinking")))
            case "redacted_thinking":
                data = as_str(block.get("data")) or None
                self._open[index] = _Block("thinking", self.writer.open_thinking(redacted=True, text=REDACTED, signature=data))
            case "tool_use":
                self._start_call(index, block)
            case "fallback":
                self._fall_back(block)
            case kind:
                self._ignore(f"a block of the type {kind}")

    def _start_call(self, index: int, block: dict[str, Any]) -> None:
        given, name = as_str(block.get("id")) or "", as_str(block.get("name")) or ""
        if not given or given in self._ids:
            given = f"toolu_{short_hash(f'{self.writer.partial.response_id}|{self._turn}|{len(self._ids)}|{name}', 20)}"
        self._ids.add(given)
        self._open[index] = _Block("call", self.writer.open_call(given, self._names.get(name, name)), block.get("input"))

    def _fall_back(self, block: dict[str, Any]) -> None:
        """Another model takes over. What the first one said is no beginning of its answer."""
        name = as_str((as_dict(block.get("to")) or {}).get("model"))
        if self.writer.partial.blocks:
            text = f"{self._model.provider}: {self._model.id} declined in the middle of its answer and {name} went on; ask again"
            raise ProviderFailure(text, kind="content_filter")
        self._price_as(name)
        self.writer.set(usage=self._counts.usage(self._priced), response_model=name or self.writer.partial.response_model)

    def _ignore(self, what: str) -> None:
        """Record, once, something that has no place in a message."""
        if what not in self._ignored and len(self._ignored) < 20:
            self._ignored.add(what)
            self.writer.note(f"{what[:100]} was ignored")

    def _take_delta(self, index: int | None, delta: Delta | None) -> None:
        if delta is None:
            return
        block = self._open.get(index if index is not None else max(self._open, default=-1))
        if block is None:
            block = self._started_late(index, delta)
        if block is None:
            return
        kind = delta.type
        if kind == "text_delta" and block.kind == "text":
            self._append(block, delta.text)
        elif kind == "input_json_delta" and block.kind == "call":
            self._append(block, delta.partial_json)
        elif kind == "thinking_delta" and block.kind == "thinking":
            self._append(block, delta.thinking)
        elif kind == "signature_delta" and block.kind == "thinking":
            self.writer.sign(block.at, delta.signature or "", append=True)
        elif kind != "citations_delta":
            self._ignore(f"a {kind} in a {block.kind} block")

    def _started_late(self, index: int | None, delta: Delta) -> _Block | None:
        """Open a block whose start never came; only text and thinking can do without. Deltas of ignored blocks are ignored."""
        if index is None or (delta.text is None and delta.thinking is None):
            return None
        if self._ignored or delta.type not in ("text_delta", "thinking_delta"):
            return None
        self._start_block(index, {"type": "text" if delta.type == "text_delta" else "thinking"})
        return self._open[index]

    def _append(self, block: _Block, text: str | None) -> None:
        if not text:
            return
        if self._mend or block.halves is not None:
            block.halves = block.halves or HalfPairs()
            text = block.halves.join(0, text)
            if not block.halves.pending:
                block.halves = None
            block.plain = block.kind == "text" and block.halves is None
        if block.kind == "call":
            block.started_with = None
            self.writer.arguments(block.at, text)
        else:
            self.writer.text(block.at, text)

    def _end_block(self, index: int | None) -> None:
        block = self._open.pop(index if index is not None else max(self._open, default=-1), None)
        if block is None:
            return
        if block.halves is not None:
            for half in block.halves.flush().values():
                (self.writer.arguments if block.kind == "call" else self.writer.text)(block.at, half)
        if block.kind == "call" and block.started_with:
            given = block.started_with
            self.writer.arguments(block.at, given if isinstance(given, str) else json_text(given))
        self.writer.close(block.at)

    def _read_leniently(self, data: bytes) -> Event:
        """Read what the typed decoder refuses; deltas may hold half a character then."""
        value = lenient_json(data, provider=self._model.provider)
        self._mend = True
        if isinstance(value, dict):
            return event_from(cast("dict[str, Any]", value))
        self._ignore("an event that is no object")
        return Event()
