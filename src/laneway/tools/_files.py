"""Replace a file so that a reader, a crash or a full disk never sees half of it.

The new content goes to a hidden file beside the old one, is forced to disk and then renamed over it. Links stay links, and mode
bits, owner, access lists and other attributes stay what they were. Where a rename would break something (hard links, a file that is mounted, a
directory that takes no new file, an owner or attribute that cannot be kept) the file is rewritten in place instead, once the space for it is there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator

from laneway.errors import ToolError
from laneway.tools._ignore import DRAFT
from laneway.tools._paths import Directory, Place, Workspace, describe, wrong_kind
from laneway.tools._truncate import printable

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_POWERS = frozenset({"security.capability", "security.ima", "security.evm"})  # they vouch for the old content
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_LOOK = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_REWRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def read_all(fd: int, check: Callable[[], None], shown: str) -> bytes:
    """Read a descriptor to its end, calling `check` between blocks, and close it; `ToolError` names the file as `shown`."""
    blocks: list[bytes] = []
    try:
        with readable(shown):
            while block := os.read(fd, 1 << 20):
                blocks.append(block)
                check()
    finally:
        os.close(fd)
    return b"".join(blocks)


@contextlib.contextmanager
def readable(shown: str) -> Generator[None]:
    """Turn what goes wrong while a file is read (a failing disk, a network drive that left) into a `ToolError` that names it."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"Cannot read {shown}: {describe(error)}") from error


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

        def last_look() -> None:  # forcing the new content to disk took a while: what came in between must not be lost
            check()
            if expected is not None and ((now := _stat(directory, name)) is None or _identity(now) != _identity(expected)):
                raise ToolError(f"{place.shown} was changed by another program just now: nothing was written. Read it again")

        last_look()
        if before is not None:
            _refuse_read_only(directory, name, place.shown)
        if before is not None and before.st_nlink > 1:
            _rewrite(directory, name, data)
        else:
            _swap(directory, name, before, data, last_look)
    except OSError as error:
        raise ToolError(f"Cannot write {place.shown}: {describe(error)} ({printable(place.real)})") from error
    finally:
        directory.close()


def _refuse_read_only(directory: Directory, name: str, shown: str) -> None:
    """Raise if the file must not be written, though a rename could replace it: `ToolError` for its mode, `OSError` for what else forbids it."""
    if os.access(directory.name(name), os.W_OK, dir_fd=directory.fd):
        return
    try:
        os.close(os.open(directory.name(name), _REWRITE, dir_fd=directory.fd))
    except OSError as error:
        if error.errno != errno.EACCES:
            raise
    raise ToolError(f"Cannot write {shown}: the file is read-only; change its permissions first if it really should be changed")


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
            kept = before is None or (_keep_owner(fd, before) and _keep_attributes(fd, directory, name))
            if kept:
                if before is not None and hasattr(os, "fchmod"):
                    os.fchmod(fd, stat.S_IMODE(before.st_mode))
                _write(fd, data)
        finally:
            os.close(fd)
        check()
        if not kept or not _rename(directory, draft, name):
            _rewrite(directory, name, data)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(directory.name(draft), dir_fd=directory.fd)


def _rename(directory: Directory, draft: str, name: str) -> bool:
    """Put the draft in the place of the file; return False if that is a mount of its own, as containers have them, which no rename replaces."""
    try:
        os.replace(directory.name(draft), directory.name(name), src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _keep_owner(fd: int, before: os.stat_result) -> bool:
    """Give the new file the owner of the old one; return whether it has it."""
    now = os.fstat(fd)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(fd, before.st_uid, before.st_gid)
        except OSError:
            return False
    return True


def _keep_attributes(fd: int, directory: Directory, name: str) -> bool:
    """Give the new file the access list and the other extended attributes of the old one; return whether it has them all."""
    if not hasattr(os, "listxattr"):
        return True
    try:
        old = os.open(directory.name(name), _LOOK, dir_fd=directory.fd)
    except OSError:
        return False
    try:
        had = {key: os.getxattr(old, key) for key in os.listxattr(old) if key not in _POWERS}
        has = {key: os.getxattr(fd, key) for key in os.listxattr(fd)}
        for key in has.keys() - had.keys() - _POWERS:  # what the directory gives to each new file
            os.removexattr(fd, key)
        for key, value in had.items():
            if has.get(key) != value:
                os.setxattr(fd, key, value)
    except OSError as error:
        return error.errno == errno.ENOTSUP
    finally:
        os.close(old)
    return True


def _rewrite(directory: Directory, name: str, data: bytes) -> None:
    """Write the content into the file that is there: the last resort, not whole-or-nothing."""
    fd = os.open(directory.name(name), _REWRITE, dir_fd=directory.fd)
    try:
        _reserve(fd, len(data))
        _write(fd, data)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def _reserve(fd: int, size: int) -> None:
    """Make sure that the disk has room for the new content before the old one is touched, where the system can tell."""
    before = os.fstat(fd).st_size
    if size <= before or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in _NO_SPACE:
            os.ftruncate(fd, before)
            raise


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[: 1 << 20]) :]
    os.fsync(fd)
