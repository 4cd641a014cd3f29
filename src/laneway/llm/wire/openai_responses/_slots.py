"""Output items → blocks: which block an event belongs to, and how the pieces of an item become its content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from laneway.llm._lenient import HalfPairs
from laneway.llm._transform import short_hash
from laneway.llm._writer import StreamWriter
from laneway.llm.base import ProviderFailure
from laneway.llm.wire.openai_responses._events import Event, as_str, message_text, reasoning_text
from laneway.llm.wire.openai_responses._items import CUSTOM_INPUT, compact_json, text_signature
from laneway.messages import clean_text

Kind = Literal["text", "thinking", "call", "custom"]
KINDS: dict[str, Kind] = {"message": "text", "reasoning": "thinking", "function_call": "call", "custom_tool_call": "custom"}
_PARAGRAPH = "\n\n"


class _Slot:
    """An output item that is still open. `part` is the piece of a reasoning that came last; `raw` is the input of a custom call so far,
    `property` the argument that it is.
    """

    __slots__ = ("at", "halves", "item_id", "kind", "part", "property", "raw")

    def __init__(self, kind: Kind, at: int, item_id: str, property: str = CUSTOM_INPUT) -> None:
        self.kind: Kind = kind
        self.at = at
        self.item_id = item_id
        self.property = property
        self.halves: HalfPairs | None = None
        self.part: tuple[str | None, int | None] | None = None
        self.raw: list[str] = []


class Slots:
    """The open items of a response, by their output index (by their id where a server gives none)."""

    def __init__(
        self, writer: StreamWriter, names: Mapping[str, str], *, provider: str, turn: int = 0, raw_inputs: Mapping[str, str] | None = None
    ) -> None:
        self.mend = False  # whether the event at hand may hold half a character
        self.calls = 0
        self._writer = writer
        self._names = names
        self._provider = provider
        self._turn = turn
        self._raw_inputs = raw_inputs or {}
        self._open: dict[Any, _Slot] = {}
        self._plain: dict[int, int] = {}  # open texts for which nothing waits: output index → block
        self._seen: set[str] = set()  # the ids of all items so far
        self._bare: dict[str, int] = {}  # reasoning that ended without its encrypted form: item id → block
        self._ids: set[str] = set()  # of calls
        self._ignored: set[str] = set()

    @property
    def has_open_call(self) -> bool:
        """Whether a call has begun whose end never came."""
        return any(slot.kind in ("call", "custom") for slot in self._open.values())

    def plain_text(self, index: int | None) -> int | None:
        """Return the block of an open text, to which a delta can be added just so."""
        return self._plain.get(index) if index is not None else None

    # -- the life of an item

    def start(self, index: int | None, item: dict[str, Any]) -> _Slot | None:
        """Open the block of an item; None for one that has no place in a message."""
        kind = KINDS.get(as_str(item.get("type")) or "")
        item_id = as_str(item.get("id")) or ""
        if kind is None:
            self.ignore(f"an item of the type {item.get('type')}")
            return None
        key: Any = index if index is not None else item_id
        if key in self._open:
            return self._open[key]
        if kind == "text":
            at = self._writer.open_text()
            if index is not None:
                self._plain[index] = at
        elif kind == "thinking":
            at = self._writer.open_thinking()
        else:
            name = as_str(item.get("name")) or ""
            at = self._writer.open_call(self._call_id(item, item_id, name), self._names.get(name, name))
            self.calls += 1
        if item_id:
            self._seen.add(item_id)
        slot = self._open[key] = _Slot(kind, at, item_id, self._raw_inputs.get(as_str(item.get("name")) or "", CUSTOM_INPUT))
        return slot

    def _call_id(self, item: dict[str, Any], item_id: str, name: str) -> str:
        """Return the id of a call: the provider's for it, and (after a bar) the one of its item."""
        given = as_str(item.get("call_id")) or ""
        if not given or given in self._ids:
            given = f"call_{short_hash(f'{self._writer.partial.response_id}|{self._turn}|{self.calls}|{name}', 20)}"
        self._ids.add(given)
        return f"{given}|{item_id}" if item_id else given

    def _find(self, event: Event) -> _Slot | None:
        slot = self._open.get(event.output_index if event.output_index is not None else event.item_id)
        if slot is None and event.item_id:
            slot = next((slot for slot in self._open.values() if slot.item_id == event.item_id), None)
        return slot

    def delta(self, event: Event) -> None:
        """Add a piece to its block. A text or reasoning that nobody announced begins with its first piece."""
        slot = self._find(event)
        if slot is None:
            slot = self._unannounced(event)
        if slot is None or not event.delta:
            return
        if slot.kind == "thinking":
            self._new_part(slot, event)
        self._append(slot, event.delta)

    def _unannounced(self, event: Event) -> _Slot | None:
        kind = event.type or ""
        index = event.output_index
        if "function_call" in kind or "custom_tool" in kind or (event.item_id or "") in self._seen:
            return None
        return self.start(index, {"type": "reasoning" if "reasoning" in kind else "message", "id": event.item_id})

    def _new_part(self, slot: _Slot, event: Event) -> None:
        """Separate the parts of a reasoning."""
        part = (event.type, event.summary_index if event.summary_index is not None else event.content_index)
        if slot.part is not None and slot.part != part:
            self._writer.text(slot.at, _PARAGRAPH)
        slot.part = part

    def _append(self, slot: _Slot, text: str) -> None:
        if self.mend or slot.halves is not None:
            text = self._mended(slot, text)
        if slot.kind == "custom":
            self._append_raw(slot, text)
        elif slot.kind == "call":
            self._writer.arguments(slot.at, text)
        else:
            self._writer.text(slot.at, text)

    def _mended(self, slot: _Slot, text: str) -> str:
        """Join characters that were cut in two; while a half waits the block is not plain."""
        slot.halves = slot.halves or HalfPairs()
        text = slot.halves.join(0, text)
        if slot.halves.pending:
            for index in [index for index, at in self._plain.items() if at == slot.at]:
                del self._plain[index]
        else:
            slot.halves = None
        return text

    def _append_raw(self, slot: _Slot, text: str) -> None:
        """Show the raw input of a custom tool as what it is kept as: the JSON of an object with one string."""
        opening = "" if slot.raw else f'{{{compact_json(slot.property)}:"'
        slot.raw.append(text)
        self._writer.arguments(slot.at, opening + json.dumps(text, ensure_ascii=False)[1:-1])

    def complete(self, event: Event, full: str | None) -> None:
        """Take the whole arguments (or input) of a call, of which some may have come already."""
        slot = self._find(event)
        if slot is not None and full is not None and slot.kind in ("call", "custom"):
            self._extend(slot, full)

    def _extend(self, slot: _Slot, full: str) -> None:
        """Add what is missing.

        Raises:
            ProviderFailure: the input of a custom tool is another one than what had been streamed.
        """
        full = clean_text(full)
        sent = "".join(slot.raw) if slot.kind == "custom" else self._writer.arguments_text(slot.at)
        if full.startswith(sent):
            if len(full) > len(sent):
                slot.halves = None
                self._append(slot, full[len(sent) :])
        elif slot.kind == "custom":
            text = f"{self._provider}: the input of a tool call is not what had been streamed of it"
            raise ProviderFailure(text, kind="protocol")

    # -- ends

    def end(self, index: int | None, item: dict[str, Any], text: bytes) -> None:
        """End an item with what it says itself; `text` is its JSON. One that nobody announced begins and ends here."""
        key: Any = index if index is not None else as_str(item.get("id")) or ""
        slot = self._open.get(key)
        if slot is None and (as_str(item.get("id")) or "") in self._seen:
            return
        slot = slot or self.start(index, item)
        if slot is None:
            return
        del self._open[key]
        if index is not None:
            self._plain.pop(index, None)
        self._flush(slot)
        slot.item_id = as_str(item.get("id")) or slot.item_id
        if slot.kind == "text":
            self._end_text(slot, item)
        elif slot.kind == "thinking":
            self._end_thinking(slot, item, text)
        else:
            self._end_call(slot, item)

    def _end_text(self, slot: _Slot, item: dict[str, Any]) -> None:
        if slot.item_id:
            self._writer.sign(slot.at, text_signature(slot.item_id, as_str(item.get("phase"))))
        said = message_text(item)
        self._writer.close(slot.at, content=None if said is None else clean_text(said))

    def _end_thinking(self, slot: _Slot, item: dict[str, Any], text: bytes) -> None:
        """The signature is the item as it came, byte for byte: that is what has to be sent back."""
        self._writer.sign(slot.at, text.decode("utf-8", "replace"))
        if not item.get("encrypted_content") and slot.item_id:
            self._bare[slot.item_id] = slot.at
        said = reasoning_text(item)
        self._writer.close(slot.at, content=None if said is None else clean_text(said))

    def _end_call(self, slot: _Slot, item: dict[str, Any]) -> None:
        full = as_str(item.get("input" if slot.kind == "custom" else "arguments"))
        if full is not None:
            self._extend(slot, full)
        if slot.kind == "custom":
            self._writer.close(slot.at, arguments=compact_json({slot.property: "".join(slot.raw)}))
        else:
            self._writer.close(slot.at, arguments=full or None)

    def _flush(self, slot: _Slot) -> None:
        """Give up on a half character that waited in vain."""
        if slot.halves is not None:
            waiting, slot.halves, mend = slot.halves.flush(), None, self.mend
            self.mend = False
            for half in waiting.values():
                self._append(slot, half)
            self.mend = mend

    def end_all(self) -> None:
        """End the items whose own end never came, with what came of them."""
        for slot in self._open.values():
            self._flush(slot)
            if slot.kind == "custom":
                self._writer.close(slot.at, arguments=compact_json({slot.property: "".join(slot.raw)}))
        self._open.clear()

    def catch_up(self, output: list[dict[str, Any]]) -> None:
        """Take from the finished response what its events had left out: the encrypted form of reasoning, the ends of items, or (from a
        server that sends no such events) everything.
        """
        nothing = not self._writer.partial.blocks
        for index, item in enumerate(output):
            item_id = as_str(item.get("id")) or ""
            bare = self._bare.get(item_id)
            if bare is not None and item.get("type") == "reasoning" and item.get("encrypted_content"):
                self._writer.sign_again(bare, compact_json(item))
            elif nothing:
                self.end(index, item, compact_json(item).encode())
            elif item.get("status") in (None, "completed"):
                key = next((key for key in (index, item_id) if key in self._open), None)
                if key is not None and self._open[key].kind == KINDS.get(as_str(item.get("type")) or ""):
                    self.end(index if key == index else None, item, compact_json(item).encode())

    def ignore(self, what: str) -> None:
        """Record, once, something that has no place in a message."""
        if what not in self._ignored and len(self._ignored) < 20:
            self._ignored.add(what)
            self._writer.note(f"{what[:100]} was ignored")
