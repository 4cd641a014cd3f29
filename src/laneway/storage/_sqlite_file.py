"""A session's SQLite file: made whole or not at all, recognised before it is opened, migrated in one transaction."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import stat
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Final, Literal, TypeAlias

from laneway.errors import SessionNotFound, StorageCorruption, StorageError, StorageVersionError

Durability: TypeAlias = Literal["process", "power"]

APPLICATION_ID: Final = 0x6C6E7779
"""Marks the file as ours, in the place that SQLite's format has for it."""
BUSY_TIMEOUT: Final = 10.0
"""Seconds to wait for a program that holds SQLite's own lock; ours hold it for one commit."""

PAGE_SIZE: Final = 4096
"""Bytes; SQLite's default, said here so that a file is the same wherever it is made."""

_HEADER: Final = 100
_MAGIC: Final = b"SQLite format 3\0"

# ---------------------------------------------------------------------------------------------------- errors


@contextlib.contextmanager
def named_errors(path: Path) -> Generator[None, None, None]:
    """Turn what `sqlite3` and the system raise about `path` in the block into the errors of the store."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, OSError) as error:
        raise named(error, path) from error


def named(error: BaseException, path: Path) -> BaseException:
    """Return the store's error for what `sqlite3` or the system raised about `path`; any other error as it is."""
    if isinstance(error, sqlite3.Error):
        return _named_by_code(error, path)
    if isinstance(error, (UnicodeDecodeError, OverflowError)):
        return StorageCorruption(f"the session {path} is damaged: {error}")
    if isinstance(error, OSError):
        return StorageError(f"cannot read or write the session {path}: {error.strerror or error}")
    return error


def _named_by_code(error: sqlite3.Error, path: Path) -> StorageError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    match code:
        case sqlite3.SQLITE_FULL:
            return StorageError(f"the disk is full: nothing was written to the session {path}; free some space and open it again")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StorageError(f"the session {path} cannot be written to ({error}): is it, or its directory, read-only?")
        case sqlite3.SQLITE_CANTOPEN:
            return StorageError(f"the session {path} cannot be opened ({error}): is its directory there, and may it be written to?")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageError(f"the session {path} is locked by another program that has the file open ({error})")
        case sqlite3.SQLITE_IOERR:
            return StorageError(f"the disk failed under the session {path} ({error})")
        case sqlite3.SQLITE_TOOBIG | sqlite3.SQLITE_NOMEM:
            return StorageError(f"a row is too large for the session {path} ({error})")
        case _:
            return StorageCorruption(f"the session {path} is damaged ({error}): restore it from a copy")


# ---------------------------------------------------------------------------------------------------- migrations


@lru_cache
def migrations() -> tuple[str, ...]:
    """Return the migrations, oldest first: running the first n makes a file of `storage_version` n."""
    folder = resources.files("laneway.storage") / "migrations" / "sqlite"
    scripts = sorted((script for script in folder.iterdir() if script.name.endswith(".sql")), key=lambda script: script.name)
    return tuple(script.read_text("utf-8") for script in scripts)


def migrate(connection: sqlite3.Connection, scripts: Sequence[str]) -> None:
    """Bring the file up to the newest version; inside the caller's transaction, so all or nothing."""
    version = read_version(connection)
    for number, script in enumerate(scripts[version:], version + 1):
        for statement in _statements(script):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")


def read_version(connection: sqlite3.Connection) -> int:
    """Return the file's `storage_version`."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _statements(script: str) -> Iterator[str]:
    """Split a script; `executescript` would commit the transaction that it runs in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def newer_version(path: Path, found: int, known: int) -> StorageVersionError:
    """The error for a file of the future."""
    return StorageVersionError(
        f"the session {path} has storage version {found}, and this laneway knows up to {known}: upgrade laneway to open it (nothing was changed)"
    )


# ---------------------------------------------------------------------------------------------------- making and opening


_empty: list[bytes] = []


def _empty_session(near: Path) -> bytes:
    """Return the bytes of a session file in which nothing was committed; the first time, it is made in the folder `near`.

    (Only where sessions are kept is it known that files can be: a system's folder for temporary ones may be full or read-only.)
    """
    if not _empty:
        _empty.append(_make_empty(near))
    return _empty[0]


def _make_empty(near: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix=".laneway-", dir=near) as folder:
        path = Path(folder) / "empty"
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("BEGIN IMMEDIATE")
            migrate(connection, migrations())
            connection.execute("COMMIT")
        finally:
            connection.close()
        return path.read_bytes()


def create_file(path: Path, durability: Durability) -> bool:
    """Put an empty session at `path`, whole from the first moment that it is there. False if there is something already."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp{path.suffix}"
    with named_errors(path):
        content = _empty_session(path.parent)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                if durability == "power":
                    file.flush()
                    os.fsync(file.fileno())
            made = _give_name(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        if made and durability == "power":
            _sync_directory(path.parent)
    return made


def _give_name(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links; there the check and the renaming are two steps
        if path.exists():
            return False
        os.replace(temporary, path)
    return True


def _sync_directory(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recognise(path: Path) -> os.stat_result:
    """Refuse a file that is not a session of ours, without touching it; return which file it is.

    Raises:
        SessionNotFound, StorageCorruption, StorageVersionError: each says what is there instead.
    """
    try:
        with named_errors(path):
            about = path.stat()
            if not stat.S_ISREG(about.st_mode):  # reading a pipe of that name would wait for ever
                raise StorageCorruption(f"{path} is not a laneway session: it is not a regular file")
            with path.open("rb") as file:
                header = file.read(_HEADER)
                size = file.seek(0, os.SEEK_END)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise SessionNotFound(f"there is no session at {path}") from None
        raise
    if not header:
        raise StorageCorruption(f"{path} is empty: it is not a laneway session")
    if len(header) < _HEADER or not header.startswith(_MAGIC):
        raise StorageCorruption(f"{path} is not a laneway session: it is not a SQLite file, or its beginning is damaged")
    if _number(header, 68) != APPLICATION_ID:
        raise StorageCorruption(f"{path} is not a laneway session: it is another program's SQLite file, or its beginning is damaged")
    if _number(header, 60) > len(migrations()):
        raise newer_version(path, _number(header, 60), len(migrations()))
    if size < _stated_size(header) and not has_log(path):
        raise StorageCorruption(f"the session {path} is truncated: it has {size} bytes of {_stated_size(header)}; restore it from a copy")
    return about


def is_still_at(path: Path, about: os.stat_result) -> bool:
    """Whether the file is still the one at `path`: what is written to one that was deleted or replaced is lost."""
    try:
        return os.path.samestat(path.stat(), about)
    except FileNotFoundError:
        return False
    except OSError:  # who knows
        return True


def _stated_size(header: bytes) -> int:
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    return page_size * _number(header, 28) if _number(header, 24) == _number(header, 92) else 0


def _number(header: bytes, offset: int) -> int:
    return int.from_bytes(header[offset : offset + 4], "big")


def has_log(path: Path) -> bool:
    """Whether there are commits that are not in the main file yet."""
    try:
        return os.stat(f"{path}-wal").st_size > 0
    except OSError:
        return False


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a session's file; it must be there. Its connection may be used by one thread at a time."""
    connection = _connect_to_read(path) if read_only else _connect(path, "mode=rw")
    try:
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            _use_log(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def sync(connection: sqlite3.Connection, durability: Durability) -> None:
    """Make checkpoints wait for the disk, so that a power cut damages nothing; with "power" every commit too."""
    connection.execute("PRAGMA synchronous = " + ("FULL" if durability == "power" else "NORMAL"))


def unsync(connection: sqlite3.Connection) -> None:
    """Wait for no disk, until `sync`: fit for commits to a log that has just begun, and for no checkpoint."""
    connection.execute("PRAGMA synchronous = OFF")


def _connect(path: Path, options: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{options}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=64)


def _connect_to_read(path: Path) -> sqlite3.Connection:
    connection = _connect(path, "mode=ro")
    try:
        connection.execute("SELECT 1 FROM state").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if has_log(path):
            raise
        return _connect(path, "mode=ro&immutable=1")  # in a read-only directory SQLite cannot keep its index of the log
    except BaseException:
        connection.close()
        raise
    return connection


def _use_log(connection: sqlite3.Connection) -> None:
    """Make sure of the write-ahead log. Switching to it ignores the busy timeout, so it is tried until that has passed."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StorageError(f"SQLite keeps no write-ahead log here (journal_mode is {mode!r}): put the session on a local disk")
        return
