"""SQLite files that hold nothing of their own: made from sessions, thrown away when damaged or of another version."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from laneway.errors import StorageError

if TYPE_CHECKING:
    import sqlite3

_log = logging.getLogger("laneway.session")
_PATIENCE = 5.0  # seconds to wait for another process's transaction
T = TypeVar("T")


class SideFileError(StorageError):
    """The side file itself cannot be used, whatever the state of the sessions."""


class SideFile:
    """One such file. Every `run` is one transaction on a connection of its own, and blocking: call it in a thread."""

    def __init__(self, path: Path, *, version: int, schema: tuple[str, ...]) -> None:
        self.path = path
        self._version = version
        self._schema = schema

    def run(self, work: Callable[[sqlite3.Connection], T], *, write: bool = True) -> T:
        """Return `work(connection)`, committed. A damaged file is made anew, empty, and `work` is done on that.

        Raises:
            SideFileError: the file cannot be used (a full disk, a folder that cannot be written, a lock that is not released).
        """
        import sqlite3

        try:
            try:
                with self._transaction(write) as db:
                    return work(db)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError) and not str(error).startswith("no such"):  # the file is not to blame
                    raise
                _log.warning("%s is damaged (%s) and is made anew", self.path, error)
                self.clear()
                with self._transaction(write) as db:
                    return work(db)
        except (sqlite3.Error, OSError) as error:
            advice = "is its folder writable? The file holds nothing of its own and may be deleted"
            raise SideFileError(f"{self.path} cannot be used: {error}; {advice}") from error

    def clear(self) -> None:
        """Delete the file."""
        for suffix in ("", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).unlink()

    @contextlib.contextmanager
    def _transaction(self, write: bool) -> Generator[sqlite3.Connection]:
        import sqlite3

        db = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous = OFF")
            db.execute("PRAGMA secure_delete = ON")
            if _version_of(db) != self._version:
                db.execute("BEGIN IMMEDIATE")
                if _version_of(db) != self._version:
                    self._make(db)
            else:
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield db
            db.execute("COMMIT")
        finally:
            db.close()

    def _make(self, db: sqlite3.Connection) -> None:
        # Virtual tables first: they take the tables that belong to them along.
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY sql LIKE 'CREATE VIRTUAL%' DESC"
        for (name,) in db.execute(tables).fetchall():
            db.execute(f'DROP TABLE IF EXISTS "{name}"')
        for statement in self._schema:
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {self._version}")


def _version_of(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]
