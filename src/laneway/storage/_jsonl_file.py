"""A JSONL session's file: read whole lines, append one, take a torn one back, swap in a compacted file.

Blocking; it runs on the storage's own thread.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Literal

from laneway.errors import SessionNotFound, StorageCorruption, StorageError
from laneway.storage._jsonl_format import FORMAT, LONGEST_HEADER, VERSION, Header, header_line, read_header

Durability = Literal["process", "power"]


class JsonlFile:
    """An open file. `size` counts the bytes of its whole lines, `torn` those of a partial line after them."""

    def __init__(self, path: Path, fd: int, durability: Durability) -> None:
        self.path = path
        self.header = Header(format=FORMAT, version=VERSION)
        self.size = 0
        self.torn = 0
        self._body = 0  # where the header ends
        self._fd = fd
        self._durability: Durability = durability

    @classmethod
    def open(cls, path: Path, *, read_only: bool, durability: Durability) -> JsonlFile:
        """Open an existing file and read its header; nothing is changed.

        Raises:
            SessionNotFound: there is no such file.
            StorageCorruption, StorageVersionError: see `read_header`.
            StorageError: it cannot be opened.
        """
        access = os.O_RDONLY if read_only else os.O_RDWR
        try:
            fd = os.open(path, access | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe of that name must not hang us
        except FileNotFoundError:
            raise SessionNotFound(f"there is no session file {path}") from None
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error}; {'is it readable?' if read_only else 'to only read it, use read_only=True'}") from error
        file = cls(path, fd, durability)
        try:
            file._read_header()
        except BaseException:
            file.close()
            raise
        return file

    def _read_header(self) -> None:
        about = os.fstat(self._fd)
        if not stat.S_ISREG(about.st_mode):
            raise StorageCorruption(f"{self.path} is not a laneway session: it is not a regular file")
        if about.st_size == 0:
            raise StorageCorruption(f"{self.path} is not a laneway session: it is empty (nothing was changed)")
        start = os.pread(self._fd, LONGEST_HEADER, 0)
        line = start[: start.find(b"\n") + 1] or start
        self.header = read_header(line, self.path)
        self._body = self.size = len(line)

    @staticmethod
    def create(path: Path, header: Header) -> None:
        """Make a new session file, whole or not at all; the caller holds its lock and has seen that it is not there."""
        try:
            temporary = _temporary(path)
            with _removed_on_failure(temporary), open(temporary, "wb") as file:
                file.write(header_line(header))
                file.flush()
                _flush_to_disk(file.fileno())
                os.replace(temporary, path)
            _flush_folder(path)
        except OSError as error:
            raise StorageError(f"cannot create {path}: {error}") from error

    def lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (line number, byte offset, line) of what follows the header; the last line may lack its newline."""
        offset = self._body
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(offset)
            for number, line in enumerate(file, start=2):
                yield number, offset, line
                offset += len(line)

    def length(self) -> int:
        """Return how many bytes the file has now."""
        return os.fstat(self._fd).st_size

    def append(self, line: bytes) -> None:
        """Write a line, whole or not at all.

        Raises:
            StorageCorruption: somebody else changed or replaced the file; nothing was written.
            StorageError: it could not be written (a full disk …); what was written of it is taken back.
        """
        try:
            self._check_untouched()
            if self.torn:
                self._take_back()
            try:
                _write_all(self._fd, line, self.size)
                if self._durability == "power":
                    _flush_to_disk(self._fd)
            except OSError:
                self.torn = max(0, self.length() - self.size)
                with contextlib.suppress(OSError):  # if even that fails, the next append tries again, and a reader drops the torn line
                    self._take_back()
                raise
        except OSError as error:
            raise StorageError(f"cannot write to {self.path}: {error}; the commit was not made") from error
        self.size += len(line)

    def _check_untouched(self) -> None:
        size = self.length()
        if size != self.size + self.torn:
            raise StorageCorruption(
                f"{self.path} has {size} bytes where {self.size + self.torn} were left: another program changed it; nothing was written"
            )
        try:
            same = os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            same = False
        if not same:
            raise StorageCorruption(f"{self.path} was moved, removed or replaced while it was open; nothing was written")

    def _take_back(self) -> None:
        os.ftruncate(self._fd, self.size)
        self.torn = 0
        if self._durability == "power":
            _flush_to_disk(self._fd)

    def replace(self, header: Header, rewrite: Callable[[Iterable[tuple[int, int, bytes]]], Iterable[bytes]]) -> None:
        """Put `rewrite` of the lines in place of the file, atomically; on failure the file stays as it was.

        Raises:
            StorageError: the new file could not be written.
        """
        temporary = _temporary(self.path)
        try:
            self._check_untouched()
            with _removed_on_failure(temporary):
                fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                try:
                    size = _write_lines(fd, header_line(header), rewrite(line for line in self.lines() if line[1] < self.size))
                    os.fchmod(fd, stat.S_IMODE(os.fstat(self._fd).st_mode))
                    _flush_to_disk(fd)
                    os.replace(temporary, self.path)
                except BaseException:
                    os.close(fd)
                    raise
            os.close(self._fd)
            self._fd, self.size, self.torn, self.header, self._body = fd, size, 0, header, len(header_line(header))
            _flush_folder(self.path)
        except OSError as error:
            raise StorageError(f"cannot compact {self.path}: {error}; it stays as it was") from error

    def remove_leftovers(self) -> None:
        """Remove what a process that died in a compaction left; the caller holds the lock."""
        with contextlib.suppress(OSError):
            os.unlink(_temporary(self.path))

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Generator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _write_lines(fd: int, header: bytes, lines: Iterable[bytes]) -> int:
    with os.fdopen(os.dup(fd), "wb", buffering=1 << 20) as file:
        file.write(header)
        file.writelines(lines)
        file.flush()
        return file.tell()


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _flush_to_disk(fd: int) -> None:
    """Wait until the file's data is on the medium, as far as the system tells."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
        return
    import fcntl

    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone leaves the data in the drive's cache
    if full is None:
        os.fsync(fd)
    else:
        fcntl.fcntl(fd, full)


def _flush_folder(path: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems have nothing to flush for a folder
        fd = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
