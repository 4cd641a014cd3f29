"""Hand-off: a stored transcript made fit for one model, without touching what is stored.

`laneway.transcript.normalise` heals the order (every call has its one result, failed responses are gone). What is here
depends on the target: foreign reasoning is dropped, signatures go only to the model that made them, ids and tool names become legal and stay
distinct, images become a note for a model that cannot see. `OutgoingConversation` does all of it for a conversation that grows, at the
cost of what is new; a wire gives it a `Converter` that writes the wire's own items.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2s
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from laneway.llm.base import Model
from laneway.messages import (
    AgentMessage,
    AssistantContent,
    AssistantMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserContent,
    UserMessage,
)
from laneway.transcript import (
    Projection,
    collapse_system_messages,
    current_system_message,
    current_system_prompt,
    current_tools,
    normalise,
    render_system,
    render_system_update,
    tool_changes,
)

__all__ = [
    "IMAGE_PLACEHOLDER", "Converter", "IdPolicy", "OutgoingConversation", "ToolPlan", "collapse_system_messages", "convert_cached",
    "current_system_message", "current_system_prompt", "current_tools", "legal_tool_name", "normalise", "plan_tools", "render_system",
    "render_system_update", "same_model", "short_hash", "split_system", "tool_name_map", "transform",
]  # fmt: skip

IMAGE_PLACEHOLDER = "(an image was here; this model cannot see images)"


def same_model(message: AssistantMessage, model: Model) -> bool:
    """Whether `model` itself wrote the message: provider, wire and id are equal, so its signatures mean something to it."""
    return message.model == model.id and message.provider == model.provider and message.api == model.api


# ---------------------------------------------------------------------------------------------------- ids


def short_hash(text: str, length: int = 8, *, salt: int = 0) -> str:
    """Return `length` characters (a-z, 2-7; at most 52) that depend on `text` alone, in every process and for ever."""
    digest = blake2s(f"{salt}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return b32encode(digest).decode().rstrip("=").lower()[:length]


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
        if isinstance(message, AssistantMessage):
            return self._assistant(message)
        if isinstance(message, ToolResultMessage):
            return self._result(message)
        if isinstance(message, UserMessage) and not self._vision and isinstance(message.content, list):
            return _without_images(message)
        return message

    def _assistant(self, message: AssistantMessage) -> AssistantMessage:
        own = same_model(message, self._model)
        self._open = []
        content: list[AssistantContent] = []
        for block in message.content:
            if isinstance(block, ToolCall):
                content.append(self._call(block, own))
            elif isinstance(block, TextContent):
                content.append(block if own or block.signature is None else replace(block, signature=None))
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
        return message if self._vision else _without_images(message)


_WithImages = TypeVar("_WithImages", UserMessage, ToolResultMessage)


def _without_images(message: _WithImages) -> _WithImages:
    """Put a note in the place of each run of images."""
    blocks = cast("list[UserContent]", message.content)
    if not any(isinstance(block, ImageContent) for block in blocks):
        return message
    out: list[UserContent] = []
    for block in blocks:
        if not isinstance(block, ImageContent):
            out.append(block)
        elif not (out and isinstance(out[-1], TextContent) and out[-1].text == IMAGE_PLACEHOLDER):
            out.append(TextContent(text=IMAGE_PLACEHOLDER))
    return replace(message, content=out)


def transform(messages: Sequence[AgentMessage], model: Model, ids: IdPolicy | None = None) -> list[Message]:
    """Return what `model` may be sent of a transcript: normalised, then handed off. System messages stay where they are."""
    handoff = _Handoff(model, _Ids(ids or IdPolicy()))
    return [handoff.apply(message) for message in normalise(messages)]


# ---------------------------------------------------------------------------------------------------- system and tools


def split_system(messages: Sequence[Message]) -> tuple[SystemMessage | None, list[Message]]:
    """Return the leading system message (several at the head are merged) and the rest."""
    head = next((i for i, message in enumerate(messages) if not isinstance(message, SystemMessage)), len(messages))
    return current_system_message(messages[:head]), list(messages[head:])


class ToolPlan(Struct, kw_only=True, frozen=True):
    """Where a provider learns of the tools: `declared` at the top of the request, `added` and `removed` at system messages (by their index).

    The messages before index `folded` have their declarations at the top.
    """

    declared: list[ToolDeclaration]
    added: dict[int, list[ToolDeclaration]]
    removed: dict[int, list[str]]
    folded: int


def plan_tools(messages: Sequence[Message], mode: Literal["none", "additions", "changes"]) -> ToolPlan:
    """Decide where each declaration goes, so that the top of the request (which is cached first) changes as seldom as possible.

    - "none": the current tools are declared at the top; the provider learns of changes there.
    - "additions": what was declared up to the last change that is more than an addition is at the top, later additions are in place.
    - "changes": every declaration is in place, those of the leading system message included; nothing is at the top.
    """
    if mode == "none":
        return ToolPlan(declared=current_tools(messages), added={}, removed={}, folded=len(messages))
    added: dict[int, list[ToolDeclaration]] = {}
    removed: dict[int, list[str]] = {}
    folded = 0 if mode == "changes" else _fold_up_to(messages)
    known = current_tools(messages[:folded])
    for index in range(folded, len(messages)):
        message = messages[index]
        if isinstance(message, SystemMessage) and (message.tools_added or message.tools_removed):
            after = current_tools([SystemMessage(tools_added=known), message])
            change = tool_changes(known, after)
            if change.added:
                added[index] = change.added
            if change.removed:
                removed[index] = change.removed
            known = after
    return ToolPlan(declared=current_tools(messages[:folded]), added=added, removed=removed, folded=folded)


def _fold_up_to(messages: Sequence[Message]) -> int:
    """The index after the last system message that must be folded into the top: the leading ones, and any that removes or redefines."""
    fold = next((i for i, message in enumerate(messages) if not isinstance(message, SystemMessage)), len(messages))
    known: dict[str, ToolDeclaration] = {}
    for index, message in enumerate(messages):
        if isinstance(message, SystemMessage):
            names = {tool.name for tool in message.tools_added or ()}
            if message.tools_removed or names & known.keys():
                fold = max(fold, index + 1)
            known.update((tool.name, tool) for tool in message.tools_added or ())
    return fold


# ---------------------------------------------------------------------------------------------------- a growing conversation

Item = TypeVar("Item")


class Converter(Protocol[Item]):
    """Writes a wire's items (its messages). It is fed messages in order and never changes an item that it has finished.

    `copy()` is made just before an assistant message, so state that only lives between a response and the next one needs no copying.
    """

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

    Everything before the last response can no longer change and is kept; the rest is converted anew each time.
    """

    def __init__(self, model: Model, ids: IdPolicy, converter: Converter[Item]) -> None:
        self._projection = Projection()
        self._handoff = _Handoff(model, _Ids(ids))
        self._converter = converter
        self._seen: list[AgentMessage] = []
        self._settled: list[Message] = []

    def begins(self, messages: Sequence[AgentMessage]) -> bool:
        """Whether what was converted so far is a beginning of `messages`."""
        return len(self._seen) <= len(messages) and messages[: len(self._seen)] == self._seen

    def items(self, messages: list[AgentMessage]) -> list[Item]:
        """Return the wire's items for the whole transcript."""
        self._seen = messages
        normal = self._projection.project(messages)
        start = len(self._settled)
        settled = max((i for i in range(start, len(normal)) if isinstance(normal[i], AssistantMessage)), default=start)
        for message in normal[start:settled]:
            self._converter.add(self._handoff.apply(message))
        self._settled = normal[:settled]
        handoff, converter = self._handoff.copy(), self._converter.copy()
        for message in normal[settled:]:
            converter.add(handoff.apply(message))
        return converter.finish()


_CACHE_SIZE = 16
_cache: list[tuple[Any, OutgoingConversation[Any]]] = []


def convert_cached(key: Any, messages: Sequence[AgentMessage], make: Callable[[], OutgoingConversation[Item]]) -> list[Item]:
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
    items = cast("list[Item]", found.items(taken))
    _cache.append((key, found))
    del _cache[:-_CACHE_SIZE]
    return items
