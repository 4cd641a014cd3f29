"""Import of pi's session files (JSON lines, formats 1 to 3).

The file is only read. Its tree becomes ours with new ids and the old times; entries that only carried settings disappear and
their children move up; edits of the context are folded into what they edit, and stay in the tree as custom entries so that
nothing is lost. What all of it cost becomes one adjustment row of the ledger.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct, field

from laneway.errors import LanewayError, SessionImportError
from laneway.messages import AgentMessage, AssistantMessage, BranchSummaryMessage, SystemMessage, ToolResultMessage, Usage, clean_json, now_ms
from laneway.session import _pi_messages as pi
from laneway.session._ids import Ids
from laneway.session._pi_messages import Json
from laneway.session._session import SessionMetadata
from laneway.session.keys import BRANCH_TIP, ENTRY_LABEL, MAIN_BRANCH, SESSION_NAME, is_session_id
from laneway.storage._json import refuse_deep
from laneway.storage.base import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    InsertEntry,
    InsertUsage,
    MessageEntry,
    SetValue,
    UsageRow,
    Write,
)

if TYPE_CHECKING:
    from laneway.session._repo import SessionRepo
    from laneway.session._session import Session

NEWEST_VERSION = 3
HIDDEN_MESSAGE = "pi.hidden_message"
CONTEXT_EDIT = "pi.context_edit"
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""An escape in JSON; the group is half of a surrogate pair without the other, which pi writes where an output was cut, and which is no text."""


class PiSession(Struct, kw_only=True, frozen=True):
    """A session file as it was read. `skipped` counts the lines that are no entries."""

    id: str
    cwd: str | None
    created_at: int
    parent: str | None
    version: int
    entries: list[Json]
    skipped: int


class ImportReport(Struct, kw_only=True, frozen=True):
    """What an import did. `skipped_lines` could not be read; `kept_raw` entries are custom entries with pi's own JSON."""

    session_id: str
    entries: int
    skipped_lines: int
    kept_raw: int
    reattached: int
    usage: Usage


class _Converted(Struct, kw_only=True):
    entries: list[Entry] = field(default_factory=list[Entry])
    tip: str | None = None
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    usage: Usage = field(default_factory=Usage)
    settings: dict[str, str] = field(default_factory=dict[str, str])
    kept_raw: int = 0
    reattached: int = 0


async def import_pi(repo: SessionRepo, path: str | Path, *, id: str | None = None) -> tuple[Session, ImportReport]:
    """Create a session from a pi session file and return it open, with a report. The file stays as it is.

    The session keeps the file's id (so that a second import of it is refused) unless `id` says otherwise, and its directory.

    Raises:
        SessionImportError: the file is not a pi session, of a newer format, or holds what no session can.
        SessionExists: there is a session with this id.
        OSError: the file cannot be read.
    """
    data = await asyncio.to_thread(Path(path).read_bytes)
    source = parse_pi(data, where=str(path))
    converted = _Conversion(source, Ids()).run()
    metadata = SessionMetadata(
        id=id or (source.id if is_session_id(source.id) else Ids().new()),
        created_at=source.created_at,
        cwd=source.cwd,
        metadata={"imported_from": {"format": "pi", "version": source.version, "path": str(path), "session_id": source.id, **converted.settings}},
    )
    try:
        session = await repo.build(metadata, _writes(converted, str(path)))
    except LanewayError:
        raise
    except (TypeError, ValueError) as error:
        raise SessionImportError(f"{path} holds what cannot be stored; nothing was imported: {error}") from error
    report = ImportReport(
        session_id=session.metadata.id,
        entries=len(converted.entries),
        skipped_lines=source.skipped,
        kept_raw=converted.kept_raw,
        reattached=converted.reattached,
        usage=converted.usage,
    )
    return session, report


def parse_pi(data: bytes, *, where: str) -> PiSession:
    """Read a session file of format 1, 2 or 3 and bring its entries to format 3.

    Raises:
        SessionImportError: there is no header, or the format is newer than 3.
    """
    objects = [_object(line) for line in data.split(b"\n") if line.strip()]
    header = objects[0] if objects else None
    if header is None or header.get("type") != "session" or not isinstance(header.get("id"), str):
        raise SessionImportError(f"{where} is not a pi session: its first line is no session header; nothing was imported")
    version = header.get("version", 1)
    if not isinstance(version, int) or version > NEWEST_VERSION:
        raise SessionImportError(f"{where} has format {version!r}; formats up to {NEWEST_VERSION} can be imported: upgrade laneway")
    entries = [entry for entry in objects[1:] if entry is not None and isinstance(entry.get("type"), str)]
    if version < 2:
        _chain(objects, entries)
    return PiSession(
        id=pi.text(header["id"]),
        cwd=pi.optional_text(header.get("cwd")) or None,
        created_at=pi.time_from_pi(header.get("timestamp")) or now_ms(),
        parent=pi.optional_text(header.get("parentSession")),
        version=version,
        entries=entries,
        skipped=len(objects) - 1 - len(entries),
    )


def _object(line: bytes) -> Json | None:
    """Read a line; None if it is no JSON object, or one that is nested more deeply than a session can hold."""
    if b"\\ud" in line or b"\\uD" in line:
        line = _ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], line)
    try:
        refuse_deep(line, "a line")
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        return None
    return cast(Json, value) if isinstance(value, dict) else None


def _chain(objects: list[Json | None], entries: list[Json]) -> None:
    """Give the entries of format 1, a plain list, the ids and parents of a tree with one branch."""
    previous: str | None = None
    for i, entry in enumerate(entries):
        entry["id"], entry["parentId"] = f"line-{i}", previous
        previous = entry["id"]
    for entry in entries:
        index = entry.get("firstKeptEntryIndex")  # counts every line of the file, the header included
        if entry["type"] == "compaction" and isinstance(index, int) and 0 <= index < len(objects):
            kept = objects[index]
            entry["firstKeptEntryId"] = kept.get("id") if kept is not None and kept.get("type") != "session" else None


def _writes(converted: _Converted, path: str) -> list[list[Write]]:
    """Return the commits that make a session of what was converted; entries keep their order and times."""
    inserts: list[Write] = [InsertEntry(msgspec.structs.replace(entry, seq=i), keep_seq=True) for i, entry in enumerate(converted.entries, 1)]
    chunks = [inserts[i : i + 1000] for i in range(0, len(inserts), 1000)]
    last: list[Write] = [SetValue(BRANCH_TIP, MAIN_BRANCH, converted.tip)] if converted.entries else []
    last += [SetValue(ENTRY_LABEL, entry_id, label) for entry_id, label in converted.labels.items()]
    if converted.name:
        last.append(SetValue(SESSION_NAME, "", converted.name))
    if converted.usage != Usage():
        row = UsageRow(id=Ids().new(), usage=converted.usage, adjustment=True, details={"imported_from": path})
        last.append(InsertUsage(row))
    return [*chunks, last] if last else chunks


class _Conversion:
    """One file's way from pi's entries to ours, line by line."""

    def __init__(self, source: PiSession, ids: Ids) -> None:
        self._source = source
        self._ids = ids
        self._out = _Converted()
        self._raw = {entry["id"]: entry for entry in source.entries if isinstance(entry.get("id"), str)}
        self._new_id: dict[str, str | None] = {}
        self._parents: dict[str, str | None] = {}
        self._messages: dict[str, AgentMessage] = {}
        self._edits = self._effective_edits()

    def run(self) -> _Converted:
        last: str | None = None
        for raw in self._source.entries:
            old = raw.get("id")
            if not isinstance(old, str) or old in self._new_id:
                old = f"\0{len(self._new_id)}"  # no id, or one that is taken: still a node, but nobody can name it
            parent = raw.get("parentId")
            if parent is not None and (not isinstance(parent, str) or parent not in self._new_id):
                self._out.reattached += 1
                parent = last  # its parent's line is lost: go on after the line before, so that no history disappears
            self._parents[old] = parent
            self._new_id[old] = self._add(raw, old, self._new_id[parent] if parent is not None else None)
            last = old
        self._out.tip = self._new_id[last] if last is not None else None
        self._out.labels = {new: label for old, label in self._out.labels.items() if (new := self._new_id.get(old)) is not None}
        return self._out

    def _add(self, raw: Json, old: str, parent: str | None) -> str | None:
        """Convert one entry and return the id that its children hang on: its own, or its parent's if it disappears."""
        timestamp = pi.time_from_pi(raw.get("timestamp")) or self._source.created_at
        entry = self._entry(raw, old, parent, timestamp)
        if entry is None:
            return parent
        self._out.entries.append(entry)
        return entry.id

    def _entry(self, raw: Json, old: str, parent: str | None, timestamp: int) -> Entry | None:
        out = self._out
        match raw["type"]:
            case "message":
                message = pi.message_from_pi(cast(Json, raw["message"]), timestamp) if isinstance(raw.get("message"), dict) else None
                return self._message(raw, old, parent, timestamp, message)
            case "custom_message":
                return self._message(raw, old, parent, timestamp, pi.custom_from_pi(raw, timestamp))
            case "compaction":
                return self._compaction(raw, old, parent, timestamp)
            case "branch_summary":
                return self._branch_summary(raw, old, parent, timestamp)
            case "custom":
                return self._custom(pi.text(raw.get("customType")) or "unknown", raw.get("data"), parent, timestamp)
            case "context_edit":
                return self._context_edit(raw, parent, timestamp)
            case "usage":
                self._count(raw.get("usage"))
            case "label":
                target, label = pi.text(raw.get("targetId")), pi.text(raw.get("label"))
                out.labels.pop(target, None)
                if label:
                    out.labels[target] = label
            case "session_info":
                out.name = " ".join(pi.text(raw.get("name")).splitlines()).strip() or None
            case "model_change":
                out.settings["model"] = f"{pi.text(raw.get('provider'))}/{pi.text(raw.get('modelId'))}"
            case "thinking_level_change":
                out.settings["thinking_level"] = pi.text(raw.get("thinkingLevel"))
            case _:
                return self._keep_raw(raw, parent, timestamp)
        return None

    def _message(self, raw: Json, old: str, parent: str | None, timestamp: int, message: AgentMessage | None) -> Entry:
        if message is None:
            return self._keep_raw(raw, parent, timestamp)
        if isinstance(message, (AssistantMessage, ToolResultMessage)) and message.usage is not None:
            self._out.usage = self._out.usage + message.usage
        if old in self._edits:
            edit = self._edits[old]
            if edit is None:
                return self._custom(HIDDEN_MESSAGE, raw, parent, timestamp)
            message = pi.with_content(message, edit.get("content")) or message
        self._messages[old] = message
        return MessageEntry(id=self._ids.at(timestamp), parent_id=parent, timestamp=timestamp, message=message)

    def _compaction(self, raw: Json, old: str, parent: str | None, timestamp: int) -> Entry:
        tail = self._retained(old, raw.get("firstKeptEntryId"))
        checkpoint = raw.get("systemMessage")
        system = pi.message_from_pi({**cast(Json, checkpoint), "role": "system"}, timestamp) if isinstance(checkpoint, dict) else None
        return CompactionEntry(
            id=self._ids.at(timestamp),
            parent_id=parent,
            timestamp=timestamp,
            summary=pi.text(raw.get("summary")),
            retained_tail=tail if system is None else [system, *tail],
            tokens_before=pi.integer(raw.get("tokensBefore")),
            details=clean_json(raw.get("details")),
            usage=self._count(raw.get("usage")),
            from_hook=raw.get("fromHook") is True,
        )

    def _retained(self, old: str, first_kept: Any) -> list[AgentMessage]:
        """Return the messages from `first_kept` up to the compaction; pi names them, we keep copies."""
        if not isinstance(first_kept, str) or first_kept == old or first_kept not in self._new_id:
            return []
        kept: list[AgentMessage] = []
        at = self._parents[old]
        while at is not None:
            message = self._messages.get(at)
            if message is not None and not isinstance(message, SystemMessage):
                kept.append(message)
            if at == first_kept:
                return kept[::-1]
            at = self._parents[at]
        return []

    def _branch_summary(self, raw: Json, old: str, parent: str | None, timestamp: int) -> Entry:
        summary = pi.text(raw.get("summary"))
        from_id = self._new_id.get(pi.text(raw.get("fromId")))
        if summary:
            self._messages[old] = BranchSummaryMessage(summary=summary, from_id=from_id, timestamp=timestamp)
        return BranchSummaryEntry(
            id=self._ids.at(timestamp),
            parent_id=parent,
            timestamp=timestamp,
            from_id=from_id,
            summary=summary,
            details=clean_json(raw.get("details")),
            usage=self._count(raw.get("usage")),
            from_hook=raw.get("fromHook") is True,
        )

    def _context_edit(self, raw: Json, parent: str | None, timestamp: int) -> Entry:
        """Keep an edit, and what its target said before, where the edit stood."""
        target = pi.text(raw.get("targetId"))
        before = self._raw.get(target, {})
        original = before["message"].get("content") if isinstance(before.get("message"), dict) else before.get("content")
        data = {"target_id": self._new_id.get(target), "replacement": raw.get("replacement"), "original": original}
        return self._custom(CONTEXT_EDIT, data, parent, timestamp)

    def _keep_raw(self, raw: Json, parent: str | None, timestamp: int) -> Entry:
        self._out.kept_raw += 1
        return self._custom(f"pi.{pi.text(raw['type'])}", raw, parent, timestamp)

    def _custom(self, custom_type: str, data: Any, parent: str | None, timestamp: int) -> Entry:
        custom_type = custom_type.replace("\0", "")  # no store takes it there
        return CustomEntry(id=self._ids.at(timestamp), parent_id=parent, timestamp=timestamp, custom_type=custom_type, data=clean_json(data))

    def _count(self, raw: Any) -> Usage | None:
        usage = pi.usage_from_pi(raw)
        if usage is not None:
            self._out.usage = self._out.usage + usage
        return usage

    def _effective_edits(self) -> dict[str, Json | None]:
        """Return the last edit of each target. One on the active path wins over others, and alone counts for a target there."""
        active: set[str] = set()
        at = self._source.entries[-1].get("id") if self._source.entries else None
        while isinstance(at, str) and at not in active:
            active.add(at)
            at = self._raw[at].get("parentId") if at in self._raw else None
        edits: dict[str, Json | None] = {}
        for raw in self._source.entries:
            target, id = raw.get("targetId"), raw.get("id")
            if raw["type"] == "context_edit" and isinstance(target, str) and ((isinstance(id, str) and id in active) or target not in active):
                replacement = raw.get("replacement")
                edits[target] = cast(Json, replacement) if isinstance(replacement, dict) else None
        return edits
