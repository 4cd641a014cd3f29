"""One open session file: its connection, its lease and its commits. Everything here blocks; a strand runs it, one call at a time."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from laneway.errors import LeaseLost, SessionNotFound, StorageCorruption, StorageError
from laneway.messages import now_ms
from laneway.storage import _checks as checks
from laneway.storage._codec import EncodedCommit, EncodedElement, EncodedEntry, EncodedUsage, EncodedValue
from laneway.storage._loss import Loss
from laneway.storage._owner import decode_owner
from laneway.storage._rewrite import NewContent
from laneway.storage._sqlite_branch import BranchIndex, rebuild
from laneway.storage._sqlite_file import (
    PAGE_SIZE,
    Durability,
    connect,
    has_log,
    is_still_at,
    migrate,
    migrations,
    named,
    named_errors,
    newer_version,
    read_version,
    recognise,
    sync,
    unsync,
)
from laneway.storage._sqlite_lease import Lease, Position, acquire, read_position
from laneway.storage._sqlite_read import SEQ_OF_ID, SqliteReader
from laneway.storage._sqlite_rows import cell_row, entry_row, fetch, pack_id, usage_row
from laneway.storage._sqlite_verify import problems_of
from laneway.storage.base import CommitResult, Content, DeleteList, DeleteValue

_T = TypeVar("_T")

# The log is moved into the main file behind a commit, whose caller has its answer already, for that waits for the disk. By this
# connection: until 3.51.3 SQLite can lose pages when one commits while another moves the log.
CHECKPOINT_DUE: Final = 1_000
"""Pages in the log that make it worth its while: SQLite's own default. A commit into a log that was moved is cheaper: its file does not grow."""
CHECKPOINT_OVERDUE: Final = 8 * CHECKPOINT_DUE
"""Pages from which on SQLite does it within a commit after all."""

_TAKE_ID: Final = "INSERT INTO ids VALUES (?, ?)"
_ADD_ENTRY: Final = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_USAGE: Final = "INSERT INTO usage_rows VALUES (?, ?, ?, ?, ?, ?)"
_SET: Final = "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?)"  # one look-up; an upsert makes two
_DELETE: Final = "DELETE FROM cells WHERE namespace = ? AND key = ?"
_APPEND: Final = "INSERT INTO elements VALUES (?, ?, ?, ?, ?)"
_DELETE_LIST: Final = "DELETE FROM elements WHERE namespace = ? AND key = ?"
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'state' AND name NOT LIKE 'sqlite%'"


class SqliteSession:
    """The file at `path`, open for one owner, or to read only."""

    def __init__(self, path: Path, connection: sqlite3.Connection, later: Callable[[Callable[[], object]], object]) -> None:
        self.path = path
        self.lease: Lease | None = None
        self.loss = Loss()  # why nothing can be written any more
        self.position = Position()  # as of the last commit
        self._connection = connection
        self._cursor = connection.cursor()
        self._branches = BranchIndex(self._cursor)
        self._reader = SqliteReader(self._cursor, self._branches)
        self._renewed = time.monotonic()
        self._about: os.stat_result | None = None  # which file it is
        self._later = later
        self._log_pages = 0  # in the log since the last checkpoint, about

    def _set_position(self, position: Position) -> None:
        self.position = position
        self._branches.next_segment = position.next_segment

    # ------------------------------------------------------------------------------------------------ opening and closing

    @classmethod
    def open(cls, path: Path, durability: Durability, lease_life: float, later: Callable[[Callable[[], object]], object]) -> SqliteSession:
        """Open the file, take the lease and bring the file up to date: one transaction, so nothing if any of it fails.

        `later` is given what may be done after other work, on the same strand.

        Raises:
            SessionNotFound, SessionLocked, StorageCorruption, StorageVersionError, StorageError
        """
        about = recognise(path)
        begins_log = not has_log(path)
        with named_errors(path):
            connection = connect(path)
            session = cls(path, connection, later)
            try:
                if begins_log:
                    unsync(connection)  # the lease, the first thing in a new log, need not wait for the disk
                try:
                    session._take(lease_life)
                finally:
                    sync(connection, durability)
                if not is_still_at(path, about):  # its last owner deleted it before giving the lease back
                    raise SessionNotFound(f"the session {path} was deleted while it was being opened")
                session._about = about
                return session
            except BaseException:
                session._let_go()
                raise

    def _take(self, lease_life: float) -> None:
        self._cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_OVERDUE}")
        with self._transaction() as cursor:
            version = read_version(self._connection)
            if version > len(migrations()):
                raise newer_version(self.path, version, len(migrations()))
            migrate(self._connection, migrations())
            lease = acquire(cursor, self.path, lease_life, secrets.token_hex(4))
            self._set_position(read_position(cursor))
        self.lease = lease

    @classmethod
    def open_to_read(cls, path: Path) -> SqliteSession:
        """Open the file beside its owner, if it has one; take no lease and write nothing.

        Raises:
            SessionNotFound, StorageCorruption, StorageVersionError, StorageError
        """
        recognise(path)
        with named_errors(path):
            connection = connect(path, read_only=True)
            try:
                version = read_version(connection)
                if version > len(migrations()):
                    raise newer_version(path, version, len(migrations()))
                if version < len(migrations()):
                    raise StorageError(f"the session {path} has the older storage version {version}: open it once to write, to bring it up to date")
                return cls(path, connection, lambda _: None)
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        """Give the lease back and close the file; what fails is raised when all has been tried."""
        problems: list[StorageError] = []
        lease, self.lease = self.lease, None
        if lease is not None and self.loss.error is None:
            try:
                with named_errors(self.path), self._transaction() as cursor:
                    lease.release(cursor)
            except StorageError as error:
                problems.append(error)
        try:
            with named_errors(self.path):
                self._let_go()
        except StorageError as error:
            problems.append(error)
        if problems:
            raise StorageError(f"closing the session {self.path} failed: {'; '.join(str(p) for p in problems)}") from problems[0]

    def _let_go(self) -> None:
        self._cursor.close()  # it keeps a statement that failed, and that the file open
        self._connection.close()

    def renew(self, interval: float) -> None:
        """Put the lease's end off, unless a commit just did. Never raises: what it finds out, the next commit raises."""
        if self.lease is None or self.loss.error is not None:
            return
        if self._about is not None and not is_still_at(self.path, self._about):
            self.loss.note(LeaseLost(f"the session {self.path} was deleted, moved or replaced while it was open: nothing more is written to it"))
            return
        if time.monotonic() - self._renewed < interval / 2:
            return
        with contextlib.suppress(StorageError, sqlite3.Error), self._transaction() as cursor:
            if not self.lease.renew(cursor):
                self._is_replaced(self.lease)
            self._renewed = time.monotonic()

    # ------------------------------------------------------------------------------------------------ committing

    def commit(self, commit: EncodedCommit) -> CommitResult:
        """Apply a whole commit, in one transaction that also finds out whether this is still the owner."""
        lease = self._owned()
        before = self.position
        seqs = commit.number(before.next_seq)
        timestamp = now_ms()
        cursor = self._cursor
        try:
            cursor.execute("BEGIN IMMEDIATE")
            entries, usage_rows = self._apply(cursor, commit, seqs, timestamp)
            after = Position(
                seqs[-1] + 1 if seqs else before.next_seq,
                self._branches.next_segment,
                before.entry_count + entries,
                before.usage_count + usage_rows,
                commit.stats_after(before.stats),
            )
            if not lease.move_on(cursor, before, after):
                raise self._changed()
            cursor.execute("COMMIT")
        except BaseException as error:
            raise self._undo(error, lease, commit) from error
        self._set_position(after)
        self._renewed = time.monotonic()
        self._branches.trim()
        if self._log_pages >= CHECKPOINT_DUE:
            self._later(self._checkpoint)
        return CommitResult(first_seq=seqs[0] if seqs else before.next_seq, seqs=seqs, timestamp=timestamp, stats=after.stats)

    def _checkpoint(self) -> None:
        """Move the log into the main file, as far as readers let it."""
        if self.lease is None or self.loss.error is not None or self._log_pages < CHECKPOINT_DUE:  # closed, lost, or two commits asked for it
            return
        self._log_pages = 0
        # What fails here fails again where somebody sees it: in a commit, or when the file is closed.
        with contextlib.suppress(sqlite3.Error):
            self._cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _owned(self) -> Lease:
        if self.loss.error is not None:
            raise LeaseLost(str(self.loss.error))
        if self.lease is None:
            raise StorageError(f"the session {self.path} was opened with read_only=True and cannot be written to")
        return self.lease

    def _changed(self) -> StorageCorruption:
        return StorageCorruption(f"the session {self.path} was changed by something else than laneway; open it again")

    def _apply(self, cursor: sqlite3.Cursor, commit: EncodedCommit, seqs: list[int], timestamp: int) -> tuple[int, int]:
        """Write the rows; return how many entries and usage rows they are."""
        entries = usage_rows = size = 0
        execute = cursor.execute
        for write, seq in zip(commit.writes, seqs, strict=True):  # by exact type: this is per write
            if type(write) is EncodedValue:
                execute(_SET, cell_row(write.namespace, write.key, seq, write.value))
                size += len(write.value)
            elif type(write) is EncodedEntry:
                self._insert_entry(cursor, write, seq, write.timestamp if write.seq else timestamp)
                entries += 1
                size += len(write.payload)
            elif type(write) is DeleteValue:
                execute(_DELETE, (write.namespace, write.key))
            elif type(write) is EncodedElement:
                execute(_APPEND, cell_row(write.namespace, write.key, seq, write.value))
                size += len(write.value)
            elif type(write) is DeleteList:
                execute(_DELETE_LIST, (write.namespace, write.key))
            elif type(write) is EncodedUsage:
                self._insert_usage(cursor, write, seq, timestamp)
                usage_rows += 1
                size += len(write.payload)
        self._log_pages += 2 + len(seqs) + size // PAGE_SIZE
        return entries, usage_rows

    def _insert_usage(self, cursor: sqlite3.Cursor, row: EncodedUsage, seq: int, timestamp: int) -> None:
        id = pack_id(row.id)
        cursor.execute(_TAKE_ID, (id, seq))
        entry_id = None if row.entry_id is None else pack_id(row.entry_id)
        cursor.execute(_ADD_USAGE, usage_row(seq, id, entry_id, timestamp, row.payload))

    def _insert_entry(self, cursor: sqlite3.Cursor, entry: EncodedEntry, seq: int, timestamp: int) -> None:
        id = pack_id(entry.id)
        cursor.execute(_TAKE_ID, (id, seq))
        parent = None
        if entry.parent_id is not None:
            parent = self._branches.place_of(entry.parent_id)
            if parent is None:
                raise checks.missing_parent(entry.id, entry.parent_id)
        self._branches.add(entry.id, seq, parent, is_compaction=entry.type == "compaction")
        cursor.execute(_ADD_ENTRY, entry_row(entry, id, seq, None if parent is None else parent.seq, timestamp))

    def _undo(self, error: BaseException, lease: Lease, commit: EncodedCommit | None = None) -> BaseException:
        """Take back a commit that failed, in the file and in memory, and return the error that says why it did."""
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
        self._branches.forget()
        self._branches.next_segment = self.position.next_segment
        if isinstance(error, (sqlite3.IntegrityError, StorageCorruption)) and self._is_replaced(lease):
            return LeaseLost(str(self.loss.error))
        if isinstance(error, sqlite3.IntegrityError) and commit is not None:
            error = self._duplicate_in(commit) or error
        return named(error, self.path)

    def _duplicate_in(self, commit: EncodedCommit) -> StorageCorruption | None:
        """Find the id that was taken already."""
        seen: set[str] = set()
        for write in commit.writes:
            if isinstance(write, (EncodedEntry, EncodedUsage)):
                if write.id in seen or fetch(self._cursor, SEQ_OF_ID, (pack_id(write.id),)) is not None:
                    return checks.duplicate_id(write.id)
                seen.add(write.id)
        return None

    # ------------------------------------------------------------------------------------------------ reading

    def read(self, query: Callable[[SqliteReader], _T]) -> _T:
        """Answer a query. Beside another owner, everything is read as of one moment."""
        with named_errors(self.path):
            if self.lease is not None and self.loss.error is None:
                try:
                    return query(self._reader)
                except StorageCorruption:
                    if not self._is_replaced(self.lease):
                        raise
            self._cursor.execute("BEGIN")
            try:
                self._branches.forget()
                return query(self._reader)
            finally:
                self._cursor.execute("ROLLBACK")

    def verify(self) -> list[str]:
        """Check every page and row of the file, and the index; return what is wrong. Linear in the size of the file."""
        with named_errors(self.path):
            return problems_of(self._cursor)

    def repair(self) -> None:
        """Make the branch index anew from the entries, in one transaction."""
        lease = self._owned()
        try:
            with self._transaction() as cursor:
                after = msgspec.structs.replace(self.position, next_segment=rebuild(cursor))
                if not lease.move_on(cursor, self.position, after):
                    raise self._changed()
        except BaseException as error:
            raise self._undo(error, lease) from error
        self._branches.forget()
        self._set_position(after)

    def rewrite(self, content: Content) -> None:
        """Replace everything in one transaction, then leave no trace of the rest in the file and its log."""
        lease = self._owned()
        new = NewContent(content, next_seq=self.position.next_seq)
        try:
            self._cursor.execute("PRAGMA secure_delete = ON")
            with self._transaction() as cursor:
                for (table,) in cursor.execute(_TABLES).fetchall():
                    cursor.execute(f'DELETE FROM "{table}"')
                self._branches.forget()
                self._branches.next_segment = 1
                for numbered in new.writes:
                    self._apply(cursor, EncodedCommit([numbered.write]), [numbered.seq], numbered.timestamp)
                after = Position(new.rows.next_seq, self._branches.next_segment, new.entries, new.usage_rows, new.rows.stats)
                if not lease.move_on(cursor, self.position, after):
                    raise self._changed()
        except BaseException as error:
            raise self._undo(error, lease) from error
        self._set_position(after)
        self._branches.trim()
        self._sweep()

    def _sweep(self) -> None:
        with named_errors(self.path):
            self._cursor.execute("VACUUM")
            busy = fetch(self._cursor, "PRAGMA wal_checkpoint(TRUNCATE)")
        if busy is None or busy[0]:
            raise StorageError(
                f"the session {self.path} was rewritten, but somebody who reads it keeps the old content in its log: "
                "close the readers and rewrite it again"
            )

    # ------------------------------------------------------------------------------------------------ transactions

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Cursor, None, None]:
        """Run a block in one immediate transaction: committed when it ends, rolled back when it raises."""
        self._cursor.execute("BEGIN IMMEDIATE")
        try:
            yield self._cursor
            self._cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
            raise

    def _is_replaced(self, lease: Lease) -> bool:
        """Whether another owner has the lease; then it is lost for good."""
        try:
            if lease.is_held(self._cursor):
                return False
            row = fetch(self._cursor, "SELECT owner FROM state")
        except sqlite3.Error:
            return False
        owner = decode_owner(row[0]) if row is not None and isinstance(row[0], str) else None
        self.loss.note(
            LeaseLost(
                f"the session {self.path} was taken over{f' by {owner}' if owner else ''} while this process did not renew its lease: "
                "nothing more can be written from here; open it again when its new owner has closed it"
            )
        )
        return True
