"""Chunks of a streamed chat completion → assistant events. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from laneway.events import AssistantEvent
from laneway.llm._errors import event_failure
from laneway.llm._lenient import HalfPairs, lenient_json
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ProviderFailure
from laneway.llm.wire.openai_chat._calls import CallAssembler
from laneway.llm.wire.openai_chat._chunks import CallPiece, Chunk, Delta, HeadChunk, chunk_from, decode_chunk, decode_head, read_usage
from laneway.llm.wire.openai_chat._details import ReasoningDetails
from laneway.llm.wire.openai_chat._messages import REASONING_FIELDS, compact_json
from laneway.llm.wire.openai_chat.compat import ChatCompat
from laneway.messages import ErrorKind, StopReason

DONE = b"[DONE]"

STOP_REASONS: dict[str, StopReason] = {
    "": "stop", "stop": "stop", "end": "stop", "eos": "stop", "end_turn": "stop", "stop_sequence": "stop", "length": "length",
    "max_tokens": "length", "model_length": "length", "tool_calls": "tool_use", "tool_use": "tool_use", "function_call": "tool_use",
}  # fmt: skip
"""The finish reasons that mean an answer. All other words end the response as an error that names them."""


BAD_REASONS: dict[str, tuple[ErrorKind, str]] = {
    "content_filter": ("content_filter", "because of its content filter"),
    "safety": ("content_filter", "because of its content filter"),
    "network_error": ("network", "because of a network error of its own"),
    "error": ("server", "because of an error of its own"),
}


class Decoder:
    """Turns the data of server-sent events into assistant events, through a `StreamWriter`.

    `feed` every event's data, then `finish`. Both return the events that came of it and raise `ProviderFailure` for a response
    that failed; what had been collected by then is in the writer. One text block and one thinking block per response, a block per
    tool call; all stay open until the end. `names` maps a tool's name on the wire to its real one; `turn` is how many
    messages come before the response, for ids that have to be made.
    """

    def __init__(
        self, model: Model, compat: ChatCompat, writer: StreamWriter, *, names: Mapping[str, str] | None = None, turn: int = 0
    ) -> None:
        self.writer = writer
        self._model = model
        self._compat = compat
        self._text: int | None = None
        self._thinking: int | None = None
        self._field: str | None = None  # under which name the reasoning came
        self._details = ReasoningDetails()
        self._calls = CallAssembler(writer, names or {}, turn)
        self._halves = HalfPairs()
        self._mend = False  # whether a delta may hold half a character, or wait for one
        self._reason: str | None = None
        self._done = False
        self._decode: Callable[[bytes], Chunk] = self._decode_first

    @property
    def complete(self) -> bool:
        """Whether the server said that nothing more comes."""
        return self._done

    def feed(self, data: bytes, event: str = "") -> list[AssistantEvent]:
        """Take the data of one event.

        Raises:
            ProviderFailure: the server reports an error, or what it sends cannot be understood.
        """
        if self._done or data == DONE:
            self._done = True
            return []
        try:
            chunk = self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            chunk = self._read_leniently(data)
        choices = chunk.choices
        if choices:  # what follows runs once per delta: it is written to be cheap
            choice = choices[0]
            delta = choice.delta or choice.message
            if delta is not None:
                self._take_delta(delta)
            if choice.finish_reason is not None:
                self._reason = choice.finish_reason
            if choice.usage is not None:
                self._take_usage(choice.usage)
        if chunk.usage is not None or chunk.error is not None or not choices:
            self._take_rest(chunk, data, event)
        if self._mend:
            self._mend = self._halves.pending
        writer = self.writer
        events, writer.events = writer.events, []
        return events

    def finish(self) -> list[AssistantEvent]:
        """End the response: no more data comes.

        Raises:
            ProviderFailure: the response is not complete, or it ended for a reason that is not an answer.
        """
        writer = self.writer
        for index, text in self._halves.flush().items():
            (writer.text if index in (self._text, self._thinking) else writer.arguments)(index, text)
        if self._thinking is not None:
            signature = compact_json(self._details.entries()) if self._details else self._field
            if signature:
                writer.sign(self._thinking, signature)
        calls = self._calls.finish()
        writer.close_all()
        writer.done(self._stop_reason(calls > 0), raw=self._reason)
        return writer.take()

    def _stop_reason(self, calls: bool) -> StopReason:
        reason, provider = self._reason, self._model.provider
        if reason is None:
            if self._compat.supports_finish_reason:
                raise ProviderFailure(f"{provider}: the stream ended without finish_reason, so the response is incomplete", kind="incomplete")
            return "tool_use" if calls else "stop"
        stop = STOP_REASONS.get(reason.lower())
        if stop is None:
            self.writer.set(raw_stop_reason=reason)
            kind, why = BAD_REASONS.get(reason.lower(), ("unknown", "for a reason that is not known here"))
            raise ProviderFailure(f"{provider} stopped the response {why} (finish_reason: {reason})", kind=kind)
        if stop == "length":
            return stop
        return "tool_use" if calls else "stop"  # the calls that arrived count, not the word

    # -- parts of a chunk

    def _decode_first(self, data: bytes) -> Chunk:
        chunk = decode_head(data)
        self._take_head(chunk)
        return chunk

    def _take_head(self, chunk: HeadChunk) -> None:
        """Learn who answers from the first chunk that says something; later ones are decoded without that."""
        if chunk.choices:
            self._decode = decode_chunk
            self.writer.set(response_id=chunk.id or None, response_model=chunk.model if chunk.model not in (None, "", self._model.id) else None)

    def _take_delta(self, delta: Delta) -> None:
        reasoning = delta.reasoning_content or delta.reasoning or delta.reasoning_text
        if reasoning:
            if self._field is None:
                self._field = next(name for name in REASONING_FIELDS if getattr(delta, name))
            self._think(reasoning)
        if delta.reasoning_details:
            self._take_details(delta.reasoning_details, silent=bool(reasoning))
        if delta.content:
            if self._text is None or self._mend:
                self._say(delta.content)
            else:
                self.writer.text(self._text, delta.content)
        if delta.tool_calls:
            self._calls.take(delta.tool_calls, self._halves.join if self._mend else None)
        if delta.refusal:
            self._say(delta.refusal)
        if delta.function_call:
            self._calls.take([CallPiece(index=0, function=delta.function_call)])

    def _say(self, text: str) -> None:
        if self._text is None:
            self._text = self.writer.open_text()
        self.writer.text(self._text, self._halves.join(self._text, text) if self._mend else text)

    def _think(self, text: str) -> None:
        if self._thinking is None:
            self._thinking = self.writer.open_thinking()
        self.writer.text(self._thinking, self._halves.join(self._thinking, text) if self._mend else text)

    def _take_details(self, details: list[dict[str, Any]], *, silent: bool) -> None:
        """Collect structured reasoning. `silent`: the same text came as plain reasoning already."""
        if self._thinking is None:
            self._thinking = self.writer.open_thinking()
        for detail in details:
            text = self._details.add(detail)
            if text and not silent:
                self._think(text)

    def _take_usage(self, raw: dict[str, Any]) -> None:
        """Take the token counts; a later report replaces an earlier one."""
        self.writer.set(usage=read_usage(self._model, raw))

    # -- what is no plain delta

    def _take_rest(self, chunk: Chunk, data: bytes, event: str) -> None:
        if chunk.usage is not None:
            self._take_usage(chunk.usage)
        if chunk.error is not None:
            raise event_failure({"error": chunk.error}, provider=self._model.provider)
        if not chunk.choices and chunk.usage is None:
            self._look_for_error(data, event)

    def _look_for_error(self, data: bytes, event: str) -> None:
        """Find an error in an event that has neither choices nor usage: servers have several shapes for it."""
        value = lenient_json(data, provider=self._model.provider)
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            named = "error" in (event, fields.get("object"), fields.get("type"))
            if named or ("choices" not in fields and "detail" in fields):
                raise event_failure(fields, provider=self._model.provider)
        elif event == "error":
            raise event_failure(value, provider=self._model.provider)

    def _read_leniently(self, data: bytes) -> Chunk:
        """Read what the typed decoder refuses; deltas may hold half a character then."""
        value = lenient_json(data, provider=self._model.provider)
        self._mend = True
        if not isinstance(value, dict):
            self.writer.note(f"an event that is no object was ignored: {str(value)[:100]}")
            return Chunk()
        chunk = chunk_from(cast("dict[str, Any]", value))
        if self._decode != decode_chunk:
            self._take_head(chunk)
        return chunk
