"""A session in memory: for tests and for what may be thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.errors import StorageClosed
from laneway.messages import now_ms
from laneway.storage._codec import encode_commit
from laneway.storage._rewrite import NewContent
from laneway.storage._row_reads import ReadsRows
from laneway.storage._rows import Rows
from laneway.storage.base import CommitResult, Content, Write


class MemoryStorage(ReadsRows):
    """A `Storage` that lives as long as the object. Nothing in it is shared with what callers pass in or get back."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryStorage at seq {self._rows.next_seq - 1}{', closed' if self._closed else ''}>"

    def _open_rows(self) -> Rows:
        if self._closed:
            raise StorageClosed("this session's memory was closed; reopen() gives it back")
        return self._rows

    async def commit(self, writes: Sequence[Write]) -> CommitResult:
        """See `Storage.commit`."""
        return self.commit_now(writes)

    def commit_now(self, writes: Sequence[Write]) -> CommitResult:
        """`commit`, which never waits here."""
        rows = self._open_rows()
        commit = encode_commit(writes)
        return rows.apply(commit, rows.check(commit), now_ms())

    async def close(self) -> None:
        """See `Storage.close`. The content is gone with the last object that has it."""
        self._closed = True

    async def rewrite(self, content: Content) -> None:
        """See `Rewritable.rewrite`."""
        rows = self._open_rows()
        rows.become(NewContent(content, next_seq=rows.next_seq).rows)

    def reopen(self) -> MemoryStorage:
        """Return another storage with the same content, open whether or not this one is closed, as opening a file again would."""
        storage = MemoryStorage()
        storage._rows = self._rows
        return storage
