"""Full-text search over the sessions of a repository: an index of its own, made by reading.

The index is one SQLite file (FTS5) that can be thrown away at any time. Nothing is told to it: `update` asks each session that changed
for the entries after its cursor, so no commit ever waits for it or fails because of it.

A query is words, all of which must occur: ``flaky parser``; ``"exact words"``; ``-word`` to exclude; ``pars*`` for words that begin so.
Case and accents do not matter. Text without spaces between words (Chinese, Japanese) is found by its characters.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from laneway.errors import MessageError, SearchQueryError, SessionNotFound, StorageError
from laneway.session._catalogue import SessionInfo
from laneway.session._side_file import SideFile, SideFileError
from laneway.session.entries import role_of_entry, text_of
from laneway.session.keys import SESSION_REWRITES
from laneway.storage.base import Entry, EntryScan, Storage

if TYPE_CHECKING:
    import sqlite3
    from contextlib import AbstractAsyncContextManager

_log = logging.getLogger("laneway.session")
_VERSION = 1
_PAGE = 500
LONGEST_TEXT = 20_000
"""Characters of one entry that are indexed; the rest of a tool's megabyte of output is not searched."""
_SCHEMA = (
    "CREATE TABLE sessions (id TEXT PRIMARY KEY, cursor INTEGER NOT NULL, rewrites INTEGER NOT NULL, seen TEXT, name TEXT)",
    "CREATE TABLE places (doc INTEGER PRIMARY KEY, session_id TEXT NOT NULL, entry_id TEXT, role TEXT NOT NULL, timestamp INTEGER NOT NULL)",
    "CREATE INDEX places_by_session ON places (session_id)",
    "CREATE VIRTUAL TABLE texts USING fts5 (body, tokenize = 'unicode61 remove_diacritics 2')",
)
_SEARCH = """
SELECT p.session_id, s.name, p.entry_id, p.role, p.timestamp, snippet(texts, 0, char(2), char(3), '…', 24)
FROM texts JOIN places p ON p.doc = texts.rowid JOIN sessions s ON s.id = p.session_id
WHERE texts MATCH ? AND (? IS NULL OR p.session_id = ?)
ORDER BY p.entry_id IS NOT NULL, bm25(texts), p.timestamp DESC LIMIT ?
"""
_TERM = re.compile(r'(-?)(?:"([^"]*)"|([^\s"]+))')
_UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])")
_GAP = "\u200b"
T = TypeVar("T")


class SearchHit(Struct, kw_only=True, frozen=True):
    """One place where a query matches. `snippet` is text around it and `spans` are the matches in it, as (start, end).

    `entry_id` is None if it is the session's name that matches. `timestamp` is Unix ms.
    """

    session_id: str
    session_name: str | None
    entry_id: str | None
    role: str
    timestamp: int
    snippet: str
    spans: list[tuple[int, int]]


class Searchable(Protocol):
    """What an index is made from: a repository."""

    async def list(self) -> list[SessionInfo]: ...
    def reading(self, id: str) -> AbstractAsyncContextManager[Storage]: ...


class SearchIndex:
    """The index in the file `path`. Several processes may use it; a damaged one is made anew."""

    def __init__(self, path: str | Path) -> None:
        self._file = SideFile(Path(path), version=_VERSION, schema=_SCHEMA)

    async def update(self, repo: Searchable) -> int:
        """Read what is new in the repository's sessions; return how many entries were read.

        A session that cannot be read is left as it was known, with a warning in the log.

        Raises:
            StorageError: the index cannot be written.
        """
        infos = {info.id: info for info in await repo.list()}
        seen = await self._run(lambda db: dict(db.execute("SELECT id, seen FROM sessions")))
        gone = [id for id in seen if id not in infos]
        if gone:
            await self._run(lambda db: [_forget(db, id) for id in gone])
        read = 0
        for info in infos.values():
            if seen.get(info.id) != _look_of(info):
                try:
                    read += await self._update_session(repo, info)
                except SideFileError:
                    raise
                except SessionNotFound:
                    continue  # deleted meanwhile
                except (StorageError, MessageError) as error:
                    _log.warning("session %s is not searched any further: %s", info.id, error)
        return read

    async def _update_session(self, repo: Searchable, info: SessionInfo) -> int:
        read = 0
        async with repo.reading(info.id) as storage:
            stored = await storage.get_value(SESSION_REWRITES, "")
            rewrites = 0 if stored is None else int(stored.value)
            cursor = await self._run(lambda db: _begin(db, info, rewrites))
            while page := await storage.scan_entries(EntryScan(from_seq=cursor + 1, limit=_PAGE)):
                await self._run(_adding(info.id, cursor, page))
                cursor = page[-1].seq
                read += len(page)
        await self._run(lambda db: db.execute("UPDATE sessions SET seen = ? WHERE id = ?", (_look_of(info), info.id)))
        return read

    async def search(self, query: str, *, session_id: str | None = None, limit: int = 20) -> list[SearchHit]:
        """Return the best matches of what the last `update` knew: names first, then texts by relevance, newer first.

        Raises:
            SearchQueryError: `query` is not one; the text says where.
            StorageError: the index cannot be read.
        """
        parameters = (to_fts(query), session_id, session_id, limit)
        return [_hit(*row) for row in await self._run(lambda db: db.execute(_SEARCH, parameters).fetchall())]

    async def forget(self, session_id: str) -> None:
        """Remove a session from the index at once, if there is an index, and leave no trace of its words."""
        if await asyncio.to_thread(self._file.path.exists):
            await self._run(lambda db: _forget(db, session_id))
            await self._run(lambda db: db.execute("INSERT INTO texts (texts) VALUES ('optimize')"))

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._file.run, work)


# ---------------------------------------------------------------------------------------------------- transactions


def _begin(db: sqlite3.Connection, info: SessionInfo, rewrites: int) -> int:
    """Take the session in, or its new name; return its cursor. A session that was rewritten begins anew."""
    row = db.execute("SELECT cursor, rewrites FROM sessions WHERE id = ?", (info.id,)).fetchone()
    if row is not None and row[1] != rewrites:
        _forget(db, info.id)
        row = None
    if row is None:
        db.execute("INSERT INTO sessions (id, cursor, rewrites) VALUES (?, 0, ?)", (info.id, rewrites))
    _forget_places(db, "session_id = ? AND entry_id IS NULL", info.id)
    db.execute("UPDATE sessions SET name = ? WHERE id = ?", (info.name, info.id))
    if info.name:
        _insert(db, info.id, None, "name", info.updated_at, info.name)
    return 0 if row is None else row[0]


def _adding(session_id: str, cursor: int, page: list[Entry]) -> Callable[[sqlite3.Connection], None]:
    """Return the transaction that adds a page behind `cursor`, unless another process has added it already."""

    def add(db: sqlite3.Connection) -> None:
        moved = db.execute("UPDATE sessions SET cursor = ? WHERE id = ? AND cursor = ?", (page[-1].seq, session_id, cursor))
        if moved.rowcount:
            for entry in page:
                text = text_of(entry)
                if text and not text.isspace():
                    _insert(db, session_id, entry.id, role_of_entry(entry), entry.timestamp, text)

    return add


def _insert(db: sqlite3.Connection, session_id: str, entry_id: str | None, role: str, timestamp: int, text: str) -> None:
    place = (session_id, entry_id, role, timestamp)
    doc = db.execute("INSERT INTO places (session_id, entry_id, role, timestamp) VALUES (?, ?, ?, ?)", place).lastrowid
    db.execute("INSERT INTO texts (rowid, body) VALUES (?, ?)", (doc, _to_body(text)))


def _forget(db: sqlite3.Connection, session_id: str) -> None:
    _forget_places(db, "session_id = ?", session_id)
    db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))


def _forget_places(db: sqlite3.Connection, condition: str, session_id: str) -> None:
    db.execute(f"DELETE FROM texts WHERE rowid IN (SELECT doc FROM places WHERE {condition})", (session_id,))
    db.execute(f"DELETE FROM places WHERE {condition}", (session_id,))


def _look_of(info: SessionInfo) -> str:
    """Return what differs when a session has anything new to index."""
    return f"{info.updated_at} {info.message_count} {info.name or ''}"


# ---------------------------------------------------------------------------------------------------- text and queries


def _to_body(text: str) -> str:
    cleaned = text[:LONGEST_TEXT].replace("\x02", "").replace("\x03", "").replace("\0", " ")
    return _UNSPACED.sub(rf"{_GAP}\1{_GAP}", cleaned)


def _hit(session_id: str, session_name: str | None, entry_id: str | None, role: str, timestamp: int, marked: str) -> SearchHit:
    parts = re.split("([\x02\x03])", marked.replace(_GAP, "").replace("\n", " "))
    snippet, start = "", 0
    spans: list[tuple[int, int]] = []
    for part in parts:
        if part == "\x02":
            start = len(snippet)
        elif part == "\x03":
            spans.append((start, len(snippet)))
        else:
            snippet += part
    return SearchHit(
        session_id=session_id, session_name=session_name, entry_id=entry_id, role=role, timestamp=timestamp, snippet=snippet, spans=_joined(spans)
    )


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join matches that touch, as the characters of one unspaced word do."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def to_fts(query: str) -> str:
    """Return the query in the index's own language; nothing that a person types is ever taken for its operators.

    Raises:
        SearchQueryError: a quote is not closed, or there is no word to find.
    """
    if query.count('"') % 2:
        at = query.rindex('"') + 1
        raise SearchQueryError(f'the quote at character {at} of {query!r} is not closed: "exact words" stand between two quotes')
    wanted: list[str] = []
    unwanted: list[str] = []
    for match in _TERM.finditer(query):
        minus, phrase, word = match.groups()
        term = _fts_term(phrase if word is None else word, prefix=word is not None and word.endswith("*"))
        if term is not None:
            (unwanted if minus else wanted).append(term)
    if not wanted:
        raise SearchQueryError(f'{query!r} has no word to find: type one or more words, "exact words", begin* or -without')
    return " AND ".join(wanted) if not unwanted else f"({' AND '.join(wanted)}) NOT ({' OR '.join(unwanted)})"


def _fts_term(text: str, *, prefix: bool) -> str | None:
    if not any(ch.isalnum() for ch in text):
        return None
    cleaned = _UNSPACED.sub(r" \1 ", text.replace("\0", " ").rstrip("*") if prefix else text.replace("\0", " ")).strip()
    return f'"{cleaned}"*' if prefix else f'"{cleaned}"'
