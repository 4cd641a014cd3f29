"""The repository in Postgres: all sessions of all machines in one database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.errors import MessageError, SessionExists, SessionLocked, SessionNotFound, StorageError
from laneway.messages import UserMessage, decode_message
from laneway.session._catalogue import SessionInfo
from laneway.session._repo import PREVIEW_WIDTH, SessionRepo
from laneway.session._session import SessionMetadata, decode_metadata
from laneway.session.entries import one_line, text_of_message
from laneway.session.keys import SESSION_CREATING, SESSION_METADATA, SESSION_NAME
from laneway.storage.base import DeleteValue, SessionStats, SetValue, Storage, Write

if TYPE_CHECKING:
    from laneway.storage.postgres import PostgresPool

_log = logging.getLogger("laneway.session")

# One statement for the whole list: per session a few rows, each found through an index. A session whose creation has not been finished
# (or was cut off by a crash) is left out. Payloads that are too long for a first prompt are not fetched.
_LIST = """
SELECT s.session_id, s.created_at, s.stats, m.value, n.value,
    (SELECT e.timestamp FROM entries e WHERE e.session_key = s.session_key ORDER BY e.seq DESC LIMIT 1),
    ARRAY(SELECT CASE WHEN length(f.payload) < 32768 THEN f.payload END FROM (
        SELECT e.payload FROM entries e WHERE e.session_key = s.session_key AND e.type = 'message' ORDER BY e.seq LIMIT 3) f)
FROM sessions s
LEFT JOIN cells m ON m.session_key = s.session_key AND m.namespace = %s AND m.key = ''
LEFT JOIN cells n ON n.session_key = s.session_key AND n.namespace = %s AND n.key = ''
WHERE s.next_seq > 1 AND NOT EXISTS (SELECT FROM cells c WHERE c.session_key = s.session_key AND c.namespace = %s AND c.key = '')
"""
_FINISHED = """
SELECT true FROM sessions s WHERE s.session_id = %s AND s.next_seq > 1
AND NOT EXISTS (SELECT FROM cells c WHERE c.session_key = s.session_key AND c.namespace = %s AND c.key = '')
"""


class PostgresRepo(SessionRepo):
    """Sessions in a Postgres database; any process on any machine may open one that nobody else has open.

    Connects on first use and shares its connections between its sessions. Close it when done (`close()`, `async with`).
    """

    def __init__(self, dsn: str, *, schema: str = "laneway", max_connections: int = 4) -> None:
        super().__init__()
        self._dsn = dsn
        self._schema = schema
        self._max_connections = max_connections
        self._pool: PostgresPool | None = None
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"PostgresRepo(schema={self._schema!r})"

    async def pool(self) -> PostgresPool:
        """Return the connections that the sessions share."""
        from laneway.storage.postgres import PostgresPool

        async with self._opening:
            if self._pool is None:
                self._pool = await PostgresPool.open(self._dsn, schema=self._schema, max_size=self._max_connections)
            return self._pool

    async def close(self) -> None:
        """Close the sessions that are still open, then the connections."""
        try:
            await super().close()
        finally:
            pool, self._pool = self._pool, None
            if pool is not None:
                await pool.close()

    async def _exists(self, id: str) -> bool:
        return bool(await (await self.pool()).fetch(_FINISHED, (id, SESSION_CREATING)))

    async def _make(self, metadata: SessionMetadata, commits: AsyncIterator[Sequence[Write]]) -> None:
        storage = await self._open_new(metadata.id)
        try:
            await storage.commit([SetValue(SESSION_CREATING, "", True)])
            async for writes in commits:
                await storage.commit([*writes, DeleteValue(SESSION_CREATING, "")] if _sets_metadata(writes) else writes)
        except BaseException:
            with contextlib.suppress(StorageError):
                await storage.erase()
            raise
        finally:
            await storage.close()

    async def _open_new(self, id: str) -> Any:
        """Open a session that nobody has made; what a crash has left of one that was being made is deleted first."""
        with contextlib.suppress(SessionExists):
            return await self._open(id, exclusive=True)
        if not await self._exists(id):
            try:
                await self._remove(id)
            except SessionLocked as error:
                raise SessionExists(f"a session {id} is being created at this moment: {error}") from error
        return await self._open(id, exclusive=True)

    async def _open(self, id: str, **options: Any) -> Any:
        from laneway.storage.postgres import PostgresStorage

        return await PostgresStorage.open(await self.pool(), id, **options)

    async def _open_storage(self, id: str, wait: float) -> Storage:
        return await self._finished(id, await self._open(id, create=False, wait=wait))

    async def _open_to_read(self, id: str) -> Storage:
        return await self._finished(id, await self._open(id, read_only=True))

    async def _finished(self, id: str, storage: Storage) -> Storage:
        """Refuse a session that is being made, or whose making was cut off by a crash: it is not whole."""
        try:
            if await storage.get_value(SESSION_CREATING, "") is not None:
                raise SessionNotFound(
                    f"there is no session {id!r} yet: its creation has not been finished; if it never is, create or delete it again"
                )
        except BaseException:
            await storage.close()
            raise
        return storage

    async def _remove(self, id: str) -> None:
        storage = await self._open(id, create=False)
        try:
            await storage.erase()
        finally:
            await storage.close()

    async def _infos(self) -> list[SessionInfo]:
        rows = await (await self.pool()).fetch(_LIST, (SESSION_METADATA, SESSION_NAME, SESSION_CREATING))
        return [info for row in rows if (info := _info_if_readable(row)) is not None]


def _sets_metadata(writes: Sequence[Write]) -> bool:
    return any(isinstance(write, SetValue) and write.namespace == SESSION_METADATA for write in writes)


def _info_if_readable(row: tuple[Any, ...]) -> SessionInfo | None:
    try:
        return _info(*row)
    except (StorageError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _log.warning("session %s is left out of the list: %s", row[0], error)
        return None


def _info(
    id: str, created_at: int, stats: bytes, metadata: bytes | None, name: bytes | None, changed_at: int | None, first: list[bytes | None]
) -> SessionInfo:
    known = SessionMetadata(id=id, created_at=created_at) if metadata is None else decode_metadata(msgspec.json.decode(metadata))
    totals = msgspec.json.decode(stats, type=SessionStats)
    return SessionInfo(
        id=id,
        created_at=known.created_at,
        updated_at=max(known.created_at, changed_at or 0),
        name=None if name is None else msgspec.json.decode(name),
        cwd=known.cwd,
        parent_session_id=known.parent_session_id,
        message_count=totals.message_count,
        total_tokens=totals.usage.total_tokens,
        cost=totals.usage.cost.total,
        preview=next((text for payload in first if (text := _preview(payload))), ""),
    )


class _Payload(msgspec.Struct):
    message: msgspec.Raw


def _preview(payload: bytes | None) -> str:
    if payload is None:
        return ""
    try:
        message = decode_message(msgspec.json.decode(payload, type=_Payload).message)
    except (MessageError, msgspec.MsgspecError, UnicodeDecodeError):  # damaged, or of a role that only its own application knows
        return ""
    return one_line(text_of_message(message), PREVIEW_WIDTH) if isinstance(message, UserMessage) else ""
