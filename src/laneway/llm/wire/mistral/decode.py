"""Chunks of a streamed completion → assistant events. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from laneway.events import AssistantEvent
from laneway.llm._errors import event_failure
from laneway.llm._lenient import HalfPairs, lenient_json
from laneway.llm._partial_json import parse_arguments
from laneway.llm._transform import short_hash
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ProviderFailure, encode_json
from laneway.llm.wire.mistral._chunks import CallPiece, Chunk, Delta, FunctionPiece, chunk_from, decode_chunk, part_text, read_usage
from laneway.messages import ErrorKind, StopReason

DONE = b"[DONE]"
STOP_REASONS: dict[str, StopReason] = {"stop": "stop", "tool_calls": "tool_use", "length": "length", "model_length": "length"}
"""The finish reasons that mean an answer. All other words end the response as an error that names them."""
BAD_REASONS: dict[str, ErrorKind] = {"error": "server", "content_filter": "content_filter"}
_NO_ID = ("", "null", "none")
_NOTHING = FunctionPiece()


class _Call:
    """A call of the response: where it is, and under which id the server knows it."""

    __slots__ = ("at", "given_id", "name")

    def __init__(self, at: int, given_id: str, name: str) -> None:
        self.at, self.given_id, self.name = at, given_id, name


class Decoder:
    """Turns the data of server-sent events into assistant events, through a `StreamWriter`.

    `feed` every event's data, then `finish`. Both return the events that came of it and raise `ProviderFailure` for a response
    that failed; what had been collected by then is in the writer. One block of text or thinking is open at a time; calls stay open until the
    end. `names` maps a tool's name on the wire to its real one;
    `turn` is how many messages come before the response, for ids that have to be made.
    """

    def __init__(self, model: Model, writer: StreamWriter, *, names: Mapping[str, str] | None = None, turn: int = 0) -> None:
        self.writer = writer
        self._model = model
        self._names = names or {}
        self._turn = turn
        self._block: int | None = None
        self._thinking = False  # what kind the open block is of
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._ids: set[str] = set()
        self._halves, self._call_halves = HalfPairs(), HalfPairs()
        self._mend = False  # whether the chunk at hand may hold half a character, or wait for one
        self._reason: str | None = None
        self._done = False
        self._ignored = False

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
            chunk = decode_chunk(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            chunk = self._read_leniently(data)
        choices, writer = chunk.choices, self.writer
        if choices:  # what follows runs once per delta: it is written to be cheap
            choice = choices[0]
            if writer.partial.response_id is None:
                self._take_head(chunk)
            delta = choice.delta or choice.message
            if delta is not None:
                content = delta.content
                if content and type(content) is str and self._block is not None and not self._thinking and not self._mend:
                    writer.text(self._block, content)
                elif content:
                    self._take_content(content)
                if delta.tool_calls:
                    self._take_calls(delta)
            if choice.finish_reason is not None:
                self._reason = choice.finish_reason
        if chunk.usage is not None or chunk.error is not None or not choices:
            self._take_rest(chunk, data, event)
        if self._mend:
            self._mend = self._halves.pending or self._call_halves.pending
        events, writer.events = writer.events, []
        return events

    def finish(self) -> list[AssistantEvent]:
        """End the response: no more data comes.

        Raises:
            ProviderFailure: the response is not complete, or it ended for a reason that is not an answer.
        """
        self._end_block()
        for index, half in self._call_halves.flush().items():
            self.writer.arguments(index, half)
        self.writer.close_all()
        self.writer.done(self._stop_reason(), raw=self._reason)
        return self.writer.take()

    def _stop_reason(self) -> StopReason:
        reason, provider = self._reason, self._model.provider
        if reason is None:
            raise ProviderFailure(f"{provider}: the stream ended without finish_reason, so the response is incomplete", kind="incomplete")
        stop = STOP_REASONS.get(reason)
        if stop is None:
            self.writer.set(raw_stop_reason=reason)
            raise ProviderFailure(f"{provider} stopped the response (finish_reason: {reason})", kind=BAD_REASONS.get(reason, "unknown"))
        if stop == "length":
            return stop
        return "tool_use" if self._calls else "stop"  # the calls that arrived count, not the word

    # -- text and thinking

    def _take_head(self, chunk: Chunk) -> None:
        self.writer.set(response_id=chunk.id or None, response_model=chunk.model if chunk.model not in (None, "", self._model.id) else None)

    def _take_content(self, content: str | list[dict[str, Any]]) -> None:
        if isinstance(content, str):
            self._say(content, thinking=False)
            return
        for part in content:
            kind = part.get("type")
            if kind in ("text", "thinking"):
                self._say(part_text(part), thinking=kind == "thinking")
                signature = part.get("signature")
                if isinstance(signature, str) and signature and kind == "thinking":
                    self.writer.sign(self._open(thinking=True), signature)
            elif not self._ignored:
                self._ignored = True
                self.writer.note(f"a part of the type {str(kind)[:50]} was ignored")

    def _say(self, text: str, *, thinking: bool) -> None:
        if not text:
            return
        block = self._open(thinking=thinking)
        self.writer.text(block, self._halves.join(block, text) if self._mend else text)

    def _open(self, *, thinking: bool) -> int:
        """Return the open block if it is of this kind, else a new one."""
        if self._block is None or thinking != self._thinking:
            self._end_block()
            self._block = self.writer.open_thinking() if thinking else self.writer.open_text()
            self._thinking = thinking
        return self._block

    def _end_block(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            for half in self._halves.flush().values():
                self.writer.text(block, half)
            self.writer.close(block)

    # -- calls

    def _take_calls(self, delta: Delta) -> None:
        self._end_block()
        for piece in delta.tool_calls or ():
            function = piece.function or _NOTHING
            call = self._find(piece, function)
            arguments = function.arguments
            if arguments:
                text = arguments if isinstance(arguments, str) else encode_json(arguments).decode()
                self.writer.arguments(call.at, self._call_halves.join(call.at, text) if self._mend else text)

    def _find(self, piece: CallPiece, function: FunctionPiece) -> _Call:
        """Return the call that a piece belongs to: the one at its index, unless the piece says that it is another one."""
        given_id = "" if (piece.id or "").strip().lower() in _NO_ID else cast(str, piece.id).strip()
        name = function.name or ""
        call = self._by_index.get(piece.index) if piece.index is not None else self._calls[-1] if self._calls else None
        if call is None or self._is_next(call, given_id, name):
            call = self._start(given_id, name)
        elif name and not call.name:
            call.name = name
            self.writer.name_call(call.at, name=self._names.get(name, name))
        if piece.index is not None:
            self._by_index[piece.index] = call
        return call

    def _is_next(self, call: _Call, given_id: str, name: str) -> bool:
        if given_id and call.given_id:
            return given_id != call.given_id
        return bool(name and call.name) and (name != call.name or self._is_complete(call))

    def _is_complete(self, call: _Call) -> bool:
        text = self.writer.arguments_text(call.at).strip()
        return text.endswith("}") and parse_arguments(text)[1] is None

    def _start(self, given_id: str, name: str) -> _Call:
        call_id = given_id if given_id and given_id not in self._ids else self._generate(name)
        self._ids.add(call_id)
        call = _Call(self.writer.open_call(call_id, self._names.get(name, name)), given_id, name)
        self._calls.append(call)
        return call

    def _generate(self, name: str) -> str:
        """Return an id of the protocol's length that depends on the response and its place in the conversation alone."""
        number = len(self._calls)
        while (made := short_hash(f"{self.writer.partial.response_id}|{self._turn}|{number}|{name}", 9)) in self._ids:
            number += 1
        return made

    # -- what is no plain chunk

    def _take_rest(self, chunk: Chunk, data: bytes, event: str) -> None:
        if chunk.usage is not None:
            self.writer.set(usage=read_usage(self._model, chunk.usage))
        if chunk.error is not None:
            raise event_failure({"error": chunk.error}, provider=self._model.provider)
        if not chunk.choices and chunk.usage is None:
            self._look_for_error(data, event)

    def _look_for_error(self, data: bytes, event: str) -> None:
        """Find an error in an event that has neither choices nor usage."""
        value = lenient_json(data, provider=self._model.provider)
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if "error" in (event, fields.get("object"), fields.get("type")) or "detail" in fields or ("message" in fields and "choices" not in fields):
            raise event_failure(value, provider=self._model.provider)

    def _read_leniently(self, data: bytes) -> Chunk:
        """Read what the typed decoder refuses; texts may hold half a character then."""
        value = lenient_json(data, provider=self._model.provider)
        self._mend = True
        if isinstance(value, dict):
            return chunk_from(cast("dict[str, Any]", value))
        self.writer.note("an event that is no object was ignored")
        return Chunk()
