"""Saving what can be read of a damaged JSONL session.

Opening a damaged session is refused, because a context with a hole in it is worse than an error. Salvage is asked for: it keeps every line
that can be read, hangs an entry whose parent is lost on the entry before it, so that no history disappears behind a hole, and
keeps the original bytes in a file beside.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
from msgspec import Struct, field

from laneway.errors import SessionNotFound, StorageCorruption, StorageError
from laneway.messages import now_ms
from laneway.storage._codec import EncodedCommit, EncodedEntry, EncodedUsage, EncodedWrite
from laneway.storage._jsonl_format import commit_line, header_line, read_commit, read_header
from laneway.storage._jsonl_lock import FileLock
from laneway.storage._rows import Rows


class Salvage(Struct, kw_only=True):
    """What a salvage did. Lines are numbered from 1, the header included.

    `lost` says of each line, or write of a line, that could not be kept why. `reattached` are ids of entries whose parent is lost.
    `original` is the file with the bytes as they were; None if nothing was lost, and then nothing was changed.
    """

    lost: list[str] = field(default_factory=list[str])
    reattached: list[str] = field(default_factory=list[str])
    original: Path | None = None


def salvage(path: Path) -> Salvage:
    """Bring a damaged session back into a state that opens. Blocking; it takes the session's lock.

    Raises:
        SessionNotFound: there is no such file.
        SessionLocked: somebody has it open.
        StorageCorruption: its first line is no header, so nobody knows what it is; it was left alone.
        StorageError: the copy or the new file cannot be written; it was left alone.
    """
    path = Path(os.path.realpath(path))
    if not path.exists():
        raise SessionNotFound(f"there is no session file {path}")
    lock = FileLock.acquire(path)
    try:
        data = path.read_bytes()
        work = _Salvage(data, path)
        lines = work.run()
        if work.report.lost or work.report.reattached:
            _put(path, data, lines, work.report)
        return work.report
    except OSError as error:
        raise StorageError(f"cannot salvage {path}: {error}; it was left as it was") from error
    finally:
        lock.release()


def _put(path: Path, data: bytes, lines: list[bytes], report: Salvage) -> None:
    original = path.with_name(f"{path.name}.damaged-{now_ms()}")
    _write(original, data)
    temporary = path.with_name(f".{path.name}.salvaged")
    try:
        _write(temporary, b"".join(lines))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    report.original = original


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class _Salvage:
    def __init__(self, data: bytes, path: Path) -> None:
        self.report = Salvage()
        first, *self._lines = io.BytesIO(data).readlines() or [b""]
        self._header = read_header(first, path)
        self._rows = Rows()
        self._entries: set[str] = set()
        self._last_entry: str | None = None

    def run(self) -> list[bytes]:
        """Return the lines of the salvaged file."""
        kept: list[bytes] = []
        for number, line in enumerate(self._lines, 2):
            try:
                commit, _ = read_commit(line)
            except StorageCorruption as error:
                self.report.lost.append(f"line {number} ({len(line)} bytes): {error}")
                continue
            writes: list[EncodedWrite] = []
            seqs: list[int] = []
            for write, seq in zip(commit.writes, commit.seqs, strict=True):
                saved = self._save(write, seq, commit.timestamp, number)
                if saved is not None:
                    writes.append(saved)
                    seqs.append(seq)
            if writes:
                kept.append(line if writes == commit.writes and line.endswith(b"\n") else commit_line(writes, seqs, commit.timestamp)[0])
        header = msgspec.structs.replace(self._header, next_seq=max(self._header.next_seq, self._rows.next_seq))
        return [header_line(header), *kept]

    def _save(self, write: EncodedWrite, seq: int, timestamp: int, number: int) -> EncodedWrite | None:
        """Take a write in, mended if need be; None if it cannot be kept."""
        if isinstance(write, EncodedEntry) and write.parent_id is not None and write.parent_id not in self._entries:
            self.report.reattached.append(write.id)
            write = EncodedEntry(write.id, self._last_entry, write.type, write.custom_type, write.payload, write.seq, write.timestamp)
        commit = EncodedCommit([write])
        try:
            if seq < self._rows.next_seq:
                raise StorageCorruption(f"its seq {seq} does not rise")
            self._rows.check(commit)
        except (StorageCorruption, ValueError) as error:
            what = f" ({write.id})" if isinstance(write, (EncodedEntry, EncodedUsage)) else ""
            self.report.lost.append(f"a write of line {number}{what}: {error}")
            return None
        self._rows.apply(commit, [seq], timestamp)
        if isinstance(write, EncodedEntry):
            self._entries.add(write.id)
            self._last_entry = write.id
        return write
