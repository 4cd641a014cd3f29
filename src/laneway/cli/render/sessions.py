"""Sessions as plain text. What a session says is never sent to the terminal as it is: control characters are shown, not obeyed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator

from laneway.cli.render._terminal import printable
from laneway.messages import AssistantMessage, BashExecutionMessage, SystemMessage, ToolResultMessage, role_of
from laneway.session import SearchHit, SessionInfo, SessionMetadata, SessionTree, TreeNode
from laneway.session.entries import one_line, preview_of, text_of_message
from laneway.storage.base import BranchSummaryEntry, CompactionEntry, CustomEntry, Entry, MessageEntry, SessionStats

_SHORTEST_ID = 8
_SHORTEST_ENTRY_ID = 6
_RESULT_LINES = 20
BOLD, DIM, RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def ago(timestamp: int, now: float | None = None) -> str:
    """Return how long ago a time (Unix ms) was, or its date if that is long ago."""
    seconds = max((time.time() if now is None else now) - timestamp / 1000, 0)
    for limit, unit, name in ((90, 1, "s"), (90 * 60, 60, "min"), (36 * 3600, 3600, "h"), (30 * 86400, 86400, "d")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name} ago"
    return time.strftime("%Y-%m-%d", time.localtime(timestamp / 1000))


def short_ids(ids: Iterable[str], shortest: int = _SHORTEST_ID) -> dict[str, str]:
    """Return for each id a beginning that no other id has, of at least `shortest` characters."""
    ordered = sorted(ids)
    short: dict[str, str] = {}
    for i, id in enumerate(ordered):
        neighbours = ordered[max(i - 1, 0) : i] + ordered[i + 1 : i + 2]
        length = max([shortest, *(_common(id, other) + 1 for other in neighbours)])
        short[id] = id[:length]
    return short


def short_entry_ids(ids: Collection[str]) -> dict[str, str]:
    """Return for each id an ending of its own, all of one length: ids of entries made together begin alike."""
    length = max(map(len, short_ids([id[::-1] for id in ids], _SHORTEST_ENTRY_ID).values()), default=0)
    return {id: id[-length:] for id in ids}


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def list_lines(infos: Iterable[SessionInfo], short: dict[str, str], width: int) -> Iterator[str]:
    """Return a table: id, age, messages, cost, and the name or first words."""
    rows = [((short[i.id], ago(i.updated_at), str(i.message_count), _dollars(i.cost)), title_of(i)) for i in infos]
    widths = [max(len(cells[column]) for cells, _ in rows) for column in range(4)] if rows else [0] * 4
    for (id, *numbers), title in rows:
        head = "  ".join([f"{id:<{widths[0]}}", *(f"{cell:>{wide}}" for cell, wide in zip(numbers, widths[1:], strict=True)), ""])
        yield (head + printable(one_line(title, max(width - len(head), 20)))).rstrip()


def title_of(info: SessionInfo) -> str:
    """Return the name, or the first words in quotes."""
    return info.name or (f"“{info.preview}”" if info.preview else "(nothing said)")


def head_lines(metadata: SessionMetadata, name: str | None, stats: SessionStats, tips: dict[str, str | None], branch: str) -> Iterator[str]:
    """Return what is to be known of a session before its text."""
    yield printable(name or metadata.id)
    facts = [metadata.id] if name else []
    facts += [f"{stats.message_count} messages", f"{stats.usage.total_tokens:,} tokens", _dollars(stats.usage.cost.total)]
    yield ", ".join([*facts, f"created {ago(metadata.created_at)}"])
    if metadata.cwd:
        yield f"in {printable(metadata.cwd)}"
    if metadata.parent_session_id:
        yield f"forked from {metadata.parent_session_id}"
    others = [name for name in sorted(tips) if name != branch]
    if others:
        yield f"branch {printable(branch)}; others: {printable(', '.join(others))}"


def transcript_lines(path: Iterable[Entry], labels: dict[str, str]) -> Iterator[str]:
    """Return the entries of a path as text a person can read."""
    for entry in path:
        body = list(_entry_lines(entry))
        if body:
            label = f"  [{printable(labels[entry.id])}]" if entry.id in labels else ""
            yield ""
            yield body[0] + label
            yield from body[1:]


def _entry_lines(entry: Entry) -> Iterator[str]:
    if isinstance(entry, CompactionEntry):
        yield f"── compaction ({entry.tokens_before:,} tokens before)"
        yield from _indented(entry.summary)
    elif isinstance(entry, BranchSummaryEntry):
        yield "── summary of another branch"
        yield from _indented(entry.summary)
    elif isinstance(entry, MessageEntry):
        yield from _message_lines(entry)


def _message_lines(entry: MessageEntry) -> Iterator[str]:
    message = entry.message
    match message:
        case AssistantMessage():
            yield f"assistant {printable(message.model)}".rstrip()
            yield from _indented(message.text)
            for call in message.tool_calls:
                values = " ".join(str(value) for value in call.arguments.values())
                yield f"  → {printable(call.name)} {printable(one_line(values, 100))}".rstrip()
            if message.stop_reason not in ("stop", "tool_use"):
                yield f"  (ended: {message.stop_reason}{f', {printable(one_line(message.error_message, 200))}' if message.error_message else ''})"
        case ToolResultMessage():
            yield f"{'error' if message.is_error else 'result'} of {printable(message.tool_name)}"
            yield from _indented(text_of_message(message), limit=_RESULT_LINES)
        case BashExecutionMessage():
            yield "command"
            yield from _indented(text_of_message(message), limit=_RESULT_LINES)
        case SystemMessage():
            yield "system"
            yield from _indented(text_of_message(message), limit=_RESULT_LINES)
        case _:
            yield printable(role_of(message) or "message")
            yield from _indented(text_of_message(message))


def _indented(text: str, limit: int | None = None) -> Iterator[str]:
    lines = printable(text).strip("\n").splitlines()
    for line in lines[:limit]:
        yield f"  {line}".rstrip()
    if limit is not None and len(lines) > limit:
        yield f"  … {len(lines) - limit} more lines"


def tree_lines(tree: SessionTree, branch: str, width: int, *, everything: bool) -> Iterator[str]:
    """Return the tree, the active path marked; unless `everything`, only what a person would look for."""
    tree.activate(branch)
    short = short_entry_ids(tree.nodes)
    for row in tree.rows(lambda entry: everything or _worth_showing(tree, entry)):
        node = row.node
        marks = "".join([f" [{printable(node.label)}]" if node.label else "", *(f" ← {printable(name)}" for name in sorted(node.branches))])
        head = f"{'●' if node.active else '○'} {row.indent}{short[node.entry.id]}  {_who(node)}: "
        yield head + printable(preview_of(node.entry, max(width - len(head) - len(marks), 20))) + marks


def _worth_showing(tree: SessionTree, entry: Entry) -> bool:
    node = tree.nodes[entry.id]
    if node.label or node.branches or len(node.children) != 1:
        return True
    if isinstance(entry, CustomEntry):
        return False
    return not (isinstance(entry, MessageEntry) and isinstance(entry.message, (ToolResultMessage, SystemMessage)))


def _who(node: TreeNode) -> str:
    entry = node.entry
    return (role_of(entry.message) or "message") if isinstance(entry, MessageEntry) else entry.type


def hit_lines(hits: Iterable[SearchHit], short: dict[str, str], *, color: bool) -> Iterator[str]:
    """Return the places where a search matched, the matches in bold if the terminal has colours."""
    for hit in hits:
        where = f"{short.get(hit.session_id, hit.session_id)}  {hit.role}, {ago(hit.timestamp)}"
        yield f"{where}  {printable(hit.session_name)}" if hit.session_name else where
        text, end = "", 0
        for start, stop in hit.spans:
            found = printable(hit.snippet[start:stop])
            text += printable(hit.snippet[end:start]) + (f"{BOLD}{found}{RESET}" if color else found)
            end = stop
        yield f"    {text}{printable(hit.snippet[end:])}"


def _dollars(cost: float) -> str:
    return f"${cost:.2f}" if cost == 0 or cost >= 0.005 else f"${cost:.4f}"
