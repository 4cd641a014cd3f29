"""Compaction, pure: how large a context is, where to cut it, what to ask a model for the part that goes.

Sizes are estimates of four characters per token. Nothing here reads, writes or asks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from msgspec import Struct

from laneway.harness.state import CompactionReason, CompactionSettings
from laneway.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

CHARS_PER_TOKEN = 4
IMAGE_CHARS = 4_800
RESULT_CHARS = 2_000  # of a tool result in a summary request
UNSENT = ("error", "aborted", "deferred", "pending")


# ---------------------------------------------------------------------------------------------------- sizes


def estimate_tokens(message: AgentMessage) -> int:
    """Return the estimated tokens of one message."""
    return math.ceil(_chars(message) / CHARS_PER_TOKEN)


def _chars(message: AgentMessage) -> int:
    match message:
        case SystemMessage():
            sections = sum(len(text) for text in (message.sections or {}).values() if text)
            tools = sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in message.tools_added or ())
            return len(message.content) + sections + tools
        case UserMessage() | ToolResultMessage() | CustomMessage():
            return _content_chars(message.content)
        case AssistantMessage():
            return sum(_block_chars(block) for block in message.content)
        case BashExecutionMessage():
            return 0 if message.exclude_from_context else len(message.command) + len(message.output)
        case CompactionSummaryMessage() | BranchSummaryMessage():
            return len(message.summary)
        case _:
            return _content_chars(getattr(message, "content", ""))


def _content_chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(_block_chars(block) for block in cast("list[Any]", content)) if isinstance(content, list) else 0


def _block_chars(block: Any) -> int:
    match block:
        case TextContent():
            return len(block.text)
        case ThinkingContent():
            return len(block.thinking)
        case ImageContent():
            return IMAGE_CHARS
        case ToolCall():
            return len(block.name) + len(json.dumps(block.arguments, ensure_ascii=False, default=str))
        case _:
            return 0


def context_tokens(messages: Sequence[AgentMessage], *, trusted_from: int = 0) -> int:
    """Return the size of a context: the usage of its last response that has one, and estimates of what came after it.

    Usage of responses before index `trusted_from` speaks of an older context and is not believed. Without any, all is estimated.
    """
    after = 0
    for index in range(len(messages) - 1, trusted_from - 1, -1):
        message = messages[index]
        if isinstance(message, AssistantMessage) and message.stop_reason not in UNSENT and (used := _used(message)):
            return used + after
        after += estimate_tokens(message)
    return after + sum(estimate_tokens(message) for message in messages[:trusted_from])


def grown_tokens(messages: Sequence[AgentMessage], added: Sequence[AgentMessage], *, trusted_from: int = 0) -> int:
    """Return the size that a context will have with some messages more."""
    after = 0
    for message in reversed(added):
        if type(message) is AssistantMessage and message.stop_reason not in UNSENT and (used := _used(message)):
            return used + after
        after += estimate_tokens(message)
    return after + context_tokens(messages, trusted_from=trusted_from)


def _used(message: AssistantMessage) -> int:
    usage = message.usage
    return usage.total_tokens or usage.input + usage.output + usage.cache_read + usage.cache_write


def reserve(settings: CompactionSettings, context_window: int) -> int:
    """Return how many tokens of the window must stay free. A reserve as large as a small model's window is cut to a quarter of it."""
    return settings.reserve_tokens if settings.reserve_tokens < context_window else context_window // 4


def is_due(tokens: int, settings: CompactionSettings, context_window: int) -> bool:
    """Whether a context is too large to go on with. An unknown window (0) never is."""
    return settings.enabled and context_window > 0 and tokens > context_window - reserve(settings, context_window)


def keep_recent(settings: CompactionSettings, context_window: int, reason: CompactionReason) -> int:
    """Return how many tokens to keep. Inside a run at most half of what fits, so that the compaction makes room."""
    if reason == "manual" or context_window <= 0:
        return settings.keep_recent_tokens
    return min(settings.keep_recent_tokens, max(context_window - reserve(settings, context_window), 0) // 2)


# ---------------------------------------------------------------------------------------------------- the cut


class Item(Struct, kw_only=True, frozen=True):
    """One step of a context: a message, or (None) an entry that the model does not see."""

    message: AgentMessage | None


def cut_points(items: Sequence[Item]) -> list[int]:
    """Return the indexes before which a context may be cut: never at a result, never between a call and its result."""
    points: list[int] = []
    open_calls: set[str] = set()
    for index, item in enumerate(items):
        message = item.message
        if message is None:
            continue
        if isinstance(message, ToolResultMessage):
            open_calls.discard(message.tool_call_id)
            continue
        if isinstance(message, AssistantMessage):
            open_calls = set()  # an id may be used again; results belong to the response just before them
        if not open_calls or not _answered_later(items, index, open_calls):
            points.append(index)
        if isinstance(message, AssistantMessage):
            open_calls = {call.id for call in message.tool_calls}
    return points


def _answered_later(items: Sequence[Item], index: int, open_calls: set[str]) -> bool:
    for item in items[index:]:
        if isinstance(item.message, AssistantMessage):
            return False
        if isinstance(item.message, ToolResultMessage) and item.message.tool_call_id in open_calls:
            return True
    return False


def choose_cut(items: Sequence[Item], keep_tokens: int, *, whole_if_small: bool) -> int:
    """Return the index of the first item that is kept; 0 means that nothing goes, `len(items)` that nothing stays.

    Walks back from the end until `keep_tokens` are together and takes the first cut point from there on, else the last one at all.
    A context smaller than that goes as a whole (`whole_if_small`, for a person who asked) or not at all.
    """
    total, reached = 0, None
    for index in range(len(items) - 1, -1, -1):
        message = items[index].message
        total += 0 if message is None else estimate_tokens(message)
        if total >= keep_tokens and message is not None:
            reached = index
            break
    if reached is None:
        return len(items) if whole_if_small else 0
    points = cut_points(items)
    cut = next((point for point in points if point >= reached), points[-1] if points else 0)
    if cut == 0 and whole_if_small:
        return len(items)
    while cut > 0 and items[cut - 1].message is None:
        cut -= 1
    return cut


def turn_start(items: Sequence[Item], cut: int) -> int | None:
    """Return where the turn begins that the cut splits; None if it splits none."""
    first = next((item.message for item in items[cut:] if item.message is not None), None)
    if not isinstance(first, AssistantMessage):
        return None
    return next((index for index in range(cut - 1, -1, -1) if _asks(items[index].message)), None)


def _asks(message: AgentMessage | None) -> bool:
    return message is not None and not isinstance(message, (AssistantMessage, ToolResultMessage, SystemMessage))


class Preparation(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a compaction or a branch summary was decided on, as it is stored: positions in a path that does not change.

    `tip_id` is where the path ends. For a compaction, the items of the path back to the newest compaction are numbered: those from
    `cut` on are kept, those from `turn_start` to `cut` are the beginning of a split turn. For a branch summary the path ends
    (exclusively) at `ancestor_id`.
    """

    kind: Literal["compaction", "branch"]
    tip_id: str | None
    cut: int = 0
    turn_start: int | None = None
    ancestor_id: str | None = None
    tokens_before: int = 0


def prepare(tip_id: str, items: Sequence[Item], *, keep_tokens: int, tokens_before: int, manual: bool) -> Preparation | None:
    """Return what to summarise, None if there is nothing."""
    cut = choose_cut(items, keep_tokens, whole_if_small=manual)
    if not any(item.message is not None for item in items[:cut]):
        return None
    return Preparation(kind="compaction", tip_id=tip_id, cut=cut, turn_start=turn_start(items, cut), tokens_before=tokens_before)


# ---------------------------------------------------------------------------------------------------- what a summary is made of


class Files(Struct, kw_only=True, frozen=True):
    """Files that the summarised part read (and did not modify) and modified; sorted."""

    read: list[str] = []
    modified: list[str] = []

    def details(self) -> dict[str, list[str]]:
        return {"read_files": self.read, "modified_files": self.modified}

    def text(self) -> str:
        """Return the lists as they are put after a summary; "" if both are empty."""
        parts = [_tagged("read-files", "\n".join(self.read))] if self.read else []
        parts += [_tagged("modified-files", "\n".join(self.modified))] if self.modified else []
        return "\n\n".join(parts)


def files_of(messages: Iterable[AgentMessage], earlier: Iterable[Any] = ()) -> Files:
    """Collect the `path` arguments of read, write and edit calls; `earlier` are `details` of our own earlier summaries."""
    read: set[str] = set()
    modified: set[str] = set()
    for details in earlier:
        if isinstance(details, Mapping):
            lists = cast("Mapping[str, Any]", details)
            read.update(str(path) for path in lists.get("read_files", ()))
            modified.update(str(path) for path in lists.get("modified_files", ()))
    for message in messages:
        for call in message.tool_calls if isinstance(message, AssistantMessage) else ():
            path = call.arguments.get("path")
            if isinstance(path, str) and path:
                if call.name == "read":
                    read.add(path)
                elif call.name in ("write", "edit"):
                    modified.add(path)
    return Files(read=sorted(read - modified), modified=sorted(modified))


@dataclass(kw_only=True, frozen=True)
class Work:
    """A preparation with its messages: what hooks see, and what requests are made from."""

    kind: Literal["compaction", "branch"]
    messages: list[AgentMessage]
    turn_prefix: list[AgentMessage] = field(default_factory=list[AgentMessage])
    retained_tail: list[AgentMessage] = field(default_factory=list[AgentMessage])
    previous_summary: str | None = None
    tokens_before: int = 0
    files: Files = field(default_factory=Files)


def serialise(messages: Iterable[AgentMessage]) -> list[str]:
    """Return the conversation as text, one piece per message: no thinking, no images, results cut short."""
    return [piece for message in messages if (piece := _piece(message))]


def _piece(message: AgentMessage) -> str:
    match message:
        case UserMessage() | CustomMessage():
            return _said("User", _text(message.content))
        case AssistantMessage():
            calls = "; ".join(f"{call.name}({_arguments(call)})" for call in message.tool_calls)
            return "\n\n".join(part for part in (_said("Assistant", message.text), _said("Assistant called", calls)) if part)
        case ToolResultMessage():
            return _said(f"Result of {message.tool_name}", _shortened(_text(message.content)))
        case BashExecutionMessage():
            return "" if message.exclude_from_context else _said("User ran", f"{message.command}\n{_shortened(message.output)}")
        case BranchSummaryMessage() | CompactionSummaryMessage():
            return _said("Earlier summary", message.summary)
        case SystemMessage():
            return _said("Instructions", message.content)
        case _:
            return _said("User", _text(getattr(message, "content", "")))


def _said(who: str, text: str) -> str:
    return f"[{who}] {text}" if text.strip() else ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return "\n".join(block.text for block in blocks if isinstance(block, TextContent))


def _shortened(text: str) -> str:
    if len(text) <= RESULT_CHARS:
        return text
    return f"{text[:RESULT_CHARS]}\n[… {len(text) - RESULT_CHARS} more characters omitted]"


def _arguments(call: ToolCall) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in call.arguments.items())


# ---------------------------------------------------------------------------------------------------- requests

SYSTEM = (
    "You condense conversations between a user and a software agent into summaries that let another agent carry on with the work. "
    "You only summarise. Do not continue the conversation, do not answer questions in it, do not call tools."
)
_SECTIONS = """\
Write the summary in these sections, in this order:

## Goal
What the user wants to achieve; several goals if there are several.

## Constraints & Preferences
What the user demanded or prefers, or "(none)".

## Progress
### Done
- [x] what is finished
### In Progress
- [ ] what is under way
### Blocked
- what is in the way, or "(none)"

## Key Decisions
- **the decision**: why

## Next Steps
1. what comes next, in order
"""
_CRITICAL = """
## Critical Context
Names, paths, values, error texts and references that the work depends on, or "(none)".
"""
_STYLE = "Be concise. Keep exact file paths, names of functions, commands and error messages."
FRESH = f"Summarise the conversation above for an agent that will carry on without having seen it.\n\n{_SECTIONS}{_CRITICAL}\n{_STYLE}"
UPDATE = (
    "The conversation above follows on from the previous summary. Bring that summary up to date: keep what still matters, add what is new, "
    f"move what is finished to Done, drop what no longer matters.\n\n{_SECTIONS}{_CRITICAL}\n{_STYLE}"
)
PREFIX = (
    "The conversation above is the beginning of a turn whose later part is kept word for word. Summarise this beginning, so that the later part "
    "can be understood.\n\n## Original Request\nWhat the user asked for in this turn.\n\n## Progress So Far\nWhat was done and decided.\n\n"
    f"## Context Needed\nWhat the kept part relies on.\n\n{_STYLE}"
)
BRANCH = f"Summarise the conversation above: a branch that was explored and then left.\n\n{_SECTIONS}\n{_STYLE}"
BRANCH_PREAMBLE = "The user explored another branch of this conversation and came back from it. Summary of that branch:"
SPLIT = "\n\n---\n\n**The beginning of the current turn:**\n\n"
NO_CONTENT = "There was nothing to summarise on that branch."

BRANCH_OUTPUT_TOKENS = 2_048
OVERHEAD_TOKENS = 2_000  # prompts, tags and safety around the text


class Ask(Struct, kw_only=True, frozen=True):
    """One request: the text of the conversation, and what is wanted. `rolling`: the result of the one before it is its previous summary."""

    text: str
    wanted: str
    part: Literal["history", "prefix"]
    previous: str | None = None
    rolling: bool = False

    def prompt(self, previous: str | None, focus: str | None) -> str:
        """Return the user message of the request."""
        parts = [_tagged("conversation", self.text)]
        if previous:
            parts.append(_tagged("previous-summary", previous))
        parts.append(self.wanted)
        if focus:
            parts.append(f"Additional focus: {focus}")
        return "\n\n".join(parts)


def plan_requests(work: Work, *, context_window: int, output_tokens: int) -> list[Ask]:
    """Return the requests that make the summary, each small enough for the model's window (0: unknown, so no bound).

    A history that is too long for one request is rolled up: each request after the first updates the summary of the one before.
    """
    if work.kind == "branch":
        pieces = _newest(serialise(work.messages), _room(context_window, output_tokens))
        return [Ask(text="\n\n".join(pieces), wanted=BRANCH, part="history")] if pieces else []
    asks: list[Ask] = []
    room = _room(context_window, output_tokens)
    chunks = _chunks(serialise(work.messages), room)
    for index, chunk in enumerate(chunks):
        follows = index > 0 or work.previous_summary is not None
        previous = work.previous_summary if index == 0 else None
        asks.append(Ask(text=chunk, wanted=UPDATE if follows else FRESH, part="history", previous=previous, rolling=index > 0))
    for index, chunk in enumerate(_chunks(serialise(work.turn_prefix), room)):
        asks.append(Ask(text=chunk, wanted=PREFIX, part="prefix", rolling=index > 0))
    return asks


def _room(context_window: int, output_tokens: int) -> int | None:
    """Return how many characters of conversation fit into one request."""
    if context_window <= 0:
        return None
    tokens = max(context_window - min(output_tokens, context_window // 2) - OVERHEAD_TOKENS, context_window // 4)
    return max(tokens * (CHARS_PER_TOKEN - 1), 1_000)


def _chunks(pieces: list[str], room: int | None) -> list[str]:
    chunks: list[list[str]] = []
    size = 0
    for piece in pieces:
        if room is not None and len(piece) > room:
            half = room // 2
            piece = f"{piece[:half]}\n[… {len(piece) - 2 * half} characters omitted]\n{piece[-half:]}"
        if not chunks or (room is not None and size + len(piece) > room):
            chunks.append([])
            size = 0
        chunks[-1].append(piece)
        size += len(piece) + 2
    return ["\n\n".join(chunk) for chunk in chunks]


def _newest(pieces: list[str], room: int | None) -> list[str]:
    if room is None:
        return pieces
    kept: list[str] = []
    for piece in reversed(pieces):
        room -= len(piece) + 2
        if room < 0 and kept:
            break
        kept.append(piece)
    return kept[::-1]


def assemble(work: Work, history: str | None, prefix: str | None) -> str:
    """Return the final summary: history, the beginning of a split turn, the file lists."""
    text = history or work.previous_summary or ""
    if work.kind == "branch":
        text = f"{BRANCH_PREAMBLE}\n\n{text}"
    if prefix:
        text = f"{text}{SPLIT}{prefix}" if text else prefix
    files = work.files.text()
    return f"{text}\n\n{files}" if files else text


def rejected(message: AssistantMessage) -> tuple[str, str] | None:
    """Say why a response cannot be a summary: (code, text); None if it can."""
    if message.stop_reason in ("error", "aborted", "deferred"):
        return "summarization_failed", f"the summary request failed: {message.error_message or message.stop_reason}"
    if message.stop_reason == "length":
        return "summary_truncated", "the summary was cut off by the model's output limit; nothing was stored"
    if message.tool_calls:
        return "summary_called_tools", "the model answered the summary request with a tool call; nothing was stored"
    if not message.text.strip():
        return "summary_empty", "the model answered the summary request with nothing; nothing was stored"
    return None


def _tagged(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"
