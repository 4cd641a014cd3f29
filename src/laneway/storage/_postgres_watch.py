"""Hearing of commits: `LISTEN` on one session, without a gap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from laneway.storage._postgres_pool import ConnectionLost, PostgresPool, execute, import_psycopg

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_WATCHED_FOR, _RENEW_AFTER, _LOOK_UP = 60.0, 20.0, 0.5  # seconds
# Commits notify only while this time is ahead. It is set after LISTEN: a commit either is in the seq returned here, or notifies.
_ANNOUNCE = """
UPDATE sessions SET watched_until = greatest(watched_until, clock_timestamp() + make_interval(secs => %s))
WHERE session_key = %s RETURNING next_seq - 1
"""


async def watch(pool: PostgresPool, session_key: int, closed: Callable[[], bool]) -> AsyncGenerator[int]:
    """See `PostgresStorage.watch`."""
    last = -1
    while not closed():
        connection = await _connect(pool)
        try:
            await execute(connection, f"LISTEN laneway_{session_key}")
            while not closed():
                rows = await execute(connection, _ANNOUNCE, (_WATCHED_FOR, session_key))
                if not rows:
                    return
                if rows[0][0] > last:
                    last = rows[0][0]
                    yield last
                renew_at = time.monotonic() + _RENEW_AFTER
                while not closed() and time.monotonic() < renew_at:
                    seq = await _next(connection, pool.schema)
                    if seq > last:
                        last = seq
                        yield last
        except ConnectionLost:
            pass
        finally:
            await connection.close()


async def _connect(pool: PostgresPool) -> AsyncConnection[Any]:
    deadline, delay = time.monotonic() + pool.reconnect_timeout, 0.05
    while True:
        try:
            return await pool.connect()
        except ConnectionLost:
            if time.monotonic() + delay > deadline:
                raise
        await asyncio.sleep(delay)
        delay = min(delay * 2, 1.0)


async def _next(connection: AsyncConnection[Any], schema: str) -> int:
    """Return the highest seq of the notifications that are there or come within a moment; -1 if none does."""
    psycopg = import_psycopg()
    seqs = [-1]
    try:
        async for notification in connection.notifies(timeout=_LOOK_UP, stop_after=1):
            name, _, seq = notification.payload.rpartition("/")
            if name == schema:
                seqs.append(int(seq))
    except psycopg.OperationalError as error:
        raise ConnectionLost(f"the connection to Postgres was lost: {error}") from error
    return max(seqs)
