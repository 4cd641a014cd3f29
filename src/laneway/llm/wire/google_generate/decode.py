"""Chunks of a streamed response → assistant events. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from laneway.events import AssistantEvent
from laneway.llm._errors import event_failure
from laneway.llm._lenient import HalfPairs, lenient_json
from laneway.llm._transform import short_hash
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ProviderFailure, encode_json
from laneway.llm.wire.google_generate._chunks import (
    Candidate,
    Chunk,
    Counts,
    FunctionCall,
    HeadChunk,
    Part,
    chunk_from,
    decode_chunk,
    decode_head,
    read_usage,
)
from laneway.messages import AssistantMessage, ErrorKind, StopReason

STOP_REASONS: dict[str, StopReason] = {"STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length"}
"""The finish reasons that mean an answer. All other words end the response as an error that names them."""
BAD_REASONS: dict[str, ErrorKind] = {
    "SAFETY": "content_filter", "RECITATION": "content_filter", "BLOCKLIST": "content_filter", "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter", "MODEL_ARMOR": "content_filter", "IMAGE_SAFETY": "content_filter", "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter", "MALFORMED_FUNCTION_CALL": "server", "MALFORMED_RESPONSE": "server",
    "UNEXPECTED_TOOL_CALL": "server", "MISSING_THOUGHT_SIGNATURE": "invalid_request",
}  # fmt: skip
"""What the others mean; a malformed call is worth another try. A word that is not here is an unknown failure."""


class UsageWriter(StreamWriter):
    """A writer that prices the last report of tokens when the response ends, however it does: there is one in every chunk."""

    __slots__ = ("_model", "counts")

    def __init__(self, model: Model, *, thinking_level: str | None = None) -> None:
        super().__init__(model, thinking_level=thinking_level)
        self._model = model
        self.counts: Counts | None = None

    def settle_usage(self) -> None:
        """Make the usage what was reported last."""
        if self.counts is not None:
            self.set(usage=read_usage(self._model, self.counts))

    def fail(self, error: BaseException, aborted: bool) -> AssistantMessage:
        """Return the message of a response that failed, with what had arrived."""
        self.settle_usage()
        return super().fail(error, aborted)

    fallback = fail


class Decoder:
    """Turns the data of server-sent events into assistant events, through a `UsageWriter`.

    `feed` every event's data, then `finish`. Both return the events that came of it and raise `ProviderFailure` for a response
    that failed; what had been collected by then is in the writer. One block is open at a time: text and thought go on while their kind stays
    and end with their signature; a call comes whole. `names` maps a tool's name on the wire to its real one;
    `turn` is how many messages come before the response, for ids that have to be made.
    """

    def __init__(self, model: Model, writer: UsageWriter, *, names: Mapping[str, str] | None = None, turn: int = 0) -> None:
        self.writer = writer
        self._model = model
        self._names = names or {}
        self._turn = turn
        self._block: int | None = None
        self._thinking = False  # what kind the open block is of
        self._signature: str | None = None  # of the open block
        self._halves = HalfPairs()
        self._mend = False  # whether the chunk at hand may hold half a character, or wait for one
        self._ids: set[str] = set()
        self._reason: str | None = None
        self._why = ""
        self._blocked: dict[str, Any] | None = None
        self._ignored = False
        self._decode: Callable[[bytes], Chunk] = decode_head

    @property
    def complete(self) -> bool:
        """The protocol has no last event: the end of the body is the end."""
        return False

    def feed(self, data: bytes, event: str = "") -> list[AssistantEvent]:
        """Take the data of one event.

        Raises:
            ProviderFailure: the server reports an error, or what it sends cannot be understood.
        """
        try:
            chunk = self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            chunk = self._read_leniently(data)
        if type(chunk) is HeadChunk:
            self._take_head(chunk)
        candidates, writer = chunk.candidates, self.writer
        if candidates:  # what follows runs once per delta: it is written to be cheap
            self._take_candidate(candidates[0])
        if chunk.usage_metadata is not None:
            if writer.counts is None:
                writer.set(usage=read_usage(self._model, chunk.usage_metadata))  # what the prompt took is known from the start
            writer.counts = chunk.usage_metadata
        if chunk.error is not None or not candidates:
            self._take_rest(chunk, data, event)
        if self._mend:
            self._mend = self._halves.pending
        events, writer.events = writer.events, []
        return events

    def finish(self) -> list[AssistantEvent]:
        """End the response: no more data comes.

        Raises:
            ProviderFailure: the response is not complete, or it ended for a reason that is not an answer.
        """
        self._end_block()
        self.writer.settle_usage()
        self.writer.done(self._stop_reason(), raw=self._reason)
        return self.writer.take()

    def _stop_reason(self) -> StopReason:
        reason, provider = self._reason, self._model.provider
        if reason is None:
            raise self._without_reason()
        stop = STOP_REASONS.get(reason)
        if stop is None:
            self.writer.set(raw_stop_reason=reason)
            why = f": {self._why}" if self._why else ""
            raise ProviderFailure(f"{provider} stopped the response (finishReason: {reason}){why}", kind=BAD_REASONS.get(reason, "unknown"))
        return "tool_use" if stop == "stop" and self._ids else stop

    def _without_reason(self) -> ProviderFailure:
        if self._blocked is None:
            text = f"{self._model.provider}: the stream ended without finishReason, so the response is incomplete"
            return ProviderFailure(text, kind="incomplete")
        reason = str(self._blocked.get("blockReason"))
        self.writer.set(raw_stop_reason=reason)
        why = f": {self._blocked['blockReasonMessage']}" if self._blocked.get("blockReasonMessage") else ""
        return ProviderFailure(f"{self._model.provider} refused the prompt (blockReason: {reason}){why}", kind="content_filter")

    # -- parts of a chunk

    def _take_head(self, chunk: HeadChunk) -> None:
        """Learn who answers from the first chunk that says so; later ones are decoded without that."""
        if chunk.response_id and self.writer.partial.response_id is None:
            self.writer.set(response_id=chunk.response_id)
            self._decode = decode_chunk
        if chunk.model_version not in (None, "", self._model.id):
            self.writer.set(response_model=chunk.model_version)

    def _take_candidate(self, candidate: Candidate) -> None:
        """Take the first candidate, the only one that is asked for."""
        content = candidate.content
        if content is not None and content.parts:
            for part in content.parts:
                text = part.text
                if text and self._block is not None and part.function_call is None and not self._mend and self._goes_on(part):
                    self.writer.text(self._block, text)
                elif part.function_call is not None:
                    self._take_call(part.function_call, part.thought_signature or None)
                else:
                    self._take_text(part)
        if candidate.finish_reason is not None:
            self._reason, self._why = candidate.finish_reason, candidate.finish_message or ""

    def _goes_on(self, part: Part) -> bool:
        """Whether a part without a signature belongs to the open block."""
        return part.thought_signature is None and self._signature is None and bool(part.thought) == self._thinking

    def _take_text(self, part: Part) -> None:
        text, signature = part.text or "", part.thought_signature or None
        if not text and signature is None:
            if part.text is None:
                self._ignore()
            return
        thinking = bool(part.thought)
        if self._block is None or thinking != self._thinking or (self._signature is not None and signature != self._signature):
            self._end_block()
            self._block = self.writer.open_thinking() if thinking else self.writer.open_text()
            self._thinking = thinking
        if text:
            self.writer.text(self._block, self._halves.join(self._block, text) if self._mend else text)
        if signature is not None:
            self._signature = signature
            self.writer.sign(self._block, signature)

    def _take_call(self, call: FunctionCall, signature: str | None) -> None:
        self._end_block()
        name = call.name or ""
        call_id = call.id if call.id and call.id not in self._ids else self._generate(name)
        self._ids.add(call_id)
        index = self.writer.open_call(call_id, self._names.get(name, name), signature=signature)
        self.writer.arguments(index, encode_json(call.args or {}).decode())
        self.writer.close(index)

    def _generate(self, name: str) -> str:
        """Return an id that depends on the response and its place in the conversation alone."""
        number = len(self._ids)
        while (made := f"call_{short_hash(f'{self.writer.partial.response_id}|{self._turn}|{number}|{name}', 20)}") in self._ids:
            number += 1
        return made

    def _end_block(self) -> None:
        if self._block is None:
            return
        for index, half in self._halves.flush().items():
            self.writer.text(index, half)
        self.writer.close(self._block)
        self._block = self._signature = None

    def _ignore(self) -> None:
        if not self._ignored:
            self._ignored = True
            self.writer.note("a part that is neither text nor a call was ignored")

    # -- what is no plain chunk

    def _take_rest(self, chunk: Chunk, data: bytes, event: str) -> None:
        if chunk.error is not None:
            raise event_failure({"error": chunk.error}, provider=self._model.provider)
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.get("blockReason"):
            self._blocked = chunk.prompt_feedback
        elif chunk.usage_metadata is None:
            self._look_for_error(data, event)

    def _look_for_error(self, data: bytes, event: str) -> None:
        """Find an error in an event that says nothing else: gateways have several shapes for it."""
        value = lenient_json(data, provider=self._model.provider)
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if event == "error" or "error" in fields or (fields.keys() & {"message", "detail"} and fields.keys() & {"code", "status", "type"}):
            raise event_failure(value, provider=self._model.provider)

    def _read_leniently(self, data: bytes) -> Chunk:
        """Read what the typed decoder refuses; texts may hold half a character then."""
        value: Any = lenient_json(data, provider=self._model.provider)
        self._mend = True
        if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
            value = cast("list[Any]", value)[0]
        if isinstance(value, dict):
            return chunk_from(cast("dict[str, Any]", value))
        self.writer.note("an event that is no object was ignored")
        return Chunk()
