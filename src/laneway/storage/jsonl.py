"""A session in a text file: one line per commit, readable by a person, easy to mail."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from laneway.errors import SessionExists, SessionLocked, SessionNotFound, StorageClosed, StorageCorruption, StorageError
from laneway.messages import now_ms
from laneway.storage._codec import EncodedCommit, encode_commit, encode_json
from laneway.storage._jsonl_file import Durability, JsonlFile
from laneway.storage._jsonl_format import FORMAT, VERSION, Header, commit_line, read_commit
from laneway.storage._jsonl_live import LiveBytes
from laneway.storage._jsonl_lock import FileLock
from laneway.storage._line import CommitLine
from laneway.storage._rewrite import NewContent
from laneway.storage._row_reads import ReadsRows
from laneway.storage._rows import Rows
from laneway.storage._strand import Strand
from laneway.storage.base import CommitResult, Content, Write

_log = logging.getLogger("laneway.storage")
_POLL = 0.05  # seconds between two tries for the lock


class JsonlStorage(ReadsRows):
    """A `Storage` in one file, whose content is also held in memory. Open it with `JsonlStorage.open`.

    A commit is one line. A last line that lacks its newline is a commit that did not happen: it is left out on reading, with a
    warning, and removed before the next write. When most of the file is dead (cells set again, lists deleted), the rest is
    copied to a new file that takes its place.
    """

    def __init__(self, session: _OpenSession, strand: Strand) -> None:
        self.path = session.path
        self.header = session.file.header
        self._session = session
        self._rows = session.rows
        self._strand = strand
        self._line = CommitLine()
        self._closing: asyncio.Task[None] | None = None
        self._broken: str | None = None
        self._compact_above = 0  # bytes; raised when a compaction fails, so that it is not tried at every commit

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        exclusive: bool = False,
        read_only: bool = False,
        durability: Durability = "process",
        wait: float = 0.0,
        session_id: str | None = None,
        metadata: Any = None,
    ) -> JsonlStorage:
        """Open the session at `path`; make it if there is none and `create`, and only then if `exclusive`.

        Args:
            read_only: take no lock and change nothing; shows what was committed at this moment.
            durability: "process": a commit survives the death of the process; "power": also that of the machine.
            wait: seconds to wait for another owner.
            session_id, metadata: kept in the first line of a new file.

        Raises:
            SessionLocked: another process (or this one) has it open for writing; the error names it.
            SessionExists: `exclusive`, and it is there.
            SessionNotFound: it is not there, and is not to be created.
            StorageCorruption: it is no laneway session, or a line of it is damaged; the text names the line and its byte offset.
            StorageVersionError: a newer laneway wrote it.
            StorageError: it cannot be opened or created.
        """
        if durability not in ("process", "power"):
            raise ValueError(f"durability must be 'process' or 'power', not {durability!r}")
        create = create and not read_only
        encode_json(metadata, "metadata")
        header = Header(format=FORMAT, version=VERSION, id=session_id, created_at=now_ms(), metadata=metadata) if create else None
        where = Path(path)
        session = _OpenSession(where, durability)
        strand = Strand()
        deadline = time.monotonic() + wait
        try:
            while True:
                try:
                    await strand.run(lambda: session.open(header, exclusive=exclusive, read_only=read_only))
                    return cls(session, strand)
                except SessionLocked:
                    if time.monotonic() >= deadline:
                        raise
                    await asyncio.sleep(_POLL)
        except BaseException:
            strand.post(session.close)  # if we were cancelled, the thread may still succeed, and would hold the lock for nobody
            strand.close()
            raise

    def __repr__(self) -> str:
        return f"<JsonlStorage {self.path} at seq {self._rows.next_seq - 1}{', closed' if self._closing else ''}>"

    def __del__(self) -> None:
        if getattr(self, "_closing", self) is None and not sys.is_finalizing():
            if self._strand.is_inherited:
                return
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=1)
            self._strand.post(self._session.close)
            self._strand.close()

    def _open_rows(self) -> Rows:
        if self._closing is not None:
            raise StorageClosed(f"the session {self.path} was closed; open it again")
        return self._rows

    def _refuse_to(self, be_changed: str) -> None:
        """Refuse what only the owner may do: not who opened it to read, nor a child that was forked from the owner."""
        if self._session.lock is None:
            raise StorageError(f"{self.path} was opened with read_only=True and cannot be {be_changed}")
        self._session.lock.check()

    # ------------------------------------------------------------------------------------------------ writing

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        """See `Storage.commit`. A commit that cannot be written (`StorageError`) leaves the file as it was.

        Raises:
            StorageError: the session was opened to read only, or the disk refuses.
        """
        rows = self._open_rows()
        commit = encode_commit(writes)
        if not commit.writes:
            return rows.apply(commit, [], now_ms())
        self._refuse_to("written to")
        return await self._line.run(lambda: self._commit(commit))

    async def _commit(self, commit: EncodedCommit) -> CommitResult:
        if self._broken:
            raise StorageError(self._broken)
        seqs = self._rows.check(commit)
        timestamp = now_ms()
        try:
            lengths = await self._strand.run(lambda: self._session.append(commit, seqs, timestamp))
        except asyncio.CancelledError:
            self._broken = f"a commit to {self.path} was torn from its thread, perhaps half way: open the session again"
            raise
        result = self._rows.apply(commit, seqs, timestamp)
        self._session.live.add(commit.writes, seqs, lengths)
        await self._compact_if_worth_it()
        return result

    async def _compact_if_worth_it(self) -> None:
        file, live = self._session.file, self._session.live
        if file.size < self._compact_above or not live.outweighed_in(file.size):
            return
        try:
            await self._strand.run(self._session.compact)
        except StorageError as error:
            self._compact_above = file.size * 2
            _log.warning("%s; nothing is lost, it will be tried again when the file has doubled", error)

    async def compact(self) -> None:
        """Drop dead bytes now. The storage does so by itself when they dominate.

        Raises:
            StorageError: the new file could not be written; the old one stays.
        """
        self._open_rows()
        self._refuse_to("compacted")
        await self._line.run(lambda: self._strand.run(self._session.compact))

    async def rewrite(self, content: Content) -> None:
        """See `Rewritable.rewrite`: a new file takes the place of the old one, as when compacting."""
        rows = self._open_rows()
        self._refuse_to("rewritten")
        await self._line.run(lambda: self._rewrite(rows, content))

    async def _rewrite(self, rows: Rows, content: Content) -> None:
        if self._broken:
            raise StorageError(self._broken)
        new = NewContent(content, next_seq=rows.next_seq)
        self._session.live = await self._strand.run(lambda: self._session.replace(new))
        rows.become(new.rows)

    async def close(self) -> None:
        """See `Storage.close`."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        if not self._closing.done():
            await asyncio.wait([self._closing])
            self._closing.result()

    async def _close(self) -> None:
        if self._strand.is_inherited:
            return
        await self._line.drain()
        await self._strand.run(self._session.close)
        self._strand.close()


class _OpenSession:
    """The file, its lock and its content: what the storage's thread works on."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self.path = path
        self.lock: FileLock | None = None
        self.rows = Rows()
        self.live = LiveBytes()
        self._durability: Durability = durability
        self._file: JsonlFile | None = None

    @property
    def file(self) -> JsonlFile:
        """The open file."""
        if self._file is None:
            raise StorageClosed(f"the session {self.path} is not open")
        return self._file

    def open(self, header: Header | None, *, exclusive: bool, read_only: bool) -> None:
        """Lock, make (with a `header`) and read the file; on failure nothing stays locked or open."""
        self.path = Path(os.path.realpath(self.path))  # a link stays a link when its file is replaced
        try:
            if not read_only:
                self._lock(header, exclusive)
            self._file = JsonlFile.open(self.path, read_only=read_only, durability=self._durability)
            self._read()
            if not read_only:
                self._file.remove_leftovers()
        except BaseException:
            self.close()
            raise

    def _lock(self, header: Header | None, exclusive: bool) -> None:
        if header is None and not self.path.exists():
            raise SessionNotFound(f"there is no session file {self.path}")
        self.lock = FileLock.acquire(self.path)
        if header is not None and not self.path.exists():
            JsonlFile.create(self.path, header)
        elif exclusive:
            raise SessionExists(f"there is a session file {self.path} already")

    def _read(self) -> None:
        file = self.file
        self.live.total = file.size
        for number, offset, line in file.lines():
            if not line.endswith(b"\n") or _is_torn(line, offset, file):
                file.torn = len(line)
                _log.warning("%s: the last line (%d, byte %d) is incomplete: that commit did not happen and is left out", file.path, number, offset)
                break
            try:
                self._take_in(line)
            except (StorageCorruption, ValueError) as error:
                raise StorageCorruption(f"{file.path}: line {number} (at byte {offset}) is damaged: {error}") from error
            file.size = offset + len(line)
        self.rows.next_seq = max(self.rows.next_seq, file.header.next_seq)  # compaction may have dropped the last writes

    def _take_in(self, line: bytes) -> None:
        commit, raws = read_commit(line)
        last = self.rows.next_seq - 1
        for seq in commit.seqs:
            if seq <= last:
                raise StorageCorruption(f"the seq {seq} does not rise above {last}")
            last = seq
        self.rows.check(EncodedCommit(commit.writes))
        self.rows.apply(EncodedCommit(commit.writes), commit.seqs, commit.timestamp)
        self.live.add(commit.writes, commit.seqs, [len(raw) for raw in raws])

    def append(self, commit: EncodedCommit, seqs: Sequence[int], timestamp: int) -> list[int]:
        """Write a commit's line; return the bytes of each write in it."""
        if self.lock is not None:
            self.lock.check()
        line, lengths = commit_line(commit.writes, seqs, timestamp)
        self.file.append(line)
        return lengths

    def compact(self) -> None:
        """Put the living part of the file in its place."""
        header = self.file.header
        self.file.replace(msgspec.structs.replace(header, next_seq=self.rows.next_seq), self.live.surviving)

    def replace(self, content: NewContent) -> LiveBytes:
        """Put other content in the file's place; return the count of its living bytes."""
        live = LiveBytes()

        def lines() -> Iterator[bytes]:
            for numbered in content.writes:
                line, lengths = commit_line([numbered.write], [numbered.seq], numbered.timestamp)
                live.add([numbered.write], [numbered.seq], lengths)
                yield line

        if self.lock is not None:
            self.lock.check()
        self.file.replace(msgspec.structs.replace(self.file.header, next_seq=content.rows.next_seq), lambda _: lines())
        return live

    def close(self) -> None:
        """Close the file and give up the lock. Idempotent."""
        if self._file is not None:
            self._file.close()
        if self.lock is not None:
            self.lock.release()
            self.lock = None


def _is_torn(line: bytes, offset: int, file: JsonlFile) -> bool:
    """Whether a last line has its newline but not all of its text: a lost page of a machine that died reads as NULs, which JSON never has."""
    return b"\0" in line and offset + len(line) == file.length()
