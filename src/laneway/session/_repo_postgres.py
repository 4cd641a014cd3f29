"""The repository in Postgres: all sessions of all machines in one database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.errors import StorageError
from laneway.messages import UserMessage, decode_message
from laneway.session._catalogue import SessionInfo
from laneway.session._repo import PREVIEW_WIDTH, SessionRepo
from laneway.session._session import SessionMetadata, decode_metadata
from laneway.session.entries import one_line, text_of_message
from laneway.session.keys import SESSION_CREATING, SESSION_METADATA, SESSION_NAME
from laneway.storage.base import DeleteValue, SessionStats, SetValue, Storage, Write

if TYPE_CHECKING:
    from laneway.storage.postgres import PostgresPool

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
WHERE NOT EXISTS (SELECT FROM cells c WHERE c.session_key = s.session_key AND c.namespace = %s AND c.key = '')
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
        await super().close()
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _exists(self, id: str) -> bool:
        return bool(await (await self.pool()).fetch("SELECT 1 FROM sessions WHERE session_id = %s", (id,)))

    async def _make(self, metadata: SessionMetadata, commits: AsyncIterator[Sequence[Write]]) -> None:
        storage = await self._open(metadata.id, exclusive=True)
        try:
            await storage.commit([SetValue(SESSION_CREATING, "", True)])
            async for writes in commits:
                await storage.commit(writes)
            await storage.commit([DeleteValue(SESSION_CREATING, "")])
        except BaseException:
            with contextlib.suppress(StorageError):
                await storage.erase()
            raise
        finally:
            await storage.close()

    async def _open(self, id: str, **options: Any) -> Any:
        from laneway.storage.postgres import PostgresStorage

        return await PostgresStorage.open(await self.pool(), id, **options)

    async def _open_storage(self, id: str, wait: float) -> Storage:
        return await self._open(id, create=False, wait=wait)

    async def _open_to_read(self, id: str) -> Storage:
        return await self._open(id, read_only=True)

    async def _remove(self, id: str) -> None:
        storage = await self._open(id, create=False)
        try:
            await storage.erase()
        finally:
            await storage.close()

    async def _infos(self) -> list[SessionInfo]:
        rows = await (await self.pool()).fetch(_LIST, (SESSION_METADATA, SESSION_NAME, SESSION_CREATING))
        return [_info(*row) for row in rows]


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


def _preview(payload: bytes | None) -> str:
    if payload is None:
        return ""
    message = decode_message(msgspec.json.encode(msgspec.json.decode(payload)["message"]))
    return one_line(text_of_message(message), PREVIEW_WIDTH) if isinstance(message, UserMessage) else ""
