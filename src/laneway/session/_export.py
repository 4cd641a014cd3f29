"""Export of one branch: JSON lines for programs, Markdown and HTML for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, assert_never

import msgspec
from msgspec import Struct

from laneway.errors import BranchNotFound, EntryNotFound
from laneway.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    CustomMessage,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    role_of,
)
from laneway.session._tree import SessionTree, TreeNode
from laneway.session.entries import preview_of, text_of, text_of_message, with_parent
from laneway.session.keys import MAIN_BRANCH
from laneway.storage.base import BranchSummaryEntry, CompactionEntry, CustomEntry, Entry, MessageEntry, SessionStats

if TYPE_CHECKING:
    from laneway.session._session import Session, SessionMetadata

ExportFormat = Literal["jsonl", "html", "markdown"]
JSONL_FORMAT = "laneway-export"
JSONL_VERSION = 1


class Exported(Struct, kw_only=True, frozen=True):
    """What a branch's export is made from: its path (root first) inside the whole tree."""

    metadata: SessionMetadata
    name: str | None
    branch: str
    tree: SessionTree
    path: list[TreeNode]
    stats: SessionStats

    @property
    def title(self) -> str:
        """The session's name, or its first words, or its id."""
        if self.name:
            return self.name
        first = next((n.entry for n in self.path if isinstance(n.entry, MessageEntry) and role_of(n.entry.message) == "user"), None)
        return preview_of(first, 60) if first is not None else self.metadata.id


async def export(session: Session, format: ExportFormat, *, branch: str = MAIN_BRANCH, entry_id: str | None = None) -> str:
    """Return one branch of a session, up to its tip or to `entry_id`, as text.

    - "jsonl": a header line, then one entry per line, re-chained so that every entry's parent is the line before.
    - "markdown": readable text.
    - "html": one file that needs and fetches nothing else; everything stored in it is escaped; other branches are named where they leave.

    Raises:
        BranchNotFound: there is no such branch.
        EntryNotFound: `entry_id` is no entry of the session.
        ValueError: an unknown format.
    """
    source = await _read(session, branch, entry_id)
    match format:
        case "jsonl":
            return to_jsonl(source)
        case "markdown":
            return to_markdown(source)
        case "html":
            from laneway.session._export_html import to_html

            return to_html(source)
        case _:  # pyright: ignore[reportUnnecessaryComparison] - callers may be untyped
            raise ValueError(f"sessions are exported as jsonl, html or markdown, not {format!r}")


async def _read(session: Session, branch: str, entry_id: str | None) -> Exported:
    tree = await session.tree()
    if entry_id is None and branch not in tree.tips:
        known = ", ".join(sorted(tree.tips)) or "none"
        raise BranchNotFound(f"session {session.metadata.id} has no branch {branch!r}; there are: {known}")
    if entry_id is not None and entry_id not in tree.nodes:
        raise EntryNotFound(f"session {session.metadata.id} has no entry {entry_id}")
    path = tree.path(tree.tips[branch] if entry_id is None else entry_id)
    for node in path:
        node.active = True
    return Exported(metadata=session.metadata, name=await session.get_name(), branch=branch, tree=tree, path=path, stats=await session.get_stats())


# ---------------------------------------------------------------------------------------------------- JSON lines


def to_jsonl(source: Exported) -> str:
    """Return the header and the entries as JSON lines."""
    labels = {node.entry.id: node.label for node in source.path if node.label}
    header: dict[str, Any] = {
        "type": "session", "format": JSONL_FORMAT, "version": JSONL_VERSION, **msgspec.to_builtins(source.metadata),
        "name": source.name, "branch": source.branch, "labels": labels,
    }  # fmt: skip
    lines = [msgspec.json.encode(header)]
    previous: str | None = None
    for node in source.path:
        lines.append(_encode_entry(with_parent(node.entry, previous)))
        previous = node.entry.id
    return b"\n".join(lines).decode() + "\n"


def _encode_entry(entry: Entry) -> bytes:
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return msgspec.json.encode({"type": entry.type, **fields})


# ---------------------------------------------------------------------------------------------------- Markdown


def to_markdown(source: Exported) -> str:
    """Return the branch as a Markdown document."""
    parts = [f"# {_line(source.title)}", _facts(source)]
    for node in source.path:
        part = _entry_to_markdown(node.entry)
        if part:
            parts.append(part + (f"\n\n*Label: {_line(node.label)}*" if node.label else ""))
    return "\n\n".join(parts) + "\n"


def _facts(source: Exported) -> str:
    usage = source.stats.usage
    facts = [
        f"Session {_code(source.metadata.id)}, branch {_code(source.branch)}, created {moment(source.metadata.created_at)}",
        f"{source.stats.message_count} messages, {usage.total_tokens} tokens, ${usage.cost.total:.4f}",
    ]
    if source.metadata.cwd:
        facts.append(f"Directory {_code(source.metadata.cwd)}")
    return "  \n".join(facts)


def _entry_to_markdown(entry: Entry) -> str:
    match entry:
        case MessageEntry():
            return _message_to_markdown(entry.message)
        case CompactionEntry():
            return f"## Compaction\n\n{quoted(entry.summary)}"
        case BranchSummaryEntry():
            return f"## Summary of another branch\n\n{quoted(entry.summary)}" if entry.summary else ""
        case CustomEntry():
            return ""
        case _:
            assert_never(entry)


def _message_to_markdown(message: AgentMessage) -> str:
    body = _blocks_to_markdown(message)
    match message:
        case AssistantMessage():
            heading = f"## Assistant{f' ({_line(message.model)})' if message.model else ''}"
            if message.stop_reason not in ("stop", "tool_use"):
                body += f"\n\n*Ended: {message.stop_reason}{f', {_line(message.error_message)}' if message.error_message else ''}*"
        case ToolResultMessage():
            heading = f"### {'Error of' if message.is_error else 'Result of'} {_code(message.tool_name)}"
            body = fenced(text_of_message(message)) + "".join("\n\n*(image)*" for block in message.content if isinstance(block, ImageContent))
        case BashExecutionMessage():
            heading, body = "### Command", fenced(text_of_message(message))
        case SystemMessage():
            heading = "## System"
        case CustomMessage():
            heading = f"## {_line(message.custom_type)}"
        case _:
            heading = f"## {(role_of(message) or 'message').replace('_', ' ').capitalize()}"
    return f"{heading}\n\n{body.strip() or '*(empty)*'}"


def _blocks_to_markdown(message: AgentMessage) -> str:
    if not isinstance(message, AssistantMessage):
        content = getattr(message, "content", None)
        images = sum(isinstance(block, ImageContent) for block in content) if isinstance(content, list) else 0  # pyright: ignore[reportUnknownVariableType] - of a foreign class
        return text_of_message(message) + "\n\n*(image)*" * images
    parts: list[str] = []
    for block in message.content:
        match block:
            case TextContent():
                parts.append(block.text)
            case ThinkingContent():
                if block.thinking and not block.redacted:
                    parts.append(f"<details><summary>Thinking</summary>\n\n{quoted(block.thinking)}\n\n</details>")
            case ToolCall():
                parts.append(f"**Call** {_code(block.name)}\n\n{fenced(pretty(block.arguments), 'json')}")
    return "\n\n".join(parts)


def _line(text: str) -> str:
    """Return text that cannot end the line that it stands in."""
    return " ".join(text.split())


def _code(text: str) -> str:
    """Return the text as code in a line, which it can neither end nor close."""
    text = _line(text)
    ticks = "`" * (max((len(run) for run in _backtick_runs(text)), default=0) + 1)
    return f"{ticks}{text}{ticks}" if len(ticks) == 1 else f"{ticks} {text} {ticks}"


# ---------------------------------------------------------------------------------------------------- shared


def pretty(value: Any) -> str:
    """Return JSON over several lines."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def fenced(text: str, language: str = "") -> str:
    """Return the text in a code fence that it cannot close."""
    longest = max((len(run) for run in _backtick_runs(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def quoted(text: str) -> str:
    """Return the text as a Markdown quote."""
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def moment(timestamp: int) -> str:
    """Return a Unix time in ms as `2026-01-31 12:00 UTC`."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "unknown time"


def other_branches(node: TreeNode) -> list[TreeNode]:
    """Return the children of a node on the active path that are not on it."""
    return [child for child in node.children if not child.active]


def size_of(node: TreeNode) -> int:
    """Return how many entries hang on a node, itself included."""
    count, waiting = 0, [node]
    while waiting:
        at = waiting.pop()
        count += 1
        waiting.extend(at.children)
    return count


def readable(entry: Entry) -> bool:
    """Whether an entry has something for a person to read."""
    return not isinstance(entry, CustomEntry) and (isinstance(entry, MessageEntry) or bool(text_of(entry)))


def _backtick_runs(text: str) -> list[str]:
    runs: list[str] = []
    run = ""
    for ch in text:
        if ch == "`":
            run += ch
        elif run:
            runs.append(run)
            run = ""
    return [*runs, run] if run else runs
