"""Replace a file so that a reader, a crash or a full disk never sees half of it.

The new content goes to a hidden file beside the old one, is forced to disk and then renamed over it. Links stay links, and mode
bits and owner stay what they were. Where a rename would break something (hard links, a directory that takes no new file, an owner that
cannot be kept) the file is rewritten in place instead.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable

from laneway.errors import ToolError
from laneway.tools._ignore import DRAFT
from laneway.tools._paths import Directory, Place, Workspace, describe, wrong_kind
from laneway.tools._truncate import printable

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_REWRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def read_all(fd: int, check: Callable[[], None]) -> bytes:
    """Read a descriptor to its end, calling `check` between blocks, and close it."""
    blocks: list[bytes] = []
    try:
        while block := os.read(fd, 1 << 20):
            blocks.append(block)
            check()
    finally:
        os.close(fd)
    return b"".join(blocks)


def status(workspace: Workspace, place: Place) -> os.stat_result | None:
    """Return the state of the real file, None if there is none; `ToolError` if it is no regular file."""
    directory: Directory | None = None
    try:
        directory = workspace.parent(place) if os.path.isdir(os.path.dirname(place.real)) else None
        found = None if directory is None else _stat(directory, os.path.basename(place.real))
    except OSError as error:
        raise ToolError(f"Cannot write {place.shown}: {describe(error)} ({printable(place.real)})") from error
    finally:
        if directory is not None:
            directory.close()
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise ToolError(wrong_kind(place, found.st_mode, "write"))
    return found


def replace(workspace: Workspace, place: Place, data: bytes, check: Callable[[], None], *, expected: os.stat_result | None = None) -> None:
    """Make `data` the content of the real file, whole or not at all; missing directories are made.

    `check` may raise until the moment of the change, which then is not made. `ToolError` says why a file could not be written; with
    `expected`, also that the file is no longer in that state, because another program wrote to it.
    """
    check()
    directory = workspace.parent(place, create=True)
    try:
        name = os.path.basename(place.real)
        before = _stat(directory, name)
        if before is not None and not stat.S_ISREG(before.st_mode):
            raise ToolError(wrong_kind(place, before.st_mode, "write"))
        if expected is not None and (before is None or _identity(before) != _identity(expected)):
            raise ToolError(f"{place.shown} was changed by another program just now: nothing was written. Read it again")
        if before is not None and not os.access(directory.name(name), os.W_OK, dir_fd=directory.fd):
            raise ToolError(f"Cannot write {place.shown}: the file is read-only; change its permissions first if it really should be changed")
        if before is not None and before.st_nlink > 1:
            check()
            _rewrite(directory, name, data)
        else:
            _swap(directory, name, before, data, check)
    except OSError as error:
        raise ToolError(f"Cannot write {place.shown}: {describe(error)} ({printable(place.real)})") from error
    finally:
        directory.close()


def _identity(state: os.stat_result) -> tuple[int, int, int]:
    return state.st_ino, state.st_size, state.st_mtime_ns


def _stat(directory: Directory, name: str) -> os.stat_result | None:
    try:
        return os.stat(directory.name(name), dir_fd=directory.fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _swap(directory: Directory, name: str, before: os.stat_result | None, data: bytes, check: Callable[[], None]) -> None:
    """Write a new file and rename it over `name`."""
    draft = secrets.token_hex(8).join(DRAFT)
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o700
    try:
        fd = os.open(directory.name(draft), _CREATE, mode, dir_fd=directory.fd)
    except PermissionError:
        if before is None:
            raise
        check()
        return _rewrite(directory, name, data)
    try:
        try:
            kept = before is None or _keep_owner_and_mode(fd, before)
            if kept:
                _write(fd, data)
        finally:
            os.close(fd)
        check()
        if kept:
            os.replace(directory.name(draft), directory.name(name), src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
        else:
            _rewrite(directory, name, data)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(directory.name(draft), dir_fd=directory.fd)


def _keep_owner_and_mode(fd: int, before: os.stat_result) -> bool:
    """Give the new file the owner and mode of the old one; return False if the owner cannot be kept."""
    now = os.fstat(fd)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(fd, before.st_uid, before.st_gid)
        except OSError:
            return False
    if hasattr(os, "fchmod"):
        os.fchmod(fd, stat.S_IMODE(before.st_mode))
    return True


def _rewrite(directory: Directory, name: str, data: bytes) -> None:
    """Write the content into the file that is there: the last resort, not whole-or-nothing."""
    fd = os.open(directory.name(name), _REWRITE, dir_fd=directory.fd)
    try:
        _write(fd, data)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[: 1 << 20]) :]
    os.fsync(fd)
