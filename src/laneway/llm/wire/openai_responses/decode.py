"""Events of a streamed response → assistant events. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from laneway.events import AssistantEvent
from laneway.llm._errors import event_failure
from laneway.llm._lenient import lenient_json
from laneway.llm._writer import StreamWriter
from laneway.llm.base import Model, ProviderFailure
from laneway.llm.wire.openai_responses._events import Event, as_dict, as_str, decode_event, dicts, event_from, read_usage
from laneway.llm.wire.openai_responses._slots import Slots
from laneway.messages import ErrorKind, StopReason

DONE = b"[DONE]"
ENDS: dict[str, str] = {
    "response.completed": "completed", "response.done": "completed", "response.incomplete": "incomplete", "response.failed": "failed",
    "response.cancelled": "cancelled",
}  # fmt: skip
"""The events that end a response, and the status that they mean."""
GOOD_STATUSES = frozenset({"completed", "in_progress", "queued"})
_TEXT_DELTA = "response.output_text.delta"
_DELTAS = frozenset({
    _TEXT_DELTA, "response.refusal.delta", "response.reasoning_summary_text.delta", "response.reasoning_text.delta",
    "response.function_call_arguments.delta", "response.custom_tool_call_input.delta",
})  # fmt: skip


class Decoder:
    """Turns the data of server-sent events into assistant events, through a `StreamWriter`.

    `feed` every event's data, then `finish`. Both return the events that came of it and raise `ProviderFailure` for a response
    that failed; what had been collected by then is in the writer. An output item is a block; what the item says at its end is what counts.
    `names` maps a tool's name on the wire to its real one; `service_tier` is what was asked for, which the response may correct; `turn` is how
    many messages come before the response, for ids that have to be made. `raw_inputs` maps the wire name of a tool that takes a raw text to the
    argument that it becomes.
    """

    def __init__(
        self,
        model: Model,
        writer: StreamWriter,
        *,
        names: Mapping[str, str] | None = None,
        raw_inputs: Mapping[str, str] | None = None,
        service_tier: Any = None,
        turn: int = 0,
    ) -> None:
        self.writer = writer
        self._model = model
        self._tier = as_str(service_tier)
        self._slots = Slots(writer, names or {}, provider=model.provider, turn=turn, raw_inputs=raw_inputs)
        self._response: dict[str, Any] = {}
        self._status: str | None = None  # the word of the event that ended the response

    @property
    def complete(self) -> bool:
        """Whether the server said that nothing more comes."""
        return self._status is not None

    def feed(self, data: bytes, event: str = "") -> list[AssistantEvent]:
        """Take the data of one event.

        Raises:
            ProviderFailure: the server reports an error, or what it sends cannot be understood.
        """
        if self._status is not None or data == DONE:
            return []
        slots, writer = self._slots, self.writer
        slots.mend = False
        try:
            found = decode_event(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = self._read_leniently(data)
        if found.type == _TEXT_DELTA:  # by far the most common
            slot = slots.plain_text(found.output_index)
            if slot is not None and found.delta and not slots.mend:
                writer.text(slot, found.delta)
            else:
                slots.delta(found)
        else:
            self._take(found, data, event)
        events, writer.events = writer.events, []
        return events

    def finish(self) -> list[AssistantEvent]:
        """End the response: no more data comes.

        Raises:
            ProviderFailure: the response is not complete, or it ended for a reason that is not an answer.
        """
        provider = self._model.provider
        if self._status is None:
            text = f"{provider}: the stream ended before a terminal response event, so the response is incomplete"
            raise ProviderFailure(text, kind="incomplete")
        stop, raw = self._stop_reason()
        if stop != "length" and self._slots.has_open_call:
            self.writer.set(raw_stop_reason=raw)
            raise ProviderFailure(f"{provider}: the response ended without the end of a tool call, so the call is incomplete", kind="incomplete")
        self._slots.end_all()
        self.writer.done(stop, raw=raw)
        return self.writer.take()

    def _stop_reason(self) -> tuple[StopReason, str]:
        status = as_str(self._response.get("status")) or self._status or ""
        if status in GOOD_STATUSES and self._status in ("incomplete", "failed", "cancelled"):
            status = self._status
        why = as_str(as_dict(self._response.get("incomplete_details")).get("reason"))
        raw = f"{status}.{why}" if why else status
        if status in GOOD_STATUSES:
            return ("tool_use" if self._slots.calls else "stop"), raw
        if status == "incomplete" and why == "max_output_tokens":
            return "length", raw
        self.writer.set(raw_stop_reason=raw)
        raise self._failure(status, why, raw)

    def _failure(self, status: str, why: str | None, raw: str) -> ProviderFailure:
        provider = self._model.provider
        error = self._response.get("error")
        if error:
            return event_failure({"error": error}, provider=provider)
        if why == "content_filter":
            return ProviderFailure(f"{provider} stopped the response because of its content filter ({raw})", kind="content_filter")
        kind: ErrorKind = "server" if status in ("failed", "cancelled") and why is None else "unknown"
        return ProviderFailure(f"{provider} stopped with: {raw}, without saying more", kind=kind)

    # -- events

    def _take(self, event: Event, data: bytes, name: str) -> None:
        kind = event.type or ""
        if kind in _DELTAS:
            self._slots.delta(event)
        elif kind in ENDS:
            self._end(ENDS[kind], self._object(event.response))
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self._learn(self._object(event.response))
        elif kind == "response.output_item.added":
            self._slots.start(event.output_index, self._object(event.item))
        elif kind == "response.output_item.done":
            self._slots.end(event.output_index, self._object(event.item), bytes(event.item))
        elif kind == "response.function_call_arguments.done":
            self._slots.complete(event, event.arguments)
        elif kind == "response.custom_tool_call_input.done":
            self._slots.complete(event, event.input)
        elif kind == "error" or name == "error" or (event.error is not None and not kind.startswith("response.")):
            raise event_failure(lenient_json(data, provider=self._model.provider), provider=self._model.provider)
        elif event.object == "response":
            whole = as_dict(lenient_json(data, provider=self._model.provider))
            self._end(as_str(whole.get("status")) or "completed", whole)

    def _object(self, raw: msgspec.Raw) -> dict[str, Any]:
        data = bytes(raw)
        if not data:
            return {}
        try:
            return as_dict(msgspec.json.decode(data))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._slots.mend = True
            return as_dict(lenient_json(data, provider=self._model.provider))

    def _learn(self, response: dict[str, Any]) -> None:
        """Learn who answers, and what it has counted."""
        name = as_str(response.get("model")) or None
        if name is not None:
            self.writer.set(response_model=name if name != self._model.id else None)
        response_id = as_str(response.get("id"))
        if response_id:
            self.writer.set(response_id=response_id)
        self._tier = as_str(response.get("service_tier")) or self._tier
        usage = response.get("usage")
        if isinstance(usage, dict):
            self.writer.set(usage=read_usage(self._model, cast("dict[str, Any]", usage), tier=self._tier))

    def _end(self, status: str, response: dict[str, Any]) -> None:
        """Take the response as the server sums it up: usage, status, and what it had not said before."""
        self._status, self._response = status, response
        self._learn(response)
        self._slots.catch_up(dicts(response.get("output")))

    def _read_leniently(self, data: bytes) -> Event:
        """Read what the typed decoder refuses; deltas may hold half a character then."""
        value = lenient_json(data, provider=self._model.provider)
        self._slots.mend = True
        if isinstance(value, dict):
            return event_from(cast("dict[str, Any]", value))
        self._slots.ignore("an event that is no object")
        return Event()
