"""Puts tool calls together from streamed fragments, whichever way a server labels them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from laneway.llm._partial_json import parse_arguments
from laneway.llm._transform import short_hash
from laneway.llm._writer import StreamWriter
from laneway.llm.wire.openai_chat._chunks import CallPiece, FunctionPiece

_NO_ID = ("", "null", "none")
_NOTHING = FunctionPiece()


class _Slot:
    """One call of the response. `shadow` is the text of a second call under the same id, which may be a mere repetition."""

    __slots__ = ("block", "given_id", "last", "name", "repeats_name", "shadow")

    def __init__(self, block: int, given_id: str, name: str) -> None:
        self.block = block
        self.given_id = given_id
        self.name = name
        self.last = ""  # the last piece of the arguments
        self.repeats_name = False
        self.shadow: list[str] | None = None


class CallAssembler:
    """Assigns each fragment to its call: by index; where the server gives none, by id; else to the last call.

    Servers leave out the index or the id, use an index again for the next call, repeat one call under several indexes, and use
    one id for several calls. Every call gets an id of its own that is not empty; a generated one depends on the response and its place
    in the conversation alone (`turn`: how many messages come before it).
    """

    def __init__(self, writer: StreamWriter, names: Mapping[str, str], turn: int = 0) -> None:
        self._writer = writer
        self._names = names
        self._turn = turn
        self._slots: list[_Slot] = []
        self._by_index: dict[int, _Slot] = {}
        self._shadowed: set[int] = set()  # indexes whose fragments repeat a call under its id
        self._ids: set[str] = set()

    def take(self, pieces: Sequence[CallPiece], join: Callable[[int, str], str] | None = None) -> None:
        """Take the pieces of one chunk, in order; `join(block, delta)` mends characters that were cut in two."""
        fresh: list[_Slot] = []
        for piece in pieces:
            function = piece.function or _NOTHING
            index, delta = piece.index, function.arguments or ""
            if index is not None and not piece.id and not function.name and index in self._by_index and not self._shadowed:
                self._append(self._by_index[index], delta, join)  # by far the most common: one more piece of a known call
            else:
                self._take_labelled(index, _identifier(piece.id), (function.name or "").strip(), delta, fresh, join)

    def _take_labelled(
        self, index: int | None, given_id: str, name: str, delta: str, fresh: list[_Slot], join: Callable[[int, str], str] | None
    ) -> None:
        slot, shadow = self._find(index, given_id, name, delta, fresh)
        if slot is None:
            slot = self._open(given_id, name)
            fresh.append(slot)
        elif not shadow:
            self._fill_in(slot, given_id, name)
        if index is not None:
            self._by_index[index] = slot
            (self._shadowed.add if shadow else self._shadowed.discard)(index)
        if shadow:
            slot.shadow = [*(slot.shadow or ()), delta]
        else:
            self._append(slot, delta, join)

    def _find(self, index: int | None, given_id: str, name: str, delta: str, fresh: list[_Slot]) -> tuple[_Slot | None, bool]:
        """Return the call that a fragment belongs to (None: a new one), and whether it only repeats that call."""
        at_index = self._by_index.get(index) if index is not None else None
        if at_index is not None and index in self._shadowed and not (given_id and given_id != at_index.given_id):
            return at_index, True
        if at_index is not None:
            return (None if self._is_next_call(at_index, given_id, name, delta) else at_index), False
        same_id = next((slot for slot in self._slots if given_id and slot.given_id == given_id), None)
        if same_id is not None:
            if name and name != same_id.name:
                return None, False
            return same_id, bool(name) and (index is not None or self._is_complete(same_id))
        if index is not None or given_id or not self._slots:
            return None, False
        last = self._slots[-1]
        return (None if name and (last in fresh or self._is_next_call(last, "", name, delta)) else last), False

    def _is_next_call(self, slot: _Slot, given_id: str, name: str, delta: str) -> bool:
        """Whether a fragment that is labelled like `slot` begins another call all the same."""
        if given_id and slot.given_id and given_id != slot.given_id:
            return bool(name) or self._is_complete(slot)
        if not name or given_id or slot.repeats_name:
            return False
        if name != slot.name and slot.name:
            return True
        if delta and self._is_complete(slot):
            return True
        slot.repeats_name = True
        return False

    def _is_complete(self, slot: _Slot) -> bool:
        return slot.last.rstrip().endswith("}") and parse_arguments(self._writer.arguments_text(slot.block))[1] is None

    def _open(self, given_id: str, name: str) -> _Slot:
        call_id = given_id if given_id and given_id not in self._ids else self._generate(name)
        self._ids.add(call_id)
        slot = _Slot(self._writer.open_call(call_id, self._names.get(name, name)), given_id, name)
        self._slots.append(slot)
        return slot

    def _generate(self, name: str) -> str:
        seed = f"{self._writer.partial.response_id}|{self._turn}|{len(self._slots)}|{name}"
        return f"call_{short_hash(seed, 20)}"

    def _fill_in(self, slot: _Slot, given_id: str, name: str) -> None:
        """Take an id or a name that arrived after the first fragment."""
        if given_id and not slot.given_id and given_id not in self._ids:
            slot.given_id = given_id
            self._ids.add(given_id)
            self._writer.name_call(slot.block, call_id=given_id)
        if name and not slot.name:
            slot.name = name
            self._writer.name_call(slot.block, name=self._names.get(name, name))

    def _append(self, slot: _Slot, delta: str, join: Callable[[int, str], str] | None) -> None:
        if join is not None:
            delta = join(slot.block, delta)
        self._writer.arguments(slot.block, delta)
        slot.last = delta or slot.last

    def finish(self) -> int:
        """Settle calls that came twice under one id and return how many calls there are."""
        for slot in list(self._slots):
            if slot.shadow is None:
                continue
            text = "".join(slot.shadow)
            if parse_arguments(text) == parse_arguments(self._writer.arguments_text(slot.block)):
                self._writer.note(f"the call {slot.given_id} came twice with the same arguments and was taken once")
                continue
            again = self._open("", slot.name)
            self._append(again, text, None)
        return len(self._slots)


def _identifier(value: str | None) -> str:
    text = (value or "").strip()
    return "" if text.lower() in _NO_ID else text
