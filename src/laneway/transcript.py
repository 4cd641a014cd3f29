"""Reading a transcript: what the model was told, what it believes it can call, and what a provider may be sent.

The system prompt and the tool declarations live in the transcript as system messages; *replaying* them in order gives
the state of now. All functions are pure, take lists with messages of any role, and ignore the roles they do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct

from laneway.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ImageContent,
    Message,
    SystemMessage,
    TextContent,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
)

__all__ = [
    "Projection",
    "ToolChanges",
    "ToolDeclarer",
    "collapse_system_messages",
    "convert_to_llm",
    "current_system_message",
    "current_system_prompt",
    "current_tools",
    "declare_tool_changes",
    "initial_system_message",
    "normalise",
    "render_system",
    "render_system_update",
    "tool_changes",
]

NO_RESULT = "No result: the call was interrupted before it could finish."
NO_OUTPUT = "(no output)"
IMAGE_REFUSED = "(an image was here; it was left out because the provider refused it)"


# ---------------------------------------------------------------------------------------------------- system replay


class ToolChanges(Struct, frozen=True):
    """The difference between two lists of declarations; a changed declaration is in both."""

    added: list[ToolDeclaration]
    removed: list[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def initial_system_message(system_prompt: str, tools: Sequence[ToolDeclaration]) -> SystemMessage | None:
    """Return the leading system message of a new transcript (timestamp 0), None if there is nothing to say."""
    if not system_prompt and not tools:
        return None
    return SystemMessage(content=system_prompt, tools_added=list(tools) or None, timestamp=0)


def current_tools(messages: Iterable[AgentMessage]) -> list[ToolDeclaration]:
    """Replay the declarations: per system message removals first, then additions; re-adding a name keeps its place."""
    tools: dict[str, ToolDeclaration] = {}
    for message in messages:
        if isinstance(message, SystemMessage):
            _apply_tools(tools, message)
    return list(tools.values())


def _apply_tools(tools: dict[str, ToolDeclaration], message: SystemMessage) -> None:
    for name in message.tools_removed or ():
        tools.pop(name, None)
    for declaration in message.tools_added or ():
        tools[declaration.name] = declaration


def current_system_message(messages: Iterable[AgentMessage]) -> SystemMessage | None:
    """Merge all system messages into one: contents joined by a blank line, sections patched by name, tools replayed.

    Its timestamp is the first one's. None if there are no system messages.
    """
    contents: list[str] = []
    sections: dict[str, str | None] = {}
    tools: dict[str, ToolDeclaration] = {}
    timestamp: int | None = None
    for message in messages:
        if not isinstance(message, SystemMessage):
            continue
        timestamp = message.timestamp if timestamp is None else timestamp
        if message.content.strip():
            contents.append(message.content)
        for name, value in (message.sections or {}).items():
            if value is None:
                sections.pop(name, None)
            else:
                sections[name] = value
        _apply_tools(tools, message)
    if timestamp is None:
        return None
    return SystemMessage(
        content="\n\n".join(contents), sections=sections or None, tools_added=list(tools.values()) or None, timestamp=timestamp
    )


def render_system(message: SystemMessage) -> str:
    """Return the prompt text of a merged system message: content, then each section, joined by blank lines."""
    parts = [message.content, *(value for value in (message.sections or {}).values() if value)]
    return "\n\n".join(part for part in parts if part.strip())


def render_system_update(message: SystemMessage) -> str:
    """Return the text of a system message in the middle of a conversation; tools are not rendered."""
    parts = [message.content]
    for name, value in (message.sections or {}).items():
        parts.append(f'The section "{name}" no longer applies.' if value is None else f'Section "{name}", updated:\n\n{value}')
    return "\n\n".join(part for part in parts if part.strip())


def current_system_prompt(messages: Iterable[AgentMessage]) -> str:
    """Return the system prompt in force, "" if there is none."""
    message = current_system_message(messages)
    return render_system(message) if message is not None else ""


def collapse_system_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with one merged system message first and no other; for providers without mid-conversation ones."""
    merged = current_system_message(messages)
    rest: list[Message] = [message for message in messages if not isinstance(message, SystemMessage)]
    return rest if merged is None else [merged, *rest]


def tool_changes(before: Sequence[ToolDeclaration], after: Sequence[ToolDeclaration]) -> ToolChanges:
    """Compare two lists of declarations. A changed one is removed and added; a mere reordering is no change."""
    old = {declaration.name: declaration for declaration in before}
    new = {declaration.name: declaration for declaration in after}
    return ToolChanges(
        added=[d for d in new.values() if old.get(d.name) != d],
        removed=[d.name for d in old.values() if new.get(d.name) != d],
    )


class _Declared(Protocol):
    @property
    def declaration(self) -> ToolDeclaration: ...


class _Context(Protocol):
    @property
    def messages(self) -> Sequence[AgentMessage]: ...
    @property
    def tools(self) -> Sequence[_Declared]: ...


def declare_tool_changes(context: _Context, pending: Sequence[AgentMessage]) -> list[AgentMessage]:
    """Return `pending` with the difference between the declared tools and `context.tools` put on a system message.

    The difference goes onto the last pending system message (replacing its own tool fields), else onto a new one before the
    first pending message that is not a system message. Replaying `context.messages` and the result then gives exactly the
    declarations of `context.tools`.
    """
    return ToolDeclarer().declare(context.messages, context.tools, pending)


class ToolDeclarer:
    """`declare_tool_changes` for a transcript that grows: remembers what it replayed, so a turn costs what is new in it."""

    __slots__ = ("_declared", "_seen", "_tools")

    def __init__(self) -> None:
        self._seen: list[AgentMessage] = []
        self._declared: dict[str, ToolDeclaration] = {}
        self._tools: Sequence[_Declared] | None = None

    def declare(
        self, messages: Sequence[AgentMessage], tools: Sequence[_Declared], pending: Sequence[AgentMessage], *, append_only: bool = False
    ) -> list[AgentMessage]:
        """See `declare_tool_changes`. `append_only` promises that `messages` only grew since the last call."""
        changed = self._replay(messages, append_only)
        if not pending and not changed and self._tools == tools:
            return []
        last = next((i for i in range(len(pending) - 1, -1, -1) if isinstance(pending[i], SystemMessage)), None) if pending else None
        if last is None and not changed and self._tools == tools:
            return list(pending)
        self._tools = list(tools)
        wanted = [tool.declaration for tool in tools]
        if last is None and list(self._declared.values()) == wanted:  # as in the first turn of nearly every run
            return list(pending)
        declared = dict(self._declared)
        for index, message in enumerate(pending):
            if isinstance(message, SystemMessage) and index != last:
                _apply_tools(declared, message)
        return self._merge(pending, last, tool_changes(list(declared.values()), wanted))

    def _replay(self, messages: Sequence[AgentMessage], append_only: bool) -> bool:
        """Bring the declared tools up to date; say whether any system message was new."""
        seen = len(self._seen)
        changed = False
        if not append_only and self._seen != messages[:seen]:
            self._seen, self._declared, seen, changed = [], {}, 0, True
        if seen == len(messages):
            return changed
        new: Sequence[Any] = messages[seen:]
        self._seen += new
        for message in new:
            if type(message) is SystemMessage:
                _apply_tools(self._declared, message)
                changed = True
        return changed

    @staticmethod
    def _merge(pending: Sequence[AgentMessage], last: int | None, delta: ToolChanges) -> list[AgentMessage]:
        out = list(pending)
        if last is not None:
            system = out[last]
            assert isinstance(system, SystemMessage)
            out[last] = msgspec.structs.replace(system, tools_added=delta.added or None, tools_removed=delta.removed or None)
        elif delta:
            at = next((i for i, message in enumerate(out) if not isinstance(message, SystemMessage)), len(out))
            out.insert(at, SystemMessage(tools_added=delta.added or None, tools_removed=delta.removed or None))
        return out


# ---------------------------------------------------------------------------------------------------- for a provider


def convert_to_llm(messages: Iterable[AgentMessage]) -> list[Message]:
    """Turn agent messages into what a provider understands: the default of the loop, `Agent` and the harness.

    Built-in messages pass as they are; custom content, commands that the person ran and summaries become user messages; roles that are
    not known here are left out.
    """
    return [converted for message in messages if (converted := _convert(message)) is not None]


_BUILT_IN = frozenset({UserMessage, AssistantMessage, ToolResultMessage, SystemMessage})


def _convert(message: Any) -> Message | None:
    if type(message) in _BUILT_IN or isinstance(message, AssistantMessage):
        return message
    if isinstance(message, CustomMessage):
        return UserMessage(content=message.content, timestamp=message.timestamp)
    if isinstance(message, BashExecutionMessage):
        return None if message.exclude_from_context else UserMessage(content=_bash_text(message), timestamp=message.timestamp)
    if isinstance(message, CompactionSummaryMessage):
        text = f"The conversation so far was condensed into this summary:\n\n<summary>\n{message.summary}\n</summary>"
        return UserMessage(content=text, timestamp=message.timestamp)
    if isinstance(message, BranchSummaryMessage):
        text = f"Another branch of this conversation was explored and left; its summary:\n\n<summary>\n{message.summary}\n</summary>"
        return UserMessage(content=text, timestamp=message.timestamp)
    return None


def _bash_text(message: BashExecutionMessage) -> str:
    parts = [f"I ran `{message.command}`", f"```\n{message.output}\n```" if message.output.strip() else NO_OUTPUT]
    if message.cancelled:
        parts.append("The command was cancelled.")
    elif message.exit_code:
        parts.append(f"Exit code: {message.exit_code}")
    if message.truncated:
        more = f"; the full output is in {message.full_output_path}" if message.full_output_path else ""
        parts.append(f"The output was truncated{more}.")
    return "\n\n".join(parts)


def normalise(messages: Sequence[AgentMessage]) -> list[Message]:
    """Return what may be sent to a provider; the stored transcript is never rewritten.

    - Responses that ended in `error`, `aborted` or `deferred` are left out, and with them every result of their calls.
    - Each call has exactly one result, directly after its message, in the order of the calls: the first result wins, a missing one
      becomes an error result, results that answer nothing are left out. What stood between comes after the results.
    - A call id that an earlier response used already is replaced, in the call and in its result.
    - There is no blank text block and no empty message; an empty tool result says so in words. (A blank text that is signed stays: the
      signature is what its model gets back. For any other model it goes with the signature.)
    - After a response that failed because the provider refused an image (kind "image"), a note stands for the images that it may have meant:
      those that its model had not answered to yet. Where there are none, or where no image was answered to since the refusal before it
      (there may be too many of them), it stands for every image before it. Images that come later are sent.
    - Custom roles are converted by `convert_to_llm`.
    """
    return Projection().project(messages)


class Projection:
    """`normalise` for a transcript that grows: each message is looked at once, so a turn costs what is new in it."""

    __slots__ = (
        "_assistant", "_calls", "_clear", "_closed", "_fresh", "_fruitless", "_ids", "_judged", "_original", "_others", "_out", "_refused",
        "_results", "_seen",
    )  # fmt: skip

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._seen: list[AgentMessage] = []
        self._out: list[Message] = []
        self._closed = 0  # how much of `_out` is final: what precedes the last response
        self._fresh = True  # whether `_out` has what follows it
        self._assistant: AssistantMessage | None = None  # the last response that is sent; what follows it is still open
        self._calls: list[ToolCall] = []  # its calls
        self._results: dict[str, ToolResultMessage] = {}
        self._others: list[Message] = []
        self._ids: set[str] = set()  # of all calls so far: some providers repeat ids, and none accepts them back
        self._original: dict[str, str] = {}  # the stored id of each call of the last response that was given another
        self._judged: dict[tuple[str, str], int] = {}  # how much of `_out` each model has answered to, or refused
        self._clear = 0  # how much of `_out` surely has no image
        self._refused = 0  # from where on `_out` is new since the last refusal of an image
        self._fruitless = False  # whether there was one, and no image has been answered to since

    def project(self, messages: Sequence[AgentMessage], *, append_only: bool = False) -> list[Message]:
        """Return the provider's view of `messages` as a list of its own. Unchanged messages keep their identity.

        `append_only` promises that `messages` only grew since the last call; without it the part already seen is compared.
        """
        seen = len(self._seen)
        if not append_only and self._seen != messages[:seen]:
            self._reset()
            seen = 0
        if seen < len(messages):
            new = messages[seen:]
            self._seen += new
            for message in new:
                self._take(message)
        if not self._fresh:
            self._render()
        return self._out.copy()

    def _take(self, message: Any) -> None:
        kind = type(message)  # pyright: ignore[reportUnknownVariableType] - exact types where it is per message: `isinstance` costs several times as much on structs
        if kind is ToolResultMessage:
            self._results.setdefault(message.tool_call_id, message)
        elif kind is AssistantMessage or isinstance(message, AssistantMessage):
            if not self._fresh:
                self._render()
            self._closed = len(self._out)
            sent = _sendable(message)
            self._calls = [] if sent is None else sent.tool_calls
            self._assistant = self._with_new_ids(sent) if sent is not None and self._calls else sent
            self._results, self._others = {}, []
            if message.stop_reason not in _FAILED:
                self._note_answer(message)
            elif refuses_an_image(message):
                self._leave_images_out(message)
        elif (converted := _convert(message)) is not None and (cleaned := _without_blanks(converted)) is not None:
            self._others.append(cleaned)
        self._fresh = False

    def _with_new_ids(self, message: AssistantMessage) -> AssistantMessage:
        """Give a call whose id was used before another one, the same in every request."""
        ids, self._original = self._ids, {}
        new = {call.id for call in self._calls}
        if len(new) == len(self._calls) and ids.isdisjoint(new):
            ids |= new
            return message
        content: list[Any] = []
        for block in message.content:
            if type(block) is ToolCall:
                if block.id in ids:
                    number = next(n for n in count(2) if f"{block.id}_{n}" not in ids)
                    self._original[f"{block.id}_{number}"] = block.id
                    block = msgspec.structs.replace(block, id=f"{block.id}_{number}")
                ids.add(block.id)
            content.append(block)
        message = msgspec.structs.replace(message, content=content)
        self._calls = message.tool_calls
        return message

    def _render(self) -> None:
        """Bring what follows the closed part up to date: the last response, its results, what came after it."""
        out = self._out
        del out[self._closed :]
        if self._assistant is not None:
            out.append(self._assistant)
            for call in self._calls:
                out.append(_result_for(call, self._results.get(self._original.get(call.id, call.id))))
        out += self._others
        self._fresh = True

    def _note_answer(self, message: AssistantMessage) -> None:
        """A model has answered to all that `_out` holds."""
        self._judged[message.provider, message.model] = self._closed
        if self._fruitless:
            self._fruitless = not any(has_images(earlier) for earlier in self._out[self._refused : self._closed])
            self._refused = self._closed

    def _leave_images_out(self, refusal: AssistantMessage) -> None:
        """Put a note in the place of the images that the refusal may mean; `normalise` says which these are."""
        model, end = (refusal.provider, refusal.model), self._closed
        start = max(self._clear, 0 if self._fruitless else self._judged.get(model, 0))
        if not self._note_images(start, end):
            self._note_images(self._clear, start)
            start = self._clear
        if start == self._clear:
            self._clear = end
        self._judged[model] = self._refused = end
        self._fruitless = True

    def _note_images(self, start: int, end: int) -> int:
        """Put a note in the place of the images in a part of `_out`; return how many messages had any."""
        found = [index for index in range(start, end) if has_images(self._out[index])]
        for index in found:
            self._out[index] = replace_images(self._out[index], IMAGE_REFUSED)
        return len(found)


_FAILED = frozenset({"error", "aborted", "deferred", "pending"})


def refuses_an_image(message: Any) -> bool:
    """Whether a message is a response that failed because the provider refused an image."""
    return isinstance(message, AssistantMessage) and message.stop_reason == "error" and message.error is not None and message.error.kind == "image"


def has_images(message: Message) -> bool:
    """Whether there is an image in a message."""
    content = cast("str | list[Any]", message.content)
    return type(content) is list and any(type(block) is ImageContent for block in content)


_AnyMessage = TypeVar("_AnyMessage", bound=Message)


def replace_images(message: _AnyMessage, note: str) -> _AnyMessage:
    """Return the message with `note` in the place of each run of images; without any, the message itself."""
    if not has_images(message):
        return message
    blocks: Any = message.content
    out: list[Any] = []
    for block in blocks:
        if type(block) is not ImageContent:
            out.append(block)
        elif not (out and type(out[-1]) is TextContent and out[-1].text == note):
            out.append(TextContent(text=note))
    return msgspec.structs.replace(message, content=out)


def _sendable(message: AssistantMessage) -> AssistantMessage | None:
    if message.stop_reason in _FAILED:
        return None
    content = message.content
    for block in content:
        if type(block) is TextContent and not block.text.strip() and block.signature is None:
            content = [block for block in content if not isinstance(block, TextContent) or block.text.strip() or block.signature is not None]
            message = msgspec.structs.replace(message, content=content)
            break
    return message if content else None


def _without_blanks(message: Message) -> Message | None:
    if not isinstance(message, UserMessage):
        return message
    if isinstance(message.content, str):
        return message if message.content.strip() else None
    blocks = _without_blank_text(message.content)
    if not blocks:
        return None
    return message if len(blocks) == len(message.content) else msgspec.structs.replace(message, content=blocks)


def _without_blank_text(blocks: list[TextContent | ImageContent]) -> list[TextContent | ImageContent]:
    return [block for block in blocks if not isinstance(block, TextContent) or block.text.strip()]


def _result_for(call: ToolCall, result: ToolResultMessage | None) -> ToolResultMessage:
    if result is None:
        return ToolResultMessage(
            tool_call_id=call.id, tool_name=call.name, content=[TextContent(text=NO_RESULT)], is_error=True, timestamp=0
        )
    if result.tool_call_id != call.id:
        result = msgspec.structs.replace(result, tool_call_id=call.id)
    content = result.content
    if len(content) == 1 and type(content[0]) is TextContent and content[0].text.strip():
        return result
    blocks = _without_blank_text(content)
    if not blocks:
        return msgspec.structs.replace(result, content=[TextContent(text=NO_OUTPUT)])
    return result if len(blocks) == len(result.content) else msgspec.structs.replace(result, content=blocks)
