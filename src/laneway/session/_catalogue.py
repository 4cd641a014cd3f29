"""What a folder of sessions looks like from outside, so that listing them opens none.

A small SQLite file beside the sessions. It is never the truth: every row can be made again from its session, a damaged catalogue is
thrown away, and a folder that cannot be written is listed without one. The rows of sessions that were closed properly are
taken as they are; those of open or crashed sessions are checked against their files' sizes and times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from laneway.errors import StorageError
from laneway.session._side_file import SideFile

if TYPE_CHECKING:
    import sqlite3

_log = logging.getLogger("laneway.session")
_VERSION = 1
_SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, name TEXT, cwd TEXT, parent_session_id TEXT,
    message_count INTEGER NOT NULL, total_tokens INTEGER NOT NULL, cost REAL NOT NULL, preview TEXT NOT NULL,
    closed INTEGER NOT NULL, signature TEXT
) WITHOUT ROWID
"""
_COLUMNS = "id, created_at, updated_at, name, cwd, parent_session_id, message_count, total_tokens, cost, preview"
_READ_CLOSED = f"SELECT {_COLUMNS} FROM sessions WHERE closed ORDER BY updated_at DESC, id DESC"
_READ_UNSURE = f"SELECT {_COLUMNS}, signature FROM sessions WHERE NOT closed"
_UPSERT = f"INSERT OR REPLACE INTO sessions ({_COLUMNS}, closed, signature) VALUES ({', '.join('?' * 12)})"
T = TypeVar("T")


class SessionInfo(Struct, frozen=True, gc=False):
    """A session in a list. Times are Unix ms, `cost` is US dollars, `preview` the first thing that a person said."""

    id: str
    created_at: int
    updated_at: int
    name: str | None = None
    cwd: str | None = None
    parent_session_id: str | None = None
    message_count: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    preview: str = ""


class CatalogueRow(Struct, frozen=True, gc=False):
    """`closed`: nobody has had it open since. `signature`: the size and time of its files when `info` was read."""

    info: SessionInfo
    closed: bool
    signature: str | None


class CatalogueRows(Struct, frozen=True):
    """All rows: those that can be relied on, last changed first, and by id those that cannot."""

    closed: list[SessionInfo]
    unsure: dict[str, CatalogueRow]


class Catalogue:
    """The rows by session id. Every call is blocking and short, and none raises for the sake of the catalogue."""

    def __init__(self, path: Path) -> None:
        self._file = SideFile(path, version=_VERSION, schema=(_SCHEMA,))

    def read(self) -> CatalogueRows:
        """Return all rows; none if there is no catalogue."""
        nothing = CatalogueRows([], {})
        return self._run(_read_rows, nothing, write=False) if self._file.path.exists() else nothing

    def write(self, rows: Iterable[CatalogueRow]) -> None:
        """Add rows, or replace those with the same ids."""
        values = [(*_values(row.info), row.closed, row.signature) for row in rows]
        self._run(lambda db: db.executemany(_UPSERT, values), None)

    def mark_open(self, id: str) -> None:
        """Say that a session's row is not to be relied on from now on."""
        if self._file.path.exists():
            self._run(lambda db: db.execute("UPDATE sessions SET closed = 0, signature = NULL WHERE id = ?", (id,)), None)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove rows."""
        values = [(id,) for id in ids]
        self._run(lambda db: db.executemany("DELETE FROM sessions WHERE id = ?", values), None)

    def clear(self) -> None:
        """Throw the catalogue away; listing makes it again."""
        self._file.clear()

    def _run(self, work: Callable[[sqlite3.Connection], T], default: T, *, write: bool = True) -> T:
        try:
            return self._file.run(work, write=write)
        except StorageError as error:
            _log.warning("the catalogue is not used: %s", error)
            return default


def _read_rows(db: sqlite3.Connection) -> CatalogueRows:
    closed = list(starmap(SessionInfo, db.execute(_READ_CLOSED)))
    unsure = [CatalogueRow(SessionInfo(*row[:10]), closed=False, signature=row[10]) for row in db.execute(_READ_UNSURE)]
    return CatalogueRows(closed, {row.info.id: row for row in unsure})


def _values(info: SessionInfo) -> tuple[object, ...]:
    return tuple(getattr(info, name) for name in SessionInfo.__struct_fields__)
