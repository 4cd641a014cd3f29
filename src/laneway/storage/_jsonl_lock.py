"""One writer for a file: an OS lock, so a dead owner holds nothing.

The lock is on a small file beside the session (`x.jsonl.lock`), which names the owner for whoever is refused. It cannot be on the session
itself: compaction replaces that file. The owner removes the lock file while it still holds the lock; a process that locks a file
which is no longer the one at that path tries again. So there are never two owners, and a clean close leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import weakref
from pathlib import Path

from laneway.errors import LeaseLost, SessionLocked, StorageError

_open_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """The right to write one file, from `acquire` to `release` or the death of the process. Not inherited by a forked child."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd: int | None = fd
        _open_locks.add(self)

    @classmethod
    def acquire(cls, session: Path) -> FileLock:
        """Take the lock of `session` without waiting.

        Raises:
            SessionLocked: a live process (which may be this one) has it; `owner` names it.
            StorageError: the folder cannot be written, or its file system has no locks.
        """
        path = session.with_name(session.name + ".lock")
        try:
            while True:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    if not _lock(fd):
                        owner = _read_owner(fd)
                        raise SessionLocked(
                            f"{session} is open in {owner}: one process writes a session; close it there, or open it with read_only=True", owner=owner
                        )
                    if _still_at(path, fd):
                        os.ftruncate(fd, 0)
                        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                        return cls(path, fd)
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)
        except OSError as error:
            raise StorageError(f"cannot lock {session}: {error}; its folder must be writable, or open it with read_only=True") from error

    def check(self) -> None:
        """Raise `LeaseLost` in a process that was forked from the owner."""
        if self._fd is None:
            raise LeaseLost(f"{self._path} belongs to the process that opened it; open the session again here")

    def release(self) -> None:
        """Give the lock up. Idempotent."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = None

    def forget(self) -> None:
        """Drop the copy that a forked child got; the parent's lock stays, and ends with the parent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lock(fd: int) -> bool:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _read_owner(fd: int) -> str:
    for _ in range(20):  # the owner may be between taking the lock and writing its name
        if text := os.pread(fd, 200, 0).decode(errors="replace").strip():
            return text
        time.sleep(0.005)
    return "another process"


def _forget_after_fork() -> None:
    for lock in list(_open_locks):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
