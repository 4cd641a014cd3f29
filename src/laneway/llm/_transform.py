"""Hand-off: a stored transcript made fit for one model, without touching what is stored.

`laneway.transcript.normalise` heals the order (every call has its one result, failed responses are gone). What is here
depends on the target: foreign reasoning is dropped, signatures go only to the model that made them, ids and tool names become legal and stay
distinct, images become a note for a model that cannot see. `OutgoingConversation` does all of it for a conversation that grows, at the
cost of what is new; a wire gives it a `Converter` that writes the wire's own items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from hashlib import blake2s
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from laneway.llm._grown import Grown
from laneway.llm.base import Model, encode_json
from laneway.messages import (
    AgentMessage,
    AssistantContent,
    AssistantMessage,
    Message,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
)
from laneway.transcript import (
    Projection,
    collapse_system_messages,
    current_system_message,
    current_system_prompt,
    current_tools,
    normalise,
    refuses_an_image,
    render_system,
    render_system_update,
    replace_images,
    tool_changes,
)

__all__ = [
    "IMAGE_PLACEHOLDER", "Converter", "IdPolicy", "OutgoingConversation", "ToolPlan", "WireItems", "collapse_system_messages", "convert_cached",
    "current_system_message", "current_system_prompt", "current_tools", "encode_body", "legal_tool_name", "normalise", "plan_tools", "render_system",
    "render_system_update", "same_model", "short_hash", "split_system", "system_messages", "tool_name_map", "transform",
]  # fmt: skip

IMAGE_PLACEHOLDER = "(an image was here; this model cannot see images)"


def same_model(message: AssistantMessage, model: Model) -> bool:
    """Whether `model` itself wrote the message: provider, wire and id are equal, so its signatures mean something to it."""
    return message.model == model.id and message.provider == model.provider and message.api == model.api


# ---------------------------------------------------------------------------------------------------- ids


def short_hash(text: str, length: int = 8, *, salt: int = 0) -> str:
    """Return `length` hexadecimal digits (at most 64) that depend on `text` and `salt` alone, in every process and for ever."""
    return blake2s(f"{salt}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:length]


class IdPolicy(Struct, kw_only=True, frozen=True):
    """What a provider accepts as the id of a tool call.

    `chars` is the inside of a regular-expression class. `fixed` says that ids have exactly `max_length` characters. With
    `compound`, an id "call|item" keeps its shape: each part is fitted on its own and ids are distinct in the part before the bar.
    """

    max_length: int = 40
    chars: str = "A-Za-z0-9_-"
    fixed: bool = False
    compound: bool = False

    def accepts(self, call_id: str) -> bool:
        """Whether an id (or one part of a compound one) can be sent as it is."""
        length = len(call_id)
        return 0 < length <= self.max_length and (not self.fixed or length == self.max_length) and not re.search(f"[^{self.chars}]", call_id)

    def fit(self, call_id: str, *, salt: int = 0) -> str:
        """Return an id that is accepted: the id itself, or one that starts alike and ends in a hash of the whole id and `salt`."""
        if self.compound and "|" in call_id:
            call, _, item = call_id.partition("|")
            return f"{self._fit_part(call, salt)}|{self._fit_part(item, salt)}"
        return self._fit_part(call_id, salt)

    def _fit_part(self, call_id: str, salt: int) -> str:
        if not salt and self.accepts(call_id):
            return call_id
        if self.fixed:
            return short_hash(call_id, self.max_length, salt=salt)
        head = re.sub(f"[^{self.chars}]", "_", call_id.partition("|")[0])[: self.max_length - 9]
        return f"{head or 'call'}_{short_hash(call_id, salt=salt)}"

    def key(self, fitted: str) -> str:
        """Return the part of a fitted id that must be distinct within a request."""
        return fitted.partition("|")[0] if self.compound else fitted


class _Ids:
    """Maps the stored ids of one conversation to legal, pairwise distinct ones; the same way whenever the conversation begins the same way."""

    __slots__ = ("_policy", "_taken")

    def __init__(self, policy: IdPolicy, taken: set[str] | None = None) -> None:
        self._policy = policy
        self._taken: set[str] = taken or set()

    def copy(self) -> _Ids:
        return _Ids(self._policy, set(self._taken))

    def next(self, call_id: str) -> str:
        """Return the wire's id for the next call of the conversation."""
        salt = 0
        while True:
            fitted = self._policy.fit(call_id, salt=salt)
            key = self._policy.key(fitted)
            if key not in self._taken:
                self._taken.add(key)
                return fitted
            salt += 1


# ---------------------------------------------------------------------------------------------------- tool names

_ILLEGAL_NAME = re.compile(r"[^A-Za-z0-9_-]")


def legal_tool_name(name: str, max_length: int = 64) -> str:
    """Return the name under which a tool is declared to a provider (letters, digits, `_`, `-`); legal names stay as they are."""
    if 0 < len(name) <= max_length and not _ILLEGAL_NAME.search(name):
        return name
    return f"{_ILLEGAL_NAME.sub('_', name)[: max_length - 9] or 'tool'}_{short_hash(name)}"


def tool_name_map(tools: Iterable[ToolDeclaration]) -> dict[str, str]:
    """Return the real names of the tools that a provider knows under another one: wire name → real name."""
    return {wire: tool.name for tool in tools if (wire := legal_tool_name(tool.name)) != tool.name}


# ---------------------------------------------------------------------------------------------------- one message


class _Handoff:
    """Pass 1: what depends on the target model, message after message in the order of the conversation."""

    __slots__ = ("_ids", "_model", "_open", "_vision")

    def __init__(self, model: Model, ids: _Ids) -> None:
        self._model = model
        self._ids = ids
        self._vision = "image" in model.input
        self._open: list[tuple[str, str]] = []  # stored id and wire id of the calls whose results come next

    def copy(self) -> _Handoff:
        other = _Handoff(self._model, self._ids.copy())
        other._open = list(self._open)
        return other

    def apply(self, message: Message) -> Message:
        kind = type(message)
        if kind is AssistantMessage:
            return self._assistant(cast(AssistantMessage, message))
        if kind is ToolResultMessage:
            return self._result(cast(ToolResultMessage, message))
        return message if self._vision else replace_images(message, IMAGE_PLACEHOLDER)

    def _assistant(self, message: AssistantMessage) -> AssistantMessage:
        own = same_model(message, self._model)
        self._open = []
        content: list[AssistantContent] = []
        for block in message.content:
            if isinstance(block, ToolCall):
                content.append(self._call(block, own))
            elif isinstance(block, TextContent):
                if own or block.signature is None:
                    content.append(block)
                elif block.text.strip():
                    content.append(replace(block, signature=None))
            elif own and (block.signature or block.redacted or block.thinking.strip()):
                content.append(block)
        if len(content) == len(message.content) and all(a is b for a, b in zip(content, message.content, strict=True)):
            return message
        return replace(message, content=content)

    def _call(self, call: ToolCall, own: bool) -> ToolCall:
        wire_id = self._ids.next(call.id)
        self._open.append((call.id, wire_id))
        signature = call.signature if own else None
        name = legal_tool_name(call.name)
        if wire_id == call.id and signature == call.signature and name == call.name:
            return call
        return replace(call, id=wire_id, signature=signature, name=name)

    def _result(self, message: ToolResultMessage) -> ToolResultMessage:
        """Results follow their calls in order, so two calls that share a stored id are told apart by position."""
        at = next((i for i, (stored, _) in enumerate(self._open) if stored == message.tool_call_id), None)
        wire_id = self._open.pop(at)[1] if at is not None else message.tool_call_id
        name = legal_tool_name(message.tool_name)
        if wire_id != message.tool_call_id or name != message.tool_name:
            message = replace(message, tool_call_id=wire_id, tool_name=name)
        return message if self._vision else replace_images(message, IMAGE_PLACEHOLDER)


def transform(messages: Sequence[AgentMessage], model: Model, ids: IdPolicy | None = None) -> list[Message]:
    """Return what `model` may be sent of a transcript: normalised, then handed off. System messages stay where they are."""
    handoff = _Handoff(model, _Ids(ids or IdPolicy()))
    return [handoff.apply(message) for message in normalise(messages)]


# ---------------------------------------------------------------------------------------------------- system and tools


def split_system(messages: Sequence[Message]) -> tuple[SystemMessage | None, list[Message]]:
    """Return the leading system message (several at the head are merged) and the rest."""
    head = next((i for i, message in enumerate(messages) if not isinstance(message, SystemMessage)), len(messages))
    return current_system_message(messages[:head]), list(messages[head:])


class _SystemFold:
    """`system_messages`, message after message."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[tuple[int, SystemMessage]] = []

    def take(self, messages: Sequence[AgentMessage], start: int) -> list[tuple[int, SystemMessage]]:
        self._found += [(at, message) for at, message in enumerate(messages[start:], start) if type(message) is SystemMessage]
        return self._found.copy()


_systems: Grown[list[tuple[int, SystemMessage]]] = Grown(_SystemFold)


def system_messages(messages: Sequence[Message]) -> list[SystemMessage]:
    """Return the system messages, which is all that the replay of prompt and tools looks at."""
    return [message for _, message in _systems.of(messages)]


class ToolPlan(Struct, kw_only=True, frozen=True):
    """Where a provider learns of the tools: `declared` at the top of the request, `added` and `removed` at system messages (by their index).

    The messages before index `folded` have their declarations at the top; `folded_systems` of them are system messages.
    """

    declared: list[ToolDeclaration]
    added: dict[int, list[ToolDeclaration]]
    removed: dict[int, list[str]]
    folded: int
    folded_systems: int


def plan_tools(messages: Sequence[Message], mode: Literal["none", "additions", "changes"]) -> ToolPlan:
    """Decide where each declaration goes, so that the top of the request (which is cached first) changes as seldom as possible.

    - "none": the current tools are declared at the top; the provider learns of changes there.
    - "additions": what was declared up to the last change that is more than an addition is at the top, later additions are in place.
    - "changes": every declaration is in place, those of the leading system message included; nothing is at the top.
    """
    systems = _systems.of(messages)
    if mode == "none":
        return ToolPlan(
            declared=current_tools([message for _, message in systems]), added={}, removed={}, folded=len(messages), folded_systems=len(systems)
        )
    added: dict[int, list[ToolDeclaration]] = {}
    removed: dict[int, list[str]] = {}
    folded = 0 if mode == "changes" else _fold_up_to(systems)
    above = [message for index, message in systems if index < folded]
    declared = known = current_tools(above)
    for index, message in systems:
        if index >= folded and (message.tools_added or message.tools_removed):
            after = current_tools([SystemMessage(tools_added=known), message])
            change = tool_changes(known, after)
            if change.added:
                added[index] = change.added
            if change.removed:
                removed[index] = change.removed
            known = after
    return ToolPlan(declared=declared, added=added, removed=removed, folded=folded, folded_systems=len(above))


def _fold_up_to(systems: list[tuple[int, SystemMessage]]) -> int:
    """The index after the last system message that must be folded into the top: the leading ones, and any that removes or redefines."""
    fold = 0
    known: set[str] = set()
    for index, message in systems:
        names = {tool.name for tool in message.tools_added or ()}
        if index == fold or message.tools_removed or names & known:
            fold = index + 1
        known |= names
    return fold


# ---------------------------------------------------------------------------------------------------- a growing conversation

Item = TypeVar("Item")


class WireItems(list[Item]):
    """A wire's items of one conversation: a list like any other, which `encode_body` writes without encoding again what has not changed.

    `lead` items come first that are new in each request (a system prompt), then those whose JSON is kept. Do not change an item in
    place; `with_lead` and `with_item` return changed copies.
    """

    __slots__ = ("_kept", "_lead", "_size")

    def __init__(self, items: Iterable[Item] = (), kept: _KeptJson | None = None, lead: int = 0) -> None:
        super().__init__(items)
        self._kept = kept or _KeptJson()
        self._size = (self._kept.count, len(self._kept.json))
        self._lead = lead

    def with_lead(self, *items: Item) -> WireItems[Item]:
        """Return the items with others before them."""
        return self._like([*items, *self], self._lead + len(items))

    def with_item(self, index: int, item: Item) -> list[Item]:
        """Return the items with one replaced; what is kept stays kept if it is not touched by that."""
        changed = list(self)
        changed[index] = item
        index %= len(changed)
        return changed if self._lead <= index < self._lead + self._size[0] else self._like(changed, self._lead)

    def _like(self, items: list[Item], lead: int) -> WireItems[Item]:
        other = WireItems(items, self._kept, lead)
        other._size = self._size
        return other

    def json_parts(self) -> list[bytes | memoryview]:
        """Return the pieces of the JSON array, in order; what is kept is among them without being copied."""
        count, size = self._size
        groups: list[bytes | memoryview] = []
        if self._lead:
            groups.append(encode_json(list(self[: self._lead]))[1:-1])
        if size:
            groups.append(memoryview(self._kept.json)[:size])
        if len(self) > self._lead + count:
            groups.append(encode_json(list(self[self._lead + count :]))[1:-1])
        parts: list[bytes | memoryview] = [b"["]
        for group in groups:
            parts += [group] if len(parts) == 1 else [b",", group]
        return [*parts, b"]"]

    def to_json(self) -> bytes:
        """Return the JSON array."""
        return b"".join(self.json_parts())

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Item]:
        return [deepcopy(item, memo) for item in self]


class _KeptJson:
    """The JSON of the first `count` items, separated by commas; it only ever grows."""

    __slots__ = ("count", "json")

    def __init__(self) -> None:
        self.count = 0
        self.json = bytearray()

    def extend(self, items: Sequence[Any]) -> None:
        """Take the items beyond `count`."""
        new = items[self.count :]
        if new:
            more = encode_json(list(new))[1:-1]
            more = b"," + more if self.json else more
            try:
                self.json += more
            except BufferError:  # a request that another thread sends is being put together from it
                self.json = self.json + more
            self.count = len(items)


def encode_body(body: dict[str, Any]) -> bytes:
    """Encode a request body like `encode_json`, at the cost of what is new in its `WireItems`: what is kept is copied once, into the result."""
    parts: list[bytes | memoryview] = []
    plain: dict[str, Any] = {}
    for key, value in body.items():
        if not isinstance(value, WireItems):
            plain[key] = value
            continue
        before = encode_json({**plain, key: None})  # ends in `null}`, in whose place the items go
        parts += [b"," + before[1:-5] if parts else before[:-5], *cast("WireItems[Any]", value).json_parts()]
        plain = {}
    if not parts:
        return encode_json(body)
    parts.append(b"," + encode_json(plain)[1:] if plain else b"}")
    return b"".join(parts)


class Converter(Protocol[Item]):
    """Writes a wire's items (its messages). It is fed messages in order and never changes an item that it has finished.

    `copy()` is made just before an assistant message, so state that only lives between a response and the next one needs no copying.
    """

    @property
    def items(self) -> list[Item]:
        """The items that are finished. What is held back (images that wait for the last result, say) is not among them."""
        ...

    def add(self, message: Message) -> None:
        """Take the next message."""
        ...

    def finish(self) -> list[Item]:
        """Return all items; what was held back is written now. Called on a copy, so the state may be spent."""
        ...

    def copy(self) -> Converter[Item]:
        """Return an independent converter in the same state; finished items may be shared."""
        ...


class OutgoingConversation(Generic[Item]):
    """One conversation as one wire sends it. Asked again for a longer transcript, it looks only at what is new.

    Everything before the last response can no longer change and is kept, as items and as JSON; the rest is converted anew each time.
    """

    def __init__(self, model: Model, ids: IdPolicy, converter: Converter[Item]) -> None:
        self._projection = Projection()
        self._handoff = _Handoff(model, _Ids(ids))
        self._converter = converter
        self._kept = _KeptJson()
        self._seen: list[AgentMessage] = []
        self._settled = 0

    @property
    def kept_bytes(self) -> int:
        """How much JSON is kept."""
        return len(self._kept.json)

    def begins(self, messages: Sequence[AgentMessage]) -> bool:
        """Whether what was converted so far is a beginning of `messages`, and stays as it is: a refused image changes what came before."""
        seen = len(self._seen)
        return seen <= len(messages) and messages[:seen] == self._seen and not any(map(refuses_an_image, messages[seen:]))

    def items(self, messages: list[AgentMessage]) -> WireItems[Item]:
        """Return the wire's items for the whole transcript, of which `begins` is true."""
        self._seen = messages
        normal = self._projection.project(messages, append_only=True)  # `begins` has compared what it saw
        start = self._settled
        settled = max((i for i in range(start, len(normal)) if isinstance(normal[i], AssistantMessage)), default=start)
        for message in normal[start:settled]:
            self._converter.add(self._handoff.apply(message))
        self._settled = settled
        self._kept.extend(self._converter.items)
        handoff, converter = self._handoff.copy(), self._converter.copy()
        for message in normal[settled:]:
            converter.add(handoff.apply(message))
        return WireItems(converter.finish(), self._kept)


_CACHE_SIZE = 16
_CACHE_BYTES = 64 * 1024 * 1024
_cache: list[tuple[Any, OutgoingConversation[Any]]] = []


def convert_cached(key: Any, messages: Sequence[AgentMessage], make: Callable[[], OutgoingConversation[Item]]) -> WireItems[Item]:
    """Return the wire's items for `messages`, from the few conversations remembered if one of them begins the same.

    `key` must be equal for two requests exactly if they convert alike (the model, the wire's quirks). The items are shared between
    requests: whoever wants to change one copies it first.
    """
    taken = list(messages)
    found: OutgoingConversation[Any] | None = None
    for entry in reversed(list(_cache)):
        if entry[0] == key and entry[1].begins(taken):
            try:
                _cache.remove(entry)
            except ValueError:  # another thread took it
                continue
            found = entry[1]
            break
    if found is None:
        found = make()
    items = found.items(taken)
    _cache.append((key, found))
    del _cache[:-_CACHE_SIZE]
    while sum(entry[1].kept_bytes for entry in _cache) > _CACHE_BYTES:
        del _cache[:1]
    return items
