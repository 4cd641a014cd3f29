"""Repositories: where sessions come from. The rules that all of them share, and the one in memory."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from operator import attrgetter
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from laneway.errors import InvalidName, SessionExists, SessionLocked, SessionNotFound, StorageClosed, StorageError
from laneway.messages import UserMessage, now_ms
from laneway.session._catalogue import SessionInfo
from laneway.session._fork import Fork, ForkPlan
from laneway.session._ids import Ids
from laneway.session._session import Session, SessionMetadata, decode_metadata, encode_metadata
from laneway.session._snapshot import values_in_line, values_of
from laneway.session.entries import one_line, text_of
from laneway.session.keys import SESSION_METADATA, SESSION_NAME, is_session_id
from laneway.storage.base import EntryScan, MessageEntry, SetValue, Storage, Write
from laneway.storage.memory import MemoryStorage

Commits = Iterable[Sequence[Write]] | AsyncIterator[Sequence[Write]]
PREVIEW_WIDTH = 120


class SessionRepo(ABC):
    """Creates, opens, lists, deletes and forks sessions. One process writes a session; anybody may read it."""

    def __init__(self) -> None:
        self._reserved: set[str] = set()
        self._opened: WeakValueDictionary[str, Session] = WeakValueDictionary()

    async def create(
        self, id: str | None = None, parent_session_id: str | None = None, cwd: str | None = None, metadata: dict[str, Any] | None = None
    ) -> Session:
        """Create an empty session, without a branch, and return it open.

        Args:
            id: letters, digits and `.`, `_`, `-` inside; a new UUIDv7 by default.
            metadata: a JSON object of the application's.

        Raises:
            SessionExists: the id is taken.
            InvalidName: the id cannot be one.
            StorageError: it cannot be stored; nothing is left behind.
        """
        id = id if id is not None else Ids().new()
        chosen = SessionMetadata(id=id, created_at=now_ms(), cwd=cwd, parent_session_id=parent_session_id, metadata=metadata or {})
        return await self.build(chosen, ())

    async def build(self, metadata: SessionMetadata, commits: Commits) -> Session:
        """Create a session from ready-made commits, all or nothing, and return it open. Raises as `create` does."""
        with self._reserving(metadata.id):
            await self._refuse_existing(metadata.id)
            await self._make(metadata, _with_metadata(metadata, commits))
            return await self._attach(metadata.id, 0.0)

    async def open(self, id: str, *, wait: float = 0.0) -> Session:
        """Open a session for writing.

        Args:
            wait: seconds to wait for another owner before `SessionLocked`.

        Raises:
            SessionNotFound: there is none; nothing is created.
            SessionLocked: it is open, here or in another process; the text says where.
            StorageCorruption, StorageVersionError: it is damaged, or of a newer laneway.
        """
        if id in self._reserved:
            raise SessionLocked(f"session {id} is being created; try again when that is done")
        return await self._attach(id, wait)

    async def list(self, *, cwd: str | None = None, parent_session_id: str | None = None, limit: int | None = None) -> list[SessionInfo]:
        """Return the sessions, last changed first. One that cannot be read is left out, with a warning in the log."""
        chosen = await self._infos()
        if cwd is not None or parent_session_id is not None:
            chosen = [i for i in chosen if cwd in (None, i.cwd) and parent_session_id in (None, i.parent_session_id)]
        chosen.sort(key=attrgetter("updated_at", "id"), reverse=True)
        return chosen[:limit]

    async def exists(self, id: str) -> bool:
        """Whether there is a session with this id, readable or not."""
        return is_session_id(id) and await self._exists(id)

    async def delete(self, id: str) -> None:
        """Delete a session for good.

        Raises:
            SessionNotFound: there is none.
            SessionLocked: it is open somewhere.
        """
        if id in self._reserved or self._live(id) is not None:
            raise SessionLocked(f"session {id} is open in this process: close it before deleting it")
        with self._reserving(id):
            await self._remove(id)

    async def fork(self, id: str, fork: Fork | None = None, *, new_id: str | None = None) -> Session:
        """Create a session that begins with what session `id` has at this moment, and return it open.

        The source may be closed, open here or open elsewhere, and is not disturbed. Entries keep their ids, seqs and times. Never
        copied: open operations, queued input, results, usage. A call that was still running in the source has an
        "interrupted" result in the fork.

        Raises:
            SessionNotFound: there is no source.
            ForkError, BranchNotFound: the fork point is not on the branch; no session was created.
            SessionExists, InvalidName: see `create`.
        """
        new_id = new_id if new_id is not None else Ids().new()
        with self._reserving(new_id):
            await self._refuse_existing(new_id)
            live = self._live(id)
            async with self.reading(id) as storage:
                values = await (values_of(storage) if live is None else values_in_line(live))
                source = await read_metadata(storage, id) if live is None else live.metadata
                plan = ForkPlan(source=source, storage=storage, values=values, fork=fork or Fork(), ids=Ids())
                await plan.check()
                metadata = plan.metadata(new_id)
                await self._make(metadata, _with_metadata(metadata, plan.commits()))
            return await self._attach(new_id, 0.0)

    def reading(self, id: str) -> AbstractAsyncContextManager[Storage]:
        """Return a context that gives a session's store to read, whoever has it open, and takes no lease.

        Raises:
            SessionNotFound: there is none (on entering the context).
        """
        return self._reading(id)

    @asynccontextmanager
    async def _reading(self, id: str) -> AsyncGenerator[Storage]:
        live = self._live(id)
        if live is not None:
            yield live.storage
            return
        storage = await self._open_to_read(id)
        try:
            yield storage
        finally:
            await storage.close()

    async def view(self, id: str, storage: Storage) -> Session:
        """Return a session on a store from `reading`, for reading only."""
        return Session.over(storage, metadata=await read_metadata(storage, id))

    async def close(self) -> None:
        """Close the sessions that this repository opened and nobody has closed; what fails is raised when all have been tried."""
        failed: list[StorageError] = []
        for session in list(self._opened.values()):
            try:
                await session.close()
            except StorageError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------ inside

    def _live(self, id: str) -> Session | None:
        session = self._opened.get(id)
        return None if session is None or session.closed else session

    @contextlib.contextmanager
    def _reserving(self, id: str) -> Generator[None]:
        if not is_session_id(id):
            raise InvalidName(f"a session cannot have the id {id!r}: use letters and digits, with '.', '_' or '-' between them, at most 128")
        if id in self._reserved:
            raise SessionExists(f"a session {id} is being created or deleted at this moment")
        self._reserved.add(id)
        try:
            yield
        finally:
            self._reserved.discard(id)

    async def _refuse_existing(self, id: str) -> None:
        if self._live(id) is not None or await self._exists(id):
            raise SessionExists(f"there is a session {id} already: open it, or choose another id")

    async def _attach(self, id: str, wait: float) -> Session:
        if not is_session_id(id):
            raise SessionNotFound(f"there is no session {id!r}")
        storage = await self._open_storage(id, wait)
        try:
            session = Session(storage, metadata=await read_metadata(storage, id), on_close=self._detach, on_rewrite=self._after_rewrite)
        except BaseException:
            await storage.close()
            raise
        self._opened[id] = session
        return session

    async def _detach(self, session: Session) -> None:
        """Close the session's store; called once, when the session closes."""
        await session.storage.close()

    async def _after_rewrite(self, session: Session) -> None:
        """Throw away what the repository knows of a session's content; called when entries were erased."""
        return

    @abstractmethod
    async def _exists(self, id: str) -> bool: ...
    @abstractmethod
    async def _make(self, metadata: SessionMetadata, commits: AsyncIterator[Sequence[Write]]) -> None:
        """Store a new session whole, or leave nothing behind. SessionExists if another process was faster."""

    @abstractmethod
    async def _open_storage(self, id: str, wait: float) -> Storage: ...
    @abstractmethod
    async def _open_to_read(self, id: str) -> Storage: ...
    @abstractmethod
    async def _infos(self) -> list[SessionInfo]: ...
    @abstractmethod
    async def _remove(self, id: str) -> None: ...


class MemoryRepo(SessionRepo):
    """Sessions that live as long as the repository: for tests, and for what may be thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self._stores: dict[str, MemoryStorage] = {}

    async def _exists(self, id: str) -> bool:
        return id in self._stores

    async def _make(self, metadata: SessionMetadata, commits: AsyncIterator[Sequence[Write]]) -> None:
        storage = MemoryStorage()
        async for writes in commits:
            await storage.commit(writes)
        self._stores[metadata.id] = storage

    def _store(self, id: str) -> MemoryStorage:
        try:
            return self._stores[id]
        except KeyError:
            raise SessionNotFound(f"there is no session {id!r} in this repository") from None

    async def _open_storage(self, id: str, wait: float) -> Storage:
        store = self._store(id)
        if self._live(id) is not None:
            raise SessionLocked(f"session {id} is open in this process: close it first", owner="this process")
        return store.reopen()

    async def _open_to_read(self, id: str) -> Storage:
        return self._store(id).reopen()

    async def _infos(self) -> list[SessionInfo]:
        return [await read_info(storage, id) for id, storage in self._stores.items()]

    async def _remove(self, id: str) -> None:
        self._store(id)
        del self._stores[id]


async def read_metadata(storage: Storage, id: str) -> SessionMetadata:
    """Return the metadata of a store; one that was not made by a repository has an id and nothing else."""
    stored = await storage.get_value(SESSION_METADATA, "")
    if stored is None:
        oldest = await storage.scan_entries(EntryScan(limit=1))
        return SessionMetadata(id=id, created_at=oldest[0].timestamp if oldest else now_ms())
    return decode_metadata(stored.value)


async def read_info(storage: Storage, id: str) -> SessionInfo:
    """Return what a list shows of a session; reads a handful of rows."""
    metadata = await read_metadata(storage, id)
    name = await storage.get_value(SESSION_NAME, "")
    stats = await storage.get_stats()
    newest = await storage.scan_entries(EntryScan(order="desc", limit=1))
    return SessionInfo(
        id=id,
        created_at=metadata.created_at,
        updated_at=max(metadata.created_at, newest[0].timestamp if newest else 0),
        name=None if name is None else name.value,
        cwd=metadata.cwd,
        parent_session_id=metadata.parent_session_id,
        message_count=stats.message_count,
        total_tokens=stats.usage.total_tokens,
        cost=stats.usage.cost.total,
        preview=await _preview(storage),
    )


async def _preview(storage: Storage) -> str:
    first = await storage.scan_entries(EntryScan(type="message", limit=8))
    texts = [one_line(text_of(e), PREVIEW_WIDTH) for e in first if isinstance(e, MessageEntry) and isinstance(e.message, UserMessage)]
    return next((text for text in texts if text), "")


async def info_if_readable(storage: Storage, id: str) -> SessionInfo | None:
    """Return `read_info`, or None if the store fails: a list must not end for one session's sake."""
    try:
        return await read_info(storage, id)
    except (StorageError, StorageClosed):
        return None


async def _with_metadata(metadata: SessionMetadata, commits: Commits) -> AsyncIterator[Sequence[Write]]:
    """Yield the commits, the last of which also sets the metadata; a store without it is one that was never finished."""
    last = SetValue(SESSION_METADATA, "", encode_metadata(metadata))
    held: Sequence[Write] = ()
    if isinstance(commits, AsyncIterator):
        async for writes in commits:
            if held:
                yield held
            held = writes
    else:
        for writes in commits:
            if held:
                yield held
            held = writes
    yield [*held, last]
